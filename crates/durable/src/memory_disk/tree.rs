//! The tree of a memory disk: what is there, and what of it is durable.
//!
//! A file holds its bytes, the bytes of its last sync and the changes between; a directory its names and the names of
//! its last sync. Nodes that no name, durable or not, and no handle reaches are swept now and then.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use crate::disk::{components, parent};
use crate::{DiskPath, FileStat, RangeSet};

/// The unit of holes.
const BLOCK_BYTES: usize = 4096;

/// Number of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Ino(pub(super) u64);

/// Names and their nodes.
pub(super) type Names = BTreeMap<String, Ino>;

/// All nodes below one root.
#[derive(Clone)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<Ino, Node>,
    next: u64,
    /// Number of nodes that the last sweep left.
    swept: usize,
    /// Number of changes of all files so far.
    changes: u64,
}

#[derive(Clone)]
pub(super) enum Node {
    File(FileNode),
    Dir(DirNode),
}

#[derive(Clone, Default)]
pub(super) struct DirNode {
    pub(super) names: Names,
    pub(super) durable: Names,
    /// Names whose change a failed sync has lost, with their meaning then: the next sync does not write that meaning.
    lost: BTreeMap<String, Option<Ino>>,
}

#[derive(Clone)]
pub(super) struct FileNode {
    bytes: Vec<u8>,
    pub(super) durable: Vec<u8>,
    /// Changes that made `bytes` of `durable`, in order, without those that a failed sync has lost.
    pub(super) changes: Vec<Change>,
    pub(super) room: RangeSet,
    pub(super) times: Times,
    /// Mappings that may write.
    pub(super) mappings: BTreeSet<u64>,
    /// Pages that mappings can store to without a fault, by mapping.
    writable: BTreeSet<(u64, u64)>,
    pub(super) handles: usize,
}

/// Times of the last change, and whether anybody would see a difference if the file changed again at the same time.
#[derive(Clone, Copy)]
pub(super) struct Times {
    modified: SystemTime,
    changed: SystemTime,
    looked: bool,
}

#[derive(Clone)]
pub(super) enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Resize(usize),
}

impl Tree {
    pub(super) const ROOT: Ino = Ino(0);

    /// Nodes more than the last sweep left that are worth the next sweep.
    const SWEEP_SLACK: usize = 64;

    pub(super) fn create(&mut self, path: &DiskPath) -> io::Result<Ino> {
        let (dir, name) = self.place(path)?;
        let ino = match self.dir(dir)?.names.get(name) {
            Some(ino) => *ino,
            None => {
                let ino = self.add(Node::File(FileNode::new(Vec::new())));
                self.dir(dir)?.names.insert(name.to_owned(), ino);
                ino
            }
        };
        self.resize(ino, 0)?;
        self.file(ino)?.handles += 1;
        Ok(ino)
    }

    pub(super) fn open(&mut self, path: &DiskPath) -> io::Result<Ino> {
        let ino = self.walk(path)?;
        self.file(ino)?.handles += 1;
        Ok(ino)
    }

    pub(super) fn close(&mut self, ino: Ino) {
        if let Ok(file) = self.file(ino) {
            file.handles = file.handles.saturating_sub(1);
        }
    }

    pub(super) fn rename(&mut self, from: &DiskPath, to: &DiskPath) -> io::Result<()> {
        let (from_dir, from_name) = self.place(from)?;
        let (to_dir, to_name) = self.place(to)?;
        let ino = *self.dir(from_dir)?.names.get(from_name).ok_or_else(|| not_found(from))?;
        if let Some(replaced) = self.dir(to_dir)?.names.get(to_name).copied() {
            let both_files = self.file(replaced).is_ok() && self.file(ino).is_ok();
            let empty_dir = self.dir(ino).is_ok() && self.dir(replaced).is_ok_and(|dir| dir.names.is_empty());
            if !both_files && !empty_dir {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{to}: in the way")));
            }
        }
        self.dir(from_dir)?.names.remove(from_name);
        self.dir(to_dir)?.names.insert(to_name.to_owned(), ino);
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &DiskPath) -> io::Result<()> {
        let ino = self.walk(path)?;
        self.file(ino)?;
        let (dir, name) = self.place(path)?;
        self.dir(dir)?.names.remove(name);
        Ok(())
    }

