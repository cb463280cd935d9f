//! `verify [VOLUME...] [--json]`.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mafs_proto::VolumeName;

use super::{DAMAGE_FOUND, print};
use crate::ServerError;
use crate::verify::{DamagedFile, VerifyProgress, VolumeCheck, verify};

/// Time between two lines that tell a terminal how far it is.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Reads all contents of the volumes and says what is damaged.
pub(super) fn run(data: &Path, volumes: &[VolumeName], json: bool) -> Result<ExitCode, ServerError> {
    let mut line = Line { shown: std::io::stderr().is_terminal(), told: Instant::now() };
    let found = verify(data, volumes, |name, progress| line.tell(name, progress))?;
    line.clear();
    print(&if json { super::as_json(&found)? } else { as_text(&found) })?;
    let intact = found.iter().all(VolumeCheck::is_intact);
    Ok(if intact { ExitCode::SUCCESS } else { ExitCode::from(DAMAGE_FOUND) })
}

/// The line on a terminal that says how far it is.
struct Line {
    shown: bool,
    told: Instant,
}

impl Line {
    fn tell(&mut self, name: &VolumeName, VerifyProgress { bytes, of }: VerifyProgress) {
        if self.shown && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let _ = write!(std::io::stderr(), "\r\x1b[K{name}: {} of {} MB", bytes >> 20, of >> 20);
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn as_text(volumes: &[VolumeCheck]) -> String {
    let mut lines = Vec::new();
    for VolumeCheck { name, files, bytes, damaged_files, damaged, damage } in volumes {
        lines.push(match damage {
            Some(damage) => format!("{name}: {damage}"),
            None if *damaged_files == 0 => format!("{name}: files: {files}, bytes: {bytes}, all as they were stored"),
            None => format!("{name}: files: {files}, bytes: {bytes}, damaged: {damaged_files}"),
        });
        lines.extend(damaged.iter().map(|file| format!("  {}", described(file))));
        if let Some(more) = damaged_files.checked_sub(damaged.len() as u64).filter(|more| *more > 0) {
            lines.push(format!("  and {more} more"));
        }
    }
    lines.join("\n")
}

/// Describes a damaged file in one line, whatever its name is.
fn described(DamagedFile { path, fid, content, why }: &DamagedFile) -> String {
    let name =
        path.as_ref().map_or_else(|| format!("{fid}, which has no name"), |path| path.escape_debug().to_string());
    let place = content.as_ref().map_or_else(|| "in the index".to_owned(), Clone::clone);
    format!("{name}: {why} ({place})")
}
