//! The calls that client and server make: one request type each, tied to its method and reply.

mod announcements;
mod conflicts;
mod locks;
mod validation;

use std::time::Duration;

use crate::{
    ChangeNumber, ClientId, CmlRecord, ContentHash, DataVersion, Entry, Fid, FidRange, Generation, HistoryId,
    Incarnation, Name, Object, OnConflict, Outcome, Removals, ServerEpoch, ServerId, StoreId, VolumeName, Wire, Xattrs,
};

pub use announcements::{InvalidateReply, InvalidateRequest, PullReply, PullRequest};
pub use conflicts::{ConflictsReply, ConflictsRequest};
pub use locks::{
    CancelLockReply, CancelLockRequest, HeldLock, HeldLocks, LockConflict, LockReply, LockRequest, TestLockReply,
    TestLockRequest, UnlockReply, UnlockRequest,
};
pub use validation::{Changed, ChangedObject, ChangedSinceReply, ChangedSinceRequest, HoldReply, HoldRequest, Mark};

/// A request with its method and the type of its reply.
pub trait Call: Wire {
    /// The method by which the peer knows the call.
    const METHOD: Method;
    /// The body of a successful reply.
    type Reply: Wire;
}

/// The calls by their number on the wire. Numbers are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Method {
    /// [`AttachRequest`].
    Attach = 1,
    /// [`DetachRequest`].
    Detach = 2,
    /// [`GrantFidsRequest`].
    GrantFids = 3,
    /// [`GetStatusRequest`].
    GetStatus = 4,
    /// [`LookupRequest`].
    Lookup = 5,
    /// [`ReadDirRequest`]; the page is the payload of the reply.
    ReadDir = 6,
    /// [`FetchRequest`]; the content is the payload of the reply.
    Fetch = 7,
    /// [`ApplyRequest`]; the content of a Store is the payload of the request.
    Apply = 8,
    /// [`StatFsRequest`].
    StatFs = 9,
    /// [`GetXattrsRequest`].
    GetXattrs = 10,
    /// [`RenewLeaseRequest`].
    RenewLease = 11,
    /// [`BreakRequest`]: made by the server.
    Break = 12,
    /// [`ResumeStoreRequest`].
    ResumeStore = 13,
    /// [`InvalidateRequest`].
    Invalidate = 14,
    /// [`PullRequest`]: made by the server.
    Pull = 15,
    /// [`LockRequest`].
    Lock = 16,
    /// [`UnlockRequest`].
    Unlock = 17,
    /// [`TestLockRequest`].
    TestLock = 18,
    /// [`CancelLockRequest`].
    CancelLock = 19,
    /// [`ChangedSinceRequest`].
    ChangedSince = 20,
    /// [`HoldRequest`].
    Hold = 21,
    /// [`ConflictsRequest`].
    Conflicts = 22,
}

impl Method {
    /// Every method.
    pub const ALL: [Self; 22] = [
        Self::Attach,
        Self::Detach,
        Self::GrantFids,
        Self::GetStatus,
        Self::Lookup,
        Self::ReadDir,
        Self::Fetch,
        Self::Apply,
        Self::StatFs,
        Self::GetXattrs,
        Self::RenewLease,
        Self::Break,
        Self::ResumeStore,
        Self::Invalidate,
        Self::Pull,
        Self::Lock,
        Self::Unlock,
        Self::TestLock,
        Self::CancelLock,
        Self::ChangedSince,
        Self::Hold,
        Self::Conflicts,
    ];

    /// Returns the number on the wire.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Finds the method with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.number() == number)
    }
}

/// First call of every connection: names the client, the protocol versions it speaks, and the volume it wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachRequest {
    /// Oldest protocol version the client speaks.
    pub protocol_min: u32,
    /// Newest protocol version the client speaks.
    pub protocol_max: u32,
    /// The client's identity.
    pub client: ClientId,
    /// Its host name, to show to people; at most 255 bytes.
    pub client_name: String,
    /// The volume.
    pub volume: VolumeName,
    /// Replies to this client's records before this one have arrived, so the server may forget them.
    pub confirmed_below: Option<StoreId>,
    /// The attach whose promises the client still trusts.
    pub session: Option<Generation>,
    /// Whether the client decides by itself what names mean in a directory that no other client has been shown.
    pub decides: bool,
    /// The locks that its programs rely on.
    pub locks: HeldLocks,
}

