//! Random scripts.

use std::time::Duration;

use mafs_proto::Random;

use super::call::{Call, Model, OpenFile, Slot};
use super::{Script, Step};

/// The mix of things that programs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mix {
    /// Files are made empty, closed, opened again and written at once, and little else.
    pub idioms: bool,
    /// Files are mapped, and stored to also after their descriptors are closed.
    pub mappings: bool,
    /// Several programs call at once.
    pub together: bool,
}

/// The most descriptors, and mappings.
const OPEN_MAX: usize = 12;
const MAPPED_MAX: usize = 4;

/// Larger files only shrink.
const SIZE_MAX: usize = 400_000;

/// How many names there are.
const NAMES: u64 = 8;

pub(super) fn script(seed: u64, steps: usize, mix: Mix) -> Script {
    let random = Random::new(seed);
    let mut maker = Maker { random, mix, model: Model::default(), next: 0, reserved: None, steps: Vec::new() };
    while maker.steps.len() < steps {
        maker.step();
    }
    maker.close_all();
    let model = maker.model;
    let left = model.names.iter().map(|(name, file)| (name.clone(), model.files[*file].clone())).collect();
    Script { steps: maker.steps, left }
}

struct Maker {
    random: Random,
    mix: Mix,
    model: Model,
    next: Slot,
    /// An idiom has these slots and later: other programs leave them, and all names, alone.
    reserved: Option<Slot>,
    steps: Vec<Step>,
}

impl Maker {
    fn step(&mut self) {
        let idiom = if self.mix.idioms { self.random.below(10) < 7 } else { self.random.once_in(10) };
        if idiom {
            return self.idiom();
        }
        let Some(call) = self.call() else { return };
        let pause = self.pause();
        self.push(call, pause);
    }

    /// Adds a call, and sometimes another that is made at once. Calls in one idiom have no pause between them.
    fn push(&mut self, call: Call, pause: Duration) {
        let effects = self.model.effects(&call);
        let mut calls = vec![(call.clone(), self.model.apply(&call))];
        if self.mix.together && self.random.once_in(3) {
            let other = self.call().filter(|other| {
                let others = self.model.effects(other);
                let is_free = |first| !others.changes_names && others.slots.iter().all(|slot| *slot < first);
                effects.commute(&others) && self.reserved.is_none_or(is_free)
            });
            calls.extend(other.map(|other| (other.clone(), self.model.apply(&other))));
        }
        let closed = self.closed(&calls);
        self.steps.push(Step { calls, pause, closed });
    }

    fn push_all(&mut self, calls: Vec<Call>) {
        let last = calls.len() - 1;
        for (number, call) in calls.into_iter().enumerate() {
            let pause = if number == last { self.pause() } else { Duration::ZERO };
            self.push(call, pause);
        }
    }

    /// Some named file that nobody has open to write or mapped, if one was closed.
    fn closed(&mut self, calls: &[(Call, super::Answer)]) -> Option<(String, Vec<u8>)> {
        let is_close = |call: &Call| matches!(call, Call::Close { .. } | Call::Exit { .. });
        if !calls.iter().any(|(call, _)| is_close(call)) {
            return None;
        }
        let model = &self.model;
        let in_use = |file: &usize| {
            model.fds.values().any(|open| open.write && open.file == *file)
                || model.maps.values().any(|mapped| mapped == file)
        };
        let still: Vec<_> = model.names.iter().filter(|(_, file)| !in_use(file)).collect();
        let count = still.len() as u64;
        let (name, file) = still.get(usize::try_from(self.random.below(count.max(1))).unwrap_or(0))?;
        Some(((*name).clone(), model.files[**file].clone()))
    }

    fn pause(&mut self) -> Duration {
        match self.random.below(40) {
            0..=11 => Duration::from_micros(self.random.one_of(&[200, 500, 1000, 3000])),
            12 | 13 => Duration::from_millis(self.random.below(60)),
            14 => Duration::from_millis(self.random.below(1500)),
            _ => Duration::ZERO,
        }
    }

