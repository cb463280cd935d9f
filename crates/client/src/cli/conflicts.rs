//! `conflicts [list] [DIR]`, `conflicts show|diff|resolve PATH`.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use indicatif::HumanBytes;
use mafs_client::printable::printable_path;
use mafs_client::runtime_dir::RuntimeDir;
use mafs_client::vfs::{ConflictEntry, ConflictReport, Side};
use serde::Serialize;

use super::reach::{Reached, daemon_above, daemons_of};
use super::{Exit, Failure, command_runtime, json_text};

#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct ConflictsArgs {
    #[command(subcommand)]
    command: Option<ConflictsCommand>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(clap::Subcommand, Debug)]
enum ConflictsCommand {
    /// One line for each change that was in conflict, of all clients; the same as `conflicts` alone. Exits with 5 if
    /// there are any.
    List(ListArgs),
    /// Show all that is known of a conflict.
    Show {
        /// The file, or what was kept of it.
        path: PathBuf,
    },
    /// Compare what others have with what was kept, with diff(1).
    Diff {
        /// The file, or what was kept of it.
        path: PathBuf,
    },
    /// End a conflict.
    Resolve(ResolveArgs),
}

#[derive(clap::Args, Debug)]
struct ListArgs {
    /// The mount point, or anything below it; all mounts of this user if it is not given.
    dir: Option<PathBuf>,
    /// For programs: an array of objects.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct ResolveArgs {
    /// The file, or what was kept of it.
    path: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(clap::Args, Clone, Copy, Debug)]
#[group(required = true, multiple = false)]
struct How {
    /// Put the kept version in the place of what others have; remove what is in the trash for good.
    #[arg(long)]
    mine: bool,
    /// Remove the kept version; put back what is in the trash.
    #[arg(long)]
    theirs: bool,
    /// Leave the kept version beside the file, as an ordinary file with a name of its own; leave what is in the trash.
    #[arg(long)]
    both: bool,
}

#[derive(Serialize)]
struct Listed<'r> {
    mount_point: &'r str,
    #[serde(flatten)]
    report: &'r ConflictReport,
}

pub(super) fn run(args: ConflictsArgs) -> Result<Exit, Failure> {
    let runtime_dir = RuntimeDir::open().map_err(|error| Failure::new(Exit::Failed, error))?;
    command_runtime()?.block_on(async {
        match args.command {
            None => list(&runtime_dir, &args.list).await,
            Some(ConflictsCommand::List(args)) => list(&runtime_dir, &args).await,
            Some(ConflictsCommand::Show { path }) => {
                let found = find(&runtime_dir, &path).await?;
                say(&found.entries.iter().map(|entry| show(&entry.report)).collect::<Vec<_>>().join("\n"));
                Ok(Exit::Ok)
            }
            Some(ConflictsCommand::Diff { path }) => diff(&find(&runtime_dir, &path).await?),
            Some(ConflictsCommand::Resolve(ResolveArgs { path, how })) => {
                let mut found = find(&runtime_dir, &path).await?;
                resolve(&mut found, how).await
            }
        }
    })
}

async fn list(runtime_dir: &RuntimeDir, args: &ListArgs) -> Result<Exit, Failure> {
    let daemons = daemons_of(runtime_dir, args.dir.as_deref()).await?;
    let (mut all, mut text) = (Vec::new(), String::new());
    for mut daemon in daemons {
        let report = asked(&mut daemon).await?;
        let place = daemon.status.mount_point;
        for entry in &report.entries {
            text += &format!("{place}/{}\n", one_line(&entry.report));
        }
        if report.more {
            text += &format!("{place}: there are more\n");
        }
        all.extend(report.entries.into_iter().map(|entry| (place.clone(), entry.report)));
    }
    if args.json {
        let listed: Vec<_> = all.iter().map(|(mount_point, report)| Listed { mount_point, report }).collect();
        text = json_text(&listed)?;
    }
    say(&text);
    Ok(if all.is_empty() { Exit::Ok } else { Exit::Conflicts })
}

