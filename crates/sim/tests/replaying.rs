//! Figure M3 on a smaller scale: where reads and writes contend, `writeback=async` with priorities makes a trace
//! shorter than neither, and reads then take as long as they do with nobody who writes.

use std::time::Duration;

use mafs_arpc::Scheduling;
use mafs_arpc::link::Profile;
use mafs_client::vfs::Writeback;
use mafs_server::ServerConfig;
use mafs_sim::workload::{Replayed, Trace, TraceShape, Tree, populate_trace, replay};
use mafs_sim::{Path, World};

use crate::support::simulated;

const CACHE_BYTES: u64 = 1 << 30;
/// Nobody gives up.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The trace that mostly writes, for a quarter of the time.
fn trace() -> Trace {
    let whole = TraceShape::PAPER[0];
    let quarter = TraceShape {
        duration: whole.duration / 4,
        files: whole.files / 4,
        size_bytes: whole.size_bytes / 4,
        read_bytes: whole.read_bytes / 4,
        write_bytes: whole.write_bytes / 4,
        ..whole
    };
    Trace::new(&quarter, 1)
}

fn replay_at(kbytes_per_s: u64, scheduling: Scheduling, writeback: Writeback, trace: &Trace) -> Replayed {
    simulated(async {
        let link = Path::Link(Box::new(Profile::steady(kbytes_per_s * 1024, Duration::from_millis(20))));
        let server = ServerConfig::default().with_scheduling(scheduling);
        let paths = vec![Path::Delay(Duration::ZERO), link];
        let mut world = World::start_configured(1, server, paths, false).await.expect("a world");
        populate_trace(trace, &Tree::new(world.client().clone())).await.expect("files");
        let machine = &mut world.machines_mut()[1];
        machine.stop().await;
        machine.set_cache_limit_bytes(CACHE_BYTES);
        machine.set_deadline(DEADLINE);
        machine.set_scheduling(scheduling);
        machine.set_writeback(writeback);
        machine.start().await.expect("a client");
        replay(trace, &Tree::new(machine.client().clone())).await.expect("a trace")
    })
}

fn percent(time: Duration, percent: u32) -> Duration {
    time * percent / 100
}

#[test]
fn where_reads_and_writes_contend_traces_are_shorter_with_async_and_priorities() {
    let trace = trace();
    for kbytes_per_s in [64, 512] {
        let plain = replay_at(kbytes_per_s, Scheduling::Off, Writeback::Sync, &trace);
        let ours = replay_at(kbytes_per_s, Scheduling::Classes, Writeback::Async, &trace);
        println!("{kbytes_per_s} KB/s: {plain:?}, {ours:?}");
        // At 512 KB/s the link carries nearly all in the time that the trace has by itself.
        let shorter_percent = if kbytes_per_s == 64 { 80 } else { 100 };
        assert!(ours.last_read < percent(plain.last_read, shorter_percent), "{kbytes_per_s} KB/s: {ours:?}, {plain:?}");
        assert!(ours.some_fetching < percent(plain.some_fetching, 80), "{kbytes_per_s} KB/s: {ours:?}, {plain:?}");
        assert!(ours.late < percent(plain.late, 80), "{kbytes_per_s} KB/s: {ours:?}, {plain:?}");
    }
}

#[test]
fn reads_take_as_long_as_with_nobody_who_writes() {
    let trace = trace();
    let alone = trace.clone().without_writes();
    for kbytes_per_s in [64, 512] {
        let beside = replay_at(kbytes_per_s, Scheduling::Classes, Writeback::Async, &trace);
        let alone = replay_at(kbytes_per_s, Scheduling::Classes, Writeback::Async, &alone);
        println!("{kbytes_per_s} KB/s: {beside:?}, {alone:?}");
        assert!(beside.fetching < percent(alone.fetching, 115), "{kbytes_per_s} KB/s: {beside:?}, {alone:?}");
        assert!(beside.last_read < percent(alone.last_read, 115), "{kbytes_per_s} KB/s: {beside:?}, {alone:?}");
    }
}
