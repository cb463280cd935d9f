//! Tests of directory operations against the reference model, and of the rules that the model does not show.

use std::collections::BTreeMap;

use mafs_durable::Kv;
use mafs_proto::call::ApplyReply;
use mafs_proto::{
    Base, ClientId, CmlOp, ContentHash, DataVersion, Fid, FsError, Kind, Mode, RenameMode, SetAttr, Uniquifier, VnodeId,
};
use proptest::prelude::*;

use super::model::{Model, Thing};
use super::{CLIENT, ROOT, VOLUME, World, attach, create, make_dir, name, store, time};
use crate::core::clients;
use crate::core::node::{Node, Place};
use crate::core::records::VolumeState;
use crate::core::tables;

/// One step of a random workload. Numbers choose among what there is, modulo its count.
#[derive(Clone, Debug)]
enum Step {
    Create { parent: usize, name: usize },
    MakeDir { parent: usize, name: usize },
    Link { parent: usize, name: usize, object: usize },
    Remove { entry: usize, wrong: bool },
    RemoveDir { entry: usize, wrong: bool },
    Rename { entry: usize, parent: usize, name: usize, mode: RenameMode, blind: bool },
    Store { object: usize, bytes: Vec<u8>, stale: bool },
    SetAttr { object: usize, mode: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..1000_usize;
    let mode = prop_oneof![
        3 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        1 => Just(RenameMode::Exchange)
    ];
    let rarely = || proptest::bool::weighted(0.1);
    let step = prop_oneof![
        3 => (number.clone(), number.clone()).prop_map(|(parent, name)| Step::Create { parent, name }),
        3 => (number.clone(), number.clone()).prop_map(|(parent, name)| Step::MakeDir { parent, name }),
        1 => (number.clone(), number.clone(), number.clone())
            .prop_map(|(parent, name, object)| Step::Link { parent, name, object }),
        2 => (number.clone(), rarely()).prop_map(|(entry, wrong)| Step::Remove { entry, wrong }),
        1 => (number.clone(), rarely()).prop_map(|(entry, wrong)| Step::RemoveDir { entry, wrong }),
        6 => (number.clone(), number.clone(), number.clone(), mode, rarely())
            .prop_map(|(entry, parent, name, mode, blind)| Step::Rename { entry, parent, name, mode, blind }),
        2 => (number.clone(), proptest::collection::vec(any::<u8>(), 0..20), rarely())
            .prop_map(|(object, bytes, stale)| Step::Store { object, bytes, stale }),
        1 => (number, 0..0o10000_u32).prop_map(|(object, mode)| Step::SetAttr { object, mode }),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn proptest_directories_behave_as_the_reference_model(steps in steps()) {
        let (mut world, mut model) = (World::new(), Model::new());
        for step in steps {
            let before = Snapshot::take(&world);
            let (expected, found) = run(&step, &mut world, &mut model, &before);
            let after = Snapshot::take(&world);
            match found {
                Ok(reply) => {
                    prop_assert_eq!(Ok(()), expected, "{:?}", step);
                    check_reply(&before, &after, &reply);
                }
                Err(error) => {
                    prop_assert_eq!(Err(error), expected, "{:?}", step);
                    prop_assert_eq!(&before, &after, "a refusal changes nothing: {:?}", step);
                }
            }
            check_tree(&world, &model, &after);
        }
    }
}

type Outcome = (Result<(), FsError>, Result<ApplyReply, FsError>);

fn run(step: &Step, world: &mut World, model: &mut Model, snapshot: &Snapshot) -> Outcome {
    let objects: Vec<Fid> = model.objects.keys().copied().collect();
    let directories: Vec<Fid> =
        objects.iter().copied().filter(|fid| model.kind(*fid) == Kind::Directory || fid.vnode.0 % 7 == 0).collect();
    let entries: Vec<(Fid, mafs_proto::Name, Fid)> = objects
        .iter()
        .filter_map(|fid| Some((*fid, model.entries(*fid).ok()?)))
        .flat_map(|(fid, entries)| entries.iter().map(move |(name, child)| (fid, name.clone(), *child)))
        .collect();
    let object = |index: usize| objects[index % objects.len()];
    let directory = |index: usize| directories[index % directories.len()];
    let entry = |index: usize, wrong: bool| match entries.len() {
        0 => (ROOT, label(index), ROOT),
        count => {
            let (parent, name, fid) = entries[index % count].clone();
            (parent, name, if wrong { object(index + 1) } else { fid })
        }
    };
    match step {
        Step::Create { parent, name } => {
            let (parent, name, fid) = (directory(*parent), label(*name), world.next_fid());
            let expected = model.make(parent, &name, fid, Thing::File(Vec::new()));
            let (kind, mode) = (Kind::File, Mode::from_bits(0o644));
            (expected, world.apply(CmlOp::Create { parent, name, fid, kind, mode, rdev: 0 }))
        }
        Step::MakeDir { parent, name } => {
            let (parent, name, fid) = (directory(*parent), label(*name), world.next_fid());
            let expected = model.make(parent, &name, fid, Thing::Directory(BTreeMap::new()));
            (expected, world.apply(CmlOp::MakeDir { parent, name, fid, mode: Mode::from_bits(0o755) }))
        }
        Step::Link { parent, name, object: index } => {
            let (parent, name, fid) = (directory(*parent), label(*name), object(*index));
            (model.link(parent, &name, fid), world.apply(CmlOp::Link { parent, name, fid }))
        }
        Step::Remove { entry: index, wrong } => {
            let (parent, name, fid) = entry(*index, *wrong);
            (model.remove(parent, &name, fid, Kind::File), world.apply(CmlOp::Remove { parent, name, fid }))
        }
        Step::RemoveDir { entry: index, wrong } => {
            let (parent, name, fid) = entry(*index, *wrong);
            (model.remove(parent, &name, fid, Kind::Directory), world.apply(CmlOp::RemoveDir { parent, name, fid }))
        }
        Step::Rename { entry: index, parent, name, mode, blind } => {
            let (from_parent, from_name, fid) = entry(*index, false);
            let (to_parent, to_name, mode) = (directory(*parent), label(*name), *mode);
            let target = model.entries(to_parent).ok().and_then(|entries| entries.get(&to_name).copied());
            let replaced = if *blind { Some(object(*name)) } else { target };
            let expected = model.rename((from_parent, &from_name), (to_parent, &to_name), fid, replaced, mode);
            let op = CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, mode };
            (expected, world.apply(op))
        }
        Step::Store { object: index, bytes, stale } => {
            let fid = object(*index);
            let version = snapshot.nodes[&fid].status.data_version;
            let base = if *stale { version.next() } else { version };
            (model.store(fid, bytes, *stale), world.store(fid, Base::Version(base), bytes))
        }
        Step::SetAttr { object: index, mode } => {
            let set = SetAttr { mode: Some(Mode::from_bits(*mode)), ..SetAttr::default() };
            (Ok(()), world.apply(CmlOp::SetAttr { fid: object(*index), set }))
        }
    }
}

/// Returns one of few names, so that they clash.
fn label(index: usize) -> mafs_proto::Name {
    name(["a", "b", "c", "d", "e"][index % 5])
}

/// Everything that an index holds of objects.
#[derive(Clone, PartialEq, Debug)]
struct Snapshot {
    nodes: BTreeMap<Fid, Node>,
    state: VolumeState,
}

impl Snapshot {
    fn take(world: &World) -> Self {
        let pairs = world.kv.scan(&tables::nodes(), None, usize::MAX).unwrap();
        let nodes = pairs.into_iter().map(|(key, value)| {
            let fid = tables::parse_fid(VOLUME, &key[1..]).unwrap();
            (fid, Node::decode(fid, value).unwrap())
        });
        Self { nodes: nodes.collect(), state: world.overlay().begin().state().unwrap() }
    }
}

/// Checks that the reply tells exactly what changed, and that every change steps its versions by one.
fn check_reply(before: &Snapshot, after: &Snapshot, reply: &ApplyReply) {
    assert_eq!(reply.change, before.state.change.next());
    assert_eq!(reply.change, after.state.change);
    let mut told: Vec<Fid> = reply.objects.iter().map(|object| object.fid).collect();
    told.sort_unstable();
    let mut all: Vec<Fid> = before.nodes.keys().chain(after.nodes.keys()).copied().collect();
    all.sort_unstable();
    all.dedup();
    let changed: Vec<Fid> = all.into_iter().filter(|fid| before.nodes.get(fid) != after.nodes.get(fid)).collect();
    assert_eq!(told, changed);
    for object in &reply.objects {
        if let Some(node) = after.nodes.get(&object.fid) {
            assert_eq!(object.status, node.status);
        } else {
            assert_eq!(object.status.nlink, 0);
        }
        if let Some(old) = before.nodes.get(&object.fid) {
            assert_eq!(object.status.status_version, old.status.status_version.next());
        }
    }
    let directories = changed.iter().filter_map(|fid| {
        let (old, new) = (before.nodes.get(fid)?, after.nodes.get(fid)?);
        let (old, new) = (old.is_directory().then_some(old.status.data_version)?, new.status.data_version);
        (old != new).then_some((*fid, old, new))
    });
    let told = reply.directories.iter().map(|change| (change.fid, change.before, change.after));
    let told: Vec<_> = told.collect();
    assert_eq!(told, directories.collect::<Vec<_>>());
    assert!(told.iter().all(|(_, before, after)| *after == before.next()));
}

/// Checks that the index holds the model's tree and nothing else.
fn check_tree(world: &World, model: &Model, snapshot: &Snapshot) {
    assert!(snapshot.nodes.keys().eq(model.objects.keys()), "{:?} {model:?}", snapshot.nodes.keys());
    let (mut bytes_total, mut entries_total, mut inline_total) = (0, 0, 0);
    for (fid, thing) in &model.objects {
        let node = &snapshot.nodes[fid];
        assert_eq!(node.status.nlink, model.nlink(*fid), "{fid}");
        match thing {
            Thing::Directory(entries) => {
                assert_eq!(node.status.size, entries.len() as u64);
                let pairs = world.kv.scan(&tables::entries(*fid), None, usize::MAX).unwrap();
                let found =
                    pairs.iter().map(|(key, value)| (key[13..].to_vec(), tables::parse_fid(VOLUME, value).unwrap()));
                assert!(found.eq(entries.iter().map(|(name, child)| (name.as_bytes().to_vec(), *child))));
                for child in entries.values().filter(|child| model.kind(**child) == Kind::Directory) {
                    assert_eq!(snapshot.nodes[child].parent, Some(*fid));
                }
                entries_total += entries.len();
            }
            Thing::File(bytes) => {
                assert_eq!(node.status.size, bytes.len() as u64);
                let content = node.content.unwrap();
                assert_eq!((content.hash, content.place), (ContentHash::of(bytes), Place::Index));
                let stored = world.kv.get(&tables::inline(*fid, node.status.data_version)).unwrap();
                assert_eq!(stored.unwrap_or_default(), *bytes);
                inline_total += usize::from(!bytes.is_empty());
                bytes_total += bytes.len();
            }
        }
    }
    assert_eq!(snapshot.state.objects, model.objects.len() as u64);
    assert_eq!(snapshot.state.used_bytes, bytes_total as u64);
    assert_eq!(world.kv.scan(b"d", None, usize::MAX).unwrap().len(), entries_total, "no entry of a gone directory");
    assert_eq!(world.kv.scan(b"c", None, usize::MAX).unwrap().len(), inline_total, "no content of a gone version");
}

#[test]
fn a_directory_does_not_replace_the_directory_it_leaves() {
    let mut world = World::new();
    let a = world.make_dir(ROOT, "a");
    let b = world.make_dir(a, "b");
    let op = CmlOp::Rename {
        from_parent: a,
        from_name: name("b"),
        to_parent: ROOT,
        to_name: name("a"),
        fid: b,
        replaced: Some(a),
        mode: RenameMode::Replace,
    };
    assert_eq!(world.apply(op), Err(FsError::NotEmpty));
}

#[test]
fn what_is_created_has_the_caller_as_owner_and_the_records_time() {
    let mut world = World::new();
    let fid = world.next_fid();
    let reply = world.apply(create(ROOT, "f", fid)).unwrap();
    let status = reply.objects.iter().find(|object| object.fid == fid).unwrap().status;
    assert_eq!((status.uid, status.gid, status.nlink, status.mode.bits()), (1000, 2000, 1, 0o644));
    assert_eq!([status.atime, status.mtime, status.ctime, status.crtime], [time(101); 4]);
    let root = reply.objects.iter().find(|object| object.fid == ROOT).unwrap().status;
    assert_eq!((root.mtime, root.ctime, root.atime, root.size), (time(101), time(101), time(1), 1));
}

/// The rename waits for the content of the file, and names that were made in the directory meanwhile come first.
#[test]
fn a_record_that_a_newer_one_of_its_client_has_overtaken_leaves_the_times_of_the_directory() {
    let mut world = World::new();
    let (early, late) = (world.next_fid(), world.next_fid());
    let overtaken = world.next_record(create(ROOT, "early", early));
    let reply = world.apply(create(ROOT, "late", late)).unwrap();
    let times = |reply: &ApplyReply| {
        let root = reply.objects.iter().find(|object| object.fid == ROOT).unwrap().status;
        (root.mtime, root.ctime, root.data_version)
    };
    assert_eq!(times(&reply), (time(102), time(102), DataVersion(2)));
    let reply = world.apply_record(overtaken, None).unwrap();
    assert_eq!(times(&reply), (time(102), time(102), DataVersion(3)));

    // Another client's clock may be behind, but a program that looks for changes must see that there was one.
    world.client = ClientId([8; 16]);
    let clients::Granted { incarnation, fids, .. } = attach(&world.kv, world.client);
    (world.incarnation, world.fids, world.seq) = (incarnation, fids, 0);
    let fid = world.next_fid();
    let reply = world.apply(create(ROOT, "other", fid)).unwrap();
    assert_eq!(times(&reply), (time(101), time(101), DataVersion(4)));
}

#[test]
fn a_store_sets_the_mtime_it_names_and_the_records_ctime() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    let reply = world.store(fid, Base::Version(DataVersion(1)), b"hello").unwrap();
    let status = reply.objects[0].status;
    assert_eq!((status.mtime, status.ctime, status.size), (time(5), time(102), 5));
    assert!(reply.directories.is_empty());
}

