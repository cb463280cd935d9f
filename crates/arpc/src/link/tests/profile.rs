//! Tests of profiles: the names, and that each carries the described rates.

use std::time::Duration;

use mafs_proto::Instant;

use super::{START, flood, ms, secs};
use crate::link::{Direction, Dropped, Profile, Rate};

#[test]
fn names_are_known_and_others_are_refused_with_the_list() {
    for name in Profile::NAMES {
        assert_eq!(Profile::named(name, 9).unwrap().seed, 9, "{name}");
    }
    let error = Profile::named("lte ", 0).unwrap_err().to_string();
    assert!(error.contains("`lte `") && error.contains("lan, wifi-good, wifi-cafe"), "{error}");
}

/// Returns the Mbit/s that arrive in each direction.
fn rates(profile: &Profile, time: Duration) -> [f64; 2] {
    profile.links(START).map(|mut link| {
        let arrivals = flood(&mut link, 1500, ms(1), time);
        mbit_per_s(arrivals.iter().filter(|at| **at < time).count() as f64 * 1500.0 / time.as_secs_f64())
    })
}

fn mbit_per_s(bytes_per_s: f64) -> f64 {
    bytes_per_s * 8.0 / 1e6
}

#[track_caller]
fn assert_near(name: &str, found: [f64; 2], wanted: [f64; 2], tolerance: f64) {
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found / wanted - 1.0).abs() < tolerance, "{name}: {found} Mbit/s instead of {wanted}");
    }
}

#[test]
fn named_profiles_have_the_rates_they_are_described_with() {
    for (name, up, down, carried) in [
        ("lan", 1000.0, 1000.0, 1.0),
        ("wifi-good", 33.0, 40.0, 1.0),
        ("wifi-cafe", 5.0, 10.0, 1.0 / 1.04),
        ("wifi-roam", 33.0, 40.0, 30.0 / 30.3),
        ("3g", 0.768, 1.6, 1.0),
        ("edge-lossy", 0.2, 0.24, 0.95),
        ("geo", 3.0, 20.0, 1.0),
        ("leo", 15.0, 100.0, 0.99),
        ("flaky", 1.0, 5.0, 20.0 / 24.0),
    ] {
        let time = match name {
            "lan" => secs(1),
            // These links come and go.
            "leo" => secs(200),
            "flaky" => secs(1000),
            _ => secs(60),
        };
        let found = rates(&Profile::named(name, 1).unwrap(), time);
        assert_near(name, found, [up * carried, down * carried], 0.05);
    }
}

#[test]
fn cellular_profiles_have_the_rates_they_are_described_with() {
    for (name, up, down) in [("lte", 4.8, 12.0), ("lte-drive", 2.8, 5.6)] {
        let mean = |profiles: &[Profile], direction: fn(&Profile) -> &Direction| {
            let rates = profiles.iter().map(|profile| match &direction(profile).rate {
                Rate::Trace(trace) => mbit_per_s(trace.bytes_per_s() as f64),
                Rate::Steps { .. } => panic!("{name} has no trace"),
            });
            rates.sum::<f64>() / profiles.len() as f64
        };
        let profiles: Vec<Profile> = (0..8).map(|seed| Profile::named(name, seed).unwrap()).collect();
        let found = [mean(&profiles, |profile| &profile.up), mean(&profiles, |profile| &profile.down)];
        // 40 minutes are some 24 to 100 independent values.
        assert_near(name, found, [up, down], 0.25);
    }
}

#[test]
fn named_profiles_have_the_round_trips_they_are_described_with() {
    for (name, rtt_us) in [
        ("lan", 200),
        ("wifi-good", 2000),
        ("wifi-cafe", 20_000),
        ("wifi-roam", 2000),
        ("3g", 300_000),
        ("edge-lossy", 840_000),
        ("geo", 600_000),
        ("leo", 50_000),
        ("flaky", 60_000),
        ("lte", 70_000),
        ("lte-drive", 70_000),
    ] {
        let links = Profile::named(name, 1).unwrap().links(START);
        let round_trip: Duration = links.map(|mut link| link.offer(20, START).unwrap().since(START)).iter().sum();
        // 20 bytes take a while at 200 kbit/s, and wait for an opportunity of a trace.
        let wait = if name.starts_with("lte") { ms(20) } else { ms(2) };
        let rtt = Duration::from_micros(rtt_us);
        assert!((rtt..rtt + wait).contains(&round_trip), "{name}: {round_trip:?} instead of {rtt:?}");
    }
}

#[test]
fn down_carries_nothing_and_streams_on_it_end() {
    let profile = Profile::named("down", 1).unwrap();
    for mut link in profile.links(START) {
        assert_eq!(link.offer(100, START), Err(Dropped::Lost));
    }
    for mut stream in profile.streams(START) {
        assert!(stream.send(100, START).is_err());
    }
}

/// Returns the fates of packets and bytes on a profile, in both directions.
fn everything(name: &str, seed: u64) -> Vec<u64> {
    let profile = Profile::named(name, seed).unwrap();
    let at = |number: u64| START + ms(50 * number);
    let nanos = |time: Instant| time.0;
    let packets = profile
        .links(START)
        .map(|mut link| (0..5000).map(|number| link.offer(700, at(number)).map_or(0, nanos)).collect::<Vec<_>>());
    let bytes = profile
        .streams(START)
        .map(|mut stream| (0..500).map(|number| stream.send(900, at(number)).map_or(0, nanos)).collect::<Vec<_>>());
    [packets, bytes].into_iter().flatten().flatten().collect()
}

#[test]
fn same_seed_same_fates_and_other_seeds_others() {
    for name in Profile::NAMES {
        let first = everything(name, 1);
        assert_eq!(first, everything(name, 1), "{name}");
        let random = ["wifi-cafe", "lte", "lte-drive", "edge-lossy", "leo", "flaky", "wifi-roam"].contains(&name);
        assert_eq!(random, first != everything(name, 2), "{name}");
    }
}
