//! Tests that every domain type survives the wire, and that no bytes make a parser panic.

use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::{Malformed, Wire};
use crate::call::{
    ApplyReply, ApplyRequest, AttachReply, AttachRequest, BreakReply, BreakRequest, Broken, BrokenObject,
    CancelLockReply, CancelLockRequest, Changed, ChangedObject, ChangedSinceReply, ChangedSinceRequest, ConflictsReply,
    ConflictsRequest, DetachReply, DetachRequest, DirectoryChange, ErrorDetail, FetchReply, FetchRequest,
    GetStatusReply, GetStatusRequest, GetXattrsReply, GetXattrsRequest, GrantFidsReply, GrantFidsRequest, HeldLock,
    HeldLocks, HoldReply, HoldRequest, InvalidateReply, InvalidateRequest, LockConflict, LockReply, LockRequest,
    LookupReply, LookupRequest, Mark, PullReply, PullRequest, ReadDirPage, ReadDirReply, ReadDirRequest,
    RenewLeaseReply, RenewLeaseRequest, ResumeStoreReply, ResumeStoreRequest, StatFsReply, StatFsRequest,
    TestLockReply, TestLockRequest, UnlockReply, UnlockRequest,
};
use crate::{
    Base, ChangeNumber, ClientId, CmlOp, CmlRecord, Conflict, ConflictKind, ContentHash, DataVersion, Entry,
    FILE_SIZE_MAX, Fid, FidRange, Generation, HistoryId, Incarnation, Kind, Lock, LockKind, LockOwner, LockRange, Mode,
    Name, Object, OnConflict, Origin, Outcome, PlacedName, Removals, Removed, RenameMode, ServerEpoch, ServerId,
    SetAttr, Status, StatusVersion, StoreId, SymlinkTarget, Timestamp, Uniquifier, VnodeId, VolumeId, VolumeName,
    XattrMode, XattrName, XattrValue, Xattrs,
};

fn fid() -> impl Strategy<Value = Fid> {
    (any::<u32>(), 1u64.., any::<u32>()).prop_map(|(volume, vnode, unique)| Fid {
        volume: VolumeId(volume),
        vnode: VnodeId(vnode),
        unique: Uniquifier(unique),
    })
}

fn fid_range() -> impl Strategy<Value = FidRange> {
    (fid(), any::<u64>()).prop_filter_map("range beyond the last vnode", |(first, count)| FidRange::new(first, count))
}

fn store_id() -> impl Strategy<Value = StoreId> {
    (any::<[u8; 16]>(), any::<u64>(), any::<u64>()).prop_map(|(client, incarnation, seq)| StoreId {
        client: ClientId(client),
        incarnation: Incarnation(incarnation),
        seq,
    })
}

fn time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0u32..1_000_000_000).prop_map(|(seconds, nanos)| Timestamp::new(seconds, nanos).unwrap())
}

fn name() -> impl Strategy<Value = Name> {
    vec(any::<u8>(), 1..=255).prop_filter_map("not a name", |bytes| Name::new(bytes).ok())
}

fn target() -> impl Strategy<Value = SymlinkTarget> {
    vec(1u8.., 1..=300).prop_map(|bytes| SymlinkTarget::new(bytes).unwrap())
}

fn mode() -> impl Strategy<Value = Mode> {
    (0u32..=0o7777).prop_map(Mode::from_bits)
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::File),
        Just(Kind::Directory),
        Just(Kind::Symlink),
        Just(Kind::Fifo),
        Just(Kind::Socket),
        Just(Kind::CharDevice),
        Just(Kind::BlockDevice),
    ]
}

prop_compose! {
    fn status()(
        kind in kind(), mode in mode(), nlink in any::<u32>(), uid in any::<u32>(), gid in any::<u32>(),
        size in 0..=FILE_SIZE_MAX, rdev in any::<u64>(), times in [time(), time(), time(), time()],
        data_version in any::<u64>(), status_version in any::<u64>(), xattrs in option::of(1u64..),
    ) -> Status {
        let [atime, mtime, ctime, crtime] = times;
        Status {
            kind, mode, nlink, uid, gid, size, rdev, atime, mtime, ctime, crtime,
            data_version: DataVersion(data_version), status_version: StatusVersion(status_version),
            xattrs: xattrs.map(StatusVersion),
        }
    }
}

