//! File names for things whose own names are no file names: mount points and targets.

/// The most characters kept of the readable part: a UNIX socket's whole path must stay below 108 bytes.
const READABLE_CHARS_MAX: usize = 24;

/// Returns a name that shows `readable` as far as it can, is safe and short, and differs for different `identity`.
pub(crate) fn for_identity(readable: &str, identity: &[u8]) -> String {
    let safe = |letter: char| if letter.is_ascii_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
    let readable: String = readable.chars().take(READABLE_CHARS_MAX).map(safe).collect();
    let hash = blake3::hash(identity).to_hex();
    format!("{readable}-{}", &hash[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_short_and_safe() {
        let stems: std::collections::BTreeSet<String> =
            ["/mnt/a", "/srv/a", "/mnt/a b\n/é", ""].iter().map(|path| for_identity(path, path.as_bytes())).collect();
        assert_eq!(stems.len(), 4);
        assert_ne!(for_identity("a", b"1"), for_identity("a", b"2"));
        for stem in stems.iter().chain([&for_identity(&"x".repeat(255), b"x")]) {
            let safe = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
            assert!(stem.len() <= READABLE_CHARS_MAX + 13 && stem.bytes().all(safe), "{stem}");
        }
    }
}
