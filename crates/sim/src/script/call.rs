//! One system call, or a few that always go together, its answer, and what it does to a model of a directory.

use std::collections::BTreeMap;
use std::fmt;

use crate::kernel::Errno;

/// The number that a script gives to a descriptor or a mapping.
pub(crate) type Slot = u32;

/// A call. All files lie in one directory; bytes written are all the same.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each is named after its system call, and has that call's arguments")]
pub enum Call {
    /// open(2), O_RDWR | O_CREAT, and with O_EXCL or without; O_APPEND.
    Create { name: String, fd: Slot, exclusive: bool, append: bool },
    /// open(2) of what is there.
    Open { name: String, fd: Slot, write: bool, truncate: bool, append: bool },
    /// pwrite(2), or write(2) with O_APPEND.
    Write { fd: Slot, at: u64, byte: u8, count: usize },
    /// pread(2) of everything.
    Read { fd: Slot },
    /// open(2), read(2) to the end, close(2).
    ReadName { name: String },
    /// fstat(2).
    Size { fd: Slot },
    /// lseek(2) to the end.
    End { fd: Slot },
    /// stat(2).
    Stat { name: String },
    /// ftruncate(2).
    ResizeOpen { fd: Slot, size: u64 },
    /// truncate(2).
    Resize { name: String, size: u64 },
    /// fsync(2).
    Sync { fd: Slot },
    /// dup(2).
    Duplicate { fd: Slot, copy: Slot },
    /// fork(2): all these are inherited.
    Fork { inherited: Vec<(Slot, Slot)> },
    /// exit(2) of a program that has these open.
    Exit { fds: Vec<Slot> },
    /// close(2).
    Close { fd: Slot },
    /// mmap(2) of the whole file, shared.
    Map { fd: Slot, map: Slot, count: usize },
    /// A store through a mapping.
    Store { map: Slot, at: u64, byte: u8, count: usize },
    /// A load through a mapping.
    Load { map: Slot, at: u64, count: usize },
    /// munmap(2).
    Unmap { map: Slot },
    /// rename(2).
    Rename { from: String, to: String },
    /// link(2).
    Link { from: String, to: String },
    /// unlink(2).
    Unlink { name: String },
    /// The names in the directory, sorted.
    List,
    /// The kernel drops what it need not keep.
    Shrink,
}

/// The answer of a call.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Done,
    /// A size or a place.
    Size(u64),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Names.
    Names(Vec<String>),
    /// The error.
    Failed(Errno),
}

/// The files of a directory, and the descriptors and mappings of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) names: BTreeMap<String, usize>,
    pub(super) files: Vec<Vec<u8>>,
    pub(super) fds: BTreeMap<Slot, OpenFile>,
    pub(super) maps: BTreeMap<Slot, usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenFile {
    pub(super) file: usize,
    pub(super) write: bool,
    pub(super) append: bool,
}

/// Parts of a model that a call looks at and changes.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) looks_at: Option<usize>,
    pub(super) changes: Option<usize>,
    pub(super) looks_at_names: bool,
    pub(super) changes_names: bool,
    pub(super) slots: Vec<Slot>,
}

impl Effects {
    /// Whether the answers of two calls are the same in either order.
    pub(super) fn commute(&self, other: &Self) -> bool {
        let disturbs = |one: &Self, other: &Self| {
            let content = one.changes.is_some() && [other.changes, other.looks_at].contains(&one.changes);
            content || (one.changes_names && (other.looks_at_names || other.changes_names))
        };
        !disturbs(self, other) && !disturbs(other, self) && !self.slots.iter().any(|slot| other.slots.contains(slot))
    }
}

