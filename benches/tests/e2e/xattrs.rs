//! Extended attributes: the answers of each call on the local ext4 and on the mount, and copies of attributes by
//! programs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mafs_bench::process::run;
use mafs_bench::world::World;
use rustix::fs::{
    CWD, FileType, Mode, XattrFlags, fgetxattr, fremovexattr, fsetxattr, lgetxattr, lgetxattr_query, llistxattr,
    llistxattr_query, lremovexattr, lsetxattr, mknodat,
};
use rustix::io::Errno;

const LIMIT: Duration = Duration::from_secs(60);

/// The kernel's limit of a value.
const VALUE_MAX: usize = 65_536;

/// `security.capability` in the format VFS_CAP_REVISION_2: cap_net_raw, effective and permitted.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

type Answer = Result<Vec<u8>, Errno>;

#[test]
#[ignore = "needs: fuse, root, ext4 below the target directory"]
fn every_call_is_answered_as_on_ext4() {
    let world = World::start().unwrap();
    let (near, far) = (answers(&world.local()), answers(&world.mount()));
    for (near, far) in near.iter().zip(&far) {
        assert_eq!(near, far);
    }
    assert!(near.iter().filter(|(_, answer)| answer.is_err()).count() > 15);
}

#[test]
#[ignore = "needs: fuse, root"]
fn a_label_that_is_not_there_is_not_supported_and_others_are_kept() {
    let world = World::start().unwrap();
    let (with, without, label) = (world.mount().join("with"), world.mount().join("without"), b"security.selinux");
    [&with, &without].iter().for_each(|path| fs::write(path, "").unwrap());
    set(&with, label, b"system_u:object_r:etc_t:s0").unwrap();
    assert_eq!(get(&with, label).unwrap(), b"system_u:object_r:etc_t:s0");
    assert_eq!(get(&without, label), Err(Errno::OPNOTSUPP), "or ls -l asks of each file");
    assert_eq!(get(&without, b"security.other"), Err(Errno::NODATA));
}

#[test]
#[ignore = "needs: fuse, root"]
fn attributes_are_the_same_after_a_restart_and_in_an_empty_cache() {
    let mut world = World::start().unwrap();
    let (near, far) = (world.local(), world.mount());
    let expected = [&near, &far].map(|dir| {
        many(dir);
        seen(dir)
    });
    assert_eq!(expected[0], expected[1]);
    assert!(expected[0].values().map(BTreeMap::len).sum::<usize>() > 20);
    world.restart().unwrap();
    assert_eq!(seen(&far), expected[0]);
    world.forget_cache().unwrap();
    assert_eq!(seen(&far), expected[0]);
    let large = far.join("large");
    fs::write(&large, "").unwrap();
    for attribute in ["user.1", "user.2", "user.3"] {
        lsetxattr(&large, attribute, &[7; 20_000], XattrFlags::empty()).unwrap();
    }
    world.forget_cache().unwrap();
    assert_eq!(get(&large, b"user.2"), Ok(vec![7; 20_000]), "more than ext4 takes");
    assert_eq!(set(&large, b"user.4", &[7; 5_000]), Err(Errno::NOSPC));
}

#[test]
#[ignore = "needs: fuse, root, python3"]
fn another_user_is_bound_by_modes_and_namespaces_as_on_ext4() {
    let world = World::start().unwrap();
    let [near, far] = [world.local(), world.mount()].map(|dir| other_user(&dir));
    assert_eq!(near, far);
    assert!(near.contains("trusted") && near.contains("EPERM"), "{near}");
}

#[test]
#[ignore = "needs: fuse, root, rsync, tar, git"]
fn copying_programs_carry_attributes_both_ways() {
    let mut world = World::start().unwrap();
    let (near, far) = (world.local(), world.mount());
    let original = near.join("original");
    fs::create_dir(&original).unwrap();
    many(&original);
    fs::write(original.join("program"), "#!/bin/sh\n").unwrap();
    lsetxattr(original.join("program"), "security.capability", &CAPABILITY, XattrFlags::empty()).unwrap();
    let expected = seen(&original);
    for (there, back) in [(far.clone(), near.clone()), (far.join("again"), near.join("again"))] {
        fs::create_dir_all(&there).unwrap();
        fs::create_dir_all(&back).unwrap();
        let path = |dir: &Path, name: &str| dir.join(name).to_str().unwrap().to_owned();
        let script = r#"
set -eu
original=$1 there=$2 back=$3
cp -a "$original" "$there/cp"; cp -a "$there/cp" "$back/cp"
rsync -aAX "$original/" "$there/rsync/"; rsync -aAX "$there/rsync/" "$back/rsync/"
mkdir "$there/tar" "$back/tar"
pack() { tar --xattrs --xattrs-include='*' --acls -C "$@"; }
pack "$original" -cf - . | pack "$there/tar" -xf -
pack "$there/tar" -cf - . | pack "$back/tar" -xf -
git init -q "$there/git"; cp "$original/file" "$there/git/f"; git -C "$there/git" add f
"#;
        let arguments = [original.to_str().unwrap().to_owned(), path(&there, ""), path(&back, "")];
        run(Command::new("bash").args(["-c", script, "bash"]).args(arguments), LIMIT).unwrap();
        for copy in ["cp", "rsync", "tar"] {
            assert_eq!(seen(&there.join(copy)), expected, "{copy} to the mount");
            assert_eq!(seen(&back.join(copy)), expected, "{copy} from the mount");
        }
    }
    world.forget_cache().unwrap();
    assert_eq!(seen(&far.join("cp")), expected);
}

