//! Operations that wait for the server, and may hold up the kernel meanwhile.

use super::{Remote, Shared};

/// A call that waits, counted as long as the value lives.
pub(crate) struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    pub(super) fn begin(shared: &'a Shared) -> Self {
        shared.waiting.send_modify(|calls| *calls += 1);
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|calls| *calls -= 1);
    }
}

impl Remote {
    /// Counts an operation that waits for the server, as long as the value lives.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        Waiting::begin(&self.shared)
    }
}
