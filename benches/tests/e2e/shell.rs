//! Shell scripts, and the programs in them, do their everyday work, with many files: each leaves on the mount what it
//! leaves on a local disk, here and for a second client.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mafs_bench::process::run;
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;

const LIMIT: Duration = Duration::from_secs(120);

/// The scripts. Each works in an empty directory. Files that are not the same each time it leaves in `apart`, and
/// says what must be.
const SCRIPTS: [(&str, &str); 14] = [
    ("append to what was made empty", "for i in $(seq 200); do : >$i; echo hello >>$i; echo $i >>$i; done"),
    ("copy to what was made empty", "seq 5000 >source; for i in $(seq 100); do touch $i; cp source $i; done"),
    (
        "temporary files that get a name",
        "for i in $(seq 100); do file=$(mktemp ./XXXXXX); echo $i >$file; mv $file $i; done",
    ),
    (
        "copy beside and move over",
        "for i in $(seq 100); do seq $i >$i; cp -p $i new; echo end >>new; mv -f new $i; done",
    ),
    (
        "edit in place",
        "for i in $(seq 60); do seq 50 >$i; sed -i s/1/one/ $i; sort -r -o $i $i; echo $i | tee -a $i >/dev/null; done",
    ),
    (
        "overwrite parts and set sizes",
        "for i in $(seq 60); do
            seq 9000 >$i; echo patched | dd of=$i bs=1 seek=$((i * 100)) conv=notrunc,fsync status=none
            truncate -s $((i * 700)) $i; fallocate -l 50000 $i; cp --reflink=auto --sparse=always $i copy-$i
        done",
    ),
    (
        "here documents, links, logs that are rotated",
        "for i in $(seq 100); do
            cat >log <<END
$(seq $i)
END
            ln -f log last; exec 5>>log; mv log log.$i; echo closed >&5; exec 5>&-; : >log
        done",
    ),
    ("a pipe into many", "seq 20000 | split -l 100 - part-; cat part-* >whole; wc -l <whole >count; rm part-?a"),
    (
        "make with four jobs",
        "mkdir apart made; seq 120 | sed 's/.*/made\\/&: source-&\\n\\ttouch $@ \\&\\& cat $< $< >>$@/' >Makefile
        seq 120 | sed 's/.*/all: made\\/&/' >>Makefile; for i in $(seq 120); do echo $i >source-$i; done
        make -s -j4 all; make -q all; sleep 0.01; echo more >>source-7; ! make -q all; make -s -j4 all; make -q all",
    ),
    (
        "commit in four worktrees of one repository",
        "mkdir apart; cd apart; export GIT_CONFIG_GLOBAL=/dev/null HOME=$PWD
        git() { command git -c user.name=n -c user.email=e@e -c advice.detachedHead=false \"$@\"; }
        git init -q main; cd main; git commit -q --allow-empty -m first
        for w in 1 2 3 4; do git worktree add -q -b branch-$w ../tree-$w; done
        pids=; for w in 1 2 3 4; do (
            cd ../tree-$w; for i in $(seq 8); do echo $i >file-$w-$i; git add .; git commit -q -m $i; done
        ) & pids=\"$pids $!\"; done; for pid in $pids; do wait $pid; done
        git merge -q -m all branch-1 branch-2 branch-3 branch-4 >/dev/null; git gc -q; git fsck --full --strict
        test -z \"$(git status --porcelain)\"; git rev-list --count HEAD >../../count; git ls-files -s >../../files",
    ),
    (
        "rsync in place and with what an earlier run has left",
        "mkdir from apart; for i in $(seq 40); do seq $((i * 100)) >from/$i; done; cp -r from inplace
        for i in $(seq 40); do echo more >>from/$i; done; rsync -rI --inplace --no-whole-file from/ inplace/
        rsync -r --partial --append-verify from/ appended/; echo most >>from/9
        rsync -r --append-verify from/ appended/",
    ),
    (
        "two processes in one sqlite database with a write-ahead log",
        "mkdir apart; cat >apart/insert.py <<'END'
import sqlite3, sys
database = sqlite3.connect('apart/database', timeout=60, isolation_level=None)
for row in range(40): database.execute('INSERT INTO rows VALUES (?, ?)', (sys.argv[1], row))
END
        sqlite3 apart/database 'PRAGMA journal_mode=wal; CREATE TABLE rows(who, number);' >/dev/null
        python3 apart/insert.py 1 & first=$!; python3 apart/insert.py 2; wait $first
        sqlite3 apart/database 'PRAGMA integrity_check; SELECT who, count(*), sum(number) FROM rows GROUP BY who' >sum",
    ),
    ("what editors do", "python3 - <<'END'\n{EDITORS}\nEND"),
    ("what libraries of Python do", "python3 - <<'END'\n{LIBRARIES}\nEND"),
];

/// Saves with vim's `backupcopy`: the old file becomes the backup, or is copied and overwritten.
const EDITORS: &str = "
import os
for n in range(60):
    for keep in (False, True):
        name = f'{n}-{keep}'
        with open(name, 'w') as f: f.write('first\\n' * n)
        for edit in range(3):
            text = open(name).read() + f'edit {edit}\\n'
            if keep:
                with open(name + '~', 'w') as f: f.write(open(name).read())
            else: os.rename(name, name + '~')
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(fd, text.encode()); os.fsync(fd); os.close(fd)
            assert os.stat(name).st_size == len(text) and open(name).read() == text
            os.unlink(name + '~')
";

const LIBRARIES: &str = "
import dbm.dumb, mmap, os, shelve, shutil, tempfile, zipfile
for n in range(150):
    h = tempfile.NamedTemporaryFile(dir='.', delete=False); h.close()
    with open(h.name, 'w') as f: f.write('x' * 5000)
    os.replace(h.name, f'named-{n}')
for n in range(10):
    with shelve.Shelf(dbm.dumb.open('shelf')) as s: s[str(n)] = list(range(n)); s['last'] = n
with shelve.Shelf(dbm.dumb.open('shelf')) as s: assert s['last'] == 9 and s['7'] == list(range(7)) and len(s) == 11
for n in range(60):
    with open(f'mapped-{n}', 'w+b') as f:
        f.truncate(20000); m = mmap.mmap(f.fileno(), 20000)
    m[100 * n:100 * n + 4] = b'data'
    if n % 2: m.flush()
    m.close()
    with tempfile.TemporaryFile(dir='.') as t:
        t.write(b'y' * 9000); t.seek(0); assert t.read() == b'y' * 9000
    with open(f'updated-{n}', 'w+') as f:
        f.write('old content'); f.seek(0); f.write('new'); f.flush(); f.truncate()
    with open(f'updated-{n}', 'a') as f: f.write(' and more')
with zipfile.ZipFile('archive.zip', 'w') as z:
    for n in range(60): z.writestr(zipfile.ZipInfo(f'{n}'), f'{n}' * 100)
with zipfile.ZipFile('archive.zip', 'a') as z: z.writestr(zipfile.ZipInfo('late'), 'late')
assert zipfile.ZipFile('archive.zip').testzip() is None
shutil.copytree('.', '../' + os.path.basename(os.getcwd()) + '/tree', ignore=shutil.ignore_patterns('tree'))
";

#[test]
#[ignore = "needs: fuse, git, make, python3, rsync, sqlite3"]
fn scripts_leave_on_the_mount_what_they_leave_on_a_local_disk() {
    let mut world = World::start_with("writeback=sirp").unwrap();
    let mut second = world.another_client("second").unwrap();
    let _watchdog = Watchdog::start(LIMIT * 2, vec![world.mount(), second.mount()]);
    let failed: Vec<String> = SCRIPTS
        .iter()
        .filter_map(|(name, script)| {
            let compared = compare(&world, &second.mount(), name, script);
            compared.err().map(|error| format!("{name}: {error}"))
        })
        .collect();
    assert!(failed.is_empty(), "{} of {}: {}", failed.len(), SCRIPTS.len(), failed.join("\n"));
    second.stop().unwrap();
    world.stop_client().unwrap();
}

fn compare(world: &World, second: &Path, name: &str, script: &str) -> io::Result<()> {
    let directory = name.replace(' ', "-");
    let [near, here, there] = [&world.local(), &world.mount(), second].map(|root| root.join(&directory));
    let wanted = work(&near, script)?;
    let begun = Instant::now();
    let found = work(&here, script)?;
    println!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
    run(world.client_command().arg("sync").arg(world.mount()), LIMIT)?;
    for (found, place) in [(found, "here"), (digests(&here)?, "here, once all is sent"), (digests(&there)?, "there")] {
        let lines = wanted.lines().filter(|line| !found.lines().any(|other| other == *line));
        let missing: Vec<&str> = lines.collect();
        if found != wanted {
            let (count, first) = (missing.len(), missing.first().unwrap_or(&"none is missing, there are more"));
            return Err(io::Error::other(format!("{place} {count} files are not as they should be: {first}")));
        }
    }
    Ok(())
}

fn work(directory: &Path, script: &str) -> io::Result<String> {
    fs::create_dir(directory)?;
    let script = script.replace("{EDITORS}", EDITORS).replace("{LIBRARIES}", LIBRARIES);
    let mut command = Command::new("bash");
    run(command.args(["-euc", &script]).current_dir(directory).env("LC_ALL", "C"), LIMIT)?;
    digests(directory)
}

/// Returns the size of each file as it is shown, and the digest of each content.
fn digests(directory: &Path) -> io::Result<String> {
    const SCRIPT: &str = "find . -path ./apart -prune -o -type f -printf '%s %p\\n' | sort -k 2
        find . -path ./apart -prune -o -type f -print0 | sort -z | xargs -0 sha256sum";
    run(Command::new("bash").args(["-euc", SCRIPT]).current_dir(directory).env("LC_ALL", "C"), LIMIT)
}
