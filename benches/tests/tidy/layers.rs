//! Rules about the layers of ARCHITECTURE.md: the dependencies that are allowed, and the names that pure code may not
//! use.

use crate::source::{Complaint, Source};

/// Folders below `crates/*/src/` whose code decides and does nothing else.
const PURE: [&str; 3] = ["engine", "link", "core"];

/// Names that pure code must not use: it gets time and randomness as arguments, and gives work out as values.
const IMPURE: [&str; 7] = ["tokio", "std::fs", "std::net", "Instant::now", "SystemTime::now", "rand::", "getrandom"];

/// The crates of mafs that each may depend on. Nothing points upward.
const MAY_USE: [(&str, &[&str]); 7] = [
    ("crates/proto", &[]),
    ("crates/durable", &["proto"]),
    ("crates/arpc", &["proto"]),
    ("crates/server", &["arpc", "durable", "proto"]),
    ("crates/client", &["arpc", "durable", "proto", "server"]),
    ("crates/sim", &["arpc", "client", "durable", "proto", "server"]),
    ("benches", &["arpc", "client", "durable", "proto", "server", "sim"]),
];

/// The only module of the client that knows of the server.
const QUICKSTART: &str = "crates/client/src/quickstart.rs";

/// The only part of the bench's library that uses a crate of mafs: the network between programs is not the subject of
/// the tests. All else knows what users see and no more, so that a mistake in a crate cannot hide itself.
const EMULATED_LINK: [&str; 3] = ["benches/src/link.rs", "benches/src/link/", "benches/src/bin/mafs-link.rs"];

/// The only table of errno values.
const ERRNO_TABLE: &str = "crates/client/src/fuse/errno.rs";

pub(crate) fn check(source: &Source) -> Vec<Complaint> {
    [purity, quickstart, bench_from_outside, errno_table, manifest].iter().flat_map(|rule| rule(source)).collect()
}

fn purity(source: &Source) -> Vec<Complaint> {
    if !is_pure(&source.path) {
        return Vec::new();
    }
    let mut complaints = refuse(source, &IMPURE, "must not be named in pure code");
    for at in source.find_word("std::{") {
        let group = source.code[at..].split(';').next().unwrap_or_default();
        if group.contains("fs") || group.contains("net") {
            complaints.push(source.complain_at(at, "`std::fs` and `std::net` must not be named in pure code"));
        }
    }
    complaints
}

/// Tells whether a path is `crates/X/src/PURE.rs` or lies in `crates/X/src/PURE/`.
fn is_pure(path: &str) -> bool {
    let mut parts = path.split('/');
    let crates_and_src = (parts.next(), parts.next().is_some(), parts.next());
    let folder = parts.next().unwrap_or_default();
    crates_and_src == (Some("crates"), true, Some("src")) && PURE.contains(&folder.trim_end_matches(".rs"))
}

fn quickstart(source: &Source) -> Vec<Complaint> {
    if !source.is_rust() || !source.path.starts_with("crates/client/") || source.path == QUICKSTART {
        return Vec::new();
    }
    refuse(source, &["mafs_server"], "only quickstart.rs knows the server")
}

fn bench_from_outside(source: &Source) -> Vec<Complaint> {
    let may = EMULATED_LINK.iter().any(|link| source.path.starts_with(link));
    if !source.is_rust() || !source.path.starts_with("benches/src/") || may {
        return Vec::new();
    }
    let crates = ["mafs_proto", "mafs_durable", "mafs_arpc", "mafs_server", "mafs_client", "mafs_sim"];
    refuse(source, &crates, "must not be named in the bench's library, but for the emulated link")
}

fn errno_table(source: &Source) -> Vec<Complaint> {
    if !source.is_rust() || !source.path.starts_with("crates/client/") || source.path == ERRNO_TABLE {
        return Vec::new();
    }
    // rustix calls its own constants Errno::NOENT and so on; EXIST is the only one that looks like a name of errno.h.
    let named = |pattern: &str| source.code.match_indices(pattern).map(|(at, _)| at).collect::<Vec<_>>();
    let places = named("libc::E").into_iter().chain(named("Errno::E"));
    let bad = places.filter(|at| !source.code[*at..].starts_with("Errno::EXIST"));
    bad.map(|at| source.complain_at(at, "errno values are named in fuse/errno.rs only")).collect()
}

