//! Tests of what is announced, retracted and raised when: one queue against a server that hears some of it.

use std::collections::BTreeMap;

use mafs_proto::{CmlOp, RenameMode, SetAttr, StoreId};
use proptest::prelude::*;

use super::*;
use crate::core::queue::tests::{Log, create, fid, name, store};
use crate::core::queue::under_way::{RAISED_MAX, SMALL_MAX, STORE_BYTES_MAX, STORES_MAX};

/// Size of a content: more than fits under way with another.
const BIG: u64 = STORE_BYTES_MAX;

fn log(policy: Policy) -> Log {
    let mut log = Log::new();
    log.queue.set_policy(policy);
    log
}

fn rename(vnode: u64, from: u64, to: u64) -> CmlOp {
    CmlOp::Rename {
        from_parent: fid(1),
        from_name: name(from),
        to_parent: fid(1),
        to_name: name(to),
        fid: fid(vnode),
        replaced: None,
        mode: RenameMode::Replace,
    }
}

/// Returns the records of the next call, and those that it retracts.
fn announce(log: &mut Log) -> Option<(Announcement, Vec<StoreId>)> {
    let announcement = log.queue.poll_announce(InvalidateRequest::RECORDS_MAX)?;
    let ids = announcement.records.iter().map(|record| record.id).collect();
    Some((announcement, ids))
}

/// Has everything announced that can be, with success.
fn announce_all(log: &mut Log) -> Vec<StoreId> {
    let mut all = Vec::new();
    while let Some((announcement, ids)) = announce(log) {
        log.queue.end_announcement(&announcement, Heard::But(&[]));
        all.extend(ids);
    }
    all
}

fn resize(log: &mut Log, id: StoreId, vnode: u64, bytes: u64) {
    let mut record = log.queue.get(id).unwrap().record.clone();
    record.op = store(vnode, bytes);
    log.queue.rewrite(record);
}

#[test]
fn contents_that_wait_are_announced_in_log_order_and_those_under_way_by_their_headers() {
    let mut log = log(Policy::Waiting);
    let ids: Vec<_> = (0..3).map(|at| log.push(store(20 + at, BIG))).collect();
    assert_eq!(log.poll_all(), ids[..1]);
    assert_eq!(announce_all(&mut log), ids[1..]);
    assert_eq!(ids.iter().map(|id| log.queue.is_announced(*id)).collect::<Vec<_>>(), [false, true, true].map(Some));
    assert_eq!(announce_all(&mut log), []);
}

#[test]
fn what_is_sent_at_once_is_announced_when_it_was_refused() {
    let mut log = log(Policy::Waiting);
    let set = log.push(CmlOp::SetAttr { fid: fid(20), set: SetAttr::default() });
    assert_eq!(announce_all(&mut log), []);
    assert_eq!(log.poll_all(), [set]);
    log.queue.postpone(set, false);
    assert_eq!(announce_all(&mut log), [], "the connection was lost");
    assert_eq!(log.poll_all(), [set]);
    log.queue.postpone(set, true);
    assert_eq!(announce_all(&mut log), [set]);
}

/// Two clients would wait for each other to tell of names that will not be given.
#[test]
fn who_asks_for_names_does_not_wait_for_those_that_are_in_conflict() {
    let mut log = log(Policy::Waiting);
    let named = log.push(rename(20, 20, 1));
    let refuse = |log: &mut Log, contested: &[StoreId]| {
        let (announcement, ids) = announce(log).unwrap();
        log.queue.end_announcement(&announcement, Heard::But(&ids));
        log.queue.note_contested(contested);
    };
    assert_eq!(log.queue.recall(&[named]).count, 1);
    refuse(&mut log, &[]);
    assert_eq!(log.queue.recall(&[named]), Untold { count: 1, refused: vec![named] });
    log.queue.note_contested(&[named]);
    assert_eq!(log.queue.recall(&[named]), Untold::default());
    assert_eq!(log.queue.is_announced(named), Some(false));
}

