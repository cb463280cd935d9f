//! Tests of removals without a connection: most of what others have made goes to the trash, all else goes.

use mafs_durable::Kv;
use mafs_proto::call::{ApplyReply, ApplyRequest, ConflictsRequest};
use mafs_proto::{
    Base, ClientId, CmlOp, CmlRecord, Conflict, ConflictKind, DataVersion, Fid, FsError, Mode, Outcome, Removals,
    Removed, RenameMode, SetAttr, StoreId,
};

use super::{CLIENT, ROOT, World, attach, clients, name};
use crate::core::{conflicts, tables};

const OTHER: ClientId = ClientId([9; 16]);
/// State of a file as a client knew it that has removed it without a connection.
const ALONE: Removed = Removed { version: DataVersion(1), alone: true };

/// A volume in which one client has made files, and another removes some without a connection.
struct Gone {
    world: World,
    /// Number of removals that the other says there are, and the last of them.
    count: u64,
    up_to: u64,
}

impl Gone {
    /// Makes the volume. Returns what the first client makes, too.
    fn new<T>(make: impl FnOnce(&mut World) -> T) -> (Self, T) {
        let mut world = World::new();
        let made = make(&mut world);
        let clients::Granted { incarnation, fids, .. } = attach(&world.kv, OTHER);
        (world.client, world.incarnation, world.fids, world.seq) = (OTHER, incarnation, fids, 0);
        (Self { world, count: 0, up_to: u64::MAX }, made)
    }

    fn request(&mut self, op: CmlOp, path: &[&str]) -> ApplyRequest {
        let record = self.world.next_record(op);
        let record = CmlRecord { removes: Some(ALONE), ..record };
        let up_to = StoreId { seq: self.up_to, ..record.id };
        let path = path.iter().map(|text| name(text)).collect();
        let removals = Some(Removals { count: self.count, up_to, path });
        ApplyRequest { comes_again: true, removals, ..ApplyRequest::new(record, None) }
    }

    fn remove(&mut self, op: CmlOp, path: &[&str]) -> Result<ApplyReply, FsError> {
        let request = self.request(op, path);
        self.world.apply_request(&request, None)
    }

    fn remove_files(&mut self, directory: Fid, files: &[Fid], path: &[&str]) {
        for (number, file) in files.iter().enumerate() {
            self.remove(remove(directory, &format!("f{number}"), *file), path).unwrap();
        }
    }

    /// Finds the object that a path means.
    fn find(&self, path: &str) -> Option<Fid> {
        let overlay = self.world.overlay();
        let transaction = overlay.begin();
        path.split('/').try_fold(ROOT, |at, text| transaction.entry(at, &name(text)).unwrap())
    }

    fn is_there(&self, fid: Fid) -> bool {
        self.world.overlay().begin().node(fid).is_ok()
    }

    fn conflicts(&self) -> Vec<Conflict> {
        conflicts::page(&self.world.overlay(), &ConflictsRequest::default()).unwrap().conflicts
    }

    /// Checks that objects and their links are counted as they are.
    fn check(&self) {
        let overlay = self.world.overlay();
        let transaction = overlay.begin();
        let nodes = self.world.kv.scan(&tables::nodes(), None, usize::MAX).unwrap();
        assert_eq!(transaction.state().unwrap().objects, nodes.len() as u64);
        let (mut left, mut found) = (vec![ROOT], 0);
        while let Some(at) = left.pop() {
            found += 1;
            let node = transaction.node(at).unwrap();
            if node.is_directory() {
                let entries = self.world.kv.scan(&tables::entries(at), None, usize::MAX).unwrap();
                assert_eq!(node.status.size, entries.len() as u64);
                let below = |bytes: &[u8]| tables::parse_fid(ROOT.volume, bytes).unwrap();
                left.extend(entries.iter().map(|(_, value)| below(value)));
            }
        }
        assert_eq!(found, nodes.len(), "all of it is below the root");
    }
}

fn remove(parent: Fid, text: &str, fid: Fid) -> CmlOp {
    CmlOp::Remove { parent, name: name(text), fid }
}

