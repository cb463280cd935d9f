//! A user's words about a mount: the target, and the options behind `-o`. They are parsed once, into types; no later
//! layer sees a string.
//!
//! Options keep the names, units and meanings of nfs(5). An option that is not known is an error, unless `sloppy` is
//! given.

mod names;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use mafs_arpc::link::{ProfileName, UnknownProfile};
use mafs_arpc::{Config, Reserve, Scheduling};
use mafs_proto::{Classes, parse_size};
pub use target::{InvalidTarget, PORT_DEFAULT, Target};

use crate::remote::Proto;
use crate::vfs::{Close, Fsync, Locking, Stale, Writeback};
use names::Known;

/// Bytes of clean and dirty content that may be in the cache, unless `cachesize` says otherwise.
pub const CACHE_SIZE_DEFAULT: u64 = 10 << 30;

/// Bytes of the cache's disk that are left free, unless `minfree` says otherwise.
pub const MIN_FREE_DEFAULT: u64 = 1 << 30;

/// Tenths of a second that one wait for the server may take, unless `timeo` says otherwise.
pub const TIMEO_DEFAULT: u32 = 70;

/// The most repetitions of such a wait, unless `retrans` says otherwise.
pub const RETRANS_DEFAULT: u32 = 3;

/// The time that `fsync=auto` waits for the server, unless `fsync_wait` says otherwise.
pub const FSYNC_WAIT_DEFAULT: Duration = Duration::from_millis(500);

/// The time that an open waits without progress for a content that another client has announced, unless `pull_timeout`
/// says otherwise.
pub const PULL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// The deadline of `hard`. Not the longest duration there is, so that it can be added to the present.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The time that `bg` goes on trying, unless `retry` says otherwise: as nfs(5), 10,000 minutes.
const RETRY_IN_BACKGROUND: Duration = Duration::from_secs(10_000 * 60);

/// The most that `timeo` and `retrans` may say: a million seconds each way.
const COUNT_MAX: u32 = 10_000_000;

/// Flags of mount(8) that the kernel acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent flags of mount(8), not one state")]
pub struct KernelFlags {
    /// Device files work.
    pub dev: bool,
    /// Set-user-id and set-group-id bits work.
    pub suid: bool,
    /// Programs can be run.
    pub exec: bool,
    /// Access times are asked for.
    pub atime: bool,
    /// Writes are synchronous.
    pub sync: bool,
    /// Changes of names are synchronous.
    pub dirsync: bool,
}

impl Default for KernelFlags {
    /// Returns the defaults of FUSE mounts: a server's devices and set-id bits are not trusted unless the user asks
    /// for it.
    fn default() -> Self {
        Self { dev: false, suid: false, exec: true, atime: true, sync: false, dirsync: false }
    }
}

