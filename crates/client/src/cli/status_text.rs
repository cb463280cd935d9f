//! A mount's status as people read it: short, aligned, and silent about what is in order.

use std::fmt::Write as _;
use std::time::Duration;

use indicatif::{HumanBytes, HumanDuration};
use mafs_client::control::MountStatus;
use mafs_client::vfs::{HoardReport, LogReport, PrefetchReport, StatusReport, SyncProgress};
use mafs_proto::Class;
use mafs_proto::call::ConflictsReply;

/// Files left behind that are named; the rest is counted.
const LEFT_SHOWN: usize = 5;

/// Refused updates that are listed; the rest is counted.
const REFUSED_SHOWN: usize = 10;

/// Describes a mount in several lines, each with its line end.
pub(crate) fn describe(status: &MountStatus) -> String {
    let report = &status.report;
    let mut text = format!("{}  {}\n", status.mount_point, status.target);
    let mut line = |label: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {label:<8} {value}");
    };
    line("link", &link(report));
    let carrier = carrier_of(report);
    if !carrier.is_empty() {
        line("carrier", &carrier);
    }
    if let Some(profile) = &report.profile {
        line("profile", &format!("{profile}: the link is emulated"));
    }
    line("lease", &lease(report));
    line("unsent", &unsent(report));
    if report.log.records > 0 || report.log.paused {
        line("log", &log(&report.log));
    }
    let queued = queued(report);
    if !queued.is_empty() {
        line("queued", &queued);
    }
    let limited = limited(report);
    if !limited.is_empty() {
        line("limited", &limited);
    }
    if report.stale_reads > 0 {
        let opens = counted(report.stale_reads, "open");
        line("stale", &format!("{opens} got a version before the newest: who had that one did not send it"));
    }
    if report.locks > 0 {
        line("locks", &locks(report));
    }
    if report.fetching_files > 0 {
        line("fetching", &files(report.fetching_files));
    }
    line("cache", &cache(report));
    if report.cache_short_bytes > 0 {
        let short = HumanBytes(report.cache_short_bytes);
        line("disk", &format!("the cache's disk is too full: free {short}, or files cannot grow (minfree)"));
    }
    if report.hoard.entries > 0 {
        line("hoard", &hoard(&report.hoard));
    }
    if report.prefetch.files > 0 {
        line("ahead", &prefetch(&report.prefetch));
    }
    line("files", data_path(report));
    let damaged = damaged(report);
    if !damaged.is_empty() {
        line("damaged", &damaged);
    }
    if report.conflicts > 0 {
        let more = if report.conflicts >= ConflictsReply::CONFLICTS_MAX as u64 { " or more" } else { "" };
        line("conflicts", &format!("{}{more}, see `mafs-client conflicts`", report.conflicts));
    }
    if !report.refused.is_empty() {
        line("refused", &format!("{} by the server:", counted(report.refused.len() as u64, "update")));
        for (what, why) in report.refused.iter().take(REFUSED_SHOWN) {
            line("", &format!("{what}: {why}"));
        }
        if let Some(more) = report.refused.len().checked_sub(REFUSED_SHOWN).filter(|more| *more > 0) {
            line("", &format!("and {more} more"));
        }
    }
    text
}

/// Describes the most important parts of a status in one line, without a line end.
#[cfg(feature = "quickstart")]
pub(crate) fn one_line(report: &StatusReport) -> String {
    let link = match (report.connected, report.disconnected) {
        (true, _) => "connected",
        (false, false) => "not connected",
        (false, true) => "disconnected",
    };
    let over = report.profile.as_ref().map_or_else(String::new, |profile| format!(" over {profile}"));
    let cached = HumanBytes(report.cache_bytes);
    format!("{link}{over}, unsent: {}, cached: {} ({cached})", unsent(report), files(report.cache_files))
}

/// Tells of contents that were damaged on their way, and were not taken.
fn damaged(report: &StatusReport) -> String {
    let contents = (report.damaged_contents, "content sent again", "contents sent again");
    let connections = (report.damaged_connections, "connection begun anew", "connections begun anew");
    let parts = [contents, connections].into_iter().filter(|(count, ..)| *count > 0);
    let parts: Vec<_> =
        parts.map(|(count, one, more)| format!("{count} {}", if count == 1 { one } else { more })).collect();
    if parts.is_empty() {
        return String::new();
    }
    format!("{} since the mount: what arrived was not what was sent", parts.join(", "))
}

