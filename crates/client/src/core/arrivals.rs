//! Arrivals: answers to records of the queue, brought into the order of the changes that they tell of.
//!
//! The server makes changes of one directory one after the other, but its answers overtake each other. The known names
//! of a directory go from one of its versions to the next, and are lost when one is left out. So an answer waits for
//! those before it, as long as there are records under way that may be answered with them. Nothing can be noted of an
//! object that is not known yet: an answer that tells of it waits for the answer to the record that makes it. A pending
//! change of a name or an object is shown over what is known. So an answer also waits for records before its own about
//! the same name or object.
//!
//! An answer that is here and waits is waited for like one that is to come. Where the server has done a record before
//! one that was made earlier, their answers wait for each other: then the order of the changes counts. They also wait
//! for each other where the earlier one was refused, and is sent again only when something else has been taken in.
//!
//! A record whose answer is lost with the connection counts as under way until it has been sent again and answered:
//! else those behind it would cost what is known of the directory, just when the server cannot be asked.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use mafs_proto::call::DirectoryChange;
use mafs_proto::{CmlOp, DataVersion, Fid, StoreId};

use super::touched::{directories_of, waits_for};

/// The answers that have arrived and are not taken in yet. No more than there are records under way.
pub(crate) struct Arrivals<A> {
    /// Records without answer, and their operations.
    under_way: BTreeMap<StoreId, CmlOp>,
    /// Records under way whose answers are lost.
    lost: BTreeSet<StoreId>,
    /// Answers that tell of these losses.
    losses: Vec<A>,
    held: Vec<Held<A>>,
}

struct Held<A> {
    answer: A,
    id: StoreId,
    /// Number of the change that the answer tells of.
    change: Option<u64>,
    /// Object that its record is about.
    object: Fid,
    /// Object that its record makes.
    made: Option<Fid>,
    directories: Vec<DirectoryChange>,
    /// Records that were under way when the answer came, and change names of the same directories.
    behind: BTreeSet<StoreId>,
    /// Records that were under way when the answer came, and make an object that it tells of.
    makers: BTreeSet<StoreId>,
    /// Records before its own that had no answer when this one came, and are about the same.
    earlier: BTreeSet<StoreId>,
}

impl<A> Held<A> {
    /// Returns the answer's place among those that may be taken in: answers that tell of no change come last.
    fn order(&self) -> (u64, StoreId) {
        (self.change.unwrap_or(u64::MAX), self.id)
    }

    /// Whether it tells of an earlier change of a directory that the other one tells of too.
    fn leads_up_to(&self, other: &Self) -> bool {
        self.order() < other.order() && self.directories.iter().any(|directory| other.changes(directory.fid))
    }

    /// Whether its record makes something that the other one tells of.
    fn makes_for(&self, other: &Self) -> bool {
        self.id != other.id && self.made.is_some_and(|made| other.tells_of(made))
    }

    fn tells_of(&self, fid: Fid) -> bool {
        self.object == fid || self.changes(fid)
    }

    fn changes(&self, directory: Fid) -> bool {
        self.directories.iter().any(|change| change.fid == directory)
    }

    /// Whether the other one is taken in later, if it is about the same object. One that tells of no change waits for
    /// records before its own only: those behind may wait for it.
    fn is_before(&self, other: &Self) -> bool {
        if other.change.is_some() { self.order() < other.order() } else { self.id < other.id }
    }
}

impl<A> Default for Arrivals<A> {
    fn default() -> Self {
        Self { under_way: BTreeMap::new(), lost: BTreeSet::new(), losses: Vec::new(), held: Vec::new() }
    }
}

impl<A> Arrivals<A> {
    /// Notes that a record has been sent.
    pub(crate) fn sent(&mut self, id: StoreId, op: &CmlOp) {
        self.under_way.insert(id, op.clone());
        self.lost.remove(&id);
    }

