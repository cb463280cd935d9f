//! Tests that hold both ends of the protocol to its invariants, over an air whose fates a script decides.

use std::collections::VecDeque;
use std::time::Duration;

use mafs_proto::Instant;
use proptest::prelude::*;

use super::{ANSWER_BYTES, Answer, Event, Frame, Queues, Receiver, Refused, Sender, Sequence, Settings, Station};
use crate::link::PACKET_BYTES;

/// The fate of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Answered,
    FrameLost,
    AnswerLost,
}

/// A sender, its stations, and an air on which a byte takes a microsecond.
struct Radio {
    sender: Sender,
    receivers: Vec<Receiver>,
    now: Instant,
    /// The packets that each station has been given, and when.
    given: Vec<Vec<(Instant, Sequence)>>,
    events: Vec<Event>,
    frames: Vec<Frame>,
}

impl Radio {
    fn new(stations: usize, settings: Settings) -> Self {
        Self {
            sender: Sender::new(stations, settings),
            receivers: (0..stations).map(|station| Receiver::new(Station(station))).collect(),
            now: Instant(0),
            given: vec![Vec::new(); stations],
            events: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// Makes a radio with so many full packets to each station.
    fn filled(stations: usize, packets: usize, settings: Settings) -> Self {
        let mut radio = Self::new(stations, settings);
        for station in std::iter::repeat_n(0..stations, packets).flatten() {
            assert!(radio.sender.offer(Station(station), PACKET_BYTES).is_ok());
        }
        radio
    }

    /// Sends the next frame, as late as it has to be. `None` if there is nothing to send.
    fn step(&mut self, mut fate: impl FnMut(Frame) -> Fate) -> Option<Frame> {
        let frame = match self.sender.poll_transmit(self.now) {
            Some(frame) => frame,
            None => {
                self.now = self.now.max(self.sender.poll_timeout()?);
                self.sender.poll_transmit(self.now).expect("a time-out has something to send")
            }
        };
        assert_eq!(self.sender.poll_transmit(self.now), None, "one frame at a time");
        self.frames.push(frame);
        self.now = self.now + Duration::from_micros(frame.air_bytes());
        let (fate, to) = (fate(frame), frame.to().0);
        let crossed = (fate != Fate::FrameLost).then_some(frame);
        let heard = crossed.and_then(|frame| self.receivers[to].handle_frame(frame, u64::MAX));
        if let (Some(true), Frame::Data { sequence, .. }) = (heard.map(|heard| heard.is_new), frame) {
            self.given[to].push((self.now, sequence));
        }
        self.now = self.now + Duration::from_micros(ANSWER_BYTES);
        self.events.extend(match heard.filter(|_| fate == Fate::Answered) {
            Some(heard) => self.sender.handle_answer(heard.answer),
            None => self.sender.handle_silence(self.now),
        });
        Some(frame)
    }

    /// Sends until nothing is left.
    fn finish(&mut self, mut fate: impl FnMut(Frame) -> Fate) {
        while self.step(&mut fate).is_some() {}
    }

    /// Returns when a station has been given so many packets.
    fn given_at(&self, station: usize, packets: usize) -> Instant {
        self.given[station][packets - 1].0
    }

    fn sequences(&self, station: usize) -> Vec<u64> {
        self.given[station].iter().map(|(_, sequence)| sequence.0).collect()
    }
}

fn settings() -> Settings {
    Settings::default().with_queue_bytes(1 << 20)
}

fn any_fate() -> impl Strategy<Value = Fate> {
    prop_oneof![4 => Just(Fate::Answered), 1 => Just(Fate::FrameLost), 1 => Just(Fate::AnswerLost)]
}

proptest! {
    /// Uses an air that lets a packet through before it has been left without an answer too often.
    #[test]
    fn nothing_is_lost_within_the_retry_limit_and_order_is_kept(
        offers in proptest::collection::vec((0..4_usize, 1..3000_u64), 1..80),
        fates in proptest::collection::vec(any_fate(), 1..200),
        retries in 0..5_u32,
        shared in any::<bool>(),
    ) {
        let queues = if shared { Queues::Shared } else { Queues::PerStation };
        let mut radio = Radio::new(4, settings().with_retries(retries).with_queues(queues));
        let mut wanted = vec![Vec::new(); 4];
        for (station, bytes) in offers {
            wanted[station].push(radio.sender.offer(Station(station), bytes).unwrap().0);
        }
        let mut fates = fates.into_iter().cycle();
        let mut silences = [0; 4];
        radio.finish(|frame| {
            let silences = &mut silences[frame.to().0];
            let fate = if *silences == retries { Fate::Answered } else { fates.next().unwrap() };
            match (fate, frame) {
                (Fate::Answered, Frame::Probe { .. }) => {}
                (Fate::Answered, Frame::Data { .. }) => *silences = 0,
                (Fate::FrameLost | Fate::AnswerLost, _) => *silences += 1,
            }
            fate
        });
        for (station, wanted) in wanted.iter().enumerate() {
            prop_assert_eq!(&radio.sequences(station), wanted);
        }
        let all_delivered = radio.events.iter().all(|event| matches!(event, Event::Delivered { .. }));
        prop_assert!(all_delivered, "{:?}", radio.events);
        prop_assert_eq!(radio.events.len(), wanted.concat().len());
    }

    /// Uses an air that may be as bad as it likes.
    #[test]
    fn each_packet_ends_once_and_none_is_given_twice_or_late(
        offers in proptest::collection::vec((0..3_usize, 1..3000_u64), 1..60),
        fates in proptest::collection::vec(any_fate(), 1..200),
        retries in 0..3_u32,
    ) {
        let mut radio = Radio::new(3, settings().with_retries(retries));
        for (station, bytes) in &offers {
            radio.sender.offer(Station(*station), *bytes).unwrap();
        }
        let mut fates = fates.into_iter().cycle();
        radio.finish(|_| fates.next().unwrap());
        for station in 0..3 {
            let given = radio.sequences(station);
            prop_assert!(given.is_sorted_by(|one, next| one < next), "{:?}", given);
            let ended: Vec<u64> = radio.events.iter().filter_map(|event| match event {
                Event::Delivered { to, sequence } | Event::GivenUp { to, sequence } if *to == Station(station) => {
                    Some(sequence.0)
                }
                Event::Delivered { .. } | Event::GivenUp { .. } => None,
            }).collect();
            let offered = offers.iter().filter(|(to, _)| *to == station).count() as u64;
            prop_assert_eq!(ended, (0..offered).collect::<Vec<_>>());
        }
    }

    /// Compares with a model of whole packets.
    #[test]
    fn queues_hold_no_more_than_their_bytes_and_refuse_only_their_own(
        steps in proptest::collection::vec(proptest::option::of((0..2_usize, 0..2000_u64)), 1..200),
    ) {
        const LIMIT: u64 = 4000;
        let mut radio = Radio::new(2, settings().with_queue_bytes(LIMIT));
        let mut queues = [const { VecDeque::new() }; 2];
        for step in steps {
            match step {
                Some((station, bytes)) => {
                    let queue = &mut queues[station];
                    let bytes_held = queue.iter().sum::<u64>();
                    let taken = radio.sender.offer(Station(station), bytes);
                    if bytes_held + bytes.max(1) > LIMIT {
                        prop_assert_eq!(taken, Err(Refused::QueueFull));
                    } else {
                        prop_assert!(taken.is_ok());
                        queue.push_back(bytes.max(1));
                    }
                }
                None => {
                    if let Some(frame) = radio.step(|_| Fate::Answered) {
                        queues[frame.to().0].pop_front();
                    }
                }
            }
        }
    }
}

#[test]
fn a_packet_is_given_up_at_the_retry_limit_and_the_next_one_goes() {
    let mut radio = Radio::filled(1, 2, settings().with_retries(3));
    for _ in 0..4 {
        radio.step(|_| Fate::FrameLost);
    }
    assert_eq!(radio.events, [Event::GivenUp { to: Station(0), sequence: Sequence(0) }]);
    assert_eq!(radio.frames.iter().filter(|frame| matches!(frame, Frame::Data { .. })).count(), 1);
    radio.finish(|_| Fate::Answered);
    assert_eq!(radio.sequences(0), [1]);
}

#[test]
fn a_lost_acknowledgement_does_not_deliver_twice() {
    let mut radio = Radio::filled(1, 2, settings());
    radio.step(|_| Fate::AnswerLost);
    radio.finish(|_| Fate::Answered);
    let data = radio.frames.iter().filter(|frame| matches!(frame, Frame::Data { sequence: Sequence(0), .. })).count();
    assert_eq!((data, radio.sequences(0)), (2, vec![0, 1]));
    assert_eq!(radio.events.len(), 2);
}

#[test]
fn an_answer_to_another_frame_is_none() {
    let mut radio = Radio::filled(2, 2, settings());
    let frame = radio.sender.poll_transmit(Instant(0)).unwrap();
    let Frame::Data { to: Station(to), sequence, .. } = frame else { panic!("{frame:?}") };
    for answer in [
        Answer::Ready { from: Station(to) },
        Answer::Acknowledged { from: Station(1 - to), sequence },
        Answer::Acknowledged { from: Station(to), sequence: Sequence(sequence.0 + 1) },
    ] {
        assert_eq!(radio.sender.handle_answer(answer), None);
        assert_eq!(radio.sender.poll_transmit(Instant(0)), None, "it still waits after {answer:?}");
    }
    let event = radio.sender.handle_answer(Answer::Acknowledged { from: Station(to), sequence });
    assert_eq!(event, Some(Event::Delivered { to: Station(to), sequence }));
    assert_eq!(radio.sender.handle_answer(Answer::Acknowledged { from: Station(to), sequence }), None);
    assert_eq!(radio.sender.handle_silence(Instant(0)), None, "nothing is unanswered");
}

#[test]
fn a_silent_station_is_probed_at_once_and_then_after_waits_that_grow_to_a_limit() {
    let mut radio = Radio::filled(1, 1, settings());
    let mut ended = radio.now;
    let mut waits_ms = Vec::new();
    for _ in 0..8 {
        let frame = radio.step(|_| Fate::FrameLost).unwrap();
        let took = Duration::from_micros(frame.air_bytes() + ANSWER_BYTES);
        waits_ms.push(radio.now.since(ended + took).as_millis());
        ended = radio.now;
        assert_eq!(matches!(frame, Frame::Data { .. }), waits_ms.len() == 1, "{frame:?}");
    }
    assert_eq!(waits_ms, [0, 0, 5, 10, 15, 20, 20, 20]);
    // A station that answers is good again, and its waits begin anew.
    radio.step(|_| Fate::Answered);
    assert!(matches!(radio.step(|_| Fate::FrameLost), Some(Frame::Data { .. })));
    let ended = radio.now;
    radio.step(|_| Fate::FrameLost);
    assert!(radio.now.since(ended) < Duration::from_millis(1));
}

/// Returns when each of four stations had each of its packets, if frames to the third meet this fate.
fn given_at(mut fate: impl FnMut(Frame) -> Fate) -> impl Fn(usize, usize) -> Instant {
    let mut radio = Radio::filled(4, 200, settings());
    radio.finish(|frame| if frame.to() == Station(2) { fate(frame) } else { Fate::Answered });
    move |station, packets| radio.given_at(station, packets)
}

#[track_caller]
fn assert_others_are_not_delayed(given_at: impl Fn(usize, usize) -> Instant, by: Duration) {
    let usual = self::given_at(|_| Fate::Answered);
    for (station, packets) in [0, 1, 3].into_iter().flat_map(|station| (1..=200).map(move |many| (station, many))) {
        let (late, usual) = (given_at(station, packets), usual(station, packets));
        assert!(late <= usual + by, "packet {packets} of {station}: {late:?} in place of {usual:?}");
    }
}

#[test]
fn a_silent_station_costs_the_others_nothing() {
    // One probe may be on the air.
    assert_others_are_not_delayed(given_at(|_| Fate::FrameLost), Duration::from_micros(100));
    assert_others_are_not_delayed(given_at(|_| Fate::AnswerLost), Duration::from_micros(100));
}

#[test]
fn a_station_that_loses_every_other_packet_pays_for_that_itself() {
    let mut lost = false;
    let lossy = given_at(|frame| {
        lost = !lost && matches!(frame, Frame::Data { .. });
        if lost { Fate::FrameLost } else { Fate::Answered }
    });
    // A packet and a probe may be on the air.
    assert_others_are_not_delayed(lossy, Duration::from_millis(2));
}

#[test]
fn the_first_of_a_shared_queue_holds_up_the_others() {
    let mut radio = Radio::filled(2, 1, settings().with_queues(Queues::Shared));
    let fate = |frame: Frame| if frame.to().0 == 0 { Fate::FrameLost } else { Fate::Answered };
    radio.finish(fate);
    // 33 frames, with waits of 0, 5, 10, 15 and 28 times 20 ms between them.
    assert!(radio.given_at(1, 1) > Instant(0) + Duration::from_millis(590), "{:?}", radio.given);
    let mut radio = Radio::filled(2, 1, settings());
    radio.finish(fate);
    assert!(radio.given_at(1, 1) < Instant(0) + Duration::from_millis(5), "{:?}", radio.given);
}

#[test]
fn what_a_station_has_missed_is_made_up_within_a_bound() {
    let mut radio = Radio::filled(2, 300, settings());
    let mut made_up = |burst_packets: usize| {
        let burst_ends = radio.given[1].len() + burst_packets;
        let had = radio.given[0].len();
        while radio.given[1].len() < burst_ends || radio.given[0].len() == had {
            let bad = radio.given[1].len() < burst_ends;
            radio.step(|frame| if bad && frame.to().0 == 0 { Fate::FrameLost } else { Fate::Answered });
        }
        let lead = |radio: &Radio| radio.given[1].len() - radio.given[0].len();
        let missed = lead(&radio);
        let and_60 = radio.given[1].len() + 60;
        while radio.given[1].len() < and_60 {
            radio.step(|_| Fate::Answered);
        }
        (missed, missed - lead(&radio))
    };
    let (missed, again) = made_up(5);
    // The packet that was lost was paid for.
    assert!((5..14).contains(&missed) && missed - again <= 2, "{again} of {missed}");
    let (missed, again) = made_up(30);
    assert!(missed > 28 && (14..=16).contains(&again), "{again} of {missed}");
}

#[test]
fn shares_are_equal_in_bytes_whatever_the_size_of_packets() {
    let mut radio = Radio::new(3, settings());
    let sizes = [1500, 700, 60];
    for (station, bytes) in sizes.into_iter().enumerate() {
        while radio.sender.offer(Station(station), bytes).is_ok() {}
    }
    for _ in 0..5000 {
        radio.step(|_| Fate::Answered);
    }
    let on_air: Vec<u64> =
        radio.given.iter().zip(sizes).map(|(given, bytes)| given.len() as u64 * (bytes + ANSWER_BYTES)).collect();
    let (least, most) = (on_air.iter().min().unwrap(), on_air.iter().max().unwrap());
    assert!(most - least <= 2 * PACKET_BYTES, "{on_air:?}");
}

#[test]
fn a_station_without_room_says_nothing_until_it_has_some() {
    let mut receiver = Receiver::new(Station(1));
    let data = |number| Frame::Data { to: Station(1), sequence: Sequence(number), bytes: 100 };
    let acknowledged = |number| Some(Answer::Acknowledged { from: Station(1), sequence: Sequence(number) });
    let answer = |heard: Option<super::Heard>| heard.map(|heard| heard.answer);
    let probe = Frame::Probe { to: Station(1), bytes: 100 };
    assert_eq!(receiver.handle_frame(probe, 99), None);
    assert_eq!(receiver.handle_frame(data(0), 99), None);
    assert_eq!(answer(receiver.handle_frame(probe, 100)), Some(Answer::Ready { from: Station(1) }));
    assert!(receiver.handle_frame(data(0), 100).is_some_and(|heard| heard.is_new));
    // A packet that is there already needs no room.
    let again = receiver.handle_frame(data(0), 0);
    assert!(again.is_some_and(|heard| !heard.is_new));
    assert_eq!(answer(again), acknowledged(0));
}

#[test]
fn frames_for_others_are_not_answered() {
    let mut receiver = Receiver::new(Station(1));
    assert_eq!(receiver.handle_frame(Frame::Probe { to: Station(0), bytes: 1 }, 9), None);
    assert_eq!(receiver.handle_frame(Frame::Data { to: Station(2), sequence: Sequence(0), bytes: 1 }, 9), None);
}

#[test]
fn stations_that_do_not_exist_are_refused() {
    assert_eq!(Sender::new(2, settings()).offer(Station(2), 1), Err(Refused::UnknownStation));
    assert_eq!(Sender::new(0, settings()).offer(Station(0), 1), Err(Refused::UnknownStation));
}

#[test]
fn a_packet_as_large_as_its_queue_goes_and_pays_no_more_than_a_bound() {
    let mut radio = Radio::new(2, settings().with_queue_bytes(u64::MAX));
    radio.sender.offer(Station(0), 1 << 40).unwrap();
    radio.sender.offer(Station(0), 1).unwrap();
    for _ in 0..40 {
        radio.sender.offer(Station(1), PACKET_BYTES).unwrap();
    }
    radio.finish(|_| Fate::Answered);
    assert_eq!((radio.given[0].len(), radio.given[1].len()), (2, 40));
    assert!(radio.given_at(0, 2) < radio.given_at(1, 40));
}