/// A name that was told before the content that it is to show would show an empty file (fleet, seed 790058).
#[test]
fn a_name_of_what_is_not_made_yet_is_told_when_that_is() {
    let mut log = log(Policy::Waiting);
    let (made, stored, named) = (log.push(create(1, 20)), log.push(store(20, BIG)), log.push(rename(20, 20, 1)));
    assert_eq!(log.poll_all(), [made, stored, named]);
    log.queue.recall(&[named]);
    let (announcement, ids) = announce(&mut log).unwrap();
    assert_eq!(ids, [made, stored, named]);
    // Nobody knows whether the server has heard of the first.
    let only = |id: StoreId| Announcement {
        records: announcement.records.iter().filter(|record| record.id == id).cloned().collect(),
        retracted: Vec::new(),
    };
    log.queue.end_announcement(&only(named), Heard::But(&[named]));
    log.queue.note_contested(&[named]);
    log.queue.end_announcement(&only(stored), Heard::But(&[stored]));
    log.queue.end_announcement(&only(made), Heard::Perhaps);
    assert_eq!(log.queue.recall(&[named]), Untold { count: 3, refused: vec![stored, named] });
    log.answer(made);
    assert_eq!(announce_all(&mut log), [stored, named]);
}

/// A name that was told before would show an empty file when the announcement of the content has overtaken the making
/// of the file (fleet, seed 31366).
#[test]
fn a_name_is_told_once_the_server_has_answered_about_what_it_names() {
    for recalled in [false, true] {
        let mut log = log(Policy::Waiting);
        let ids = [store(30, BIG), create(1, 20), store(20, BIG)].map(|op| log.push(op));
        let [other, made, stored] = ids;
        assert_eq!(log.poll_all(), [other, made]);
        let (announcement, ids) = announce(&mut log).unwrap();
        assert_eq!(ids, [stored]);
        let named = log.push(rename(20, 20, 1));
        if recalled {
            log.queue.recall(&[named]);
        }
        assert!(announce(&mut log).is_none_or(|(_, ids)| ids == [made]), "recalled: {recalled}");
        log.queue.end_announcement(&announcement, Heard::But(&[stored]));
        log.answer(made);
        assert_eq!(announce_all(&mut log), [stored, named], "recalled: {recalled}");
    }
}

/// Announcements overtake the records that they depend on: the server did not know the file yet.
#[test]
fn regression_a_refusal_that_was_overtaken_by_the_making_of_the_file_is_not_the_last_word() {
    for ended_first in [false, true] {
        let mut log = log(Policy::Waiting);
        let big = log.push(store(19, BIG));
        let made = log.push(create(1, 20));
        let stored = log.push(store(20, BIG));
        assert_eq!(log.poll_all(), [big, made]);
        let (announcement, ids) = announce(&mut log).unwrap();
        assert_eq!(ids, [stored]);
        if ended_first {
            log.answer(made);
        }
        log.queue.end_announcement(&announcement, Heard::But(&[stored]));
        if !ended_first {
            assert_eq!(announce(&mut log), None);
            log.answer(made);
        }
        assert_eq!(announce_all(&mut log), [stored], "the making ended first: {ended_first}");
        assert_eq!(log.queue.is_announced(stored), Some(true));
    }
}

#[test]
fn nothing_is_announced_where_nobody_asked_for_it() {
    let mut log = log(Policy::Nothing);
    log.push(store(20, BIG));
    log.push(store(21, BIG));
    assert_eq!((log.poll_all().len(), announce(&mut log)), (1, None));
}

#[test]
fn compulsory_invalidation_announces_what_is_under_way_too() {
    let mut log = log(Policy::All);
    let ids = [log.push(store(20, BIG)), log.push(store(21, BIG))];
    assert_eq!(log.poll_all(), ids[..1]);
    assert_eq!(announce_all(&mut log), ids);
}