    pub(super) fn remove_dir_all(&mut self, path: &DiskPath) -> io::Result<()> {
        let ino = match self.walk(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        self.dir(ino)?;
        let (dir, name) = self.place(path)?;
        self.dir(dir)?.names.remove(name);
        Ok(())
    }

    pub(super) fn create_dir_all(&mut self, path: &DiskPath, durable: bool) -> io::Result<()> {
        let mut at = Self::ROOT;
        for part in components(path)? {
            let next = match self.dir(at)?.names.get(part) {
                Some(ino) => *ino,
                None => self.add(Node::Dir(DirNode::default())),
            };
            self.dir(next)?;
            let dir = self.dir(at)?;
            dir.names.insert(part.to_owned(), next);
            if durable {
                dir.durable.insert(part.to_owned(), next);
            }
            at = next;
        }
        Ok(())
    }

    pub(super) fn list(&mut self, path: &DiskPath) -> io::Result<Vec<String>> {
        let ino = self.walk(path)?;
        Ok(self.dir(ino)?.names.keys().cloned().collect())
    }

    pub(super) fn sync_dir(&mut self, path: &DiskPath, durable: bool) -> io::Result<()> {
        let ino = self.walk(path)?;
        let dir = self.dir(ino)?;
        if durable {
            dir.sync();
        }
        Ok(())
    }

    /// Lets a sync of a directory fail.
    pub(super) fn lose_names(&mut self, path: &DiskPath) -> io::Result<()> {
        let ino = self.walk(path)?;
        self.dir(ino)?.lose();
        Ok(())
    }

    /// Lets a sync of everything fail.
    pub(super) fn lose_all(&mut self) {
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => file.lose(),
                Node::Dir(dir) => dir.lose(),
            }
        }
    }

    pub(super) fn sync_all(&mut self) {
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => file.sync(),
                Node::Dir(dir) => dir.sync(),
            }
        }
    }

    pub(super) fn write(&mut self, ino: Ino, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        self.change(ino, Change::Write { offset, bytes: bytes.to_vec() })
    }

    pub(super) fn resize(&mut self, ino: Ino, bytes: u64) -> io::Result<()> {
        self.change(ino, Change::Resize(usize::try_from(bytes).map_err(io::Error::other)?))?;
        self.file(ino)?.room.remove(bytes..u64::MAX);
        Ok(())
    }

    pub(super) fn file(&mut self, ino: Ino) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(&ino) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(io::Error::from(io::ErrorKind::IsADirectory)),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the bytes that the reachable files take. A file whose removal is not durable yet does not count:
    /// before ext4 refuses a write it makes the removal durable.
    pub(super) fn bytes_used(&self) -> u64 {
        let reached = self.reached(false);
        let sizes = reached.iter().filter_map(|ino| self.nodes.get(ino)).map(|node| match node {
            Node::File(file) => file.room.bytes(),
            Node::Dir(_) => 0,
        });
        sizes.sum()
    }

    /// Sets the time that can be set, which changes the other.
    pub(super) fn set_modified(&mut self, ino: Ino, time: SystemTime) -> io::Result<()> {
        self.touch(ino)?;
        self.file(ino)?.times.modified = time;
        Ok(())
    }

    /// Makes pages writable through a mapping.
    pub(super) fn fault(&mut self, ino: Ino, mapping: u64, range: Range<u64>) -> io::Result<()> {
        let page_bytes = BLOCK_BYTES as u64;
        for page in range.start / page_bytes..range.end.div_ceil(page_bytes) {
            if self.file(ino)?.writable.insert((mapping, page)) {
                self.touch(ino)?;
            }
        }
        Ok(())
    }

    /// Writes without moving the times.
    pub(super) fn write_begun(&mut self, ino: Ino, bytes: &[u8], offset: u64) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        self.file(ino)?.apply(Change::Write { offset, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Moves both times, as the kernel does before it writes.
    pub(super) fn touch(&mut self, ino: Ino) -> io::Result<()> {
        self.changes += 1;
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(self.changes);
        let times = &mut self.file(ino)?.times;
        if std::mem::take(&mut times.looked) {
            times.changed = now;
        }
        times.modified = times.changed;
        Ok(())
    }

    fn change(&mut self, ino: Ino, change: Change) -> io::Result<()> {
        self.touch(ino)?;
        self.file(ino)?.apply(change);
        Ok(())
    }

    fn add(&mut self, node: Node) -> Ino {
        if self.nodes.len() > 2 * self.swept + Self::SWEEP_SLACK {
            self.sweep();
        }
        let ino = Ino(self.next);
        self.next += 1;
        self.nodes.insert(ino, node);
        ino
    }

    fn sweep(&mut self) {
        let reached = self.reached(true);
        self.nodes.retain(|ino, _| reached.contains(ino));
        self.swept = self.nodes.len();
    }

    /// Finds the nodes that have a name or are open; with `durable` also those that have a durable name.
    fn reached(&self, durable: bool) -> BTreeSet<Ino> {
        let mut reached = BTreeSet::new();
        let mut todo = vec![Self::ROOT];
        todo.extend(self.nodes.iter().filter(|(_, node)| node.has_handles()).map(|(ino, _)| *ino));
        while let Some(ino) = todo.pop() {
            if !reached.insert(ino) {
                continue;
            }
            if let Some(Node::Dir(dir)) = self.nodes.get(&ino) {
                todo.extend(dir.names.values());
                todo.extend(dir.durable.values().filter(|_| durable));
            }
        }
        reached
    }

    fn dir(&mut self, ino: Ino) -> io::Result<&mut DirNode> {
        match self.nodes.get_mut(&ino) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(io::Error::from(io::ErrorKind::NotADirectory)),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    /// Finds the node at a path.
    fn walk(&mut self, path: &DiskPath) -> io::Result<Ino> {
        let mut at = Self::ROOT;
        for part in components(path)? {
            at = *self.dir(at)?.names.get(part).ok_or_else(|| not_found(path))?;
        }
        Ok(at)
    }

    /// Finds the directory that holds the last component of a path. Returns that component, too.
    fn place<'a>(&mut self, path: &'a DiskPath) -> io::Result<(Ino, &'a str)> {
        match components(path)?.last() {
            Some(name) => Ok((self.walk(parent(path))?, *name)),
            None => Err(io::Error::new(io::ErrorKind::InvalidInput, "the root has no name")),
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        let root = Node::Dir(DirNode::default());
        Self { nodes: BTreeMap::from([(Self::ROOT, root)]), next: 1, swept: 1, changes: 0 }
    }
}

impl Node {
    fn has_handles(&self) -> bool {
        matches!(self, Self::File(file) if file.handles > 0)
    }
}

impl DirNode {
    /// Makes a directory whose names are durable.
    pub(super) fn new(names: Names) -> Self {
        Self { durable: names.clone(), names, lost: BTreeMap::new() }
    }

    fn sync(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        for name in self.changed() {
            let means = self.names.get(&name).copied();
            if lost.get(&name) == Some(&means) {
                self.lost.insert(name, means);
                continue;
            }
            match means {
                Some(ino) => self.durable.insert(name, ino),
                None => self.durable.remove(&name),
            };
        }
    }

    /// Loses what a failed sync could not write. As on Linux, it counts as written.
    fn lose(&mut self) {
        let lost: Vec<_> = self.changed().into_iter().map(|name| (self.names.get(&name).copied(), name)).collect();
        self.lost.extend(lost.into_iter().map(|(means, name)| (name, means)));
    }

    fn changed(&self) -> BTreeSet<String> {
        let all = self.names.keys().chain(self.durable.keys());
        all.filter(|name| self.names.get(*name) != self.durable.get(*name)).cloned().collect()
    }
}

impl FileNode {
    /// Makes a file whose bytes are durable.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let mut room = RangeSet::default();
        room.insert(0..bytes.len() as u64);
        let times = Times { modified: SystemTime::UNIX_EPOCH, changed: SystemTime::UNIX_EPOCH, looked: true };
        let (changes, mappings, writable) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        Self { durable: bytes.clone(), bytes, changes, room, times, mappings, writable, handles: 0 }
    }

    /// Returns what stat(2) tells. The next change will have a later time.
    pub(super) fn stat(&mut self) -> FileStat {
        self.times.looked = true;
        let Times { modified, changed, .. } = self.times;
        FileStat { bytes: self.len(), allocated: self.room.bytes(), modified, changed }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Finds the first byte at or behind `offset` in a block that is all zeros, or in one that is not.
    pub(super) fn seek(&self, offset: u64, hole: bool) -> Option<u64> {
        let offset = usize::try_from(offset).ok().filter(|offset| *offset < self.bytes.len())?;
        let first = offset / BLOCK_BYTES;
        let found = self.bytes.chunks(BLOCK_BYTES).enumerate().skip(first).find(|(_, block)| is_hole(block) == hole)?.0;
        Some((found * BLOCK_BYTES).max(offset) as u64)
    }

    fn apply(&mut self, change: Change) {
        change.apply(&mut self.bytes);
        self.changes.push(change);
    }

    /// Makes the bytes durable. The pages are clean then, and the next store through a mapping is a fault.
    pub(super) fn sync(&mut self) {
        self.writable.clear();
        for change in self.changes.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// Loses what a failed sync could not write. As on Linux, it counts as written, and can still be read.
    pub(super) fn lose(&mut self) {
        self.changes.clear();
    }
}

impl Change {
    pub(super) fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if file.len() < end {
                    file.resize(end, 0);
                }
                file[*offset..end].copy_from_slice(bytes);
            }
            Self::Resize(bytes) => file.resize(*bytes, 0),
        }
    }
}

fn is_hole(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

fn not_found(path: &DiskPath) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{path}: not found"))
}
