//! The server's key: the file `server.pem`, by which clients know the server over QUIC.
//!
//! The key is no part of the identity in `server.json`: a data directory that is restored without it makes a server
//! that clients are warned of.

use mafs_arpc::carrier::quic::ServerKey;
use mafs_durable::write_file_atomically;

use super::{DirStorage, Storage, read_small};
use crate::ServerError;

const KEY_FILE: &str = "server.pem";

impl DirStorage {
    /// Returns the key of this server; makes it, if there is none.
    ///
    /// # Errors
    /// `Damaged` if the file is no key, or errors of the disk.
    pub fn key(&self) -> Result<ServerKey, ServerError> {
        let damaged = |why: String| ServerError::Damaged { path: KEY_FILE.to_owned(), why };
        if let Some(bytes) = read_small(&*self.disk(), KEY_FILE)? {
            let pem = std::str::from_utf8(&bytes).map_err(|error| damaged(error.to_string()))?;
            return ServerKey::from_pem(pem).map_err(|error| damaged(error.to_string()));
        }
        let failed = |source| ServerError::io(format!("write {KEY_FILE}"), source);
        let key = ServerKey::generate().map_err(|error| failed(std::io::Error::other(error)))?;
        write_file_atomically(&*self.disk(), KEY_FILE, key.to_pem().as_bytes()).map_err(failed)?;
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_user_reads_it() {
        let directory = tempfile::tempdir().unwrap();
        crate::admin::init(directory.path()).unwrap();
        let file = directory.path().join(KEY_FILE);
        let made = std::fs::read_to_string(&file).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let storage = DirStorage::open(directory.path()).unwrap();
        assert_eq!(storage.key().unwrap().to_pem(), made);
        // A data directory of an earlier release has no key.
        std::fs::remove_file(&file).unwrap();
        assert_ne!(storage.key().unwrap().to_pem(), made);
        std::fs::write(&file, "no key").unwrap();
        assert!(matches!(storage.key(), Err(ServerError::Damaged { .. })));
    }
}
