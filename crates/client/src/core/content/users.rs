//! Users: how the kernel gets at a container, and whether it may be writing to it.
//!
//! An inode has one way for its data, from the end of its first open until its last handle is gone: the kernel refuses
//! a mixture. A handle through which the kernel writes by itself tells of no write. A mapping made through such a
//! handle has the container itself and outlives the handle's release, so it *lingers* until the kernel says that nobody
//! has the container open for writing.

use super::watch::{Found, Sight, Watch};

/// The way of a file's data between program and container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DataPath {
    /// Through this daemon.
    Daemon,
    /// The kernel has the container.
    Passthrough,
}

/// Use that the kernel makes of a container.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Users {
    /// `None` until the first open by the kernel has come to its end.
    path: Option<DataPath>,
    /// Handles through which the kernel may write.
    writers: u32,
    /// Handles that may also read: a mapping that writes needs one.
    mappers: u32,
    /// Whether a mapping of a handle that is gone may be there still.
    lingers: bool,
    /// Whether somebody looks for such mappings again and again.
    mappings_watched: bool,
    /// Watch over the container, while the kernel may write.
    pub(crate) watch: Watch,
}

impl Users {
    /// Returns the way that the file's data goes, if that is decided.
    pub(crate) fn path(&self) -> Option<DataPath> {
        self.path
    }

    /// Decides the way for the first of several handles; the others follow. A mapping that lingers has decided it.
    pub(crate) fn choose_path(&mut self, wanted: DataPath) -> DataPath {
        let lingers = self.lingers;
        *self.path.get_or_insert(if lingers { DataPath::Passthrough } else { wanted })
    }

    /// Notes that the kernel has not taken the container.
    pub(crate) fn take_daemon_path(&mut self) {
        self.path = Some(DataPath::Daemon);
    }

    /// Whether the kernel may write to the container by itself.
    pub(crate) fn may_write(&self) -> bool {
        self.writers > 0 || self.lingers
    }

    /// Whether a handle is there through which the kernel may write.
    pub(crate) fn has_writers(&self) -> bool {
        self.writers > 0
    }

    /// Whether a mapping may store into the container.
    pub(crate) fn may_be_mapped(&self) -> bool {
        self.mappers > 0 || self.lingers
    }

    /// Returns the looks that have found changes of the kernel's which may go on.
    pub(crate) fn unsettled(&self) -> Option<Found> {
        (self.may_write() && !self.watch.is_settled()).then(|| self.watch.begin_settling())
    }

    /// Whether a mapping may be there whose handle is gone.
    pub(crate) fn lingers(&self) -> bool {
        self.lingers
    }

    /// Counts a handle through which the kernel may write; `maps`: it may also read. `sight` is of the container before
    /// that.
    pub(crate) fn begin_writing(&mut self, maps: bool, sight: Sight) {
        if !self.may_write() {
            self.watch.begin(sight);
        }
        self.writers += 1;
        self.mappers += u32::from(maps);
    }

    /// Counts such a handle less. Its mappings may be there still.
    pub(crate) fn end_writing(&mut self, maps: bool) {
        self.writers = self.writers.saturating_sub(1);
        self.mappers = self.mappers.saturating_sub(u32::from(maps));
        self.lingers |= maps;
    }

    /// Notes that the kernel has the container open for writing nowhere, and no handle is there that could.
    pub(crate) fn end_lingering(&mut self) {
        self.lingers &= self.writers > 0;
    }

    /// Whether somebody must begin to look for mappings whose handles are gone. The caller that is told so does.
    pub(crate) fn begin_watching_mappings(&mut self) -> bool {
        let begins = self.lingers && !self.mappings_watched;
        self.mappings_watched |= begins;
        begins
    }

    /// Whether nobody need look for such mappings any more. The caller that is told so does not.
    pub(crate) fn end_watching_mappings(&mut self) -> bool {
        self.mappings_watched = self.lingers;
        !self.lingers
    }

