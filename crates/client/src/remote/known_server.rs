//! The key by which a server is known: a file beside the cache of its volume.
//!
//! A cache is of one server, so the fingerprint of that server's key lies with it. The fingerprint is no secret. A
//! file that cannot be read is an error, for without it anybody could pass for the server.

use std::fmt;
use std::io;
use std::path::PathBuf;

use mafs_arpc::carrier::quic::Fingerprint;
use mafs_durable::{DirDisk, Disk, write_file_atomically};

const FILE: &str = "server-key";
/// The most bytes of the file: more than a fingerprint and the end of its line.
const FILE_BYTES_MAX: usize = 100;

/// The server of one cache.
#[derive(Clone, Debug)]
pub(super) struct KnownServer {
    cache: PathBuf,
}

impl fmt::Display for KnownServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cache.join(FILE).display().fmt(f)
    }
}

impl KnownServer {
    /// Names the server whose volume is cached in this directory.
    pub(super) fn in_cache(cache: PathBuf) -> Self {
        Self { cache }
    }

    /// Reads the fingerprint of its key; `None` before the first connection.
    pub(super) fn load(&self) -> io::Result<Option<Fingerprint>> {
        let disk = DirDisk::new(self.cache.clone())?;
        let file = match disk.open(FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = [0; FILE_BYTES_MAX];
        let length = file.read_at(&mut bytes, 0)?;
        let text = std::str::from_utf8(&bytes[..length]).map(str::trim);
        let damaged = || io::Error::other(format!("{self} is damaged: remove it, if you trust who answers there"));
        text.ok().and_then(|text| text.parse().ok()).map(Some).ok_or_else(damaged)
    }

    /// Notes, durably, the fingerprint by which the server is known from now on.
    pub(super) fn save(&self, fingerprint: Fingerprint) -> io::Result<()> {
        let disk = DirDisk::new(self.cache.clone())?;
        write_file_atomically(&disk, FILE, format!("{fingerprint}\n").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use mafs_arpc::carrier::quic::ServerKey;

    use super::*;

    #[test]
    fn what_is_noted_is_known_and_what_is_damaged_is_no_new_server() {
        let directory = tempfile::tempdir().unwrap();
        let known = KnownServer::in_cache(directory.path().join("cache"));
        assert_eq!(known.load().unwrap(), None);
        let fingerprint = ServerKey::generate().unwrap().fingerprint();
        known.save(fingerprint).unwrap();
        assert_eq!(known.load().unwrap(), Some(fingerprint));
        for damaged in ["", "hello", &fingerprint.to_string()[1..]] {
            std::fs::write(known.to_string(), damaged).unwrap();
            let error = known.load().unwrap_err().to_string();
            assert!(error.contains(&known.to_string()) && error.contains("remove"), "{error}");
        }
    }
}
