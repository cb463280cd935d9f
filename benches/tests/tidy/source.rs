//! A source file as the rules see it, and a rule's complaint about it.

use std::fmt;

/// A break of a rule, and its place.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Complaint {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// One file of the tree.
pub(crate) struct Source {
    /// Path relative to the root of the workspace.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Code of a Rust file: the text with comments and literals blanked, every other byte at its offset. Else the
    /// text.
    pub(crate) code: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let code = if path.ends_with(".rs") { blank(text) } else { text.to_owned() };
        Self { path: path.to_owned(), text: text.to_owned(), code }
    }

    /// Tells whether a file of this name is source text that the rules are about.
    pub(crate) fn is_kept(name: &str) -> bool {
        name == "run" || [".rs", ".md", ".toml", ".proto"].iter().any(|ending| name.ends_with(ending))
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Makes a complaint about the line that holds the byte at `offset`.
    pub(crate) fn complain_at(&self, offset: usize, what: impl Into<String>) -> Complaint {
        let line = self.text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1;
        Complaint { path: self.path.clone(), line, what: what.into() }
    }

    /// Returns where `word` stands in the code, not as a part of a longer identifier. A word that ends with `_` is a
    /// prefix.
    pub(crate) fn find_word(&self, word: &str) -> Vec<usize> {
        let is_part = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let (code, bytes) = (self.code.as_bytes(), word.as_bytes());
        let starts_inside = |at: usize| is_part(bytes.first()) && at > 0 && is_part(code.get(at - 1));
        let ends_inside =
            |at: usize| is_part(bytes.last()) && bytes.last() != Some(&b'_') && is_part(code.get(at + word.len()));
        self.code.match_indices(word).map(|(at, _)| at).filter(|at| !starts_inside(*at) && !ends_inside(*at)).collect()
    }
}

/// Replaces comments and the insides of string and character literals by spaces; line ends stay.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let length = literal_or_comment(bytes, at);
        if length == 0 {
            let plain = text[at..].chars().next().unwrap();
            code.push(plain);
            at += plain.len_utf8();
        } else {
            let end = (at + length).min(bytes.len());
            code.extend(bytes[at..end].iter().map(|byte| if *byte == b'\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// Returns the length of the comment or literal that starts at `at`; 0 if none does.
fn literal_or_comment(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let inside_identifier = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'r', b'"' | b'#', ..] if !inside_identifier || bytes[at - 1] == b'b' => raw_string(rest),
        [b'\'', b'\\', ..] => quoted(rest, b'\''),
        [b'\'', ..] => character(rest),
        _ => 0,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the length of a raw string, or 0 for a raw identifier such as `r#type`.
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let end = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let body = &rest[2 + hashes..];
    2 + hashes + body.windows(end.len()).position(|window| window == end).map_or(body.len(), |at| at + end.len())
}

/// Returns the length of a character literal without escape, or 0 for a lifetime.
fn character(rest: &[u8]) -> usize {
    let limit = rest.len().min(6);
    match rest[1..limit].iter().position(|byte| *byte == b'\'') {
        Some(width) if width == 1 || width > 1 && rest[1] >= 0x80 => width + 2,
        Some(_) | None => 0,
    }
}

#[test]
fn blanking_keeps_code_and_offsets() {
    let text =
        "let a = \"tokio \\\" /*\"; // std::fs\nlet b = r#\"unsafe\"#; /* x /* y */ z */ 'l: loop {} b'\"' 'ä' r#type";
    let code = blank(text);
    assert_eq!(code.len(), text.len());
    for gone in ["tokio", "std::fs", "unsafe", "x", "z", "ä"] {
        assert!(!code.contains(gone), "{gone} in {code}");
    }
    for kept in ["let a = ", ";", "\nlet b = ", "'l: loop {}", "r#type"] {
        assert!(code.contains(kept), "{kept} not in {code}");
    }
}

#[test]
fn words_are_whole_and_complaints_name_lines() {
    let source = Source::new("a.rs", "unsafe_code\n{ unsafe { x } }\n");
    let found = source.find_word("unsafe");
    assert_eq!(found.len(), 1);
    assert_eq!(source.complain_at(found[0], "unsafe").to_string(), "a.rs:2: unsafe");
}
