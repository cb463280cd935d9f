//! Rules about the shape of single files: heads, sizes, spaces, names and words that are refused everywhere.

use crate::source::{Complaint, Source};

const FILE_LINES_MAX: usize = 600;
const LINE_CHARS_MAX: usize = 120;
const FUNCTION_LINES_MAX: usize = 70;

/// Words that no Rust file may hold, and the reasons.
const REFUSED: [(&str, &str); 4] = [
    ("todo!(", "unfinished"),
    ("unimplemented!(", "unfinished"),
    ("dbg!(", "left over from debugging"),
    ("fn test_", "tests are named after behaviour, without `test_`"),
];

/// The only file with a call that the compiler cannot vouch for.
const UNSAFE_FILE: &str = "crates/durable/src/lease.rs";

pub(crate) fn check(source: &Source) -> Vec<Complaint> {
    let mut complaints = spaces(source);
    if source.is_rust() {
        let rules = [head, file_size, line_width, function_size, refused_words, ignore_reasons];
        complaints.extend(rules.iter().flat_map(|rule| rule(source)));
    }
    if source.path.ends_with(".md") {
        complaints.extend(one_title(source));
    }
    complaints
}

fn head(source: &Source) -> Vec<Complaint> {
    let bad = !source.text.starts_with("//! ");
    bad.then(|| source.complain_at(0, "a module opens with `//!`: what it is, owns and must not know"))
        .into_iter()
        .collect()
}

fn file_size(source: &Source) -> Vec<Complaint> {
    let lines = source.text.lines().count();
    let what = || source.complain_at(source.text.len(), format!("{lines} lines; at most {FILE_LINES_MAX}"));
    (lines > FILE_LINES_MAX).then(what).into_iter().collect()
}

fn line_width(source: &Source) -> Vec<Complaint> {
    lines(source)
        .map(|(at, line)| (at, line.chars().count()))
        .filter(|(_, width)| *width > LINE_CHARS_MAX)
        .map(|(at, width)| source.complain_at(at, format!("{width} characters; at most {LINE_CHARS_MAX}")))
        .collect()
}

fn spaces(source: &Source) -> Vec<Complaint> {
    let trailing = lines(source).filter(|(_, line)| line.ends_with([' ', '\t', '\r']));
    let tabs = lines(source).filter(|(_, line)| line.contains('\t'));
    let trailing = trailing.map(|(at, _)| source.complain_at(at, "space at the end of the line"));
    trailing.chain(tabs.map(|(at, _)| source.complain_at(at, "a tab"))).collect()
}

fn refused_words(source: &Source) -> Vec<Complaint> {
    let complain = |word: &str, why: &str| -> Vec<Complaint> {
        source.find_word(word).into_iter().map(|at| source.complain_at(at, format!("`{word}`: {why}"))).collect()
    };
    let mut complaints: Vec<_> = REFUSED.iter().flat_map(|(word, why)| complain(word, why)).collect();
    if source.path != UNSAFE_FILE {
        complaints.extend(complain("unsafe", "unsafe stands in one file, with its reason"));
    }
    complaints
}

fn ignore_reasons(source: &Source) -> Vec<Complaint> {
    let places = source.find_word("#[ignore");
    let bad = places.into_iter().filter(|at| !source.text[*at..].starts_with("#[ignore = \"needs: "));
    bad.map(|at| source.complain_at(at, "say what the test needs: #[ignore = \"needs: ...\"]")).collect()
}

fn function_size(source: &Source) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for at in source.find_word("fn") {
        let Some(end) = body_end(&source.code, at) else { continue };
        let lines = source.code[at..end].lines().count();
        if lines > FUNCTION_LINES_MAX {
            complaints
                .push(source.complain_at(at, format!("a function of {lines} lines; at most {FUNCTION_LINES_MAX}")));
        }
    }
    complaints
}