#[test]
fn invariant_9_a_store_from_another_version_is_refused() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    world.store(fid, Base::Version(DataVersion(1)), b"first").unwrap();
    assert_eq!(world.store(fid, Base::Version(DataVersion(1)), b"second"), Err(FsError::BaseChanged));
}

#[test]
fn a_store_may_be_based_on_the_record_that_made_the_present_version() {
    let mut world = World::new();
    let fid = world.next_fid();
    let made = world.next_record(create(ROOT, "f", fid));
    let base = made.id;
    world.apply_record(made, None).unwrap();
    let first = world.next_record(store(fid, Base::Record(base), b"x"));
    let next_base = first.id;
    world.apply_record(first, Some(b"x")).unwrap();
    assert_eq!(world.store(fid, Base::Record(base), b"y"), Err(FsError::BaseChanged));
    assert!(world.store(fid, Base::Record(next_base), b"z").is_ok());
}

#[test]
fn a_store_without_its_content_changes_nothing() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    let op = store(fid, Base::Version(DataVersion(1)), b"four");
    let record = world.next_record(op.clone());
    assert_eq!(world.apply_record(record, None), Err(FsError::Malformed));
    let record = world.next_record(op);
    assert_eq!(world.apply_record(record, Some(b"longer")), Err(FsError::Malformed));
}