fn remove_dir(parent: Fid, text: &str, fid: Fid) -> CmlOp {
    CmlOp::RemoveDir { parent, name: name(text), fid }
}

fn files(world: &mut World, directory: Fid, count: usize) -> Vec<Fid> {
    (0..count).map(|number| world.create(directory, &format!("f{number}"))).collect()
}

const MINUTE: &str = ".mafs-trash/laptop/1970-01-01 00.01";

#[test]
fn invariant_9_most_of_what_others_have_made_goes_to_the_trash() {
    let (mut gone, (a, b, in_a, in_b)) = Gone::new(|world| {
        let a = world.make_dir(ROOT, "a");
        let b = world.make_dir(a, "b");
        let set = SetAttr { mode: Some(Mode::from_bits(0o700)), uid: Some(77), ..SetAttr::default() };
        world.apply(CmlOp::SetAttr { fid: b, set }).unwrap();
        let (in_a, in_b) = (files(world, a, 1000), files(world, b, 900));
        world.store(in_b[0], Base::Version(DataVersion(1)), b"precious").unwrap();
        (a, b, in_a, in_b)
    });
    let bytes = gone.world.overlay().begin().state().unwrap().used_bytes;
    gone.count = 1501;
    gone.remove_files(a, &in_a[..600], &["a"]);
    // Others have made another version of the first file in `b` than this client knew.
    assert_eq!(gone.remove(remove(b, "f0", in_b[0]), &["a", "b"]), Err(FsError::BaseChanged));
    let mut request = gone.request(remove(b, "f0", in_b[0]), &["a", "b"]);
    request.record.removes = Some(Removed { version: DataVersion(2), ..ALONE });
    let reply = gone.world.apply_request(&request, None).unwrap();
    let Outcome::Trashed(placed) = &reply.outcome else { panic!("{reply:?}") };
    assert_eq!(placed.iter().map(|place| place.name.to_string()).collect::<Vec<_>>(), ["b", "f0"]);
    let size = gone.world.kv.scan(b"", None, usize::MAX).unwrap().len();
    assert_eq!(gone.world.apply_request(&request, None).as_ref(), Ok(&reply), "it happens once");
    assert_eq!(gone.world.kv.scan(b"", None, usize::MAX).unwrap().len(), size);
    for (number, file) in in_b.iter().enumerate().skip(1) {
        gone.remove(remove(b, &format!("f{number}"), *file), &["a", "b"]).unwrap();
    }
    gone.remove(remove_dir(a, "b", b), &["a"]).unwrap();

    assert_eq!(gone.find(&format!("{MINUTE}/a/b/f0")), Some(in_b[0]));
    assert_eq!(gone.find(&format!("{MINUTE}/a/f599")), Some(in_a[599]));
    assert_eq!((gone.find("a/b"), gone.find("a/f599"), gone.find("a/f600")), (None, None, Some(in_a[600])));
    let overlay = gone.world.overlay();
    let transaction = overlay.begin();
    assert!(transaction.get(&tables::inline(in_b[0], DataVersion(2))).unwrap().is_some(), "with what it holds");
    assert_eq!(transaction.state().unwrap().used_bytes, bytes);
    let stand_in = transaction.node(gone.find(&format!("{MINUTE}/a/b")).unwrap()).unwrap().status;
    assert_eq!((stand_in.mode, stand_in.uid), (Mode::from_bits(0o700), 77), "nobody may read more than before");
    let [conflict] = &gone.conflicts()[..] else { panic!("{:?}", gone.conflicts()) };
    assert_eq!((conflict.kind, conflict.client), (ConflictKind::Trash, OTHER));
    assert_eq!(conflict.place.name, name("1970-01-01 00.01"));
    assert_eq!(conflict.mine_now.as_ref().map(|object| object.fid), gone.find(MINUTE));
    gone.check();
}

#[test]
fn so_few_removals_or_less_than_half_are_done() {
    for (made, count) in [(1000, 1000), (3100, 1500)] {
        let (mut gone, all) = Gone::new(|world| files(world, ROOT, made));
        let removed = &all[..count];
        gone.count = removed.len() as u64;
        gone.remove_files(ROOT, removed, &[]);
        assert!(!removed.iter().any(|file| gone.is_there(*file)));
        assert_eq!((gone.find(".mafs-trash"), gone.conflicts()), (None, vec![]));
        gone.check();
    }
}