prop_compose! {
    fn object()(fid in fid(), status in status(), target in target()) -> Object {
        let target = (status.kind == Kind::Symlink).then_some(target);
        Object { fid, status, target }
    }
}

fn xattr_name() -> impl Strategy<Value = XattrName> {
    vec(1u8.., 1..=255).prop_map(|bytes| XattrName::new(bytes).unwrap())
}

fn xattr_value() -> impl Strategy<Value = XattrValue> {
    vec(any::<u8>(), 0..=300).prop_map(|bytes| XattrValue::new(bytes).unwrap())
}

fn xattrs() -> impl Strategy<Value = Xattrs> {
    vec((xattr_name(), xattr_value()), 0..5).prop_map(|values| {
        let mut xattrs = Xattrs::default();
        for (name, value) in values {
            xattrs.set(name, value, XattrMode::Either).unwrap();
        }
        xattrs
    })
}

fn base() -> impl Strategy<Value = Base> {
    prop_oneof![any::<u64>().prop_map(|version| Base::Version(DataVersion(version))), store_id().prop_map(Base::Record)]
}

prop_compose! {
    fn set_attr()(
        mode in option::of(mode()), uid in any::<Option<u32>>(), gid in any::<Option<u32>>(),
        atime in option::of(time()), mtime in option::of(time()),
    ) -> SetAttr {
        SetAttr { mode, uid, gid, atime, mtime }
    }
}

fn op() -> impl Strategy<Value = CmlOp> {
    let place = || (fid(), name(), fid());
    let creatable =
        kind().prop_filter("has an operation of its own", |kind| !matches!(kind, Kind::Directory | Kind::Symlink));
    let rename_mode = prop_oneof![Just(RenameMode::Replace), Just(RenameMode::NoReplace), Just(RenameMode::Exchange)];
    let xattr_mode = prop_oneof![Just(XattrMode::Either), Just(XattrMode::Create), Just(XattrMode::Replace)];
    prop_oneof![
        (place(), creatable, mode(), any::<u64>()).prop_map(|((parent, name, fid), kind, mode, rdev)| CmlOp::Create {
            parent,
            name,
            fid,
            kind,
            mode,
            rdev
        }),
        (place(), mode()).prop_map(|((parent, name, fid), mode)| CmlOp::MakeDir { parent, name, fid, mode }),
        (place(), target()).prop_map(|((parent, name, fid), target)| CmlOp::SymLink { parent, name, fid, target }),
        place().prop_map(|(parent, name, fid)| CmlOp::Link { parent, name, fid }),
        place().prop_map(|(parent, name, fid)| CmlOp::Remove { parent, name, fid }),
        place().prop_map(|(parent, name, fid)| CmlOp::RemoveDir { parent, name, fid }),
        (place(), (fid(), name()), option::of(fid()), rename_mode).prop_map(
            |((from_parent, from_name, fid), (to_parent, to_name), replaced, mode)| CmlOp::Rename {
                from_parent,
                from_name,
                to_parent,
                to_name,
                fid,
                replaced,
                mode
            }
        ),
        (fid(), set_attr()).prop_map(|(fid, set)| CmlOp::SetAttr { fid, set }),
        (fid(), xattr_name(), xattr_value(), xattr_mode).prop_map(|(fid, name, value, mode)| CmlOp::SetXattr {
            fid,
            name,
            value,
            mode
        }),
        (fid(), xattr_name()).prop_map(|(fid, name)| CmlOp::RemoveXattr { fid, name }),
        (fid(), base(), 0..=FILE_SIZE_MAX, time()).prop_map(|(fid, base, size, mtime)| CmlOp::Store {
            fid,
            base,
            size,
            mtime
        }),
    ]
}

