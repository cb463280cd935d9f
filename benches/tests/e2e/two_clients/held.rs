//! A program that keeps what it has of a file, open or mapped, while somebody else changes it.

use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Does what it is told, line by line, and answers each line: a mapping takes `unsafe` in Rust.
const SCRIPT: &str = r"
import mmap, os, sys
mapped = sys.argv[1] == 'mapped'
def look():
    # Behind the end of a file that was cut a mapping has nothing: SIGBUS.
    return held[:held.size()] if mapped else os.pread(held, 1 << 30, 0)
for line in sys.stdin:
    command, _, path = line.rstrip('\n').partition(' ')
    if command == 'hold':
        fd = os.open(path, os.O_RDONLY)
        held = mmap.mmap(fd, 0, prot=mmap.PROT_READ) if mapped else fd
        if mapped: os.close(fd)
        old = look()
        print('held', flush=True)
    else:
        same = look() == old
        held.close() if mapped else os.close(held)
        print('old' if same else 'new', flush=True)
";

pub(super) struct Holder {
    child: Child,
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts the program. `how` is `open` or `mapped`.
    pub(super) fn start(how: &str) -> io::Result<Self> {
        let mut command = Command::new("python3");
        let mut child = command.args(["-c", SCRIPT, how]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let piped = child.stdin.take().zip(child.stdout.take());
        let (lines, answers) = piped.ok_or_else(|| io::Error::other("no pipes"))?;
        Ok(Self { child, lines, answers: BufReader::new(answers) })
    }

    /// Opens a file and reads it.
    pub(super) fn hold(&mut self, path: &Path) -> io::Result<()> {
        self.tell(&format!("hold {}", path.display())).map(|_| ())
    }

    /// Lets the program look at what it holds, and returns whether that is still as it was. The program lets it go.
    pub(super) fn look_and_let_go(&mut self) -> io::Result<bool> {
        self.tell("look").map(|answer| answer == "old\n")
    }

    fn tell(&mut self, line: &str) -> io::Result<String> {
        writeln!(self.lines, "{line}")?;
        let mut answer = String::new();
        match self.answers.read_line(&mut answer)? {
            0 => Err(io::Error::other(format!("the program that has the file ended: {}", self.child.wait()?))),
            _ => Ok(answer),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