#[test]
fn a_client_removes_what_it_has_made_for_good() {
    let (mut gone, theirs) = Gone::new(|world| files(world, ROOT, 1500));
    let directory = gone.world.make_dir(ROOT, "own");
    let own = files(&mut gone.world, directory, 1500);
    gone.count = 3001;
    gone.remove_files(directory, &own, &["own"]);
    gone.remove(remove_dir(ROOT, "own", directory), &[]).unwrap();
    gone.remove_files(ROOT, &theirs, &[]);
    assert!(!own.iter().any(|file| gone.is_there(*file)) && theirs.iter().all(|file| gone.is_there(*file)));
    assert_eq!(gone.find(&format!("{MINUTE}/own")), None);
    gone.check();
    // Few objects of others are not most of them, however many it removes of its own.
    let (mut gone, theirs) = Gone::new(|world| files(world, ROOT, 900));
    gone.count = 3000;
    gone.remove_files(ROOT, &theirs, &[]);
    assert_eq!(gone.find(".mafs-trash"), None);
}

#[test]
fn what_follows_is_as_the_first_was_however_few_are_left() {
    let (mut gone, all) = Gone::new(|world| files(world, ROOT, 2000));
    (gone.count, gone.up_to) = (1500, 1500);
    gone.remove_files(ROOT, &all[..800], &[]);
    // The client was killed, and knows of those removals that the server lacks.
    gone.count = 700;
    for (number, file) in all.iter().enumerate().take(1500).skip(800) {
        gone.remove(remove(ROOT, &format!("f{number}"), *file), &[]).unwrap();
    }
    assert!(all[..1500].iter().all(|file| gone.is_there(*file)));
    // Removals that come later, or while it is connected, are another matter.
    (gone.count, gone.up_to) = (1, 1501);
    gone.remove(remove(ROOT, "f1500", all[1500]), &[]).unwrap();
    gone.world.apply(remove(ROOT, "f1501", all[1501])).unwrap();
    assert!(!gone.is_there(all[1500]) && !gone.is_there(all[1501]));
    gone.check();
}

#[test]
fn less_than_half_stays_that_when_the_rest_is_removed_in_two_parts() {
    let (mut gone, all) = Gone::new(|world| files(world, ROOT, 3100));
    (gone.count, gone.up_to) = (1500, 1500);
    gone.remove_files(ROOT, &all[..1500], &[]);
    assert_eq!(gone.find(".mafs-trash"), None);
    assert!(!all[..1500].iter().any(|file| gone.is_there(*file)));
}

#[test]
fn the_trash_is_emptied_like_any_directory_and_restored_from() {
    let (mut gone, all) = Gone::new(|world| files(world, ROOT, 1600));
    gone.count = 1500;
    gone.remove_files(ROOT, &all[..1500], &[]);
    let trash = gone.find(MINUTE).unwrap();
    let back = |number: usize| CmlOp::Rename {
        from_parent: trash,
        from_name: name(&format!("f{number}")),
        to_parent: ROOT,
        to_name: name("back"),
        fid: all[number],
        replaced: None,
        mode: RenameMode::Replace,
    };
    gone.world.apply(back(7)).unwrap();
    assert_eq!(gone.find("back"), Some(all[7]));
    // One is removed while connected, one without a connection.
    gone.world.apply(remove(trash, "f0", all[0])).unwrap();
    gone.remove(remove(trash, "f1", all[1]), &[".mafs-trash", "laptop", "1970-01-01 00.01"]).unwrap();
    assert!(!gone.is_there(all[0]) && !gone.is_there(all[1]));
    for number in (2..1500).filter(|number| *number != 7) {
        gone.world.apply(remove(trash, &format!("f{number}"), all[number])).unwrap();
    }
    let above = gone.find(".mafs-trash/laptop").unwrap();
    gone.world.apply(remove_dir(above, "1970-01-01 00.01", trash)).unwrap();
    assert_eq!(gone.conflicts(), vec![]);
    gone.check();
}