/// Returns where the body of the function whose `fn` stands at `at` ends; `None` if it has no body.
fn body_end(code: &str, at: usize) -> Option<usize> {
    let mut brackets = 0_i32;
    let mut braces = 0_i32;
    for (offset, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b'{' => braces += 1,
            b'}' => braces -= 1,
            b';' if brackets == 0 && braces == 0 => return None,
            _ => {}
        }
        if brackets < 0 || braces < 0 {
            return None; // a function pointer type, not an item
        }
        if byte == b'}' && braces == 0 {
            return Some(offset + 1);
        }
    }
    None
}

/// Checks that a markdown file has one first-level heading; what stands in code fences does not count.
fn one_title(source: &Source) -> Vec<Complaint> {
    let mut fenced = false;
    let mut titles = 0;
    for line in source.text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        titles += usize::from(!fenced && line.starts_with("# "));
    }
    (titles != 1)
        .then(|| source.complain_at(0, format!("{titles} first-level headings, not one")))
        .into_iter()
        .collect()
}

/// Returns the lines of a file with their offsets.
fn lines(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    source.text.split('\n').scan(0, |next, line| {
        let at = *next;
        *next += line.len() + 1;
        Some((at, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text)).iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn refused(text: &str, why: &str) {
        let found = complaints("a.rs", &format!("//! Head.\n{text}\n"));
        assert!(found.iter().any(|complaint| complaint.contains(why)), "{text}: {found:?}");
    }

    #[test]
    fn a_good_file_draws_no_complaint() {
        let test = "#[ignore = \"needs: fuse\"]\nfn f() -> &str {\n    \"unsafe\"\n}\n";
        let good = format!("//! Head.\n\n/// todo!( in a comment is fine.\n{test}");
        assert_eq!(complaints("a.rs", &good), Vec::<String>::new());
    }

    #[test]
    fn a_missing_head_is_refused() {
        assert_eq!(complaints("a.rs", "fn f() {}\n").len(), 1);
    }

    #[test]
    fn refused_words_are_found_in_code_only() {
        refused("fn f() { todo!() }", "unfinished");
        refused("fn f() { unimplemented!() }", "unfinished");
        refused("fn f() { dbg!(1); }", "debugging");
        refused("fn f() { unsafe { g() } }", "unsafe");
        refused("fn test_f() {}", "behaviour");
    }

    #[test]
    fn ignore_needs_a_reason() {
        refused("#[ignore]", "needs");
        refused("#[ignore = \"slow\"]", "needs");
    }

    #[test]
    fn sizes_are_limited() {
        refused(&"// x\n".repeat(FILE_LINES_MAX), "at most 600");
        refused(&format!("// {}", "ä".repeat(LINE_CHARS_MAX)), "at most 120");
        assert!(complaints("a.rs", &format!("//! {}\n", "ä".repeat(LINE_CHARS_MAX - 4))).is_empty());
        refused(&format!("fn f(a: [u8; 3]) {{\n{}}}", "    g();\n".repeat(FUNCTION_LINES_MAX)), "at most 70");
        let two =
            format!("//! Head.\nfn f() {{\n{0}}}\nfn g() {{\n{0}}}\n", "    h();\n".repeat(FUNCTION_LINES_MAX - 2));
        assert!(complaints("a.rs", &two).is_empty());
    }

    #[test]
    fn functions_without_body_have_no_size() {
        let code = format!(
            "//! Head.\ntrait T {{\n    fn f(a: [u8; 3]);\n}}\nstruct S {{\n    f: fn(),\n{}}}\n",
            "    a: u8,\n".repeat(80)
        );
        assert!(complaints("a.rs", &code).is_empty());
    }

    #[test]
    fn stray_spaces_are_refused() {
        refused("fn f() {} ", "end of the line");
        refused("\tfn f() {}", "a tab");
        assert_eq!(complaints("Cargo.toml", "a = 1 \n").len(), 1);
    }

    #[test]
    fn markdown_has_one_title() {
        assert!(complaints("a.md", "# One\n\n## Two\n\n```sh\n# comment\n```\n").is_empty());
        assert_eq!(complaints("a.md", "# One\n\n# Two\n").len(), 1);
        assert_eq!(complaints("a.md", "## Two\n").len(), 1);
    }
}