/// The grants of an attach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachReply {
    /// The protocol version both speak.
    pub protocol: u32,
    /// The server's identity.
    pub server: ServerId,
    /// The server's present life.
    pub epoch: ServerEpoch,
    /// The volume's history.
    pub history: HistoryId,
    /// The client's new life; it must be durable before the first record made in it.
    pub incarnation: Incarnation,
    /// The number of lives behind that one that the client may begin without another attach.
    pub spare_lives: u64,
    /// The number of this attach.
    pub generation: Generation,
    /// The volume's last change.
    pub change: ChangeNumber,
    /// The root directory.
    pub root: Object,
    /// Fids for new objects.
    pub fids: FidRange,
    /// The time that the session's promises hold, from the sending of the request that was answered last with a
    /// renewal.
    pub lease: Duration,
    /// Whether the promises of [`AttachRequest::session`] still hold.
    pub resumed: bool,
    /// Whether other clients have announced changes of the root directory or its names, so that no promise comes with
    /// it.
    pub root_pending: bool,
    /// The number of locks the server has granted in this life.
    pub lock_grants: u64,
    /// The locks of [`AttachRequest::locks`], by their places in the list, that do not hold any more.
    pub lost_locks: Vec<u32>,
    /// The last change, if no break is owed to the session.
    pub mark: Option<Mark>,
}

/// Gives the volume back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DetachRequest;
/// Answers [`DetachRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DetachReply;

/// Asks for more fids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantFidsRequest;
/// Answers [`GrantFidsRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantFidsReply {
    /// Fids that are granted to this client only.
    pub fids: FidRange,
}

/// Asks for the status of objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GetStatusRequest {
    /// The objects, at most [`GetStatusRequest::FIDS_MAX`].
    pub fids: Vec<Fid>,
    /// Whether the answer waits until the updates of the first object that other clients have announced have been
    /// applied: a program is about to open it. While that takes long the answer is
    /// [`FsError::Pulling`](crate::FsError).
    pub settled: bool,
    /// Records of this client about these objects to which it has no answer yet, at most
    /// [`GetStatusRequest::RECORDS_MAX`].
    pub unanswered: Vec<StoreId>,
}

impl GetStatusRequest {
    /// The most fids of one call.
    pub const FIDS_MAX: usize = 256;
    /// The most records of one call: more than a client has under way.
    pub const RECORDS_MAX: usize = 256;
}

/// Answers [`GetStatusRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GetStatusReply {
    /// The objects that exist, in the order asked.
    pub objects: Vec<Object>,
    /// The change before which nothing is missing in the answer: a promise for each object comes with it, unless a
    /// later change has broken it.
    pub change: ChangeNumber,
    /// Objects of which other clients have announced updates, as these will make them: size and times are those to
    /// come, versions those of `objects`. No promise comes with them.
    pub pending: Vec<Object>,
    /// Whether an announced update of the first object is missing in the answer because the client that has it is
    /// gone.
    pub stale: bool,
    /// The unanswered records that have been applied: their effects are in the answer, and so are later changes by
    /// others.
    pub applied: Vec<StoreId>,
}

/// Asks for the object that a name means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupRequest {
    /// The directory.
    pub parent: Fid,
    /// The name.
    pub name: Name,
    /// As in [`GetStatusRequest`].
    pub unanswered: Vec<StoreId>,
}

/// Answers [`LookupRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LookupReply {
    /// `None`: the directory has no such name.
    pub object: Option<Object>,
    /// The version of the directory that the answer belongs to.
    pub parent_version: DataVersion,
    /// As in [`GetStatusReply`].
    pub change: ChangeNumber,
    /// The object as the updates that other clients have announced will make it: as in [`GetStatusReply`].
    pub pending: Option<Object>,
    /// Whether it is only announced that the name will mean the object. Only a client that opens the object waits for
    /// that.
    pub name_pending: bool,
    /// As in [`GetStatusReply`].
    pub applied: Vec<StoreId>,
}

/// Asks for entries of a directory in the order of their names' bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadDirRequest {
    /// The directory.
    pub fid: Fid,
    /// Entries behind this name; `None`: from the first.
    pub after: Option<Name>,
    /// The most entries wanted, 1 to [`ReadDirRequest::ENTRIES_MAX`].
    pub entries_max: u32,
    /// As in [`GetStatusRequest`].
    pub unanswered: Vec<StoreId>,
}

impl ReadDirRequest {
    /// The most entries of one page: about 100 KB.
    pub const ENTRIES_MAX: u32 = 1024;
}

/// Part of a directory: payload of the reply to [`ReadDirRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadDirPage {
    /// The directory, in the version the entries belong to.
    pub directory: Object,
    /// The entries, in the order of their names' bytes.
    pub entries: Vec<Entry>,
    /// Whether these entries are the last.
    pub end: bool,
    /// As in [`GetStatusReply`].
    pub change: ChangeNumber,
    /// Objects of the entries of which other clients have announced updates: no promise comes with them.
    pub pending: Vec<Fid>,
    /// As in [`GetStatusReply`].
    pub applied: Vec<StoreId>,
}

