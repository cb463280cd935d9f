//! The steps of a random program that are several operations in a row, as programs and shell scripts have them.

use rustix::fs::OFlags;

use super::expected::Expected;
use super::model::{Access, content};
use super::program::Program;
use super::steps::{close_number, data, existing, map_as, name, open_as, pread_of, store_to, unmap_number, write_to};

const IDIOMS: [fn(&mut Program<'_>); 6] =
    [make_empty_then_write, make_empty_then_write, save_by_rename, temporary_file, map_and_store, shell];

pub(super) fn take(program: &mut Program<'_>) {
    let idiom = program.choose(&IDIOMS);
    idiom(program);
}

const NEW: OFlags = OFlags::CREATE.union(OFlags::EXCL);

/// Makes a file, or makes it empty, closes it, opens it and writes at once.
fn make_empty_then_write(program: &mut Program<'_>) {
    let name = name(program);
    if program.model.find(&name).is_some() && program.one_in(2) {
        program.act(format!("unlink {name}"), Expected::text("ok"));
        program.model.unlink(&name);
    }
    let access = program.choose(&[Access::ReadWrite, Access::Append]);
    for more in [OFlags::CREATE | OFlags::TRUNC, OFlags::empty()] {
        let Some(number) = open_as(program, &name, access, more) else { return };
        if more.is_empty() {
            write_all(program, number);
        }
        close_number(program, number);
    }
}

fn write_all(program: &mut Program<'_>, number: u32) {
    if let Some(open) = program.files().get(&number).copied() {
        write_to(program, number, open);
    }
}

/// Writes a new file and gives it the name of an old one.
fn save_by_rename(program: &mut Program<'_>) {
    let name = name(program);
    let Some(number) = open_as(program, "new", Access::ReadWrite, NEW) else { return };
    write_all(program, number);
    write_all(program, number);
    if program.one_in(2) {
        program.act(format!("fsync {number}"), Expected::text("ok"));
    }
    // Some programs go on with the descriptor.
    if !program.one_in(4) {
        close_number(program, number);
    }
    program.act(format!("rename new {name}"), Expected::text("ok"));
    program.model.rename("new", &name);
}

/// Uses a file without a name from the first moment.
fn temporary_file(program: &mut Program<'_>) {
    let Some(number) = open_as(program, "temporary", Access::ReadWrite, NEW) else { return };
    program.act("unlink temporary".to_owned(), Expected::text("ok"));
    program.model.unlink("temporary");
    write_all(program, number);
    if let Some(open) = program.files().get(&number).copied() {
        pread_of(program, number, open);
    }
    if program.one_in(2) {
        close_number(program, number);
    }
}

/// Gives a file its size, maps it, closes it and stores.
fn map_and_store(program: &mut Program<'_>) {
    let name = name(program);
    let Some(number) = open_as(program, &name, Access::ReadWrite, OFlags::CREATE | OFlags::TRUNC) else { return };
    let length = 1 + program.below(50_000);
    program.act(format!("ftruncate {number} {length}"), Expected::text("ok"));
    let Some(file) = program.model.find(&name) else { return };
    program.model.resize(file, length);
    let mapping = map_as(program, number, file);
    close_number(program, number);
    let at = program.below(length);
    store_to(program, mapping, file, at, length - at);
    if program.one_in(2) {
        program.act(format!("msync {mapping}"), Expected::text("ok"));
    }
    if program.one_in(2) {
        unmap_number(program, mapping);
    }
}

/// Runs a shell script, with what it does to the model.
fn shell(program: &mut Program<'_>) {
    const SCRIPTS: [fn(&mut Program<'_>) -> Option<String>; 9] =
        [redirect, touch_then_print, copy, copy_in_place, move_over, edit, sort_in_place, write_over, set_size];
    let script = program.choose(&SCRIPTS);
    if let Some(script) = script(program) {
        program.act(format!("shell {script}"), Expected::text("ok"));
    }
}

/// Returns the output of `echo`: the word of one write.
fn word(program: &mut Program<'_>) -> (String, Vec<u8>) {
    let number = program.number();
    (format!("{number:07}"), content(number, 8))
}

/// Returns an existing path, its content, and any path that is not another name of the same file.
fn pair(program: &mut Program<'_>) -> Option<(String, Vec<u8>, String)> {
    let (from, file) = existing(program)?;
    let to = name(program);
    let differ = program.model.find(&to) != Some(file);
    differ.then(|| (from, program.model.bytes(file).clone(), to))
}

fn redirect(program: &mut Program<'_>) -> Option<String> {
    let (name, [(one, mut bytes), (two, more)]) = (name(program), [word(program), word(program)]);
    bytes.extend(more);
    program.model.put(&name, bytes);
    Some(format!(": >{name}; echo {one} >>{name}; echo {two} >>{name}"))
}

fn touch_then_print(program: &mut Program<'_>) -> Option<String> {
    let (name, (word, bytes)) = (name(program), word(program));
    program.model.put(&name, bytes);
    Some(format!("touch {name}; echo {word} >{name}"))
}

fn copy(program: &mut Program<'_>) -> Option<String> {
    let (from, bytes, to) = pair(program)?;
    program.model.put(&to, bytes);
    Some(format!("cp --reflink=auto {from} {to}"))
}

fn copy_in_place(program: &mut Program<'_>) -> Option<String> {
    let (from, bytes, to) = pair(program)?;
    program.model.put(&to, bytes);
    Some(format!("cat {from} >{to}"))
}

fn move_over(program: &mut Program<'_>) -> Option<String> {
    let (from, bytes, to) = pair(program)?;
    program.model.replace(&to, bytes);
    Some(format!("cp {from} new; mv new {to}"))
}

/// Edits by a new file that takes the name. Lines that end in no newline keep to that.
fn edit(program: &mut Program<'_>) -> Option<String> {
    let (name, file) = existing(program)?;
    let digit = |byte: &u8| if *byte == b'1' { b'2' } else { *byte };
    let bytes = program.model.bytes(file).iter().map(digit).collect();
    program.model.replace(&name, bytes);
    Some(format!("sed -i y/1/2/ {name}"))
}

fn sort_in_place(program: &mut Program<'_>) -> Option<String> {
    let (name, file) = existing(program)?;
    let bytes = program.model.bytes(file).clone();
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    lines.iter_mut().for_each(|line| *line = line.strip_suffix(b"\n").unwrap_or(line));
    lines.sort_unstable();
    program.model.put(&name, lines.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect());
    Some(format!("sort -o {name} {name}"))
}

fn write_over(program: &mut Program<'_>) -> Option<String> {
    let (from, bytes, to) = pair(program)?;
    let file = program.model.find(&to)?;
    program.model.put_at(file, 0, &bytes);
    Some(format!("dd if={from} of={to} bs=8k conv=notrunc,fsync status=none"))
}

fn set_size(program: &mut Program<'_>) -> Option<String> {
    let (name, file) = existing(program)?;
    let (_, bytes) = data(program);
    let (shorter, longer) = (bytes.len(), bytes.len() + 1000);
    program.model.resize(file, shorter);
    program.model.resize(file, longer);
    Some(format!("truncate -s {shorter} {name}; fallocate -l {longer} {name}"))
}
