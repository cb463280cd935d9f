//! Tests that a gate gives its sessions the uplink, all of it and no more, in order and in equal shares.

use std::time::Duration;

use mafs_proto::{Class, Instant};
use proptest::prelude::*;

use crate::engine::gate::{DEBT_MAX, Demand, Gate, SLACK, SessionId, Verdict, wire_bytes};
use crate::engine::{Rate, Settings};
use crate::link::SEGMENT_BYTES;

const BYTES_PER_S: u64 = 1_000_000;
const CHUNK_MAX: u64 = 10_000;
const SECOND: Duration = Duration::from_secs(1);

fn gate() -> Gate {
    Gate::new(Rate::bytes_per_s(BYTES_PER_S).unwrap())
}

/// Returns how many bytes pass in a time, as the gate counts them.
fn carried(time: Duration) -> u64 {
    u64::try_from(u128::from(BYTES_PER_S) * time.as_nanos() / 1_000_000_000).unwrap() * 32 / 33
}

/// A session that has enough to send of one class, but for the time in which it cannot.
#[derive(Clone, Debug)]
struct Plan {
    class: Class,
    chunk_bytes: u64,
    /// How late its timer goes off.
    late: Duration,
    away: (Duration, Duration),
    leaves: Duration,
}

impl Plan {
    fn steady(class: Class, chunk_bytes: u64) -> Self {
        let (late, away) = (Duration::ZERO, (Duration::MAX, Duration::MAX));
        Self { class, chunk_bytes, late, away, leaves: Duration::MAX }
    }

    fn demand(&self, now: Instant) -> Option<Demand> {
        let time = Duration::from_nanos(now.0);
        let here = time < self.leaves && !(self.away.0..self.away.1).contains(&time);
        here.then_some(Demand { class: self.class, bytes: self.chunk_bytes })
    }
}

struct End {
    id: SessionId,
    plan: Plan,
    /// When the session asks next. Sessions do not ask without a reason.
    asks_at: Option<Instant>,
    waits: bool,
}

struct Crowd {
    gate: Gate,
    ends: Vec<End>,
    /// The frames that have passed: when, of which session, and how many bytes on the wire.
    passed: Vec<(Instant, usize, u64)>,
}

impl Crowd {
    fn new(plans: Vec<Plan>) -> Self {
        let mut gate = gate();
        let end = |plan| End { id: gate.join(), plan, asks_at: Some(Instant(0)), waits: false };
        let ends = plans.into_iter().map(end).collect();
        Self { gate, ends, passed: Vec::new() }
    }

    fn run(plans: Vec<Plan>, time: Duration) -> Self {
        let mut crowd = Self::new(plans);
        while let Some((number, now)) = crowd.next().filter(|(_, at)| *at <= Instant(0) + time) {
            crowd.ask(number, now);
        }
        crowd
    }

    /// Returns the session that asks next, and when.
    fn next(&self) -> Option<(usize, Instant)> {
        let asking = self.ends.iter().enumerate().filter_map(|(number, end)| Some((number, end.asks_at?)));
        asking.min_by_key(|(_, at)| *at)
    }

    /// Takes a turn of a driver: sends the frames that may go, or says that there is nothing.
    fn ask(&mut self, number: usize, now: Instant) {
        let End { id, plan, .. } = &self.ends[number];
        let (id, plan) = (*id, plan.clone());
        let mut asks_at =
            Some(plan.away).filter(|(from, _)| Instant(0) + *from > now).map(|(from, _)| Instant(0) + from);
        let mut waits = false;
        while let Some(demand) = plan.demand(now) {
            match self.gate.admit(id, demand, now) {
                Verdict::Admit => {
                    self.check_order(number);
                    self.passed.push((now, number, wire_bytes(demand.bytes)));
                    self.wake_next(now);
                    continue;
                }
                Verdict::WaitUntil(at) => asks_at = Some(asks_at.map_or(at, |away| away.min(at)) + plan.late),
                Verdict::Wait => {}
            }
            waits = true;
            break;
        }
        let time = Duration::from_nanos(now.0);
        if time >= plan.leaves {
            self.gate.leave(id);
        } else if !waits {
            self.gate.withdraw(id);
            asks_at = Some(Instant(0) + plan.away.1);
        }
        (self.ends[number].asks_at, self.ends[number].waits) = (asks_at, waits);
        self.wake_next(now);
    }

