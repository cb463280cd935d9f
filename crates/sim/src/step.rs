//! The steps of a client while others do the like, and the reports of them to the [`History`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use mafs_client::vfs::{Attributes, Error, Opened, Vfs};
use mafs_proto::{FsError, Mode, Object, RenameMode, VnodeId};

use crate::history::{Attempt, Contests, History, Register};
use crate::operation::{CALLER, get, names_in, put};
use crate::workload::{READ, REPLACE};

/// The names that clients contend for.
pub(crate) const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// One step of a client, in the root directory.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Makes a file, which must be new, and writes it.
    Make { name: String, token: u64 },
    /// Writes a file anew.
    Write { name: String, token: u64 },
    /// Writes another file, and renames it over this one, as editors do.
    Replace { name: String, token: u64 },
    /// Reads a whole file.
    Read { name: String },
    /// stat(2).
    Stat { name: String },
    /// Lists the directory.
    List,
    /// unlink(2).
    Unlink { name: String },
    /// chmod(2).
    SetMode { name: String, mode: u32 },
    /// Makes a name that others try to make too: a file, a directory, a link.
    Contest { name: String, kind: u64 },
}

/// Record of all steps.
#[derive(Default)]
pub(crate) struct Record {
    pub(crate) history: History,
    pub(crate) contests: Contests,
}

/// A client that does steps.
#[derive(Clone)]
pub(crate) struct Actor {
    pub(crate) client: usize,
    pub(crate) vfs: Vfs,
    pub(crate) record: Arc<Mutex<Record>>,
}

impl Actor {
    /// Does a step, some time from now.
    pub(crate) async fn perform(&self, step: &Step, thinking: Duration) -> Result<(), Error> {
        tokio::time::sleep(thinking).await;
        match step {
            Step::Make { name, token } => self.make(name, *token).await,
            Step::Write { name, token } => {
                let object = self.lookup(name).await?;
                let opened = self.vfs.open(object.fid.vnode, REPLACE, CALLER).await?;
                self.write(object.fid.vnode, opened, *token).await
            }
            Step::Replace { name, token } => self.replace(name, *token).await,
            Step::Read { name } => self.read(name).await,
            Step::Stat { name } => self.stat(name).await,
            Step::List => self.list().await,
            Step::Unlink { name } => {
                let update = self.record().history.begin(self.client, Register::Name(name.clone()), Some(0));
                self.vfs.unlink(VnodeId::ROOT, Bytes::from(name.clone()), CALLER).await?;
                self.record().history.acknowledge(update, 0);
                Ok(())
            }
            Step::SetMode { name, mode } => self.set_mode(name, *mode).await,
            Step::Contest { name, kind } => self.contest(name, *kind).await,
        }
    }

    async fn make(&self, name: &str, token: u64) -> Result<(), Error> {
        let (client, register) = (self.client, Register::Name(name.to_owned()));
        let update = self.record().history.begin(client, register.clone(), None);
        let began = self.record().history.now();
        let (name, mode) = (Bytes::from(name.to_owned()), Mode::from_bits(FIRST_MODE));
        let (object, opened) = self.vfs.create(VnodeId::ROOT, name, mode, REPLACE, CALLER).await?;
        let vnode = object.fid.vnode;
        {
            let mut record = self.record();
            // The name must have been free.
            record.history.see(client, register, 0, began);
            record.history.acknowledge(update, vnode.0);
        }
        self.write(vnode, opened, token).await
    }

    async fn write(&self, vnode: VnodeId, opened: Opened, token: u64) -> Result<(), Error> {
        let update = self.record().history.begin(self.client, Register::Content(vnode), Some(token));
        let written = put(&self.vfs, opened, 0, &content(token)).await;
        let closed = self.vfs.flush(opened.file).await;
        self.vfs.release(opened.file);
        written.and(closed)?;
        self.record().history.acknowledge(update, token);
        Ok(())
    }

    async fn replace(&self, name: &str, token: u64) -> Result<(), Error> {
        let draft = format!("draft-{token}");
        self.make(&draft, token).await?;
        let vnode = self.lookup(&draft).await?.fid.vnode;
        let update = self.record().history.begin(self.client, Register::Name(name.to_owned()), Some(vnode.0));
        let (from, to) = (Bytes::from(draft), Bytes::from(name.to_owned()));
        self.vfs.rename(VnodeId::ROOT, from, VnodeId::ROOT, to, RenameMode::Replace, CALLER).await?;
        self.record().history.acknowledge(update, vnode.0);
        Ok(())
    }