    /// Notes that there was no answer, and the record is to be sent again; `answer` says so, and waits for no other.
    pub(crate) fn lost(&mut self, id: StoreId, answer: A) {
        self.lost.insert(id);
        self.losses.push(answer);
    }

    /// Takes the answer to a record; `change` is the number of the change that the record became, and `directories`
    /// what that did.
    pub(crate) fn arrived(
        &mut self,
        (id, object): (StoreId, Fid),
        change: Option<u64>,
        directories: &[DirectoryChange],
        answer: A,
    ) {
        let answered = self.under_way.remove(&id);
        self.lost.remove(&id);
        for held in &mut self.held {
            held.behind.remove(&id);
            held.makers.remove(&id);
        }
        let applied = answered.filter(|_| change.is_some());
        let made = applied.as_ref().and_then(CmlOp::made);
        let directories = directories.to_vec();
        let (behind, makers, earlier) = Default::default();
        let mut held = Held { answer, id, change, object, made, directories, behind, makers, earlier };
        held.behind = self.those_under_way(|_, other| directories_of(other).any(|fid| held.changes(fid)));
        held.makers = self.those_under_way(|_, other| other.made().is_some_and(|made| held.tells_of(made)));
        if let Some(op) = applied {
            held.earlier = self.those_under_way(|before, other| before < id && waits_for(&op, other));
        }
        self.held.push(held);
    }

    fn those_under_way(&self, is_one: impl Fn(StoreId, &CmlOp) -> bool) -> BTreeSet<StoreId> {
        self.under_way.iter().filter(|(id, other)| is_one(**id, other)).map(|(id, _)| *id).collect()
    }

    /// Returns the next answer to be taken in, if there is one: which version of a directory's names is `known`, which
    /// records are `pending`, and which of them keep another from being sent, has changed with the one before.
    pub(crate) fn take(
        &mut self,
        known: impl Fn(Fid) -> Option<DataVersion>,
        pending: impl Fn(StoreId) -> bool,
        held_up_by: impl Fn(StoreId) -> Vec<StoreId>,
    ) -> Option<A> {
        if let Some(loss) = self.losses.pop() {
            return Some(loss);
        }
        let under_way = &mut self.under_way;
        self.lost.retain(|id| pending(*id) || under_way.remove(id).is_none());
        let waiting = Waiting { held: &self.held, under_way: &self.under_way, known, pending, held_up_by };
        let at = waiting.first_ready().or_else(|| waiting.first_in_a_circle())?;
        Some(self.held.swap_remove(at).answer)
    }
}

/// Waits of the answers that are here, as long as `known` and `pending` are so.
struct Waiting<'a, A, K, P, H> {
    held: &'a [Held<A>],
    under_way: &'a BTreeMap<StoreId, CmlOp>,
    known: K,
    pending: P,
    held_up_by: H,
}