/// The options of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// `ro`: nothing may be changed. Default: `rw`.
    pub read_only: bool,
    /// `hard`: calls that need the server wait for ever. Default: `soft`.
    pub hard: bool,
    /// `timeo`, tenths of a second.
    pub timeo: u32,
    /// `retrans`.
    pub retrans: u32,
    /// `bg`: if the server cannot be reached, the mount is tried again in the background. Default: `fg`.
    pub background: bool,
    /// `retry`: how long to go on trying to mount, in whole minutes. Default: one attempt; with `bg` a week.
    pub retry: Option<Duration>,
    /// `cache`: the directory in which each target has its cache. Default: of the system or the user.
    pub cache: Option<PathBuf>,
    /// `cachesize`, bytes.
    pub cache_limit_bytes: u64,
    /// `minfree`, bytes.
    pub min_free_bytes: u64,
    /// `passthrough`: whether the kernel may read and write cached files itself, if it can. Default: `auto`.
    pub passthrough: bool,
    /// `prefetch`: whether files that will probably be opened next are fetched before that. Default: `auto`.
    pub prefetch: bool,
    /// `awake`: whether a virtual machine's processors are kept awake during bursts of requests, if this process may.
    /// Default: `auto`.
    pub awake: bool,
    /// `writeback`: when the server gets changes. Default: `sirp`.
    pub writeback: Writeback,
    /// `close`: when close returns, and each change of names and attributes, if the server gets changes later. Default:
    /// `auto`.
    pub close: Close,
    /// `stale`: the result of an open of a file whose newest version does not come. Default: `error`.
    pub stale: Stale,
    /// `disconnected`: whether cached state can be used while the server is out of reach. Default: `auto`.
    pub disconnected: bool,
    /// `lock`: who grants locks while the server is out of reach; `nolock`: the kernel does at all times, among the
    /// programs of this machine. Default: `local`.
    pub locking: Locking,
    /// `pull_timeout`, seconds: how long an open waits without progress for a newest version.
    pub pull_timeout: Duration,
    /// `fsync`: where fsync makes content durable. Default: `auto`.
    pub fsync: Fsync,
    /// `fsync_wait`, milliseconds: how long `fsync=auto`, and a program that gives up a lock, waits for the server.
    pub fsync_wait: Duration,
    /// `classes`: which call travels in which class. Default: `waiting`; `paper` is Table 1 of the MAFS paper.
    pub classes: Classes,
    /// `classes=one`: all calls take turns; `classes=none`: they do, without a window.
    pub scheduling: Scheduling,
    /// `reserve`: the part of this machine's traffic that is for the log (Metadata and Store) once it has waited for
    /// 60 s. Default: 5 percent, but none with `classes=paper`.
    pub reserve: Option<Reserve>,
    /// `profile`: the emulated link that everything to and from the server travels over. Default: none.
    pub profile: Option<ProfileName>,
    /// `proto`: the carrier of everything to and from a server that is a host. Default: `auto`.
    pub proto: Proto,
    /// Flags of mount(8).
    pub flags: KernelFlags,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            hard: false,
            timeo: TIMEO_DEFAULT,
            retrans: RETRANS_DEFAULT,
            background: false,
            retry: None,
            cache: None,
            cache_limit_bytes: CACHE_SIZE_DEFAULT,
            min_free_bytes: MIN_FREE_DEFAULT,
            passthrough: true,
            prefetch: true,
            awake: true,
            writeback: Writeback::default(),
            close: Close::default(),
            stale: Stale::default(),
            disconnected: true,
            locking: Locking::default(),
            pull_timeout: PULL_TIMEOUT_DEFAULT,
            fsync: Fsync::default(),
            fsync_wait: FSYNC_WAIT_DEFAULT,
            classes: Classes::default(),
            scheduling: Scheduling::default(),
            reserve: None,
            profile: None,
            proto: Proto::default(),
            flags: KernelFlags::default(),
        }
    }
}

/// The reason why options cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum InvalidOption {
    /// No option of that name.
    #[error("unknown mount option `{0}` (`sloppy` ignores such)")]
    Unknown(String),
    /// The option is described, but not supported yet.
    #[error("the mount option `{0}` is not supported yet (`sloppy` ignores it)")]
    NotYet(String),
    /// The option needs `=VALUE`.
    #[error("the mount option `{0}` needs a value")]
    NoValue(String),
    /// The option takes none.
    #[error("the mount option `{0}` takes no value")]
    Value(String),
    /// The value does not fit.
    #[error("the mount option `{name}` cannot be `{value}`: {why}")]
    BadValue {
        /// The option.
        name: String,
        /// The given value.
        value: String,
        /// The values that would do.
        why: String,
    },
}

