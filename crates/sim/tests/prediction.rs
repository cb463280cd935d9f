//! Files that will be opened next are fetched before that: how much quicker programs are for it, and what it costs in
//! vain (docs/semantics.md, "What is kept here"). `--nocapture` shows the figures.

use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{PrefetchReport, Program, Vfs, Writeback};
use mafs_proto::{Mode, Random, VnodeId};
use mafs_sim::{Path, World};
use tokio::time::{Instant, sleep};

use crate::support::{
    CALLER, MAKE, READ, WRITE, clients, configured, make_dir, name, names, overwrite, simulate, simulated,
};

const RATE: u64 = 1_000_000;
const RTT: Duration = Duration::from_millis(300);
const FILES: usize = 200;
const FILE_BYTES: u64 = 4000;
/// One in so many at most of the bytes that have come was fetched in vain.
const VAIN_PARTS: u64 = 5;

/// Two clients, of which the first makes what the second reads at the end of a long link.
async fn two(prefetch: bool) -> (World, [Vfs; 2]) {
    two_over(Profile::steady(RATE, RTT), prefetch).await
}

async fn two_over(link: Profile, prefetch: bool) -> (World, [Vfs; 2]) {
    let near = Path::Delay(Duration::from_millis(1));
    let far = Path::Link(Box::new(link));
    let world = World::start_over(1, vec![near, far], false).await.expect("a world");
    let world = configured(world, |machine| {
        machine.set_writeback(Writeback::Sync);
        machine.set_prefetch(prefetch);
    })
    .await;
    let vfs = clients(&world);
    (world, vfs)
}

/// Files whose names are in another order than they were made in. Returns them in the order of names.
async fn make_files(vfs: &Vfs, dir: VnodeId, count: usize, bytes: impl Fn(u64) -> u64) -> Vec<VnodeId> {
    let mut made = Vec::new();
    for number in 0..count {
        let (file, mode) = (format!("file-{:04}", number * 37 % count), Mode::from_bits(0o644));
        let (object, opened) = vfs.create(dir, name(&file), mode, MAKE, CALLER).await.expect("a new file");
        let content = vec![7; usize::try_from(bytes(number as u64)).expect("small")];
        vfs.write(opened.file, 0, content.into()).await.expect("a write");
        vfs.flush(opened.file).await.expect("a close");
        vfs.release(opened.file);
        made.push((file, object.fid.vnode));
    }
    made.sort();
    made.into_iter().map(|(_, vnode)| vnode).collect()
}

async fn read(vfs: &Vfs, vnode: VnodeId) {
    read_by(vfs, vnode, Program::default()).await;
}

async fn read_by(vfs: &Vfs, vnode: VnodeId, program: Program) {
    let file = vfs.open_by(vnode, READ, CALLER, || program).await.expect("an open").file;
    vfs.read(file, 0, u32::MAX / 2).await.expect("a read");
    vfs.release(file);
}

/// The order in which a program reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// The order of names, as `cat *` reads.
    Names,
    /// The order of the listing, as `grep -r` reads.
    Listing,
    /// A random order, in which nobody reads.
    Random,
}

/// How long it takes to read a directory of which nothing is here but the names, and what was fetched for that.
fn scan(reading: Reading, prefetch: bool) -> (Duration, PrefetchReport) {
    simulated(async move {
        let (_world, [one, two]) = two(prefetch).await;
        let dir = make_dir(&one, VnodeId::ROOT, "dir").await.expect("a directory");
        let mut files = make_files(&one, dir, FILES, |number| FILE_BYTES / 2 + number * 7919 % FILE_BYTES).await;
        names(&two, VnodeId::ROOT).await.expect("names");
        names(&two, dir).await.expect("names");
        match reading {
            Reading::Names => {}
            Reading::Listing => files.sort_unstable(),
            Reading::Random => {
                let mut random = Random::new(1);
                files.sort_by_cached_key(|_| random.below(1 << 40));
            }
        }
        let begun = Instant::now();
        for file in files {
            read(&two, file).await;
        }
        let took = begun.elapsed();
        sleep(Duration::from_secs(1200)).await;
        (took, two.status().prefetch)
    })
}

