//! Edit: the objects one operation touches, with the bookkeeping that every operation needs.
//!
//! Operations say what changes; [`Edit::finish`] compares each touched object with what it was and derives the rest:
//! one step of the status version, the volume's counters, the content that is no longer needed, the (before, after)
//! of directories.

use std::collections::BTreeMap;

use bytes::Bytes;
use mafs_proto::call::DirectoryChange;
use mafs_proto::{
    CmlRecord, ContentHash, DataVersion, Fid, FsError, Kind, Name, Object, PlacedName, Status, Timestamp, Wire, Xattrs,
};

use super::{Content, ContentId, ContentSerial, Node, Place, Refusal, Transaction, conflicts, keep, tables};

/// A content that has arrived whole and waits for the record that names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NewContent {
    /// The file it came for.
    pub(crate) fid: Fid,
    pub(crate) size: u64,
    pub(crate) hash: ContentHash,
    pub(crate) body: ContentBody,
}

impl NewContent {
    /// Returns its content file, if it has one.
    pub(crate) fn file(&self) -> Option<ContentId> {
        match self.body {
            ContentBody::Bytes(_) => None,
            ContentBody::File(serial) => Some(ContentId { fid: self.fid, serial }),
        }
    }
}

/// Compares the hash of the content that has arrived with the hash of the content that its client has sent.
///
/// # Errors
/// `Damaged` if they are not the same.
pub(crate) fn check_arrived(arrived: ContentHash, sent: ContentHash) -> Result<(), Refusal> {
    if arrived == sent { Ok(()) } else { Err(FsError::Damaged.into()) }
}

/// Place of a content's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ContentBody {
    /// The bytes are here: they go into the index.
    Bytes(Bytes),
    /// The bytes are in a durable content file.
    File(ContentSerial),
}

/// Effect of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Effect {
    /// The directories whose entries changed.
    pub(crate) directories: Vec<DirectoryChange>,
    /// Every object whose status changed.
    pub(crate) objects: Vec<Object>,
    /// Content files that nothing names any more once this is committed.
    pub(crate) freed: Vec<ContentId>,
    /// New name of an object that was to lose its last one.
    pub(crate) aside: Option<PlacedName>,
}

/// One operation's changes.
pub(crate) struct Edit<'t, 'o> {
    transaction: &'t mut Transaction<'o>,
    record: &'t CmlRecord,
    touched: BTreeMap<Fid, Touched>,
    aside: Option<PlacedName>,
}

struct Touched {
    /// `None`: made by this operation.
    before: Option<Node>,
    now: Node,
}

impl<'t, 'o> Edit<'t, 'o> {
    pub(crate) fn new(transaction: &'t mut Transaction<'o>, record: &'t CmlRecord) -> Self {
        Self { transaction, record, touched: BTreeMap::new(), aside: None }
    }

