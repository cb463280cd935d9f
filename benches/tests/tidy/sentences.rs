//! Rules about the sentences of comments.

use crate::source::{Complaint, Source};

/// Beginnings of sentences whose subject is missing, or was named in another sentence.
const REFUSED: [&str; 5] = ["The same", "Who", "What", "It", "That"];

pub(crate) fn check(source: &Source) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    if !source.is_rust() {
        return complaints;
    }
    let (mut offset, mut begins_sentence) = (0, true);
    for line in source.text.split_inclusive('\n') {
        match comment(line) {
            None | Some("") => begins_sentence = true,
            Some(text) => {
                let refused = sentences(text, begins_sentence).find_map(refused_beginning);
                complaints.extend(
                    refused.map(|word| source.complain_at(offset, format!("a sentence that begins with `{word}`"))),
                );
                begins_sentence = text.ends_with(['.', '?', '!']);
            }
        }
        offset += line.len();
    }
    complaints
}

/// Returns the text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// Returns the rest of a line from the beginning of each sentence on.
fn sentences(text: &str, begins_sentence: bool) -> impl Iterator<Item = &str> {
    let item = text.strip_prefix("- ").or_else(|| text.strip_prefix("* "));
    let first = item.or_else(|| begins_sentence.then_some(text));
    let later = [". ", "? ", "! "].into_iter().flat_map(|end| text.match_indices(end).map(|(at, _)| &text[at + 2..]));
    first.into_iter().chain(later)
}

fn refused_beginning(sentence: &str) -> Option<&'static str> {
    let goes_on = |rest: &str| rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    REFUSED.into_iter().find(|word| sentence.strip_prefix(word).is_some_and(|rest| !goes_on(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> Vec<String> {
        check(&Source::new("a.rs", text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_sentence_without_its_subject_is_refused_wherever_it_begins() {
        let refused = "a sentence that begins with";
        assert_eq!(complaints("//! What a client has.\n"), [format!("a.rs:1: {refused} `What`")]);
        assert_eq!(complaints("\n    /// Counts. It waits.\n"), [format!("a.rs:2: {refused} `It`")]);
        assert_eq!(complaints("// Counts.\n// The same, twice.\n"), [format!("a.rs:2: {refused} `The same`")]);
        assert_eq!(complaints("/// Two:\n/// - Who asks.\n"), [format!("a.rs:2: {refused} `Who`")]);
    }

    #[test]
    fn words_inside_a_sentence_are_not_beginnings() {
        let text = "/// Counts what\n/// It takes, a thing That\n/// `What` is.\n/// Items wait. Whatever comes.\n";
        assert_eq!(complaints(text), Vec::<String>::new());
        assert_eq!(complaints("let what = \"What is it?\";\n"), Vec::<String>::new());
    }
}