impl MountOptions {
    /// Parses the lists given with `-o`, each with commas between options. The last option about a thing counts.
    ///
    /// # Errors
    /// [`InvalidOption`] for the first that cannot be used.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidOption> {
        let all: Vec<&str> =
            lists.into_iter().flat_map(|list| list.split(',')).map(str::trim).filter(|text| !text.is_empty()).collect();
        let sloppy = all.contains(&"sloppy");
        let mut options = Self::default();
        for text in all {
            match options.apply(text) {
                Err(InvalidOption::Unknown(_) | InvalidOption::NotYet(_)) if sloppy => {}
                other => other?,
            }
        }
        if (options.close, options.writeback) == (Close::Announced, Writeback::Async) {
            return Err(bad("close", "announced", "`writeback=async` announces nothing".to_owned()));
        }
        Ok(options)
    }

    /// Returns how long a call that needs the server may take: `timeo` x `retrans`, 21 s by default.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        if self.hard { FOR_EVER } else { Duration::from_millis(100) * self.timeo * self.retrans }
    }

    /// Returns how long to go on trying to mount.
    #[must_use]
    pub fn retry_for(&self) -> Duration {
        self.retry.unwrap_or(if self.background { RETRY_IN_BACKGROUND } else { Duration::ZERO })
    }

    /// Returns the connection's rules of which call goes first.
    #[must_use]
    pub fn connection(&self) -> Config {
        let default = match self.classes {
            Classes::ByWaiting => Reserve::default(),
            // In the paper timeouts show which calls strict order starves.
            Classes::Paper => Reserve::NONE,
        };
        Config { scheduling: self.scheduling, reserve: self.reserve.unwrap_or(default) }
    }

    fn apply(&mut self, text: &str) -> Result<(), InvalidOption> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let known = names::find(name).ok_or_else(|| InvalidOption::Unknown(name.to_owned()))?;
        let given = || value.filter(|value| !value.is_empty()).ok_or_else(|| InvalidOption::NoValue(name.to_owned()));
        match known {
            Known::NotYet => return Err(InvalidOption::NotYet(name.to_owned())),
            Known::Ignored => return Ok(()),
            Known::Timeo => self.timeo = number(name, given()?, 1, COUNT_MAX)?,
            Known::Retrans => self.retrans = number(name, given()?, 1, COUNT_MAX)?,
            Known::Retry => self.retry = Some(Duration::from_secs(60) * number(name, given()?, 0, COUNT_MAX)?),
            Known::CacheSize => self.cache_limit_bytes = size_value(name, given()?, 1)?,
            Known::MinFree => self.min_free_bytes = size_value(name, given()?, 0)?,
            Known::Cache => self.cache = Some(absolute(name, given()?)?),
            Known::Passthrough => self.passthrough = auto_or_off(name, given()?)?,
            Known::Prefetch => self.prefetch = auto_or_off(name, given()?)?,
            Known::Awake => self.awake = auto_or_off(name, given()?)?,
            Known::Writeback => self.writeback = writeback(name, given()?)?,
            Known::Close => self.close = close(name, given()?)?,
            Known::Stale => self.stale = stale(name, given()?)?,
            Known::Disconnected => self.disconnected = auto_or_off(name, given()?)?,
            Known::Lock => self.locking = value.map_or(Ok(Locking::default()), |value| locking(name, value))?,
            Known::PullTimeout => self.pull_timeout = Duration::from_secs(number(name, given()?, 1, COUNT_MAX)?.into()),
            Known::Fsync => self.fsync = fsync(name, given()?)?,
            Known::FsyncWait => self.fsync_wait = Duration::from_millis(number(name, given()?, 0, COUNT_MAX)?.into()),
            Known::Classes => (self.classes, self.scheduling) = classes(name, given()?)?,
            Known::Reserve => self.reserve = Some(reserve(name, given()?)?),
            Known::Profile => self.profile = Some(profile(name, given()?)?),
            Known::Proto => self.proto = proto(name, given()?)?,
            Known::Flag(flag) if value.is_none() => self.set(flag),
            Known::Flag(_) => return Err(InvalidOption::Value(name.to_owned())),
        }
        Ok(())
    }

    fn set(&mut self, flag: names::Flag) {
        use names::Flag;
        match flag {
            Flag::ReadOnly(yes) => self.read_only = yes,
            Flag::Hard(yes) => self.hard = yes,
            Flag::Background(yes) => self.background = yes,
            Flag::Dev(yes) => self.flags.dev = yes,
            Flag::Suid(yes) => self.flags.suid = yes,
            Flag::Exec(yes) => self.flags.exec = yes,
            Flag::Atime(yes) => self.flags.atime = yes,
            Flag::Sync(yes) => self.flags.sync = yes,
            Flag::DirSync => self.flags.dirsync = true,
            Flag::NoLock => self.locking = Locking::Kernel,
            Flag::Nothing => {}
        }
    }
}