    pub(crate) fn record(&self) -> &'t CmlRecord {
        self.record
    }

    pub(crate) fn transaction(&mut self) -> &mut Transaction<'o> {
        self.transaction
    }

    /// Returns an object as it is by now; [`FsError::Stale`] if it is gone.
    pub(crate) fn look(&self, fid: Fid) -> Result<Node, Refusal> {
        match self.touched.get(&fid) {
            Some(touched) => Ok(touched.now.clone()),
            None => self.transaction.node(fid),
        }
    }

    /// Returns the object that `name` means in `directory`, which must be one.
    pub(crate) fn entry(&self, directory: Fid, name: &Name) -> Result<Option<Fid>, Refusal> {
        if !self.look(directory)?.is_directory() {
            return Err(Refusal::new(FsError::NotDirectory, format!("the object {directory} is not a directory")));
        }
        self.transaction.entry(directory, name)
    }

    /// Returns the object that `name` must mean.
    pub(crate) fn named(&self, directory: Fid, name: &Name, fid: Fid) -> Result<Node, Refusal> {
        match self.entry(directory, name)? {
            None => Err(Refusal::new(FsError::NotFound, format!("there is no {name}"))),
            Some(other) if other != fid => {
                Err(Refusal::new(FsError::NameChanged, format!("{name} means {other}, not {fid}")))
            }
            Some(_) => self.look(fid),
        }
    }

    /// Checks that `directory` has no `name`.
    pub(crate) fn free(&self, directory: Fid, name: &Name) -> Result<(), Refusal> {
        match self.entry(directory, name)? {
            None => Ok(()),
            Some(_) => Err(Refusal::new(FsError::Exists, format!("{name} exists"))),
        }
    }

    /// Returns an object whose status changes, its ctime with it.
    pub(crate) fn change(&mut self, fid: Fid) -> Result<&mut Node, Refusal> {
        let touched = match self.touched.entry(fid) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let node = self.transaction.node(fid)?;
                entry.insert(Touched { before: Some(node.clone()), now: node })
            }
        };
        touched.now.status.ctime = self.record.time;
        Ok(&mut touched.now)
    }

    /// Adds a new object; its fid has been taken.
    pub(crate) fn insert(&mut self, fid: Fid, node: Node) {
        self.touched.insert(fid, Touched { before: None, now: node });
    }

    /// Makes `name` mean `fid`; the name is free.
    pub(crate) fn enter(&mut self, directory: Fid, name: &Name, fid: Fid, kind: Kind) -> Result<(), Refusal> {
        let status = &mut self.change_entries(directory)?.status;
        status.size += 1;
        if kind == Kind::Directory {
            add_link(&mut status.nlink)?;
        }
        self.transaction.put(tables::entry(directory, name), tables::fid_bytes(fid));
        Ok(())
    }

    /// Frees `name`, which means an object of this kind.
    pub(crate) fn leave(&mut self, directory: Fid, name: &Name, kind: Kind) -> Result<(), Refusal> {
        let status = &mut self.change_entries(directory)?.status;
        status.size = status.size.saturating_sub(1);
        if kind == Kind::Directory {
            status.nlink = status.nlink.saturating_sub(1);
        }
        self.transaction.remove(tables::entry(directory, name));
        match conflicts::resolve(self.transaction, directory, name)? {
            Some(kept) => keep::unmark(self, kept),
            None => Ok(()),
        }
    }

    /// Counts one more name of an object that is not a directory.
    pub(crate) fn link(&mut self, fid: Fid) -> Result<(), Refusal> {
        add_link(&mut self.change(fid)?.status.nlink)
    }

    /// Counts one name less. With the last one the object goes; a directory has one only.
    pub(crate) fn unlink(&mut self, fid: Fid) -> Result<(), Refusal> {
        let node = self.change(fid)?;
        node.status.nlink = if node.is_directory() { 0 } else { node.status.nlink.saturating_sub(1) };
        Ok(())
    }

    /// Takes note that an object that was to lose its last name has got this one instead.
    pub(crate) fn note_aside(&mut self, place: PlacedName) {
        self.aside = Some(place);
    }

    /// Gives a file its next content.
    pub(crate) fn store(&mut self, fid: Fid, content: NewContent, mtime: Timestamp) -> Result<(), Refusal> {
        let id = self.record.id;
        let node = self.change(fid)?;
        let version = node.status.data_version.next();
        node.status.data_version = version;
        node.status.size = content.size;
        node.status.mtime = mtime;
        node.data_by = Some(id);
        let place = match &content.body {
            ContentBody::Bytes(_) => Place::Index,
            ContentBody::File(serial) => Place::File(*serial),
        };
        let came_for = Some(content.fid).filter(|came_for| *came_for != fid);
        node.content = Some(Content { hash: content.hash, place, came_for });
        if let Some(id) = node.content_file(fid).filter(|id| id.fid != fid) {
            self.transaction.put(tables::borrowed(id), []);
        }
        if let ContentBody::Bytes(bytes) = content.body
            && !bytes.is_empty()
        {
            self.transaction.put(tables::inline(fid, version), bytes);
        }
        Ok(())
    }

    /// Gives an object its next extended attributes.
    pub(crate) fn put_xattrs(&mut self, fid: Fid, xattrs: &Xattrs) -> Result<(), Refusal> {
        let status = &mut self.change(fid)?.status;
        // This is the version that `finish` will give the object.
        let version = status.status_version.next();
        status.xattrs = (!xattrs.is_empty()).then_some(version);
        if !xattrs.is_empty() {
            self.transaction.put(tables::xattrs(fid, version), xattrs.encode());
        }
        Ok(())
    }

    /// Writes the touched objects and the volume's counters, and tells what changed. The change number is not counted
    /// here.
    pub(crate) fn finish(self) -> Result<Effect, Refusal> {
        let mut state = self.transaction.state()?;
        let mut effect = Effect { aside: self.aside, ..Effect::default() };
        for (fid, Touched { before, mut now }) in self.touched {
            if let Some(before) = &before {
                now.status.status_version = before.status.status_version.next();
                state.used_bytes = state.used_bytes.saturating_sub(before.used_bytes());
                effect.directories.extend(directory_change(fid, before, &now));
                free_content(self.transaction, fid, before, &now, &mut effect.freed);
                free_xattrs(self.transaction, fid, before, &now);
            } else {
                state.objects += 1;
                // Otherwise its next attributes would have the same version.
                now.status.status_version = now.status.xattrs.unwrap_or(now.status.status_version);
            }
            effect.objects.push(now.object(fid));
            if now.status.nlink == 0 {
                state.objects = state.objects.saturating_sub(1);
                self.transaction.remove(tables::node(fid));
                now.status.xattrs.into_iter().for_each(|version| self.transaction.remove(tables::xattrs(fid, version)));
            } else {
                state.used_bytes = state.used_bytes.saturating_add(now.used_bytes());
                self.transaction.put(tables::node(fid), now.encode(fid));
            }
        }
        self.transaction.put_state(&state);
        Ok(effect)
    }

    /// Returns a directory whose entries change. Records of one client that touch different names may come in another
    /// order than they were made in: the times of the newest stay, as that client shows them.
    fn change_entries(&mut self, directory: Fid) -> Result<&mut Node, Refusal> {
        let (id, time) = (self.record.id, self.record.time);
        let ctime = self.look(directory)?.status.ctime;
        self.change(directory)?;
        let Some(touched) = self.touched.get_mut(&directory) else { return Err(FsError::Stale.into()) };
        let before = touched.before.as_ref().map_or(DataVersion(0), |node| node.status.data_version);
        let node = &mut touched.now;
        node.status.data_version = before.next();
        match node.data_by {
            Some(by) if by.client == id.client && by > id => node.status.ctime = ctime,
            _ => (node.status.mtime, node.data_by) = (time, Some(id)),
        }
        Ok(node)
    }
}

