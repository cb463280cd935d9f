//! The checks: POSIX's promises about files, one operation or one combination each. A check gets an empty directory.

mod content;
mod metadata;
mod naming;
mod ranges;

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::io::Errno;

type Check = fn(&Path);

pub(crate) const CHECKS: [(&str, Check); 39] = [
    ("files keep what was written", content::files_keep_what_was_written),
    ("writes at offsets", content::writes_at_offsets),
    ("append from two descriptors", content::append_from_two_descriptors),
    ("truncate down and up", content::truncate_down_and_up),
    ("truncate by path", content::truncate_by_path),
    ("open truncates", content::open_truncates),
    ("sparse files", content::sparse_files),
    ("sizes beyond the limit", content::sizes_beyond_the_limit),
    ("unlinked open file", content::unlinked_open_file),
    ("rename over an open file", naming::rename_over_an_open_file),
    ("rename rules", naming::rename_rules),
    ("rename flags", naming::rename_flags),
    ("directories move with what is in them", naming::directories_move),
    ("hard links", naming::hard_links),
    ("symlinks", naming::symlinks),
    ("exclusive create", naming::exclusive_create),
    ("names", naming::names),
    ("large directories", naming::large_directories),
    ("removal while reading a directory", naming::removal_while_reading),
    ("readers of a directory that changes", naming::readers_of_a_directory_that_changes),
    ("directory errors", naming::directory_errors),
    ("link counts of directories", metadata::link_counts_of_directories),
    ("modes and umask", metadata::modes),
    ("owners", metadata::owners),
    ("set times", metadata::set_times),
    ("changes move times", metadata::changes_move_times),
    ("reserved and punched ranges", ranges::reserved_and_punched_ranges),
    ("refusals of fallocate", ranges::fallocate_refusals),
    ("fallocate moves times", ranges::fallocate_moves_times),
    ("file size limit", ranges::file_size_limit),
    ("holes are found", ranges::holes_are_found),
    ("sparse files take little room", ranges::sparse_files_take_little_room),
    ("copies of ranges", ranges::copies_of_ranges),
    ("far offsets", ranges::far_offsets),
    ("direct reads and writes", ranges::direct_io),
    ("nameless files", ranges::nameless_files),
    ("programs that run", content::programs_that_run),
    ("fifos and sockets", content::fifos_and_sockets),
    ("free space", content::free_space),
];

#[track_caller]
fn open(path: &Path, options: &OpenOptions) -> File {
    options.open(path).unwrap()
}

fn appender(path: &Path) -> File {
    open(path, OpenOptions::new().append(true).create(true))
}

#[track_caller]
fn errno<T: Debug>(result: io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
