//! Durable commits by themselves: how many a second, one at a time and in groups that share one fdatasync.
#![allow(clippy::expect_used, reason = "a step that fails ends the measurement")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use mafs_durable::{Batch, DirDisk, LoggedIndex, LoggedIndexConfig, sled_opener};

/// A small operation: a status of 150 bytes and a name.
const VALUE_BYTES: usize = 150;

fn commits(criterion: &mut Criterion) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory on the disk of the build");
    let disk = Arc::new(DirDisk::new(directory.path().join("disk")).expect("a disk"));
    let opener = sled_opener(directory.path().join("index"));
    let index = LoggedIndex::open(disk, "volume", opener, LoggedIndexConfig::default()).expect("an index");

    let mut group = criterion.benchmark_group("durable/commit");
    group.measurement_time(Duration::from_secs(8)).sample_size(20);
    let mut number = 0_u64;
    for together in [1_u64, 8, 64] {
        group.throughput(Throughput::Elements(together));
        group.bench_function(BenchmarkId::from_parameter(together), |bencher| {
            bencher.iter(|| {
                let batches: Vec<Batch> = (number..number + together).map(batch).collect();
                number += together;
                black_box(index.commit(&batches).expect("a commit"))
            });
        });
    }
    group.finish();
}

fn batch(number: u64) -> Batch {
    let mut batch = Batch::default();
    batch.put(format!("status {number}"), vec![7; VALUE_BYTES]);
    batch.put(format!("name {number}"), number.to_be_bytes());
    batch
}

criterion_group!(benches, commits);
criterion_main!(benches);