async fn asked(daemon: &mut Reached) -> Result<mafs_client::vfs::ConflictsReport, Failure> {
    let place = &daemon.status.mount_point;
    let failed = |error| Failure::new(Exit::NoDaemon, format!("{place}: {error}"));
    daemon.client.conflicts().await.map_err(failed)
}

/// The conflicts of one path, and the daemon that told them.
struct FoundConflicts {
    daemon: Reached,
    mount_point: PathBuf,
    entries: Vec<ConflictEntry>,
}

impl FoundConflicts {
    fn absolute(&self, below: &[u8]) -> PathBuf {
        self.mount_point.join(OsStr::from_bytes(below))
    }
}

/// Finds the conflicts about a path, which need not exist.
async fn find(runtime_dir: &RuntimeDir, path: &Path) -> Result<FoundConflicts, Failure> {
    let absolute = std::path::absolute(path).map_err(|error| Failure::new(Exit::Failed, error))?;
    let (mut daemon, below) = daemon_above(runtime_dir, path, &absolute).await?;
    let depth = Path::new(OsStr::from_bytes(&below)).components().count();
    let mount_point = absolute.ancestors().nth(depth).unwrap_or(&absolute).to_path_buf();
    let mut entries = asked(&mut daemon).await?.entries;
    let of_copy = entries.iter().any(|entry| entry.path == below);
    entries.retain(|entry| entry.path == below || (entry.wanted == below && !of_copy));
    if entries.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("{}: there is no conflict", printable_path(path))));
    }
    Ok(FoundConflicts { daemon, mount_point, entries })
}

/// Returns the only conflict that was found.
fn only(found: &FoundConflicts) -> Result<&ConflictEntry, Failure> {
    match &found.entries[..] {
        [one] => Ok(one),
        several => {
            let names: Vec<_> = several.iter().filter_map(|entry| entry.report.kept.clone()).collect();
            Err(Failure::new(Exit::Usage, format!("there are several, name one of them: {}", names.join(", "))))
        }
    }
}

fn diff(found: &FoundConflicts) -> Result<Exit, Failure> {
    let entry = only(found)?;
    if entry.report.kept.is_none() {
        return Err(Failure::new(Exit::Failed, "nothing was kept that could be compared"));
    }
    let mut command = std::process::Command::new("diff");
    command.arg("-u").arg("--").arg(found.absolute(&entry.wanted)).arg(found.absolute(&entry.path));
    let status = command.status().map_err(|error| Failure::new(Exit::Failed, format!("diff: {error}")))?;
    Ok(if status.code().is_some_and(|code| code < 2) { Exit::Ok } else { Exit::Failed })
}

/// Resolves a conflict with file operations, as the user would by hand: for the server a conflict is resolved when the
/// kept version loses its name.
async fn resolve(found: &mut FoundConflicts, how: How) -> Result<Exit, Failure> {
    let entry = only(found)?.clone();
    let (copy, wanted) = (found.absolute(&entry.path), found.absolute(&entry.wanted));
    let failed =
        |path: &Path, error: std::io::Error| Failure::new(Exit::Failed, format!("{}: {error}", printable_path(path)));
    if entry.report.kept.is_none() {
        if how.mine {
            let detail = "nothing was kept: do it again by hand, and then resolve it with --theirs";
            return Err(Failure::new(Exit::Failed, format!("{}: {detail}", printable_path(&wanted))));
        }
        let place = found.daemon.status.mount_point.clone();
        let failed = |error| Failure::new(Exit::NoDaemon, format!("{place}: {error}"));
        found.daemon.client.dismiss(entry.path).await.map_err(failed)?;
        return Ok(Exit::Ok);
    }
    if entry.report.trash {
        return resolve_trash(found, &copy, how);
    }
    if how.mine {
        std::fs::rename(&copy, &wanted).map_err(|error| failed(&wanted, error))?;
    } else if how.theirs {
        remove(&copy).map_err(|error| failed(&copy, error))?;
    } else {
        let name = free_beside(&wanted, &entry.report.client);
        std::fs::rename(&copy, &name).map_err(|error| failed(&name, error))?;
        say(&format!("{}\n", printable_path(&name)));
    }
    Ok(Exit::Ok)
}