fn manifest(source: &Source) -> Vec<Complaint> {
    let Some((_, may_use)) = MAY_USE.iter().find(|(folder, _)| source.path == format!("{folder}/Cargo.toml")) else {
        return Vec::new();
    };
    let mut complaints = Vec::new();
    let mut in_dependencies = false;
    let mut at = 0;
    for line in source.text.split_inclusive('\n') {
        if line.starts_with('[') {
            in_dependencies = line.trim_end().ends_with("dependencies]");
        } else if in_dependencies && let Some(rest) = line.strip_prefix("mafs-") {
            let end = rest.find(['.', ' ', '=']).unwrap_or(rest.len());
            let used = &rest[..end];
            if !may_use.contains(&used) {
                complaints.push(source.complain_at(at, format!("mafs-{used} is not below this crate")));
            } else if used == "server" && source.path.starts_with("crates/client/") && !line.contains("optional = true")
            {
                complaints
                    .push(source.complain_at(at, "the client knows the server only behind the feature `quickstart`"));
            }
        }
        at += line.len();
    }
    complaints
}

fn refuse(source: &Source, words: &[&str], why: &str) -> Vec<Complaint> {
    let complain = |word: &str| -> Vec<Complaint> {
        source.find_word(word).into_iter().map(|at| source.complain_at(at, format!("`{word}` {why}"))).collect()
    };
    words.iter().flat_map(|word| complain(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&Source::new(path, text)).len()
    }

    #[test]
    fn pure_folders_name_nothing_impure() {
        for word in IMPURE {
            let text = format!("use x::{word}y;\nuse {word};\n");
            assert!(count("crates/arpc/src/engine/call.rs", &text) > 0, "{word}");
            assert!(count("crates/arpc/src/engine.rs", &text) > 0, "{word}");
            assert_eq!(count("crates/arpc/src/driver.rs", &text), 0, "{word}");
        }
        assert_eq!(count("crates/server/src/core/a.rs", "use std::{fs, io};\n"), 1);
        assert_eq!(count("crates/server/src/core/a.rs", "// tokio\nuse mafs_proto::Instant;\n"), 0);
    }

    #[test]
    fn only_quickstart_knows_the_server() {
        assert_eq!(count("crates/client/src/main.rs", "use mafs_server::Server;\n"), 1);
        assert_eq!(count(QUICKSTART, "use mafs_server::Server;\n"), 0);
        assert_eq!(count("crates/sim/src/lib.rs", "use mafs_server::Server;\n"), 0);
    }

    #[test]
    fn the_bench_looks_from_outside() {
        let text = "use mafs_arpc::link::Profile;\n";
        assert_eq!(count("benches/src/world.rs", text), 1);
        assert_eq!(count("benches/src/link/way.rs", text), 0);
        assert_eq!(count("benches/src/bin/mafs-link.rs", text), 0);
        assert_eq!(count("benches/benches/arpc.rs", text), 0);
        assert_eq!(count("benches/src/world.rs", "use mafs_bench::daemon::Daemon;\n"), 0);
    }

    #[test]
    fn errno_values_stay_in_their_table() {
        assert_eq!(count("crates/client/src/vfs/open.rs", "libc::ENOENT; Errno::EIO\n"), 2);
        assert_eq!(count("crates/client/src/vfs/open.rs", "Errno::NOENT; Errno::EXIST\n"), 0);
        assert_eq!(count(ERRNO_TABLE, "Errno::EIO\n"), 0);
    }

    #[test]
    fn dependencies_point_downward() {
        let upward = "[dependencies]\nmafs-client.workspace = true\n";
        assert_eq!(count("crates/server/Cargo.toml", upward), 1);
        assert_eq!(count("crates/sim/Cargo.toml", upward), 0);
        assert_eq!(count("crates/proto/Cargo.toml", "[dev-dependencies]\nmafs-arpc = { path = \"../arpc\" }\n"), 1);
        assert_eq!(count("crates/client/Cargo.toml", "[dependencies]\nmafs-server.workspace = true\n"), 1);
        let optional = "[dependencies]\nmafs-server = { workspace = true, optional = true }\n";
        assert_eq!(count("crates/client/Cargo.toml", optional), 0);
        assert_eq!(count("crates/server/Cargo.toml", "[package]\nmafs-client = 1\n"), 0);
    }
}
