//! Inflow: the arriving bytes of a file, in pieces that are good to write.
//!
//! The kernel keeps a file in folios as large as the writes that made them, if these are aligned, and reads from large
//! ones faster: 27 of 28 GB/s from aligned writes of 512 KB, half of that from pieces as they happen to arrive.

use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::{PayloadError, PayloadReader};
use tokio::time::{Instant, timeout_at};

/// Pieces end where this divides the offset. This is also the best size to hand to another thread at a time, which
/// costs as much as copying some 100 KB.
const PIECE_BYTES: u64 = 512 << 10;

/// Time for which arrived bytes wait for the rest of their piece: below what readers notice, enough for the next
/// chunks of a fast link.
const PATIENCE: Duration = Duration::from_millis(2);

/// A payload that goes to one place after the other in a container.
pub(super) struct Inflow {
    payload: PayloadReader,
    /// Bytes that have arrived behind the end of the last piece.
    rest: Bytes,
}

impl Inflow {
    pub(super) fn new(payload: PayloadReader) -> Self {
        Self { payload, rest: Bytes::new() }
    }

    /// Returns the next bytes, for a place at `offset` in a file that ends at `end`: up to where a piece ends, fewer
    /// if those do not come at once. Returns none at the end of the payload.
    ///
    /// # Errors
    /// If the payload ends early, after all that came has been given out.
    pub(super) async fn next(&mut self, offset: u64, end: u64) -> Result<Vec<Bytes>, PayloadError> {
        let most = PIECE_BYTES - offset % PIECE_BYTES;
        let enough = to_usize(most.min(end.saturating_sub(offset)));
        let most = to_usize(most);
        let mut pieces = match self.rest.is_empty() {
            true => self.payload.read_many(enough).await?,
            false => vec![std::mem::take(&mut self.rest)],
        };
        let mut bytes: usize = pieces.iter().map(Bytes::len).sum();
        let patience = Instant::now() + PATIENCE;
        while (1..enough).contains(&bytes)
            && let Ok(Ok(more)) = timeout_at(patience, self.payload.read_many(enough - bytes)).await
            && !more.is_empty()
        {
            bytes += more.iter().map(Bytes::len).sum::<usize>();
            pieces.extend(more);
        }
        if let Some(last) = pieces.last_mut().filter(|_| bytes > most) {
            self.rest = last.split_off(last.len() - (bytes - most));
        }
        Ok(pieces)
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use mafs_arpc::Payload;

    use super::*;

    /// Returns the bytes that come out for each piece, and whether all ends well, if `pieces` arrive `apart` from one
    /// another.
    async fn flow(pieces: &[usize], apart: Duration, finish: bool) -> (Vec<usize>, bool) {
        let (mut writer, Payload::Stream(reader)) = Payload::stream() else { unreachable!() };
        let arriving = pieces.to_vec();
        tokio::spawn(async move {
            for bytes in arriving {
                writer.write(vec![0; bytes].into()).await.unwrap();
                tokio::time::sleep(apart).await;
            }
            if finish {
                writer.finish();
            }
        });
        let (mut inflow, end) = (Inflow::new(reader), pieces.iter().sum::<usize>() as u64);
        let (mut offset, mut out) = (0, Vec::new());
        loop {
            match inflow.next(offset, end).await {
                Ok(pieces) if pieces.is_empty() => return (out, true),
                Ok(pieces) => {
                    let bytes = pieces.iter().map(Bytes::len).sum();
                    offset += bytes as u64;
                    out.push(bytes);
                }
                Err(_) => return (out, false),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_at_once_comes_in_aligned_pieces() {
        const PIECE: usize = 512 << 10;
        let (out, whole) = flow(&[200_000; 10], Duration::ZERO, true).await;
        assert_eq!((out, whole), (vec![PIECE, PIECE, PIECE, 2_000_000 - 3 * PIECE], true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_slowly_waits_for_nothing() {
        let (out, whole) = flow(&[64_000; 3], Duration::from_millis(10), true).await;
        assert_eq!((out, whole), (vec![64_000; 3], true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_before_a_failure_is_given_out() {
        let (out, whole) = flow(&[600_000, 7], Duration::ZERO, false).await;
        assert_eq!((out.iter().sum::<usize>(), whole), (600_007, false));
    }
}
