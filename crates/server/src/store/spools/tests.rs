//! Tests of interrupted contents: what is kept of them, and what is not, on a disk that forgets.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mafs_durable::{Disk, MemoryDisk};
use mafs_proto::{Segment, SegmentReader, Timestamp};

use super::*;
use crate::core::edit::ContentBody;
use crate::store::SpaceReserve;

const CLIENT: ClientId = ClientId([3; 16]);
const SIZE: u64 = 1_000_000;

/// A clock that stands still until it is moved.
#[derive(Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Instant {
        Instant(0) + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }
}

struct World {
    disk: MemoryDisk,
    clock: Arc<HandClock>,
    spools: Arc<Spools>,
}

impl World {
    fn start(disk: MemoryDisk) -> Self {
        let (clock, shared): (_, Arc<dyn Disk>) = (Arc::new(HandClock::default()), Arc::new(disk.clone()));
        let reserve = SpaceReserve { bytes: 0 };
        let contents = Arc::new(ContentStore::new(shared, "content".to_owned(), VolumeId(1), 1, reserve));
        let spools = Spools::open(contents, "content/spool".to_owned(), clock.clone()).unwrap();
        Self { disk, clock, spools: Arc::new(spools) }
    }

    /// Cuts the power of the machine and starts it again.
    fn crash(&self, seed: u64) -> Self {
        Self::start(self.disk.crash_torn(seed))
    }

    fn begin(&self, vnode: u64, offset: u64) -> Result<Arrival, Refusal> {
        self.spools.begin(CLIENT, fid(vnode), SIZE, offset)
    }

    fn kept(&self, vnode: u64) -> u64 {
        let reply = self.spools.resume(CLIENT, fid(vnode));
        assert_eq!(reply.hash, ContentHash::of(&content()[..usize::try_from(reply.bytes).unwrap()]));
        reply.bytes
    }

    fn files(&self) -> usize {
        self.disk.list("content/spool").unwrap().len()
    }
}

fn fid(vnode: u64) -> Fid {
    Fid { volume: VolumeId(1), vnode: VnodeId(vnode), unique: Uniquifier(1) }
}

fn content() -> Vec<u8> {
    let byte = |at: u64| if (300_000..420_000).contains(&at) { 0 } else { (at / 311).to_le_bytes()[0] };
    (0..SIZE).map(byte).collect()
}

/// Sends the content from `from` on, as much of it as reaches to `to`.
fn send(arrival: &mut Arrival, from: u64, to: u64) -> Result<(), Refusal> {
    let [from, to] = [from, to].map(|at| usize::try_from(at).unwrap());
    let mut wire = Segment::of(&content()[from..]).slice(..Segment::BYTES + to - from);
    let mut segments = SegmentReader::new(SIZE - from as u64);
    while let Some(part) = segments.next(&mut wire).unwrap() {
        arrival.take(&part)?;
    }
    Ok(())
}