#[test]
fn equal_names_have_numbers_and_other_names_stay() {
    let (mut gone, (all, twice, empty)) = Gone::new(|world| {
        let all = files(world, ROOT, 1600);
        world.apply(CmlOp::Link { parent: ROOT, name: name("again"), fid: all[1] }).unwrap();
        // Somebody has a file of this name.
        world.create(ROOT, ".mafs-trash");
        let directory = world.make_dir(ROOT, "empty");
        (all, world.create(ROOT, "twice"), directory)
    });
    gone.count = 1500;
    gone.remove(remove(ROOT, "twice", twice), &[]).unwrap();
    let moved = CmlOp::Rename {
        from_parent: ROOT,
        from_name: name("f0"),
        to_parent: ROOT,
        to_name: name("twice"),
        fid: all[0],
        replaced: None,
        mode: RenameMode::Replace,
    };
    gone.world.apply(moved).unwrap();
    gone.remove(remove(ROOT, "twice", all[0]), &[]).unwrap();
    gone.remove(remove(ROOT, "f1", all[1]), &[]).unwrap();
    gone.remove(remove_dir(ROOT, "empty", empty), &[]).unwrap();
    let minute = MINUTE.replace(".mafs-trash", ".mafs-trash (2)");
    let found = |text: &str| gone.find(&format!("{minute}/{text}"));
    assert_eq!((found("twice"), found("twice (2)")), (Some(twice), Some(all[0])));
    assert_eq!((found("f1"), gone.find("again"), found("empty")), (None, Some(all[1]), Some(empty)));
    gone.check();
}

#[test]
fn a_path_that_the_client_does_not_know_is_no_matter() {
    let (mut gone, (directory, all)) = Gone::new(|world| {
        let directory = world.make_dir(ROOT, "private");
        let set = SetAttr { mode: Some(Mode::from_bits(0o700)), ..SetAttr::default() };
        world.apply(CmlOp::SetAttr { fid: directory, set }).unwrap();
        (directory, files(world, directory, 1600))
    });
    gone.count = 1500;
    gone.remove(remove(directory, "f0", all[0]), &[]).unwrap();
    gone.remove(remove(directory, "f1", all[1]), &["was", "elsewhere"]).unwrap();
    for (path, file) in [("unnamed/f0", all[0]), ("elsewhere/f1", all[1])] {
        assert_eq!(gone.find(&format!("{MINUTE}/{path}")), Some(file));
        let (above, _) = path.split_once('/').unwrap();
        let above = gone.find(&format!("{MINUTE}/{above}")).unwrap();
        let mode = gone.world.overlay().begin().node(above).unwrap().status.mode;
        assert_eq!(mode, Mode::from_bits(0o700), "nobody may read more than before");
    }
    gone.check();
}

#[test]
fn invariant_10_removals_that_make_no_sense_are_refused() {
    let (mut gone, all) = Gone::new(|world| files(world, ROOT, 3));
    gone.count = u64::MAX;
    let request = gone.request(remove(ROOT, "f0", all[0]), &[]);
    let removals = request.removals.clone().unwrap();
    for up_to in [StoreId { client: CLIENT, ..removals.up_to }, StoreId { seq: 0, ..removals.up_to }] {
        let removals = Some(Removals { up_to, ..removals.clone() });
        let request = ApplyRequest { removals, ..request.clone() };
        assert_eq!(gone.world.apply_request(&request, None), Err(FsError::Malformed));
    }
    assert!(gone.world.apply_request(&request, None).is_ok());
    assert!(!gone.is_there(all[0]), "three files are not many");
    let (mut gone, (directory, all)) = Gone::new(|world| {
        let directory = (0..300).fold(ROOT, |at, _| world.make_dir(at, "x"));
        (directory, files(world, directory, 1600))
    });
    gone.count = u64::MAX;
    let reply = gone.remove(remove(directory, "f0", all[0]), &["x"; 256]).unwrap();
    let Outcome::Trashed(placed) = &reply.outcome else { panic!("{reply:?}") };
    assert_eq!(placed.len(), Outcome::PLACED_MAX);
    gone.check();
}
