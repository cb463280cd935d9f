//! Names of kept objects: `NAME (conflict CLIENT YYYY-MM-DD hh.mm).EXT`, in UTC.

use mafs_proto::{Name, Timestamp};

/// The longest part of a name that counts as its extension, with the dot.
const EXTENSION_BYTES_MAX: usize = 32;

/// Bytes of the name of a client that are shown.
const CLIENT_BYTES_MAX: usize = 64;

/// Makes the `nth` name to be tried, from 1 on, for an object that wanted to be `name`.
pub(super) fn beside(name: &Name, client: &str, time: Timestamp, nth: u32) -> Option<Name> {
    let again = if nth > 1 { format!(" ({nth})") } else { String::new() };
    let mark = format!(" (conflict {} {}){again}", printable(client), minute(time));
    marked(name, &mark)
}

/// Makes the `nth` name to be tried, from 1 on, where only the number tells it from others.
pub(super) fn numbered(name: &Name, nth: u32) -> Option<Name> {
    if nth > 1 { marked(name, &format!(" ({nth})")) } else { Some(name.clone()) }
}

/// Makes the name of a directory for objects whose place a client has lost.
pub(super) fn directory_of(client: &str) -> Option<Name> {
    Name::new(printable(client)).or_else(|_| Name::new(&b"client"[..])).ok()
}

/// Makes the name of a directory for objects that go to the trash together.
pub(super) fn minute_of(time: Timestamp) -> Option<Name> {
    Name::new(minute(time)).ok()
}

fn marked(name: &Name, mark: &str) -> Option<Name> {
    let (stem, extension) = split(name.as_bytes());
    let room = Name::BYTES_MAX.saturating_sub(mark.len() + extension.len());
    Name::new([cut(stem, room), mark.as_bytes(), extension].concat()).ok()
}

fn split(name: &[u8]) -> (&[u8], &[u8]) {
    match name.iter().rposition(|byte| *byte == b'.') {
        Some(dot) if dot > 0 && name.len() - dot <= EXTENSION_BYTES_MAX => name.split_at(dot),
        _ => (name, b""),
    }
}

/// Returns the first bytes, whole characters only.
fn cut(bytes: &[u8], bytes_max: usize) -> &[u8] {
    let is_inside = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    let end = (0..=bytes_max.min(bytes.len())).rev().find(|at| !is_inside(at)).unwrap_or(0);
    &bytes[..end]
}

fn printable(client: &str) -> String {
    let shown: String = client.chars().map(|char| if char == '/' || char.is_control() { '_' } else { char }).collect();
    String::from_utf8_lossy(cut(shown.as_bytes(), CLIENT_BYTES_MAX)).into_owned()
}

/// Writes a time as people do, without a colon: some systems cannot have that in names. The calendar is that of
/// "chrono-compatible low-level date algorithms" (H. Hinnant, `civil_from_days`).
fn minute(time: Timestamp) -> String {
    let (days, second) = (time.seconds().div_euclid(86_400), time.seconds().rem_euclid(86_400));
    let shifted = days.saturating_add(719_468);
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era.saturating_mul(400) + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}.{:02}", second / 3600, second % 3600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.to_owned()).unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::new(seconds, 0).unwrap()
    }

    #[test]
    fn a_copy_is_called_after_the_file_the_client_and_the_time() {
        let time = at(1_795_768_327);
        let kept = |text, nth| beside(&name(text), "laptop", time, nth).unwrap().to_string();
        assert_eq!(kept("notes.txt", 1), "notes (conflict laptop 2026-11-27 08.32).txt");
        assert_eq!(kept("notes.txt", 2), "notes (conflict laptop 2026-11-27 08.32) (2).txt");
        assert_eq!(kept(".profile", 1), ".profile (conflict laptop 2026-11-27 08.32)");
        assert_eq!(kept("Makefile", 1), "Makefile (conflict laptop 2026-11-27 08.32)");
    }

    #[test]
    fn the_calendar_knows_leap_years() {
        let days = [(0, "1970-01-01"), (951_782_400, "2000-02-29"), (4_107_542_400, "2100-03-01"), (-1, "1969-12-31")];
        for (seconds, day) in days {
            assert_eq!(minute(at(seconds)).split(' ').next(), Some(day));
        }
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = format!("{}.jpeg", "ä".repeat(124));
        let kept = beside(&name(&long), "laptop", at(0), 1).unwrap();
        assert!(kept.as_bytes().len() <= Name::BYTES_MAX);
        let text = std::str::from_utf8(kept.as_bytes()).unwrap();
        assert!(text.starts_with('ä') && text.ends_with(".jpeg"), "{text}");
        let bytes = Name::new(vec![0xff; 255]).unwrap();
        assert_eq!(beside(&bytes, "laptop", at(0), 1).unwrap().as_bytes().len(), 255);
    }

    #[test]
    fn a_client_may_be_called_anything() {
        let kept = beside(&name("a"), &"x/\n".repeat(100), at(i64::MAX), 1).unwrap();
        assert!(!kept.as_bytes().contains(&b'/'));
        assert_eq!(directory_of("..").unwrap().to_string(), "client");
        assert_eq!(directory_of("").unwrap().to_string(), "client");
    }
}