impl<A, K, P, H> Waiting<'_, A, K, P, H>
where
    K: Fn(Fid) -> Option<DataVersion>,
    P: Fn(StoreId) -> bool,
    H: Fn(StoreId) -> Vec<StoreId>,
{
    /// Finds the place of the first answer that waits for none.
    fn first_ready(&self) -> Option<usize> {
        self.first(|held| !self.waits_for_coming(held, |_| false) && self.waits_for_here(held).next().is_none())
    }

    /// Finds the place of the first answer that waits for none that is to come, not by way of others either: such
    /// answers wait for each other. This happens where the server has done a record before one that was made earlier,
    /// which was in conflict.
    fn first_in_a_circle(&self) -> Option<usize> {
        let mut open: BTreeSet<StoreId> = self.held.iter().map(|held| held.id).collect();
        loop {
            let waits = |held: &&Held<A>| {
                let waits_here = || self.waits_for_here(held).any(|other| !open.contains(&other.id));
                let waits_in_circle = |id| self.is_held_up(id, &open);
                open.contains(&held.id) && (self.waits_for_coming(held, waits_in_circle) || waits_here())
            };
            let waiting: Vec<StoreId> = self.held.iter().filter(waits).map(|held| held.id).collect();
            if waiting.is_empty() {
                return self.first(|held| open.contains(&held.id));
            }
            waiting.iter().for_each(|id| _ = open.remove(id));
        }
    }

    fn first(&self, is_one: impl Fn(&Held<A>) -> bool) -> Option<usize> {
        let ones = self.held.iter().enumerate().filter(|(_, held)| is_one(held));
        ones.min_by_key(|(_, held)| held.order()).map(|(at, _)| at)
    }

    /// Whether a record is not sent before one of these answers has been taken in.
    fn is_held_up(&self, id: StoreId, by: &BTreeSet<StoreId>) -> bool {
        let (mut seen, mut left) = (BTreeSet::from([id]), vec![id]);
        while let Some(id) = left.pop() {
            for before in (self.held_up_by)(id) {
                if by.contains(&before) {
                    return true;
                }
                if seen.insert(before) {
                    left.push(before);
                }
            }
        }
        false
    }

    /// Whether an answer waits for one that has not come, but for those `left_out`.
    fn waits_for_coming(&self, held: &Held<A>, left_out: impl Fn(StoreId) -> bool) -> bool {
        let awaited = |ids: &BTreeSet<StoreId>| ids.iter().any(|id| self.under_way.contains_key(id));
        let is_here = |id: StoreId| self.held.iter().any(|other| other.id == id);
        let covers = |id: &StoreId| (self.pending)(*id) && !is_here(*id) && !left_out(*id);
        awaited(&held.makers) || held.earlier.iter().any(covers) || (awaited(&held.behind) && !self.fits(held))
    }

    /// Returns the answers that have come and are to be taken in before another.
    fn waits_for_here(&self, held: &Held<A>) -> impl Iterator<Item = &Held<A>> {
        // Lazy, because `known` looks in the index.
        let fits = LazyCell::new(|| self.fits(held));
        self.held.iter().filter(move |other| {
            let covers = held.earlier.contains(&other.id) && (self.pending)(other.id);
            let is_before = other.object == held.object && other.is_before(held);
            covers || is_before || other.makes_for(held) || (other.leads_up_to(held) && !*fits)
        })
    }

    /// Whether an answer tells of the next change of each directory, or of one that is known already.
    fn fits(&self, held: &Held<A>) -> bool {
        held.directories.iter().all(|change| (self.known)(change.fid).is_none_or(|known| known >= change.before))
    }
}

#[cfg(test)]
mod tests {
    use mafs_proto::{ClientId, Incarnation, Mode, Name, SetAttr, VnodeId, VolumeId};

    use super::*;

    impl<A> Arrivals<A> {
        /// Takes the next answer where nothing is held up.
        fn take_free(
            &mut self,
            known: impl Fn(Fid) -> Option<DataVersion>,
            pending: impl Fn(StoreId) -> bool,
        ) -> Option<A> {
            self.take(known, pending, |_| Vec::new())
        }
    }

    fn fid(vnode: u64) -> Fid {
        Fid { vnode: VnodeId(vnode), ..Fid::root(VolumeId(1)) }
    }

    fn id(seq: u64) -> StoreId {
        StoreId { client: ClientId([1; 16]), incarnation: Incarnation(1), seq }
    }

    fn removal(parent: u64) -> CmlOp {
        CmlOp::Remove { parent: fid(parent), name: Name::new(&b"a"[..]).unwrap(), fid: fid(99) }
    }

    fn setting(vnode: u64) -> CmlOp {
        CmlOp::SetAttr { fid: fid(vnode), set: SetAttr::default() }
    }

    fn making(parent: u64, made: u64) -> CmlOp {
        CmlOp::MakeDir {
            parent: fid(parent),
            name: Name::new(&b"d"[..]).unwrap(),
            fid: fid(made),
            mode: Mode::from_bits(0o755),
        }
    }