    async fn read(&self, name: &str) -> Result<(), Error> {
        let vnode = self.lookup(name).await?.fid.vnode;
        let began = self.record().history.now();
        let opened = self.vfs.open(vnode, READ, CALLER).await?;
        let bytes = get(&self.vfs, opened).await;
        self.vfs.release(opened.file);
        let bytes = bytes?;
        let token = token_of_size(bytes.len() as u64).filter(|token| bytes == content(*token));
        self.record().history.see(self.client, Register::Content(vnode), token.unwrap_or(TORN), began);
        Ok(())
    }

    async fn stat(&self, name: &str) -> Result<(), Error> {
        let vnode = self.lookup(name).await?.fid.vnode;
        let began = self.record().history.now();
        let status = self.vfs.get_attributes(vnode).await?.status;
        let token = token_of_size(status.size).unwrap_or(TORN);
        let mut record = self.record();
        record.history.see(self.client, Register::Content(vnode), token, began);
        record.history.see(self.client, Register::Mode(vnode), mode_value(u32::from(status.mode.bits())), began);
        Ok(())
    }

    async fn list(&self) -> Result<(), Error> {
        let began = self.record().history.now();
        let entries = names_in(&self.vfs, VnodeId::ROOT).await?;
        for name in NAMES {
            let entry = entries.iter().find(|entry| entry.name == name.as_bytes());
            let vnode = entry.map_or(0, |entry| entry.vnode.0);
            self.record().history.see(self.client, Register::Name(name.to_owned()), vnode, began);
        }
        Ok(())
    }

    async fn set_mode(&self, name: &str, mode: u32) -> Result<(), Error> {
        let vnode = self.lookup(name).await?.fid.vnode;
        let update = self.record().history.begin(self.client, Register::Mode(vnode), Some(mode_value(mode)));
        let set = Attributes { mode: Some(Mode::from_bits(mode)), ..Attributes::default() };
        self.vfs.set_attributes(vnode, set, None, CALLER).await?;
        self.record().history.acknowledge(update, mode_value(mode));
        Ok(())
    }

    async fn contest(&self, name: &str, kind: u64) -> Result<(), Error> {
        self.record().contests.note(name, self.client, Attempt::Unknown);
        let (bytes, mode) = (Bytes::from(name.to_owned()), Mode::from_bits(0o755));
        let made = match kind {
            0 => self.vfs.make_dir(VnodeId::ROOT, bytes, mode, CALLER).await.map(drop),
            1 => self.vfs.make_symlink(VnodeId::ROOT, bytes, Bytes::from_static(b"x"), CALLER).await.map(drop),
            _ => match self.vfs.create(VnodeId::ROOT, bytes, mode, REPLACE, CALLER).await {
                Ok((_, opened)) => {
                    self.vfs.release(opened.file);
                    Ok(())
                }
                Err(error) => Err(error),
            },
        };
        match made {
            Ok(()) => self.record().contests.note(name, self.client, Attempt::Won),
            Err(Error::Refused(FsError::Exists)) => self.record().contests.note(name, self.client, Attempt::Lost),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Looks a name up and reports its meaning, also that it means nothing.
    async fn lookup(&self, name: &str) -> Result<Object, Error> {
        let began = self.record().history.now();
        let found = self.vfs.lookup(VnodeId::ROOT, Bytes::from(name.to_owned())).await;
        let vnode = match &found {
            Ok(object) => object.fid.vnode.0,
            Err(Error::Refused(FsError::NotFound)) => 0,
            Err(_) => return found,
        };
        self.record().history.see(self.client, Register::Name(name.to_owned()), vnode, began);
        found
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mode that every file is made with.
const FIRST_MODE: u32 = 0o644;

/// Returns 0 for the mode that a file is made with, which nobody may have been told of.
fn mode_value(mode: u32) -> u64 {
    u64::from(mode ^ FIRST_MODE)
}

/// The value of a content that nobody wrote.
const TORN: u64 = u64::MAX;

/// Some contents travel inside the journal record (up to 16 KB), some in files of their own.
const LARGE_BYTES: u64 = 40_000;

/// Returns the bytes that the update with this token writes: no other has its size, nor its bytes. Token 0 is the
/// content of a new file.
fn content(token: u64) -> Vec<u8> {
    (0..size_of(token)).map(|at| (token * 31 + at / 97).to_le_bytes()[0]).collect()
}

fn size_of(token: u64) -> u64 {
    token * 5 + if token % 4 == 1 { LARGE_BYTES } else { 0 }
}

/// Returns the token of the content with this size. `None`: no content has it.
fn token_of_size(size: u64) -> Option<u64> {
    let [small, large] = [Some(size), size.checked_sub(LARGE_BYTES)].map(|part| part.map(|part| part / 5));
    [large, small].into_iter().flatten().find(|token| size_of(*token) == size)
}
