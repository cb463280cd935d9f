//! Tests of which record is sent when, and which may still change.

use mafs_proto::{Base, ClientId, DataVersion, Fid, Incarnation, Mode, Name, Timestamp, VnodeId, VolumeId};
use proptest::prelude::*;

use super::under_way::{SMALL_MAX, STORE_BYTES_MAX};
use super::*;
use crate::core::outstanding::Outstanding;

pub(super) fn fid(vnode: u64) -> Fid {
    Fid { vnode: VnodeId(vnode), ..Fid::root(VolumeId(1)) }
}

pub(super) fn name(number: u64) -> Name {
    Name::new(format!("n{number}")).unwrap()
}

pub(super) fn create(parent: u64, vnode: u64) -> CmlOp {
    let mode = Mode::from_bits(0o644);
    CmlOp::Create { parent: fid(parent), name: name(vnode), fid: fid(vnode), kind: Kind::File, mode, rdev: 0 }
}

fn make_dir(parent: u64, vnode: u64) -> CmlOp {
    CmlOp::MakeDir { parent: fid(parent), name: name(vnode), fid: fid(vnode), mode: Mode::from_bits(0o755) }
}

pub(super) fn store(vnode: u64, size: u64) -> CmlOp {
    CmlOp::Store { fid: fid(vnode), base: Base::Version(DataVersion(1)), size, mtime: Timestamp::default() }
}

pub(super) struct Log {
    pub(super) outstanding: Outstanding,
    pub(super) queue: Queue,
}

impl Log {
    pub(super) fn new() -> Self {
        let mut outstanding = Outstanding::new(ClientId([1; 16]), Incarnation(1));
        outstanding.begin_life(Incarnation(2));
        Self { outstanding, queue: Queue::default() }
    }

    pub(super) fn push(&mut self, op: CmlOp) -> StoreId {
        let (record, unlisted) = self.outstanding.begin_queued((op, None), Timestamp::default(), (0, 0));
        let id = record.id;
        self.queue.push(Queued { record, kind: Kind::File, replaced: None }, &unlisted);
        id
    }

    pub(super) fn answer(&mut self, id: StoreId) {
        self.outstanding.end(id);
        assert!(self.queue.remove(id).is_some());
    }

    pub(super) fn poll_all(&mut self) -> Vec<StoreId> {
        std::iter::from_fn(|| self.queue.poll_next()).map(|polled| polled.record.id).collect()
    }
}

#[test]
fn records_are_sent_while_those_they_depend_on_are_under_way() {
    let mut log = Log::new();
    let ids = [log.push(make_dir(1, 10)), log.push(create(10, 11)), log.push(store(11, 9))];
    assert_eq!(log.poll_all(), ids);
    assert!(log.queue.poll_next().is_none());
}

#[test]
fn what_depends_on_a_refused_record_waits_until_that_is_answered() {
    let mut log = Log::new();
    let ids = [log.push(make_dir(1, 10)), log.push(create(10, 11)), log.push(create(1, 12))];
    assert_eq!(log.poll_all(), ids);
    log.queue.postpone(ids[0], true);
    log.queue.postpone(ids[1], true);
    assert_eq!(log.poll_all(), ids[..1]);
    log.answer(ids[0]);
    assert_eq!(log.poll_all(), ids[1..2]);
}

#[test]
fn a_broken_connection_has_records_sent_again_in_order() {
    let mut log = Log::new();
    let ids = [log.push(make_dir(1, 10)), log.push(create(10, 11)), log.push(create(10, 12))];
    assert_eq!(log.poll_all(), ids);
    for id in [ids[2], ids[0], ids[1]] {
        log.queue.postpone(id, false);
    }
    assert_eq!(log.poll_all(), ids);
}

#[test]
fn what_holds_a_record_up_is_known_while_it_waits() {
    let mut log = Log::new();
    let (first, second) = (log.push(store(20, 100)), log.push(store(20, 100)));
    assert_eq!(log.queue.held_up_by(second), [first], "it waits to be sent");
    assert_eq!(log.poll_all(), [first]);
    assert_eq!(log.queue.held_up_by(second), [first], "the server takes one content of a file at a time");
    log.answer(first);
    assert_eq!(log.queue.held_up_by(second), []);
    assert_eq!(log.poll_all(), [second]);
    let (made, below) = (log.push(make_dir(1, 30)), log.push(make_dir(30, 31)));
    assert_eq!(log.poll_all(), [made, below]);
    assert_eq!(log.queue.held_up_by(below), [], "it is under way");
    for id in [made, below] {
        log.queue.postpone(id, true);
    }
    assert_eq!(log.poll_all(), [made]);
    assert_eq!(log.queue.held_up_by(below), [made], "one that was refused goes alone");
}

