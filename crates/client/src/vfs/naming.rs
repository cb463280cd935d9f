//! Naming: the paths of many objects at a time, for lists that people read.
//!
//! An object is known by its fid, and its name has to be looked for in its directory. So the names that waiting
//! records give are tried first, a directory is read once for all objects in it, and the number of names read is
//! limited.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mafs_arpc::blocking;
use mafs_proto::{CmlOp, Fid, Name, VnodeId};
use tokio::time::timeout;

use super::Inner;
use crate::printable::printable;

/// Most names read for one list: some 100 ms. An object that is not found goes without a path.
const NAMES_MAX: usize = 200_000;

/// Depth limit: deeper than any path a program can name.
const DEPTH_MAX: u32 = 2048;

/// How long the server is asked for one name of a path.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// Finder of the paths of objects for one list.
pub(super) struct Naming<'vfs> {
    inner: &'vfs Inner,
    directories: HashMap<VnodeId, Option<String>>,
    /// Names of the directories that were read.
    read: HashMap<VnodeId, HashMap<VnodeId, Name>>,
    names_left: usize,
}

impl<'vfs> Naming<'vfs> {
    pub(super) fn new(inner: &'vfs Inner) -> Self {
        let directories = HashMap::from([(VnodeId::ROOT, Some(String::new()))]);
        Self { inner, directories, read: HashMap::new(), names_left: NAMES_MAX }
    }

    /// Returns a name in a directory, as a path below the mount point.
    pub(super) fn name_in(&mut self, parent: Fid, name: &Name) -> String {
        match self.directory(parent.vnode, 0) {
            Some(directory) => join(&directory, name),
            None => format!("(directory {})/{}", parent.vnode.0, printable(name.as_bytes())),
        }
    }

    /// Returns the path of an object below the mount point.
    pub(super) fn object(&mut self, fid: Fid) -> String {
        self.place(fid.vnode, 0).unwrap_or_else(|| format!("(object {})", fid.vnode.0))
    }

    fn directory(&mut self, vnode: VnodeId, depth: u32) -> Option<String> {
        if let Some(known) = self.directories.get(&vnode) {
            return known.clone();
        }
        let place = self.place(vnode, depth + 1);
        self.directories.insert(vnode, place.clone());
        place
    }

    fn place(&mut self, vnode: VnodeId, depth: u32) -> Option<String> {
        if vnode == VnodeId::ROOT {
            return Some(String::new());
        }
        if depth > DEPTH_MAX {
            return None;
        }
        let cached = self.inner.cache.index.object(vnode).ok()??;
        let (parent, name) = match self.given_name(cached.object.fid) {
            Some(given) => given,
            None => {
                let parent = cached.parent?;
                (parent, self.names_of(parent).get(&vnode)?.clone())
            }
        };
        let directory = self.directory(parent, depth)?;
        Some(join(&directory, &name))
    }

    /// Returns the names of the objects in a directory, as far as it may be read.
    fn names_of(&mut self, parent: VnodeId) -> &HashMap<VnodeId, Name> {
        let Self { inner, read, names_left, .. } = self;
        read.entry(parent).or_insert_with(|| {
            let (mut names, mut last) = (HashMap::new(), None);
            while *names_left > 0 {
                let page = inner.cache.index.entries(parent, last.as_ref()).unwrap_or_default();
                let Some((end, _)) = page.last() else { break };
                last = Some(end.clone());
                *names_left = names_left.saturating_sub(page.len());
                names.extend(page.into_iter().map(|(name, entry)| (entry.fid.vnode, name)));
            }
            names
        })
    }

    /// Returns the name that an object has from the newest record that gives it one, if the name still means the
    /// object.
    fn given_name(&self, fid: Fid) -> Option<(VnodeId, Name)> {
        let about = self.inner.remote.outstanding(|log| log.about(fid));
        let queue = self.inner.replay.queue();
        let mut ops = about.iter().rev().filter_map(|id| queue.get(*id)).map(|queued| &queued.record.op);
        let (parent, name) = ops.find_map(|op| given_by(op, fid)).map(|(parent, name)| (parent, name.clone()))?;
        drop(queue);
        let means = self.inner.cache.index.entry(parent.vnode, &name).ok()??;
        (means.fid == fid).then_some((parent.vnode, name))
    }
}

/// The name that a record gives to an object.
fn given_by(op: &CmlOp, fid: Fid) -> Option<(Fid, &Name)> {
    match op {
        CmlOp::Create { parent, name, fid: made, .. }
        | CmlOp::MakeDir { parent, name, fid: made, .. }
        | CmlOp::SymLink { parent, name, fid: made, .. }
        | CmlOp::Link { parent, name, fid: made }
        | CmlOp::Rename { to_parent: parent, to_name: name, fid: made, .. } => {
            (*made == fid).then_some((*parent, name))
        }
        CmlOp::Remove { .. }
        | CmlOp::RemoveDir { .. }
        | CmlOp::SetAttr { .. }
        | CmlOp::SetXattr { .. }
        | CmlOp::RemoveXattr { .. }
        | CmlOp::Store { .. } => None,
    }
}

fn join(directory: &str, name: &Name) -> String {
    let name = printable(name.as_bytes());
    if directory.is_empty() { name } else { format!("{directory}/{name}") }
}

impl Inner {
    /// A name that is not known, though the kernel may remember it, is asked for. This is for commands: they do not
    /// wait long.
    pub(super) async fn find(self: &Arc<Self>, below: &[u8]) -> Option<VnodeId> {
        let mut found = VnodeId::ROOT;
        for name in below.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let name = Name::new(bytes::Bytes::copy_from_slice(name)).ok()?;
            found = match blocking(|| self.cache.index.entry(found, &name)).ok()? {
                Some(entry) => entry.fid.vnode,
                None => timeout(ASK_TIMEOUT, self.child(found, &name)).await.ok()?.ok()?.object.fid.vnode,
            };
        }
        Some(found)
    }
}