#[test]
fn a_removed_file_takes_no_store() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    world.apply(CmlOp::Remove { parent: ROOT, name: name("f"), fid }).unwrap();
    assert_eq!(world.store(fid, Base::Version(DataVersion(1)), b"x"), Err(FsError::Stale));
}

#[test]
fn links_have_a_limit() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    let key = tables::node(fid);
    let mut node = Node::decode(fid, world.kv.get(&key).unwrap().unwrap()).unwrap();
    node.status.nlink = mafs_proto::Status::LINKS_MAX;
    let mut batch = mafs_durable::Batch::default();
    batch.put(key, node.encode(fid));
    world.kv.apply(&batch).unwrap();
    assert_eq!(world.apply(CmlOp::Link { parent: ROOT, name: name("g"), fid }), Err(FsError::TooManyLinks));
}

#[test]
fn a_fid_names_one_object_ever() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    world.apply(CmlOp::Remove { parent: ROOT, name: name("f"), fid }).unwrap();
    assert_eq!(world.apply(create(ROOT, "g", fid)), Err(FsError::FidNotGranted));
}

#[test]
fn only_granted_fids_name_new_objects() {
    let mut world = World::new();
    let other = super::attach(&world.kv, mafs_proto::ClientId([8; 16]));
    assert_eq!(world.apply(create(ROOT, "f", other.fids.first())), Err(FsError::FidNotGranted));
    let never = Fid { vnode: VnodeId(u64::MAX), ..ROOT };
    assert_eq!(world.apply(create(ROOT, "f", never)), Err(FsError::FidNotGranted));
    let other_life = Fid { unique: Uniquifier(2), ..world.fids.first() };
    assert_eq!(world.apply(make_dir(ROOT, "f", other_life)), Err(FsError::FidNotGranted));
    assert_eq!(world.apply(create(ROOT, "f", ROOT)), Err(FsError::FidNotGranted));
}

