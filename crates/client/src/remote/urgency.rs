//! How urgent a call is, to be changed while anything of it is on its way.

use mafs_arpc::Priority;
use mafs_proto::{Class, Classes, Purpose};

/// The class of a call under way, by what it is for.
pub(crate) struct Urgency {
    priority: Priority,
    classes: Classes,
    class: Class,
}

impl Urgency {
    /// That of a call which was made in `class`.
    pub(super) fn new(priority: Priority, classes: Classes, class: Class) -> Self {
        Self { priority, classes, class }
    }

    /// From now on it is for this.
    pub(crate) fn set(&mut self, purpose: Purpose) {
        let class = self.classes.class(purpose);
        if class != self.class {
            self.class = class;
            self.priority.set(class);
        }
    }
}
