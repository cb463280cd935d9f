//! Transcripts in a manual: `console` blocks that show commands and exactly what they say, to be run and compared.
//!
//! A line that begins with `$ ` is a command for bash. The lines below it, up to the next command or the end of the
//! block, are its standard output and standard error as they come. All blocks below one heading are one session of one
//! shell, so `$?`, `$!` and variables go on from command to command.
//!
//! Text that differs from run to run is written in two ways: the value of a variable that the reader chooses stands
//! as the variable, and `...` stands for any characters within one line.

/// Beginning of every block, of other languages too, and end of every block.
const FENCE: &str = "```";
const CONSOLE: &str = "```console";

const PROMPT: &str = "$ ";
const ANYTHING: &str = "...";

/// End of one command's output: a control character that no message has.
const RECORD_SEPARATOR: char = '\u{1e}';

/// Beginning of the script: makes a function that separates the commands' outputs and keeps the last exit status.
const PREAMBLE: &str = "exec 2>&1\nseparate() { local status=$?; printf '\\036'; return $status; }\n";

/// A command and what it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The line in the document, from 1.
    pub line: usize,
    /// The command as it is typed.
    pub command: String,
    /// The lines of its output.
    pub output: Vec<String>,
}

/// All transcripts below one heading.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// The heading.
    pub heading: String,
    /// The session's commands in order.
    pub steps: Vec<Step>,
}

/// Returns the sessions of a document in markdown.
#[must_use]
pub fn sessions(document: &str) -> Vec<Session> {
    let mut sessions = Vec::new();
    let mut current = Session { heading: String::new(), steps: Vec::new() };
    let mut fence = None;
    let mut begins = false;
    for (line, text) in (1..).zip(document.lines()) {
        match fence {
            None if text.starts_with(FENCE) => (fence, begins) = (Some(text), true),
            None if text.starts_with('#') => {
                let heading = text.trim_start_matches('#').trim().to_owned();
                sessions.push(std::mem::replace(&mut current, Session { heading, steps: Vec::new() }));
            }
            None => {}
            Some(_) if text == FENCE => fence = None,
            Some(CONSOLE) => {
                add(&mut current.steps, line, text, begins);
                begins = false;
            }
            Some(_) => {}
        }
    }
    sessions.push(current);
    sessions.retain(|session| !session.steps.is_empty());
    sessions
}

/// Adds a line of a block. Output at the beginning of a block belongs to no command, and so never compares equal.
fn add(steps: &mut Vec<Step>, line: usize, text: &str, begins: bool) {
    let command = text.strip_prefix(PROMPT);
    if begins || command.is_some() {
        steps.push(Step { line, command: command.unwrap_or_default().to_owned(), output: Vec::new() });
    }
    if let (None, Some(step)) = (command, steps.last_mut()) {
        step.output.push(text.to_owned());
    }
}

impl Session {
    /// Returns the script by which bash runs all of the session.
    #[must_use]
    pub fn script(&self) -> String {
        let commands = self.steps.iter().map(|step| format!("{}\nseparate\n", step.command));
        PREAMBLE.to_owned() + &commands.collect::<String>()
    }

    /// Compares the script's output with the document. Returns one text for each command that differs.
    #[must_use]
    pub fn differences(&self, said: &str, variables: &[(&str, String)]) -> Vec<String> {
        let said = named(said, variables);
        let mut outputs = said.split(RECORD_SEPARATOR);
        let ended = said.matches(RECORD_SEPARATOR).count();
        let compare = |(number, step): (usize, &Step)| {
            let output = outputs.next().unwrap_or_default();
            let end = if number < ended { "" } else { "\n    (it did not end)" };
            let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
            let same = end.is_empty() && lines_match(&step.output, &lines);
            let (at, wanted, found) = (step.line, step.output.join("\n    "), lines.join("\n    "));
            let text =
                || format!("line {at}: $ {}\n  expected:\n    {wanted}\n  said:\n    {found}{end}", step.command);
            (!same).then(text)
        };
        self.steps.iter().enumerate().filter_map(compare).collect()
    }
}

