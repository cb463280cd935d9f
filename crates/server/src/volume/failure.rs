//! Failure: the news that the disk of a volume has failed, for all that must know.
//!
//! From then on nothing of the volume is answered: the state in memory may be ahead of the disk, and bytes that can
//! be read may not be on it.

use std::sync::Arc;

use mafs_arpc::watch;

/// State of the disk: whether it has failed, and why.
#[derive(Clone)]
pub(crate) struct Failure {
    why: Arc<watch::Sender<Option<String>>>,
}

impl Failure {
    pub(super) fn new() -> Self {
        Self { why: Arc::new(watch::Sender::new(None)) }
    }

    /// Notes that the disk has failed.
    pub(super) fn note(&self, why: &str) {
        self.why.send_replace(Some(why.to_owned()));
    }

    /// Returns why it has failed, if it has.
    pub(crate) fn get(&self) -> Option<String> {
        self.why.borrow().clone()
    }

    /// Waits for the failure, and returns its reason.
    pub(crate) async fn wait(&self) -> String {
        let mut why = self.why.subscribe();
        loop {
            why.mark_unchanged();
            if let Some(why) = self.get() {
                return why;
            }
            // The sender lives as long as this does.
            let _ = why.changed().await;
        }
    }
}
