//! Crashes of a memory disk, and the images that they leave.
//!
//! Everything that is left is durable afterwards: the next owner finds a disk at rest.

use std::collections::BTreeSet;

use mafs_proto::Random;

use super::tree::{Change, DirNode, FileNode, Ino, Names, Node, Tree};

impl Tree {
    /// Returns the tree that a power cut leaves: what was synced and, if there is a seed, some of the rest.
    pub(super) fn durable(&self, mut seed: Option<&mut Random>) -> Self {
        let live: BTreeSet<Ino> = self.dirs().flat_map(|(_, dir)| dir.names.values().copied()).collect();
        let mut names: Vec<(Ino, Names)> = Vec::new();
        for (ino, dir) in self.dirs() {
            names.push((ino, survivors(dir, seed.as_deref_mut())));
        }
        let placed: BTreeSet<Ino> = names.iter().flat_map(|(_, names)| names.values().copied()).collect();
        let mut image = self.clone();
        for (ino, mut names) in names {
            if let Some(Node::Dir(dir)) = self.nodes.get(&ino) {
                restore_unplaced(dir, &mut names, &live, &placed);
            }
            image.nodes.insert(ino, Node::Dir(DirNode::new(names)));
        }
        for node in image.nodes.values_mut() {
            if let Node::File(file) = node {
                let times = file.times;
                *file = FileNode::new(surviving_bytes(file, seed.as_deref_mut()));
                file.times = times;
            }
        }
        image
    }

    /// Returns the tree that the end of the process leaves: everything but its open handles.
    pub(super) fn without_handles(&self) -> Self {
        let mut image = self.clone();
        for node in image.nodes.values_mut() {
            if let Node::File(file) = node {
                file.handles = 0;
            }
        }
        image
    }

    fn dirs(&self) -> impl Iterator<Item = (Ino, &DirNode)> {
        self.nodes.iter().filter_map(|(ino, node)| match node {
            Node::Dir(dir) => Some((*ino, dir)),
            Node::File(_) => None,
        })
    }
}

/// Returns the durable names, with a random choice of the changes since.
fn survivors(dir: &DirNode, seed: Option<&mut Random>) -> Names {
    let mut names = dir.durable.clone();
    let Some(seed) = seed else { return names };
    let changed: BTreeSet<&String> = dir.names.keys().chain(dir.durable.keys()).collect();
    for name in changed {
        let (now, before) = (dir.names.get(name), dir.durable.get(name));
        if now == before || !seed.coin() {
            continue;
        }
        match now {
            Some(ino) => names.insert(name.clone(), *ino),
            None => names.remove(name),
        };
    }
    names
}

/// Puts a durable name back whose node was renamed, not removed, if its new name did not survive.
fn restore_unplaced(dir: &DirNode, names: &mut Names, live: &BTreeSet<Ino>, placed: &BTreeSet<Ino>) {
    for (name, ino) in &dir.durable {
        if live.contains(ino) && !placed.contains(ino) {
            names.entry(name.clone()).or_insert(*ino);
        }
    }
}

/// Returns the durable bytes, with a random choice of the changes since, the writes among them whole or in part.
fn surviving_bytes(file: &FileNode, seed: Option<&mut Random>) -> Vec<u8> {
    let mut bytes = file.durable.clone();
    let Some(seed) = seed else { return bytes };
    for change in &file.changes {
        if !seed.coin() {
            continue;
        }
        match change {
            Change::Write { offset, bytes: written } if seed.coin() => {
                let kept = written[..seed.up_to(written.len())].to_vec();
                Change::Write { offset: *offset, bytes: kept }.apply(&mut bytes);
            }
            whole => whole.apply(&mut bytes),
        }
    }
    bytes
}
