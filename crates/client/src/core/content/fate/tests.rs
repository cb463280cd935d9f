//! Fates of a file, in examples and for all orders of what can happen to it.

use mafs_proto::{
    ClientId, DataVersion, Fid, Incarnation, Kind, Mode, Status, StatusVersion, Timestamp, Uniquifier, VnodeId,
    VolumeId,
};
use proptest::prelude::*;

use super::*;

fn id(seq: u64) -> StoreId {
    StoreId { client: ClientId([1; 16]), incarnation: Incarnation(1), seq }
}

fn object() -> Object {
    let time = Timestamp::default();
    let status = Status {
        kind: Kind::File,
        mode: Mode::from_bits(0o644),
        nlink: 0,
        uid: 1,
        gid: 1,
        size: 5,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        data_version: DataVersion(1),
        status_version: StatusVersion(1),
        xattrs: None,
    };
    Object { fid: Fid { volume: VolumeId(1), vnode: VnodeId(7), unique: Uniquifier(1) }, status, target: None }
}

fn unlinked(named: Vec<StoreId>) -> Unlinked {
    Unlinked::new(object(), Some(Xattrs::default()), named)
}

fn refused(reason: FsError) -> Refused {
    Refused { reason, path: "a".to_owned() }
}

#[test]
fn a_file_with_a_name_goes_nowhere() {
    let fate = Fate::named();
    assert!(!fate.is_unlinked() && !fate.is_going());
    assert!(fate.left().is_none() && fate.refused().is_none());
}

#[test]
fn having_asked_tells_the_own_removal_from_somebody_elses() {
    let mut fate = Fate::named();
    assert_eq!(fate.meaning_of(FsError::Stale), Meaning::Shown, "others have removed it");
    assert!(fate.ask_removal());
    assert!(!fate.ask_removal(), "once");
    assert!(fate.is_going() && !fate.is_unlinked());
    assert_eq!(fate.meaning_of(FsError::Stale), Meaning::Removed);
    assert_eq!(fate.meaning_of(FsError::Quota), Meaning::Shown, "it may have its name for long");
    fate.keep_name();
    assert!(!fate.is_going());
    assert_eq!(fate.meaning_of(FsError::Stale), Meaning::Shown, "the next removal is somebody else's");
}

#[test]
fn nobody_wants_to_know_of_the_content_of_a_file_without_a_name() {
    let mut fate = Fate::named();
    fate.lose_name(unlinked(Vec::new()));
    assert!(fate.is_unlinked() && fate.is_going());
    assert_eq!((fate.meaning_of(FsError::Stale), fate.meaning_of(FsError::Quota)), (Meaning::Moot, Meaning::Moot));
    fate.ask_removal();
    assert_eq!((fate.meaning_of(FsError::Stale), fate.meaning_of(FsError::Quota)), (Meaning::Removed, Meaning::Moot));
}

#[test]
fn versions_from_before_are_sent_if_something_waits_for_them() {
    let mut fate = Fate::named();
    assert!(!fate.is_sent_unlinked(&[id(1)]), "it has a name");
    fate.send_named(vec![id(1)]);
    assert!(!fate.is_sent_unlinked(&[id(1)]), "and that says nothing of one");
    fate.lose_name(unlinked(vec![id(2), id(3)]));
    assert!(fate.is_sent_unlinked(&[id(1), id(3)]));
    assert!(!fate.is_sent_unlinked(&[id(1)]));
    fate.send_named(vec![id(1)]);
    assert!(fate.is_sent_unlinked(&[id(1)]) && !fate.is_sent_unlinked(&[id(3)]));
}

#[test]
fn what_is_left_is_shown_and_changed_as_it_is_here() {
    let mut fate = Fate::unlinked(unlinked(Vec::new()));
    let mode = Mode::from_bits(0o600);
    if let Some(object) = fate.left_mut().and_then(Unlinked::object_mut) {
        object.status.mode = mode;
    }
    assert!(fate.left_mut().and_then(Unlinked::xattrs_mut).is_some());
    let left = fate.left().unwrap();
    assert_eq!((left.object().unwrap().status.mode, left.xattrs()), (mode, Some(&Xattrs::default())));
    let stat = Stat::taken_up(9, Timestamp::default());
    let (object, xattrs) = left.left_with(&stat).unwrap();
    assert_eq!((object.status.size, object.status.mode, xattrs), (9, mode, Some(Xattrs::default())));
}

#[test]
fn of_a_removal_in_an_earlier_life_nothing_is_left() {
    let fate = Fate::taken_up(true, true);
    assert!(fate.is_unlinked());
    let left = fate.left().unwrap();
    assert!(left.object().is_none() && left.xattrs().is_none());
    assert!(left.left_with(&Stat::taken_up(0, Timestamp::default())).is_none());
}

#[test]
fn an_earlier_life_may_have_asked() {
    let fate = Fate::taken_up(true, false);
    assert!(fate.is_going() && !fate.is_unlinked());
    assert_eq!(fate.meaning_of(FsError::Stale), Meaning::Removed);
    assert!(!Fate::taken_up(false, false).is_going());
}

#[test]
fn a_refusal_is_shown_until_the_content_is_another() {
    let mut fate = Fate::named();
    fate.refuse(refused(FsError::Quota));
    assert_eq!((fate.refusal(), fate.refused()), (Some(FsError::Quota), Some(&refused(FsError::Quota))));
    fate.refuse(refused(FsError::TooLarge));
    assert_eq!(fate.refusal(), Some(FsError::TooLarge), "the last word");
    fate.end_refusal();
    assert_eq!(fate.refusal(), None);
}

/// An event in the life of a file.
#[derive(Clone, Copy, Debug)]
enum Event {
    Ask,
    Keep,
    Lose,
    Refuse,
    Change,
}

proptest! {
    /// The name that is gone stays gone, and a content that somebody may miss is never refused in silence.
    #[test]
    fn proptest_a_refusal_is_silent_only_of_what_is_going(
        events in proptest::collection::vec(
            proptest::sample::select(vec![Event::Ask, Event::Keep, Event::Lose, Event::Refuse, Event::Change]),
            0..20,
        )
    ) {
        let mut fate = Fate::named();
        let (mut asked, mut gone, mut refusal) = (false, false, None);
        for event in events {
            match event {
                Event::Ask => prop_assert_eq!(fate.ask_removal(), !std::mem::replace(&mut asked, true)),
                Event::Keep => {
                    fate.keep_name();
                    asked = false;
                }
                Event::Lose => {
                    fate.lose_name(unlinked(Vec::new()));
                    gone = true;
                }
                Event::Refuse => {
                    fate.refuse(refused(FsError::Quota));
                    refusal = Some(FsError::Quota);
                }
                Event::Change => {
                    fate.end_refusal();
                    refusal = None;
                }
            }
            prop_assert_eq!((fate.is_unlinked(), fate.is_going()), (gone, gone || asked));
            prop_assert_eq!(fate.refusal(), refusal);
            for reason in [FsError::Stale, FsError::Quota] {
                let is_silent = fate.meaning_of(reason) != Meaning::Shown;
                prop_assert_eq!(is_silent, gone || asked && reason == FsError::Stale);
            }
        }
    }
}