/// Body of the reply to [`ReadDirRequest`]: the page is the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadDirReply;

/// Asks for the content of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchRequest {
    /// The file.
    pub fid: Fid,
    /// The version wanted; `None`: the present one.
    pub data_version: Option<DataVersion>,
    /// First byte wanted.
    pub offset: u64,
}

/// Answers [`FetchRequest`]; the content follows as payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchReply {
    /// The file, in the version that follows.
    pub object: Object,
    /// The hash of the whole content, not only of the part that follows.
    pub hash: ContentHash,
    /// As in [`GetStatusReply`].
    pub change: ChangeNumber,
    /// Whether other clients have announced updates of the object, so that no promise comes with it.
    pub pending: bool,
}

/// Asks to apply a record exactly once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApplyRequest {
    /// The record.
    pub record: CmlRecord,
    /// Replies to this client's records before this one have arrived, so the server may forget them.
    pub confirmed_below: Option<StoreId>,
    /// For a Store: where in the content the payload begins. 0, or the `bytes` of [`ResumeStoreReply`]: the server has
    /// kept the bytes before.
    pub content_offset: u64,
    /// Whether the record stays in its client's log and comes again if it is refused for a
    /// [transient](crate::FsError::is_transient) reason. Until then no record that depends on it is applied, except
    /// for removals, which make room.
    pub comes_again: bool,
    /// The server's choice if changes of others are in conflict with the record.
    pub on_conflict: OnConflict,
    /// Whether the request counts as an [`InvalidateRequest`] too: as the announcement of the content that comes with
    /// it.
    pub announces: bool,
    /// For a Remove or RemoveDir that was made while the server could not be asked: the other removals of that time.
    pub removals: Option<Removals>,
    /// For a Store: whether the program that wrote it may have relied on a lock that the client has lost, whatever its
    /// base version.
    pub lock_lost: bool,
}

impl ApplyRequest {
    /// Makes the request for a record that does not come again; the payload is all of the content, if there is any.
    #[must_use]
    pub fn new(record: CmlRecord, confirmed_below: Option<StoreId>) -> Self {
        Self {
            record,
            confirmed_below,
            content_offset: 0,
            comes_again: false,
            on_conflict: OnConflict::Refuse,
            announces: false,
            removals: None,
            lock_lost: false,
        }
    }
}

/// A change of a directory's entries by a mutation. A client adopts `after` only if `before` is its own version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryChange {
    /// The directory.
    pub fid: Fid,
    /// Its version before.
    pub before: DataVersion,
    /// Its version after.
    pub after: DataVersion,
}

/// Answers [`ApplyRequest`]: the record is on stable storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApplyReply {
    /// The change the record became.
    pub change: ChangeNumber,
    /// The directories whose entries it changed.
    pub directories: Vec<DirectoryChange>,
    /// Every object whose status it changed, as it is now; an object that is gone has `nlink` 0.
    pub objects: Vec<Object>,
    /// For a Store: the hash of the content as the server has it, which is as its client has sent it.
    pub hash: Option<ContentHash>,
    /// Directories of which no other client has a promise: this client decides the names of each until its next break.
    /// Not part of the reply that is kept.
    pub exclusive: Vec<Fid>,
    /// Whether the effect was that which the record says.
    pub outcome: Outcome,
}

/// Asks how full the server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFsRequest;

/// Answers [`StatFsRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFsReply {
    /// Size of the volume's storage in bytes.
    pub bytes_total: u64,
    /// Bytes that may still be stored.
    pub bytes_free: u64,
    /// Bytes that nothing is stored in: the free ones, and those that the server's disk keeps for others.
    pub bytes_unused: u64,
    /// The most objects there may be.
    pub files_total: u64,
    /// Objects that may still be made.
    pub files_free: u64,
}

/// Asks for all extended attributes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GetXattrsRequest {
    /// The object.
    pub fid: Fid,
    /// Whether the answer waits until the changes of the attributes that other clients have announced have been
    /// applied: they cannot be shown before. While that takes long the answer is [`FsError::Pulling`](crate::FsError).
    pub settled: bool,
    /// As in [`GetStatusRequest`].
    pub unanswered: Vec<StoreId>,
}

/// Answers [`GetXattrsRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GetXattrsReply {
    /// The object; its status says which version of the attributes this is.
    pub object: Object,
    /// The attributes.
    pub xattrs: Xattrs,
    /// As in [`GetStatusReply`].
    pub change: ChangeNumber,
    /// Whether other clients have announced updates of the object, so that no promise comes with it.
    pub pending: bool,
    /// As in [`GetStatusReply`].
    pub applied: Vec<StoreId>,
}