    fn idiom(&mut self) {
        self.reserved = Some(self.next + 1);
        self.make_and_write();
        self.reserved = None;
    }

    /// Makes a file as scripts and editors do: it is made and closed before it is written, or written beside and
    /// renamed.
    fn make_and_write(&mut self) {
        let name = self.name();
        let (first, second) = (self.slot(), self.slot());
        let write = |fd, (byte, count)| Call::Write { fd, at: 0, byte, count };
        let data = self.data();
        if self.random.once_in(4) {
            let draft = "draft".to_owned();
            let create = Call::Create { name: draft.clone(), fd: first, exclusive: false, append: false };
            let rename = Call::Rename { from: draft, to: name };
            return self.push_all(vec![create, write(first, data), Call::Close { fd: first }, rename]);
        }
        if self.model.names.contains_key(&name) {
            self.push(Call::Unlink { name: name.clone() }, Duration::ZERO);
        }
        let (truncate, append) = self.random.one_of(&[(false, false), (true, false), (false, true)]);
        self.push_all(vec![
            Call::Create { name: name.clone(), fd: first, exclusive: true, append: false },
            Call::Close { fd: first },
            Call::Open { name: name.clone(), fd: second, write: true, truncate, append },
            write(second, data),
        ]);
        if self.random.coin() {
            self.push(Call::End { fd: second }, Duration::ZERO);
        }
        self.push_all(vec![Call::Close { fd: second }, Call::Stat { name: name.clone() }, Call::ReadName { name }]);
    }

    fn call(&mut self) -> Option<Call> {
        if self.mix.mappings && self.random.once_in(3) {
            return self.mapping_call();
        }
        match self.random.below(36) {
            0..=3 => self.open_call(),
            4..=9 => self.write_call(),
            10..=12 => self.writable().map(|fd| self.resize_call(fd)),
            13..=17 => Some(Call::Close { fd: self.fd()? }),
            18 | 19 => self.look_call(),
            20..=24 => Some(Call::ReadName { name: self.existing()? }),
            25 => Some(Call::Stat { name: self.name() }),
            26 => Some(Call::Rename { from: self.existing()?, to: self.name() }),
            27 | 28 => Some(Call::Unlink { name: self.existing()? }),
            29 => Some(Call::Link { from: self.existing()?, to: self.name() }),
            30 => Some(Call::Sync { fd: self.fd()? }),
            31 if self.has_room() => Some(Call::Duplicate { fd: self.fd()?, copy: self.slot() }),
            32 if self.model.fds.len() * 2 <= OPEN_MAX => Some(self.fork()),
            33 => self.exit(),
            34 => Some(Call::List),
            35 => Some(Call::Shrink),
            _ => None,
        }
    }

    fn open_call(&mut self) -> Option<Call> {
        if !self.has_room() {
            return None;
        }
        let (fd, append) = (self.slot(), self.random.once_in(3));
        if self.random.coin() {
            let exclusive = self.random.coin();
            return Some(Call::Create { name: self.name(), fd, exclusive, append });
        }
        let write = !self.random.once_in(4);
        let truncate = write && self.random.once_in(3);
        Some(Call::Open { name: self.existing()?, fd, write, truncate, append: write && append })
    }

    fn write_call(&mut self) -> Option<Call> {
        let fd = self.writable()?;
        let OpenFile { file, append, .. } = self.model.fds[&fd];
        let size = self.model.files[file].len();
        let (byte, count) = self.data();
        if append && size > SIZE_MAX {
            return None;
        }
        let inside = self.random.up_to(size);
        let at = if size > SIZE_MAX { 0 } else { self.random.one_of(&[0, size, inside, size + 3000]) };
        Some(Call::Write { fd, at: at as u64, byte, count })
    }