fn add_link(nlink: &mut u32) -> Result<(), Refusal> {
    if *nlink >= Status::LINKS_MAX {
        return Err(FsError::TooManyLinks.into());
    }
    *nlink += 1;
    Ok(())
}

fn directory_change(fid: Fid, before: &Node, now: &Node) -> Option<DirectoryChange> {
    let (before, after) = (before.status.data_version, now.status.data_version);
    (now.is_directory() && before != after).then_some(DirectoryChange { fid, before, after })
}

/// Lets go of the content that `before` had and `now` has not.
fn free_content(transaction: &mut Transaction<'_>, fid: Fid, before: &Node, now: &Node, freed: &mut Vec<ContentId>) {
    let kept = now.status.nlink > 0 && now.status.data_version == before.status.data_version;
    if kept || before.status.kind != Kind::File {
        return;
    }
    match before.content_file(fid) {
        Some(id) => {
            if id.fid != fid {
                transaction.remove(tables::borrowed(id));
            }
            freed.push(id);
        }
        None if before.status.size > 0 => transaction.remove(tables::inline(fid, before.status.data_version)),
        None => {}
    }
}

/// Lets go of the extended attributes that `before` had and `now` has not.
fn free_xattrs(transaction: &mut Transaction<'_>, fid: Fid, before: &Node, now: &Node) {
    if let Some(version) = before.status.xattrs
        && (now.status.nlink == 0 || now.status.xattrs != Some(version))
    {
        transaction.remove(tables::xattrs(fid, version));
    }
}