prop_compose! {
    fn record()(
        id in store_id(), depends_on in vec(store_id(), 0..4), time in time(), uid in any::<u32>(), gid in any::<u32>(),
        removes in option::of((1u64.., any::<bool>())), op in op(),
    ) -> CmlRecord {
        let removes = removes.map(|(version, alone)| Removed { version: DataVersion(version), alone });
        CmlRecord { id, depends_on, time, uid, gid, removes, op }
    }
}

prop_compose! {
    fn attach_reply()(
        protocol in any::<u32>(), server in any::<[u8; 16]>(), numbers in any::<[u64; 6]>(), root in object(),
        fids in fid_range(), lease_ms in any::<u32>(), resumed in any::<bool>(), root_pending in any::<bool>(),
        lock_grants in any::<u64>(), lost_locks in vec(any::<u32>(), 0..5), mark in option::of(mark()),
    ) -> AttachReply {
        let [epoch, history, incarnation, generation, change, spare_lives] = numbers;
        AttachReply {
            protocol, server: ServerId(server), epoch: ServerEpoch(epoch), history: HistoryId(history),
            incarnation: Incarnation(incarnation), generation: Generation(generation), change: ChangeNumber(change),
            root, fids, lease: Duration::from_millis(u64::from(lease_ms)), resumed, root_pending, spare_lives,
            lock_grants, lost_locks, mark,
        }
    }
}

prop_compose! {
    fn attach_request()(
        versions in any::<[u32; 2]>(), client in any::<[u8; 16]>(), client_name in "[a-zäöü]{0,100}",
        volume in "[a-zA-Z0-9_-]{1,64}", confirmed_below in option::of(store_id()),
        session in option::of(1u64..), decides in any::<bool>(), locks in held_locks(),
    ) -> AttachRequest {
        let [protocol_min, protocol_max] = versions;
        let volume = VolumeName::new(&volume).unwrap();
        let (client, session) = (ClientId(client), session.map(Generation));
        AttachRequest {
            protocol_min, protocol_max, client, client_name, volume, confirmed_below, session, decides, locks,
        }
    }
}

fn lock_range() -> impl Strategy<Value = LockRange> {
    any::<[u64; 2]>().prop_map(|[one, other]| LockRange::new(one.min(other), one.max(other)).unwrap())
}

fn lock_kind() -> impl Strategy<Value = LockKind> {
    prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive)]
}

prop_compose! {
    fn lock()(
        fid in fid(), id in any::<u64>(), process in any::<u32>(), file in any::<u64>(), range in lock_range(),
        kind in lock_kind(),
    ) -> Lock {
        Lock { fid, owner: LockOwner { id, process, file }, range, kind }
    }
}

prop_compose! {
    fn held_locks()(
        epoch in option::of(1u64..), grants in any::<u64>(), locks in vec((lock(), any::<bool>()), 0..5),
        fenced in any::<bool>(),
    ) -> HeldLocks {
        let locks = locks.into_iter().map(|(lock, granted)| HeldLock { lock, granted }).collect();
        HeldLocks { epoch: epoch.map(ServerEpoch), grants, locks, fenced }
    }
}

prop_compose! {
    fn mark()(change in 1u64.., tag in any::<u64>()) -> Mark {
        Mark { change: ChangeNumber(change), tag }
    }
}

prop_compose! {
    fn changed()(
        objects in vec((any::<u64>(), option::of(0..u64::MAX)), 0..20), through in mark(), more in any::<bool>(),
    ) -> Changed {
        let objects = objects.into_iter().map(|(vnode, version)| ChangedObject {
            vnode: VnodeId(vnode),
            version: version.map(StatusVersion),
        });
        Changed { objects: objects.collect(), through, more }
    }
}

fn change() -> impl Strategy<Value = ChangeNumber> {
    any::<u64>().prop_map(ChangeNumber)
}

fn broken(objects: Vec<(Fid, Vec<Name>)>) -> Broken {
    Broken::Objects(objects.into_iter().map(|(fid, names)| BrokenObject { fid, names }).collect())
}

