//! Opening a log: every record is checked, and an unfinished tail told apart from damage.
//!
//! Bad bytes in the last segment are a torn write if nothing shows that the record missing there had been durable: no
//! later record, and no seal, was written after a sync that covered it. Anywhere else they are damage, because a
//! segment is synced before the next one begins. Damage changes nothing on the disk.

use std::io;
use std::sync::Arc;

use super::format::{FileHeader, FileKind, new_salt};
use super::scan::{Scan, Step};
use super::{AppendLog, LogConfig, LogError, LogRecovery, Lsn, Segment, TornTail};
use crate::disk::join;
use crate::{Disk, DiskFile, DiskPath};

/// End of the name of a file that becomes a segment.
const UNNAMED_SUFFIX: &str = ".new";

/// Facts known after a look at all segments.
#[derive(Default)]
struct Survey {
    segments: Vec<Segment>,
    /// The last segment, if there is a good one.
    last: Option<Last>,
    /// The number after the newest record.
    next: Option<Lsn>,
    torn: Option<TornTail>,
    /// A last segment whose header was never finished, or that has no records: nobody knows whether its name is
    /// durable.
    stillborn: Option<Lsn>,
}

struct Last {
    file: Arc<dyn DiskFile>,
    bytes: u64,
    salt: u32,
    /// Place from where on its records are not shown to be durable.
    unproven: u64,
}

pub(super) fn open(
    disk: Arc<dyn Disk>,
    dir: &DiskPath,
    config: LogConfig,
) -> Result<(AppendLog, LogRecovery), LogError> {
    disk.create_dir_all(&[dir])?;
    let survey = survey(&*disk, dir)?;
    let next = survey.next.unwrap_or(Lsn::FIRST);
    let (segments, last) = match (survey.stillborn, survey.last) {
        (None, Some(last)) => (survey.segments, last),
        _ => {
            let mut segments = survey.segments;
            let (last, segment) = begin_segment(&*disk, dir, next)?;
            segments.push(segment);
            (segments, last)
        }
    };
    let first = segments.first().map_or(next, |segment| segment.first);
    let mut log = AppendLog {
        disk,
        dir: dir.to_owned(),
        config,
        segments,
        file: last.file,
        file_bytes: last.bytes,
        salt: last.salt,
        next,
        durable: next,
        poisoned: false,
        buffer: Vec::new(),
    };
    log.write_again(last.unproven)?;
    log.settle(survey.torn.is_some())?;
    Ok((log, LogRecovery { first, next, torn: survey.torn }))
}

/// Makes and syncs an empty segment. The segment gets its name when it is durable: so a name that a failed sync has
/// left behind is made anew.
pub(super) fn begin(disk: &dyn Disk, dir: &DiskPath, first: Lsn) -> io::Result<(Arc<dyn DiskFile>, u32, Segment)> {
    begin_segment(disk, dir, first).map(|(last, segment)| (last.file, last.salt, segment))
}

fn begin_segment(disk: &dyn Disk, dir: &DiskPath, first: Lsn) -> io::Result<(Last, Segment)> {
    let salt = new_salt();
    let path = segment_path(dir, first);
    let unnamed = format!("{path}{UNNAMED_SUFFIX}");
    let file = disk.create(&unnamed)?;
    file.write_all_at(&FileHeader { kind: FileKind::Segment, salt, first }.encode(), 0)?;
    file.sync_data()?;
    disk.rename(&unnamed, &path)?;
    disk.sync_dir(dir)?;
    let bytes = FileHeader::BYTES as u64;
    Ok((Last { file, bytes, salt, unproven: bytes }, Segment { first, bytes }))
}

pub(super) fn segment_path(dir: &DiskPath, first: Lsn) -> String {
    join(dir, &first.file_name())
}

fn survey(disk: &dyn Disk, dir: &DiskPath) -> Result<Survey, LogError> {
    let names = disk.list(dir)?;
    for unnamed in names.iter().filter(|name| name.ends_with(UNNAMED_SUFFIX)) {
        disk.remove(&join(dir, unnamed))?;
    }
    let firsts: Vec<Lsn> = names.iter().filter_map(|name| Lsn::from_file_name(name)).collect();
    let mut survey = Survey::default();
    for (index, first) in firsts.iter().enumerate() {
        let is_last = index + 1 == firsts.len();
        let file = disk.open(&segment_path(dir, *first))?;
        survey.look_at(*first, file, is_last)?;
    }
    Ok(survey)
}

impl Survey {
    fn look_at(&mut self, first: Lsn, file: Arc<dyn DiskFile>, is_last: bool) -> Result<(), LogError> {
        let damaged = |offset, why: String| LogError::Damaged { segment: first.file_name(), offset, why };
        let expected = self.next.unwrap_or(first);
        if first != expected {
            return Err(damaged(0, format!("it begins at record {first}, but the one before ends at {expected}")));
        }
        let len = file.len()?;
        let mut scan = match Scan::open(Arc::clone(&file), len, FileKind::Segment)? {
            Ok((header, scan)) if header.first == first => {
                self.last = Some(Last { file, bytes: len, salt: header.salt, unproven: 0 });
                scan
            }
            Ok((header, _)) => return Err(damaged(0, format!("its header says that it begins at {}", header.first))),
            Err(_) if is_last && len <= FileHeader::BYTES as u64 && (self.next.is_some() || first == Lsn::FIRST) => {
                self.stillborn = Some(first);
                self.next = Some(first);
                return Ok(());
            }
            Err(why) => return Err(damaged(0, why)),
        };
        let bad = loop {
            match scan.step()? {
                Step::Record(..) => {}
                Step::End => break None,
                Step::Bad(why) => break Some(why),
            }
        };
        if let Some(why) = bad {
            if !is_last || scan.proof_of_damage()? {
                return Err(damaged(scan.offset(), why.to_owned()));
            }
            let offset = scan.offset();
            self.torn = Some(TornTail { segment: first.file_name(), offset, bytes: len - offset });
        }
        self.next = Some(scan.next());
        if is_last && scan.next() == first {
            self.stillborn = Some(first);
            return Ok(());
        }
        if let Some(last) = &mut self.last {
            last.unproven = scan.unproven();
        }
        self.segments.push(Segment { first, bytes: scan.offset() });
        Ok(())
    }
}
