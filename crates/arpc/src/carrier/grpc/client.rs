//! The connecting end.

use std::io;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use super::greeting::{Greeting, Heard};
use super::{Address, ConnectError, frames, in_words};
use crate::carrier::meter::segment_bytes_of;
use crate::carrier::shaped::Shaper;
use crate::carrier::side_by_side::side_by_side;
use crate::carrier::{
    CONNECTION_WINDOW_BYTES, Carrier, FRAME_BYTES_MAX, LossMeter, SEGMENT_BYTES, SINK_FRAMES, STREAM_WINDOW_BYTES,
    Transport,
};
use crate::engine::Side;
use crate::wire::arpc_client::ArpcClient;

/// How long a peer that accepted a connection may take to answer as a mafs server.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Connects to a server.
///
/// # Errors
/// [`ConnectError`]; the call itself has no deadline while it resolves and connects, callers set one around it. A peer
/// that accepts and then says nothing for 5 s is `Silent`.
pub async fn connect(address: &Address) -> Result<Carrier, ConnectError> {
    match address {
        Address::Tcp(host_port) => {
            let connection = connect_tcp(host_port).await?;
            let below = Below { loss: LossMeter::of_tcp(&connection), segment_bytes: segment_bytes_of(&connection) };
            attach(connection, below, address).await
        }
        Address::Unix(path) => attach(connect_unix(path).await?, Below::of(LossMeter::Nobody), address).await,
    }
}

/// Connects to a server over an emulated link.
///
/// # Errors
/// As [`connect`].
pub async fn connect_over(link: &Shaper, address: &Address) -> Result<Carrier, ConnectError> {
    let beginning = link.begin().await.map_err(|source| unreachable(address, source))?;
    let below = Below::of(beginning.loss());
    match address {
        Address::Tcp(host_port) => attach(beginning.over(connect_tcp(host_port).await?), below, address).await,
        Address::Unix(path) => attach(beginning.over(connect_unix(path).await?), below, address).await,
    }
}

async fn connect_unix(path: &Path) -> Result<UnixStream, ConnectError> {
    UnixStream::connect(path).await.map_err(|source| unreachable(&Address::Unix(path.to_owned()), source))
}

async fn connect_tcp(host_port: &str) -> Result<TcpStream, ConnectError> {
    let unknown = |source| ConnectError::UnknownHost { address: host_port.to_owned(), source };
    let addresses = lookup_host(host_port).await.map_err(unknown)?;
    let attempt = async |address| {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    match side_by_side(addresses, |_| false, attempt).await {
        Some(connected) => {
            connected.map_err(|source| ConnectError::Unreachable { address: host_port.to_owned(), source })
        }
        None => Err(unknown(io::Error::other("the name has no address"))),
    }
}

/// The transport below, as far as it is known.
struct Below {
    loss: LossMeter,
    segment_bytes: u64,
}

impl Below {
    /// Describes a transport that has no packets, or none of its own.
    fn of(loss: LossMeter) -> Self {
        Self { loss, segment_bytes: SEGMENT_BYTES }
    }
}

/// Opens the gRPC stream over a connection.
async fn attach<T>(connection: T, below: Below, address: &Address) -> Result<Carrier, ConnectError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let not_mafs = |why: String| ConnectError::NotMafs { address: address.to_string(), why };
    let greeting = Greeting::default();
    let connection = Heard { connection, greeting: greeting.clone() };
    let opened = async {
        let channel = channel(connection).await.map_err(|error| Status::from_error(error.into()))?;
        let (sink, sent) = mpsc::channel(SINK_FRAMES);
        let mut client = ArpcClient::new(channel).max_decoding_message_size(FRAME_BYTES_MAX);
        let received = client.attach(ReceiverStream::new(sent)).await?.into_inner();
        let Below { loss, segment_bytes } = below;
        let (stream, transport) = (Box::pin(frames(received)), Transport::Stream { segment_bytes });
        Ok(Carrier { side: Side::Connector, sink, stream, loss, transport })
    };
    match tokio::time::timeout(ANSWER_WITHIN, opened).await {
        Ok(Ok(carrier)) => Ok(carrier),
        Ok(Err(_)) if greeting.is_strange() => Err(not_mafs("it does not speak HTTP/2".to_owned())),
        Ok(Err(status)) => Err(match lost(&status) {
            Some(source) => unreachable(address, source),
            None => not_mafs(in_words(&status)),
        }),
        Err(_) => Err(ConnectError::Silent { address: address.to_string() }),
    }
}

/// Makes an HTTP/2 connection over this one stream; it is never dialled again.
async fn channel<T>(connection: T) -> Result<Channel, tonic::transport::Error>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut connection = Some(connection);
    // The name only fills the `:authority` field: the connection exists already.
    Endpoint::from_static("http://mafs")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .connect_with_connector(service_fn(move |_| {
            let connection = connection.take().map(TokioIo::new);
            std::future::ready(connection.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset)))
        }))
        .await
}

/// Whether an answer failed because the connection did, or the server is full; anything else is not how mafs answers.
fn lost(status: &Status) -> Option<io::Error> {
    if status.code() == Code::ResourceExhausted {
        return Some(io::Error::other(status.message().to_owned()));
    }
    let mut error = std::error::Error::source(status);
    while let Some(source) = error {
        let kind = source.downcast_ref::<io::Error>().map(io::Error::kind);
        if let Some(kind @ (io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)) = kind {
            return Some(kind.into());
        }
        error = source.source();
    }
    None
}

fn unreachable(address: &Address, source: io::Error) -> ConnectError {
    ConnectError::Unreachable { address: address.to_string(), source }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;

    /// A peer that has said something and closed before anything was written to it.
    struct Closed(&'static [u8]);

    impl AsyncRead for Closed {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Closed {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_stranger_that_answers_and_closes_at_once_is_told_from_a_lost_connection() {
        let address = Address::Tcp("host:6237".into());
        let refused = |said: &'static [u8]| attach(Closed(said), Below::of(LossMeter::Nobody), &address);
        for said in [&b"<!DOCTYPE HTML><html><head><title>Error response"[..], b"hello"] {
            let stranger = refused(said).await.unwrap_err();
            assert!(matches!(stranger, ConnectError::NotMafs { .. }), "{stranger}");
        }
        for said in [&b""[..], b"\0\0\0\x04\0\0\0\0\0"] {
            let lost = refused(said).await.unwrap_err();
            assert!(matches!(lost, ConnectError::Unreachable { .. }), "{lost}");
        }
    }
}
