//! Names and paths as text: one line that shows all their bytes, whatever those are.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the text of a name. Bytes that are no text, or would move the cursor, are escaped as bash's `$'...'` reads
/// them.
#[must_use]
pub fn printable(name: &[u8]) -> String {
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                control if control.is_control() => escape(&mut text, control.encode_utf8(&mut [0; 4]).as_bytes()),
                other => text.push(other),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    text
}

/// Returns the text of a path.
#[must_use]
pub fn printable_path(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

fn escape(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_one_line_whatever_it_holds() {
        assert_eq!(printable("é \"x\"".as_bytes()), "é \"x\"");
        assert_eq!(printable(b"a\nb\x1b[2J"), r"a\x0ab\x1b[2J");
        assert_eq!(printable("\u{9b}2J".as_bytes()), r"\xc2\x9b2J");
        assert_eq!(printable(b"caf\xe9 \xff\xc3"), r"caf\xe9 \xff\xc3");
        assert_eq!(printable(br"\xff"), r"\\xff", "a name of four letters");
    }
}