#[test]
fn a_rename_behind_a_content_is_announced_wherever_both_are() {
    for before in [false, true] {
        let mut log = log(Policy::Waiting);
        if before {
            log.push(store(50, BIG));
        }
        let made = log.push(create(1, 20));
        let (content, renamed) = (log.push(store(20, 5)), log.push(rename(20, 20, 21)));
        let alone = log.push(create(1, 30));
        let sent = log.poll_all();
        assert!(sent.contains(&made) && sent.contains(&alone));
        // The header of a content that is under way comes later than the announcement of its name.
        assert_eq!(announce_all(&mut log), [content, renamed]);
    }
}

#[test]
fn what_depends_on_something_that_is_not_announced_is_not_announced() {
    let mut log = log(Policy::Waiting);
    let mut first = log.push(create(1, 100));
    for at in 1..200 {
        first = log.push(create(1, 100 + at));
    }
    let content = log.push(store(299, 5));
    log.poll_all();
    assert!(log.queue.get(first).is_some() && announce(&mut log).is_none());
    for _ in 0..100 {
        let (oldest, _) = log.queue.ends().unwrap();
        log.answer(oldest);
    }
    assert_eq!(log.poll_all().len(), 73);
    assert!(!log.queue.contains(content) || !log.queue.is_unsent(content), "it is sent with what it waited for");
}

#[test]
fn an_announced_record_that_changes_is_announced_again() {
    let mut log = log(Policy::Waiting);
    log.push(store(20, BIG));
    let id = log.push(store(21, BIG));
    log.poll_all();
    assert_eq!(announce_all(&mut log), [id]);
    resize(&mut log, id, 21, 7);
    assert_eq!(log.queue.is_announced(id), Some(false));
    let (announcement, ids) = announce(&mut log).unwrap();
    assert_eq!((ids, &announcement.records[0].op), (vec![id], &store(21, 7)));
    // And once more while the call is under way: not before that has been answered, so that none overtakes another.
    resize(&mut log, id, 21, 8);
    assert!(announce(&mut log).is_none());
    log.queue.end_announcement(&announcement, Heard::But(&[]));
    assert_eq!(log.queue.is_announced(id), Some(false));
    assert_eq!(announce_all(&mut log), [id]);
    assert_eq!(log.queue.is_announced(id), Some(true));
}

#[test]
fn an_announcement_whose_answer_is_lost_is_repeated() {
    let mut log = log(Policy::Waiting);
    let ids = [log.push(store(20, BIG)), log.push(store(21, BIG))];
    log.poll_all();
    let (announcement, _) = announce(&mut log).unwrap();
    log.queue.end_announcement(&announcement, Heard::Perhaps);
    // The header of the other is lost with the same connection.
    log.queue.postpone(ids[0], false);
    assert_eq!(announce_all(&mut log), ids);
}

#[test]
fn what_is_withdrawn_is_retracted_behind_its_announcement_and_only_if_there_was_one() {
    let mut log = log(Policy::Waiting);
    log.push(store(20, BIG));
    let ids = [log.push(store(21, 5)), log.push(store(22, BIG)), log.push(store(23, BIG))];
    log.queue.set_store_bytes_max(0);
    log.poll_all();
    let (announcement, announced) = announce(&mut log).unwrap();
    assert_eq!(announced, ids);
    log.queue.withdraw(ids[0]);
    assert!(announce(&mut log).is_none(), "the announcement might come later");
    log.queue.end_announcement(&announcement, Heard::But(&[]));
    log.queue.withdraw(ids[1]);
    let (retraction, _) = announce(&mut log).unwrap();
    assert_eq!((retraction.retracted.as_slice(), retraction.records.as_slice()), (&ids[..2], &[][..]));
    log.queue.end_announcement(&retraction, Heard::Perhaps);
    let (again, _) = announce(&mut log).unwrap();
    assert_eq!(again.retracted, ids[..2]);
    log.queue.end_announcement(&again, Heard::But(&[]));
    let unheard = log.push(store(24, 5));
    log.queue.withdraw(unheard);
    log.answer(ids[2]);
    assert!(announce(&mut log).is_none(), "what was applied or never announced needs no retraction");
}

