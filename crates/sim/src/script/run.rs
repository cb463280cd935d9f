//! Scripts on the kernel of a machine.

use std::collections::BTreeMap;

use mafs_client::vfs::OpenMode;
use tokio::time::Instant;

use super::call::Slot;
use super::{Answer, Call, Script, Step};
use crate::kernel::{Descriptor, Errno, Kernel, MappingId};

/// More than any file has.
const EVERYTHING: usize = 1 << 20;

/// Runs a script in a directory, which is made; `others` must show the directory too, and closed files at once.
///
/// # Errors
/// The first answer that is not what it must be, with what was called before.
pub async fn run(kernel: &Kernel, directory: &str, script: &Script, others: &[Kernel]) -> Result<(), String> {
    let made = kernel.make_dir(directory, 0o755).await;
    made.map_err(|errno| format!("the directory cannot be made: {errno:?}"))?;
    let mut programs = Programs { kernel, directory, fds: BTreeMap::new(), maps: BTreeMap::new() };
    let start = Instant::now();
    for (number, step) in script.steps.iter().enumerate() {
        let wrong = match programs.step(step).await {
            Ok(()) => shown(others, directory, step).await,
            Err(wrong) => Err(wrong),
        };
        if let Err(wrong) = wrong {
            let last = script.steps[number.saturating_sub(14)..=number].iter().map(ToString::to_string);
            let last = last.collect::<Vec<_>>().join("\n  ");
            return Err(format!("step {number}, after {:?}: {wrong}; last\n  {last}", start.elapsed()));
        }
        tokio::time::sleep(step.pause).await;
    }
    Ok(())
}

/// Compares what a kernel shows of a directory with what a script has left.
///
/// # Errors
/// The difference.
pub async fn check(kernel: &Kernel, directory: &str, left: &BTreeMap<String, Vec<u8>>) -> Result<(), String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |errno: Errno| format!("{what}: {errno:?}")
    };
    for (name, content) in left {
        let path = format!("{directory}/{name}");
        let size = kernel.stat(&path).await.map_err(failed(name))?.size;
        let (read, wanted) =
            (Answer::Bytes(read(kernel, &path).await.map_err(failed(name))?), Answer::Bytes(content.clone()));
        if read != wanted || size != content.len() as u64 {
            return Err(format!("{name} is {read}, and {size} bytes by stat, not {wanted}"));
        }
    }
    let (names, wanted) = (kernel.list(directory).await.map_err(failed("a listing"))?, left.keys().collect::<Vec<_>>());
    if names.iter().eq(wanted.iter().copied()) {
        Ok(())
    } else {
        Err(format!("the names are {names:?}, not {wanted:?}"))
    }
}

/// Checks that others that open a file then show what was closed.
async fn shown(others: &[Kernel], directory: &str, step: &Step) -> Result<(), String> {
    let Some((name, content)) = &step.closed else { return Ok(()) };
    for other in others {
        let read = read(other, &format!("{directory}/{name}")).await;
        let (read, wanted) = (read.map_err(|errno| format!("{name} elsewhere: {errno:?}"))?, content.clone());
        if read != wanted {
            return Err(format!("{name} is {} elsewhere, not {}", Answer::Bytes(read), Answer::Bytes(wanted)));
        }
    }
    Ok(())
}

async fn read(kernel: &Kernel, path: &str) -> Result<Vec<u8>, Errno> {
    let fd = kernel.open(path, OpenMode { read: true, ..OpenMode::default() }).await?;
    let read = kernel.read(fd, 0, EVERYTHING).await;
    kernel.close(fd).await?;
    read
}

/// Programs of one machine.
struct Programs<'a> {
    kernel: &'a Kernel,
    directory: &'a str,
    fds: BTreeMap<Slot, Descriptor>,
    maps: BTreeMap<Slot, MappingId>,
}

/// Descriptors and mappings that a call has opened.
#[derive(Default)]
struct Opened {
    fds: Vec<(Slot, Descriptor)>,
    maps: Vec<(Slot, MappingId)>,
}