    fn wake_next(&mut self, now: Instant) {
        let Some(next) = self.gate.poll_next() else { return };
        let end = self.ends.iter_mut().find(|end| end.id == next).unwrap();
        end.asks_at = Some(end.asks_at.map_or(now, |before| before.min(now)));
    }

    /// Checks that no more urgent session waits.
    fn check_order(&self, number: usize) {
        let class = self.ends[number].plan.class;
        let more_urgent = self.ends.iter().find(|end| end.waits && end.plan.class < class);
        assert!(more_urgent.is_none(), "{class} passes before {:?}", more_urgent.map(|end| &end.plan));
    }

    /// Returns how many bytes a session has sent in a time, on the wire.
    fn bytes_of(&self, number: usize, from: Duration, to: Duration) -> u64 {
        let passed = self
            .passed
            .iter()
            .filter(|(at, whose, _)| *whose == number && (Instant(0) + from..Instant(0) + to).contains(at));
        passed.map(|(_, _, bytes)| bytes).sum()
    }

    fn all_bytes(&self) -> u64 {
        self.passed.iter().map(|(_, _, bytes)| bytes).sum()
    }
}

fn class() -> impl Strategy<Value = Class> {
    (1..5_u32).prop_map(|index| Class::from_index(index).unwrap())
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

prop_compose! {
    fn plan()(
        class in class(), chunk_bytes in 0..CHUNK_MAX, late in millis(0..5),
        from in millis(0..1000), time in millis(0..500), leaves in millis(500..2000),
    ) -> Plan {
        Plan { class, chunk_bytes, late, away: (from, from + time), leaves }
    }
}

proptest! {
    #[test]
    fn no_more_passes_than_the_rate_and_one_burst(plans in prop::collection::vec(plan(), 1..8)) {
        let crowd = Crowd::run(plans, SECOND);
        for (first, (from, ..)) in crowd.passed.iter().enumerate() {
            let mut bytes = 0;
            for (at, _, more) in &crowd.passed[first..] {
                // The one that goes now has the time after it.
                let most = carried(at.since(*from) + SLACK) + wire_bytes(CHUNK_MAX);
                prop_assert!(bytes <= most, "{bytes} bytes from {from:?} to {at:?}");
                bytes += more;
            }
        }
    }

    #[test]
    fn all_passes_that_the_uplink_carries_while_somebody_has_something_to_send(
        mut plans in prop::collection::vec(plan(), 0..8), class in class(), late in millis(0..5),
    ) {
        plans.push(Plan { late, ..Plan::steady(class, 1400) });
        let crowd = Crowd::run(plans, SECOND);
        prop_assert!(crowd.all_bytes() >= carried(SECOND - SLACK), "{} bytes", crowd.all_bytes());
    }

    #[test]
    fn each_of_those_that_wait_gets_an_equal_share_within_a_chunk(
        chunks in prop::collection::vec(0..CHUNK_MAX, 1..12), class in class(), until in millis(100..1000),
    ) {
        let sessions = chunks.len() as u64;
        let crowd = Crowd::run(chunks.iter().map(|bytes| Plan::steady(class, *bytes)).collect(), until);
        let share = crowd.all_bytes() / sessions;
        for number in 0..chunks.len() {
            let bytes = crowd.bytes_of(number, Duration::ZERO, SECOND);
            prop_assert!(bytes.abs_diff(share) <= wire_bytes(CHUNK_MAX), "{bytes} of {share}");
        }
    }

    #[test]
    fn who_cannot_send_for_a_moment_loses_nothing_and_for_longer_delays_nobody(
        others in 1..8_usize, away in millis(1..300), chunk_bytes in 500..CHUNK_MAX,
    ) {
        let from = Duration::from_millis(400);
        let mut plans = vec![Plan::steady(Class::Fetch, chunk_bytes); others + 1];
        plans[0].away = (from, from + away);
        let crowd = Crowd::run(plans, SECOND);
        prop_assert!(crowd.all_bytes() >= carried(SECOND - SLACK), "{} bytes", crowd.all_bytes());

        let sent = |number| crowd.bytes_of(number, Duration::ZERO, SECOND);
        let (missed, chunk) = (carried(away) / others as u64, wire_bytes(chunk_bytes));
        let made_up = carried(SLACK);
        let lost = sent(1).saturating_sub(sent(0));
        prop_assert!(lost <= missed.saturating_sub(made_up) + 2 * chunk, "lost {lost} of {missed}");
        prop_assert!(missed <= lost + made_up + 4 * chunk, "lost only {lost} of {missed}");
    }
}

#[test]
fn the_more_urgent_class_of_another_session_goes_first_and_the_less_urgent_takes_the_rest() {
    let mut plans = vec![Plan::steady(Class::Store, CHUNK_MAX), Plan::steady(Class::Fetch, 1400)];
    plans[1].away = (SECOND / 2, SECOND);
    let crowd = Crowd::run(plans, SECOND);
    let of_store = |from, to| crowd.bytes_of(0, from, to);
    assert!(of_store(Duration::ZERO, SECOND / 2) <= 2 * wire_bytes(CHUNK_MAX), "{:?}", crowd.passed);
    assert!(of_store(SECOND / 2, SECOND) >= carried(SECOND / 2 - SLACK) - wire_bytes(CHUNK_MAX));
}

#[test]
fn who_leaves_frees_its_place_also_if_it_was_the_next() {
    for first_leaves in [SECOND / 3, SECOND / 2] {
        let mut plans = vec![Plan::steady(Class::Fetch, 1400); 3];
        (plans[0].leaves, plans[1].leaves) = (first_leaves, SECOND / 2);
        let crowd = Crowd::run(plans, SECOND);
        assert!(crowd.bytes_of(2, SECOND / 2, SECOND) >= carried(SECOND / 2 - SLACK));
    }
    let mut gate = gate();
    let (one, other) = (gate.join(), gate.join());
    let demand = Demand { class: Class::Fetch, bytes: 1400 };
    let now = Instant(1_000_000_000);
    while gate.admit(one, demand, now) == Verdict::Admit {}
    assert!(matches!(gate.admit(other, demand, now), Verdict::WaitUntil(_)), "it has had less");
    assert_eq!(gate.poll_next(), None, "who is first has just heard that");
    gate.leave(other);
    assert_eq!(gate.poll_next(), Some(one));
    assert_eq!(gate.poll_next(), None);
}

#[test]
fn a_newcomer_is_owed_nothing_from_before() {
    let mut gate = gate();
    let old = gate.join();
    let demand = Demand { class: Class::Fetch, bytes: 1400 };
    let mut now = Instant(0);
    for _ in 0..1000 {
        now = match gate.admit(old, demand, now) {
            Verdict::Admit => now,
            Verdict::WaitUntil(at) => at,
            Verdict::Wait => panic!("it is alone"),
        };
    }
    let ids = [old, gate.join()];
    let mut passed = [0, 0];
    while passed[0] < 10 {
        for (id, passed) in ids.into_iter().zip(&mut passed) {
            match gate.admit(id, demand, now) {
                Verdict::Admit => *passed += 1,
                Verdict::WaitUntil(at) => now = at,
                Verdict::Wait => {}
            }
        }
    }
    assert!((9..=11).contains(&passed[1]), "{passed:?}");
}

#[test]
fn what_does_not_wait_takes_its_time_from_the_rest_up_to_a_bound() {
    let mut gate = gate();
    let id = gate.join();
    let (demand, now) = (Demand { class: Class::Fetch, bytes: 1400 }, Instant(1_000_000_000));
    let waits = |gate: &mut Gate| match gate.admit(id, demand, now) {
        Verdict::WaitUntil(at) => at.since(now),
        other => panic!("{other:?}"),
    };
    let frames = 100;
    (0..frames).for_each(|_| gate.pass(200, now));
    let time = Duration::from_micros(frames * wire_bytes(200) * 33 / 32);
    assert!(waits(&mut gate).abs_diff(time - SLACK) < Duration::from_millis(1));
    (0..100 * frames).for_each(|_| gate.pass(1000, now));
    assert_eq!(waits(&mut gate), DEBT_MAX);
}

#[test]
fn a_frame_counts_with_the_headers_of_its_packets() {
    assert_eq!(wire_bytes(0), 30 + 52);
    let settings = Settings::default().in_packets(SEGMENT_BYTES);
    let [chunk_bytes, _] = settings.limits.chunk_bytes;
    assert_eq!(wire_bytes(chunk_bytes), 1500, "a chunk that fills a packet is one");
    assert_eq!(wire_bytes(chunk_bytes + 1), 1501 + 52);
    assert_eq!(wire_bytes(2866), 2896 + 2 * 52);
    assert_eq!(wire_bytes(2867), 2897 + 3 * 52);
}