prop_compose! {
    fn apply_request()(
        record in record(), confirmed_below in option::of(store_id()), content_offset in any::<u64>(),
        flags in any::<[bool; 3]>(), on_conflict in on_conflict(), removals in option::of(removals()),
    ) -> ApplyRequest {
        let [comes_again, announces, lock_lost] = flags;
        let flagged = ApplyRequest { comes_again, announces, lock_lost, ..ApplyRequest::new(record, confirmed_below) };
        ApplyRequest { content_offset, on_conflict, removals, ..flagged }
    }
}

prop_compose! {
    fn removals()(count in any::<u64>(), up_to in store_id(), path in vec(name(), 0..4)) -> Removals {
        Removals { count, up_to, path }
    }
}

prop_compose! {
    fn origin()(
        directory in fid(), name in name(), path in vec(name(), 0..4), mode in mode(), uid in any::<u32>(),
        gid in any::<u32>(),
    ) -> Origin {
        Origin { directory, name, path, mode, uid, gid }
    }
}

fn on_conflict() -> impl Strategy<Value = OnConflict> {
    prop_oneof![Just(OnConflict::Refuse), Just(OnConflict::Ask), origin().prop_map(OnConflict::Keep)]
}

fn placed() -> impl Strategy<Value = PlacedName> {
    (fid(), name()).prop_map(|(directory, name)| PlacedName { directory, name })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::AsSaid),
        Just(Outcome::WasSo),
        vec(placed(), 0..4).prop_map(Outcome::Elsewhere),
        vec(placed(), 0..4).prop_map(Outcome::Trashed),
        placed().prop_map(Outcome::SetAside),
    ]
}

prop_compose! {
    fn conflict()(
        place in placed(), kind in proptest::sample::select(&ConflictKind::ALL), mine in fid(), wanted in placed(),
        path in vec(name(), 0..4), client in any::<[u8; 16]>(), client_name in "[a-zäöü]{0,100}", uid in any::<u32>(),
        time in time(), base in option::of(1u64..), mine_now in option::of(object()),
        theirs_now in option::of(object()),
    ) -> Conflict {
        Conflict {
            place, kind, mine, wanted, path, client: ClientId(client), client_name, uid, time,
            base: base.map(DataVersion), mine_now, theirs_now,
        }
    }
}

fn apply_reply() -> impl Strategy<Value = ApplyReply> {
    let change = (fid(), any::<u64>(), any::<u64>()).prop_map(|(fid, before, after)| DirectoryChange {
        fid,
        before: DataVersion(before),
        after: DataVersion(after),
    });
    (any::<u64>(), vec(change, 0..3), vec(object(), 0..5), option::of(any::<[u8; 32]>()), vec(fid(), 0..3), outcome())
        .prop_map(|(change, directories, objects, hash, exclusive, outcome)| ApplyReply {
            outcome,
            exclusive,
            hash: hash.map(ContentHash),
            change: ChangeNumber(change),
            directories,
            objects,
        })
}

/// Makes one property test per type: an encoded value decodes to the same value.
macro_rules! round_trips {
    ($($test:ident: $type:ty = $strategy:expr;)+) => {
        proptest! {
            $(#[test]
            fn $test(value in $strategy) {
                let decoded: Result<$type, Malformed> = Wire::decode(value.encode());
                prop_assert_eq!(decoded, Ok(value));
            })+
        }
    };
}

