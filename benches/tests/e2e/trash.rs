//! A user without a connection is in the wrong directory and removes everything: it is in the server's trash, and one
//! command brings it back (docs/operations.md, "Conflicts").

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_bench::client::Client;
use mafs_bench::link::EmulatedLink;
use mafs_bench::process::{finish, run, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use serde_json::Value;

const RATE: u64 = 4 << 20;
const RTT: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(120);
const DIRECTORIES: usize = 30;
const FILES_EACH: usize = 40;
/// Files that are left alone, and files that are too few for the trash.
const FEW: usize = 100;
const CONFLICTS: i32 = 5;

/// Properties of each object that people would miss, by its path.
type Tree = BTreeMap<PathBuf, (u32, (u32, u32), Vec<u8>)>;

fn tree(root: &Path) -> Tree {
    let (mut found, mut left) = (Tree::new(), vec![root.to_path_buf()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let content = match (metadata.is_dir(), metadata.is_symlink()) {
                (true, _) => Vec::new(),
                (_, true) => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
                _ => fs::read(&path).unwrap(),
            };
            let below = path.strip_prefix(root).unwrap().to_path_buf();
            found.insert(below, (metadata.mode(), (metadata.uid(), metadata.gid()), content));
            if metadata.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

/// Directories within one another, of files that only their owner may change, and links to them.
fn make_tree(root: &Path) {
    for number in 0..DIRECTORIES {
        let directory = root.join(format!("year {}", number / 10)).join(format!("album-{number}"));
        fs::create_dir_all(&directory).unwrap();
        make_files(&directory, FILES_EACH);
        fs::set_permissions(directory.join("0"), Permissions::from_mode(0o640)).unwrap();
        symlink("../0", directory.join("cover")).unwrap();
    }
    fs::set_permissions(root.join("year 1"), Permissions::from_mode(0o750)).unwrap();
}

fn make_files(directory: &Path, count: usize) {
    fs::create_dir_all(directory).unwrap();
    (0..count).for_each(|number| fs::write(directory.join(number.to_string()), format!("file {number}\n")).unwrap());
}

/// Two clients that both know what the first has made, of which the second will be without a connection.
struct Pair {
    world: World,
    maker: Client,
    made: Tree,
}

impl Pair {
    fn new(world: World) -> Self {
        let maker = world.another_client_beside_server("maker").unwrap();
        make_tree(&maker.mount().join("photos"));
        make_files(&maker.mount().join("kept"), FEW);
        make_files(&maker.mount().join("few"), FEW);
        let made = tree(&maker.mount());
        let pair = Self { world, maker, made };
        run(pair.maker.command().arg("sync").arg(pair.theirs()), LIMIT).unwrap();
        // The trees are read twice, for directories are cached whole from the second miss on.
        for _ in 0..2 {
            assert_eq!(tree(&pair.mine()), pair.made);
        }
        pair
    }

    /// Returns the mount of the client that will be without a connection.
    fn mine(&self) -> PathBuf {
        self.world.mount()
    }

    fn theirs(&self) -> PathBuf {
        self.maker.mount()
    }

    fn status(&self) -> Value {
        let said = finish(self.world.client_command().args(["status", "--json"]).arg(self.mine()), LIMIT).unwrap();
        serde_json::from_str(&said.stdout).unwrap()
    }

    fn command(&self, argument: &str) {
        run(self.world.client_command().arg(argument).arg(self.mine()), LIMIT).unwrap();
    }

    fn remove(&self, directory: &str) {
        run(Command::new("rm").arg("-rf").arg(self.mine().join(directory)), LIMIT).unwrap();
        assert!(!self.mine().join(directory).exists());
        assert_eq!(self.status()["connected"], false);
        assert!(self.theirs().join(directory).exists(), "others have not heard of it");
    }

    fn wait_until_sent(&self) {
        wait_until(LIMIT, "everything is sent", || {
            let status = self.status();
            Ok(status["connected"] == true && status["log"]["records"] == 0)
        })
        .unwrap();
        assert_eq!(self.status()["refused"], Value::Array(Vec::new()));
    }

    /// Waits until both mounts show only these directories of what was made: the kernel is told in the background.
    fn wait_until_only(&self, directories: &[&str]) {
        let left: Tree = self.made.clone().into_iter().filter(|(path, _)| is_below(path, directories)).collect();
        for mount in [self.mine(), self.theirs()] {
            wait_until(LIMIT, "both show what is left", || {
                let here = fs::read_dir(&mount)?.map(|entry| Ok(entry?.file_name()));
                let here = here.collect::<std::io::Result<Vec<_>>>()?;
                Ok(here.iter().filter(|name| *name != ".mafs-trash").count() == directories.len())
            })
            .unwrap();
            let shown: Tree = tree(&mount).into_iter().filter(|(path, _)| !is_below(path, &[".mafs-trash"])).collect();
            assert!(shown == left, "{}: {:?}", mount.display(), shown.keys().collect::<Vec<_>>());
        }
    }

    fn wait_until_nothing_is_listed(&self) {
        wait_until(LIMIT, "nothing is listed", || {
            Ok(finish(self.world.client_command().arg("conflicts").arg(self.mine()), LIMIT)?.code() == 0)
        })
        .unwrap();
        assert_eq!(self.status()["conflicts"], 0);
    }

    /// Returns the place of the trash in the volume that `conflicts` names to both.
    fn trash(&self) -> PathBuf {
        let named = [(self.world.client_command(), self.mine()), (self.maker.command(), self.theirs())];
        let [mine, theirs] = named.map(|(mut command, mount)| {
            let said = finish(command.args(["conflicts", "list", "--json"]).arg(&mount), LIMIT).unwrap();
            assert_eq!(said.code(), CONFLICTS, "{said:?}");
            let listed: Vec<Value> = serde_json::from_str(&said.stdout).unwrap();
            let [trash] = &listed[..] else { panic!("{listed:?}") };
            assert_eq!(trash["trash"], true, "{trash}");
            PathBuf::from(trash["kept"].as_str().unwrap())
        });
        assert_eq!(mine, theirs);
        // .mafs-trash/CLIENT/MINUTE
        let parts: Vec<_> = mine.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        let [top, client, minute] = &parts[..] else { panic!("{parts:?}") };
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!((&top[..], &client[..]), (".mafs-trash", host.trim()));
        let digits: String = minute.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
        assert_eq!(digits, "0000-00-00 00.00");
        mine
    }

    /// Checks that the trash has what was in a directory, and nothing else.
    fn check_trash(&self, directory: &str) -> PathBuf {
        let trash = self.trash();
        let removed: Tree = self.made.clone().into_iter().filter(|(path, _)| is_below(path, &[directory])).collect();
        assert!(removed.len() > DIRECTORIES * FILES_EACH);
        for mount in [self.mine(), self.theirs()] {
            let found = tree(&mount.join(&trash));
            assert!(found == removed, "{}: {:?}", mount.display(), found.keys().collect::<Vec<_>>());
        }
        trash
    }
}

fn is_below(path: &Path, directories: &[&str]) -> bool {
    directories.iter().any(|directory| path.starts_with(directory))
}

#[test]
#[ignore = "needs: fuse, root, tun, iproute2"]
fn what_is_removed_in_a_black_hole_is_in_the_trash_and_mv_brings_it_back() {
    let link = EmulatedLink::start(&Profile::steady(RATE, RTT)).unwrap();
    let pair = Pair::new(World::start_over(link, "writeback=sirp").unwrap());
    let _watchdog = Watchdog::start(3 * LIMIT, vec![pair.mine(), pair.theirs()]);
    pair.world.link().unwrap().set_unplugged(true);
    wait_until(LIMIT, "the path is known to be dead", || {
        let _ = fs::metadata(pair.mine().join("unheard-of/x"));
        let _ = fs::write(pair.mine().join("probe"), "x");
        Ok(pair.status()["disconnected"] == true)
    })
    .unwrap();
    fs::remove_file(pair.mine().join("probe")).unwrap();
    pair.remove("photos");
    pair.world.link().unwrap().set_unplugged(false);
    pair.wait_until_sent();

    pair.wait_until_only(&["kept", "few"]);
    let trash = pair.check_trash("photos");
    assert_eq!(pair.status()["conflicts"], 1, "people are told");
    let log = pair.world.server().unwrap().log_end();
    assert!(log.contains("trash"), "{log}");
    // Either client may move it: here the one that never was away.
    run(Command::new("mv").arg(pair.theirs().join(&trash).join("photos")).arg(pair.theirs()), LIMIT).unwrap();
    pair.wait_until_only(&["kept", "few", "photos"]);
    run(Command::new("rm").arg("-rf").arg(pair.theirs().join(".mafs-trash")), LIMIT).unwrap();
    run(pair.maker.command().arg("sync").arg(pair.theirs()), LIMIT).unwrap();
    pair.wait_until_nothing_is_listed();
    assert_eq!(tree(&pair.mine()), pair.made);
}

#[test]
#[ignore = "needs: fuse, root"]
fn little_is_removed_and_what_is_most_of_all_is_put_back_by_the_command() {
    let pair = Pair::new(World::start_with("writeback=sirp").unwrap());
    let _watchdog = Watchdog::start(3 * LIMIT, vec![pair.mine(), pair.theirs()]);
    pair.command("disconnect");
    pair.remove("few");
    pair.command("reconnect");
    pair.wait_until_sent();
    pair.wait_until_only(&["kept", "photos"]);
    for mount in [pair.mine(), pair.theirs()] {
        assert!(!mount.join(".mafs-trash").exists());
    }

    pair.command("disconnect");
    pair.remove("photos");
    pair.command("reconnect");
    pair.wait_until_sent();
    pair.wait_until_only(&["kept"]);
    let trash = pair.check_trash("photos");
    let resolve = ["conflicts", "resolve", "--theirs"];
    run(pair.world.client_command().args(resolve).arg(pair.mine().join(trash)), LIMIT).unwrap();
    pair.command("sync");
    pair.wait_until_only(&["kept", "photos"]);
    pair.wait_until_nothing_is_listed();
}