fn number(name: &str, value: &str, min: u32, max: u32) -> Result<u32, InvalidOption> {
    value
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| bad(name, value, format!("a whole number from {min} to {max} is wanted")))
}

fn size_value(name: &str, value: &str, min: u64) -> Result<u64, InvalidOption> {
    match parse_size(value) {
        Ok(bytes) if bytes >= min => Ok(bytes),
        Ok(_) => Err(bad(name, value, format!("at least {min} is wanted"))),
        Err(error) => Err(bad(name, value, error.to_string())),
    }
}

fn auto_or_off(name: &str, value: &str) -> Result<bool, InvalidOption> {
    match value {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err(bad(name, value, "`auto` or `off` is wanted".to_owned())),
    }
}

fn writeback(name: &str, value: &str) -> Result<Writeback, InvalidOption> {
    match value {
        "sync" => Ok(Writeback::Sync),
        "async" => Ok(Writeback::Async),
        "sirp" => Ok(Writeback::Sirp),
        "sirp-c" => Ok(Writeback::SirpC),
        _ => Err(bad(name, value, "`sync`, `async`, `sirp` or `sirp-c` is wanted".to_owned())),
    }
}

fn close(name: &str, value: &str) -> Result<Close, InvalidOption> {
    match value {
        "auto" => Ok(Close::Auto),
        "logged" => Ok(Close::Logged),
        "announced" => Ok(Close::Announced),
        _ => Err(bad(name, value, "`auto`, `logged` or `announced` is wanted".to_owned())),
    }
}

fn stale(name: &str, value: &str) -> Result<Stale, InvalidOption> {
    match value {
        "error" => Ok(Stale::Error),
        "serve" => Ok(Stale::Serve),
        _ => Err(bad(name, value, "`error` or `serve` is wanted".to_owned())),
    }
}

fn locking(name: &str, value: &str) -> Result<Locking, InvalidOption> {
    match value {
        "local" => Ok(Locking::Local),
        "fail" => Ok(Locking::Fail),
        "strict" => Ok(Locking::Strict),
        _ => Err(bad(name, value, "`local`, `fail` or `strict` is wanted".to_owned())),
    }
}

fn fsync(name: &str, value: &str) -> Result<Fsync, InvalidOption> {
    match value {
        "auto" => Ok(Fsync::Auto),
        "local" => Ok(Fsync::Local),
        "server" => Ok(Fsync::Server),
        _ => Err(bad(name, value, "`auto`, `local` or `server` is wanted".to_owned())),
    }
}

fn classes(name: &str, value: &str) -> Result<(Classes, Scheduling), InvalidOption> {
    match value {
        "waiting" => Ok((Classes::ByWaiting, Scheduling::Classes)),
        "paper" => Ok((Classes::Paper, Scheduling::Classes)),
        "one" => Ok((Classes::ByWaiting, Scheduling::OneClass)),
        "none" => Ok((Classes::ByWaiting, Scheduling::Off)),
        _ => Err(bad(name, value, "`waiting`, `paper`, `one` or `none` is wanted".to_owned())),
    }
}

fn reserve(name: &str, value: &str) -> Result<Reserve, InvalidOption> {
    let wanted = || bad(name, value, format!("a whole number from 0 to {} is wanted", Reserve::PERCENT_MAX));
    value.parse().ok().and_then(Reserve::percent).ok_or_else(wanted)
}

fn profile(name: &str, value: &str) -> Result<ProfileName, InvalidOption> {
    value.parse().map_err(|error: UnknownProfile| bad(name, value, error.to_string()))
}