/// Returns the answers of calls, each with its name.
fn answers(dir: &Path) -> Vec<(String, Answer)> {
    let mut answers = Vec::new();
    let mut note = |call: String, answer: Answer| answers.push((call, answer));
    let done = |result: rustix::io::Result<()>| result.map(|()| Vec::new());
    for (name, path) in objects(dir) {
        for attribute in ["user.a", "trusted.a", "security.a", "system.a", "plain", "user.", "user", "security."] {
            let call = |what: &str| format!("{what} {attribute} of {name}");
            let attribute = attribute.as_bytes();
            note(call("get absent"), get(&path, attribute));
            note(call("replace absent"), done(change(&path, attribute, b"", XattrFlags::REPLACE)));
            note(call("remove absent"), done(remove(&path, attribute)));
            note(call("create"), done(change(&path, attribute, b"one\0\xff", XattrFlags::CREATE)));
            note(call("create again"), done(change(&path, attribute, b"two", XattrFlags::CREATE)));
            note(call("get"), get(&path, attribute));
            note(call("replace"), done(change(&path, attribute, b"", XattrFlags::REPLACE)));
            note(call("get empty"), get(&path, attribute));
            note(call("set"), done(set(&path, attribute, b"three")));
            note(call("get into too little"), lgetxattr(&path, attribute, &mut [0u8; 4][..]).map(|_| Vec::new()));
            note(call("remove"), done(remove(&path, attribute)));
            note(call("get removed"), get(&path, attribute));
        }
    }
    let path = dir.join("file");
    let long = |length: usize| [b"user.", &b"n".repeat(length - 5)[..]].concat();
    for length in [254, 255, 256, 300] {
        note(format!("a name of {length} bytes"), done(set(&path, &long(length), b"x")));
        note(format!("its value of {length} bytes"), get(&path, &long(length)));
        note(format!("removed {length} bytes"), done(remove(&path, &long(length))));
    }
    for length in [VALUE_MAX, VALUE_MAX + 1, 1 << 20] {
        note(format!("a value of {length} bytes"), done(set(&path, b"user.v", &vec![7; length])));
    }
    let not_utf8 = b"user.\xff/\n\x01";
    note("a name that is no UTF-8".to_owned(), done(set(&path, not_utf8, b"x")));
    note("its value".to_owned(), get(&path, not_utf8));
    note("the list".to_owned(), list(&path).map(|names| names.concat()));
    note("the list into too little".to_owned(), llistxattr(&path, &mut [0u8; 3][..]).map(|_| Vec::new()));
    note("of nothing".to_owned(), get(&dir.join("nothing"), b"user.a"));
    answers.extend(unlinked(dir));
    answers
}

/// Makes one object of each kind.
fn objects(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    fs::write(dir.join("file"), "content").unwrap();
    fs::create_dir(dir.join("directory")).unwrap();
    symlink("file", dir.join("symlink")).unwrap();
    mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    mknodat(CWD, dir.join("device"), FileType::CharacterDevice, Mode::RWXU, rustix::fs::makedev(1, 3)).unwrap();
    ["file", "directory", "symlink", "fifo", "device"].map(|name| (name, dir.join(name))).into()
}

/// Returns the answers about a file that is open without a name.
fn unlinked(dir: &Path) -> Vec<(String, Answer)> {
    let path = dir.join("unlinked");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    fsetxattr(&file, "user.before", b"one", XattrFlags::empty()).unwrap();
    file.write_all(b"not closed yet").unwrap();
    fs::remove_file(&path).unwrap();
    let get = |file: &File, name: &str| {
        let mut value = [0; 100];
        fgetxattr(file, name, &mut value[..]).map(|size| value[..size].to_vec())
    };
    let mut answers = vec![("before".to_owned(), get(&file, "user.before"))];
    let set = fsetxattr(&file, "user.after", b"two", XattrFlags::empty());
    answers.push(("set without a name".to_owned(), set.map(|()| Vec::new())));
    answers.push(("after".to_owned(), get(&file, "user.after")));
    let removed = fremovexattr(&file, "user.before");
    answers.push(("remove without a name".to_owned(), removed.map(|()| Vec::new())));
    answers.push(("removed".to_owned(), get(&file, "user.before")));
    answers
}

