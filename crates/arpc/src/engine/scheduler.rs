//! The scheduler: decides whose chunk is next.
//!
//! Five strict classes. Inside a class calls that have sent nothing yet go first, in the order they came; the others
//! take turns, one chunk each. Knows calls only by id; a call is in a queue exactly while it has something to send.

use std::collections::VecDeque;

use mafs_proto::Class;

use super::frame::CallId;

/// The kind of a call's turn: whether it has sent anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// The call has sent nothing: it goes before all that have.
    First,
    /// The call has sent something.
    Next,
}

#[derive(Debug, Default)]
struct Lane {
    first: VecDeque<CallId>,
    next: VecDeque<CallId>,
}

/// The queues of calls with something to send.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    lanes: [Lane; 5],
}

impl Scheduler {
    /// Adds a call, behind those of its kind. The call must not be in any queue.
    pub(crate) fn push(&mut self, id: CallId, class: Class, turn: Turn) {
        let lane = &mut self.lanes[class.index()];
        match turn {
            Turn::First => lane.first.push_back(id),
            Turn::Next => lane.next.push_back(id),
        }
    }

    /// Returns the next call of a class.
    pub(crate) fn peek(&self, class: Class) -> Option<CallId> {
        let lane = &self.lanes[class.index()];
        lane.first.front().or_else(|| lane.next.front()).copied()
    }

    /// Takes the next call of a class.
    pub(crate) fn pop(&mut self, class: Class) -> Option<CallId> {
        let lane = &mut self.lanes[class.index()];
        lane.first.pop_front().or_else(|| lane.next.pop_front())
    }

    /// Takes a call out of its class.
    pub(crate) fn remove(&mut self, id: CallId, class: Class) {
        let lane = &mut self.lanes[class.index()];
        lane.first.retain(|other| *other != id);
        lane.next.retain(|other| *other != id);
    }

    pub(crate) fn clear(&mut self) {
        self.lanes = Default::default();
    }
}
