//! Answers to requests of the kernel: at once if possible, later if necessary, early if the caller is killed.
//!
//! Invariants: a session thread polls an operation once and never waits for it. Every request is answered exactly once.
//! An operation that has begun is never dropped, because its effects must reach the cache; if nobody waits for its
//! result any more, that result is given back. At most [`WAITING_MAX`] operations wait at a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mafs_proto::FsError;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::vfs::Error;

/// The most operations that wait for something other than the local disk. More than the kernel's limit of background
/// requests (`handlers`), so that only callers which wait themselves can meet it; they get EBUSY.
pub(super) const WAITING_MAX: usize = 4096;

/// The time between two looks at the caller of a waiting operation. fuser answers FUSE_INTERRUPT with ENOSYS, so
/// nothing tells us. Two of these and the look itself stay below the 0.5 s within which a killed process must be let
/// go.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Says whether the thread with this id is to stop waiting. The seam to the kernel's process table.
pub(super) type Killed = Arc<dyn Fn(u32) -> bool + Send + Sync>;

/// Runs operations and answers requests with their results.
pub(super) struct Answerer {
    runtime: Handle,
    places: Arc<Semaphore>,
    killed: Killed,
}

impl Answerer {
    /// Makes one whose operations wait in `runtime`.
    pub(super) fn new(runtime: Handle, killed: Killed) -> Self {
        Self { runtime, places: Arc::new(Semaphore::new(WAITING_MAX)), killed }
    }

    /// Returns the runtime in which operations wait.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs `operation` for the thread `pid` and hands its result to `deliver`, which answers the kernel. If the caller
    /// is killed before, `deliver` gets [`Error::Interrupted`], the operation goes on, and what it yields is handed to
    /// `give_back`.
    pub(super) fn run<T, D, G>(
        &self,
        pid: u32,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
        deliver: D,
        give_back: G,
    ) where
        T: Send + 'static,
        D: FnOnce(Result<T, Error>) + Send + 'static,
        G: FnOnce(T) + Send + 'static,
    {
        let killed = Arc::clone(&self.killed);
        self.run_until(pid, killed, operation, deliver, || {}, give_back);
    }

    /// Runs an operation as [`Self::run`] does, but until `interrupted` is true of the caller; calls `stop`, to tell
    /// the operation, before `deliver`.
    pub(super) fn run_until<T, D, S, G>(
        &self,
        pid: u32,
        interrupted: Killed,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
        deliver: D,
        stop: S,
        give_back: G,
    ) where
        T: Send + 'static,
        D: FnOnce(Result<T, Error>) + Send + 'static,
        S: FnOnce() + Send + 'static,
        G: FnOnce(T) + Send + 'static,
    {
        // Taken before the first poll: an operation that has begun cannot be refused any more.
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return deliver(Err(FsError::Busy.into()));
        };
        let mut operation: Waiting<T> = Box::pin(operation);
        match self.poll_once(operation.as_mut()) {
            Poll::Ready(result) => deliver(result),
            Poll::Pending => {
                self.runtime.spawn(wait(pid, operation, interrupted, (deliver, stop, give_back), place));
            }
        }
    }

    /// Polls an operation with a waker that does nothing: its task polls a pending one again, with a real waker,
    /// before anything else.
    fn poll_once<F: Future + ?Sized>(&self, operation: Pin<&mut F>) -> Poll<F::Output> {
        let _in_runtime = self.runtime.enter();
        operation.poll(&mut Context::from_waker(Waker::noop()))
    }
}

type Waiting<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

