//! The containers that the kernel has, by the numbers it gave them.
//!
//! All handles of an inode must name the same number, and a number must live as long as its handles. A number also
//! lives until the answer that names it has been given, which may be after its last handle is gone: by then the inode
//! may have another container, so numbers are found by container. Only a try tells whether the kernel takes containers
//! at all (it needs Linux 6.9 and CAP_SYS_ADMIN): after the first refusal none is offered.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::vfs::{ContainerNumber, FileHandle};

/// Numbers, dead or alive, that may be kept beyond twice the number of handles.
const SWEEP_SLACK: usize = 64;

/// The containers the kernel has, by numbers of this kind: those of FUSE, or of the simulator's kernel.
#[derive(Debug)]
pub struct Backings<N> {
    inner: Mutex<Inner<N>>,
}

#[derive(Debug)]
struct Inner<N> {
    by_container: HashMap<ContainerNumber, Weak<N>>,
    by_handle: HashMap<FileHandle, (ContainerNumber, Arc<N>)>,
    refused: bool,
}

impl<N> Default for Backings<N> {
    fn default() -> Self {
        let inner = Inner { by_container: HashMap::new(), by_handle: HashMap::new(), refused: false };
        Self { inner: Mutex::new(inner) }
    }
}

impl<N> Inner<N> {
    /// Forgets numbers that went with an answer after their last handle.
    fn sweep(&mut self) {
        if self.by_container.len() > 2 * self.by_handle.len() + SWEEP_SLACK {
            self.by_container.retain(|_, number| number.strong_count() > 0);
        }
    }
}

impl<N> Backings<N> {
    /// Returns the number for a new handle of a container: that of its other handles, or the one that `register` gets.
    ///
    /// # Errors If the kernel takes no containers; with the reason, the first time.
    pub fn add_handle(
        &self,
        container: ContainerNumber,
        handle: FileHandle,
        register: impl FnOnce() -> io::Result<N>,
    ) -> Result<Arc<N>, Option<io::Error>> {
        let mut inner = self.lock();
        let backing = match inner.by_container.get(&container).and_then(Weak::upgrade) {
            Some(backing) => backing,
            None if inner.refused => return Err(None),
            None => match register() {
                Ok(backing) => Arc::new(backing),
                Err(error) => {
                    inner.refused = true;
                    return Err(Some(error));
                }
            },
        };
        inner.by_container.insert(container, Arc::downgrade(&backing));
        inner.sweep();
        inner.by_handle.insert(handle, (container, Arc::clone(&backing)));
        Ok(backing)
    }

    /// Drops a handle that is gone; does nothing if the handle has no number.
    pub fn drop_handle(&self, handle: FileHandle) {
        let mut inner = self.lock();
        if let Some((container, backing)) = inner.by_handle.remove(&handle) {
            drop(backing);
            if inner.by_container.get(&container).is_some_and(|number| number.strong_count() == 0) {
                inner.by_container.remove(&container);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<N>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