/// Resolves a conflict about the trash: `--mine` keeps the removals and empties the trash, `--theirs` puts its files
/// back.
fn resolve_trash(found: &FoundConflicts, trash: &Path, how: How) -> Result<Exit, Failure> {
    let failed = |error| Failure::new(Exit::Failed, format!("{}: {error}", printable_path(trash)));
    if how.both {
        let name = free_beside(trash, "the trash");
        std::fs::rename(trash, &name).map_err(failed)?;
        say(&format!("{}\n", printable_path(&name)));
    } else if how.mine {
        remove(trash).map_err(failed)?;
    } else {
        let left = put_back(trash, &found.mount_point).map_err(failed)?;
        if !left.is_empty() {
            let named = left.iter().map(|path| printable_path(path).to_string()).collect::<Vec<_>>().join("\n  ");
            return Err(Failure::new(
                Exit::Failed,
                format!("these names are taken, and stay in the trash:\n  {named}"),
            ));
        }
    }
    Ok(Exit::Ok)
}

/// Moves the entries of a directory back to their old places. Returns those that stay, because others have made their
/// names anew meanwhile.
fn put_back(from: &Path, to: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut left, mut open, mut emptied) = (Vec::new(), vec![(from.to_path_buf(), to.to_path_buf())], Vec::new());
    while let Some((from, to)) = open.pop() {
        emptied.push(from.clone());
        for entry in std::fs::read_dir(&from)? {
            let entry = entry?;
            let (here, there) = (entry.path(), to.join(entry.file_name()));
            match there.symlink_metadata() {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => std::fs::rename(&here, &there)?,
                Err(error) => return Err(error),
                Ok(status) if status.is_dir() && entry.file_type()?.is_dir() => open.push((here, there)),
                Ok(_) => left.push(here),
            }
        }
    }
    // Parents come first in this list.
    for directory in emptied.iter().rev() {
        match std::fs::remove_dir(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty && !left.is_empty() => {}
            other => other?,
        }
    }
    Ok(left)
}

fn remove(path: &Path) -> std::io::Result<()> {
    if path.symlink_metadata()?.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
}

/// Returns the wanted name if it is free, or one with the client's name in it.
fn free_beside(wanted: &Path, client: &str) -> PathBuf {
    let stem = wanted.file_stem().unwrap_or_default();
    let marked = |nth: u32| {
        let number = if nth > 1 { format!(" {nth}") } else { String::new() };
        let mut name = stem.to_os_string();
        name.push(format!(" (from {}{number})", client.replace('/', "_")));
        if let Some(extension) = wanted.extension() {
            name.push(".");
            name.push(extension);
        }
        wanted.with_file_name(name)
    };
    let names = std::iter::once(wanted.to_path_buf()).chain((1..1000).map(marked));
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    names.into_iter().find(is_free).unwrap_or_else(|| marked(1000))
}

fn one_line(report: &ConflictReport) -> String {
    match &report.kept {
        Some(_) if report.trash => format!("{}: {} ({})", report.path, report.why, report.client),
        Some(kept) => format!("{}: {} ({}); kept as {kept}", report.path, report.why, report.client),
        None => format!("{}: {}", report.path, report.why),
    }
}

fn show(report: &ConflictReport) -> String {
    let mut lines = vec![format!("path    {}", report.path), format!("why     {}", report.why)];
    let by = if report.client.is_empty() { "this client" } else { &report.client };
    lines.push(format!("by      {by}, user {}, {}", report.uid, time(report.time_s)));
    if let Some(base) = report.base {
        lines.push(format!("base    version {base}; what it held is not kept"));
    }
    if let Some(kept) = &report.kept {
        lines.push(format!("mine    {}: {kept}", report.mine.as_ref().map_or_else(|| "gone".to_owned(), side)));
        lines.push(format!("theirs  {}", report.theirs.as_ref().map_or_else(|| "removed".to_owned(), side)));
    }
    lines.join("\n") + "\n"
}