#[test]
fn stores_under_way_are_bounded_and_small_records_pass_them() {
    let mut log = Log::new();
    let big: Vec<_> = (0..3).map(|at| log.push(store(20 + at, STORE_BYTES_MAX))).collect();
    let small = log.push(create(1, 50));
    assert_eq!(log.poll_all(), [big[0], small]);
    log.answer(big[0]);
    assert_eq!(log.poll_all(), big[1..2]);
    let mut many = Log::new();
    for at in 0..1000 {
        many.push(create(1, 100 + at));
    }
    assert_eq!(many.poll_all().len(), SMALL_MAX);
}

#[test]
fn a_file_is_stored_once_at_a_time() {
    let mut log = Log::new();
    let ids = [log.push(store(20, 5)), log.push(store(20, 6))];
    assert_eq!(log.poll_all(), ids[..1]);
    log.answer(ids[0]);
    assert_eq!(log.poll_all(), ids[1..]);
}

#[test]
fn a_content_too_is_moot_when_the_last_name_goes_but_stays_in_the_log() {
    let mut log = Log::new();
    let (stored, made) = (log.push(store(20, 5)), log.push(create(1, 50)));
    assert_eq!(log.queue.note_moot(&[stored, made]), [made]);
    assert!(log.queue.is_moot(stored) && log.queue.is_moot(made));
}

#[test]
fn only_what_was_never_sent_is_changed() {
    let mut log = Log::new();
    let id = log.push(store(20, 5));
    assert!(log.queue.rewritable(id).is_some() && log.queue.is_unsent(id));
    assert!(log.queue.poll_next().is_some());
    assert!(log.queue.rewritable(id).is_some(), "its content may still change");
    let mut record = log.queue.get(id).unwrap().record.clone();
    record.op = store(20, 7);
    log.queue.rewrite(record.clone());
    assert_eq!(log.queue.under_way.bytes, 7);
    assert_eq!(log.queue.freeze(id), Some(record));
    assert!(log.queue.rewritable(id).is_none() && log.queue.is_frozen(id));
    log.answer(id);
    assert_eq!(log.queue.under_way.bytes, 0);
}

#[test]
fn a_record_that_another_waits_for_is_not_changed() {
    let mut log = Log::new();
    let (first, second) = (log.push(store(20, 5)), log.push(store(20, 6)));
    assert!(log.queue.rewritable(first).is_none() && log.queue.rewritable(second).is_some());
}

#[test]
fn a_record_goes_with_its_place_in_those_that_name_it_unless_one_was_sent() {
    let mut log = Log::new();
    let content = log.push(store(20, 5));
    let changed = log.push(CmlOp::SetAttr { fid: fid(20), set: mafs_proto::SetAttr::default() });
    let detached = log.queue.detach(content).unwrap();
    assert_eq!(detached.iter().map(|queued| queued.record.id).collect::<Vec<_>>(), [changed]);
    assert_eq!(detached[0].record.depends_on, []);
    assert!(!log.queue.contains(content));
    assert_eq!(log.poll_all(), [changed]);
    let (made, content) = (log.push(create(1, 30)), log.push(store(30, 6)));
    assert_eq!(log.poll_all(), [made, content]);
    assert!(log.queue.detach(made).is_none());
    let contents = [7, 8].map(|size| log.push(store(40, size)));
    assert!(log.queue.detach(contents[0]).is_none(), "the next is behind others by way of it");
    assert!(contents.iter().rev().all(|content| log.queue.detach(*content).is_some()));
}

/// Otherwise others would find an empty file by that name, and nothing of what it meant before.
#[test]
fn a_content_that_is_given_a_name_is_not_dropped_though_it_is_removed_later() {
    let mut log = Log::new();
    let content = log.push(store(20, 5));
    let rename = CmlOp::Rename {
        from_parent: fid(1),
        from_name: name(20),
        to_parent: fid(1),
        to_name: name(21),
        fid: fid(20),
        replaced: Some(fid(21)),
        mode: mafs_proto::RenameMode::Replace,
    };
    let renamed = log.push(rename);
    assert!(log.queue.detach(content).is_none());
    assert_eq!(log.poll_all(), [content, renamed]);
}

