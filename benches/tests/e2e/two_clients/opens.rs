//! Close to open with the default options, where a close may return before the server has the content: what one client
//! has closed the other opens at once, without a pause.

use std::fs;

use mafs_bench::content::bytes;

use super::content::{BY_NAME, IN_PLACE, SIZES, Tally};
use super::{Pair, ROUNDS, rounds};

/// One client writes and the other opens: in turns the second would change what it has not heard of.
#[test]
#[ignore = "needs: fuse"]
fn after_close_on_one_client_open_on_the_other_gives_the_new_content_by_default() {
    let pair = Pair::start_with("writeback=sirp", rounds(), rounds().div_ceil(ROUNDS));
    let mut tally = Tally::default();
    for (name, change) in IN_PLACE.into_iter().chain(BY_NAME) {
        let [writer, reader] = pair.mounts.ways.each_ref().map(|mount| mount.join(name));
        let mut content = bytes(0, SIZES[0]);
        fs::write(&writer, &content).unwrap();
        for round in 0..pair.mounts.rounds {
            content = change(&writer, &content, &bytes(u64::from(round) + 1, SIZES[0])).unwrap();
            tally.count(name, &reader, &content);
        }
    }
    pair.stop();
    tally.assert_all_new();
}
