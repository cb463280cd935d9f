//! Sizes and times of a content, in examples.

use mafs_proto::{DataVersion, Kind, Mode, StatusVersion};

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::new(seconds, 0).unwrap()
}

fn status(size: u64, (mtime, ctime): (i64, i64)) -> Status {
    Status {
        kind: Kind::File,
        mode: Mode::from_bits(0o644),
        nlink: 1,
        uid: 1,
        gid: 1,
        size,
        rdev: 0,
        atime: at(0),
        mtime: at(mtime),
        ctime: at(ctime),
        crtime: at(0),
        data_version: DataVersion(1),
        status_version: StatusVersion(1),
        xattrs: None,
    }
}

fn shown(stat: &Stat) -> (u64, Timestamp, Timestamp) {
    (stat.size(), stat.mtime(), stat.last_change(None))
}

#[test]
fn a_version_is_shown_as_the_server_says() {
    let mut stat = Stat::of(&status(5, (1, 2)));
    assert_eq!(shown(&stat), (5, at(1), at(2)));
    stat.become_version(&status(6, (3, 4)));
    assert_eq!(shown(&stat), (6, at(3), at(4)));
}

#[test]
fn what_an_earlier_life_has_left_was_changed_when_its_content_was() {
    assert_eq!(shown(&Stat::taken_up(7, at(9))), (7, at(9), at(9)));
}

#[test]
fn a_change_of_the_content_moves_both_times() {
    let mut stat = Stat::of(&status(5, (1, 2)));
    stat.change(at(3));
    stat.set_size(8);
    assert_eq!(shown(&stat), (8, at(3), at(3)));
}

#[test]
fn other_changes_move_what_they_are_about() {
    let mut stat = Stat::of(&status(5, (1, 2)));
    stat.set_mtime(at(0));
    assert_eq!(shown(&stat), (5, at(0), at(2)));
    stat.set_ctime(at(7));
    assert_eq!(shown(&stat), (5, at(0), at(7)));
}

#[test]
fn a_status_shows_what_is_here() {
    let mut stat = Stat::of(&status(5, (1, 2)));
    stat.change(at(3));
    let mut object = status(1, (0, 9));
    stat.lay_over(&mut object);
    assert_eq!((object.size, object.mtime, object.ctime), (5, at(3), at(3)));
}

#[test]
fn the_time_of_change_does_not_go_back() {
    let mut stat = Stat::of(&status(5, (1, 2)));
    assert_eq!(stat.last_change(None), at(2));
    assert_eq!(stat.last_change(Some(&status(0, (0, 9)))), at(9), "its attributes were changed later");
    stat.change(at(10));
    assert_eq!(stat.last_change(Some(&status(0, (0, 9)))), at(10));
}

#[test]
fn the_page_in_which_it_ends_is_forgotten_once_before_something_comes_behind_a_gap() {
    let mut stat = Stat::of(&status(5000, (1, 1)));
    assert_eq!(stat.take_page_to_forget(6000), None, "the kernel has not read it");
    stat.read(0..8192);
    assert_eq!(stat.take_page_to_forget(5000), None, "there is no gap");
    assert_eq!(stat.take_page_to_forget(6000), Some(4096..8192));
    assert_eq!(stat.take_page_to_forget(6000), None);
    stat.keep_pages();
    assert_eq!(stat.take_page_to_forget(6000), Some(4096..8192));
}

#[test]
fn what_a_mapping_has_stored_beyond_the_end_is_zeros_when_the_file_grows() {
    for (writes, zeros) in [(false, 5000..8192), (true, 0..0)] {
        let mut stat = Stat::of(&status(5000, (1, 1)));
        stat.read(0..8192);
        stat.set_size(20_000);
        stat.resized(5000);
        if writes {
            stat.written(&(6000..6001));
        }
        assert_eq!(stat.take_zeros(&(4096..8192)), zeros);
        assert_eq!(stat.take_zeros(&(4096..8192)), 0..0, "once");
    }
}
