//! Reads: the content of a volume, as committed. They never wait for a commit.
//!
//! A commit may happen between two looks at the index. An answer that needs several is taken again if the directory
//! it is about has changed meanwhile, so it always belongs to the version it names.

use std::sync::Arc;

use bytes::Bytes;
use mafs_durable::DiskFile;
use mafs_proto::call::{
    FetchReply, FetchRequest, GetStatusReply, GetStatusRequest, GetXattrsReply, GetXattrsRequest, LookupReply,
    LookupRequest, ReadDirPage, ReadDirRequest,
};
use mafs_proto::{ChangeNumber, ContentHash, Entry, Fid, FsError, Kind, Name, Object, StoreId, Xattrs};

use super::sessions::Granted;
use super::{Shared, Ticket, Volume};
use crate::core::{Node, Overlay, Refusal, Transaction, tables};
use crate::store::refuse_io;

/// Number of times that an answer is taken again because the directory or file changed meanwhile.
const ATTEMPTS_MAX: usize = 16;

/// Entries of a page stop after this many bytes of symlink targets.
const PAGE_TARGET_BYTES_MAX: usize = 128 * 1024;

/// The root directory as an attach shows it.
pub(crate) struct Root {
    pub(crate) object: Object,
    /// The last change.
    pub(crate) change: ChangeNumber,
    /// Whether others have announced changes of it.
    pub(crate) pending: bool,
}

/// A content, ready to be read.
pub(crate) enum Reading {
    /// All bytes of it.
    Bytes(Bytes),
    /// A content file.
    File(StoredContent),
}

/// A content file; it can be read to its end even if the content is replaced meanwhile.
pub(crate) struct StoredContent {
    pub(crate) file: Arc<dyn DiskFile>,
    /// Path below the data directory.
    pub(crate) path: String,
    pub(crate) size: u64,
    /// Hash of the content when it was stored.
    pub(crate) hash: ContentHash,
}

impl Volume {
    /// Returns the root directory.
    pub(crate) fn root(&self, ticket: Ticket) -> Result<Root, Refusal> {
        let fid = Fid::root(self.shared.file.id());
        let granted = self.promise(ticket, [fid]);
        let object = self.shared.read(|transaction| Ok(transaction.node(fid)?.object(fid)))?;
        Ok(Root { object, change: granted.change, pending: granted.has_pending(fid) })
    }

    /// Returns those of the objects that exist, in their order. If others have announced changes of some, these come
    /// also as they will be.
    pub(crate) fn objects(&self, ticket: Ticket, request: &GetStatusRequest) -> Result<GetStatusReply, Refusal> {
        let (reply, applied) = self.with_applied(ticket, &request.unanswered, || {
            let granted = self.promise(ticket, request.fids.iter().copied());
            let objects = self.shared.read(|transaction| existing_of(transaction, &request.fids))?;
            let mut pending = Vec::new();
            pending.extend(objects.iter().filter_map(|object| granted.as_it_will_be(object)));
            let change = granted.change;
            Ok(GetStatusReply { objects, change, pending, stale: false, applied: Vec::new() })
        })?;
        Ok(GetStatusReply { applied, ..reply })
    }

    /// Looks a name up.
    pub(crate) fn lookup(&self, ticket: Ticket, request: &LookupRequest) -> Result<LookupReply, Refusal> {
        let LookupRequest { parent, name, unanswered } = request;
        let (reply, applied) = self.with_applied(ticket, unanswered, || self.look_up(ticket, *parent, name))?;
        Ok(LookupReply { applied, ..reply })
    }