    /// Forgets the way: the last handle is gone, and the next open decides anew.
    pub(crate) fn forget_path(&mut self) {
        self.path = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    const SIGHT: Sight = Sight { changed: UNIX_EPOCH, bytes: 0 };

    #[test]
    fn the_first_open_decides_the_way_for_all_until_the_last_handle_is_gone() {
        let mut users = Users::default();
        assert_eq!(users.choose_path(DataPath::Daemon), DataPath::Daemon);
        assert_eq!(users.choose_path(DataPath::Passthrough), DataPath::Daemon);
        users.forget_path();
        assert_eq!(users.choose_path(DataPath::Passthrough), DataPath::Passthrough);
        users.take_daemon_path();
        assert_eq!(users.path(), Some(DataPath::Daemon));
    }

    #[test]
    fn a_mapping_may_store_after_its_handle_is_gone_until_nobody_has_the_container_open() {
        let mut users = Users::default();
        users.begin_writing(true, SIGHT);
        users.end_writing(true);
        users.forget_path();
        assert!(users.may_write() && users.may_be_mapped() && users.lingers() && !users.has_writers());
        assert_eq!(users.choose_path(DataPath::Daemon), DataPath::Passthrough, "pages of FUSE would go stale");
        users.end_lingering();
        assert!(!users.may_write() && !users.may_be_mapped());
    }

    #[test]
    fn one_at_a_time_looks_for_mappings() {
        let mut users = Users::default();
        users.begin_writing(true, SIGHT);
        assert!(!users.begin_watching_mappings(), "the release of the handle looks");
        users.end_writing(true);
        assert!(users.begin_watching_mappings() && !users.begin_watching_mappings());
        assert!(!users.end_watching_mappings());
        users.end_lingering();
        assert!(users.end_watching_mappings());
        users.begin_writing(true, SIGHT);
        users.end_writing(true);
        assert!(users.begin_watching_mappings());
    }

    #[test]
    fn a_handle_that_cannot_read_leaves_no_mapping() {
        let mut users = Users::default();
        users.begin_writing(false, SIGHT);
        assert!(users.may_write() && !users.may_be_mapped());
        users.end_writing(false);
        assert!(!users.may_write());
    }

    #[test]
    fn while_somebody_writes_nothing_says_that_no_mapping_lingers() {
        let mut users = Users::default();
        users.begin_writing(true, SIGHT);
        users.begin_writing(true, SIGHT);
        users.end_writing(true);
        users.end_lingering();
        assert!(users.lingers(), "the other handle has the container open as well");
    }

    #[test]
    fn what_was_found_is_unsettled_while_the_kernel_may_write() {
        let mut users = Users::default();
        users.begin_writing(false, SIGHT);
        assert!(users.unsettled().is_none());
        users.watch.look(Sight { bytes: 1, ..SIGHT });
        let found = users.unsettled().unwrap();
        users.watch.end_settling(found);
        assert!(users.unsettled().is_none());
        users.watch.look(Sight { bytes: 2, ..SIGHT });
        users.end_writing(false);
        assert!(users.unsettled().is_none(), "nobody goes on");
    }

    #[test]
    fn before_the_first_writer_everything_is_known() {
        let mut users = Users::default();
        users.begin_writing(false, SIGHT);
        users.end_writing(false);
        let stored = Sight { bytes: 1, ..SIGHT };
        users.begin_writing(false, stored);
        assert!(!users.watch.look(stored));
    }

    #[test]
    fn the_watch_goes_on_while_a_mapping_lingers() {
        let mut users = Users::default();
        users.begin_writing(true, SIGHT);
        users.end_writing(true);
        let stored = Sight { bytes: 1, ..SIGHT };
        users.begin_writing(false, stored);
        assert!(users.watch.look(stored), "a store between the handles is not taken for known");
    }
}