round_trips! {
    proptest_fids_round_trip: Fid = fid();
    proptest_store_ids_round_trip: StoreId = store_id();
    proptest_statuses_round_trip: Status = status();
    proptest_objects_round_trip: Object = object();
    proptest_records_round_trip: CmlRecord = record();
    proptest_attach_requests_round_trip: AttachRequest = attach_request();
    proptest_attach_replies_round_trip: AttachReply = attach_reply();
    proptest_grants_round_trip: GrantFidsReply = fid_range().prop_map(|fids| GrantFidsReply { fids });
    proptest_status_requests_round_trip: GetStatusRequest = (vec(fid(), 0..5), any::<bool>(), vec(store_id(), 0..5))
        .prop_map(|(fids, settled, unanswered)| GetStatusRequest { fids, settled, unanswered });
    proptest_status_replies_round_trip: GetStatusReply =
        (vec(object(), 0..5), change(), vec(object(), 0..5), any::<bool>(), vec(store_id(), 0..5)).prop_map(
            |(objects, change, pending, stale, applied)| GetStatusReply { objects, change, pending, stale, applied },
        );
    proptest_lookup_requests_round_trip: LookupRequest = (fid(), name(), vec(store_id(), 0..5))
        .prop_map(|(parent, name, unanswered)| LookupRequest { parent, name, unanswered });
    proptest_lookup_replies_round_trip: LookupReply =
        (option::of(object()), any::<u64>(), change(), option::of(object()), any::<bool>(), vec(store_id(), 0..5))
        .prop_map(|(object, version, change, pending, name_pending, applied)| LookupReply {
            object,
            parent_version: DataVersion(version),
            change,
            pending,
            name_pending,
            applied,
        });
    proptest_listing_requests_round_trip: ReadDirRequest =
        (fid(), option::of(name()), 1u32..=1024, vec(store_id(), 0..5))
        .prop_map(|(fid, after, entries_max, unanswered)| ReadDirRequest { fid, after, entries_max, unanswered });
    proptest_listing_pages_round_trip: ReadDirPage =
        (object(), vec((name(), object()), 0..5), any::<bool>(), change(), vec(fid(), 0..5), vec(store_id(), 0..5))
            .prop_map(|(directory, entries, end, change, pending, applied)| ReadDirPage {
                directory,
                entries: entries.into_iter().map(|(name, object)| Entry { name, object }).collect(),
                end,
                change,
                pending,
                applied,
            });
    proptest_fetch_requests_round_trip: FetchRequest = (fid(), option::of(1u64..), any::<u64>())
        .prop_map(|(fid, version, offset)| FetchRequest { fid, data_version: version.map(DataVersion), offset });
    proptest_fetch_replies_round_trip: FetchReply = (object(), any::<[u8; 32]>(), change(), any::<bool>())
        .prop_map(|(object, hash, change, pending)| FetchReply { object, hash: ContentHash(hash), change, pending });
    proptest_invalidate_requests_round_trip: InvalidateRequest =
        (vec(record(), 0..5), vec(store_id(), 0..5), option::of(store_id()), vec(fid(), 0..5)).prop_map(
            |(records, retracted, confirmed_below, settled)| InvalidateRequest {
                records,
                retracted,
                confirmed_below,
                settled,
            },
        );
    proptest_invalidate_replies_round_trip: InvalidateReply = (vec(store_id(), 0..5), vec(store_id(), 0..5))
        .prop_map(|(refused, contested)| InvalidateReply { refused, contested });
    proptest_pull_requests_round_trip: PullRequest = vec(store_id(), 0..5).prop_map(|ids| PullRequest { ids });
    proptest_pull_replies_round_trip: PullReply = vec(store_id(), 0..5).prop_map(|missing| PullReply { missing });
    proptest_apply_requests_round_trip: ApplyRequest = apply_request();
    proptest_conflict_requests_round_trip: ConflictsRequest =
        option::of(placed()).prop_map(|after| ConflictsRequest { after });
    proptest_conflict_replies_round_trip: ConflictsReply = (vec(conflict(), 0..4), any::<bool>())
        .prop_map(|(conflicts, end)| ConflictsReply { conflicts, end });
    proptest_resume_requests_round_trip: ResumeStoreRequest = fid().prop_map(|fid| ResumeStoreRequest { fid });
    proptest_resume_replies_round_trip: ResumeStoreReply = (any::<u64>(), any::<[u8; 32]>())
        .prop_map(|(bytes, hash)| ResumeStoreReply { bytes, hash: ContentHash(hash) });
    proptest_apply_replies_round_trip: ApplyReply = apply_reply();
    proptest_space_round_trips: StatFsReply = any::<[u64; 5]>()
        .prop_map(|[bytes_total, bytes_free, kept, files_total, files_free]| StatFsReply {
            bytes_total,
            bytes_free,
            bytes_unused: bytes_free.saturating_add(kept),
            files_total,
            files_free,
        });
    proptest_xattrs_round_trip: Xattrs = xattrs();
    proptest_xattr_requests_round_trip: GetXattrsRequest =
        (fid(), any::<bool>(), vec(store_id(), 0..5))
            .prop_map(|(fid, settled, unanswered)| GetXattrsRequest { fid, settled, unanswered });
    proptest_xattr_replies_round_trip: GetXattrsReply =
        (object(), xattrs(), change(), any::<bool>(), vec(store_id(), 0..5)).prop_map(
            |(object, xattrs, change, pending, applied)| GetXattrsReply { object, xattrs, change, pending, applied },
        );
    proptest_renewal_requests_round_trip: RenewLeaseRequest = any::<bool>()
        .prop_map(|undecided| RenewLeaseRequest { undecided });
    proptest_renewals_round_trip: RenewLeaseReply = (any::<bool>(), any::<u64>(), option::of(mark()))
        .prop_map(|(renewed, lock_grants, mark)| RenewLeaseReply { renewed, lock_grants, mark });
    proptest_lock_requests_round_trip: LockRequest =
        (lock(), any::<bool>(), any::<u64>(), any::<bool>(), vec(store_id(), 0..5)).prop_map(
            |(lock, wait, number, given_up, unanswered)| LockRequest { lock, wait, number, given_up, unanswered },
        );
    proptest_lock_replies_round_trip: LockReply = (any::<u64>(), vec(object(), 0..2), change()).prop_map(
        |(lock_grants, objects, change)| LockReply {
            lock_grants,
            status: GetStatusReply { objects, change, pending: Vec::new(), stale: false, applied: Vec::new() },
        },
    );
    proptest_unlock_requests_round_trip: UnlockRequest = (fid(), any::<u64>(), lock_range(), vec(any::<u64>(), 0..5))
        .prop_map(|(fid, owner, range, except)| UnlockRequest { fid, owner, range, except });
    proptest_lock_tests_round_trip: TestLockRequest = lock().prop_map(|lock| TestLockRequest { lock });
    proptest_lock_conflicts_round_trip: TestLockReply =
        option::of((lock_range(), lock_kind(), any::<u32>())).prop_map(|conflict| TestLockReply {
            conflict: conflict.map(|(range, kind, process)| LockConflict { range, kind, process }),
        });
    proptest_cancellations_round_trip: CancelLockRequest = any::<u64>()
        .prop_map(|number| CancelLockRequest { number });
    proptest_questions_of_changes_round_trip: ChangedSinceRequest = mark()
        .prop_map(|mark| ChangedSinceRequest { mark });
    proptest_changes_round_trip: ChangedSinceReply = option::of(changed())
        .prop_map(|changed| ChangedSinceReply { changed });
    proptest_holds_round_trip: HoldRequest = (vec(any::<u64>(), 0..20), any::<bool>())
        .prop_map(|(vnodes, last)| HoldRequest { vnodes: vnodes.into_iter().map(VnodeId).collect(), last });
    proptest_breaks_round_trip: BreakRequest =
        (change(), option::of(vec((fid(), vec(name(), 0..3)), 0..5)), vec(fid(), 0..5), vec(fid(), 0..5)).prop_map(
            |(change, objects, recalled, wanted)| BreakRequest {
                change,
                broken: objects.map_or(Broken::All, broken),
                recalled,
                wanted,
            },
        );
    proptest_answers_to_breaks_round_trip: BreakReply = vec(fid(), 0..5).prop_map(|held| BreakReply { held });
    proptest_error_details_round_trip: ErrorDetail = ("[a-zé ]{0,200}", any::<u64>())
        .prop_map(|(message, progress)| ErrorDetail { message, progress });
}