#[test]
fn a_record_that_goes_out_of_those_that_name_it_changes_them() {
    let mut log = log(Policy::Waiting);
    log.push(store(50, BIG));
    log.queue.set_store_bytes_max(0);
    let set = CmlOp::SetAttr { fid: fid(20), set: SetAttr::default() };
    let (content, changed) = (log.push(store(20, 5)), log.push(set));
    assert_eq!(log.poll_all().len(), 1);
    assert_eq!(announce_all(&mut log), [content, changed]);
    assert!(log.queue.detach(content).is_some());
    assert_eq!(log.queue.is_announced(changed), Some(false));
    let (announcement, _) = announce(&mut log).unwrap();
    assert_eq!(announcement.retracted, [content]);
}

#[test]
fn what_the_server_did_not_take_is_told_again_when_what_it_depends_on_is_done() {
    let mut log = log(Policy::Waiting);
    log.push(store(50, BIG));
    log.queue.set_store_bytes_max(0);
    let (made, content) = (log.push(create(1, 20)), log.push(store(20, 5)));
    log.poll_all();
    let (announcement, ids) = announce(&mut log).unwrap();
    assert_eq!(ids, [content]);
    log.queue.end_announcement(&announcement, Heard::But(&[content]));
    assert!(announce(&mut log).is_none());
    assert_eq!(log.queue.is_announced(content), Some(false));
    log.answer(made);
    assert_eq!(announce_all(&mut log), [content]);
}

#[test]
fn what_somebody_waits_for_is_announced_while_it_is_under_way() {
    let mut log = log(Policy::Waiting);
    let ids = [log.push(store(20, 5)), log.push(store(21, 5))];
    assert_eq!(log.poll_all(), ids);
    log.queue.demand_announcement(ids[1]);
    assert_eq!(announce_all(&mut log), ids[1..]);
    assert_eq!(log.queue.is_announced(ids[1]), Some(true));
}

#[test]
fn another_history_is_told_everything_again() {
    let mut log = log(Policy::Waiting);
    let ids = [log.push(store(20, BIG)), log.push(store(21, BIG)), log.push(store(22, BIG))];
    log.poll_all();
    announce_all(&mut log);
    log.queue.withdraw(ids[2]);
    log.queue.forget_announcements();
    let (announcement, announced) = announce(&mut log).unwrap();
    assert_eq!((announced.as_slice(), announcement.retracted.as_slice()), (&ids[1..2], &[][..]));
}

#[test]
fn announcements_are_bounded() {
    let mut log = log(Policy::Waiting);
    let ids: Vec<_> = (0..2000).map(|at| log.push(store(20 + at, 5))).collect();
    log.queue.set_store_bytes_max(0);
    assert_eq!(log.poll_all().len(), 1);
    let mut calls = Vec::new();
    while let Some((announcement, _)) = announce(&mut log) {
        assert!(announcement.records.len() <= InvalidateRequest::RECORDS_MAX);
        calls.push(announcement);
    }
    assert_eq!(calls.len(), CALLS_MAX);
    calls.iter().for_each(|call| log.queue.end_announcement(call, Heard::But(&[])));
    announce_all(&mut log);
    let heard = |log: &Log| ids.iter().filter(|id| log.queue.is_announced(**id) == Some(true)).count();
    // The header of the first counts as well.
    assert_eq!(heard(&log), ANNOUNCED_MAX - 1);
    log.answer(ids[0]);
    assert_eq!(announce_all(&mut log), ids[ANNOUNCED_MAX..=ANNOUNCED_MAX]);
}

