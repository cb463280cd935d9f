//! Power cuts at every sync point: a workload over memory storage, the power cut at each sync in turn, the server
//! opened again on what survived.
//!
//! The clients' records are made beforehand, so every run sends the same bytes, and what must be found after a cut is
//! known from an undisturbed run: of each lane (a directory of its own, worked on in order) the state after some
//! number of its records, and at least after those that were acknowledged.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use mafs_arpc::Payload;
use mafs_proto::call::{ApplyReply, GetXattrsRequest};
use mafs_proto::{
    Base, CmlOp, CmlRecord, DataVersion, Fid, FidRange, Incarnation, Kind, Mode, Object, RenameMode, SetAttr, StoreId,
    VolumeId, XattrMode, XattrName, XattrValue, Xattrs,
};
use mafs_server::{MemoryStorage, Server};
use support::{ALICE, Client, create, make_dir, name, noise, open, record, store, whole};

/// A record and the content that goes with it.
type Step = (CmlRecord, Option<Bytes>);

/// All that a client can see below a lane, by path: objects, contents, extended attributes.
type Seen = BTreeMap<String, (Object, Option<Bytes>, Xattrs)>;

/// What an undisturbed run does: of each lane the state before and after each record, and its reply.
struct Expected {
    lanes: Vec<Vec<Step>>,
    states: Vec<Vec<Seen>>,
}

/// Which records are sent again after a crash.
enum Replay {
    /// All of them.
    All,
    /// A few before and a few after the last acknowledged one.
    Around,
}

#[test]
fn invariant_1_what_was_acknowledged_survives_a_power_cut_at_every_sync() {
    let expected = undisturbed(&[100, 100]);
    at_every_sync(&expected, |cut, storage, acknowledged| {
        check(&expected, &storage.crash(cut), acknowledged, &Replay::Around, cut);
    });
}

#[test]
fn invariant_2_what_was_not_acknowledged_is_applied_exactly_once_by_replay() {
    let expected = undisturbed(&[25, 25, 25, 25]);
    at_every_sync(&expected, |cut, storage, acknowledged| {
        check(&expected, &storage.crash_torn(cut), acknowledged, &Replay::All, cut);
    });
}

#[test]
fn invariant_4_no_file_is_torn_whatever_survives_of_unsynced_writes() {
    let expected = undisturbed(&[25, 25]);
    at_every_sync(&expected, |cut, storage, acknowledged| {
        for seed in 0..4 {
            check(&expected, &storage.crash_torn(seed * 1000 + cut), acknowledged, &Replay::Around, cut);
        }
    });
}

#[test]
fn invariant_1_what_was_acknowledged_survives_kill_at_any_moment() {
    let expected = undisturbed(&[60]);
    for stop in 0..=60 {
        let (storage, acknowledged) = on_runtime(async {
            let storage = MemoryStorage::new(1);
            let server = open(&storage);
            let client = Client::attached(&server, ALICE).await;
            let mut acknowledged = Vec::new();
            for step in &expected.lanes[0][..stop] {
                acknowledged.push(send(&client, step).await);
            }
            (storage, vec![acknowledged])
        });
        check(&expected, &storage.kill(stop as u64), &acknowledged, &Replay::Around, stop as u64);
    }
}

/// Runs a future in a runtime of its own, and kills all that is left in it.
fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

fn undisturbed(lengths: &[usize]) -> Expected {
    on_runtime(async {
        let storage = MemoryStorage::new(1);
        let server = open(&storage);
        let client = Client::attached(&server, ALICE).await;
        let attached = client.attached.clone().unwrap();
        let lanes: Vec<Vec<Step>> = lengths
            .iter()
            .enumerate()
            .map(|(lane, length)| Lane::new(lane, attached.fids, attached.incarnation).steps(*length))
            .collect();
        let mut states = Vec::new();
        for (lane, steps) in lanes.iter().enumerate() {
            let mut after = vec![Seen::new()];
            for step in steps {
                send(&client, step).await;
                after.push(see(&client, lane).await);
            }
            states.push(after);
        }
        Expected { lanes, states }
    })
}

/// Cuts the power at each sync of the workload in turn, until it ends before the cut.
fn at_every_sync(expected: &Expected, check: impl Fn(u64, &MemoryStorage, &[Vec<ApplyReply>])) {
    for cut in 0.. {
        let (storage, acknowledged) = run_until_cut(expected, cut);
        check(cut, &storage, &acknowledged);
        if !storage.memory_disk().frozen() {
            assert!(cut > 50, "the workload syncs");
            return;
        }
    }
}

/// Runs all lanes at once until the power is cut at sync number `cut`; returns the replies that had arrived by then.
fn run_until_cut(expected: &Expected, cut: u64) -> (MemoryStorage, Vec<Vec<ApplyReply>>) {
    on_runtime(async {
        let storage = MemoryStorage::new(1);
        storage.memory_disk().freeze_after_syncs(cut);
        let server = open(&storage);
        let client = Client::attached(&server, ALICE).await;
        let lanes = expected.lanes.iter().map(|steps| run_lane(&storage, &client, steps));
        let acknowledged = futures_join(lanes).await;
        (storage.clone(), acknowledged)
    })
}

