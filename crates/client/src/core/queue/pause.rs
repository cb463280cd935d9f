//! Pausing: the user holds back the contents that are sent in the background, or has some records sent before others.
//!
//! Only contents that nobody has asked for are held back. Names and attributes are as small as the announcements that
//! go on as well, so they are sent, but for those that depend on a content. Contents that are under way when the queue
//! is paused go back.

use mafs_proto::StoreId;

use super::Queue;

/// Finding of [`Queue::ask`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Asked {
    /// Records that are not in the queue.
    pub(crate) missing: Vec<StoreId>,
    /// Records that nobody had asked for before, with what they depend on.
    pub(crate) new: Vec<StoreId>,
}

impl Queue {
    /// Holds a record back: it is not sent before something depends on it, or somebody waits for it.
    pub(crate) fn hold_back(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.held_back = true;
            self.unready(id);
        }
    }

    /// Ends [`Self::hold_back`].
    pub(crate) fn let_go(&mut self, id: StoreId) {
        if let Some(entry) = self.entries.get_mut(&id)
            && std::mem::take(&mut entry.held_back)
        {
            self.note_ready(id);
        }
    }

    /// Sets whether contents that nobody asks for are held back.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Whether contents that nobody asks for are held back.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether a record is not to be sent now because the queue is paused.
    pub(crate) fn is_paused_for(&self, id: StoreId) -> bool {
        let is_held = |entry: &super::Entry| entry.store_bytes().is_some() && !entry.raised && !entry.asked;
        self.paused && self.entries.get(&id).is_some_and(is_held)
    }

    /// Notes that somebody asks for these: they are sent before others, with all that they depend on, in the class that
    /// they have.
    pub(crate) fn ask(&mut self, ids: &[StoreId]) -> Asked {
        let missing = ids.iter().filter(|id| !self.entries.contains_key(id)).copied().collect();
        Asked { missing, new: self.mark_up_to(ids, |entry| !std::mem::replace(&mut entry.asked, true)) }
    }

    /// Notes that nobody asks for these any more.
    pub(crate) fn unask(&mut self, ids: &[StoreId]) {
        for id in ids {
            if let Some(entry) = self.entries.get_mut(id) {
                entry.asked = false;
                self.unready(*id);
                self.note_ready(*id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use mafs_proto::{
        Base, ClientId, CmlOp, CmlRecord, DataVersion, Fid, Incarnation, Kind, SetAttr, Timestamp, VnodeId, VolumeId,
    };

    use super::super::{Heard, Policy, Queued};
    use super::*;

    fn id(seq: u64) -> StoreId {
        StoreId { client: ClientId([1; 16]), incarnation: Incarnation(2), seq }
    }

    fn push(queue: &mut Queue, seq: u64, content: bool, depends_on: &[u64]) {
        let fid = Fid { vnode: VnodeId(seq), ..Fid::root(VolumeId(1)) };
        let (base, mtime) = (Base::Version(DataVersion(1)), Timestamp::default());
        let op = match content {
            true => CmlOp::Store { fid, base, size: 10, mtime },
            false => CmlOp::SetAttr { fid, set: SetAttr::default() },
        };
        let depends_on = depends_on.iter().map(|seq| id(*seq)).collect();
        let record = CmlRecord { id: id(seq), depends_on, time: mtime, uid: 0, gid: 0, removes: None, op };
        queue.push(Queued { record, kind: Kind::File, replaced: None }, &[]);
    }

    fn sent(queue: &mut Queue) -> Vec<u64> {
        std::iter::from_fn(|| queue.poll_next()).map(|polled| polled.record.id.seq).collect()
    }

    /// Makes a queue of contents 1, 2 and 4, of which 4 depends on 1; 3 and 5 have none, and 5 depends on 2.
    fn queue() -> Queue {
        let mut queue = Queue::default();
        let records = [(1, true, &[][..]), (2, true, &[]), (3, false, &[]), (4, true, &[1]), (5, false, &[2])];
        records.into_iter().for_each(|(seq, content, before)| push(&mut queue, seq, content, before));
        queue
    }

    #[test]
    fn contents_and_what_depends_on_them_wait_while_the_queue_is_paused() {
        let mut queue = queue();
        queue.set_paused(true);
        assert_eq!(sent(&mut queue), [3]);
        assert!(queue.is_paused_for(id(1)) && !queue.is_paused_for(id(3)));
        queue.set_paused(false);
        assert_eq!(sent(&mut queue), [1, 2, 4, 5]);
    }

    #[test]
    fn what_somebody_waits_for_goes_all_the_same() {
        let mut queue = queue();
        queue.set_paused(true);
        queue.raise(&[id(4)]);
        assert_eq!(sent(&mut queue), [1, 4, 3]);
    }

    #[test]
    fn what_is_asked_for_goes_first_with_what_it_depends_on() {
        for paused in [false, true] {
            let mut queue = queue();
            queue.set_paused(paused);
            let asked = queue.ask(&[id(5), id(9)]);
            assert_eq!((asked.missing, asked.new), (vec![id(9)], vec![id(5), id(2)]));
            let rest: &[u64] = if paused { &[3] } else { &[1, 3, 4] };
            assert_eq!(sent(&mut queue), [&[2, 5], rest].concat());
            assert!(!queue.is_paused_for(id(2)), "it goes on if the queue is paused now");
        }
    }

    #[test]
    fn what_is_asked_for_no_more_waits_again() {
        let mut queue = queue();
        queue.set_paused(true);
        let asked = queue.ask(&[id(4)]);
        queue.unask(&asked.new);
        assert_eq!(sent(&mut queue), [3]);
    }

    #[test]
    fn what_is_asked_for_takes_no_more_room_on_its_way_than_other_contents() {
        let mut queue = queue();
        queue.set_store_bytes_max(15);
        queue.ask(&[id(1), id(2)]);
        assert_eq!(sent(&mut queue), [1, 3], "nor does another content pass it");
        queue.remove(id(1));
        assert_eq!(sent(&mut queue), [2, 5]);
    }

    #[test]
    fn what_is_held_back_is_announced() {
        let mut queue = Queue::default();
        queue.set_policy(Policy::Waiting);
        queue.set_paused(true);
        push(&mut queue, 1, true, &[]);
        assert!(queue.poll_next().is_none());
        let announcement = queue.poll_announce(10).expect("an announcement");
        assert_eq!(announcement.records.iter().map(|record| record.id.seq).collect::<Vec<_>>(), [1]);
        queue.end_announcement(&announcement, Heard::But(&[]));
        assert_eq!(queue.is_announced(id(1)), Some(true));
    }
}
