//! Power cuts at every sync of a long workload (done-when 6 of part 1): the index opens, nothing acknowledged is
//! missing, nothing is half there.

use super::*;

/// Batches of the workload.
const BATCHES: u64 = 200;

/// Runs commits, checkpoints and closings until the power is cut. Returns up to which record commits were
/// acknowledged before.
fn workload(machine: &Machine) -> Lsn {
    let mut index = machine.open().unwrap();
    let mut acknowledged = Lsn(1);
    let mut next = 1;
    while next <= BATCHES && !machine.disk.frozen() {
        let end = (next + group(next)).min(BATCHES);
        commit(&index, next, end);
        next = end + 1;
        if !machine.disk.frozen() {
            acknowledged = Lsn(next);
        }
        if index.checkpoint_due() {
            index.checkpoint().unwrap();
        }
        if end.is_multiple_of(61) {
            index.close().unwrap();
            index = machine.open().unwrap();
        }
    }
    acknowledged
}

fn check(image: &Machine, acknowledged: Lsn) {
    let index = image.open().unwrap();
    let next = index.next_lsn();
    assert!(next >= acknowledged, "{next} < {acknowledged}");
    assert!(contents(index.index()) == expected(next), "half a batch at {next}");
    commit(&index, next.0, next.0 + 5);
    index.checkpoint().unwrap();
    drop(index);
    let index = image.crashed(1).open().unwrap();
    assert!(contents(index.index()) == expected(Lsn(next.0 + 6)), "half a batch after {next}");
}

#[test]
fn a_power_cut_at_any_sync_loses_nothing_acknowledged() {
    let whole = Machine::new();
    assert_eq!(workload(&whole), Lsn(BATCHES + 1));
    let checkpoints = whole.disk.list("v/checkpoint").unwrap();
    assert!(Lsn::from_file_name(&checkpoints[0]) > Some(Lsn(50)), "the workload goes through checkpoints");
    let syncs = whole.disk.syncs();
    assert!(syncs > 100);
    for cut in 0..syncs {
        let machine = Machine::new();
        machine.disk.freeze_after_syncs(cut);
        let acknowledged = workload(&machine);
        check(&machine.crashed(cut), acknowledged);
        check(&machine.crashed_torn(cut), acknowledged);
        check(&machine.crashed_torn(cut + syncs), acknowledged);
        // The index is lost as well: checkpoints and journal alone lead to it.
        check(&Machine::of(machine.disk.crash(), MemoryKv::new()), acknowledged);
        check(&Machine::of(machine.disk.crash_torn(cut), MemoryKv::new()), acknowledged);
    }
}

#[test]
fn a_kill_loses_nothing_at_all() {
    let machine = Machine::new();
    let next = workload(&machine);
    for seed in 0..20 {
        let image = Machine::of(machine.disk.kill(), machine.kv.crash(seed));
        let index = image.open().unwrap();
        assert_eq!(index.next_lsn(), next);
        assert_eq!(contents(index.index()), expected(next));
    }
}
