//! The answer that an operation must have, and the difference of an answer from it.

use std::io;

use super::hands::Answer;

/// Bytes of a word. A write is a word over and over; two of them show which, wherever they begin.
const WORD: usize = 8;

#[derive(Debug)]
pub(super) enum Expected {
    /// Exactly this answer.
    Answer(Answer),
    /// The place where data begins at or after `at`: nothing but zeros may be passed over.
    Data { at: usize, content: Vec<u8> },
    /// The place where a hole begins at or after `at`: a zero, or the end.
    Hole { at: usize, content: Vec<u8> },
}

impl Expected {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::data(text, Vec::new())
    }

    pub(super) fn data(text: impl Into<String>, data: Vec<u8>) -> Self {
        Self::Answer(Answer { text: text.into(), data })
    }

    /// # Errors
    /// The difference of the answer.
    pub(super) fn check(&self, answer: &Answer) -> io::Result<()> {
        let place = || answer.text.strip_prefix("ok ")?.parse::<usize>().ok();
        let (right, wanted) = match (self, place()) {
            (Self::Answer(expected), _) => {
                self.check_data(&answer.data)?;
                (expected.text == answer.text, expected.text.clone())
            }
            (Self::Data { at, content }, place) => {
                let passed = content.get(*at..place.unwrap_or(content.len()));
                let is_there = place.map_or(answer.text == "ENXIO", |place| place < content.len());
                (is_there && passed.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)), format!("data from {at}"))
            }
            (Self::Hole { at, content }, Some(place)) => {
                let is_zero = content.get(place).map_or(place == content.len(), |byte| *byte == 0);
                (place >= *at && is_zero, format!("a hole from {at}"))
            }
            (Self::Hole { at, .. }, None) => (false, format!("a hole from {at}")),
        };
        if right { Ok(()) } else { Err(io::Error::other(format!("`{}` in place of `{wanted}`", answer.text))) }
    }

    /// # Errors
    /// The place where the bytes differ, and how.
    pub(super) fn check_data(&self, found: &[u8]) -> io::Result<()> {
        let Self::Answer(Answer { data: wanted, .. }) = self else { return Ok(()) };
        if found == wanted {
            return Ok(());
        }
        let at = found.iter().zip(wanted).take_while(|(found, wanted)| found == wanted).count();
        let start = at / WORD * WORD;
        let words = |bytes: &[u8]| bytes.iter().skip(start).take(2 * WORD).copied().collect::<Vec<u8>>();
        let [has, wants] = [words(found), words(wanted)].map(|words| words.escape_ascii().to_string());
        let (length, wanted) = (found.len(), wanted.len());
        Err(io::Error::other(format!("{length} bytes in place of {wanted}, at {start} `{has}` in place of `{wants}`")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_right(expected: &Expected, text: &str) -> bool {
        expected.check(&Answer { text: text.to_owned(), data: Vec::new() }).is_ok()
    }

    #[test]
    fn data_is_never_passed_over() {
        let data = |at| Expected::Data { at, content: b"\0\0x\0\0".to_vec() };
        assert!(is_right(&data(0), "ok 0") && is_right(&data(0), "ok 2") && is_right(&data(3), "ENXIO"));
        assert!(!is_right(&data(0), "ok 3") && !is_right(&data(0), "ENXIO") && !is_right(&data(2), "ok 1"));
        assert!(!is_right(&data(3), "ok 5"));
    }

    #[test]
    fn a_hole_is_a_zero_or_the_end() {
        let hole = |at| Expected::Hole { at, content: b"x\0x".to_vec() };
        assert!(is_right(&hole(0), "ok 1") && is_right(&hole(0), "ok 3") && is_right(&hole(2), "ok 3"));
        assert!(!is_right(&hole(0), "ok 0") && !is_right(&hole(2), "ok 1") && !is_right(&hole(0), "ENXIO"));
        assert!(!is_right(&hole(0), "ok 4"));
    }

    #[test]
    fn a_difference_is_told_by_the_writes_it_is_made_of() {
        let error = Expected::data("ok", b"0000001\n0000002\n".to_vec()).check_data(b"0000001\n0000003\n").unwrap_err();
        assert!(error.to_string().contains("at 8 `0000003\\n` in place of `0000002\\n`"), "{error}");
    }
}