    fn change(vnode: u64, before: u64) -> [DirectoryChange; 1] {
        [DirectoryChange { fid: fid(vnode), before: DataVersion(before), after: DataVersion(before + 1) }]
    }

    /// Makes arrivals with these records under way, numbered from 1 on.
    fn under_way(ops: &[CmlOp]) -> Arrivals<u64> {
        let mut arrivals = Arrivals::default();
        ops.iter().zip(1..).for_each(|(op, seq)| arrivals.sent(id(seq), op));
        arrivals
    }

    /// Takes all that may be taken in while this is known, and nothing is pending.
    fn take_all_with(arrivals: &mut Arrivals<u64>, known: impl Fn(Fid) -> Option<DataVersion>) -> Vec<u64> {
        std::iter::from_fn(|| arrivals.take_free(&known, |_| false)).collect()
    }

    /// Takes all that may be taken in; returns them and the version that is known then.
    fn take_all(arrivals: &mut Arrivals<u64>, mut known: u64) -> (Vec<u64>, u64) {
        let mut taken = Vec::new();
        while let Some(before) = arrivals.take_free(|_| Some(DataVersion(known)), |_| false) {
            taken.push(before);
            known = known.max(before + 1);
        }
        (taken, known)
    }

    #[test]
    fn answers_are_taken_in_in_the_order_of_a_directorys_versions() {
        let mut arrivals = Arrivals::default();
        (1..=4).for_each(|seq| arrivals.sent(id(seq), &removal(5)));
        let arrive = |arrivals: &mut Arrivals<u64>, seq, before| {
            arrivals.arrived((id(seq), fid(seq)), Some(before), &change(5, before), before);
        };
        arrive(&mut arrivals, 3, 12);
        assert_eq!(take_all(&mut arrivals, 10), (vec![], 10));
        arrive(&mut arrivals, 1, 10);
        assert_eq!(take_all(&mut arrivals, 10), (vec![10], 11));
        arrive(&mut arrivals, 2, 11);
        assert_eq!(take_all(&mut arrivals, 11), (vec![11, 12], 13));
        arrive(&mut arrivals, 4, 13);
        assert_eq!(take_all(&mut arrivals, 13), (vec![13], 14));
    }

    #[test]
    fn an_answer_waits_for_no_more_than_was_under_way_when_it_came() {
        let mut arrivals = Arrivals::default();
        arrivals.sent(id(1), &removal(5));
        arrivals.sent(id(2), &removal(5));
        arrivals.sent(id(3), &removal(6));
        arrivals.arrived((id(2), fid(2)), Some(12), &change(5, 12), 12);
        arrivals.sent(id(4), &removal(5));
        assert_eq!(take_all(&mut arrivals, 10), (vec![], 10));
        // Another client has changed the directory in between; and the first record was refused.
        arrivals.arrived((id(1), fid(1)), None, &[], 1);
        assert_eq!(take_all(&mut arrivals, 10).0, [12, 1]);
    }

    #[test]
    fn the_answers_about_one_object_keep_their_order() {
        let mut arrivals = Arrivals::default();
        arrivals.sent(id(1), &removal(5));
        arrivals.arrived((id(2), fid(20)), Some(12), &change(5, 12), 12);
        arrivals.arrived((id(3), fid(20)), Some(13), &[], 13);
        assert!(take_all(&mut arrivals, 10).0.is_empty());
        arrivals.arrived((id(1), fid(21)), Some(10), &change(5, 11), 11);
        assert_eq!(take_all(&mut arrivals, 11).0, [11, 12, 13]);
    }

