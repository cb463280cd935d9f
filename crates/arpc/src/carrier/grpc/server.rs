//! The listening end.
//!
//! One task accepts and owns a task per connection, so that dropping the [`Listener`] ends them all. A peer can end at
//! most its own connection; one without a frame stream for [`IDLE_MAX`] is cut.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{frames, innermost};
use crate::carrier::accepting::Accepting;
use crate::carrier::meter::segment_bytes_of;
use crate::carrier::strangers::Strangers;
use crate::carrier::{
    CONNECTION_WINDOW_BYTES, Carrier, FRAME_BYTES_MAX, LossMeter, SEGMENT_BYTES, SINK_FRAMES, STREAM_WINDOW_BYTES,
    Transport,
};
use crate::engine::Side;
use crate::wire::Frame;
use crate::wire::arpc_server::{Arpc, ArpcServer};

/// The most connections of one listener, and the most frame streams in all of them.
const CONNECTIONS_MAX: usize = 1024;
/// The most frame streams in one connection: more than one only behind a proxy.
const STREAMS_PER_CONNECTION_MAX: u32 = 64;
/// How long a connection may be without a frame stream.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening server: a stream of carriers. Dropping it ends all its connections.
#[derive(Debug)]
pub struct Listener {
    accepting: Accepting,
    tcp_address: Option<SocketAddr>,
    socket_path: Option<PathBuf>,
}

impl Listener {
    /// Listens on a TCP address (port 0: any free one).
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn bind_tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let tcp_address = Some(listener.local_addr()?);
        Ok(Self::start(Socket::Tcp(listener), tcp_address, None))
    }

    /// Listens on a UNIX socket; a stale socket file is replaced, and the file is removed in the end. Must be called in
    /// a tokio runtime.
    ///
    /// # Errors
    /// If the path cannot be bound, in particular if another process listens there.
    pub fn bind_unix(path: PathBuf) -> io::Result<Self> {
        let listener = match UnixListener::bind(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(&path) => {
                std::fs::remove_file(&path)?;
                UnixListener::bind(&path)?
            }
            bound => bound?,
        };
        Ok(Self::start(Socket::Unix(listener), None, Some(path)))
    }

    /// Returns the TCP address in use.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.tcp_address
    }

    /// Returns the next connection; survives failed accepts. `None` once the listener is closed.
    pub async fn accept(&mut self) -> Option<Carrier> {
        self.accepting.next().await
    }

    fn start(socket: Socket, tcp_address: Option<SocketAddr>, socket_path: Option<PathBuf>) -> Self {
        Self { accepting: Accepting::start(|carriers| accept_all(socket, carriers)), tcp_address, socket_path }
    }
}

impl Stream for Listener {
    type Item = Carrier;

    /// Polls for the next connection, as [`Self::accept`].
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Carrier>> {
        self.accepting.poll_next(cx)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.socket_path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a socket file has no listener any more.
fn is_stale(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Socket {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, peer))
            }
            Self::Unix(listener) => Ok(Accepted::Unix(listener.accept().await?.0)),
        }
    }
}

async fn accept_all(socket: Socket, carriers: mpsc::Sender<Carrier>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let strangers = Arc::new(Strangers::default());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = socket.accept(), if connections.len() < CONNECTIONS_MAX => accepted,
        };
        let segment_bytes = match &accepted {
            Ok(Accepted::Tcp(stream, _)) => segment_bytes_of(stream),
            Ok(Accepted::Unix(_)) | Err(_) => SEGMENT_BYTES,
        };
        let streams = Arc::new(Streams::default());
        let service = Attachments { carriers: carriers.clone(), slots: slots.clone(), streams, segment_bytes };
        let strangers = Arc::clone(&strangers);
        match accepted {
            Ok(Accepted::Tcp(stream, peer)) => {
                drop(connections.spawn(serve(stream, peer.to_string(), service, strangers)));
            }
            Ok(Accepted::Unix(stream)) => {
                drop(connections.spawn(serve(stream, "the UNIX socket".to_owned(), service, strangers)));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Speaks HTTP/2 on one connection until it ends or is idle.
async fn serve<T>(stream: T, peer: String, service: Attachments, strangers: Arc<Strangers>)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let streams = service.streams.clone();
    let service = ArpcServer::new(service).max_decoding_message_size(FRAME_BYTES_MAX);
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX);
    let connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
    let ended = tokio::select! {
        ended = connection => ended.map_err(|error| innermost(&*error)),
        () = streams.idle_for(IDLE_MAX) => Err(format!("it attached nothing for {IDLE_MAX:?}")),
    };
    match ended {
        // The session above tells how a client's connection breaks.
        Err(why) if !streams.ever() => strangers.tell(&peer, &why),
        ended => tracing::debug!(peer, ?ended, "connection ended"),
    }
}

/// The frame streams of one connection.
#[derive(Debug, Default)]
struct Streams {
    count: AtomicUsize,
    ever: AtomicBool,
    none_left: Notify,
}

impl Streams {
    fn add(&self) {
        self.ever.store(true, Ordering::Release);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether there has been a frame stream.
    fn ever(&self) -> bool {
        self.ever.load(Ordering::Acquire)
    }

    /// Waits until there has been no frame stream for so long.
    async fn idle_for(&self, time: Duration) {
        loop {
            while self.count.load(Ordering::Acquire) > 0 {
                self.none_left.notified().await;
            }
            tokio::time::sleep(time).await;
            if self.count.load(Ordering::Acquire) == 0 {
                return;
            }
        }
    }
}

/// One frame stream, which holds its slots until it is dropped.
struct Attached {
    streams: Arc<Streams>,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.streams.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.streams.none_left.notify_one();
        }
    }
}

/// The gRPC service of one connection: makes a carrier of each stream.
struct Attachments {
    carriers: mpsc::Sender<Carrier>,
    slots: Arc<Semaphore>,
    streams: Arc<Streams>,
    segment_bytes: u64,
}

#[tonic::async_trait]
impl Arpc for Attachments {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

    async fn attach(&self, request: Request<Streaming<Frame>>) -> Result<Response<Self::AttachStream>, Status> {
        let full = |_| Status::resource_exhausted("the server has too many connections");
        let slot = self.slots.clone().try_acquire_owned().map_err(full)?;
        self.streams.add();
        let attached = Attached { streams: self.streams.clone(), _slot: slot };
        let received = frames(request.into_inner()).map(move |frame| {
            let _held = &attached;
            frame
        });
        let (sink, sent) = mpsc::channel(SINK_FRAMES);
        let stream = Box::pin(received);
        let (loss, transport) = (LossMeter::Nobody, Transport::Stream { segment_bytes: self.segment_bytes });
        let carrier = Carrier { side: Side::Acceptor, sink, stream, loss, transport };
        self.carriers.send(carrier).await.map_err(|_| Status::unavailable("the server is shutting down"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(sent).map(Ok))))
    }
}
