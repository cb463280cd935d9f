//! The exact model of a small tree: which bytes each file has, by which names and descriptors it is reached. Knows no
//! file system and no process.

use std::collections::BTreeMap;

/// A file, whether it still has a name or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId(usize);

/// An open file, which open(2) makes and dup(2) and fork(2) share: a file, an offset, and the way it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenId(usize);

#[derive(Clone, Copy)]
struct Open {
    file: FileId,
    offset: usize,
    access: Access,
}

/// The way a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    ReadWrite,
    Append,
}

/// Names, files and open files. Everything that was ever there stays, reached or not.
#[derive(Default)]
pub(super) struct Model {
    names: BTreeMap<String, FileId>,
    contents: Vec<Vec<u8>>,
    opens: Vec<Open>,
}

impl Model {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    pub(super) fn find(&self, name: &str) -> Option<FileId> {
        self.names.get(name).copied()
    }

    pub(super) fn bytes(&self, file: FileId) -> &Vec<u8> {
        &self.contents[file.0]
    }

    /// Returns the answer of fstat(2) and stat(2): the size, and the number of names.
    pub(super) fn look(&self, file: FileId) -> String {
        let links = self.names.values().filter(|named| **named == file).count();
        format!("ok {} {links}", self.bytes(file).len())
    }

    /// Makes a new file of that name, with a content. A file that had the name before loses it.
    pub(super) fn replace(&mut self, name: &str, content: Vec<u8>) -> FileId {
        let file = FileId(self.contents.len());
        self.contents.push(content);
        self.names.insert(name.to_owned(), file);
        file
    }

    /// Gives a content to the file of that name, which is made if there is none.
    pub(super) fn put(&mut self, name: &str, content: Vec<u8>) {
        match self.find(name) {
            Some(file) => self.contents[file.0] = content,
            None => drop(self.replace(name, content)),
        }
    }

    pub(super) fn link(&mut self, file: FileId, name: &str) {
        self.names.insert(name.to_owned(), file);
    }

    pub(super) fn unlink(&mut self, name: &str) {
        self.names.remove(name);
    }

    /// Renames a file. Two names of one file both stay: rename(2) does nothing then.
    pub(super) fn rename(&mut self, from: &str, to: &str) {
        if self.find(from) != self.find(to)
            && let Some(file) = self.names.remove(from)
        {
            self.names.insert(to.to_owned(), file);
        }
    }

    pub(super) fn resize(&mut self, file: FileId, length: usize) {
        self.contents[file.0].resize(length, 0);
    }

    /// Puts bytes at a place, with zeros before it if the file ends earlier.
    pub(super) fn put_at(&mut self, file: FileId, at: usize, bytes: &[u8]) {
        let content = &mut self.contents[file.0];
        let end = at + bytes.len();
        content.resize(content.len().max(end), 0);
        content[at..end].copy_from_slice(bytes);
    }

    pub(super) fn open(&mut self, file: FileId, access: Access) -> OpenId {
        self.opens.push(Open { file, offset: 0, access });
        OpenId(self.opens.len() - 1)
    }

    pub(super) fn file(&self, open: OpenId) -> FileId {
        self.opens[open.0].file
    }

    pub(super) fn access(&self, open: OpenId) -> Access {
        self.opens[open.0].access
    }

    pub(super) fn seek(&mut self, open: OpenId, offset: usize) {
        self.opens[open.0].offset = offset;
    }

    /// Writes like write(2): at the end if the file was opened so, else at the offset, which moves.
    pub(super) fn write(&mut self, open: OpenId, bytes: &[u8]) {
        let Open { file, offset, access } = self.opens[open.0];
        let at = if access == Access::Append { self.bytes(file).len() } else { offset };
        self.put_at(file, at, bytes);
        self.seek(open, at + bytes.len());
    }

    /// Writes like pwrite(2): on Linux also at the end if the file was opened so. The offset stays.
    pub(super) fn write_at(&mut self, open: OpenId, at: usize, bytes: &[u8]) {
        let Open { file, access, .. } = self.opens[open.0];
        let at = if access == Access::Append { self.bytes(file).len() } else { at };
        self.put_at(file, at, bytes);
    }

    /// Reads like read(2) at the offset, which moves.
    pub(super) fn read(&mut self, open: OpenId, length: usize) -> Vec<u8> {
        let Open { file, offset, .. } = self.opens[open.0];
        let content = self.bytes(file);
        let start = offset.min(content.len());
        let read = content[start..content.len().min(start + length)].to_vec();
        self.seek(open, offset + read.len());
        read
    }
}

/// Returns the bytes of one write: its number over and over, a line each.
pub(super) fn content(number: u32, length: usize) -> Vec<u8> {
    format!("{number:07}\n").into_bytes().into_iter().cycle().take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_per_open_and_append_goes_to_the_end() {
        let mut model = Model::default();
        let file = model.replace("a", content(1, 8));
        let [plain, append] = [Access::ReadWrite, Access::Append].map(|access| model.open(file, access));
        model.write(append, b"end");
        model.write(plain, b"start");
        model.write_at(append, 0, b"!");
        assert_eq!(model.bytes(file), b"start01\nend!");
        assert_eq!(model.read(plain, 4), b"01\ne");
        assert_eq!(model.read(append, 4), b"!");
        model.seek(plain, 20);
        assert_eq!(model.read(plain, 4), b"");
        model.write(plain, b"x");
        assert_eq!(model.bytes(file).len(), 21);
    }

    #[test]
    fn a_file_is_counted_by_its_names() {
        let mut model = Model::default();
        let file = model.replace("a", Vec::new());
        model.link(file, "b");
        model.rename("a", "b");
        assert_eq!(model.look(file), "ok 0 2");
        model.put("c", content(1, 8));
        model.rename("c", "a");
        model.unlink("b");
        assert_eq!(model.look(file), "ok 0 0");
        assert_eq!(model.names().collect::<Vec<_>>(), ["a"]);
    }
}
