//! Close to open with the default options, where a close may return before the server has the content: the other
//! client opens at once, without a pause, what one client has closed.

use std::fs;

use mafs_bench::content::bytes;

use super::content::{IN_PLACE, SIZES, Tally};
use super::{Pair, ROUNDS, rounds};

/// Rounds before those that count: until so many announcements have been answered a client may take another for far
/// away, on a busy machine.
const FIRST_ROUNDS: u32 = 20;

/// Opens of which one may be old on a machine whose processors have always somebody waiting for them: announcements
/// may take longer there than a close waits for.
const OLD_ONE_IN_IF_BUSY: u32 = 4;
const BUSY_PERCENT: f64 = 80.0;

/// One client writes and the other opens: in turns the second would change what it has not heard of. Each change ends
/// with a close; changes of names, which are told in the background, are left to the other tests.
#[test]
#[ignore = "needs: fuse"]
fn after_close_on_one_client_open_on_the_other_gives_the_new_content_by_default() {
    let pair = Pair::start_with("writeback=sirp", rounds(), rounds().div_ceil(ROUNDS));
    let (mut first, mut tally) = (Tally::default(), Tally::default());
    for (name, change) in IN_PLACE {
        let [writer, reader] = pair.mounts.ways.each_ref().map(|mount| mount.join(name));
        let mut content = bytes(0, SIZES[0]);
        fs::write(&writer, &content).unwrap();
        for round in 0..FIRST_ROUNDS + pair.mounts.rounds {
            content = change(&writer, &content, &bytes(u64::from(round) + 1, SIZES[0])).unwrap();
            let tally = if round < FIRST_ROUNDS { &mut first } else { &mut tally };
            tally.count(name, &reader, &content);
        }
    }
    pair.stop();
    tally.assert_new_but_for(if is_busy() { OLD_ONE_IN_IF_BUSY } else { 0 });
}

/// Tells whether somebody has waited for a processor most of the last ten seconds: `some avg10=99.85 avg60=...`.
fn is_busy() -> bool {
    let pressure = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let share = pressure.split_whitespace().find_map(|word| word.strip_prefix("avg10="));
    share.and_then(|share| share.parse::<f64>().ok()).is_some_and(|share| share > BUSY_PERCENT)
}