    #[test]
    fn what_tells_of_no_directory_or_of_an_unknown_one_waits_for_nobody() {
        let mut arrivals = Arrivals::default();
        arrivals.sent(id(1), &removal(5));
        arrivals.arrived((id(2), fid(2)), Some(3), &[], 3);
        assert_eq!(take_all(&mut arrivals, 0).0, [3]);
        arrivals.arrived((id(3), fid(3)), Some(7), &change(5, 7), 7);
        assert_eq!(arrivals.take_free(|_| None, |_| false), Some(7));
    }

    #[test]
    fn what_is_told_of_an_object_waits_for_what_makes_it() {
        let mut arrivals = under_way(&[making(1, 5), making(5, 6), removal(1)]);
        // A name in the new directory, then its attributes: nothing is known of it yet.
        arrivals.arrived((id(2), fid(6)), Some(12), &change(5, 1), 12);
        arrivals.arrived((id(4), fid(5)), Some(13), &[], 13);
        assert_eq!(arrivals.take_free(|_| None, |_| false), None);
        arrivals.arrived((id(1), fid(5)), Some(11), &change(1, 10), 11);
        let known = |directory| (directory == fid(1)).then_some(DataVersion(10));
        assert_eq!(take_all_with(&mut arrivals, known), [11, 12, 13]);
    }

    #[test]
    fn an_answer_waits_for_records_before_its_own_about_the_same_name_or_object() {
        let mut arrivals = under_way(&[removal(5), making(5, 6), removal(7), setting(99)]);
        // The name "d" is not "a", and in another directory neither; the object is the same.
        arrivals.arrived((id(2), fid(6)), Some(12), &[], 12);
        arrivals.arrived((id(4), fid(99)), Some(14), &[], 14);
        assert_eq!(arrivals.take_free(|_| None, |_| true), Some(12));
        assert_eq!(arrivals.take_free(|_| None, |_| true), None);
        arrivals.arrived((id(3), fid(99)), Some(13), &[], 13);
        // The first record is refused, and sent again.
        arrivals.arrived((id(1), fid(99)), None, &[], 1);
        assert_eq!(arrivals.take_free(|_| None, |id| id.seq == 1), Some(1));
        assert_eq!(arrivals.take_free(|_| None, |id| id.seq == 1), None);
        assert_eq!(arrivals.take_free(|_| None, |id| id.seq == 3), Some(13));
        assert_eq!(arrivals.take_free(|_| None, |_| false), Some(14));
    }

    #[test]
    fn what_is_behind_an_answer_that_waits_itself_waits_with_it() {
        let mut arrivals = under_way(&[setting(99), removal(5), making(5, 6)]);
        // The removal waits for the attributes of what is removed, and the name beside it for the removal.
        arrivals.arrived((id(2), fid(99)), Some(12), &change(5, 10), 10);
        arrivals.arrived((id(3), fid(6)), Some(13), &change(5, 11), 11);
        assert_eq!(arrivals.take_free(|_| Some(DataVersion(10)), |id| id.seq == 1), None);
        arrivals.arrived((id(1), fid(99)), Some(11), &[], 1);
        assert_eq!(arrivals.take_free(|_| Some(DataVersion(10)), |id| id.seq == 1), Some(1));
        assert_eq!(take_all(&mut arrivals, 10), (vec![10, 11], 12));
    }

    #[test]
    fn what_is_told_of_an_object_waits_for_what_makes_it_and_waits_itself() {
        let mut arrivals = under_way(&[removal(1), making(1, 5), making(5, 6)]);
        arrivals.arrived((id(2), fid(5)), Some(12), &change(1, 11), 12);
        // Nothing is known of the new directory, so that everything fits.
        arrivals.arrived((id(3), fid(6)), Some(13), &change(5, 1), 13);
        let known = |directory| (directory == fid(1)).then_some(DataVersion(10));
        assert_eq!(arrivals.take_free(known, |_| false), None);
        arrivals.arrived((id(1), fid(99)), Some(11), &change(1, 10), 11);
        assert_eq!(take_all_with(&mut arrivals, known), [11, 12, 13]);
    }