/// Feeds the same bytes to the parser of every type.
fn decode_as_everything(bytes: &Bytes) {
    macro_rules! decode {
        ($($type:ty),+) => { $(let _ = <$type>::decode(bytes.clone());)+ };
    }
    decode!(Fid, FidRange, StoreId, Timestamp, Status, Object, Entry, CmlRecord, Base);
    decode!(AttachRequest, AttachReply, DetachRequest, DetachReply, GrantFidsRequest, GrantFidsReply);
    decode!(GetStatusRequest, GetStatusReply, LookupRequest, LookupReply, ReadDirRequest, ReadDirReply, ReadDirPage);
    decode!(
        FetchRequest,
        FetchReply,
        ApplyRequest,
        ApplyReply,
        DirectoryChange,
        StatFsRequest,
        StatFsReply,
        ErrorDetail,
        InvalidateRequest,
        InvalidateReply,
        PullRequest,
        PullReply,
        Xattrs,
        GetXattrsRequest,
        GetXattrsReply,
        RenewLeaseRequest,
        RenewLeaseReply,
        BreakRequest,
        BreakReply,
        ResumeStoreRequest,
        ResumeStoreReply,
        LockRequest,
        LockReply,
        UnlockRequest,
        UnlockReply,
        TestLockRequest,
        TestLockReply,
        CancelLockRequest,
        CancelLockReply,
        Mark,
        Changed,
        ChangedSinceRequest,
        ChangedSinceReply,
        HoldRequest,
        HoldReply
    );
}