/// Makes a small tree with attributes of every kind that fit an ext4.
fn many(dir: &Path) {
    objects(dir);
    let user = |path: &Path| {
        for number in 0..5 {
            set(path, format!("user.{number}").as_bytes(), format!("value {number}").as_bytes()).unwrap();
        }
        set(path, b"user.binary", &(0..=255).collect::<Vec<u8>>()).unwrap();
        set(path, &[b"user.", &[0xfe; 250][..]].concat(), b"\0").unwrap();
        set(path, b"user.empty", b"").unwrap();
    };
    user(&dir.join("file"));
    user(&dir.join("directory"));
    fs::write(dir.join("directory/below"), "content").unwrap();
    user(&dir.join("directory/below"));
    set(&dir.join("symlink"), b"trusted.link", b"link").unwrap();
    set(&dir.join("fifo"), b"trusted.fifo", b"fifo").unwrap();
    set(&dir.join("file"), b"security.other", b"\x01").unwrap();
}

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns the attributes of all below a directory, by path.
fn seen(dir: &Path) -> BTreeMap<PathBuf, Attributes> {
    let mut seen = BTreeMap::new();
    let mut to_visit = vec![dir.to_owned()];
    while let Some(at) = to_visit.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                to_visit.push(entry.path());
            }
            let names = list(&entry.path()).unwrap();
            let attributes = names.into_iter().map(|name| {
                let value = get(&entry.path(), &name).unwrap();
                (name, value)
            });
            seen.insert(entry.path().strip_prefix(dir).unwrap().to_owned(), attributes.collect());
        }
    }
    seen
}

/// Returns the results of calls by `nobody`, one by one. Works with relative paths, because directories above may be
/// closed to others.
fn other_user(dir: &Path) -> String {
    const SCRIPT: &str = "
import errno, os, sys
os.chdir(sys.argv[1]); os.chmod('.', 0o755); os.mkdir('users'); os.chdir('users'); os.chmod('.', 0o755)
for name, mode in (('open', 0o644), ('writable', 0o666), ('closed', 0o600)):
    open(name, 'w').close(); os.chmod(name, mode)
    for attribute in ('user.a', 'trusted.a', 'security.a'): os.setxattr(name, attribute, b'root')
os.mkdir('sticky'); os.chmod('sticky', 0o1777)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def call(what, *arguments):
    try: answer = getattr(os, what)(*arguments)
    except OSError as error: answer = errno.errorcode[error.errno]
    print(what, *arguments, answer)
for name in ('open', 'writable', 'closed', 'sticky'):
    for attribute in ('user.a', 'trusted.a', 'security.a', 'security.capability', 'system.posix_acl_x'):
        call('getxattr', name, attribute); call('setxattr', name, attribute, b'nobody')
        call('getxattr', name, attribute); call('removexattr', name, attribute)
    print('list', name, sorted(os.listxattr(name)))
";
    run(Command::new("python3").args(["-c", SCRIPT]).arg(dir), LIMIT).unwrap()
}

fn get(path: &Path, name: &[u8]) -> Answer {
    let size = lgetxattr_query(path, OsStr::from_bytes(name))?;
    let mut value = vec![0; size + 1];
    let read = lgetxattr(path, OsStr::from_bytes(name), &mut value[..])?;
    assert_eq!(read, size, "the size that is told beforehand");
    value.truncate(read);
    Ok(value)
}

fn list(path: &Path) -> Result<Vec<Vec<u8>>, Errno> {
    let size = llistxattr_query(path)?;
    let mut names = vec![0; size + 1];
    let read = llistxattr(path, &mut names[..])?;
    assert_eq!(read, size, "the size that is told beforehand");
    let mut names: Vec<_> = names[..read].split_inclusive(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    names.iter_mut().for_each(|name| assert_eq!(name.pop(), Some(0)));
    names.sort();
    Ok(names)
}

fn set(path: &Path, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    change(path, name, value, XattrFlags::empty())
}

fn change(path: &Path, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
    lsetxattr(path, OsStr::from_bytes(name), value, flags)
}

fn remove(path: &Path, name: &[u8]) -> Result<(), Errno> {
    lremovexattr(path, OsStr::from_bytes(name))
}
