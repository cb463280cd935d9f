//! The daemon's end of the control socket.

use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::line::{self, REQUEST_BYTES_MAX};
use super::{Request, Response};

/// The most commands connected at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;

/// The most refused updates of one answer, the oldest first. Bounds its length.
pub(super) const REFUSED_MAX: usize = 1_000;

/// The rest after a failed accept, which fails when the process has no descriptor left.
const ACCEPT_REST: Duration = Duration::from_millis(200);

/// The time commands may take to read their last answers.
const LAST_ANSWERS_WAIT: Duration = Duration::from_secs(1);

/// A listening control socket. Dropping it ends all connections and removes the socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    accepting: JoinHandle<()>,
    stop: Arc<Notify>,
}

impl Server {
    /// Listens at `path`; a socket that nobody listens on any more is replaced. Every request is answered by `handle`;
    /// if the command goes away before, the answer's future is dropped.
    ///
    /// # Errors
    /// If the path cannot be bound, or a daemon listens there.
    pub fn start<H, F>(path: &Path, handle: H) -> io::Result<Self>
    where
        H: Fn(Request) -> F + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another client serves this mount point"));
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let stop = Arc::new(Notify::new());
        let accepting = tokio::spawn(accept(listener, Arc::new(handle), Arc::clone(&stop)));
        Ok(Self { path: path.to_path_buf(), accepting, stop })
    }

    /// Accepts no more commands, and ends when all connected commands have gone, or after a second.
    pub async fn finish(mut self) {
        self.stop.notify_one();
        let _ = tokio::time::timeout(LAST_ANSWERS_WAIT, &mut self.accepting).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept<H, F>(listener: UnixListener, handle: Arc<H>, stop: Arc<Notify>)
where
    H: Fn(Request) -> F + Send + Sync + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) if is_permitted(&stream) => {
                    connections.spawn(serve(stream, Arc::clone(&handle)));
                }
                Ok(_) => tracing::warn!("refused a control connection of another user"),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a control connection");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stop.notified() => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

fn is_permitted(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

/// Answers the questions of one connection, one after the other, until it ends.
async fn serve<S, H, F>(stream: S, handle: Arc<H>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Request) -> F,
    F: Future<Output = Response>,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::new(reader);
    loop {
        let response = match line::read(&mut reader, REQUEST_BYTES_MAX).await {
            Ok(None) => return,
            Ok(Some(request)) => tokio::select! {
                response = handle(request) => bounded(response),
                () = gone(&mut reader) => return,
            },
            Err(error) => {
                // Lines behind a bad one cannot be understood.
                let _ = line::write(&mut writer, Response::Failed(error.to_string())).await;
                return;
            }
        };
        if line::write(&mut writer, response).await.is_err() {
            return;
        }
    }
}

/// Waits until the other end has closed the connection.
async fn gone(reader: &mut (impl tokio::io::AsyncBufRead + Unpin)) {
    match reader.fill_buf().await {
        // The command has asked the next question already: it is there, and gets its answer in turn.
        Ok(bytes) if !bytes.is_empty() => std::future::pending().await,
        Ok(_) | Err(_) => {}
    }
}

fn bounded(mut response: Response) -> Response {
    if let Response::Status(status) = &mut response {
        status.report.refused.truncate(REFUSED_MAX);
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::{Client, ControlError, SyncRequest};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    async fn echo(request: Request) -> Response {
        Response::Failed(format!("{request:?}"))
    }

    #[tokio::test]
    async fn questions_are_answered_in_turn_over_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let server = Server::start(&path, echo).unwrap();
        let mut client = Client::connect(&path).await.unwrap();
        for request in [Request::Status, Request::Progress(7)] {
            let response = client.ask(request.clone()).await.unwrap();
            assert_eq!(response, Response::Failed(format!("{request:?}")));
        }
        assert!(Server::start(&path, echo).is_err(), "a living daemon keeps its socket");
        drop(server);
        assert!(!path.exists());
        let ended = tokio::time::timeout(PATIENCE, client.ask(Request::Status)).await.unwrap();
        assert!(matches!(ended, Err(ControlError::Broken(_))), "{ended:?}");
        assert!(matches!(Client::connect(&path).await, Err(ControlError::NoDaemon)));
    }

    #[tokio::test]
    async fn an_ending_daemon_gives_its_last_answers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let (end, ended) = tokio::sync::watch::channel(false);
        let last_words = move |request| {
            let mut ended = ended.clone();
            async move {
                ended.wait_for(|ended| *ended).await.unwrap();
                echo(request).await
            }
        };
        let server = Server::start(&path, last_words).unwrap();
        let mut client = Client::connect(&path).await.unwrap();
        let asking = tokio::spawn(async move { client.ask(Request::End).await });
        tokio::task::yield_now().await;
        end.send_replace(true);
        tokio::time::timeout(PATIENCE, server.finish()).await.unwrap();
        assert_eq!(asking.await.unwrap().unwrap(), Response::Failed("End".to_owned()));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_socket_of_a_dead_daemon_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(matches!(Client::connect(&path).await, Err(ControlError::NoDaemon)));
        let _server = Server::start(&path, echo).unwrap();
        Client::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn garbage_gets_one_clear_answer_and_ends_only_its_connection() {
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let serving = tokio::spawn(serve(theirs, Arc::new(echo)));
        ours.write_all(b"GET / HTTP/1.1\n").await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, ours.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.contains("not a message"), "{answer}");
        tokio::time::timeout(PATIENCE, serving).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_command_that_goes_away_ends_what_it_waited_for() {
        struct Flag(Option<tokio::sync::oneshot::Sender<()>>);
        impl Drop for Flag {
            fn drop(&mut self) {
                let _ = self.0.take().unwrap().send(());
            }
        }
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (dropped, is_dropped) = tokio::sync::oneshot::channel();
        let flag = std::sync::Mutex::new(Some(Flag(Some(dropped))));
        let wait_for_ever = move |_| {
            let flag = flag.lock().unwrap().take();
            async move {
                std::future::pending::<()>().await;
                drop(flag);
                Response::Synced
            }
        };
        tokio::spawn(serve(theirs, Arc::new(wait_for_ever)));
        let (_reader, mut writer) = tokio::io::split(ours);
        line::write(&mut writer, Request::Sync(SyncRequest { below: Vec::new(), ticket: 1 })).await.unwrap();
        drop((_reader, writer));
        tokio::time::timeout(PATIENCE, is_dropped).await.unwrap().unwrap();
    }
}
