//! PostgreSQL: a cluster is made and filled on the mount, its processes are killed while they work, and nothing that
//! COMMIT has acknowledged is lost. `MAFS_INITDBS` says how many clusters are made, `MAFS_CRASHES` how often one is
//! killed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mafs_bench::daemon::Daemon;
use mafs_bench::measure::{parent, state};
use mafs_bench::mounted::Mounted;
use mafs_bench::process::{all_pids, finish, run, wait_until};
use mafs_bench::watchdog::Watchdog;
use mafs_bench::world::World;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::number_from_env;

const INITDBS: u32 = 2;
const CRASHES: u32 = 1;

/// Limit of one command.
const LIMIT: Duration = Duration::from_secs(120);

/// Time that the cluster works before it is killed, and the time between the death of one process and that of all.
const WORK: Duration = Duration::from_secs(4);
const BETWEEN_DEATHS: Duration = Duration::from_millis(300);

const LOG_LINES_SHOWN: usize = 20;

/// Connections that record, beside those of pgbench.
const RECORDERS: u64 = 2;

const RECORDS: &str = "CREATE TABLE records(recorder bigint, number bigint, PRIMARY KEY (recorder, number))";

/// Query that counts different sums: every transaction of pgbench adds to four tables alike.
const BALANCES: &str = "SELECT count(DISTINCT sum) FROM (SELECT sum(abalance) FROM pgbench_accounts \
     UNION ALL SELECT sum(bbalance) FROM pgbench_branches UNION ALL SELECT sum(tbalance) FROM pgbench_tellers \
     UNION ALL SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS sums";

#[test]
#[ignore = "needs: fuse, root, postgresql, util-linux"]
fn postgresql_makes_its_clusters_on_the_mount() {
    let world = World::start_with("writeback=sirp").unwrap();
    let rounds = number_from_env("MAFS_INITDBS", INITDBS);
    let _watchdog = Watchdog::start(LIMIT * (rounds + 1), vec![world.mount()]);
    let reachable = Mounted::bind(&world.mount()).unwrap();
    for round in 0..rounds {
        Cluster::make(reachable.path(), &format!("cluster-{round}")).unwrap_or_else(|error| panic!("{round}: {error}"));
    }
}

#[test]
#[ignore = "needs: fuse, root, postgresql, util-linux"]
fn postgresql_keeps_what_it_acknowledged_when_its_processes_are_killed() {
    let mut world = World::start_with("writeback=sirp").unwrap();
    let crashes = number_from_env("MAFS_CRASHES", CRASHES);
    let _watchdog = Watchdog::start(LIMIT * (crashes + 2), vec![world.mount()]);
    let reachable = Mounted::bind(&world.mount()).unwrap();
    let mut cluster = Cluster::make(reachable.path(), "cluster").unwrap();
    cluster.start().unwrap();
    cluster.sql(RECORDS).unwrap();
    cluster.run("pgbench", &["--initialize", "--quiet", "postgres"]).unwrap();
    let mut acknowledged = BTreeSet::new();
    for crash in 0..crashes {
        acknowledged.extend(work_and_crash(&mut cluster, u64::from(crash)).unwrap());
        println!("crash {crash}: {} records were acknowledged so far", acknowledged.len());
        check(&mut cluster, &acknowledged).unwrap_or_else(|error| panic!("after crash {crash}: {error}"));
    }
    cluster.stop().unwrap();
    drop(reachable);
    world.forget_cache().unwrap();
    let reachable = Mounted::bind(&world.mount()).unwrap();
    cluster.data = reachable.path().join("cluster");
    cluster.start().unwrap();
    check(&mut cluster, &acknowledged).unwrap_or_else(|error| panic!("fetched into an empty cache: {error}"));
    cluster.stop().unwrap();
}

/// A row that a recorder has put into the table.
type Record = (u64, u64);