/// Returns the bytes of a finished content.
fn stored(world: &World, new: &NewContent) -> Vec<u8> {
    let ContentBody::File(serial) = new.body else { panic!("{new:?}") };
    let file = world.spools.contents.read(crate::core::ContentId { fid: fid(1), serial }).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

#[test]
fn what_is_not_what_was_sent_gets_no_name_and_leaves_nothing_behind() {
    let world = World::start(MemoryDisk::new());
    interrupt_at(&world, 1, 350_001);
    let mut arrival = world.begin(1, 350_001).unwrap();
    send(&mut arrival, 350_001, SIZE).unwrap();
    let refused = arrival.finish(ContentHash::of(b"what was sent")).unwrap_err();
    assert_eq!(refused.error, FsError::Damaged);
    assert_eq!((world.kept(1), world.files()), (0, 0), "or the damaged bytes would come again");
}

fn interrupt_at(world: &World, vnode: u64, at: u64) {
    let mut arrival = world.begin(vnode, 0).unwrap();
    send(&mut arrival, 0, at).unwrap();
    arrival.interrupt();
}

#[test]
fn an_interrupted_content_goes_on_where_it_was_and_is_whole() {
    let world = World::start(MemoryDisk::new());
    interrupt_at(&world, 1, 350_001);
    assert_eq!(world.kept(1), 350_001);
    let mut arrival = world.begin(1, 350_001).unwrap();
    send(&mut arrival, 350_001, 600_000).unwrap();
    // This is as when the call's task is dropped.
    drop(arrival);
    assert_eq!(world.kept(1), 600_000);
    let mut arrival = world.begin(1, 600_000).unwrap();
    send(&mut arrival, 600_000, SIZE).unwrap();
    let new = arrival.finish(ContentHash::of(&content())).unwrap();
    assert_eq!(new.hash, ContentHash::of(&content()));
    assert!(stored(&world, &new) == content());
    assert_eq!((world.kept(1), world.files()), (0, 0));
}

#[test]
fn what_was_marked_survives_a_loss_of_power_and_is_never_more_than_there_is() {
    for seed in 0..40 {
        let world = World::start(MemoryDisk::new());
        interrupt_at(&world, 1, 200_000);
        let mut arrival = world.begin(1, 200_000).unwrap();
        send(&mut arrival, 200_000, 500_000).unwrap();
        world.clock.0.store(2, Ordering::Relaxed);
        arrival.mark_now_and_then();
        send_more_of_a_segment(&mut arrival);
        let world = world.crash(seed);
        assert_eq!(world.kept(1), 500_000, "seed {seed}");
        let mut arrival = world.begin(1, 500_000).unwrap();
        send(&mut arrival, 500_000, SIZE).unwrap();
        let new = arrival.finish(ContentHash::of(&content())).unwrap();
        assert!(stored(&world, &new) == content() && new.hash == ContentHash::of(&content()), "seed {seed}");
    }
}

/// Sends bytes that nothing makes durable.
fn send_more_of_a_segment(arrival: &mut Arrival) {
    arrival.take(&ContentPart::Data(Bytes::copy_from_slice(&content()[500_000..700_000]))).unwrap();
}

#[test]
fn invariant_4_what_was_not_marked_does_not_show_through_the_holes_of_what_comes() {
    let world = World::start(MemoryDisk::new());
    let mut arrival = world.begin(1, 0).unwrap();
    send(&mut arrival, 0, 500_000).unwrap();
    world.clock.0.store(2, Ordering::Relaxed);
    arrival.mark_now_and_then();
    send_more_of_a_segment(&mut arrival);
    let world = World::start(world.disk.kill());
    let arrival = world.begin(1, 500_000).unwrap();
    arrival.take(&ContentPart::Segment(Segment { zeros: 300_000, data: 200_000 })).unwrap();
    arrival.take(&ContentPart::Data(Bytes::copy_from_slice(&content()[800_000..]))).unwrap();
    let sent = [&content()[..500_000], &[0; 300_000], &content()[800_000..]].concat();
    let new = arrival.finish(ContentHash::of(&sent)).unwrap();
    assert!(stored(&world, &new) == sent);
}

#[test]
fn marks_are_written_now_and_then_only() {
    let world = World::start(MemoryDisk::new());
    let mut arrival = world.begin(1, 0).unwrap();
    send(&mut arrival, 0, 100_000).unwrap();
    arrival.mark_now_and_then();
    assert_eq!(world.files(), 1, "too early");
    world.clock.0.store(1, Ordering::Relaxed);
    arrival.mark_now_and_then();
    assert_eq!(world.files(), 2);
}

#[test]
fn invariant_4_a_spool_whose_bytes_have_changed_is_not_continued() {
    let world = World::start(MemoryDisk::new());
    interrupt_at(&world, 1, 500_000);
    let file = world.disk.open(&format!("content/spool/{}", name_of((CLIENT, fid(1))))).unwrap();
    file.write_all_at(&[77], 123_456).unwrap();
    file.sync_data().unwrap();
    let world = world.crash(1);
    let refusal = world.begin(1, 500_000).err().unwrap();
    assert_eq!(refusal.error, FsError::NotKept);
    assert_eq!((world.kept(1), world.files()), (0, 0));
}

#[test]
fn a_damaged_mark_and_files_of_nobody_are_removed() {
    let too_many = format!("{{\"bytes\":1000001,\"hash\":\"{}\"}}", "00".repeat(32));
    for damage in ["", "{", "{\"bytes\":9,\"hash\":\"00\"}", &too_many] {
        let world = World::start(MemoryDisk::new());
        interrupt_at(&world, 1, 500_000);
        let mark = world.disk.create(&format!("content/spool/{}{MARK_SUFFIX}", name_of((CLIENT, fid(1))))).unwrap();
        mark.write_all_at(damage.as_bytes(), 0).unwrap();
        world.disk.create("content/spool/7").unwrap();
        world.disk.create("content/spool/a.b.c.json").unwrap();
        let world = World::start(world.disk.kill());
        assert_eq!((world.kept(1), world.files()), (0, 0));
    }
}

#[test]
fn nothing_goes_on_at_another_place_or_for_somebody_else() {
    let world = World::start(MemoryDisk::new());
    let other = ClientId([4; 16]);
    for (client, vnode, size, offset) in [
        (CLIENT, 1, SIZE, 499_999),
        (CLIENT, 1, SIZE, 500_001),
        (CLIENT, 1, 499_999, 500_000),
        (CLIENT, 2, SIZE, 500_000),
        (other, 1, SIZE, 500_000),
    ] {
        interrupt_at(&world, 1, 500_000);
        let refusal = world.spools.begin(client, fid(vnode), size, offset).err().unwrap();
        assert_eq!(refusal.error, FsError::NotKept);
    }
}

#[test]
fn a_content_that_begins_with_the_same_bytes_goes_on_as_well() {
    for size in [SIZE - 100_000, SIZE] {
        let world = World::start(MemoryDisk::new());
        let mut arrival = world.spools.begin(CLIENT, fid(1), SIZE - 50_000, 0).unwrap();
        arrival.take(&ContentPart::Segment(Segment { zeros: 0, data: SIZE - 50_000 })).unwrap();
        arrival.take(&ContentPart::Data(Bytes::copy_from_slice(&content()[..500_000]))).unwrap();
        arrival.interrupt();
        arrival = world.spools.begin(CLIENT, fid(1), size, 500_000).unwrap();
        let rest = &content()[500_000..usize::try_from(size).unwrap()];
        arrival.take(&ContentPart::Segment(Segment { zeros: 0, data: rest.len() as u64 })).unwrap();
        arrival.take(&ContentPart::Data(Bytes::copy_from_slice(rest))).unwrap();
        let sent = &content()[..usize::try_from(size).unwrap()];
        let new = arrival.finish(ContentHash::of(sent)).unwrap();
        assert!(stored(&world, &new) == sent, "{size}");
    }
}

#[test]
fn only_the_last_one_who_asked_may_send() {
    let world = World::start(MemoryDisk::new());
    let mut old = world.begin(1, 0).unwrap();
    send(&mut old, 0, 400_000).unwrap();
    assert_eq!(world.kept(1), 400_000);
    let more = ContentPart::Data(Bytes::copy_from_slice(&content()[400_000..500_000]));
    assert_eq!(old.take(&more).unwrap_err().error, FsError::Busy);
    let mut new = world.begin(1, 400_000).unwrap();
    assert_eq!(old.take(&more).unwrap_err().error, FsError::Busy);
    old.discard();
    send(&mut new, 400_000, SIZE).unwrap();
    assert!(stored(&world, &new.finish(ContentHash::of(&content())).unwrap()) == content());
}

#[test]
fn what_was_not_wanted_for_days_goes() {
    let world = World::start(MemoryDisk::new());
    interrupt_at(&world, 1, 200_000);
    for (seconds, kept) in [(LIFETIME.as_secs(), 200_000), (LIFETIME.as_secs() + 1, 0)] {
        world.clock.0.store(seconds, Ordering::Relaxed);
        world.spools.expire();
        assert_eq!(world.kept(1), kept);
    }
    assert_eq!(world.files(), 0);
}

#[test]
fn there_are_only_so_many_and_the_oldest_makes_room() {
    let world = World::start(MemoryDisk::new());
    for vnode in 0..SPOOLS_MAX as u64 + 2 {
        world.clock.0.store(vnode, Ordering::Relaxed);
        interrupt_at(&world, vnode, 130_000);
    }
    assert_eq!([0, 1, 2].map(|vnode| world.kept(vnode)), [0, 0, 130_000]);
    let mut times = 0;
    let done = world.spools.with_room(|| {
        times += 1;
        if times < 3 { Err(FsError::NoSpace.into()) } else { Ok(times) }
    });
    assert_eq!(done.unwrap(), 3);
    assert_eq!([2, 3, 4].map(|vnode| world.kept(vnode)), [0, 0, 130_000]);
    // A spool that somebody is sending to stays.
    let only = World::start(MemoryDisk::new());
    let _sending = only.begin(1, 0).unwrap();
    assert_eq!(only.spools.with_room(|| Err::<(), _>(FsError::NoSpace.into())).unwrap_err().error, FsError::NoSpace);
}

#[test]
fn a_small_content_is_not_kept() {
    let world = World::start(MemoryDisk::new());
    let size = ResumeStoreRequest::CONTENT_BYTES_MIN - 1;
    let arrival = world.spools.begin(CLIENT, fid(1), size, 0).unwrap();
    arrival.take(&ContentPart::Segment(Segment { zeros: 0, data: size })).unwrap();
    arrival.take(&ContentPart::Data(Bytes::from(vec![1; 100_000]))).unwrap();
    arrival.interrupt();
    assert_eq!((world.kept(1), world.files()), (0, 0));
}

#[test]
fn the_room_of_what_nothing_names_any_more_can_be_used_at_once() {
    let world = World::start(MemoryDisk::new());
    let mut arrival = world.begin(1, 0).unwrap();
    send(&mut arrival, 0, SIZE).unwrap();
    let ContentBody::File(serial) = arrival.finish(ContentHash::of(&content())).unwrap().body else {
        panic!("it is large")
    };
    let space = world.disk.space().unwrap();
    world.disk.set_capacity(space.bytes_total - space.bytes_free + SIZE / 2);
    let fits = || {
        world.disk.sync_dir("content/01").unwrap();
        world.spools.contents.check_room(SIZE)
    };
    assert_eq!(world.spools.with_room(fits).unwrap_err().error, FsError::NoSpace);
    world.spools.contents.discard(vec![crate::core::ContentId { fid: fid(1), serial }]);
    world.spools.with_room(fits).unwrap();
}