#[test]
fn what_is_asked_for_goes_first_with_all_that_it_depends_on() {
    let mut log = log(Policy::Waiting);
    let first: Vec<_> = (0..STORES_MAX as u64 + 1).map(|at| log.push(store(100 + at, 5))).collect();
    log.queue.set_store_bytes_max(20);
    let (made, content) = (log.push(create(1, 20)), log.push(store(20, BIG)));
    let (renamed, other) = (log.push(rename(20, 20, 21)), log.push(create(1, 22)));
    let under_way = log.poll_all();
    assert_eq!(under_way, [&first[..4], &[made, other]].concat());
    let gone = StoreId { seq: 99_999, ..renamed };
    let raised = log.queue.raise(&[renamed, gone]);
    assert_eq!(raised.missing, [gone]);
    assert_eq!(raised.under_way.iter().map(|record| record.id).collect::<Vec<_>>(), [made]);
    assert!(log.queue.is_raised(content) && !log.queue.is_raised(other));
    assert_eq!(log.poll_all(), [content, renamed]);
    // Asked for once more there is nothing to be done.
    assert_eq!(log.queue.raise(&[renamed]), Raised::default());
    log.queue.postpone(content, false);
    assert_eq!(log.poll_all(), [content], "it stays first");
}

#[test]
fn what_is_asked_for_is_no_more_than_the_server_lets_wait() {
    let mut log = log(Policy::Waiting);
    for at in 0..200 {
        log.push(store(1000 + at, 5));
        log.push(create(1, 2000 + at));
    }
    assert_eq!(log.poll_all().len(), SMALL_MAX + STORES_MAX);
    let asked: Vec<_> = (0..1000).map(|at| log.push(create(1, 3000 + at))).collect();
    log.queue.raise(&asked);
    assert_eq!(log.poll_all(), asked[..RAISED_MAX]);
    log.answer(asked[1]);
    assert_eq!(log.poll_all(), [asked[RAISED_MAX]]);
    log.queue.postpone(asked[0], false);
    assert_eq!(log.poll_all(), [asked[0]]);
}

#[test]
fn what_is_asked_for_while_it_is_under_way_counts_until_it_is_answered() {
    let mut log = log(Policy::Waiting);
    let first: Vec<_> = (0..SMALL_MAX as u64).map(|at| log.push(create(1, 2000 + at))).collect();
    assert_eq!(log.poll_all(), first);
    log.queue.raise(&first[..RAISED_MAX]);
    let asked = log.push(create(1, 4000));
    log.queue.raise(&[asked]);
    assert_eq!(log.poll_all(), []);
    log.answer(first[0]);
    assert_eq!(log.poll_all(), [asked]);
}

/// A queue and the server at the other end of its calls.
struct Pair {
    log: Log,
    /// Records that the server expects, as it has been told of them.
    server: BTreeMap<StoreId, CmlRecord>,
    under_way: Vec<StoreId>,
    calls: Vec<Announcement>,
}

impl Pair {
    fn new() -> Self {
        let mut log = log(Policy::Waiting);
        log.queue.set_store_bytes_max(10);
        Self { log, server: BTreeMap::new(), under_way: Vec::new(), calls: Vec::new() }
    }

    fn ids(&self) -> Vec<StoreId> {
        self.log.queue.entries.keys().copied().collect()
    }

    fn hear(&mut self, call: &Announcement) {
        call.retracted.iter().for_each(|id| drop(self.server.remove(id)));
        self.server.extend(call.records.iter().map(|record| (record.id, record.clone())));
    }

    fn answer_call(&mut self, call: &Announcement) {
        self.hear(call);
        self.log.queue.end_announcement(call, Heard::But(&[]));
    }

    fn step(&mut self, what: usize, vnode: u64, at: prop::sample::Index) {
        match what {
            0 | 1 => drop(self.log.push(store(20 + vnode, 6))),
            2 => {
                if let Some(polled) = self.log.queue.poll_next() {
                    self.under_way.push(polled.record.id);
                    self.server.insert(polled.record.id, polled.record);
                }
            }
            3 if !self.under_way.is_empty() => {
                let id = self.under_way.remove(at.index(self.under_way.len()));
                self.server.remove(&id);
                self.log.answer(id);
                // The server leaves what it has applied out of announcements that come later.
                self.calls.iter_mut().for_each(|call| call.records.retain(|record| record.id != id));
            }
            4 => self.calls.extend(self.log.queue.poll_announce(3)),
            5 | 6 if !self.calls.is_empty() => {
                let call = self.calls.remove(at.index(self.calls.len()));
                match (what, vnode % 2) {
                    (5, _) => return self.answer_call(&call),
                    (_, 0) => self.hear(&call),
                    (_, _) => {}
                }
                self.log.queue.end_announcement(&call, Heard::Perhaps);
            }
            7 => self.change_or_withdraw(vnode, at),
            _ => {}
        }
    }

