//! The reference model: a file system as plain maps, with one definition of what each operation answers.

use std::collections::BTreeMap;
use std::fmt;

use mafs_proto::FsError;

use crate::operation::{Operation, Outcome};

/// The model's name for an object.
type Id = u64;

/// The root directory.
const ROOT: Id = 0;

#[derive(Clone, PartialEq, Eq, Debug)]
enum Node {
    File { content: Vec<u8>, mode: u32 },
    Directory { entries: BTreeMap<String, Id> },
    Symlink { target: String },
}

/// The reference file system.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: BTreeMap<Id, Node>,
    xattrs: BTreeMap<Id, Xattrs>,
    next: Id,
}

/// Extended attributes by name.
pub(crate) type Xattrs = BTreeMap<String, Vec<u8>>;

/// One object of a tree, as both the model and the real file system are seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The object.
    pub object: SeenObject,
    /// Its extended attributes.
    pub xattrs: Xattrs,
}

/// The kind of an object, with what it holds.
#[derive(Clone, PartialEq, Eq)]
pub enum SeenObject {
    /// A file: content, permissions, links.
    File(Vec<u8>, u32, u32),
    /// A directory.
    Directory,
    /// A symlink and its target.
    Symlink(String),
}

impl fmt::Debug for SeenObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(content, mode, links) => {
                let sum = content.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
                write!(f, "a file of {} bytes (sum {sum:x}), mode {mode:o}, {links} links", content.len())
            }
            Self::Directory => f.write_str("a directory"),
            Self::Symlink(target) => write!(f, "a symlink to {target}"),
        }
    }
}

/// A whole tree by path.
pub type Snapshot = BTreeMap<String, Seen>;

impl Default for Model {
    fn default() -> Self {
        let root = Node::Directory { entries: BTreeMap::new() };
        Self { nodes: BTreeMap::from([(ROOT, root)]), xattrs: BTreeMap::new(), next: ROOT + 1 }
    }
}

