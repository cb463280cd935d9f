//! The command's end of the control socket.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::line::{self, RESPONSE_BYTES_MAX};
use super::{MountStatus, Request, Response};

/// How long a daemon may take to say how it is. It never waits for the network to do so.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

/// Why a daemon does not answer as wished.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens.
    #[error("no client is running for it")]
    NoDaemon,
    /// It ended, or answers nothing that makes sense.
    #[error("the client does not answer: {0}")]
    Broken(#[from] io::Error),
    /// It says that it cannot.
    #[error("{0}")]
    Failed(String),
}

/// A connection to the daemon of a mount.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Client {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// [`ControlError::NoDaemon`] if there is none.
    pub async fn connect(path: &Path) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(path).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ControlError::NoDaemon,
            _ => ControlError::Broken(error),
        })?;
        let (reader, writer) = stream.into_split();
        Ok(Self { reader: BufReader::new(reader), writer })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// If the daemon ends before it answers, or the answer makes no sense.
    pub async fn ask(&mut self, request: Request) -> Result<Response, ControlError> {
        line::write(&mut self.writer, request).await?;
        let response = line::read(&mut self.reader, RESPONSE_BYTES_MAX).await?;
        response.ok_or_else(|| ControlError::Broken(io::Error::other("it has ended")))
    }

    /// Asks what is going on.
    ///
    /// # Errors
    /// As for [`Self::ask`], and if the answer takes longer than 5 s.
    pub async fn status(&mut self) -> Result<MountStatus, ControlError> {
        let answer = tokio::time::timeout(STATUS_LIMIT, self.ask(Request::Status)).await;
        match answer.map_err(|_| ControlError::Broken(io::Error::other("no answer within 5 s")))?? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(other)),
        }
    }

    /// Waits until the server has everything that was written before the call.
    ///
    /// # Errors
    /// As for [`Self::ask`]; [`ControlError::Failed`] if it cannot be sent.
    pub async fn sync(&mut self) -> Result<(), ControlError> {
        match self.ask(Request::Sync).await? {
            Response::Synced => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Waits until the daemon has ended.
    pub async fn closed(&mut self) {
        let mut rest = [0; 256];
        while matches!(self.reader.read(&mut rest).await, Ok(bytes) if bytes > 0) {}
    }
}

fn unexpected(response: Response) -> ControlError {
    match response {
        Response::Failed(why) => ControlError::Failed(why),
        Response::Status(_) | Response::Synced => {
            ControlError::Broken(io::Error::other("its answer is for another question"))
        }
    }
}