async fn run_lane(storage: &MemoryStorage, client: &Client, steps: &[Step]) -> Vec<ApplyReply> {
    let mut acknowledged = Vec::new();
    for step in steps {
        let reply = send(client, step).await;
        if storage.memory_disk().frozen() {
            break;
        }
        acknowledged.push(reply);
    }
    acknowledged
}

/// Opens what survived, compares it with what must have, then replays.
fn check(expected: &Expected, storage: &MemoryStorage, acknowledged: &[Vec<ApplyReply>], replay: &Replay, cut: u64) {
    on_runtime(async {
        let server: Arc<Server> = open(storage);
        let client = Client::attached(&server, ALICE).await;
        for (lane, states) in expected.states.iter().enumerate() {
            let found = see(&client, lane).await;
            let known = acknowledged[lane].len();
            let matching = states.iter().skip(known).position(|state| *state == found);
            assert!(matching.is_some(), "cut {cut}, lane {lane}, {known} acknowledged: found {found:?}");
        }
        if client.incarnation() == Incarnation(1) {
            // The attach itself did not survive, so it was not acknowledged, and no record was made under it.
            assert!(acknowledged.iter().all(Vec::is_empty));
            return;
        }
        for (lane, steps) in expected.lanes.iter().enumerate() {
            let known = acknowledged[lane].len();
            let range = match replay {
                Replay::All => 0..steps.len(),
                Replay::Around => known.saturating_sub(5)..steps.len().min(known + 5),
            };
            for index in range.clone() {
                let reply = send(&client, &steps[index]).await;
                if let Some(before) = acknowledged[lane].get(index) {
                    assert_eq!(reply, *before, "cut {cut}: an acknowledged record is answered as before");
                }
            }
            assert_eq!(see(&client, lane).await, expected.states[lane][range.end], "cut {cut}, lane {lane}");
        }
    });
}

async fn send(client: &Client, (record, content): &Step) -> ApplyReply {
    let payload = content.as_deref().map_or(Payload::None, whole);
    client.apply_with(record.clone(), payload).await.unwrap_or_else(|refused| panic!("{record:?}: {refused:?}"))
}

/// Looks at everything below a lane's directory.
async fn see(client: &Client, lane: usize) -> Seen {
    let mut seen = Seen::new();
    let Some(top) = client.lookup(client.root(), &format!("lane{lane}")).await.unwrap() else { return seen };
    let mut to_visit = vec![(String::new(), top)];
    while let Some((path, object)) = to_visit.pop() {
        let content = match object.status.kind {
            Kind::Directory => {
                let page = client.read_dir(object.fid, None, 1000).await.unwrap();
                to_visit.extend(page.entries.into_iter().map(|entry| (format!("{path}/{}", entry.name), entry.object)));
                None
            }
            _ => Some(client.read(object.fid).await),
        };
        let xattrs = client
            .call(GetXattrsRequest { fid: object.fid, settled: false, unanswered: Vec::new() })
            .await
            .unwrap()
            .xattrs;
        seen.insert(path, (object, content, xattrs));
    }
    seen
}

/// All of `futures`, at the same time.
async fn futures_join<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Makes the records of a lane: a small tree that changes in every way.
struct Lane {
    number: u64,
    fids: FidRange,
    incarnation: Incarnation,
    seq: u64,
    random: u64,
    directories: Vec<(Fid, String)>,
    /// Directory, name, fid, and the record that made its present content.
    files: Vec<(Fid, String, Fid, StoreId)>,
    marked: BTreeSet<Fid>,
}

impl Lane {
    fn new(lane: usize, fids: FidRange, incarnation: Incarnation) -> Self {
        let number = lane as u64;
        let mut first = fids.first();
        first.vnode.0 += number * 256;
        let fids = FidRange::new(first, 256).unwrap();
        // Records of all lanes belong to one client: each lane takes its sequence numbers from a range of its own.
        Self {
            number,
            fids,
            incarnation,
            seq: number * 1000,
            random: number,
            directories: vec![],
            files: vec![],
            marked: BTreeSet::new(),
        }
    }

    fn steps(mut self, length: usize) -> Vec<Step> {
        let fid = self.fids.take().unwrap();
        let root = Fid::root(VolumeId(fid.volume.0));
        let mut steps = vec![self.step(make_dir(root, &format!("lane{}", self.number), fid), None)];
        self.directories.push((fid, String::new()));
        while steps.len() < length {
            let op = self.op();
            steps.extend(op.map(|(op, content)| self.step(op, content)));
        }
        steps
    }

