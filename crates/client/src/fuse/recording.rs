//! Recording: whether a program that asks for something belongs to a command whose needs are being recorded.
//!
//! The program does if the number of the recording is in its environment: a program hands its environment to those
//! that it starts, whatever becomes of process groups and sessions, and the daemon may read it.

use std::fs::File;
use std::io::Read;

use crate::hoard::RECORDING_VARIABLE;

/// The most bytes read of an environment: more than the kernel lets a program have, arguments included, by default.
const ENVIRONMENT_BYTES_MAX: u64 = 2 << 20;

/// Returns the number of the recording that a process belongs to.
pub(super) fn recording_of(pid: u32) -> Option<u64> {
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut environment).ok()?;
    number_in(&environment)
}

fn number_in(environment: &[u8]) -> Option<u64> {
    let mut variables = environment.split(|byte| *byte == 0);
    let prefix = [RECORDING_VARIABLE.as_bytes(), b"="].concat();
    let value = variables.find_map(|variable| variable.strip_prefix(prefix.as_slice()))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_number_is_found_among_variables_and_anything_else_is_none() {
        assert_eq!(number_in(b"A=1\0MAFS_RECORDING=77\0B=2\0"), Some(77));
        for other in [b"".as_slice(), b"XMAFS_RECORDING=7\0", b"MAFS_RECORDING=\0", b"MAFS_RECORDING=x\0", b"\xff\0"] {
            assert_eq!(number_in(other), None);
        }
    }

    #[test]
    fn it_is_handed_on_to_programs_of_programs() {
        // The inner shell has begun by then, so it has its own environment.
        let script = "sh -c 'echo $$; kill -STOP $$' & wait";
        let mut shell = Command::new("sh");
        let shell = shell.args(["-c", script]).env(RECORDING_VARIABLE, "123").stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let mut line = String::new();
        let mut said = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        assert_eq!(recording_of(u32::try_from(grandchild).unwrap()), Some(123));
        assert_eq!(recording_of(std::process::id()), None);
        let pid = rustix::process::Pid::from_raw(grandchild).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert_eq!(recording_of(u32::try_from(grandchild).unwrap()), None);
    }
}
