//! The steps of a random program that are one operation each, and how often each is taken.

use std::io;

use rustix::fs::OFlags;

use super::expected::Expected;
use super::idioms;
use super::model::{Access, FileId, OpenId, content};
use super::program::{DIRECTORIES, Program};

/// A shared mapping. Steps do not touch its part behind the end of the file.
#[derive(Clone, Copy)]
pub(super) struct Mapping {
    file: FileId,
    length: usize,
}

/// The action of a step. The ones that end a batch can fail.
#[derive(Clone, Copy)]
enum Step {
    Plain(fn(&mut Program<'_>)),
    Ending(fn(&mut Program<'_>) -> io::Result<()>),
}

const STEPS: [(usize, Step); 24] = [
    (10, Step::Plain(open)),
    (12, Step::Plain(write)),
    (8, Step::Plain(pwrite)),
    (4, Step::Plain(read)),
    (6, Step::Plain(pread)),
    (6, Step::Plain(seek)),
    (6, Step::Plain(fstat)),
    (5, Step::Plain(ftruncate)),
    (3, Step::Plain(truncate)),
    (3, Step::Plain(fsync)),
    (3, Step::Plain(dup)),
    (9, Step::Plain(close)),
    (4, Step::Plain(map)),
    (8, Step::Plain(store)),
    (4, Step::Plain(load)),
    (2, Step::Plain(msync)),
    (3, Step::Plain(unmap)),
    (8, Step::Plain(look)),
    (4, Step::Plain(rename)),
    (3, Step::Plain(link)),
    (5, Step::Plain(unlink)),
    (1, Step::Plain(rename_directory)),
    (20, Step::Plain(idioms::take)),
    (3, Step::Ending(|program| if program.one_in(2) { program.fork() } else { program.end() })),
];

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "/x", "/y", "/z"];
const LENGTHS: [usize; 7] = [1, 8, 100, 4096, 8192, 20_000, 70_000];
const GAP: usize = 5000;

/// Codes as lseek(2) has them.
const SEEK_SET: u8 = 0;
const SEEK_END: u8 = 2;
const SEEK_DATA: u8 = 3;
const SEEK_HOLE: u8 = 4;

const FILE_BYTES: usize = 300_000;
const PAGE_BYTES: usize = 4096;

/// Descriptors, and mappings, that a process has at most.
const OPEN_MAX: usize = 12;

pub(super) fn take(program: &mut Program<'_>) -> io::Result<()> {
    let total = STEPS.iter().map(|(weight, _)| weight).sum();
    let mut left = program.below(total);
    for (weight, step) in STEPS {
        if left < weight {
            return match step {
                Step::Plain(step) => {
                    step(program);
                    Ok(())
                }
                Step::Ending(step) => step(program),
            };
        }
        left -= weight;
    }
    Ok(())
}

/// Returns a path that may have a file or not, in the directory or below it.
pub(super) fn name(program: &mut Program<'_>) -> String {
    let name = program.choose(&NAMES);
    if name.starts_with('/') { format!("{}{name}", program.directory) } else { name.to_owned() }
}

/// Returns a path that has a file, if there is any.
pub(super) fn existing(program: &mut Program<'_>) -> Option<(String, FileId)> {
    let names: Vec<String> = program.model.names().map(str::to_owned).collect();
    let name = names.get(program.below(names.len().max(1)))?;
    Some((name.clone(), program.model.find(name)?))
}

/// Returns the number of a write, and its bytes.
pub(super) fn data(program: &mut Program<'_>) -> (u32, Vec<u8>) {
    let number = program.number();
    (number, content(number, program.choose(&LENGTHS)))
}

pub(super) fn flags(access: Access, more: OFlags) -> u32 {
    let access = match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
        Access::Append => OFlags::RDWR | OFlags::APPEND,
    };
    (access | more).bits()
}

/// Opens a path, and returns the descriptor's number.
pub(super) fn open_as(program: &mut Program<'_>, name: &str, access: Access, more: OFlags) -> Option<u32> {
    let number = program.number();
    let found = program.model.find(name);
    let error = match found {
        Some(_) if more.contains(OFlags::CREATE | OFlags::EXCL) => Some("EEXIST"),
        None if !more.contains(OFlags::CREATE) => Some("ENOENT"),
        _ => None,
    };
    program.act(format!("open {number} {name} {}", flags(access, more)), Expected::text(error.unwrap_or("ok")));
    if error.is_some() {
        return None;
    }
    let file = found.unwrap_or_else(|| program.model.replace(name, Vec::new()));
    if more.contains(OFlags::TRUNC) {
        program.model.resize(file, 0);
    }
    let opened = program.model.open(file, access);
    program.files().insert(number, opened);
    Some(number)
}

pub(super) fn close_number(program: &mut Program<'_>, number: u32) {
    program.files().remove(&number);
    program.act(format!("close {number}"), Expected::text("ok"));
}

fn open(program: &mut Program<'_>) {
    let name = name(program);
    let access = program.choose(&[Access::Read, Access::ReadWrite, Access::ReadWrite, Access::Append]);
    let mut more = program.choose(&[OFlags::empty(), OFlags::CREATE, OFlags::CREATE | OFlags::EXCL]);
    if access != Access::Read && program.one_in(4) {
        more |= OFlags::TRUNC;
    }
    if program.files().len() < OPEN_MAX {
        open_as(program, &name, access, more);
    }
}

/// Returns one of the descriptors of the process.
fn any_file(program: &mut Program<'_>) -> Option<(u32, OpenId)> {
    let count = program.files().len().max(1);
    let nth = program.below(count);
    program.files().iter().nth(nth).map(|(number, open)| (*number, *open))
}

/// Returns a descriptor through which may be written, of a file that is not too large.
fn any_writable(program: &mut Program<'_>) -> Option<(u32, OpenId, FileId)> {
    let (number, open) = any_file(program)?;
    let file = program.model.file(open);
    if program.model.access(open) == Access::Read {
        return None;
    }
    if program.model.bytes(file).len() > FILE_BYTES {
        resize(program, number, file, 0);
    }
    Some((number, open, file))
}

fn resize(program: &mut Program<'_>, number: u32, file: FileId, length: usize) {
    program.act(format!("ftruncate {number} {length}"), Expected::text("ok"));
    program.model.resize(file, length);
}

/// Returns a place to write at: the beginning, the end, between, or behind the end.
fn place(program: &mut Program<'_>, file: FileId) -> usize {
    let length = program.model.bytes(file).len();
    let between = program.below(length + 1);
    program.choose(&[0, length, length, between, length + GAP])
}

fn write(program: &mut Program<'_>) {
    let Some((number, open, file)) = any_writable(program) else { return };
    if program.one_in(2) {
        let at = place(program, file);
        program.act(format!("seek {number} {at} 0"), Expected::text(format!("ok {at}")));
        program.model.seek(open, at);
    }
    write_to(program, number, open);
}

pub(super) fn write_to(program: &mut Program<'_>, number: u32, open: OpenId) {
    let (write, bytes) = data(program);
    let length = bytes.len();
    program.act(format!("write {number} {write} {length}"), Expected::text(format!("ok {length}")));
    program.model.write(open, &bytes);
}

fn pwrite(program: &mut Program<'_>) {
    let Some((number, open, file)) = any_writable(program) else { return };
    let (write, bytes) = data(program);
    let (at, length) = (place(program, file), bytes.len());
    program.act(format!("pwrite {number} {write} {length} {at}"), Expected::text(format!("ok {length}")));
    program.model.write_at(open, at, &bytes);
}

fn read(program: &mut Program<'_>) {
    let Some((number, open)) = any_file(program) else { return };
    let length = program.choose(&LENGTHS);
    let bytes = program.model.read(open, length);
    program.act(format!("read {number} {length}"), Expected::data("ok", bytes));
}

fn pread(program: &mut Program<'_>) {
    let Some((number, open)) = any_file(program) else { return };
    pread_of(program, number, open);
}

pub(super) fn pread_of(program: &mut Program<'_>, number: u32, open: OpenId) {
    let bytes = program.model.bytes(program.model.file(open)).clone();
    program.act(format!("pread {number}"), Expected::data("ok", bytes));
}

/// Seeks to the end, or to data or a hole: where these are is not known exactly, so that the offset is set again.
fn seek(program: &mut Program<'_>) {
    let Some((number, open)) = any_file(program) else { return };
    let bytes = program.model.bytes(program.model.file(open)).clone();
    let length = bytes.len();
    if length > 0 && program.one_in(2) {
        let at = program.below(length);
        let (whence, expected) = if program.one_in(2) {
            (SEEK_DATA, Expected::Data { at, content: bytes })
        } else {
            (SEEK_HOLE, Expected::Hole { at, content: bytes })
        };
        program.act(format!("seek {number} {at} {whence}"), expected);
        program.act(format!("seek {number} {at} {SEEK_SET}"), Expected::text(format!("ok {at}")));
        program.model.seek(open, at);
    } else {
        program.act(format!("seek {number} 0 {SEEK_END}"), Expected::text(format!("ok {length}")));
        program.model.seek(open, length);
    }
}

fn fstat(program: &mut Program<'_>) {
    let Some((number, open)) = any_file(program) else { return };
    let look = program.model.look(program.model.file(open));
    program.act(format!("fstat {number}"), Expected::text(look));
}

fn new_length(program: &mut Program<'_>, file: FileId) -> usize {
    let length = program.model.bytes(file).len();
    let more = if length > FILE_BYTES { 0 } else { length + GAP };
    program.choose(&[0, length / 2, more])
}

fn ftruncate(program: &mut Program<'_>) {
    let Some((number, _, file)) = any_writable(program) else { return };
    let length = new_length(program, file);
    resize(program, number, file, length);
}

fn truncate(program: &mut Program<'_>) {
    let Some((name, file)) = existing(program) else { return };
    let length = new_length(program, file);
    program.act(format!("truncate {name} {length}"), Expected::text("ok"));
    program.model.resize(file, length);
}

fn fsync(program: &mut Program<'_>) {
    let Some((number, _)) = any_file(program) else { return };
    program.act(format!("fsync {number}"), Expected::text("ok"));
}

fn dup(program: &mut Program<'_>) {
    let Some((number, open)) = any_file(program) else { return };
    if program.files().len() < OPEN_MAX {
        let copy = program.number();
        program.act(format!("dup {number} {copy}"), Expected::text("ok"));
        program.files().insert(copy, open);
    }
}

fn close(program: &mut Program<'_>) {
    let Some((number, _)) = any_file(program) else { return };
    close_number(program, number);
}

/// Maps a file, with room to grow.
fn map(program: &mut Program<'_>) {
    let Some((number, _, file)) = any_writable(program) else { return };
    if program.mappings().len() < OPEN_MAX {
        map_as(program, number, file);
    }
}

pub(super) fn map_as(program: &mut Program<'_>, number: u32, file: FileId) -> u32 {
    let mapping = program.number();
    let length = program.model.bytes(file).len().next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
    program.act(format!("map {number} {mapping} {length}"), Expected::text("ok"));
    program.mappings().insert(mapping, Mapping { file, length });
    mapping
}

/// Returns one of the mappings of the process, and how much of its file it shows.
fn any_mapping(program: &mut Program<'_>) -> Option<(u32, FileId, usize)> {
    let count = program.mappings().len().max(1);
    let nth = program.below(count);
    let (number, Mapping { file, length }) = program.mappings().iter().nth(nth).map(|(number, of)| (*number, *of))?;
    Some((number, file, length.min(program.model.bytes(file).len())))
}

fn store(program: &mut Program<'_>) {
    let Some((mapping, file, shown)) = any_mapping(program) else { return };
    if shown > 0 {
        let at = program.below(shown);
        store_to(program, mapping, file, at, shown - at);
    }
}

pub(super) fn store_to(program: &mut Program<'_>, mapping: u32, file: FileId, at: usize, room: usize) {
    let (write, mut bytes) = data(program);
    bytes.truncate(room);
    program.act(format!("store {mapping} {write} {} {at}", bytes.len()), Expected::text("ok"));
    program.model.put_at(file, at, &bytes);
}

fn load(program: &mut Program<'_>) {
    let Some((mapping, file, shown)) = any_mapping(program) else { return };
    let bytes = program.model.bytes(file)[..shown].to_vec();
    program.act(format!("load {mapping} {shown}"), Expected::data("ok", bytes));
}

fn msync(program: &mut Program<'_>) {
    let Some((mapping, ..)) = any_mapping(program) else { return };
    program.act(format!("msync {mapping}"), Expected::text("ok"));
}

fn unmap(program: &mut Program<'_>) {
    let Some((mapping, ..)) = any_mapping(program) else { return };
    unmap_number(program, mapping);
}

pub(super) fn unmap_number(program: &mut Program<'_>, mapping: u32) {
    program.mappings().remove(&mapping);
    program.act(format!("unmap {mapping}"), Expected::text("ok"));
}

/// Looks at a path: what stat(2) says, or all that is in the file.
fn look(program: &mut Program<'_>) {
    let name = name(program);
    let found = program.model.find(&name).map(|file| (program.model.look(file), program.model.bytes(file).clone()));
    let whole = program.one_in(2);
    let operation = if whole { "get" } else { "stat" };
    let expected = match found {
        None => Expected::text("ENOENT"),
        Some((look, bytes)) if whole => Expected::data(look, bytes),
        Some((look, _)) => Expected::text(look),
    };
    program.act(format!("{operation} {name}"), expected);
}

fn rename(program: &mut Program<'_>) {
    let [from, to] = [name(program), name(program)];
    let outcome = if program.model.find(&from).is_some() { "ok" } else { "ENOENT" };
    program.act(format!("rename {from} {to}"), Expected::text(outcome));
    program.model.rename(&from, &to);
}

fn link(program: &mut Program<'_>) {
    let [from, to] = [name(program), name(program)];
    let outcome = match (program.model.find(&from), program.model.find(&to)) {
        (None, _) => "ENOENT",
        (Some(_), Some(_)) => "EEXIST",
        (Some(file), None) => {
            program.model.link(file, &to);
            "ok"
        }
    };
    program.act(format!("link {from} {to}"), Expected::text(outcome));
}

fn unlink(program: &mut Program<'_>) {
    let name = name(program);
    let outcome = if program.model.find(&name).is_some() { "ok" } else { "ENOENT" };
    program.act(format!("unlink {name}"), Expected::text(outcome));
    program.model.unlink(&name);
}

fn rename_directory(program: &mut Program<'_>) {
    let [from, to] = [program.directory, DIRECTORIES[usize::from(program.directory == DIRECTORIES[0])]];
    program.act(format!("rename {from} {to}"), Expected::text("ok"));
    program.directory = to;
    let below: Vec<String> = program.model.names().filter(|name| name.starts_with(from)).map(str::to_owned).collect();
    for name in below {
        program.model.rename(&name, &name.replacen(from, to, 1));
    }
}