impl Model {
    /// Does an operation, and says what it must answer.
    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        match self.try_apply(operation) {
            Ok(content) => Outcome::Done(content),
            Err(error) => Outcome::Refused(error),
        }
    }

    /// The whole tree.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut seen = Snapshot::new();
        self.collect(ROOT, "", &mut seen);
        seen
    }

    /// Paths of the tree, of directories (`""` is the root) and of everything.
    #[must_use]
    pub fn paths(&self) -> (Vec<String>, Vec<String>) {
        let all = self.snapshot();
        let directories =
            all.iter().filter(|(_, seen)| seen.object == SeenObject::Directory).map(|(path, _)| path.clone());
        (std::iter::once(String::new()).chain(directories).collect(), all.keys().cloned().collect())
    }

    fn collect(&self, directory: Id, path: &str, seen: &mut Snapshot) {
        let Some(Node::Directory { entries }) = self.nodes.get(&directory) else { return };
        for (name, id) in entries {
            let child = format!("{path}/{name}");
            let object = match &self.nodes[id] {
                Node::File { content, mode } => SeenObject::File(content.clone(), *mode, self.links(*id)),
                Node::Directory { .. } => {
                    self.collect(*id, &child, seen);
                    SeenObject::Directory
                }
                Node::Symlink { target } => SeenObject::Symlink(target.clone()),
            };
            let xattrs = self.xattrs.get(id).cloned().unwrap_or_default();
            seen.insert(child, Seen { object, xattrs });
        }
    }

    fn links(&self, of: Id) -> u32 {
        let names = self.nodes.values().filter_map(|node| match node {
            Node::Directory { entries } => Some(entries.values().filter(|id| **id == of).count()),
            Node::File { .. } | Node::Symlink { .. } => None,
        });
        u32::try_from(names.sum::<usize>()).unwrap_or(u32::MAX)
    }

    fn try_apply(&mut self, operation: &Operation) -> Result<Option<Vec<u8>>, FsError> {
        match operation {
            Operation::Write { path, content } => self.write(path, content),
            Operation::Append { path, content } => self.file(path).map(|(file, _)| file.extend(content)),
            Operation::Overwrite { path, at, contents, .. } => {
                self.file(path).map(|(file, _)| overwrite(file, *at, &contents.concat()))
            }
            Operation::Resize { path, size } => self.file(path).map(|(file, _)| file.resize(*size, 0)),
            Operation::Read { path } => return self.file(path).map(|(content, _)| Some(content.clone())),
            Operation::SetMode { path, mode } => self.file(path).map(|(_, current)| *current = *mode),
            Operation::SetXattr { path, name, value } => self.set_xattr(path, name, value),
            Operation::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Operation::MakeDir { path } => self.add(path, Node::Directory { entries: BTreeMap::new() }),
            Operation::Symlink { path, target } => self.add(path, Node::Symlink { target: target.clone() }),
            Operation::Link { from, to } => self.link(from, to),
            Operation::Unlink { path } => self.remove(path, false),
            Operation::RemoveDir { path } => self.remove(path, true),
            Operation::Rename { from, to } => self.rename(from, to),
        }
        .map(|()| None)
    }

    fn write(&mut self, path: &str, content: &[u8]) -> Result<(), FsError> {
        match self.file(path) {
            Ok((file, _)) => {
                *file = content.to_vec();
                Ok(())
            }
            Err(FsError::NotFound) => self.add(path, Node::File { content: content.to_vec(), mode: 0o644 }),
            Err(error) => Err(error),
        }
    }

    fn set_xattr(&mut self, path: &str, name: &str, value: &[u8]) -> Result<(), FsError> {
        let id = self.find(path)?;
        self.xattrs.entry(id).or_default().insert(name.to_owned(), value.to_vec());
        Ok(())
    }

    fn remove_xattr(&mut self, path: &str, name: &str) -> Result<(), FsError> {
        let id = self.find(path)?;
        let removed = self.xattrs.get_mut(&id).and_then(|xattrs| xattrs.remove(name));
        removed.map(drop).ok_or(FsError::NoXattr)
    }

    fn link(&mut self, from: &str, to: &str) -> Result<(), FsError> {
        let id = self.find(from)?;
        if matches!(self.nodes[&id], Node::Directory { .. }) {
            return Err(FsError::Denied);
        }
        let (directory, name) = split(to);
        let directory = self.find(directory)?;
        match self.entries(directory)?.insert(name.to_owned(), id) {
            None => Ok(()),
            Some(old) => {
                self.entries(directory)?.insert(name.to_owned(), old);
                Err(FsError::Exists)
            }
        }
    }

    fn remove(&mut self, path: &str, want_directory: bool) -> Result<(), FsError> {
        let id = self.find(path)?;
        match (&self.nodes[&id], want_directory) {
            (Node::Directory { .. }, false) => return Err(FsError::IsDirectory),
            (Node::File { .. } | Node::Symlink { .. }, true) => return Err(FsError::NotDirectory),
            (Node::Directory { entries }, true) if !entries.is_empty() => return Err(FsError::NotEmpty),
            (Node::Directory { .. }, true) | (Node::File { .. } | Node::Symlink { .. }, false) => {}
        }
        self.detach(path)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), FsError> {
        let moved = self.find(from)?;
        let (directory, name) = split(to);
        let directory = self.find(directory)?;
        let target = self.entries(directory)?.get(name).copied();
        if target == Some(moved) {
            return Ok(());
        }
        let moves_directory = matches!(self.nodes[&moved], Node::Directory { .. });
        if moves_directory && format!("{to}/").starts_with(&format!("{from}/")) {
            return Err(FsError::BelowItself);
        }
        match (moves_directory, target.map(|id| &self.nodes[&id])) {
            (_, None) | (false, Some(Node::File { .. } | Node::Symlink { .. })) => {}
            (true, Some(Node::Directory { entries })) if entries.is_empty() => {}
            (true, Some(Node::Directory { .. })) => return Err(FsError::NotEmpty),
            (true, Some(_)) => return Err(FsError::NotDirectory),
            (false, Some(Node::Directory { .. })) => return Err(FsError::IsDirectory),
        }
        let (old_directory, old_name) = split(from);
        let old_directory = self.find(old_directory)?;
        self.entries(old_directory)?.remove(old_name);
        self.entries(directory)?.insert(name.to_owned(), moved);
        self.drop_unnamed();
        Ok(())
    }

    fn add(&mut self, path: &str, node: Node) -> Result<(), FsError> {
        let (directory, name) = split(path);
        let directory = self.find(directory)?;
        let id = self.next;
        let entries = self.entries(directory)?;
        if entries.contains_key(name) {
            return Err(FsError::Exists);
        }
        entries.insert(name.to_owned(), id);
        self.nodes.insert(id, node);
        self.next += 1;
        Ok(())
    }

    fn detach(&mut self, path: &str) -> Result<(), FsError> {
        let (directory, name) = split(path);
        let directory = self.find(directory)?;
        self.entries(directory)?.remove(name);
        self.drop_unnamed();
        Ok(())
    }

    fn drop_unnamed(&mut self) {
        let unnamed: Vec<Id> = self.nodes.keys().copied().filter(|id| *id != ROOT && self.links(*id) == 0).collect();
        for id in unnamed {
            self.nodes.remove(&id);
            self.xattrs.remove(&id);
        }
    }

    fn find(&self, path: &str) -> Result<Id, FsError> {
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = match &self.nodes[&at] {
                Node::Directory { entries } => *entries.get(name).ok_or(FsError::NotFound)?,
                Node::File { .. } | Node::Symlink { .. } => return Err(FsError::NotDirectory),
            };
        }
        Ok(at)
    }

    fn entries(&mut self, directory: Id) -> Result<&mut BTreeMap<String, Id>, FsError> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory { entries }) => Ok(entries),
            Some(Node::File { .. } | Node::Symlink { .. }) => Err(FsError::NotDirectory),
            None => Err(FsError::NotFound),
        }
    }

    fn file(&mut self, path: &str) -> Result<(&mut Vec<u8>, &mut u32), FsError> {
        let id = self.find(path)?;
        match self.nodes.get_mut(&id) {
            Some(Node::File { content, mode }) => Ok((content, mode)),
            Some(Node::Directory { .. } | Node::Symlink { .. }) | None => Err(FsError::WrongKind),
        }
    }
}

/// A write of nothing changes nothing, not even the size.
fn overwrite(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if bytes.is_empty() {
        return;
    }
    file.resize(file.len().max(end), 0);
    file[at..end].copy_from_slice(bytes);
}

/// The directory and the name of a path.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}
