//! A recording of a program's changes of files, which a client does again.

use std::collections::HashMap;

use bytes::Bytes;
use mafs_client::vfs::{Attributes, Error, FileHandle, OpenMode, Vfs};
use mafs_proto::{FsError, Mode, Object, RenameMode, VnodeId};

use crate::support::{CALLER, WRITE};

/// The lines of a recording: see `recordings/record-git`.
#[derive(Clone)]
pub(crate) struct Recording {
    before: Vec<Step>,
    steps: Vec<Step>,
}

#[derive(Clone)]
enum Step {
    Have(String, Bytes),
    Dir(String),
    Open(u32, String, String),
    Write(u32, Bytes),
    Close(u32),
    Fsync(u32),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
    Mkdir(String),
    Rmdir(String),
    Chmod(String, u32),
}

impl Recording {
    pub(crate) fn parse(text: &str) -> Self {
        let steps = text.lines().map(|line| parse_step(line).unwrap_or_else(|| panic!("a step: {line}")));
        let (before, steps) = steps.partition(|step| matches!(step, Step::Have(..) | Step::Dir(_)));
        Self { before, steps }
    }

    /// How many steps there are after what was there before.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns the beginning of the recording.
    pub(crate) fn first(&self, steps: usize) -> Self {
        Self { before: self.before.clone(), steps: self.steps[..steps].to_vec() }
    }
}

fn parse_step(line: &str) -> Option<Step> {
    let words: Vec<&str> = line.split(' ').collect();
    let path = |at: usize| words.get(at).map(|word| (*word).to_owned());
    let number = words.get(1).and_then(|word| word.parse().ok());
    Some(match *words.first()? {
        "have" => Step::Have(path(1)?, from_hex(words.get(2)?)?),
        "dir" => Step::Dir(path(1)?),
        "open" => Step::Open(number?, path(2)?, path(3)?),
        "write" => Step::Write(number?, from_hex(words.get(2)?)?),
        "close" => Step::Close(number?),
        "fsync" => Step::Fsync(number?),
        "rename" => Step::Rename(path(1)?, path(2)?),
        "link" => Step::Link(path(1)?, path(2)?),
        "unlink" => Step::Unlink(path(1)?),
        "mkdir" => Step::Mkdir(path(1)?),
        "rmdir" => Step::Rmdir(path(1)?),
        "chmod" => Step::Chmod(path(1)?, u32::from_str_radix(words.get(2)?, 8).ok()?),
        _ => return None,
    })
}

fn from_hex(text: &str) -> Option<Bytes> {
    if text == "-" {
        return Some(Bytes::new());
    }
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>().map(Bytes::from)
}

/// Does what was recorded, by one client.
pub(crate) struct Replayer {
    vfs: Vfs,
    /// Open files, and where the next write goes.
    open: HashMap<u32, (FileHandle, u64)>,
}

impl Replayer {
    pub(crate) fn new(vfs: Vfs) -> Self {
        Self { vfs, open: HashMap::new() }
    }

    /// Makes what was there before.
    pub(crate) async fn prepare(mut self, recording: &Recording) {
        for step in &recording.before {
            self.step(step).await.expect("what was there before");
        }
    }

    /// Does the rest.
    pub(crate) async fn replay(mut self, recording: Recording) {
        for step in &recording.steps {
            self.step(step).await.expect("what was recorded");
        }
    }

    async fn step(&mut self, step: &Step) -> Result<(), Error> {
        let vfs = self.vfs.clone();
        match step {
            Step::Have(path, content) => {
                self.open(0, path, "c").await?;
                self.write(0, content).await?;
                self.close(0).await
            }
            Step::Open(number, path, flags) => self.open(*number, path, flags).await,
            Step::Write(number, bytes) => self.write(*number, bytes).await,
            Step::Close(number) => self.close(*number).await,
            Step::Fsync(number) => vfs.fsync(self.open[number].0).await,
            Step::Rename(from, to) => {
                let ((from_parent, from), (to_parent, to)) = (self.place(from).await?, self.place(to).await?);
                vfs.rename(from_parent, from, to_parent, to, RenameMode::Replace, CALLER).await
            }
            Step::Link(from, to) => {
                let (object, (parent, name)) = (self.object(from).await?, self.place(to).await?);
                vfs.link(object.fid.vnode, parent, name, CALLER).await.map(drop)
            }
            Step::Unlink(path) => {
                let (parent, name) = self.place(path).await?;
                vfs.unlink(parent, name, CALLER).await
            }
            Step::Dir(path) | Step::Mkdir(path) => {
                let (parent, name) = self.place(path).await?;
                vfs.make_dir(parent, name, Mode::from_bits(0o755), CALLER).await.map(drop)
            }
            Step::Rmdir(path) => {
                let (parent, name) = self.place(path).await?;
                vfs.remove_dir(parent, name, CALLER).await
            }
            Step::Chmod(path, mode) => {
                let mode = Some(Mode::from_bits(*mode));
                let set = Attributes { mode, ..Attributes::default() };
                let vnode = self.object(path).await?.fid.vnode;
                vfs.set_attributes(vnode, set, None, CALLER).await.map(drop)
            }
        }
    }

    async fn open(&mut self, number: u32, path: &str, flags: &str) -> Result<(), Error> {
        let has = |flag| flags.contains(flag);
        let mode = OpenMode { truncate: has('t'), append: has('a'), exclusive: has('x'), ..WRITE };
        let (parent, name) = self.place(path).await?;
        let (file, at) = match self.vfs.lookup(parent, name.clone()).await {
            Ok(object) => {
                let at = if mode.append { object.status.size } else { 0 };
                (self.vfs.open(object.fid.vnode, mode, CALLER).await?.file, at)
            }
            Err(Error::Refused(FsError::NotFound)) => {
                let made = self.vfs.create(parent, name, Mode::from_bits(0o644), mode, CALLER).await?;
                (made.1.file, 0)
            }
            Err(error) => return Err(error),
        };
        self.open.insert(number, (file, at));
        Ok(())
    }

    async fn write(&mut self, number: u32, bytes: &Bytes) -> Result<(), Error> {
        let (file, at) = self.open.get_mut(&number).expect("an open file");
        self.vfs.write(*file, *at, bytes.clone()).await?;
        *at += bytes.len() as u64;
        Ok(())
    }

    async fn close(&mut self, number: u32) -> Result<(), Error> {
        let (file, _) = self.open.remove(&number).expect("an open file");
        let closed = self.vfs.flush(file).await;
        self.vfs.release(file);
        closed
    }

    async fn object(&self, path: &str) -> Result<Object, Error> {
        let (parent, name) = self.place(path).await?;
        self.vfs.lookup(parent, name).await
    }

    /// The directory of a path, and the name in it.
    async fn place(&self, path: &str) -> Result<(VnodeId, Bytes), Error> {
        let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = VnodeId::ROOT;
        for directory in directories.split('/').filter(|directory| !directory.is_empty()) {
            at = self.vfs.lookup(at, Bytes::from(directory.to_owned())).await?.fid.vnode;
        }
        Ok((at, Bytes::from(name.to_owned())))
    }
}