    fn step(&mut self, op: CmlOp, content: Option<Bytes>) -> Step {
        self.seq += 1;
        let id = StoreId { client: ALICE, incarnation: self.incarnation, seq: self.seq };
        (record(id, op), content)
    }

    /// The id that the next record will have.
    fn next_id(&self) -> StoreId {
        StoreId { client: ALICE, incarnation: self.incarnation, seq: self.seq + 1 }
    }

    fn op(&mut self) -> Option<(CmlOp, Option<Bytes>)> {
        let (choice, label) = (self.pick(14), format!("n{}", self.seq));
        let at = self.pick(self.directories.len());
        let parent = self.directories[at].0;
        let file = (!self.files.is_empty()).then(|| self.pick(self.files.len()));
        let op = match (choice, file) {
            (0..=2, _) | (_, None) => {
                let fid = self.fids.take()?;
                self.files.push((parent, label.clone(), fid, self.next_id()));
                create(parent, &label, fid)
            }
            (3, Some(_)) if self.directories.len() < 5 => {
                let fid = self.fids.take()?;
                self.directories.push((fid, label.clone()));
                make_dir(parent, &label, fid)
            }
            (4, Some(file)) => {
                let (parent, label, fid, _) = self.files.swap_remove(file);
                self.files.retain(|(_, _, other, _)| *other != fid);
                CmlOp::Remove { parent, name: name(&label), fid }
            }
            (5..=6, Some(file)) => return self.rename(file, parent, &label),
            (7, Some(file)) => {
                let set = SetAttr { mode: Some(Mode::from_bits(0o600)), ..SetAttr::default() };
                CmlOp::SetAttr { fid: self.files[file].2, set }
            }
            (8, Some(file)) => self.set_xattr(self.files[file].2),
            (9, Some(_)) => self.mark(parent),
            (_, Some(file)) => return Some(self.store(file)),
        };
        Some((op, None))
    }

    fn rename(&mut self, file: usize, to_parent: Fid, label: &str) -> Option<(CmlOp, Option<Bytes>)> {
        let target = self.pick(self.files.len());
        let (from_parent, from_name, fid, made) = self.files[file].clone();
        let (to_parent, to_name, replaced) = match self.pick(2) {
            0 if target != file => {
                let (parent, name, fid, _) = self.files[target].clone();
                (parent, name, Some(fid))
            }
            _ => (to_parent, label.to_owned(), None),
        };
        self.files[file] = (to_parent, to_name.clone(), fid, made);
        if replaced.is_some() {
            self.files.remove(target);
        }
        let (from_name, to_name) = (name(&from_name), name(&to_name));
        let mode = RenameMode::Replace;
        Some((CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, mode }, None))
    }

    /// Sets the mark of a directory, or removes it.
    fn mark(&mut self, fid: Fid) -> CmlOp {
        let name = XattrName::new(&b"user.mark"[..]).unwrap();
        match self.marked.insert(fid) {
            true => CmlOp::SetXattr { fid, name, value: XattrValue::default(), mode: XattrMode::Create },
            false => {
                self.marked.remove(&fid);
                CmlOp::RemoveXattr { fid, name }
            }
        }
    }

    /// Sets one of three attributes.
    fn set_xattr(&mut self, fid: Fid) -> CmlOp {
        let name = XattrName::new(format!("user.{}", self.pick(3)).into_bytes()).unwrap();
        let value = XattrValue::new(noise(self.seq, [0, 10, 9_000][self.pick(3)])).unwrap();
        CmlOp::SetXattr { fid, name, value, mode: XattrMode::Either }
    }

    fn store(&mut self, file: usize) -> (CmlOp, Option<Bytes>) {
        let size = [0, 10, 4000, 16_384, 16_385, 40_000][self.pick(6)];
        let next = self.next_id();
        let (_, _, fid, made) = &mut self.files[file];
        let op = store(*fid, Base::Record(std::mem::replace(made, next)), size as u64);
        (op, Some(noise(next.seq, size)))
    }

    /// A number below `count`, the same in every run.
    fn pick(&mut self, count: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.random >> 33) % count as u64).unwrap()
    }
}

#[test]
fn the_workload_is_worth_its_name() {
    let expected = undisturbed(&[200]);
    let count = |is: fn(&CmlOp) -> bool| expected.lanes[0].iter().filter(|(record, _)| is(&record.op)).count();
    assert!(count(|op| matches!(op, CmlOp::Rename { replaced: Some(_), .. })) > 3);
    assert!(count(|op| matches!(op, CmlOp::Store { size: 16_385.., .. })) > 10);
    assert!(count(|op| matches!(op, CmlOp::Remove { .. })) > 5);
    assert!(count(|op| matches!(op, CmlOp::SetXattr { .. })) > 10);
    assert!(count(|op| matches!(op, CmlOp::RemoveXattr { .. })) > 2);
    let last = expected.states[0].last().unwrap();
    assert!(last.values().any(|(object, ..)| object.status.data_version > DataVersion(2)));
}