impl Model {
    /// Does a call, which must make sense, and says what it answers.
    pub(super) fn apply(&mut self, call: &Call) -> Answer {
        match call {
            Call::Create { name, fd, exclusive, append } => self.create(name, *fd, *exclusive, *append),
            Call::Open { name, fd, write, truncate, append } => self.open(name, *fd, *truncate, (*write, *append)),
            Call::Write { fd, at, byte, count } => {
                let OpenFile { file, append, .. } = self.fds[fd];
                let content = &mut self.files[file];
                let at = if append { content.len() } else { size(*at) };
                content.resize(content.len().max(at + count), 0);
                content[at..at + count].fill(*byte);
                Answer::Size((at + count) as u64)
            }
            Call::Read { fd } => Answer::Bytes(self.files[self.fds[fd].file].clone()),
            Call::ReadName { name } => self.of_name(name, |content| Answer::Bytes(content.clone())),
            Call::Size { fd } | Call::End { fd } => Answer::Size(self.files[self.fds[fd].file].len() as u64),
            Call::Stat { name } => self.of_name(name, |content| Answer::Size(content.len() as u64)),
            Call::ResizeOpen { fd, size: to } => {
                self.files[self.fds[fd].file].resize(size(*to), 0);
                Answer::Done
            }
            Call::Resize { name, size: to } => self.of_name(name, |content| {
                content.resize(size(*to), 0);
                Answer::Done
            }),
            Call::Duplicate { fd, copy } => self.inherit(&[(*fd, *copy)]),
            Call::Fork { inherited } => self.inherit(inherited),
            Call::Exit { fds } => {
                self.fds.retain(|fd, _| !fds.contains(fd));
                Answer::Done
            }
            Call::Close { fd } => {
                self.fds.remove(fd);
                Answer::Done
            }
            Call::Map { fd, map, .. } => {
                self.maps.insert(*map, self.fds[fd].file);
                Answer::Done
            }
            Call::Store { map, at, byte, count } => {
                self.files[self.maps[map]][size(*at)..size(*at) + count].fill(*byte);
                Answer::Done
            }
            Call::Load { map, at, count } => {
                Answer::Bytes(self.files[self.maps[map]][size(*at)..size(*at) + count].to_vec())
            }
            Call::Unmap { map } => {
                self.maps.remove(map);
                Answer::Done
            }
            Call::Rename { from, to } => self.rename(from, to),
            Call::Link { from, to } => self.link(from, to),
            Call::Unlink { name } => match self.names.remove(name) {
                None => Answer::Failed(Errno::NOENT),
                Some(_) => Answer::Done,
            },
            Call::List => Answer::Names(self.names.keys().cloned().collect()),
            Call::Sync { .. } | Call::Shrink => Answer::Done,
        }
    }

    /// Returns the parts of this model that a call looks at and changes.
    pub(super) fn effects(&self, call: &Call) -> Effects {
        let of = |fd: &Slot| self.fds.get(fd).map(|open| open.file);
        let named = |name: &String| self.names.get(name).copied();
        let of_fd = |fd: &Slot| Effects { slots: vec![*fd], ..Effects::default() };
        match call {
            Call::Create { fd, .. } => Effects { changes_names: true, ..of_fd(fd) },
            Call::Open { name, fd, truncate, .. } => {
                Effects { looks_at_names: true, changes: named(name).filter(|_| *truncate), ..of_fd(fd) }
            }
            Call::Write { fd, .. } | Call::ResizeOpen { fd, .. } => Effects { changes: of(fd), ..of_fd(fd) },
            Call::Read { fd } | Call::Size { fd } | Call::End { fd } => Effects { looks_at: of(fd), ..of_fd(fd) },
            Call::ReadName { name } | Call::Stat { name } => {
                Effects { looks_at_names: true, looks_at: named(name), ..Effects::default() }
            }
            Call::Resize { name, .. } => Effects { looks_at_names: true, changes: named(name), ..Effects::default() },
            Call::Duplicate { fd, copy } => Effects { slots: vec![*fd, *copy], ..Effects::default() },
            Call::Fork { inherited } => {
                Effects { slots: inherited.iter().flat_map(|(fd, copy)| [*fd, *copy]).collect(), ..Effects::default() }
            }
            Call::Exit { fds } => Effects { slots: fds.clone(), ..Effects::default() },
            Call::Close { fd } | Call::Sync { fd } => of_fd(fd),
            Call::Map { fd, map, .. } => Effects { slots: vec![*fd, *map], ..Effects::default() },
            Call::Store { map, .. } => Effects { changes: self.maps.get(map).copied(), ..of_fd(map) },
            Call::Load { map, .. } => Effects { looks_at: self.maps.get(map).copied(), ..of_fd(map) },
            Call::Unmap { map } => of_fd(map),
            Call::Rename { .. } | Call::Link { .. } | Call::Unlink { .. } => {
                Effects { changes_names: true, ..Effects::default() }
            }
            Call::List => Effects { looks_at_names: true, ..Effects::default() },
            Call::Shrink => Effects::default(),
        }
    }

    fn create(&mut self, name: &str, fd: Slot, exclusive: bool, append: bool) -> Answer {
        let file = match self.names.get(name) {
            Some(_) if exclusive => return Answer::Failed(Errno::EXIST),
            Some(file) => *file,
            None => {
                self.files.push(Vec::new());
                self.names.insert(name.to_owned(), self.files.len() - 1);
                self.files.len() - 1
            }
        };
        self.fds.insert(fd, OpenFile { file, write: true, append });
        Answer::Done
    }