/// Tells how many locks programs hold, and how many of them the server does not know.
fn locks(report: &StatusReport) -> String {
    match report.locks_here {
        0 => format!("{} held", report.locks),
        here => format!("{} held, {here} of them granted here: the server does not know", report.locks),
    }
}

/// Tells how many files, bytes and changes the server does not have.
pub(crate) fn unsent(report: &StatusReport) -> String {
    what_lacks(report.unsent_files, report.unsent_bytes, report.unsent_changes)
}

/// Tells how much of what a `sync` waits for has not arrived.
pub(super) fn left(progress: &SyncProgress) -> String {
    what_lacks(progress.contents, progress.bytes, progress.changes)
}

fn what_lacks(count: u64, bytes: u64, changes: u64) -> String {
    let contents = match count {
        0 => None,
        count => Some(format!("{}, {}", files(count), HumanBytes(bytes))),
    };
    let changes = match changes {
        0 => None,
        count => Some(counted(count, "change")),
    };
    match (contents, changes) {
        (None, None) => "nothing".to_owned(),
        (Some(only), None) | (None, Some(only)) => only,
        (Some(contents), Some(changes)) => format!("{contents}, {changes}"),
    }
}

/// Describes the modify log: its records, their age, and how long sending them will take.
pub(super) fn log(report: &LogReport) -> String {
    let mut parts = vec![counted(report.records, "record")];
    if report.paused {
        parts.push("contents paused until `queue resume`".to_owned());
    }
    if report.bytes > 0 {
        parts.push(format!("{} to go", HumanBytes(report.bytes)));
    }
    if let Some(age) = report.oldest_s {
        parts.push(format!("the oldest {} old", brief(age)));
    }
    if report.announced > 0 {
        parts.push(format!("{} announced", report.announced));
    }
    if report.sending > 0 {
        parts.push(format!("{} being sent", report.sending));
    }
    if let (Some(rate), Some(eta)) = (report.rate_bytes_per_s, report.eta_s) {
        parts.push(format!("about {} left at {}/s", brief(eta), HumanBytes(rate)));
    }
    if let Some(why) = &report.trouble {
        parts.push(format!("tried again: {why}"));
    }
    parts.join(", ")
}