/// Lets pgbench and recorders work, kills one process, and soon after all of them. Returns the acknowledged records,
/// and starts the cluster again.
fn work_and_crash(cluster: &mut Cluster, crash: u64) -> io::Result<Vec<Record>> {
    let recorders: Vec<_> = (0..RECORDERS).map(|number| record(cluster, crash * RECORDERS + number)).collect();
    let mut pgbench = cluster.command("pgbench");
    pgbench.args(["--client=4", "--time=600", "--no-vacuum", "postgres"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut pgbench = pgbench.spawn()?;
    thread::sleep(WORK);
    let processes = cluster.processes();
    processes.last().map_or(Ok(()), |pid| kill(*pid))?;
    thread::sleep(BETWEEN_DEATHS);
    cluster.kill()?;
    pgbench.wait()?;
    let mut acknowledged = Vec::new();
    for recorder in recorders {
        let records = recorder.join().unwrap()?;
        if records.is_empty() {
            return Err(io::Error::other("a recorder has had no record acknowledged"));
        }
        acknowledged.extend(records);
    }
    cluster.start()?;
    Ok(acknowledged)
}

/// Inserts one row after the other, and returns those that were acknowledged before the server was killed.
fn record(cluster: &Cluster, recorder: u64) -> JoinHandle<io::Result<Vec<Record>>> {
    let mut command = cluster.psql();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    thread::spawn(move || {
        let mut child: Child = command.spawn()?;
        let piped = child.stdin.take().zip(child.stdout.take());
        let (mut lines, answers) = piped.ok_or_else(|| io::Error::other("no pipes"))?;
        let (mut answers, mut acknowledged) = (BufReader::new(answers), Vec::new());
        for number in 0.. {
            let sent = writeln!(lines, "INSERT INTO records VALUES ({recorder}, {number}) RETURNING number;");
            let mut answer = String::new();
            if sent.is_err() || answers.read_line(&mut answer)? == 0 {
                break;
            }
            assert_eq!(answer.trim_end(), number.to_string());
            acknowledged.push((recorder, number));
        }
        child.wait()?;
        Ok(acknowledged)
    })
}

/// Checks that every acknowledged record is there, that tables and indices agree, and that the checksums of all pages
/// do.
fn check(cluster: &mut Cluster, acknowledged: &BTreeSet<Record>) -> io::Result<()> {
    let rows = cluster.sql("SELECT recorder, number FROM records")?;
    let row = |line: &str| line.split_once('|').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let there: BTreeSet<Record> = rows.lines().filter_map(row).collect();
    let lost: Vec<_> = acknowledged.difference(&there).take(10).collect();
    if !lost.is_empty() {
        return Err(io::Error::other(format!("acknowledged and lost: {lost:?} ...")));
    }
    if cluster.sql(BALANCES)?.trim_end() != "1" {
        return Err(io::Error::other("the sums of pgbench differ"));
    }
    cluster.run("pg_amcheck", &["--all", "--install-missing", "--heapallindexed", "--parent-check"])?;
    cluster.stop()?;
    cluster.run("pg_checksums", &["--check", "--pgdata", &cluster.data.to_string_lossy()])?;
    cluster.start()
}

/// A cluster of the user `postgres`. Its socket and its log are not on the mount.
struct Cluster {
    programs: PathBuf,
    data: PathBuf,
    apart: TempDir,
    server: Option<Daemon>,
}

impl Cluster {
    fn make(below: &Path, name: &str) -> io::Result<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql")?.collect::<io::Result<Vec<_>>>()?;
        let newest = versions.iter().map(fs::DirEntry::path).max().ok_or_else(|| io::Error::other("no PostgreSQL"))?;
        let apart = tempfile::Builder::new().prefix("mafs-").tempdir_in("/tmp")?;
        let cluster = Self { programs: newest.join("bin"), data: below.join(name), apart, server: None };
        fs::create_dir(&cluster.data)?;
        for directory in [cluster.apart.path(), &cluster.data] {
            chown(directory, Some(postgres("-u")?), Some(postgres("-g")?))?;
        }
        let data = cluster.data.to_string_lossy();
        let arguments = ["--data-checksums", "--auth=trust", "--no-locale", "--encoding=UTF8", "--pgdata", &data];
        cluster.run("initdb", &arguments)?;
        Ok(cluster)
    }

    /// Returns a program of PostgreSQL as its user, who may not reach the directory of the test.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(self.programs.join(program));
        command.env("PGHOST", self.apart.path()).env("HOME", self.apart.path()).current_dir("/");
        command
    }

    fn psql(&self) -> Command {
        let mut command = self.command("psql");
        command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1", "postgres"]);
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        run(self.command(program).args(arguments), LIMIT).map_err(|error| self.with_log(&error))
    }

    fn sql(&self, query: &str) -> io::Result<String> {
        run(self.psql().args(["--command", query]), LIMIT).map_err(|error| self.with_log(&error))
    }

    fn with_log(&self, error: &io::Error) -> io::Error {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
        io::Error::other(format!("{error}\n--- log of PostgreSQL\n{last}"))
    }

    fn log(&self) -> PathBuf {
        self.apart.path().join("log")
    }

    /// Starts the server as a child of the test: one that was killed would stay a process where nobody waits for
    /// orphans, and in the way of the next.
    fn start(&mut self) -> io::Result<()> {
        let mut command = self.command("postgres");
        let options = ["-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-k"];
        command.arg("-D").arg(&self.data).args(options).arg(self.apart.path());
        let mut server = Daemon::start("postgres", &mut command, &self.log())?;
        let mut is_ready = self.command("pg_isready");
        server.wait_ready(LIMIT, || Ok(finish(&mut is_ready, LIMIT)?.status.success()))?;
        self.server = Some(server);
        Ok(())
    }

    fn stop(&mut self) -> io::Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        // The server ends the connections and then itself.
        server.signal(Signal::INT)?;
        let status = server.wait_end(LIMIT)?;
        let failed = || self.with_log(&io::Error::other(format!("PostgreSQL has ended with {status}")));
        if status.success() { Ok(()) } else { Err(failed()) }
    }

    /// Returns all processes but the first, in the order in which they were started.
    fn processes(&self) -> Vec<i32> {
        let server = self.server.as_ref().and_then(|server| i32::try_from(server.pid()).ok());
        let mut processes: Vec<i32> = all_pids().filter(|pid| server.is_some() && parent(*pid) == server).collect();
        processes.sort_unstable();
        processes
    }

    /// Kills all processes, the first one first, so that it starts no other.
    fn kill(&mut self) -> io::Result<()> {
        let others = self.processes();
        self.server.take().map_or(Ok(()), Daemon::kill)?;
        others.iter().try_for_each(|pid| kill(*pid))?;
        wait_until(LIMIT, "all are gone", || Ok(!others.iter().any(|pid| is_alive(*pid))))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{error}");
        }
    }
}

/// Returns the number of the user or of its group, as id(1) has it.
fn postgres(option: &str) -> io::Result<u32> {
    run(Command::new("id").args([option, "postgres"]), LIMIT)?.trim_end().parse().map_err(io::Error::other)
}

fn is_alive(pid: i32) -> bool {
    u32::try_from(pid).ok().and_then(state).is_some_and(|state| state != 'Z')
}

/// Kills a process, which may have ended before.
fn kill(pid: i32) -> io::Result<()> {
    let process = Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process"))?;
    let killed = kill_process(process, Signal::KILL);
    if killed == Err(rustix::io::Errno::SRCH) { Ok(()) } else { Ok(killed?) }
}