impl Programs<'_> {
    async fn step(&mut self, step: &Step) -> Result<(), String> {
        let answers = match step.calls.as_slice() {
            [(one, _)] => vec![self.perform(one).await],
            [(one, _), (other, _)] => {
                let (one, other) = tokio::join!(self.perform(one), self.perform(other));
                vec![one, other]
            }
            _ => return Err("no step has so many calls".to_owned()),
        };
        for ((call, wanted), (answer, opened)) in step.calls.iter().zip(answers) {
            self.fds.extend(opened.fds);
            self.maps.extend(opened.maps);
            if answer != *wanted {
                return Err(format!("`{call}` answers {answer:?}, not {wanted:?}"));
            }
        }
        Ok(())
    }

    async fn perform(&self, call: &Call) -> (Answer, Opened) {
        let mut opened = Opened::default();
        let answer = self.try_perform(call, &mut opened).await;
        (answer.unwrap_or_else(Answer::Failed), opened)
    }

    async fn try_perform(&self, call: &Call, opened: &mut Opened) -> Result<Answer, Errno> {
        let kernel = self.kernel;
        match call {
            Call::Create { name, fd, exclusive, append } => {
                let mode = OpenMode { exclusive: *exclusive, append: *append, ..READ_WRITE };
                opened.fds.push((*fd, kernel.create(&self.path(name), 0o644, mode).await?));
            }
            Call::Open { name, fd, write, truncate, append } => {
                let mode = OpenMode { write: *write, truncate: *truncate, append: *append, ..READ_WRITE };
                opened.fds.push((*fd, kernel.open(&self.path(name), mode).await?));
            }
            Call::Write { fd, at, byte, count } => {
                return Ok(Answer::Size(kernel.write(self.fd(*fd)?, *at, &vec![*byte; *count]).await?));
            }
            Call::Read { fd } => return Ok(Answer::Bytes(kernel.read(self.fd(*fd)?, 0, EVERYTHING).await?)),
            Call::ReadName { name } => return Ok(Answer::Bytes(read(kernel, &self.path(name)).await?)),
            Call::Size { fd } => return Ok(Answer::Size(kernel.stat_open(self.fd(*fd)?).await?.size)),
            Call::End { fd } => return Ok(Answer::Size(kernel.seek_end(self.fd(*fd)?).await?)),
            Call::Stat { name } => return Ok(Answer::Size(kernel.stat(&self.path(name)).await?.size)),
            Call::ResizeOpen { fd, size } => kernel.resize_open(self.fd(*fd)?, *size).await?,
            Call::Resize { name, size } => kernel.resize(&self.path(name), *size).await?,
            Call::Sync { fd } => kernel.sync(self.fd(*fd)?).await?,
            Call::Duplicate { fd, copy } => opened.fds.push((*copy, kernel.duplicate(self.fd(*fd)?)?)),
            Call::Fork { inherited } => {
                for (fd, copy) in inherited {
                    opened.fds.push((*copy, kernel.duplicate(self.fd(*fd)?)?));
                }
            }
            Call::Exit { fds } => {
                for fd in fds {
                    kernel.close(self.fd(*fd)?).await?;
                }
            }
            Call::Close { fd } => kernel.close(self.fd(*fd)?).await?,
            Call::Map { fd, map, .. } => opened.maps.push((*map, kernel.map(self.fd(*fd)?)?)),
            Call::Store { map, at, byte, count } => kernel.store(self.map(*map)?, *at, &vec![*byte; *count]).await?,
            Call::Load { map, at, count } => {
                return Ok(Answer::Bytes(kernel.load(self.map(*map)?, *at, *count).await?));
            }
            Call::Unmap { map } => kernel.unmap(self.map(*map)?).await?,
            Call::Rename { from, to } => kernel.rename(&self.path(from), &self.path(to)).await?,
            Call::Link { from, to } => kernel.link(&self.path(from), &self.path(to)).await?,
            Call::Unlink { name } => kernel.remove(&self.path(name), false).await?,
            Call::List => return Ok(Answer::Names(kernel.list(self.directory).await?)),
            Call::Shrink => kernel.shrink(),
        }
        Ok(Answer::Done)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    fn fd(&self, slot: Slot) -> Result<Descriptor, Errno> {
        self.fds.get(&slot).copied().ok_or(Errno::BADF)
    }

    fn map(&self, slot: Slot) -> Result<MappingId, Errno> {
        self.maps.get(&slot).copied().ok_or(Errno::BADF)
    }
}

const READ_WRITE: OpenMode = OpenMode {
    read: true,
    write: true,
    truncate: false,
    append: false,
    direct: false,
    execute: false,
    exclusive: false,
    again: false,
};
