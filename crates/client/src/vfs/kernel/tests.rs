//! Decisions about what the kernel is told, in examples.

use mafs_proto::{Fid, Kind, Mode, Status, StatusVersion, Timestamp, Uniquifier, VolumeId};

use super::*;

/// Calls that a kernel was told, in order.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl KernelCache for Told {
    fn invalidate_inode(&self, vnode: VnodeId) {
        self.note(format!("inode {}", vnode.0));
    }

    fn invalidate_attributes(&self, vnode: VnodeId) {
        self.note(format!("attributes {}", vnode.0));
    }

    fn invalidate_listing(&self, vnode: VnodeId) {
        self.note(format!("listing {}", vnode.0));
    }

    fn invalidate_entry(&self, parent: VnodeId, name: &Name) {
        self.note(format!("entry {} {name}", parent.0));
    }

    fn expire_entry(&self, parent: VnodeId, name: &Name) {
        self.note(format!("expired {} {name}", parent.0));
    }
}

fn name(name: &'static str) -> Name {
    Name::new(name).unwrap()
}

fn broken(vnode: VnodeId, names: &[&'static str]) -> BrokenObject {
    let fid = Fid { volume: VolumeId(1), vnode, unique: Uniquifier(1) };
    BrokenObject { fid, names: names.iter().map(|text| name(text)).collect() }
}

fn object_of(vnode: VnodeId) -> Object {
    let time = Timestamp::default();
    let status = Status {
        kind: Kind::File,
        mode: Mode::from_bits(0o644),
        nlink: 0,
        uid: 0,
        gid: 0,
        size: 10,
        rdev: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        data_version: DataVersion(3),
        status_version: StatusVersion(3),
        xattrs: None,
    };
    Object { fid: broken(vnode, &[]).fid, status, target: None }
}

/// Lists in every directory: `known`, an inode that the kernel may know, and `unknown`, which it does not.
fn names() -> NamesOf {
    Box::new(|_| vec![(name("known"), VnodeId(8)), (name("unknown"), VnodeId(9))])
}

#[test]
fn what_is_left_of_a_removed_file_stays_when_the_server_says_that_it_is_gone() {
    let (kernel, vnode) = (Kernel::default(), VnodeId(7));
    let heard = Nameless::of(&object_of(vnode));
    kernel.count_lookup(&object_of(vnode));
    kernel.note_removed(heard.clone());
    kernel.note_removed(Nameless { content: Left::In(ContainerId(4)), ..heard.clone() });
    assert!(kernel.note_removed(heard));
    assert_eq!(kernel.forget(vnode, 1), Some(ContainerId(4)));
}

#[test]
fn where_a_file_ends_is_certain_if_the_kernel_was_told_so_last() {
    let (kernel, told, vnode) = (Kernel::default(), Arc::new(Told::default()), VnodeId(7));
    kernel.set_edge(told);
    kernel.count_lookup(&object_of(vnode));
    let size = object_of(vnode).status.size;
    assert_eq!(kernel.open(vnode, DataVersion(3), size), Kept::End);
    assert_eq!(kernel.open(vnode, DataVersion(3), size), Kept::Pages);
    assert_eq!(kernel.open(vnode, DataVersion(4), size + 1), Kept::Nothing);
    kernel.forget_end(vnode);
    assert_eq!(kernel.open(vnode, DataVersion(5), size), Kept::Nothing, "it has been told to ask");
    kernel.note_told(&object_of(vnode));
    assert_eq!(kernel.open(vnode, DataVersion(6), size), Kept::End);
    kernel.note_told(&object_of(VnodeId(8)));
    assert_eq!(kernel.open(VnodeId(8), DataVersion(3), size), Kept::Nothing, "it does not know the file");
}

#[tokio::test]
async fn of_a_broken_directory_the_kernel_forgets_what_changed_and_asks_again_for_the_rest() {
    let (kernel, told, directory) = (Arc::new(Kernel::default()), Arc::new(Told::default()), VnodeId(7));
    kernel.set_edge(told.clone());
    kernel.forget_objects(vec![broken(directory, &["new"])], names()).await;
    assert_eq!(told.take(), [""; 0], "the kernel does not know it");
    kernel.count_lookup(&object_of(directory));
    kernel.count_lookup(&object_of(VnodeId(8)));
    kernel.note_absent(directory, name("absent"));
    kernel.forget_objects(vec![broken(directory, &["new"])], names()).await;
    assert_eq!(told.take(), ["entry 7 new", "expired 7 absent", "expired 7 known", "inode 7"]);
}

#[tokio::test]
async fn a_listing_that_the_kernel_keeps_is_out_of_date_with_its_directory() {
    let (kernel, told, directory) = (Arc::new(Kernel::default()), Arc::new(Told::default()), VnodeId(7));
    kernel.set_edge(told.clone());
    kernel.count_lookup(&object_of(directory));
    kernel.note_listing(directory, Part::First, Instant(10));
    kernel.forget_objects(vec![broken(directory, &["new"])], names()).await;
    assert_eq!(told.take(), ["entry 7 new", "listing 7"]);
    kernel.forget_everything(names()).await;
    assert_eq!(told.take(), ["listing 7", "inode 1"]);
    assert_eq!(kernel.listings_due(Instant(10)), (vec![directory], None));
    kernel.forget_objects(vec![broken(directory, &[])], names()).await;
    assert_eq!(told.take(), ["inode 7"], "it is not kept any more");
}

#[tokio::test]
async fn a_part_of_a_listing_goes_when_this_client_changes_the_directory() {
    let (kernel, told, directory) = (Arc::new(Kernel::default()), Arc::new(Told::default()), VnodeId(7));
    kernel.set_edge(told.clone());
    kernel.names_changed(directory).await;
    for (part, expected) in [(Part::First, &["listing 7"][..]), (Part::End, &[])] {
        kernel.note_listing(directory, part, Instant(10));
        kernel.names_changed(directory).await;
        assert_eq!(told.take(), expected, "{part:?}");
    }
}

#[tokio::test]
async fn who_began_before_a_break_has_missed_it() {
    let kernel = Arc::new(Kernel::default());
    let began = kernel.breaks();
    assert_eq!(kernel.missed(began), None);
    kernel.forget_objects(vec![broken(VnodeId(7), &[])], names()).await;
    assert_eq!(kernel.missed(began), Some(Missed::Objects(vec![broken(VnodeId(7), &[])])));
    assert_eq!(kernel.missed(kernel.breaks()), None);
    kernel.forget_everything(names()).await;
    assert_eq!(kernel.missed(began), Some(Missed::Anything));
}

#[test]
fn pages_are_kept_while_they_are_of_the_version_opened() {
    let kernel = Kernel::default();
    let (file, [one, two]) = (VnodeId(5), [DataVersion(1), DataVersion(2)]);
    kernel.count_lookup(&object_of(file));
    let open = |version| kernel.open(file, version, 10) == Kept::Pages;
    assert!(!open(one));
    assert!(open(one));
    kernel.stored(file, one, two);
    assert!(open(two));
    assert!(!open(one));
    kernel.forget(file, 1);
    assert!(!open(one));
}