#[test]
fn a_scan_of_small_files_over_a_long_link_is_several_times_quicker() {
    for reading in [Reading::Names, Reading::Listing, Reading::Random] {
        let (without, none) = scan(reading, false);
        let (with, report) = scan(reading, true);
        println!("{reading:?}: {without:?} without, {with:?} with: {report:?}");
        assert_eq!(none, PrefetchReport::default());
        let wanted = FILES as u64 * FILE_BYTES;
        assert!(report.wasted_bytes <= wanted / VAIN_PARTS, "{report:?}");
        match reading {
            Reading::Names | Reading::Listing => assert!(with * 3 < without, "{with:?} of {without:?}"),
            Reading::Random => assert!(with <= without + RTT, "{with:?} of {without:?}"),
        }
    }
}

/// How long it takes to read small directories one after the other, as `grep -r` does in a tree of sources.
fn tree(prefetch: bool) -> (Duration, PrefetchReport) {
    simulated(async move {
        let (_world, [one, two]) = two(prefetch).await;
        let mut made = Vec::new();
        for dir in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"]
        {
            let dir = make_dir(&one, VnodeId::ROOT, dir).await.expect("a directory");
            made.push((dir, make_files(&one, dir, 6, |_| FILE_BYTES).await));
        }
        names(&two, VnodeId::ROOT).await.expect("names");
        for (dir, _) in &made {
            names(&two, *dir).await.expect("names");
        }
        let begun = Instant::now();
        for file in made.into_iter().flat_map(|(_, files)| files) {
            read(&two, file).await;
        }
        let took = begun.elapsed();
        sleep(Duration::from_secs(1200)).await;
        (took, two.status().prefetch)
    })
}

#[test]
fn small_directories_are_read_ahead_by_who_has_read_others_like_them() {
    let ((without, _), (with, report)) = (tree(false), tree(true));
    println!("tree: {without:?} without, {with:?} with: {report:?}");
    assert_eq!((report.used_files, report.wasted_files), (report.files, 0), "{report:?}");
    assert!(with * 2 < without, "{with:?} of {without:?}");
}

/// How long two programs take that read one directory in turn, one in the order of names, the other in that of the
/// listing.
fn two_scans(programs: [Program; 2], prefetch: bool) -> (Duration, PrefetchReport) {
    simulated(async move {
        let (_world, [one, two]) = two(prefetch).await;
        let dir = make_dir(&one, VnodeId::ROOT, "dir").await.expect("a directory");
        let by_names = make_files(&one, dir, FILES, |_| FILE_BYTES).await;
        let mut by_listing = by_names.clone();
        by_listing.sort_unstable();
        names(&two, VnodeId::ROOT).await.expect("names");
        names(&two, dir).await.expect("names");
        let begun = Instant::now();
        for files in by_names.into_iter().zip(by_listing).take(FILES / 2) {
            read_by(&two, files.0, programs[0]).await;
            read_by(&two, files.1, programs[1]).await;
        }
        let took = begun.elapsed();
        sleep(Duration::from_secs(1200)).await;
        (took, two.status().prefetch)
    })
}

#[test]
fn two_programs_that_read_one_directory_at_a_time_are_both_followed() {
    let programs = [Program::named(b"cat"), Program::named(b"grep")];
    let (without, _) = two_scans(programs, false);
    let (as_one, _) = two_scans([Program::default(); 2], true);
    let (with, report) = two_scans(programs, true);
    println!("two: {without:?} without, {with:?} with, {as_one:?} as one: {report:?}");
    assert!(report.wasted_bytes <= FILES as u64 * FILE_BYTES / VAIN_PARTS, "{report:?}");
    assert!(with * 2 < without && with * 2 < as_one, "{with:?} of {without:?}");
}