/// Replaces values by their variables, the longest value first: one may begin with another.
fn named(text: &str, variables: &[(&str, String)]) -> String {
    let mut variables: Vec<_> = variables.iter().collect();
    variables.sort_by_key(|(_, value)| std::cmp::Reverse(value.len()));
    variables.iter().fold(text.to_owned(), |text, (name, value)| text.replace(value, &format!("${name}")))
}

fn lines_match(patterns: &[String], lines: &[&str]) -> bool {
    patterns.len() == lines.len() && patterns.iter().zip(lines).all(|(pattern, line)| line_matches(pattern, line))
}

fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((before, after)) = pattern.split_once(ANYTHING) else { return pattern == line };
    let Some(rest) = line.strip_prefix(before) else { return false };
    let starts = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    starts.into_iter().any(|at| line_matches(after, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::process;

    const LIMIT: Duration = Duration::from_secs(20);

    fn differences(document: &str) -> Vec<String> {
        let [session] = sessions(document).try_into().unwrap();
        let mut bash = Command::new("bash");
        bash.args(["-c", &session.script()]).env("HERE", "/the/place").env("BELOW", "/the/place/below");
        let said = process::finish(&mut bash, LIMIT).unwrap();
        let variables = [("HERE", "/the/place".to_owned()), ("BELOW", "/the/place/below".to_owned())];
        session.differences(&said.stdout, &variables)
    }

    fn console(lines: &str) -> Vec<String> {
        differences(&format!("# T\n```console\n{lines}\n```\n"))
    }

    #[test]
    fn what_a_command_says_is_compared_exactly() {
        assert_eq!(console("$ echo a; echo b >&2\na\nb\n$ printf c\nc\n$ true"), Vec::<String>::new());
        for (wrong, line) in [
            ("$ echo a\nb", 3),
            ("$ echo a", 3),
            ("$ echo a\na\na", 3),
            ("$ true\n$ true\na", 4),
            ("$ echo a\nA", 3),
            ("$ echo a\na.", 3),
            ("a\n$ echo a\na", 3),
        ] {
            let found = console(wrong);
            assert!(matches!(&found[..], [one] if one.starts_with(&format!("line {line}: "))), "{wrong}: {found:?}");
        }
    }

    #[test]
    fn a_difference_shows_both_sides() {
        let found = console("$ echo found\nwanted");
        assert_eq!(found, ["line 3: $ echo found\n  expected:\n    wanted\n  said:\n    found"]);
    }

    #[test]
    fn a_shell_that_ends_early_is_a_difference_although_nothing_was_to_be_said() {
        assert_eq!(console("$ true\n$ exit 0\n$ true").len(), 2);
        assert_eq!(console("$ echo 'never closed\n$ true").len(), 2);
    }

    #[test]
    fn a_session_is_one_shell() {
        assert!(console("$ x=1\n$ (exit 7)\n$ echo $? $x\n7 1").is_empty());
        let two_blocks = "# T\n```console\n$ x=1\n```\n```sh\nx=2\n```\n```console\n$ echo $x\n1\n```\n";
        assert!(differences(two_blocks).is_empty());
        let headings: Vec<_> = sessions("# A\n## B\n```console\n$ a\n```\n### C\n```console\n$ b\n```\n")
            .into_iter()
            .map(|session| session.heading)
            .collect();
        assert_eq!(headings, ["B", "C"]);
    }

    #[test]
    fn values_stand_as_their_variables_the_longest_first() {
        assert!(console("$ echo $HERE:$BELOW/f\n$HERE:$BELOW/f").is_empty());
        assert_eq!(console("$ echo $HERE\n/the/place").len(), 1);
    }

    #[test]
    fn dots_stand_for_anything_within_a_line() {
        for (pattern, line) in [("a...d", "abcd"), ("a...", "a"), ("...", ""), ("a...b...c", "a1b2bc"), ("...é", "aéé")]
        {
            assert!(line_matches(pattern, line), "{pattern} {line}");
        }
        for (pattern, line) in [("a...d", "abc"), ("a...", "ba"), ("a..b", "axxb"), ("...b", "a"), ("a...b...c", "ac")]
        {
            assert!(!line_matches(pattern, line), "{pattern} {line}");
        }
        assert_eq!(console("$ printf 'a\\nb\\n'\n...").len(), 1);
    }
}