    fn look_up(&self, ticket: Ticket, parent: Fid, name: &Name) -> Result<LookupReply, Refusal> {
        let change = self.promise(ticket, [parent]).change;
        self.shared.read_directory(parent, |transaction, directory| {
            let (object, pending) = match transaction.entry(parent, name)? {
                None => (None, None),
                Some(fid) => {
                    let granted = self.promise(ticket, [fid]);
                    match existing(transaction, fid)? {
                        Some(object) => {
                            let pending = granted.as_it_will_be(&object);
                            (Some(object), pending)
                        }
                        None => return Ok(None),
                    }
                }
            };
            let parent_version = directory.status.data_version;
            let (name_pending, applied) = (false, Vec::new());
            Ok(Some(LookupReply { object, parent_version, change, pending, name_pending, applied }))
        })
    }

    /// Returns what `name` will mean in `parent`, if others have announced that, and the server has the object.
    pub(crate) fn lookup_announced(
        &self,
        ticket: Ticket,
        parent: Fid,
        name: &Name,
    ) -> Result<Option<LookupReply>, Refusal> {
        let Some(fid) = self.shared.sessions.meaning(ticket, parent.vnode, name) else { return Ok(None) };
        let granted = self.promise(ticket, [fid]);
        self.shared.read(|transaction| {
            let parent_version = transaction.node(parent)?.status.data_version;
            let Some(object) = existing(transaction, fid)? else { return Ok(None) };
            // If it is not pending any more the name means it by now, and is asked for anew.
            let pending = granted.as_it_will_be(&object);
            let reply = |pending| LookupReply {
                object: Some(object),
                parent_version,
                change: granted.change,
                pending: Some(pending),
                name_pending: true,
                applied: Vec::new(),
            };
            Ok(pending.map(reply))
        })
    }

    /// Returns entries of a directory.
    pub(crate) fn read_dir(&self, ticket: Ticket, request: &ReadDirRequest) -> Result<ReadDirPage, Refusal> {
        let (page, applied) = self.with_applied(ticket, &request.unanswered, || self.page(ticket, request))?;
        Ok(ReadDirPage { applied, ..page })
    }

    fn page(&self, ticket: Ticket, request: &ReadDirRequest) -> Result<ReadDirPage, Refusal> {
        let granted = self.promise(ticket, [request.fid]);
        self.shared.read_directory(request.fid, |transaction, directory| {
            let directory = directory.object(request.fid);
            let page = ReadDirPage {
                directory,
                entries: Vec::new(),
                end: false,
                change: granted.change,
                pending: Vec::new(),
                applied: Vec::new(),
            };
            self.entries(transaction, ticket, request, &granted, page)
        })
    }

    /// Returns an object and its extended attributes.
    pub(crate) fn xattrs(&self, ticket: Ticket, request: &GetXattrsRequest) -> Result<GetXattrsReply, Refusal> {
        let (reply, applied) =
            self.with_applied(ticket, &request.unanswered, || self.xattrs_now(ticket, request.fid))?;
        Ok(GetXattrsReply { applied, ..reply })
    }

    fn xattrs_now(&self, ticket: Ticket, fid: Fid) -> Result<GetXattrsReply, Refusal> {
        let granted = self.promise(ticket, [fid]);
        let (change, pending) = (granted.change, granted.has_pending(fid));
        self.shared.read(|transaction| {
            for _ in 0..ATTEMPTS_MAX {
                let node = transaction.node(fid)?;
                let xattrs = match node.status.xattrs {
                    None => Some(Xattrs::default()),
                    Some(version) => transaction.xattrs(fid, version)?,
                };
                if let Some(xattrs) = xattrs {
                    let object = node.object(fid);
                    return Ok(GetXattrsReply { object, xattrs, change, pending, applied: Vec::new() });
                }
            }
            Err(busy(fid))
        })
    }