    fn open(&mut self, name: &str, fd: Slot, truncate: bool, (write, append): (bool, bool)) -> Answer {
        let Some(file) = self.names.get(name).copied() else { return Answer::Failed(Errno::NOENT) };
        if truncate {
            self.files[file].clear();
        }
        self.fds.insert(fd, OpenFile { file, write, append });
        Answer::Done
    }

    fn link(&mut self, from: &str, to: &str) -> Answer {
        match (self.names.get(from).copied(), self.names.contains_key(to)) {
            (None, _) => Answer::Failed(Errno::NOENT),
            (_, true) => Answer::Failed(Errno::EXIST),
            (Some(file), false) => {
                self.names.insert(to.to_owned(), file);
                Answer::Done
            }
        }
    }

    fn inherit(&mut self, inherited: &[(Slot, Slot)]) -> Answer {
        for (fd, copy) in inherited {
            self.fds.insert(*copy, self.fds[fd]);
        }
        Answer::Done
    }

    fn rename(&mut self, from: &str, to: &str) -> Answer {
        let Some(file) = self.names.get(from).copied() else { return Answer::Failed(Errno::NOENT) };
        if self.names.get(to) != Some(&file) {
            self.names.remove(from);
            self.names.insert(to.to_owned(), file);
        }
        Answer::Done
    }

    fn of_name(&mut self, name: &str, answer: impl FnOnce(&mut Vec<u8>) -> Answer) -> Answer {
        match self.names.get(name) {
            None => Answer::Failed(Errno::NOENT),
            Some(file) => answer(&mut self.files[*file]),
        }
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Writes a call as a program in another language reads it: its name and its arguments, yes and no as 1 and 0.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flag = |flag: &bool| u8::from(*flag);
        match self {
            Self::Create { name, fd, exclusive, append } => {
                write!(f, "create {name} {fd} {} {}", flag(exclusive), flag(append))
            }
            Self::Open { name, fd, write, truncate, append } => {
                write!(f, "open {name} {fd} {} {} {}", flag(write), flag(truncate), flag(append))
            }
            Self::Write { fd, at, byte, count } => write!(f, "write {fd} {at} {byte} {count}"),
            Self::Read { fd } => write!(f, "read {fd}"),
            Self::ReadName { name } => write!(f, "readname {name}"),
            Self::Size { fd } => write!(f, "size {fd}"),
            Self::End { fd } => write!(f, "end {fd}"),
            Self::Stat { name } => write!(f, "stat {name}"),
            Self::ResizeOpen { fd, size } => write!(f, "resizeopen {fd} {size}"),
            Self::Resize { name, size } => write!(f, "resize {name} {size}"),
            Self::Sync { fd } => write!(f, "sync {fd}"),
            Self::Duplicate { fd, copy } => write!(f, "fork {fd} {copy}"),
            Self::Fork { inherited } => {
                write!(f, "fork")?;
                inherited.iter().try_for_each(|(fd, copy)| write!(f, " {fd} {copy}"))
            }
            Self::Exit { fds } => {
                write!(f, "exit")?;
                fds.iter().try_for_each(|fd| write!(f, " {fd}"))
            }
            Self::Close { fd } => write!(f, "exit {fd}"),
            Self::Map { fd, map, count } => write!(f, "map {fd} {map} {count}"),
            Self::Store { map, at, byte, count } => write!(f, "store {map} {at} {byte} {count}"),
            Self::Load { map, at, count } => write!(f, "load {map} {at} {count}"),
            Self::Unmap { map } => write!(f, "unmap {map}"),
            Self::Rename { from, to } => write!(f, "rename {from} {to}"),
            Self::Link { from, to } => write!(f, "link {from} {to}"),
            Self::Unlink { name } => write!(f, "unlink {name}"),
            Self::List => write!(f, "list"),
            Self::Shrink => write!(f, "shrink"),
        }
    }
}

/// Writes an answer as a program in another language does: of bytes their number and their Adler-32.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "done"),
            Self::Size(size) => write!(f, "size {size}"),
            Self::Bytes(bytes) => write!(f, "bytes {} {:08x}", bytes.len(), adler32(bytes)),
            Self::Names(names) => write!(f, "names {}", names.join(" ")),
            Self::Failed(Errno(number)) => write!(f, "errno {number}"),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(errno) => write!(f, "{errno:?}"),
            other => write!(f, "{other}"),
        }
    }
}

fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    let (low, high) = bytes.iter().fold((1, 0), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % MODULUS;
        (low, (high + low) % MODULUS)
    });
    high << 16 | low
}