    fn change_or_withdraw(&mut self, vnode: u64, at: prop::sample::Index) {
        let unsent: Vec<_> = self.ids().into_iter().filter(|id| self.log.queue.is_unsent(*id)).collect();
        if unsent.is_empty() {
            return;
        }
        let id = unsent[at.index(unsent.len())];
        if vnode.is_multiple_of(2) {
            self.log.outstanding.end(id);
            self.log.queue.withdraw(id);
        } else {
            let fid = self.log.queue.get(id).unwrap().record.op.fid();
            resize(&mut self.log, id, fid.vnode.0, 7 + vnode);
        }
    }
}

proptest! {
    /// Once all calls are answered the server has been told of every content that waits as it is, whatever is sent,
    /// lost, changed and withdrawn; and in the end it expects nothing that does not come.
    #[test]
    fn proptest_the_server_knows_what_waits_and_expects_nothing_else(
        steps in proptest::collection::vec((0usize..8, 0u64..6, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut pair = Pair::new();
        steps.into_iter().for_each(|(what, vnode, at)| pair.step(what, vnode, at));
        for call in std::mem::take(&mut pair.calls) {
            pair.answer_call(&call);
        }
        while let Some(call) = pair.log.queue.poll_announce(3) {
            pair.answer_call(&call);
        }
        for id in pair.ids() {
            if pair.log.queue.is_unsent(id) {
                prop_assert_eq!(pair.server.get(&id), pair.log.queue.get(id).map(|queued| &queued.record));
            }
        }
        for id in pair.server.keys() {
            prop_assert!(pair.log.queue.contains(*id), "it never comes");
        }
        prop_assert_eq!(pair.log.queue.announcing.withdrawn.len(), 0);
    }
}

/// Otherwise others are shown an empty file under a name that meant another one before.
#[test]
fn a_name_that_the_server_asks_for_is_told_with_what_it_is_given_to() {
    for policy in [Policy::Nothing, Policy::Waiting] {
        let mut log = log(policy);
        let made = log.push(create(1, 20));
        let content = log.push(store(20, 100));
        let other = log.push(store(21, 100));
        let named = log.push(rename(20, 20, 1));
        log.queue.note_decided(named);
        assert_eq!(log.queue.recall(&[named]), Untold { count: 3, refused: Vec::new() }, "{policy:?}");
        let (announcement, ids) = announce(&mut log).unwrap();
        assert_eq!(ids.iter().filter(|id| **id != other).copied().collect::<Vec<_>>(), [made, content, named]);
        log.queue.end_announcement(&announcement, Heard::But(&[content, named]));
        assert_eq!(log.queue.recall(&[named]), Untold { count: 2, refused: vec![content, named] });
    }
}

/// The server has not wanted to hear of a name because it did not know the object.
#[test]
fn what_was_refused_is_told_once_more_when_the_server_asks_for_names() {
    for asked_in_time in [true, false] {
        let mut log = log(Policy::Waiting);
        log.push(create(1, 20));
        log.push(store(20, BIG));
        let [content, named] = [log.push(store(20, BIG)), log.push(rename(20, 20, 1))];
        log.poll_all();
        let (announcement, ids) = announce(&mut log).unwrap();
        assert!(ids.contains(&content) && ids.contains(&named));
        if asked_in_time {
            log.queue.recall(&[named]);
        }
        log.queue.end_announcement(&announcement, Heard::But(&[content, named]));
        assert!(log.queue.recall(&[named]).refused.is_empty());
        let (announcement, ids) = announce(&mut log).unwrap();
        assert!(ids.contains(&content) && ids.contains(&named));
        log.queue.end_announcement(&announcement, Heard::But(&[content, named]));
        assert_eq!(log.queue.recall(&[named]).refused, [content, named]);
    }
}
