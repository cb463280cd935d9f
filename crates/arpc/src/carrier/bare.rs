//! Carriers without engines, to measure what an engine costs.

use bytes::Bytes;
use futures_util::StreamExt;

use super::Carrier;
use crate::wire::{Data, Frame, frame::Kind};

fn data(bytes: Bytes, last: bool) -> Frame {
    let kind = Kind::Data(Data { id: 1, class: 4, data: bytes, last });
    Frame { acknowledged: 0, acknowledge_delay_us: 0, acknowledge_queue_us: 0, received_at_us: 0, kind: Some(kind) }
}

/// Sends `count` pieces. Returns when the other end has [`answer`]ed the last one; `None` if the connection ends
/// before.
pub async fn send(carrier: &mut Carrier, piece: &Bytes, count: usize) -> Option<()> {
    for number in 1..=count {
        carrier.sink.send(data(piece.clone(), number == count)).await.ok()?;
    }
    carrier.stream.next().await?.ok().map(drop)
}

/// Answers the last piece of each [`send`] with an empty one, until the connection ends.
pub async fn answer(mut carrier: Carrier) {
    while let Some(Ok(frame)) = carrier.stream.next().await {
        let last = matches!(frame.kind, Some(Kind::Data(Data { last: true, .. })));
        if last && carrier.sink.send(data(Bytes::new(), true)).await.is_err() {
            return;
        }
    }
}