async fn wait<T>(
    pid: u32,
    mut operation: Waiting<T>,
    killed: Killed,
    (deliver, stop, give_back): (impl FnOnce(Result<T, Error>) + Send, impl FnOnce() + Send, impl FnOnce(T) + Send),
    _place: OwnedSemaphorePermit,
) {
    loop {
        match tokio::time::timeout(LOOK_EVERY, operation.as_mut()).await {
            Ok(result) => return deliver(result),
            Err(_) if killed(pid) => break,
            Err(_) => {}
        }
    }
    stop();
    deliver(Err(Error::Interrupted));
    if let Ok(value) = operation.await {
        give_back(value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::oneshot;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn never_killed() -> Killed {
        Arc::new(|_| false)
    }

    fn runtime() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    type Answer = (Result<u32, Error>, ThreadId);

    /// Starts an operation that ends when the returned sender says so; its answer and the value it gave back can be
    /// received.
    fn start(answerer: &Answerer) -> (oneshot::Sender<u32>, mpsc::Receiver<Answer>, mpsc::Receiver<u32>) {
        let (end, ended) = oneshot::channel();
        let (answers, answer) = mpsc::channel();
        let (gifts, given_back) = mpsc::channel();
        answerer.run(
            7,
            async move { ended.await.map_err(|_| Error::Unsupported) },
            move |result| answers.send((result, std::thread::current().id())).unwrap(),
            move |value| gifts.send(value).unwrap(),
        );
        (end, answer, given_back)
    }

    #[test]
    fn a_ready_operation_is_answered_on_the_session_thread() {
        let runtime = runtime();
        let answerer = Answerer::new(runtime.handle().clone(), never_killed());
        let (answers, answer) = mpsc::channel();
        let session = std::thread::current().id();
        answerer.run(
            7,
            async { Ok(5) },
            move |result: Result<u32, Error>| answers.send((result.unwrap(), std::thread::current().id())).unwrap(),
            |_| {},
        );
        assert_eq!(answer.try_recv().unwrap(), (5, session));
        assert_eq!(answerer.places.available_permits(), WAITING_MAX);
    }

    #[test]
    fn a_waiting_operation_is_answered_later_and_once() {
        let runtime = runtime();
        let answerer = Answerer::new(runtime.handle().clone(), never_killed());
        let (end, answer, given_back) = start(&answerer);
        assert!(answer.try_recv().is_err());
        end.send(9).unwrap();
        let (result, thread) = answer.recv_timeout(PATIENCE).unwrap();
        assert_eq!(result.unwrap(), 9);
        assert_ne!(thread, std::thread::current().id());
        assert!(answer.recv_timeout(PATIENCE).is_err(), "the sender is gone without a second answer");
        assert!(given_back.recv_timeout(PATIENCE).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_caller_is_let_go_within_half_a_second_and_the_operation_goes_on() {
        let dead = Arc::new(AtomicBool::new(false));
        let probe = Arc::clone(&dead);
        let answerer = Answerer::new(Handle::current(), Arc::new(move |pid| pid == 7 && probe.load(Ordering::SeqCst)));
        let (end, ended) = oneshot::channel::<u32>();
        let (answers, mut answer) = tokio::sync::mpsc::unbounded_channel();
        let (gifts, mut given_back) = tokio::sync::mpsc::unbounded_channel();
        answerer.run(
            7,
            async move { ended.await.map_err(|_| Error::Unsupported) },
            move |result| answers.send(result).unwrap(),
            move |value| gifts.send(value).unwrap(),
        );
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(answer.try_recv().is_err(), "a living caller waits");
        dead.store(true, Ordering::SeqCst);
        let killed_at = tokio::time::Instant::now();
        assert!(matches!(answer.recv().await, Some(Err(Error::Interrupted))));
        assert!(killed_at.elapsed() < Duration::from_millis(500), "{:?}", killed_at.elapsed());
        assert_eq!(answerer.places.available_permits(), WAITING_MAX - 1, "it still goes on");
        end.send(3).unwrap();
        assert_eq!(given_back.recv().await, Some(3));
    }

    #[test]
    fn an_operation_beyond_the_bound_is_refused_without_being_begun() {
        let runtime = runtime();
        let answerer = Answerer::new(runtime.handle().clone(), never_killed());
        let all = answerer.places.clone().try_acquire_many_owned(u32::try_from(WAITING_MAX).unwrap()).unwrap();
        let (end, answer, _given_back) = start(&answerer);
        assert!(matches!(answer.try_recv().unwrap().0, Err(Error::Refused(FsError::Busy))));
        assert!(end.is_closed());
        drop(all);
        let (end, answer, _given_back) = start(&answerer);
        end.send(1).unwrap();
        assert_eq!(answer.recv_timeout(PATIENCE).unwrap().0.unwrap(), 1);
    }
}
