//! `state PATH... [--json]`.

use std::io::Write;
use std::path::PathBuf;

use indicatif::HumanBytes;
use mafs_client::printable::printable_path;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::{Cached, ObjectReport};

use super::queue::state as how_far;
use super::reach::object_at;
use super::status_text::counted;
use super::{Exit, Failure, command_runtime, json_text};

#[derive(clap::Args, Debug)]
pub(super) struct StateArgs {
    /// Files and directories below mount points.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// For programs: an array with one object for each path, in their order.
    #[arg(long)]
    json: bool,
}

/// Shows the paths one after the other. Tells which cannot be shown; the exit code is that of the last of these.
pub(super) fn run(args: &StateArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        let (mut exit, mut all) = (Exit::Ok, Vec::new());
        for path in &args.paths {
            match object_at(&runtime_dir, path).await {
                Ok(found) if args.json => all.push(found.state),
                Ok(found) => {
                    let line = format!("{}: {}\n", printable_path(path), describe(&found.state));
                    // The reader may have seen enough.
                    if std::io::stdout().write_all(line.as_bytes()).is_err() {
                        return Ok(exit);
                    }
                }
                Err(failure) => {
                    eprintln!("mafs-client: {}", failure.message);
                    exit = failure.exit;
                }
            }
        }
        if args.json {
            let text = json_text(&all)?;
            let _ = std::io::stdout().write_all(text.as_bytes());
        }
        Ok(exit)
    })
}

/// Describes an object in one line: its kind, how much of it is here, and how much of it the server lacks.
fn describe(state: &ObjectReport) -> String {
    let is_directory = state.kind == "directory";
    let size = match state.kind.as_str() {
        "file" => format!(", {}", HumanBytes(state.size)),
        "directory" => format!(", {}", counted(state.size, "name")),
        _ => String::new(),
    };
    let version = match state.version {
        0 => "made here".to_owned(),
        version => format!("version {version}"),
    };
    let cached = match state.cached {
        Cached::Whole if is_directory => "names cached".to_owned(),
        Cached::Partly if is_directory => "some names cached".to_owned(),
        Cached::Whole => "cached".to_owned(),
        Cached::Partly => format!("{} cached", HumanBytes(state.cached_bytes)),
        Cached::No => "not cached".to_owned(),
    };
    let unsent = match &state.unsent {
        None => "at the server".to_owned(),
        Some(how) if state.records == 0 => format!("changed, {}", how_far(how)),
        Some(how) => format!("changed, {} in the log, {}", counted(state.records, "record"), how_far(how)),
    };
    let kept = match state.hoarded {
        _ if state.pinned => ", pinned".to_owned(),
        Some(priority) => format!(", hoarded with {priority}"),
        None => String::new(),
    };
    format!("{}{size}, {version}, {cached}{kept}, {unsent}", state.kind)
}

#[cfg(test)]
mod tests {
    use mafs_client::vfs::RecordState;

    use super::*;

    #[test]
    fn one_line_says_what_is_where() {
        let (path, kind) = ("docs/a".to_owned(), "file".to_owned());
        let clean = ObjectReport {
            path,
            kind,
            size: 4096,
            version: 7,
            cached: Cached::Whole,
            cached_bytes: 4096,
            dirty: false,
            unsent: None,
            records: 0,
            hoarded: None,
            pinned: false,
        };
        assert_eq!(describe(&clean), "file, 4.00 KiB, version 7, cached, at the server");
        let hoarded = ObjectReport { hoarded: Some(7), ..clean.clone() };
        assert_eq!(describe(&hoarded), "file, 4.00 KiB, version 7, cached, hoarded with 7, at the server");
        let pinned = ObjectReport { pinned: true, cached: Cached::No, ..clean.clone() };
        assert_eq!(describe(&pinned), "file, 4.00 KiB, version 7, not cached, pinned, at the server");
        let partly = ObjectReport { cached: Cached::Partly, cached_bytes: 1024, ..clean.clone() };
        assert_eq!(describe(&partly), "file, 4.00 KiB, version 7, 1.00 KiB cached, at the server");
        let sending = Some(RecordState::Sending { acknowledged_bytes: 1024 });
        let new = ObjectReport { version: 0, dirty: true, unsent: sending, records: 2, ..clean.clone() };
        assert_eq!(
            describe(&new),
            "file, 4.00 KiB, made here, cached, changed, 2 records in the log, sending, 1.00 KiB arrived"
        );
        let open = ObjectReport { unsent: Some(RecordState::Open), dirty: true, ..clean.clone() };
        assert!(describe(&open).ends_with("changed, open: goes when closed"));
        let directory = ObjectReport { kind: "directory".to_owned(), size: 2, cached: Cached::Partly, ..clean };
        assert_eq!(describe(&directory), "directory, 2 names, version 7, some names cached, at the server");
        let json = serde_json::to_value(&directory).unwrap();
        assert_eq!((&json["cached"], &json["unsent"]), (&"partly".into(), &serde_json::Value::Null));
    }
}
