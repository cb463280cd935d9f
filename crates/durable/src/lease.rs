//! Leases: asks the kernel whether anybody has a file open for writing.
//!
//! A read lease (fcntl(2), `F_SETLEASE`) is granted only while no description that may write is open anywhere, and a
//! mapping that may write holds one. So a lease that is granted, and given back at once, says that nobody can write.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Names the signal of a lease that somebody breaks (asm-generic/fcntl.h; the crate `libc` does not have it).
const F_SETSIG: libc::c_int = 10;

/// Tells whether somebody has the file open for writing, this process included. The descriptor is open for reading
/// only.
///
/// # Errors
/// If the file system knows no leases, or this process may not take one: it owns the file or has `CAP_LEASE`.
pub(crate) fn is_open_for_writing(file: BorrowedFd<'_>) -> io::Result<bool> {
    // A program that opens the file before the lease is given back would have this process sent SIGIO, which ends it.
    control(file, F_SETSIG, libc::SIGURG)?;
    match control(file, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => control(file, libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

#[allow(unsafe_code, reason = "no crate in the tree offers leases")]
fn control(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: these commands take a number and touch no memory, and the descriptor is open for as long as it is
    // borrowed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_is_open_for_writing_until_the_last_who_may_write_has_closed_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let writing = File::create(&path).unwrap();
        let reading = File::open(&path).unwrap();
        let is_open = || is_open_for_writing(reading.as_fd()).unwrap();
        assert!(is_open());
        let another = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        drop(writing);
        assert!(is_open());
        drop(another);
        assert!(!is_open());
        let _reader = File::open(&path).unwrap();
        assert!(!is_open(), "whoever reads cannot write");
    }
}