/// Reads as a compiler does: headers of several directories, in an order of their own, for the second time after
/// somebody has changed all of them. Returns how long each time took.
fn headers(prefetch: bool) -> [Duration; 2] {
    simulated(async move {
        let (_world, [one, two]) = two(prefetch).await;
        let dir = make_dir(&one, VnodeId::ROOT, "include").await.expect("a directory");
        let mut files = make_files(&one, dir, 60, |number| 1000 + number * 100).await;
        let mut random = Random::new(7);
        files.sort_by_cached_key(|_| random.below(1 << 40));
        names(&two, VnodeId::ROOT).await.expect("names");
        names(&two, dir).await.expect("names");
        let mut took = [Duration::ZERO; 2];
        for time in &mut took {
            let begun = Instant::now();
            for file in &files {
                read(&two, *file).await;
            }
            *time = begun.elapsed();
            for file in &files {
                let opened = one.open(*file, WRITE, CALLER).await.expect("an open").file;
                one.write(opened, 0, vec![9; 10].into()).await.expect("a write");
                one.flush(opened).await.expect("a close");
                one.release(opened);
            }
            names(&two, dir).await.expect("names");
            for file in &files {
                two.get_attributes(*file).await.expect("attributes");
            }
        }
        took
    })
}

#[test]
fn what_was_read_in_an_order_once_comes_quicker_in_that_order() {
    let (without, with) = (headers(false), headers(true));
    println!("headers: {without:?} without, {with:?} with");
    assert!(with[1] * 2 < without[1], "{with:?} of {without:?}");
}

/// A program that lists a directory and opens one file, or a few here and there, causes nothing.
#[test]
fn who_opens_a_file_or_two_is_not_followed() {
    simulate(async {
        let (_world, [one, two]) = two(true).await;
        let dir = make_dir(&one, VnodeId::ROOT, "dir").await.expect("a directory");
        let files = make_files(&one, dir, FILES, |_| FILE_BYTES).await;
        names(&two, VnodeId::ROOT).await.expect("names");
        names(&two, dir).await.expect("names");
        for at in [100, 101, 50, 180, 181, 20] {
            read(&two, files[at]).await;
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(two.status().prefetch, PrefetchReport::default());
    });
}

/// Over a link as in the test of hoard walks, with the same bound.
#[test]
fn what_is_fetched_ahead_delays_a_demanded_fetch_by_no_more_than_a_chunk() {
    let time_of_reading = |prefetch| {
        simulated(async move {
            let thin = Profile::steady(64_000, Duration::from_millis(20));
            let (_world, [one, two]) = two_over(thin, prefetch).await;
            let dir = make_dir(&one, VnodeId::ROOT, "dir").await.expect("a directory");
            let files = make_files(&one, dir, 60, |_| 20_000).await;
            crate::support::write_and_close(&one, "wanted", vec![1; 64_000]).await;
            names(&two, VnodeId::ROOT).await.expect("names");
            names(&two, dir).await.expect("names");
            for file in &files[..40] {
                read(&two, *file).await;
            }
            let wanted = crate::support::look(&two, "wanted").await.fid.vnode;
            let begun = Instant::now();
            read(&two, wanted).await;
            (begun.elapsed(), two.status().prefetch)
        })
    };
    let ((alone, _), (beside, report)) = (time_of_reading(false), time_of_reading(true));
    println!("{alone:?} alone, {beside:?} beside {report:?}");
    assert!(report.files > report.used_files, "nothing was on its way: {report:?}");
    // A chunk for each of its two round trips may be on its way.
    assert!(beside < alone + Duration::from_millis(100), "{beside:?} beside, {alone:?} alone");
}

/// A file that another client changes before it is opened counts as fetched in vain, and comes again.
#[test]
fn what_was_fetched_ahead_is_never_shown_when_it_is_out_of_date() {
    simulate(async {
        let (_world, [one, two]) = two(true).await;
        for file in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"] {
            crate::support::write_and_close(&one, file, vec![1; 3000]).await;
        }
        names(&two, VnodeId::ROOT).await.expect("names");
        for file in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
            assert_eq!(crate::support::content(&two, file).await, vec![1; 3000]);
        }
        sleep(Duration::from_secs(2)).await;
        assert!(two.status().prefetch.files > 1, "{:?}", two.status().prefetch);
        for file in ["k", "l"] {
            overwrite(&one, file, vec![2; 3000]).await;
            assert_eq!(crate::support::content(&two, file).await, vec![2; 3000]);
        }
    });
}