    fn resize_call(&mut self, fd: Slot) -> Call {
        let file = self.model.fds[&fd].file;
        let size = self.model.files[file].len();
        let to = if size > SIZE_MAX { 0 } else { self.random.one_of(&[0, size / 2, size, size + 5000]) } as u64;
        let name = self.model.names.iter().find(|(_, named)| **named == file).map(|(name, _)| name.clone());
        match name {
            Some(name) if self.random.coin() => Call::Resize { name, size: to },
            _ => Call::ResizeOpen { fd, size: to },
        }
    }

    fn look_call(&mut self) -> Option<Call> {
        let fd = self.fd()?;
        Some(match self.random.below(3) {
            0 => Call::Read { fd },
            1 => Call::Size { fd },
            _ => Call::End { fd },
        })
    }

    fn mapping_call(&mut self) -> Option<Call> {
        let maps: Vec<_> = self.model.maps.keys().copied().collect();
        if maps.is_empty() || (maps.len() < MAPPED_MAX && self.random.once_in(4)) {
            let fd = self.writable()?;
            let count = self.model.files[self.model.fds[&fd].file].len();
            return (count > 0).then(|| Call::Map { fd, map: self.slot(), count });
        }
        let map = self.random.one_of(&maps);
        let size = self.model.files[self.model.maps[&map]].len();
        if size == 0 || self.random.once_in(6) {
            return Some(Call::Unmap { map });
        }
        let at = self.random.up_to(size - 1);
        let count = 1 + self.random.up_to((size - at).min(5000) - 1);
        let at = at as u64;
        Some(match self.random.once_in(4) {
            true => Call::Load { map, at, count },
            false => Call::Store { map, at, byte: self.byte(), count },
        })
    }

    fn fork(&mut self) -> Call {
        let fds: Vec<_> = self.model.fds.keys().copied().collect();
        Call::Fork { inherited: fds.into_iter().map(|fd| (fd, self.slot())).collect() }
    }

    fn exit(&mut self) -> Option<Call> {
        let fds: Vec<_> = self.model.fds.keys().copied().filter(|_| self.random.once_in(3)).collect();
        (!fds.is_empty()).then_some(Call::Exit { fds })
    }

    fn close_all(&mut self) {
        let maps: Vec<_> = self.model.maps.keys().copied().collect();
        maps.into_iter().for_each(|map| self.push(Call::Unmap { map }, Duration::ZERO));
        let fds = self.model.fds.keys().copied().collect();
        self.mix.together = false;
        self.push(Call::Exit { fds }, Duration::ZERO);
        for name in self.model.names.keys().cloned().collect::<Vec<_>>() {
            self.push(Call::ReadName { name }, Duration::ZERO);
        }
        self.push(Call::List, Duration::ZERO);
    }

    fn has_room(&self) -> bool {
        self.model.fds.len() < OPEN_MAX
    }

    fn slot(&mut self) -> Slot {
        self.next += 1;
        self.next
    }

    fn name(&mut self) -> String {
        format!("f{}", self.random.below(NAMES))
    }

    fn existing(&mut self) -> Option<String> {
        let names: Vec<_> = self.model.names.keys().collect();
        names.get(usize::try_from(self.random.below(names.len().max(1) as u64)).unwrap_or(0)).map(ToString::to_string)
    }

    fn fd(&mut self) -> Option<Slot> {
        let fds: Vec<_> = self.model.fds.keys().copied().collect();
        (!fds.is_empty()).then(|| self.random.one_of(&fds))
    }

    fn writable(&mut self) -> Option<Slot> {
        let fds: Vec<_> = self.model.fds.iter().filter(|(_, open)| open.write).map(|(fd, _)| *fd).collect();
        (!fds.is_empty()).then(|| self.random.one_of(&fds))
    }

    fn byte(&mut self) -> u8 {
        1 + u8::try_from(self.random.below(255)).unwrap_or(0)
    }

    fn data(&mut self) -> (u8, usize) {
        (self.byte(), self.random.one_of(&[1, 100, 4096, 8192, 20_000, 70_000]))
    }
}