fn proto(name: &str, value: &str) -> Result<Proto, InvalidOption> {
    match value {
        "tcp" => Ok(Proto::Tcp),
        "quic" => Ok(Proto::Quic),
        "auto" => Ok(Proto::Auto),
        _ => Err(bad(name, value, "`auto`, `quic` or `tcp` is wanted".to_owned())),
    }
}

fn absolute(name: &str, value: &str) -> Result<PathBuf, InvalidOption> {
    std::path::absolute(value).map_err(|error| bad(name, value, error.to_string()))
}

fn bad(name: &str, value: &str, why: String) -> InvalidOption {
    InvalidOption::BadValue { name: name.to_owned(), value: value.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions, InvalidOption> {
        MountOptions::parse([text])
    }

    #[test]
    fn nothing_given_means_the_documented_defaults() {
        let options = parse("").unwrap();
        assert_eq!(options, MountOptions::default());
        assert_eq!(options.deadline(), Duration::from_secs(21));
        assert_eq!((options.cache_limit_bytes, options.min_free_bytes), (10_737_418_240, 1_073_741_824));
    }

    #[test]
    fn every_option_of_ours_is_understood() {
        let text = "ro,hard,timeo=5,retrans=4,retry=2,cache=/c d,cachesize=20G,minfree=512M,passthrough=off,profile=3g";
        let options = parse(text).unwrap();
        assert!(options.read_only && options.hard && !options.passthrough);
        assert_eq!(options.profile, Some("3g".parse().unwrap()));
        let proto = |text| parse(text).unwrap().proto;
        assert_eq!((options.proto, proto("proto=quic"), proto("proto=tcp")), (Proto::Auto, Proto::Quic, Proto::Tcp));
        assert!(parse("passthrough=off,passthrough=auto").unwrap().passthrough);
        assert!(!parse("awake=off").unwrap().awake && parse("awake=off,awake=auto").unwrap().awake);
        assert_eq!(parse("writeback=async").unwrap().writeback, Writeback::Async);
        assert_eq!(parse("writeback=async,writeback=sync").unwrap().writeback, Writeback::Sync);
        assert_eq!(parse("writeback=sirp").unwrap().writeback, Writeback::Sirp);
        let announced = parse("writeback=sirp-c,close=announced,stale=serve,pull_timeout=7").unwrap();
        assert_eq!((announced.writeback, announced.close), (Writeback::SirpC, Close::Announced));
        assert_eq!((announced.stale, announced.pull_timeout), (Stale::Serve, Duration::from_secs(7)));
        assert_eq!(parse("close=announced,close=auto,stale=serve,stale=error").unwrap(), MountOptions::default());
        assert!(!parse("disconnected=off").unwrap().disconnected);
        assert!(!parse("prefetch=off").unwrap().prefetch && parse("prefetch=off,prefetch=auto").unwrap().prefetch);
        assert_eq!(parse("fsync=server").unwrap().fsync, Fsync::Server);
        let local = parse("fsync=server,fsync=local,fsync_wait=70").unwrap();
        assert_eq!((local.fsync, local.fsync_wait), (Fsync::Local, Duration::from_millis(70)));
        let locking = |text| parse(text).unwrap().locking;
        assert_eq!((locking(""), locking("nolock,lock")), (Locking::Local, Locking::Local));
        assert_eq!((locking("lock=strict"), locking("lock=fail")), (Locking::Strict, Locking::Fail));
        assert_eq!((locking("lock=strict,nolock"), locking("lock=local")), (Locking::Kernel, Locking::Local));
        assert_eq!(parse("classes=paper").unwrap().classes, Classes::Paper);
        assert_eq!(parse("classes=paper,classes=waiting").unwrap().classes, Classes::ByWaiting);
        assert_eq!(parse("classes=one").unwrap().scheduling, Scheduling::OneClass);
        assert_eq!(parse("classes=none").unwrap().scheduling, Scheduling::Off);
        assert_eq!((options.timeo, options.retrans, options.retry_for()), (5, 4, Duration::from_secs(120)));
        assert_eq!(parse("bg").unwrap().retry_for(), Duration::from_secs(600_000));
        assert_eq!(
            (parse("bg,retry=1").unwrap().retry_for(), parse("bg,fg").unwrap().background),
            (Duration::from_secs(60), false)
        );
        assert_eq!(options.cache, Some(PathBuf::from("/c d")));
        assert_eq!((options.cache_limit_bytes, options.min_free_bytes), (20 << 30, 512 << 20));
        assert!(options.deadline() > Duration::from_secs(1_000_000_000));
        assert_eq!(parse("timeo=5,retrans=4").unwrap().deadline(), Duration::from_secs(2));
    }

    #[test]
    fn the_log_has_a_reserve_unless_the_classes_are_the_papers() {
        let reserve = |text| parse(text).unwrap().connection().reserve;
        assert_eq!(reserve(""), Reserve::percent(5).unwrap());
        assert_eq!(reserve("classes=paper"), Reserve::NONE);
        assert_eq!(reserve("reserve=0"), Reserve::NONE);
        assert_eq!(reserve("reserve=20,classes=paper"), Reserve::percent(20).unwrap());
    }

    #[test]
    fn the_last_word_counts_over_all_lists() {
        let options = MountOptions::parse(["ro,hard, timeo=5", "rw,timeo=6,soft"]).unwrap();
        assert!(!options.read_only && !options.hard);
        assert_eq!(options.timeo, 6);
    }

    #[test]
    fn what_mount_passes_is_accepted() {
        let text =
            "defaults,_netdev,noauto,user,nofail,nodev,nosuid,noexec,noatime,relatime,x-systemd.automount,comment=a";
        let flags = parse(text).unwrap().flags;
        assert_eq!(flags, KernelFlags { exec: false, atime: false, ..KernelFlags::default() });
        let flags = parse("dev,suid,exec,atime,sync,dirsync").unwrap().flags;
        assert_eq!(flags, KernelFlags { dev: true, suid: true, exec: true, atime: true, sync: true, dirsync: true });
    }

    #[test]
    fn options_that_are_not_known_are_errors_unless_sloppy() {
        assert_eq!(parse("ro,speed=9"), Err(InvalidOption::Unknown("speed".to_owned())));
        assert_eq!(parse("lease_s=9"), Err(InvalidOption::NotYet("lease_s".to_owned())));
        assert!(parse("speed=9,lease_s=9,ro,sloppy").unwrap().read_only);
        assert!(parse("timeo=x,sloppy").is_err(), "sloppy forgives no bad value");
    }

    #[test]
    fn values_that_do_not_fit_are_errors_that_say_what_would() {
        for (text, expected) in [
            ("timeo=0", "from 1 to"),
            ("retrans=-1", "from 1 to"),
            ("timeo", "needs a value"),
            ("cache=", "needs a value"),
            ("ro=1", "takes no value"),
            ("cachesize=0", "at least 1"),
            ("passthrough=on", "`auto` or `off`"),
            ("awake=on", "`auto` or `off`"),
            ("disconnected=on", "`auto` or `off`"),
            ("writeback=later", "`sync`, `async`, `sirp`"),
            ("close=later", "`auto`, `logged` or `announced`"),
            ("close=announced,writeback=async", "announces nothing"),
            ("stale=yes", "`error` or `serve`"),
            ("lock=no", "`local`, `fail` or `strict`"),
            ("nolock=1", "takes no value"),
            ("pull_timeout=0", "from 1 to"),
            ("classes=ours", "`waiting`, `paper`"),
            ("reserve=51", "from 0 to 50"),
            ("reserve=5%", "from 0 to 50"),
            ("cachesize=1Q", "K, M, G or T"),
            ("profile=4g", "no link profile is called `4g`: use one of lan, "),
            ("retry=99999999999", "from 0 to"),
            ("proto=udp", "`auto`, `quic` or `tcp`"),
            ("proto", "needs a value"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
