//! The command's end of the control socket.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::line::{self, RESPONSE_BYTES_MAX};
use super::{HoardRequest, HoardResponse, MountStatus, Request, Response, SyncRequest};
use crate::limit::ClassLimit;
use crate::vfs::{ConflictsReport, ObjectReport, QueuePage, QueueReport, RpcStatistics, SyncProgress, Verified};

/// The time a daemon may take to tell its status. The daemon never waits for the network to do so.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

/// The time between two looks at an ending process.
const END_LOOK: Duration = Duration::from_millis(2);

/// The reason why a daemon does not answer as wished.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No daemon listens.
    #[error("no client is running for it")]
    NoDaemon,
    /// The daemon has ended, or its answer makes no sense.
    #[error("the client does not answer: {0}")]
    Broken(#[from] io::Error),
    /// The daemon says that it cannot do this.
    #[error("{0}")]
    Failed(String),
    /// The daemon has no connection to the server, which this needs.
    #[error("{0}")]
    OutOfReach(String),
    /// The daemon knows no object by this path.
    #[error("there is no such file, as far as this client knows")]
    Unknown,
}

/// A connection to the daemon of a mount.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    process: Option<OwnedFd>,
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
        let process = process_behind(&stream);
        let (reader, writer) = stream.into_split();
        Ok(Self { reader: BufReader::new(reader), writer, process })
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// If the daemon ends before it answers, or the answer makes no sense.
    pub async fn ask(&mut self, request: Request) -> Result<Response, ControlError> {
        line::write(&mut self.writer, request).await?;
        self.answer().await
    }

    async fn answer(&mut self) -> Result<Response, ControlError> {
        let response = line::read(&mut self.reader, RESPONSE_BYTES_MAX).await?;
        response.ok_or_else(|| ControlError::Broken(io::Error::other("it has ended")))
    }

    /// Asks for the mount's status.
    ///
    /// # Errors
    /// As for [`Self::ask`], and if the answer takes longer than 5 s.
    pub async fn status(&mut self) -> Result<MountStatus, ControlError> {
        match self.ask_at_once(Request::Status).await? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for the statistics of calls.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub async fn statistics(&mut self) -> Result<RpcStatistics, ControlError> {
        match self.ask_at_once(Request::Statistics).await? {
            Response::Statistics(statistics) => Ok(*statistics),
            other => Err(unexpected(other)),
        }
    }

    /// Limits the traffic of a class.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub async fn limit(&mut self, limit: ClassLimit) -> Result<(), ControlError> {
        match self.ask_at_once(Request::Limit(limit)).await? {
            Response::Limited => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Ends the connection to the server, and has none made until [`Self::reconnect`]. Returns the status after that.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub async fn disconnect(&mut self) -> Result<MountStatus, ControlError> {
        match self.ask(Request::Disconnect).await? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(other)),
        }
    }

    /// Ends [`Self::disconnect`], and waits for a connection.
    ///
    /// # Errors
    /// As for [`Self::ask`]; [`ControlError::OutOfReach`] if there is none soon.
    pub async fn reconnect(&mut self) -> Result<(), ControlError> {
        match self.ask(Request::Reconnect).await? {
            Response::Reconnected => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Says that the network is about to change, and for how long that may take.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub async fn hand_off(&mut self, time: Duration) -> Result<(), ControlError> {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match self.ask_at_once(Request::Handoff(ms)).await? {
            Response::HandingOff => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Asks something that never waits for the network.
    async fn ask_at_once(&mut self, request: Request) -> Result<Response, ControlError> {
        let answer = tokio::time::timeout(STATUS_LIMIT, self.ask(request)).await;
        answer.map_err(|_| ControlError::Broken(io::Error::other("no answer within 5 s")))?
    }

    /// Waits until the server has everything that was written before the call.
    ///
    /// # Errors
    /// As for [`Self::ask`]; [`ControlError::Failed`] if it cannot be sent, [`ControlError::Unknown`] if there is no
    /// such path.
    pub async fn sync(&mut self, request: SyncRequest) -> Result<(), ControlError> {
        match self.ask(Request::Sync(request)).await? {
            Response::Synced => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Asks how much is left for the [`Self::sync`] that waits on another connection; none if it has not begun, or has
    /// ended.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub async fn progress(&mut self, ticket: u64) -> Result<Option<SyncProgress>, ControlError> {
        match self.ask_at_once(Request::Progress(ticket)).await? {
            Response::Progress(progress) => Ok(progress),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for a part of the queue.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub async fn queue(&mut self, page: QueuePage) -> Result<QueueReport, ControlError> {
        match self.ask_at_once(Request::Queue(page)).await? {
            Response::Queue(report) => Ok(*report),
            other => Err(unexpected(other)),
        }
    }

    /// Holds back contents that are sent in the background, or ends that.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub async fn pause(&mut self, paused: bool) -> Result<(), ControlError> {
        match self.ask_at_once(Request::Pause(paused)).await? {
            Response::Paused => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Has records of the log sent before others. Returns the ids that the log does not have.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub async fn send_first(&mut self, records: Vec<(u64, u64)>) -> Result<Vec<(u64, u64)>, ControlError> {
        match self.ask_at_once(Request::First(records)).await? {
            Response::First(missing) => Ok(missing),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for the conflicts. The daemon asks the server.
    ///
    /// # Errors
    /// As for [`Self::ask`]; [`ControlError::Failed`] if the server cannot be asked.
    pub async fn conflicts(&mut self) -> Result<ConflictsReport, ControlError> {
        match self.ask(Request::Conflicts).await? {
            Response::Conflicts(report) => Ok(*report),
            other => Err(unexpected(other)),
        }
    }

    /// Takes changes off the list that the server has refused about a path below the mount point. Returns their
    /// number.
    ///
    /// # Errors
    /// As for [`Self::status`].
    pub async fn dismiss(&mut self, below: Vec<u8>) -> Result<u64, ControlError> {
        match self.ask_at_once(Request::Dismiss(below)).await? {
            Response::Dismissed(count) => Ok(count),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for the state of the object at a path below the mount point.
    ///
    /// # Errors
    /// As for [`Self::status`]; [`ControlError::Unknown`] if there is no such path.
    pub async fn state(&mut self, below: Vec<u8>) -> Result<ObjectReport, ControlError> {
        match self.ask_at_once(Request::State(below)).await? {
            Response::State(state) => Ok(*state),
            other => Err(unexpected(other)),
        }
    }

    /// Has the cached contents at a path below the mount point read, which takes as long as the disk does.
    ///
    /// # Errors
    /// As for [`Self::ask`]; [`ControlError::Unknown`] if there is no such path.
    pub async fn verify(&mut self, below: Vec<u8>) -> Result<Verified, ControlError> {
        match self.ask(Request::Verify(below)).await? {
            Response::Verified(verified) => Ok(*verified),
            other => Err(unexpected(other)),
        }
    }

    /// Asks something about the hoard.
    ///
    /// # Errors
    /// As for [`Self::ask`]; [`ControlError::Unknown`] if there is no such path, [`ControlError::OutOfReach`].
    pub async fn hoard(&mut self, request: HoardRequest) -> Result<HoardResponse, ControlError> {
        let (waits, request) = (request.waits(), Request::Hoard(request));
        let response = if waits { self.ask(request).await? } else { self.ask_at_once(request).await? };
        match response {
            Response::Hoard(response) => Ok(*response),
            other => Err(unexpected(other)),
        }
    }

    /// Asks for the last status, before the mount is ended; [`Self::ended`] waits for it.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub async fn ask_end(&mut self) -> Result<(), ControlError> {
        // Once it has answered, the daemon knows this connection and will not end without its last answer.
        self.status().await?;
        Ok(line::write(&mut self.writer, Request::End).await?)
    }

    /// Waits until the mount has ended, and gives its last status.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub async fn ended(&mut self) -> Result<MountStatus, ControlError> {
        match self.answer().await? {
            Response::Status(status) => Ok(*status),
            other => Err(unexpected(other)),
        }
    }

    /// Closes the connection and waits until the daemon's process has ended: until then it holds its cache.
    pub async fn gone(self) {
        let Self { mut reader, writer, process } = self;
        drop(writer);
        let mut rest = [0; 256];
        while matches!(reader.read(&mut rest).await, Ok(bytes) if bytes > 0) {}
        let Some(process) = process else { return };
        while !has_ended(&process) {
            tokio::time::sleep(END_LOOK).await;
        }
    }
}

/// Whether a process has ended: its descriptor is readable then. A process that cannot be asked counts as ended.
fn has_ended(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
}

/// Returns a descriptor of the process at the other end; `None` if the kernel does not say, as for a daemon in another
/// container.
fn process_behind(stream: &UnixStream) -> Option<OwnedFd> {
    let pid = Pid::from_raw(stream.peer_cred().ok()?.pid()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn unexpected(response: Response) -> ControlError {
    match response {
        Response::Failed(why) => ControlError::Failed(why),
        Response::Unknown => ControlError::Unknown,
        Response::OutOfReach(why) => ControlError::OutOfReach(why),
        Response::Status(_)
        | Response::Statistics(_)
        | Response::Limited
        | Response::Synced
        | Response::Progress(_)
        | Response::Queue(_)
        | Response::Conflicts(_)
        | Response::Dismissed(_)
        | Response::Verified(_)
        | Response::Reconnected
        | Response::HandingOff
        | Response::Paused
        | Response::First(_)
        | Response::State(_)
        | Response::Hoard(_) => ControlError::Broken(io::Error::other("its answer is for another question")),
    }
}
