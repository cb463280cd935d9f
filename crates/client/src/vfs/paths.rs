//! Paths of objects, for people. Objects are known by fids; their names come from the index.

use mafs_proto::{Fid, Name, VnodeId};

use super::Inner;
use crate::printable::printable;

/// Depth limit: deeper than any path a program can name (PATH_MAX is 4,096 bytes).
const DEPTH_MAX: usize = 2048;

/// Most names of a directory that are looked at for one object. Beyond that the object goes without a path.
const NAMES_MAX: usize = 16 * 1024;

impl Inner {
    /// Returns the path of an object below the mount point, as far as this client knows without asking: printable,
    /// without a leading slash.
    pub(super) fn path_of(&self, fid: Fid) -> Option<String> {
        let names: Vec<String> = self.names_to(fid)?.iter().map(|name| printable(name.as_bytes())).collect();
        Some(names.join("/"))
    }

    /// Returns the names on the way from the root to an object.
    pub(super) fn names_to(&self, fid: Fid) -> Option<Vec<Name>> {
        let mut names = Vec::new();
        let mut vnode = fid.vnode;
        while vnode != VnodeId::ROOT {
            let cached = self.cache.index.object(vnode).ok()??;
            let parent = cached.parent?;
            let means_it = |name: &Name| {
                self.cache
                    .index
                    .entry(parent, name)
                    .is_ok_and(|entry| entry.is_some_and(|entry| entry.fid.vnode == vnode))
            };
            names.push(cached.name.filter(means_it).or_else(|| self.name_in(parent, vnode))?);
            vnode = parent;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        names.reverse();
        Some(names)
    }

    fn name_in(&self, parent: VnodeId, vnode: VnodeId) -> Option<Name> {
        let mut last = None;
        let mut seen = 0;
        while seen < NAMES_MAX {
            let page = self.cache.index.entries(parent, last.as_ref()).ok()?;
            if let Some((name, _)) = page.iter().find(|(_, entry)| entry.fid.vnode == vnode) {
                return Some(name.clone());
            }
            seen += page.len();
            last = Some(page.into_iter().next_back()?.0);
        }
        None
    }
}
