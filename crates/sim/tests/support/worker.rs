//! A client's work on a tree that several have, and what is in that tree.

use std::collections::BTreeMap;

use bytes::Bytes;
use mafs_client::vfs::{Error, OpenMode, Vfs};
use mafs_proto::{FsError, Kind, Mode, Random, RenameMode, VnodeId};

use super::{CALLER, READ, WRITE, names};

/// The directories in the root.
pub(crate) const DIRS: [&str; 3] = ["d0", "d1", "d2"];
/// Names of files in each.
const FILES: u64 = 5;

/// Files by their paths with what they hold, and directories with nothing.
pub(crate) type Tree = BTreeMap<String, Option<Vec<u8>>>;

pub(crate) async fn tree(vfs: &Vfs) -> Result<Tree, Error> {
    let mut found = Tree::new();
    let mut left = vec![(String::new(), VnodeId::ROOT)];
    while let Some((path, dir)) = left.pop() {
        for name in names(vfs, dir).await? {
            let text = format!("{path}/{}", String::from_utf8_lossy(&name));
            add(vfs, &mut found, &mut left, (dir, name, text)).await?;
        }
        if path.is_empty()
            && let Ok(lost) = vfs.lookup(dir, Bytes::from_static(b".mafs-conflicts")).await
        {
            left.push(("/.mafs-conflicts".to_owned(), lost.fid.vnode));
        }
    }
    Ok(found)
}

async fn add(
    vfs: &Vfs,
    found: &mut Tree,
    left: &mut Vec<(String, VnodeId)>,
    (dir, name, path): (VnodeId, Bytes, String),
) -> Result<(), Error> {
    let object = vfs.lookup(dir, name).await?;
    if object.status.kind == Kind::Directory {
        found.insert(path.clone(), None);
        left.push((path, object.fid.vnode));
    } else {
        let file = vfs.open(object.fid.vnode, READ, CALLER).await?.file;
        let content = vfs.read(file, 0, u32::MAX / 2).await;
        vfs.release(file);
        found.insert(path, Some(content?.to_vec()));
    }
    Ok(())
}

/// One client's work while it is alone.
pub(crate) struct Worker {
    pub(crate) vfs: Vfs,
    pub(crate) number: usize,
    pub(crate) random: Random,
    /// Files that are only this client's to touch.
    pub(crate) own: bool,
    pub(crate) written: u64,
}

impl Worker {
    pub(crate) fn file_name(&mut self) -> Bytes {
        let file = self.random.below(FILES);
        Bytes::from(if self.own { format!("f{file}-of-{}", self.number) } else { format!("f{file}") })
    }

    pub(crate) async fn dir(&mut self) -> Result<VnodeId, Error> {
        let dir = DIRS[usize::try_from(self.random.below(3)).expect("small")];
        Ok(self.vfs.lookup(VnodeId::ROOT, Bytes::from(dir)).await?.fid.vnode)
    }

    /// A content that nobody else writes, and nobody twice; now and then one that needs a file of its own.
    fn content(&mut self) -> Vec<u8> {
        self.written += 1;
        let mut content = format!("{} of {}", self.written, self.number).into_bytes();
        if self.random.below(4) == 0 {
            content.resize(20_000 + content.len(), b'.');
        }
        content
    }

    pub(crate) async fn write(&mut self, dir: VnodeId, name: Bytes) -> Result<(), Error> {
        let content = self.content();
        let file = match self.vfs.lookup(dir, name.clone()).await {
            Ok(object) => {
                let mode = OpenMode { truncate: true, ..WRITE };
                self.vfs.open(object.fid.vnode, mode, CALLER).await?.file
            }
            Err(Error::Refused(FsError::NotFound)) => {
                self.vfs.create(dir, name, Mode::from_bits(0o644), WRITE, CALLER).await?.1.file
            }
            Err(error) => return Err(error),
        };
        let written = self.vfs.write(file, 0, content.into()).await;
        let closed = self.vfs.flush(file).await;
        self.vfs.release(file);
        written.and(closed)
    }

    pub(crate) async fn step(&mut self) -> Result<(), Error> {
        let dir = self.dir().await?;
        let (name, other) = (self.file_name(), self.file_name());
        match self.random.below(10) {
            0..=3 => self.write(dir, name).await,
            4 | 5 => {
                // As editors save.
                let temp = Bytes::from(format!("temp-{}-{}", self.number, self.written));
                self.write(dir, temp.clone()).await?;
                self.vfs.rename(dir, temp, dir, name, RenameMode::Replace, CALLER).await
            }
            6 => {
                let to = self.dir().await?;
                self.vfs.rename(dir, name, to, other, RenameMode::Replace, CALLER).await
            }
            7 => self.vfs.unlink(dir, name, CALLER).await,
            8 => {
                let sub = if self.own { format!("sub-of-{}", self.number) } else { "sub".to_owned() };
                self.vfs.lookup(dir, Bytes::from(sub.clone())).await.err();
                let sub = self.vfs.make_dir(dir, Bytes::from(sub), Mode::from_bits(0o755), CALLER).await?;
                self.write(sub.fid.vnode, name).await
            }
            _ => {
                let sub = if self.own { format!("sub-of-{}", self.number) } else { "sub".to_owned() };
                let object = self.vfs.lookup(dir, Bytes::from(sub.clone())).await?;
                for name in names(&self.vfs, object.fid.vnode).await? {
                    self.vfs.unlink(object.fid.vnode, name, CALLER).await?;
                }
                self.vfs.remove_dir(dir, Bytes::from(sub), CALLER).await
            }
        }
    }
}