proptest! {
    /// Nothing is sent before what it depends on is answered or under way, whatever is sent, refused, lost and
    /// answered; and everything is sent in the end. A caller that asks at every change whether it is held up hears the
    /// same as one that asks once.
    #[test]
    fn proptest_nothing_overtakes_what_it_depends_on(
        ops in proptest::collection::vec((0u64..4, 0u64..6), 1..40),
        steps in proptest::collection::vec((0usize..5, any::<prop::sample::Index>()), 0..200),
    ) {
        let mut log = Log::new();
        for (kind, vnode) in ops {
            log.push(match kind {
                0 => create(10 + vnode % 3, 20 + vnode),
                1 => make_dir(1, 10 + vnode),
                _ => store(20 + vnode, 1000 * vnode),
            });
        }
        let all: Vec<StoreId> = log.queue.list(None, usize::MAX).iter().map(|listed| listed.id).collect();
        let mut asking: Vec<_> = all.chunks(5).map(|ids| (ids, HeldUp::new(ids.to_vec()))).collect();
        let mut under_way: Vec<StoreId> = Vec::new();
        let settle = |log: &mut Log, under_way: &mut Vec<StoreId>, what: usize, at: usize| {
            let id = under_way.remove(at);
            match what {
                1 => log.answer(id),
                2 => log.queue.postpone(id, true),
                3 => log.queue.postpone_busy(id),
                _ => log.queue.postpone(id, false),
            }
        };
        for (what, at) in steps {
            if what == 0 || under_way.is_empty() {
                if let Some(Polled { record, .. }) = log.queue.poll_next() {
                    for before in &record.depends_on {
                        prop_assert!(!log.queue.contains(*before) || under_way.contains(before));
                    }
                    under_way.push(record.id);
                }
            } else {
                let at = at.index(under_way.len());
                settle(&mut log, &mut under_way, what, at);
            }
            for (ids, held_up) in &mut asking {
                prop_assert_eq!(held_up.is_so(&log.queue), log.queue.is_held_up(ids));
            }
        }
        while log.queue.len() > 0 {
            under_way.extend(log.poll_all());
            prop_assert!(!under_way.is_empty(), "something waits for ever");
            under_way.drain(..).for_each(|id| log.answer(id));
        }
    }
}

#[test]
fn what_was_refused_has_had_the_servers_word_until_it_changes() {
    let mut log = Log::new();
    let (refused, other) = (log.push(store(5, 70)), log.push(store(6, 30)));
    assert_eq!(log.queue.waiting_bytes(), 100);
    for _ in 0..2 {
        assert!(log.poll_all().contains(&refused));
        log.queue.postpone(refused, true);
        assert_eq!(log.queue.waiting_bytes(), 30);
    }
    let before = log.queue.get(refused).unwrap().record.clone();
    log.queue.rewrite(CmlRecord { op: store(5, 50), ..before });
    assert_eq!(log.queue.waiting_bytes(), 80);
    assert!(log.poll_all().contains(&refused));
    log.queue.postpone(refused, true);
    log.answer(refused);
    assert_eq!(log.queue.waiting_bytes(), 30);
    log.answer(other);
    assert_eq!(log.queue.waiting_bytes(), 0);
}

#[test]
fn what_is_held_back_is_sent_when_somebody_needs_it() {
    let held = || {
        let mut log = Log::new();
        let id = log.push(store(11, 9));
        log.queue.hold_back(id);
        assert!(log.queue.poll_next().is_none());
        (log, id)
    };
    let (mut log, id) = held();
    log.queue.let_go(id);
    assert_eq!(log.poll_all(), [id]);
    let (mut log, id) = held();
    log.queue.raise(&[id]);
    assert_eq!(log.poll_all(), [id]);
    let (mut log, id) = held();
    log.push(create(1, 12));
    assert_eq!(log.poll_all().len(), 1, "what does not depend on it");
    log.outstanding.raise_barrier([id]);
    let behind = log.push(create(1, 13));
    assert_eq!(log.poll_all(), [id, behind]);
}

#[test]
fn what_was_refused_holds_up_what_depends_on_it_and_nothing_else() {
    let mut log = Log::new();
    let (refused, other) = (log.push(store(5, 70)), log.push(store(6, 30)));
    let dependent = log.push(store(5, 60));
    assert!(!log.queue.is_stuck());
    log.poll_all();
    log.queue.postpone(refused, true);
    let is_held_up = |id| log.queue.is_held_up(&[id]);
    assert!(is_held_up(refused) && is_held_up(dependent) && !is_held_up(other));
    assert!(log.queue.is_held_up(&[other, dependent]) && !log.queue.is_held_up(&[]));
    assert!(!log.queue.is_stuck(), "the other is under way");
    log.answer(other);
    assert!(log.queue.is_stuck());
    log.poll_all();
    assert!(!log.queue.is_stuck(), "it is tried again");
}