fn side(side: &Side) -> String {
    let size = match side.kind.as_str() {
        "directory" => format!("{} names", side.size),
        _ => HumanBytes(side.size).to_string(),
    };
    format!("{}, {size}, version {}, changed {}", side.kind, side.version, time(side.mtime_s))
}

/// Tells a time as how long ago it was, which needs no calendar.
fn time(seconds: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let ago = i64::try_from(now).unwrap_or(i64::MAX).saturating_sub(seconds);
    match u64::try_from(ago) {
        Ok(ago) => format!("{} ago", indicatif::HumanDuration(std::time::Duration::from_secs(ago))),
        Err(_) => "in the future, by its clock".to_owned(),
    }
}

fn say(text: &str) {
    // The reader may have seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> ConflictReport {
        let side = Side { kind: "file".to_owned(), size: 4096, mtime_s: 0, version: 3 };
        ConflictReport {
            kept: Some("a (conflict laptop 2026-11-26 08.00).txt".to_owned()),
            path: "a.txt".to_owned(),
            why: "both changed it".to_owned(),
            client: "laptop".to_owned(),
            uid: 1000,
            time_s: i64::MAX,
            trash: false,
            base: Some(2),
            mine: Some(side.clone()),
            theirs: Some(side),
        }
    }

    #[test]
    fn a_line_says_what_was_kept_of_what_and_why() {
        let kept = "a.txt: both changed it (laptop); kept as a (conflict laptop 2026-11-26 08.00).txt";
        assert_eq!(one_line(&report()), kept);
        let refused = ConflictReport { kept: None, why: "could not be done: remove a.txt".to_owned(), ..report() };
        assert_eq!(one_line(&refused), "a.txt: could not be done: remove a.txt");
        let path = ".mafs-trash/laptop/2026-11-26 08.00".to_owned();
        let trash = ConflictReport { kept: Some(path.clone()), path, trash: true, ..report() };
        assert_eq!(one_line(&trash), ".mafs-trash/laptop/2026-11-26 08.00: both changed it (laptop)");
    }

    #[test]
    fn what_is_in_the_trash_is_put_back_where_nothing_is() {
        let dir = tempfile::tempdir().unwrap();
        let (root, trash) = (dir.path().join("root"), dir.path().join("trash"));
        for made in ["root/a/new", "trash/a/b/deep", "trash/c/d", "trash/a/taken", "root/a/taken"] {
            let path = dir.path().join(made);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, made).unwrap();
        }
        assert_eq!(put_back(&trash, &root).unwrap(), [trash.join("a/taken")]);
        for (path, made) in [("a/b/deep", "trash/a/b/deep"), ("c/d", "trash/c/d"), ("a/taken", "root/a/taken")] {
            assert_eq!(std::fs::read_to_string(root.join(path)).unwrap(), made);
        }
        assert!(!trash.join("c").exists() && trash.join("a/taken").exists());
        std::fs::remove_file(root.join("a/taken")).unwrap();
        assert_eq!(put_back(&trash, &root).unwrap(), Vec::<PathBuf>::new());
        assert!(!trash.exists() && root.join("a/taken").exists());
    }

    #[test]
    fn all_three_sides_are_shown() {
        let text = show(&report());
        for line in ["base    version 2", "mine    file, 4.00 KiB, version 3", "theirs  file", "in the future"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(show(&ConflictReport { theirs: None, ..report() }).contains("theirs  removed"));
    }

    #[test]
    fn a_copy_that_stays_gets_a_name_that_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let wanted = dir.path().join("a.txt");
        assert_eq!(free_beside(&wanted, "laptop"), wanted);
        std::fs::write(&wanted, "").unwrap();
        let first = free_beside(&wanted, "laptop");
        assert_eq!(first, dir.path().join("a (from laptop).txt"));
        std::fs::write(first, "").unwrap();
        assert_eq!(free_beside(&wanted, "laptop"), dir.path().join("a (from laptop 2).txt"));
    }
}
