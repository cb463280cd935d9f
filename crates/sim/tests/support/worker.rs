//! A client's work on a tree that several have, and what is in that tree.

use std::collections::BTreeMap;

use bytes::Bytes;
use mafs_client::vfs::{Error, OpenMode, Vfs};
use mafs_proto::{FsError, Kind, Mode, Random, RenameMode, VnodeId};
use mafs_sim::kernel::{Errno, Kernel};

use super::{CALLER, MAKE, READ, WRITE, names};

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

/// Returns the tree as a kernel shows it.
pub(crate) async fn tree_above(kernel: &Kernel) -> Result<Tree, Error> {
    let mut found = Tree::new();
    let mut left = vec![String::new()];
    while let Some(path) = left.pop() {
        for name in kernel.list(&path).await.map_err(told)? {
            let path = format!("{path}/{name}");
            // These names are left out by the other way too.
            if name.starts_with('.') {
                continue;
            }
            if kernel.stat(&path).await.map_err(told)?.kind == Kind::Directory {
                found.insert(path.clone(), None);
                left.push(path);
            } else {
                let fd = kernel.open(&path, READ).await.map_err(told)?;
                let content = kernel.read(fd, 0, 1 << 20).await;
                kernel.close(fd).await.map_err(told)?;
                found.insert(path, Some(content.map_err(told)?));
            }
        }
        if path.is_empty() && kernel.stat("/.mafs-conflicts").await.is_ok() {
            left.push("/.mafs-conflicts".to_owned());
        }
    }
    Ok(found)
}

/// Returns an error that a client would have said for a kernel to tell this.
fn told(errno: Errno) -> Error {
    errno.causes().swap_remove(0)
}

/// A directory in which a client works.
#[derive(Clone)]
pub(crate) struct Dir {
    vnode: VnodeId,
    path: String,
}

impl Dir {
    fn path_of(&self, name: &Bytes) -> String {
        format!("{}/{}", self.path, String::from_utf8_lossy(name))
    }
}

/// One client's work while it is alone.
pub(crate) struct Worker {
    pub(crate) vfs: Vfs,
    /// The kernel that its programs call, if not the client.
    pub(crate) kernel: Option<Kernel>,
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

    pub(crate) async fn dir(&mut self) -> Result<Dir, Error> {
        let dir = DIRS[usize::try_from(self.random.below(3)).expect("small")];
        self.dir_in(&Dir { vnode: VnodeId::ROOT, path: String::new() }, Bytes::from(dir)).await
    }

    async fn dir_in(&self, parent: &Dir, name: Bytes) -> Result<Dir, Error> {
        let path = parent.path_of(&name);
        let vnode = match &self.kernel {
            None => self.vfs.lookup(parent.vnode, name).await?.fid.vnode,
            // The kernel names it by its path alone.
            Some(kernel) => kernel.stat(&path).await.map(|_| parent.vnode).map_err(told)?,
        };
        Ok(Dir { vnode, path })
    }

    /// Makes a content that nobody else writes, and nobody twice; now and then one that needs a file of its own.
    fn content(&mut self) -> Vec<u8> {
        self.written += 1;
        let mut content = format!("{} of {}", self.written, self.number).into_bytes();
        if self.random.below(4) == 0 {
            content.resize(20_000 + content.len(), b'.');
        }
        content
    }

    pub(crate) async fn write(&mut self, dir: &Dir, name: Bytes) -> Result<(), Error> {
        let content = self.content();
        let truncate = OpenMode { truncate: true, ..WRITE };
        if let Some(kernel) = &self.kernel {
            let fd = kernel.create(&dir.path_of(&name), 0o644, truncate).await.map_err(told)?;
            let written = kernel.write(fd, 0, &content).await;
            return kernel.close(fd).await.and(written.map(drop)).map_err(told);
        }
        let file = match self.vfs.lookup(dir.vnode, name.clone()).await {
            Ok(object) => self.vfs.open(object.fid.vnode, truncate, CALLER).await?.file,
            Err(Error::Refused(FsError::NotFound)) => {
                self.vfs.create(dir.vnode, name, Mode::from_bits(0o644), MAKE, CALLER).await?.1.file
            }
            Err(error) => return Err(error),
        };
        let written = self.vfs.write(file, 0, content.into()).await;
        let closed = self.vfs.flush(file).await;
        self.vfs.release(file);
        written.and(closed)
    }

    async fn rename(&self, (from, name): (&Dir, Bytes), (to, new_name): (&Dir, Bytes)) -> Result<(), Error> {
        match &self.kernel {
            None => self.vfs.rename(from.vnode, name, to.vnode, new_name, RenameMode::Replace, CALLER).await,
            Some(kernel) => kernel.rename(&from.path_of(&name), &to.path_of(&new_name)).await.map_err(told),
        }
    }

    async fn remove(&self, dir: &Dir, name: Bytes) -> Result<(), Error> {
        match &self.kernel {
            None => self.vfs.unlink(dir.vnode, name, CALLER).await,
            Some(kernel) => kernel.remove(&dir.path_of(&name), false).await.map_err(told),
        }
    }

    async fn remove_dir(&self, dir: &Dir, name: Bytes) -> Result<(), Error> {
        match &self.kernel {
            None => self.vfs.remove_dir(dir.vnode, name, CALLER).await,
            Some(kernel) => kernel.remove(&dir.path_of(&name), true).await.map_err(told),
        }
    }

    async fn make_dir(&self, dir: &Dir, name: Bytes) -> Result<Dir, Error> {
        let path = dir.path_of(&name);
        let vnode = match &self.kernel {
            None => self.vfs.make_dir(dir.vnode, name, Mode::from_bits(0o755), CALLER).await?.fid.vnode,
            Some(kernel) => kernel.make_dir(&path, 0o755).await.map(|_| dir.vnode).map_err(told)?,
        };
        Ok(Dir { vnode, path })
    }

    async fn names(&self, dir: &Dir) -> Result<Vec<Bytes>, Error> {
        match &self.kernel {
            None => names(&self.vfs, dir.vnode).await,
            Some(kernel) => Ok(kernel.list(&dir.path).await.map_err(told)?.into_iter().map(Bytes::from).collect()),
        }
    }

    pub(crate) async fn step(&mut self) -> Result<(), Error> {
        let dir = self.dir().await?;
        let (name, other) = (self.file_name(), self.file_name());
        match self.random.below(10) {
            0..=3 => self.write(&dir, name).await,
            4 | 5 => {
                // Editors save so.
                let temp = Bytes::from(format!("temp-{}-{}", self.number, self.written));
                self.write(&dir, temp.clone()).await?;
                self.rename((&dir, temp), (&dir, name)).await
            }
            6 => {
                let to = self.dir().await?;
                self.rename((&dir, name), (&to, other)).await
            }
            7 => self.remove(&dir, name).await,
            8 => {
                let sub = if self.own { format!("sub-of-{}", self.number) } else { "sub".to_owned() };
                self.dir_in(&dir, Bytes::from(sub.clone())).await.err();
                let sub = self.make_dir(&dir, Bytes::from(sub)).await?;
                self.write(&sub, name).await
            }
            _ => {
                let sub = if self.own { format!("sub-of-{}", self.number) } else { "sub".to_owned() };
                let within = self.dir_in(&dir, Bytes::from(sub.clone())).await?;
                for name in self.names(&within).await? {
                    self.remove(&within, name).await?;
                }
                self.remove_dir(&dir, Bytes::from(sub)).await
            }
        }
    }
}