    #[test]
    fn answers_that_wait_for_each_other_are_taken_in_in_the_order_of_the_changes() {
        // The first was in conflict, and done after the second: that removes what it is about.
        let mut arrivals = under_way(&[setting(99), removal(5), removal(5)]);
        arrivals.arrived((id(2), fid(99)), Some(11), &change(5, 10), 11);
        arrivals.arrived((id(3), fid(99)), Some(13), &change(5, 12), 13);
        assert_eq!(arrivals.take_free(|_| Some(DataVersion(10)), |_| true), None);
        arrivals.arrived((id(1), fid(98)), Some(12), &change(5, 11), 12);
        let (mut taken, mut pending) = (Vec::new(), BTreeSet::from([1, 2, 3]));
        while let Some(change) =
            arrivals.take_free(|_| Some(DataVersion(10 + taken.len() as u64)), |id| pending.contains(&id.seq))
        {
            taken.push(change);
            pending.remove(&[2, 1, 3][usize::try_from(change - 11).unwrap()]);
        }
        assert_eq!(taken, [11, 12, 13]);
    }

    #[test]
    fn what_waits_for_a_refused_record_that_waits_for_its_like_is_taken_in() {
        let mut arrivals = under_way(&[removal(5), removal(5), removal(5)]);
        arrivals.arrived((id(3), fid(99)), Some(11), &change(5, 10), 11);
        arrivals.arrived((id(2), fid(99)), None, &[], 2);
        let known = |taken: u64| move |_| Some(DataVersion(10 + taken));
        let first_is_decided = |id: StoreId| id.seq == 2;
        assert_eq!(arrivals.take_free(known(0), |_| true), Some(2));
        arrivals.arrived((id(1), fid(99)), Some(12), &change(5, 11), 12);
        assert_eq!(arrivals.take_free(known(0), first_is_decided), None, "the second is about to be sent again");
        let held_up_by = |of: StoreId| if of.seq == 2 { vec![id(1)] } else { Vec::new() };
        assert_eq!(arrivals.take(known(0), first_is_decided, held_up_by), Some(11));
        assert_eq!(arrivals.take(known(1), first_is_decided, held_up_by), Some(12));
    }

    #[test]
    fn what_is_behind_a_lost_answer_waits_until_its_record_was_sent_again() {
        let mut arrivals = Arrivals::default();
        (1..=3).for_each(|seq| arrivals.sent(id(seq), &removal(5)));
        let arrive = |arrivals: &mut Arrivals<u64>, seq, before| {
            arrivals.arrived((id(seq), fid(seq)), Some(before), &change(5, before), before);
        };
        arrive(&mut arrivals, 2, 11);
        arrivals.lost(id(1), 99);
        arrive(&mut arrivals, 3, 12);
        let pending = |id: StoreId| id.seq == 1;
        let take = |arrivals: &mut Arrivals<u64>, known| arrivals.take_free(|_| Some(DataVersion(known)), pending);
        assert_eq!((take(&mut arrivals, 10), take(&mut arrivals, 10)), (Some(99), None));
        arrivals.sent(id(1), &removal(5));
        assert_eq!(take(&mut arrivals, 10), None);
        arrive(&mut arrivals, 1, 10);
        assert_eq!(take_all(&mut arrivals, 10), (vec![10, 11, 12], 13));
    }

    #[test]
    fn a_lost_answer_of_what_is_not_sent_again_keeps_nobody_waiting() {
        let mut arrivals = Arrivals::default();
        arrivals.sent(id(1), &removal(5));
        arrivals.sent(id(2), &removal(5));
        arrivals.arrived((id(2), fid(2)), Some(11), &change(5, 11), 11);
        arrivals.lost(id(1), 1);
        assert_eq!(take_all(&mut arrivals, 10).0, [1, 11]);
    }
}