/// Formats a time in a fitting unit.
pub(super) fn brief(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Names the files that the server does not have at the end of a mount, in one line; `None` if it has all.
pub(crate) fn left_behind(report: &StatusReport) -> Option<String> {
    if report.unsent_files == 0 {
        let changes = counted(report.unsent_changes, "change");
        let left = "not on the server: kept in the cache and sent at the next mount";
        return (report.unsent_changes > 0).then(|| format!("but {changes} of names {left}"));
    }
    let refused = report.refused.iter().map(|(path, why)| format!("{path} ({why})"));
    let mut named: Vec<String> = refused.chain(report.unsent.iter().cloned()).take(LEFT_SHOWN).collect();
    match usize::try_from(report.unsent_files).unwrap_or(usize::MAX).saturating_sub(named.len()) {
        0 => {}
        more => named.push(format!("{more} more")),
    }
    let (verb, they, are) = if report.unsent_files == 1 { ("is", "it", "is") } else { ("are", "they", "are") };
    let (count, names) = (files(report.unsent_files), named.join(", "));
    Some(format!(
        "but {count} {verb} not on the server: {names}; {they} stay{} in the cache and {are} sent at the next mount",
        if verb == "is" { "s" } else { "" }
    ))
}

fn link(report: &StatusReport) -> String {
    let since = HumanDuration(Duration::from_secs(report.since_s));
    if !report.connected {
        let why = if report.why.is_empty() { "unknown" } else { &report.why };
        if report.by_hand {
            return format!(
                "disconnected by hand for {since}; what is cached can be used, changes wait for `reconnect`"
            );
        }
        return match report.disconnected {
            true => format!("disconnected for {since}: {why}; what is cached can be used, changes wait"),
            false => format!("not connected for {since}: {why}"),
        };
    }
    let rtt = report.rtt_us.map(|micros| format!(", round trip {}.{:03} ms", micros / 1000, micros % 1000));
    let rate = report.rate_bytes_per_s.map(|rate| format!(", sends up to {}/s", HumanBytes(rate)));
    let loss = report.loss_ppm.map(|ppm| format!(", loss {}", percent(ppm)));
    format!("connected for {since}{}{}{}", rtt.unwrap_or_default(), rate.unwrap_or_default(), loss.unwrap_or_default())
}

/// Formats parts of a million as percent, with one digit behind the point where that says something.
fn percent(ppm: u32) -> String {
    match ppm {
        0 => "0 %".to_owned(),
        1..1_000 => "under 0.1 %".to_owned(),
        _ => format!("{}.{} %", ppm / 10_000, ppm / 1_000 % 10),
    }
}

/// Describes the carrier, unless it is TCP and nothing else was wanted.
fn carrier_of(report: &StatusReport) -> String {
    let (name, why) = (&report.carrier, &report.carrier_why);
    match (name.as_str(), report.udp_blocked_s.zip(report.udp_again_s)) {
        ("quic", _) if why.is_empty() => "quic, over UDP".to_owned(),
        ("quic", _) => format!("quic, over UDP: {why}"),
        (_, Some((blocked, again))) => format!("{name}: {why} for {}; tried again in {}", brief(blocked), brief(again)),
        (_, None) => String::new(),
    }
}

/// Lists the bytes that wait to be sent by class, the most urgent class first.
fn queued(report: &StatusReport) -> String {
    let waiting = Class::ALL.into_iter().zip(report.queued_bytes).filter(|(_, bytes)| *bytes > 0);
    let parts = waiting.map(|(class, bytes)| format!("{} {class}", HumanBytes(bytes)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Lists the classes that the user has limited.
fn limited(report: &StatusReport) -> String {
    let limits = Class::ALL.into_iter().zip(report.limits_bytes_per_s);
    let parts = limits.filter_map(|(class, rate)| Some(format!("{class} to {}/s", HumanBytes(rate?))));
    parts.collect::<Vec<_>>().join(", ")
}

fn lease(report: &StatusReport) -> String {
    match (report.lease_s, report.session) {
        (0, _) => "ended: the server is asked about everything".to_owned(),
        (seconds, Some(session)) => format!("{seconds} s left, session {session}"),
        (seconds, None) => format!("{seconds} s left"),
    }
}

fn data_path(report: &StatusReport) -> &'static str {
    if report.passthrough {
        "read and written by the kernel itself (passthrough)"
    } else {
        "read and written through the daemon"
    }
}

fn cache(report: &StatusReport) -> String {
    let (used, limit) = (HumanBytes(report.cache_bytes), HumanBytes(report.cache_limit_bytes));
    format!("{used} of {limit}, {}, {} open", files(report.cache_files), report.open_files)
}

/// Describes the hoard: how much is to be in the cache, and how much of it is missing.
pub(super) fn hoard(report: &HoardReport) -> String {
    let entries = match (report.entries, report.pins) {
        (entries, 0) => counted(entries, "hoarded path"),
        (entries, pins) if entries == pins => counted(pins, "pin"),
        (entries, pins) => format!("{}, {}", counted(pins, "pin"), counted(entries - pins, "hoarded path")),
    };
    let missing = match (report.missing_objects, report.left_out_objects) {
        _ if report.walked_s.is_none() && report.objects == 0 => "not looked at yet".to_owned(),
        (0, _) => "all here".to_owned(),
        (missing, left_out) => {
            let no_room = if left_out > 0 { format!(" (no room for {left_out})") } else { String::new() };
            format!("missing {}, {}{no_room}", counted(missing, "object"), HumanBytes(report.missing_bytes))
        }
    };
    let walking = if report.walking { ", being walked" } else { "" };
    format!("{entries}: {}, {}, {missing}{walking}", counted(report.objects, "object"), HumanBytes(report.bytes))
}

/// Describes the prefetched files: those fetched before any program opened them.
fn prefetch(report: &PrefetchReport) -> String {
    let part = |count, bytes| format!("{}, {}", files(count), HumanBytes(bytes));
    let (all, used) = (part(report.files, report.bytes), part(report.used_files, report.used_bytes));
    format!("{all}; opened since: {used}; in vain: {}", part(report.wasted_files, report.wasted_bytes))
}

fn files(count: u64) -> String {
    counted(count, "file")
}

pub(super) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> MountStatus {
        let report = StatusReport {
            server: "host:6237".to_owned(),
            volume: "home".to_owned(),
            profile: None,
            carrier: "tcp".to_owned(),
            carrier_why: String::new(),
            udp_blocked_s: None,
            udp_again_s: None,
            connected: true,
            disconnected: false,
            by_hand: false,
            locks: 0,
            locks_here: 0,
            since_s: 180,
            why: String::new(),
            session: Some(12),
            lease_s: 58,
            rtt_us: Some(20_450),
            rtt_smoothed_us: Some(30_000),
            rate_bytes_per_s: Some(64 << 10),
            loss_ppm: Some(12_345),
            window_bytes: 8192,
            in_flight_bytes: 0,
            chunk_bytes: 1400,
            queued_bytes: [0; 5],
            limits_bytes_per_s: [None; 5],
            unsent_files: 0,
            unsent_bytes: 0,
            unsent_changes: 0,
            unsent: Vec::new(),
            log: LogReport::default(),
            announced_changes: 0,
            stale_reads: 0,
            fetching_files: 0,
            refused: Vec::new(),
            conflicts: 0,
            passthrough: true,
            cache_bytes: 3 << 20,
            cache_limit_bytes: 10 << 30,
            cache_short_bytes: 0,
            cache_files: 1,
            open_files: 0,
            hoard: HoardReport::default(),
            prefetch: PrefetchReport::default(),
            damaged_contents: 0,
            damaged_connections: 0,
            calls: 9,
        };
        MountStatus {
            mount_point: "/mnt".into(),
            target: "host:6237:/home".to_owned(),
            pid: 7,
            program_version: "1.0".to_owned(),
            report,
        }
    }

    #[test]
    fn a_healthy_mount_takes_six_lines() {
        assert_eq!(
            describe(&status()),
            "/mnt  host:6237:/home\n  \
             link     connected for 3 minutes, round trip 20.450 ms, sends up to 64.00 KiB/s, loss 1.2 %\n  \
             lease    58 s left, session 12\n  \
             unsent   nothing\n  \
             cache    3.00 MiB of 10.00 GiB, 1 file, 0 open\n  \
             files    read and written by the kernel itself (passthrough)\n"
        );
    }

    #[test]
    fn the_carrier_is_told_with_why_it_is_that_one() {
        let shown = |name: &str, why: &str, (udp_blocked_s, udp_again_s)| {
            let (carrier, carrier_why) = (name.to_owned(), why.to_owned());
            carrier_of(&StatusReport { carrier, carrier_why, udp_blocked_s, udp_again_s, ..status().report })
        };
        assert_eq!(shown("tcp", "", (None, None)), "");
        assert_eq!(shown("quic", "", (None, None)), "quic, over UDP");
        assert_eq!(shown("quic", "UDP gets through", (None, None)), "quic, over UDP: UDP gets through");
        assert_eq!(shown("tcp", "the server is on this machine", (None, None)), "");
        assert_eq!(
            shown("tcp", "nothing answers at host:6237 over UDP", (Some(12), Some(588))),
            "tcp: nothing answers at host:6237 over UDP for 12 s; tried again in 9 min"
        );
    }

    #[test]
    fn what_was_damaged_on_its_way_is_counted() {
        let mut status = status();
        (status.report.damaged_contents, status.report.damaged_connections) = (1, 2);
        let expected = "  damaged  1 content sent again, 2 connections begun anew since the mount: what arrived \
                        was not what was sent\n";
        assert!(describe(&status).contains(expected), "{}", describe(&status));
    }

    #[test]
    fn a_disk_that_is_too_full_is_told() {
        let mut status = status();
        status.report.cache_short_bytes = 5 << 20;
        let expected = "  disk     the cache's disk is too full: free 5.00 MiB, or files cannot grow (minfree)\n";
        assert!(describe(&status).contains(expected), "{}", describe(&status));
    }

    #[test]
    fn what_was_fetched_ahead_is_told_with_what_it_was_worth() {
        let mut status = status();
        assert!(!describe(&status).contains("ahead"));
        let (files, used_files, wasted_files) = (9, 7, 1);
        let (bytes, used_bytes, wasted_bytes) = (9 << 10, 7 << 10, 1 << 10);
        status.report.prefetch = PrefetchReport { files, bytes, used_files, used_bytes, wasted_files, wasted_bytes };
        let expected = "  ahead    9 files, 9.00 KiB; opened since: 7 files, 7.00 KiB; in vain: 1 file, 1.00 KiB\n";
        assert!(describe(&status).contains(expected), "{}", describe(&status));
    }

    #[test]
    fn what_is_hoarded_is_told_with_what_is_missing() {
        let mut report = HoardReport { entries: 1, pins: 1, ..HoardReport::default() };
        assert_eq!(hoard(&report), "1 pin: 0 objects, 0 B, not looked at yet");
        (report.objects, report.bytes, report.walked_s) = (4, 4096, Some(1));
        assert_eq!(hoard(&report), "1 pin: 4 objects, 4.00 KiB, all here");
        (report.entries, report.missing_objects, report.missing_bytes) = (3, 2, 1024);
        assert_eq!(hoard(&report), "1 pin, 2 hoarded paths: 4 objects, 4.00 KiB, missing 2 objects, 1.00 KiB");
        (report.pins, report.left_out_objects, report.walking) = (0, 1, true);
        let expected =
            "3 hoarded paths: 4 objects, 4.00 KiB, missing 2 objects, 1.00 KiB (no room for 1), being walked";
        assert_eq!(hoard(&report), expected);
        let mut status = status();
        status.report.hoard = report;
        assert!(describe(&status).contains(&format!("  hoard    {expected}\n")));
    }

    #[test]
    fn loss_is_told_as_far_as_it_is_known() {
        let shown = |loss_ppm| link(&StatusReport { loss_ppm, ..status().report });
        assert!(shown(None).ends_with("sends up to 64.00 KiB/s"));
        for (ppm, text) in [(0, "0 %"), (999, "under 0.1 %"), (1_000, "0.1 %"), (1_000_000, "100.0 %")] {
            let shown = shown(Some(ppm));
            assert!(shown.ends_with(&format!(", loss {text}")), "{shown}");
        }
    }

    #[test]
    fn troubles_are_told() {
        let mut status = status();
        let report = &mut status.report;
        (report.connected, report.why, report.since_s) = (false, "no answer for 10 s".to_owned(), 61);
        (report.session, report.lease_s) = (None, 0);
        (report.unsent_files, report.unsent_bytes, report.unsent_changes) = (2, 4096, 1);
        report.queued_bytes = [0, 0, 0, 24, 1000];
        report.limits_bytes_per_s = [None, Some(2 << 20), None, None, Some(64 << 10)];
        (report.fetching_files, report.stale_reads, report.conflicts) = (1, 1, 2);
        report.profile = Some("flaky".to_owned());
        report.carrier = "quic".to_owned();
        report.refused = (0..12).map(|number| (format!("file{number}"), "no space".to_owned())).collect();
        let text = describe(&status);
        for expected in [
            "link     not connected for 61 seconds: no answer for 10 s\n",
            "profile  flaky: the link is emulated\n",
            "carrier  quic, over UDP\n",
            "lease    ended: the server is asked about everything\n",
            "unsent   2 files, 4.00 KiB, 1 change\n",
            "queued   24 B metadata, 1000 B store\n",
            "limited  fetch to 2.00 MiB/s, store to 64.00 KiB/s\n",
            "fetching 1 file\n",
            "conflicts 2, see `mafs-client conflicts`\n",
            "refused  12 updates by the server:\n           file0: no space\n",
            "           and 2 more\n",
        ] {
            assert!(text.contains(expected), "{expected:?} in {text}");
        }
        assert!(!text.contains("file10"));
        status.report.disconnected = true;
        let expected =
            "link     disconnected for 61 seconds: no answer for 10 s; what is cached can be used, changes wait\n";
        assert!(describe(&status).contains(expected));
        status.report.by_hand = true;
        let by_hand = "link     disconnected by hand for 61 seconds; what is cached can be used, changes wait for ";
        assert!(describe(&status).contains(by_hand));
        #[cfg(feature = "quickstart")]
        assert!(one_line(&status.report).starts_with("disconnected over flaky, unsent: 2 files"));
    }
}