#[test]
fn what_was_made_apart_is_caught_up_with_when_all_of_it_was_tried() {
    let mut log = Log::new();
    log.queue.begin_catching_up();
    assert!(!log.queue.is_catching_up(), "there is nothing");
    let (first, second) = (log.push(store(5, 70)), log.push(store(6, 30)));
    log.queue.begin_catching_up();
    let later = log.push(store(7, 10));
    log.poll_all();
    log.answer(first);
    assert!(log.queue.is_catching_up());
    log.queue.postpone(second, true);
    assert!(!log.queue.is_catching_up(), "that may take until there is room");
    log.poll_all();
    log.answer(second);
    assert!(!log.queue.is_catching_up() && log.queue.contains(later));
}

#[test]
fn what_was_behind_another_by_way_of_one_that_is_gone_is_behind_it() {
    let mut log = Log::new();
    let remove = CmlOp::Remove { parent: fid(1), name: name(10), fid: fid(10) };
    let ids = [log.push(create(1, 10)), log.push(remove), log.push(create(1, 10))];
    let named = |log: &Log| log.queue.get(ids[2]).unwrap().record.depends_on.clone();
    assert_eq!(log.queue.poll_next().unwrap().record.id, ids[0]);
    let last = log.push(CmlOp::Link { parent: fid(1), name: name(10), fid: fid(30) });
    let behind = |log: &Log| log.queue.get(last).unwrap().record.depends_on.clone();
    assert_eq!((named(&log), behind(&log)), (vec![ids[0], ids[1]], vec![ids[2]]));
    log.queue.free_dependents(ids[2]);
    log.outstanding.end(ids[2]);
    log.queue.withdraw(ids[2]);
    assert_eq!(behind(&log), ids[..2]);
    log.queue.postpone(ids[0], true);
    assert_eq!(log.poll_all(), ids[..1]);
    log.answer(ids[0]);
    assert_eq!(log.poll_all(), [ids[1], last]);
}

/// The server lets it wait: that costs no round trip for each link of a chain.
#[test]
fn what_the_server_was_too_busy_for_is_sent_again_with_all_that_depends_on_it() {
    let mut log = Log::new();
    let first = log.push(create(1, 10));
    log.outstanding.raise_barrier([first]);
    let second = log.push(create(1, 11));
    for times in 1..=3 {
        assert_eq!(log.poll_all(), [first, second]);
        log.queue.postpone_busy(second);
        log.queue.postpone_busy(first);
        assert_eq!(log.queue.is_held_up(&[second]), times > 1, "who waits is told when it was so twice");
    }
}

#[test]
fn what_is_applied_was_applied_behind_what_it_depends_on_but_for_removals() {
    let mut log = Log::new();
    let made = log.push(create(1, 5));
    let stored = log.push(store(5, 70));
    let ids = |queued: Vec<Queued>| queued.iter().map(|queued| queued.record.id).collect::<Vec<_>>();
    assert_eq!(ids(log.queue.applied_with(&[stored])), [stored, made]);
    log.outstanding.raise_barrier([stored]);
    let removed = log.push(CmlOp::Remove { parent: fid(1), name: name(9), fid: fid(9) });
    assert!(log.queue.get(removed).unwrap().record.depends_on.contains(&stored), "behind what was fsynced");
    assert_eq!(ids(log.queue.applied_with(&[removed])), [removed]);
}

#[test]
fn what_is_applied_was_applied_behind_the_name_that_was_removed_before() {
    let mut log = Log::new();
    let made = log.push(create(1, 5));
    let removed = log.push(CmlOp::Remove { parent: fid(1), name: name(5), fid: fid(5) });
    let again = log.push(CmlOp::Link { parent: fid(1), name: name(5), fid: fid(6) });
    assert_eq!(log.queue.get(again).unwrap().record.depends_on, [made, removed]);
    let all: Vec<StoreId> = log.queue.applied_with(&[again]).into_iter().map(|queued| queued.record.id).collect();
    assert_eq!(all, [again, removed, made], "a removal alone may have been done ahead of others");
}

#[test]
fn what_was_refused_keeps_nothing_else_from_being_sent() {
    let mut log = Log::new();
    let refused = log.push(store(5, 70));
    log.poll_all();
    log.queue.postpone(refused, true);
    let other = log.push(store(6, 30));
    assert_eq!(log.queue.poll_next_untried().map(|polled| polled.record.id), Some(other));
    assert!(log.queue.poll_next_untried().is_none());
    assert_eq!(log.poll_all(), [refused]);
}
