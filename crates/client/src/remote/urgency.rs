//! The urgency of a call, which can be changed while any part of it is on its way.

use mafs_arpc::Priority;
use mafs_proto::{Class, Classes, Purpose};

/// The class of a call under way, by its purpose.
pub(crate) struct Urgency {
    priority: Priority,
    classes: Classes,
    class: Class,
}

impl Urgency {
    /// Makes the urgency of a call that was made in `class`.
    pub(super) fn new(priority: Priority, classes: Classes, class: Class) -> Self {
        Self { priority, classes, class }
    }

    /// Changes the purpose of the call from now on.
    pub(crate) fn set(&mut self, purpose: Purpose) {
        let class = self.classes.class(purpose);
        if class != self.class {
            self.class = class;
            self.priority.set(class);
        }
    }
}