    /// Returns a file, the hash of its content, and the content.
    ///
    /// # Errors
    /// `VersionGone` if another version is wanted than the present one.
    pub(crate) fn open_content(
        &self,
        ticket: Ticket,
        request: &FetchRequest,
    ) -> Result<(FetchReply, Reading), Refusal> {
        let fid = request.fid;
        let granted = self.promise(ticket, [fid]);
        let (change, pending) = (granted.change, granted.has_pending(fid));
        for _ in 0..ATTEMPTS_MAX {
            let node = self.shared.read(|transaction| transaction.node(fid))?;
            if node.status.kind != Kind::File {
                let number = if node.is_directory() { FsError::IsDirectory } else { FsError::WrongKind };
                return Err(Refusal::new(number, format!("the object {fid} is not a file")));
            }
            let version = node.status.data_version;
            if request.data_version.is_some_and(|wanted| wanted != version) {
                return Err(Refusal::new(FsError::VersionGone, format!("the file {fid} is at version {}", version.0)));
            }
            let content = node.content.ok_or_else(|| Refusal::damaged(&format!("the file {fid} has no content")))?;
            if let Some(reading) = self.shared.reading(fid, &node, content.hash)? {
                return Ok((FetchReply { object: node.object(fid), hash: content.hash, change, pending }, reading));
            }
        }
        Err(busy(fid))
    }

    /// Runs `look`. Returns what it finds, with those of the client's records that are in it, because they have been
    /// applied.
    fn with_applied<T>(
        &self,
        ticket: Ticket,
        records: &[StoreId],
        look: impl Fn() -> Result<T, Refusal>,
    ) -> Result<(T, Vec<StoreId>), Refusal> {
        for _ in 0..ATTEMPTS_MAX {
            let before = self.applied(ticket, records)?;
            let found = look()?;
            if records.is_empty() || self.applied(ticket, records)? == before {
                return Ok((found, before));
            }
        }
        Err(Refusal::new(FsError::Busy, "records are being applied all the time"))
    }

    fn applied(&self, ticket: Ticket, records: &[StoreId]) -> Result<Vec<StoreId>, Refusal> {
        self.shared.read(|transaction| {
            let mut applied = Vec::new();
            for id in records.iter().filter(|id| id.client == ticket.client) {
                applied.extend(transaction.get(&tables::reply(id))?.map(|_| *id));
            }
            Ok(applied)
        })
    }

    /// Promises objects to a client. To be called before the objects are looked at.
    fn promise(&self, ticket: Ticket, fids: impl IntoIterator<Item = Fid>) -> Granted {
        self.shared.sessions.grant(ticket, fids.into_iter().map(|fid| fid.vnode))
    }

    /// Fills a page of a directory, which is `pending` or not; `None` if the directory changed meanwhile.
    fn entries(
        &self,
        transaction: &Transaction<'_>,
        ticket: Ticket,
        request: &ReadDirRequest,
        directory: &Granted,
        mut page: ReadDirPage,
    ) -> Result<Option<ReadDirPage>, Refusal> {
        let named = self.names(request, directory)?;
        page.end = named.end;
        let granted = self.promise(ticket, named.names.iter().map(|(_, fid)| *fid));
        page.pending.extend(directory.has_pending(request.fid).then_some(request.fid));
        let mut target_bytes = 0;
        for (name, fid) in named.names {
            if target_bytes > PAGE_TARGET_BYTES_MAX {
                page.end = false;
                break;
            }
            let Some(object) = existing(transaction, fid)? else { return Ok(None) };
            target_bytes += object.target.as_ref().map_or(0, |target| target.as_bytes().len());
            page.pending.extend(granted.has_pending(fid).then_some(fid));
            page.entries.push(Entry { name, object });
        }
        Ok(Some(page))
    }