/// Keeps the session's promises for another lease. This is the first call of every connection behind
/// [`AttachRequest`]: then it also says that the client has dropped the promises that the attach ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RenewLeaseRequest {
    /// Whether the client's log holds changes that it has decided before this session.
    pub undecided: bool,
}

/// Answers [`RenewLeaseRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RenewLeaseReply {
    /// Whether the lease is renewed. If not, a break was not acknowledged in time, and the promises end with the
    /// present lease.
    pub renewed: bool,
    /// As in [`AttachReply`].
    pub lock_grants: u64,
    /// The last change, if the client has heard of everything up to it that it was promised to.
    pub mark: Option<Mark>,
}

/// Breaks promises; made by the server. The client acknowledges the call once it will ask again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BreakRequest {
    /// The last of the changes that broke the promises; answers that name an earlier one bring none.
    pub change: ChangeNumber,
    /// The objects whose promises are broken.
    pub broken: Broken,
    /// Directories in which the client may have decided names, and decides no more: others want to know what the names
    /// mean. The client announces its decisions there and then says that they are
    /// [settled](InvalidateRequest::settled). At most [`BreakRequest::OBJECTS_MAX`].
    pub recalled: Vec<Fid>,
    /// Files in which others want to lock ranges that the client has locked. The client keeps no lock that none of its
    /// programs holds any more. At most [`BreakRequest::OBJECTS_MAX`].
    pub wanted: Vec<Fid>,
}

/// The promises that are broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The promises of these objects, at most [`BreakRequest::OBJECTS_MAX`].
    Objects(Vec<BrokenObject>),
    /// All promises of the session.
    All,
}

/// An object that has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BrokenObject {
    /// The object.
    pub fid: Fid,
    /// For a directory: names that changed their meaning, at most [`BreakRequest::NAMES_MAX`].
    pub names: Vec<Name>,
}

impl BreakRequest {
    /// The most objects of one call.
    pub const OBJECTS_MAX: usize = 1000;
    /// The most names of one object in one call; more make the object appear again.
    pub const NAMES_MAX: usize = 64;
}

/// Asks how much the server has kept of the content of a file whose Store by this client was interrupted. Nothing more
/// is taken from the interrupted call, should it still be under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeStoreRequest {
    /// The file.
    pub fid: Fid,
}

impl ResumeStoreRequest {
    /// Contents smaller than this are not kept: to send them again costs little more than to ask.
    pub const CONTENT_BYTES_MIN: u64 = 128 * 1024;
}

/// Answers [`ResumeStoreRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumeStoreReply {
    /// The number of bytes that are kept, from the content's start on.
    pub bytes: u64,
    /// Their hash, as if they were the whole content. If the content to be sent does not begin with them, it is sent
    /// anew.
    pub hash: ContentHash,
}

/// Answers [`BreakRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BreakReply {
    /// The [wanted](BreakRequest::wanted) files of which a program of the client holds a lock: the others are about to
    /// be unlocked.
    pub held: Vec<Fid>,
}

/// Body of every reply that is an error: tells people what failed. At most 1,000 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorDetail {
    /// The message, one line.
    pub message: String,
    /// With [`FsError::Pulling`](crate::FsError): a number that rises as long as there is progress. Otherwise 0.
    pub progress: u64,
}

macro_rules! calls {
    ($($request:ident => $method:ident, $reply:ident;)+) => {
        $(impl Call for $request {
            const METHOD: Method = Method::$method;
            type Reply = $reply;
        })+
    };
}

calls! {
    AttachRequest => Attach, AttachReply;
    DetachRequest => Detach, DetachReply;
    GrantFidsRequest => GrantFids, GrantFidsReply;
    GetStatusRequest => GetStatus, GetStatusReply;
    LookupRequest => Lookup, LookupReply;
    ReadDirRequest => ReadDir, ReadDirReply;
    FetchRequest => Fetch, FetchReply;
    ApplyRequest => Apply, ApplyReply;
    StatFsRequest => StatFs, StatFsReply;
    GetXattrsRequest => GetXattrs, GetXattrsReply;
    RenewLeaseRequest => RenewLease, RenewLeaseReply;
    BreakRequest => Break, BreakReply;
    ResumeStoreRequest => ResumeStore, ResumeStoreReply;
    InvalidateRequest => Invalidate, InvalidateReply;
    PullRequest => Pull, PullReply;
    LockRequest => Lock, LockReply;
    UnlockRequest => Unlock, UnlockReply;
    TestLockRequest => TestLock, TestLockReply;
    CancelLockRequest => CancelLock, CancelLockReply;
    ChangedSinceRequest => ChangedSince, ChangedSinceReply;
    HoldRequest => Hold, HoldReply;
    ConflictsRequest => Conflicts, ConflictsReply;
}
