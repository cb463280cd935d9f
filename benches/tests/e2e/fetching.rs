//! What travels when files are read.

use std::fs;
use std::time::Duration;

use mafs_bench::content::{check_file, write_file};
use mafs_bench::process::run;
use mafs_bench::world::World;
use mafs_client::vfs::RpcStatistics;
use mafs_proto::Class;

const LIMIT: Duration = Duration::from_secs(60);
const FILES: u64 = 1000;
const BYTES: u64 = 10_000;

fn fetches(world: &World) -> u64 {
    let statistics = run(world.client_command().args(["stats", "--rpc", "--json"]).arg(world.mount()), LIMIT).unwrap();
    let statistics: RpcStatistics = serde_json::from_str(&statistics).unwrap();
    statistics[Class::Fetch.index()].calls
}

#[test]
#[ignore = "needs: fuse"]
fn a_file_that_is_opened_again_as_soon_as_it_has_come_is_not_fetched_again() {
    let mut world = World::start().unwrap();
    let file = |number: u64| world.mount().join(number.to_string());
    (0..FILES).for_each(|number| write_file(&file(number), number, BYTES).unwrap());
    world.forget_cache().unwrap();
    let file = |number: u64| world.mount().join(number.to_string());
    // The names come in class Fetch too.
    assert_eq!(fs::read_dir(world.mount()).unwrap().count() as u64, FILES);
    let before = fetches(&world);
    for number in 0..FILES {
        for _ in 0..5 {
            check_file(&file(number), number, BYTES).unwrap();
        }
    }
    assert_eq!(fetches(&world) - before, FILES);
}