    /// Returns the names of a page. A directory that is pending is listed among what is, and takes the place of an
    /// entry.
    fn names(&self, request: &ReadDirRequest, directory: &Granted) -> Result<Named, Refusal> {
        let prefix = tables::entries(request.fid);
        let after = request.after.as_ref().map(|name| tables::entry(request.fid, name));
        let most = ReadDirRequest::ENTRIES_MAX - u32::from(directory.has_pending(request.fid));
        let limit = request.entries_max.min(most) as usize;
        let found = self.shared.index.index().scan(&prefix, after.as_deref(), limit)?;
        let end = found.len() < limit;
        let mut names = Vec::with_capacity(found.len());
        for (key, value) in found {
            let damaged = || Refusal::damaged(&format!("an entry of {}", request.fid));
            let name = Name::new(key.get(prefix.len()..).unwrap_or_default().to_vec()).map_err(|_| damaged())?;
            names.push((name, tables::parse_fid(self.shared.file.id(), &value).ok_or_else(damaged)?));
        }
        Ok(Named { names, end })
    }
}

/// Names of a directory, and whether they are the last.
struct Named {
    names: Vec<(Name, Fid)>,
    end: bool,
}

impl Shared {
    /// Looks at the committed state.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Transaction<'_>) -> Result<T, Refusal>) -> Result<T, Refusal> {
        let overlay = Overlay::new(self.file.id(), self.index.index());
        look(&overlay.begin())
    }

    /// Looks at a directory until it has not changed while it was looked at; `None` from `look` means that it must
    /// have.
    fn read_directory<T>(
        &self,
        fid: Fid,
        look: impl Fn(&Transaction<'_>, &Node) -> Result<Option<T>, Refusal>,
    ) -> Result<T, Refusal> {
        self.read(|transaction| {
            for _ in 0..ATTEMPTS_MAX {
                let before = transaction.node(fid)?;
                if !before.is_directory() {
                    return Err(Refusal::new(FsError::NotDirectory, format!("the object {fid} is not a directory")));
                }
                let found = look(transaction, &before)?;
                let after = transaction.node(fid)?;
                if let Some(found) = found
                    && before.status.data_version == after.status.data_version
                {
                    return Ok(found);
                }
            }
            Err(busy(fid))
        })
    }

    /// Opens the content of a file; `None` if it has been replaced meanwhile.
    fn reading(&self, fid: Fid, node: &Node, hash: ContentHash) -> Result<Option<Reading>, Refusal> {
        let size = node.status.size;
        match node.content_file(fid) {
            Some(id) => match self.contents.read(id) {
                Ok(file) => {
                    let path = self.contents.path(id);
                    Ok(Some(Reading::File(StoredContent { file, path, size, hash })))
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.replaced_or_lost(fid, node),
                Err(error) => Err(refuse_io("open a content", &error)),
            },
            None if size == 0 => Ok(Some(Reading::Bytes(Bytes::new()))),
            None => match self.index.index().get(&tables::inline(fid, node.status.data_version))? {
                Some(bytes) => Ok(Some(Reading::Bytes(bytes.into()))),
                None => self.replaced_or_lost(fid, node),
            },
        }
    }

    /// Tells a content that was replaced since `node` was read from one that is not where it should be.
    fn replaced_or_lost(&self, fid: Fid, node: &Node) -> Result<Option<Reading>, Refusal> {
        if self.read(|transaction| transaction.node(fid))?.content != node.content {
            return Ok(None);
        }
        tracing::error!(volume = %self.name, %fid, "the content of a file is missing");
        Err(Refusal::new(FsError::Io, format!("the content of the file {fid} is missing on the server")))
    }
}

fn existing_of(transaction: &Transaction<'_>, fids: &[Fid]) -> Result<Vec<Object>, Refusal> {
    let mut objects = Vec::with_capacity(fids.len());
    for fid in fids {
        objects.extend(existing(transaction, *fid)?);
    }
    Ok(objects)
}

/// Returns the object, if it exists.
fn existing(transaction: &Transaction<'_>, fid: Fid) -> Result<Option<Object>, Refusal> {
    match transaction.node(fid) {
        Ok(node) => Ok(Some(node.object(fid))),
        Err(refusal) if refusal.error == FsError::Stale => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

fn busy(fid: Fid) -> Refusal {
    Refusal::new(FsError::Busy, format!("the object {fid} changes too fast to be read"))
}