#[test]
fn grants_never_overlap() {
    let world = World::new();
    let again = super::attach(&world.kv, CLIENT);
    assert!(again.fids.first().vnode.0 >= world.fids.first().vnode.0 + world.fids.count());
    assert_eq!(again.incarnation.0, world.incarnation.0 + world.spare_lives + 1);
}

#[test]
fn objects_of_another_volume_are_refused() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    let foreign = Fid { volume: mafs_proto::VolumeId(9), ..ROOT };
    assert_eq!(world.apply(CmlOp::Link { parent: foreign, name: name("g"), fid }), Err(FsError::CrossVolume));
}

#[test]
fn a_file_that_is_given_away_loses_its_set_id_bits_and_a_directory_does_not() {
    let mut world = World::new();
    let (file, directory) = (world.create(ROOT, "f"), world.make_dir(ROOT, "d"));
    let mode = Some(Mode::from_bits(0o6775));
    let given = SetAttr { uid: Some(1), ..SetAttr::default() };
    let mut after = |fid, first, then| {
        world.apply(CmlOp::SetAttr { fid, set: first }).unwrap();
        world.apply(CmlOp::SetAttr { fid, set: then }).unwrap().objects[0].status.mode.bits()
    };
    let set_mode = SetAttr { mode, ..SetAttr::default() };
    assert_eq!(after(file, set_mode, given), 0o775);
    assert_eq!(after(file, set_mode, SetAttr { gid: Some(2), ..SetAttr::default() }), 0o775);
    assert_eq!(after(file, set_mode, SetAttr { mode, ..given }), 0o6775, "what is said is done");
    assert_eq!(after(directory, set_mode, given), 0o6775);
}