proptest! {
    #[test]
    fn proptest_invariant_10_arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        decode_as_everything(&bytes.into());
    }

    #[test]
    fn proptest_invariant_10_damaged_messages_never_panic(
        request in (record(), option::of(store_id())),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in any::<prop::sample::Index>(),
    ) {
        let (record, confirmed_below) = request;
        let mut bytes = ApplyRequest::new(record, confirmed_below).encode().to_vec();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        decode_as_everything(&bytes.into());
    }
}

#[test]
fn a_message_that_lacks_a_part_is_refused_by_name() {
    assert_eq!(LookupRequest::decode(Bytes::new()), Err(Malformed::Missing("parent")));
    assert_eq!(CmlRecord::decode(Bytes::new()), Err(Malformed::Missing("id")));
}

#[test]
fn a_lock_that_ends_before_it_begins_is_refused() {
    let range = LockRange::new(5, 9).unwrap();
    let good = UnlockRequest { fid: Fid::root(VolumeId(1)), owner: 1, range, except: Vec::new() }.encode();
    let at = good.windows(8).position(|window| window == 9u64.to_le_bytes()).unwrap();
    let mut bytes = good.to_vec();
    bytes[at] = 4;
    assert!(matches!(UnlockRequest::decode(bytes.into()), Err(Malformed::Invalid { field: "last", .. })));
}

#[test]
fn an_attribute_that_comes_twice_is_refused() {
    let mut xattrs = Xattrs::default();
    let name = XattrName::new(&b"user.a"[..]).unwrap();
    xattrs.set(name, XattrValue::default(), XattrMode::Either).unwrap();
    let twice = [xattrs.encode(), xattrs.encode()].concat();
    assert!(matches!(Xattrs::decode(twice.into()), Err(Malformed::Invalid { field: "xattrs", .. })));
}

/// Decodes the bytes of an empty file's status, mode 644, from before there were extended attributes.
#[test]
fn a_status_without_the_field_has_no_attributes() {
    let bytes: &[u8] = b"\x08\x01\x10\xa4\x03\x18\x01\x42\x00\x4a\x00\x52\x00\x5a\x00\x60\x01\x68\x01";
    let status = Status::decode(bytes.into()).unwrap();
    assert_eq!((status.mode.bits(), status.status_version, status.xattrs), (0o644, StatusVersion(1), None));
    assert_eq!(status.encode(), bytes);
}

#[test]
fn names_that_leave_their_directory_are_refused() {
    let parent = Fid::root(VolumeId(1));
    let good = LookupRequest { parent, name: Name::new(&b"ab"[..]).unwrap(), unanswered: Vec::new() }.encode();
    let at = good.windows(2).position(|window| window == b"ab").unwrap();
    for bad in [b"..", b"/x", b"x\0"] {
        let mut bytes = good.to_vec();
        bytes[at..at + 2].copy_from_slice(bad);
        assert!(matches!(LookupRequest::decode(bytes.into()), Err(Malformed::Invalid { field: "name", .. })));
    }
}
