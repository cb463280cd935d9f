//! Every mount option by its name: one table.

/// A mount option, with the form of its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// An option without value.
    Flag(Flag),
    /// Tenths of a second.
    Timeo,
    /// A count.
    Retrans,
    /// Minutes.
    Retry,
    /// A directory.
    Cache,
    /// A size.
    CacheSize,
    /// A size.
    MinFree,
    /// `auto` or `off`.
    Passthrough,
    /// `auto` or `off`.
    Prefetch,
    /// `auto` or `off`.
    Awake,
    /// `sync`, `async`, `sirp` or `sirp-c`.
    Writeback,
    /// `auto`, `logged` or `announced`.
    Close,
    /// `error` or `serve`.
    Stale,
    /// `auto` or `off`.
    Disconnected,
    /// Seconds.
    PullTimeout,
    /// `auto`, `local` or `server`.
    Fsync,
    /// Milliseconds.
    FsyncWait,
    /// `waiting`, `paper`, `one` or `none`.
    Classes,
    /// Percent.
    Reserve,
    /// `local`, `fail` or `strict`; alone it stands for the default.
    Lock,
    /// An emulated link by its name.
    Profile,
    /// `auto`, `quic` or `tcp`.
    Proto,
    /// An option for other readers of fstab; with or without value.
    Ignored,
    /// An option that the manual describes, and that is not supported yet.
    NotYet,
}

/// The setting that an option without value switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flag {
    ReadOnly(bool),
    Hard(bool),
    Background(bool),
    Dev(bool),
    Suid(bool),
    Exec(bool),
    Atime(bool),
    Sync(bool),
    DirSync,
    NoLock,
    /// No setting: the option changes nothing here.
    Nothing,
}

/// Options of mount(8), systemd and udisks that say when and by whom something is mounted, and access-time modes that
/// the kernel keeps to itself: mafs sets access times at creation only.
const IGNORED: [&str; 28] = [
    "defaults",
    "_netdev",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "async",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "diratime",
    "nodiratime",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "mand",
    "nomand",
    "comment",
    "helper",
    "uhelper",
];

const NOT_YET: [&str; 15] = [
    "mnttimeo",
    "rsize",
    "wsize",
    "ac",
    "noac",
    "acregmin",
    "acregmax",
    "acdirmin",
    "acdirmax",
    "actimeo",
    "port",
    "lease_s",
    "insecure",
    "allow_other",
    "allow_root",
];

/// Finds the option with this name.
pub(super) fn find(name: &str) -> Option<Known> {
    let flag = |flag| Some(Known::Flag(flag));
    match name {
        "ro" => flag(Flag::ReadOnly(true)),
        "rw" => flag(Flag::ReadOnly(false)),
        "hard" => flag(Flag::Hard(true)),
        "soft" => flag(Flag::Hard(false)),
        "dev" => flag(Flag::Dev(true)),
        "nodev" => flag(Flag::Dev(false)),
        "suid" => flag(Flag::Suid(true)),
        "nosuid" => flag(Flag::Suid(false)),
        "exec" => flag(Flag::Exec(true)),
        "noexec" => flag(Flag::Exec(false)),
        "atime" => flag(Flag::Atime(true)),
        "noatime" => flag(Flag::Atime(false)),
        "sync" => flag(Flag::Sync(true)),
        "dirsync" => flag(Flag::DirSync),
        "bg" => flag(Flag::Background(true)),
        "fg" => flag(Flag::Background(false)),
        "sloppy" => flag(Flag::Nothing),
        "timeo" => Some(Known::Timeo),
        "retrans" => Some(Known::Retrans),
        "retry" => Some(Known::Retry),
        "cache" => Some(Known::Cache),
        "cachesize" => Some(Known::CacheSize),
        "minfree" => Some(Known::MinFree),
        "passthrough" => Some(Known::Passthrough),
        "prefetch" => Some(Known::Prefetch),
        "awake" => Some(Known::Awake),
        "writeback" => Some(Known::Writeback),
        "close" => Some(Known::Close),
        "stale" => Some(Known::Stale),
        "disconnected" => Some(Known::Disconnected),
        "pull_timeout" => Some(Known::PullTimeout),
        "fsync" => Some(Known::Fsync),
        "fsync_wait" => Some(Known::FsyncWait),
        "classes" => Some(Known::Classes),
        "reserve" => Some(Known::Reserve),
        "lock" => Some(Known::Lock),
        "nolock" => flag(Flag::NoLock),
        "profile" => Some(Known::Profile),
        "proto" => Some(Known::Proto),
        other if other.starts_with("x-") || other.starts_with("X-") || IGNORED.contains(&other) => Some(Known::Ignored),
        other if NOT_YET.contains(&other) => Some(Known::NotYet),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_in_the_table_twice() {
        for name in IGNORED {
            assert_eq!(find(name), Some(Known::Ignored), "{name}");
        }
        for name in NOT_YET {
            assert_eq!(find(name), Some(Known::NotYet), "{name}");
        }
        assert_eq!(find("x-systemd.requires"), Some(Known::Ignored));
        assert_eq!(find("speed"), None);
    }
}
