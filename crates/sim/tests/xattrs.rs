//! Extended attributes: their costs, and their fate without a name, a cache or a connection.

use bytes::Bytes;
use mafs_client::vfs::{Caller, Error, Vfs};
use mafs_proto::{FsError, Mode, VnodeId, XattrMode};
use mafs_sim::{Crash, LEASE};

use crate::support::{CALLER, WRITE, create, open_by_name, simulate, with_empty_cache, world, write_and_close};

const NAME: &str = "user.note";

async fn set(vfs: &Vfs, vnode: VnodeId, name: &'static str, value: &'static str) -> Result<(), Error> {
    vfs.set_xattr(vnode, Bytes::from(name), Bytes::from(value), XattrMode::Either, CALLER).await
}

async fn get(vfs: &Vfs, vnode: VnodeId, name: &'static str) -> Result<Vec<u8>, Error> {
    vfs.get_xattr(vnode, Bytes::from(name)).await.map(|value| value.as_bytes().to_vec())
}

async fn names(vfs: &Vfs, vnode: VnodeId) -> Vec<String> {
    let names = vfs.list_xattrs(vnode, CALLER).await.expect("the names");
    names.iter().map(ToString::to_string).collect()
}

async fn find(vfs: &Vfs, name: &'static str) -> VnodeId {
    vfs.lookup(VnodeId::ROOT, Bytes::from(name)).await.expect("the object").fid.vnode
}

#[test]
fn asking_an_object_without_attributes_costs_no_call() {
    simulate(async {
        let mut world = world(5).await;
        write_and_close(world.client(), "file", b"content".to_vec()).await;
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        let vnode = find(vfs, "file").await;
        let calls = vfs.status().calls;
        assert!(matches!(get(vfs, vnode, NAME).await, Err(Error::Refused(FsError::NoXattr))));
        assert_eq!(names(vfs, vnode).await, [""; 0]);
        assert_eq!(vfs.status().calls, calls);
    });
}

#[test]
fn attributes_are_asked_for_once_and_stay_known_over_other_changes() {
    simulate(async {
        let mut world = world(5).await;
        let vnode = write_and_close(world.client(), "file", b"content".to_vec()).await;
        for (name, value) in [("user.a", "one"), ("user.b", "two"), ("trusted.c", "three")] {
            set(world.client(), vnode, name, value).await.expect("an attribute");
        }
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        let vnode = find(vfs, "file").await;
        let calls = vfs.status().calls;
        assert_eq!(get(vfs, vnode, "user.a").await.expect("a value"), b"one");
        assert_eq!(get(vfs, vnode, "user.b").await.expect("a value"), b"two");
        assert_eq!(names(vfs, vnode).await, ["trusted.c", "user.a", "user.b"]);
        assert_eq!(vfs.status().calls, calls + 1);
        let file = vfs.open(vnode, WRITE, CALLER).await.expect("an open").file;
        vfs.write(file, 0, Bytes::from_static(b"more")).await.expect("a write");
        vfs.flush(file).await.expect("a close");
        vfs.release(file);
        let calls = vfs.status().calls;
        assert_eq!(get(vfs, vnode, "user.a").await.expect("a value"), b"one");
        assert_eq!(vfs.status().calls, calls, "a store leaves attributes as they are");
    });
}

#[test]
fn a_change_costs_one_call_and_what_it_leaves_is_known() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let vnode = write_and_close(vfs, "file", b"content".to_vec()).await;
        let calls = vfs.status().calls;
        set(vfs, vnode, "user.a", "one").await.expect("an attribute");
        set(vfs, vnode, "user.b", "two").await.expect("an attribute");
        vfs.remove_xattr(vnode, Bytes::from_static(b"user.a"), CALLER).await.expect("it was there");
        assert_eq!(names(vfs, vnode).await, ["user.b"]);
        assert_eq!(get(vfs, vnode, "user.b").await.expect("a value"), b"two");
        assert_eq!(vfs.status().calls, calls + 3);
    });
}

#[test]
fn attributes_set_at_the_same_time_are_all_there() {
    simulate(async {
        let mut world = world(5).await;
        let vnode = write_and_close(world.client(), "file", b"content".to_vec()).await;
        let setting: Vec<_> = ["user.a", "user.b", "user.c", "user.d"]
            .into_iter()
            .map(|name| {
                let vfs = world.client().clone();
                tokio::spawn(async move { set(&vfs, vnode, name, name).await })
            })
            .collect();
        for set in setting {
            set.await.expect("the task").expect("an attribute");
        }
        assert_eq!(names(world.client(), vnode).await, ["user.a", "user.b", "user.c", "user.d"]);
        with_empty_cache(&mut world).await;
        let vnode = find(world.client(), "file").await;
        assert_eq!(names(world.client(), vnode).await, ["user.a", "user.b", "user.c", "user.d"]);
    });
}

#[test]
fn cached_attributes_survive_a_remount_and_are_served_without_a_connection_while_the_lease_lasts() {
    simulate(async {
        let mut world = world(5).await;
        let vnode = write_and_close(world.client(), "file", b"content".to_vec()).await;
        set(world.client(), vnode, NAME, "kept").await.expect("an attribute");
        world.stop_client().await;
        world.start_client().await.expect("the client starts");
        let calls = world.client().status().calls;
        assert_eq!(get(world.client(), vnode, NAME).await.expect("a value"), b"kept");
        assert_eq!(world.client().status().calls, calls + 1, "more was asked than whether they are current");
        world.crash_server(Crash::Kill);
        assert_eq!(get(world.client(), vnode, NAME).await.expect("a value"), b"kept");
        assert_eq!(world.client().status().calls, calls + 1);
        assert!(set(world.client(), vnode, NAME, "lost").await.is_err());
        tokio::time::sleep(LEASE).await;
        get(world.client(), vnode, NAME).await.expect_err("somebody else may have changed them");
        world.start_server().expect("the server starts");
    });
}

#[test]
fn an_unlinked_open_file_keeps_its_attributes_while_it_is_open() {
    simulate(async {
        let mut world = world(5).await;
        let vnode = write_and_close(world.client(), "file", b"content".to_vec()).await;
        set(world.client(), vnode, "user.a", "one").await.expect("an attribute");
        with_empty_cache(&mut world).await;
        let vfs = world.client();
        let file = open_by_name(vfs, "file").await;
        vfs.unlink(VnodeId::ROOT, Bytes::from_static(b"file"), CALLER).await.expect("an unlink");
        let calls = vfs.status().calls;
        assert_eq!(get(vfs, vnode, "user.a").await.expect("a value"), b"one");
        set(vfs, vnode, "user.b", "two").await.expect("an attribute");
        vfs.remove_xattr(vnode, Bytes::from_static(b"user.a"), CALLER).await.expect("it was there");
        assert_eq!(names(vfs, vnode).await, ["user.b"]);
        assert_eq!(vfs.status().calls, calls, "what has no name is nobody else's");
        vfs.release(file);
        assert!(get(vfs, vnode, "user.b").await.is_err());
    });
}

#[test]
fn a_new_object_does_not_inherit_attributes_of_one_that_went() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        for _ in 0..2 {
            let (vnode, file) = create(vfs, "file").await;
            assert_eq!(names(vfs, vnode).await, [""; 0]);
            set(vfs, vnode, NAME, "old").await.expect("an attribute");
            vfs.release(file);
            vfs.unlink(VnodeId::ROOT, Bytes::from_static(b"file"), CALLER).await.expect("an unlink");
        }
    });
}

#[test]
fn only_the_namespaces_of_ext4_are_there_and_trusted_is_not_listed_to_users() {
    simulate(async {
        let world = world(5).await;
        let vfs = world.client();
        let dir = Bytes::from_static(b"dir");
        let made = vfs.make_dir(VnodeId::ROOT, dir, Mode::from_bits(0o755), CALLER).await.expect("a directory");
        let vnode = made.fid.vnode;
        for name in ["plain", "system.posix_acl_access", "system.posix_acl_default", "user", "users.x"] {
            assert!(matches!(get(vfs, vnode, name).await, Err(Error::Unsupported)), "{name}");
            assert!(matches!(set(vfs, vnode, name, "").await, Err(Error::Unsupported)), "{name}");
        }
        assert!(matches!(set(vfs, vnode, "user.", "").await, Err(Error::Invalid(_))));
        for name in ["user.a", "trusted.b", "security.c"] {
            set(vfs, vnode, name, "x").await.expect("an attribute");
        }
        assert_eq!(names(vfs, vnode).await, ["security.c", "trusted.b", "user.a"]);
        let somebody = vfs.list_xattrs(vnode, Caller { uid: 1000, gid: 1000 }).await.expect("the names");
        assert_eq!(somebody.iter().map(ToString::to_string).collect::<Vec<_>>(), ["security.c", "user.a"]);
    });
}

#[test]
fn what_the_client_says_of_an_object_is_asked_of_nobody_and_cannot_be_set() {
    simulate(async {
        let world = world(10).await;
        let vfs = world.client();
        let vnode = write_and_close(vfs, "file", b"content".to_vec()).await;
        let version = vfs.object_report(vnode).expect("a report").version.to_string();
        let calls = vfs.status().calls;
        let expected = [("user.mafs.state", "cached"), ("user.mafs.dirty", "0"), ("user.mafs.version", &version)];
        for (name, value) in expected.into_iter().chain([("user.mafs.pinned", "0")]) {
            let said = vfs.get_xattr(vnode, Bytes::from(name)).await.expect("a value");
            assert_eq!(said.as_bytes(), value.as_bytes(), "{name}");
        }
        vfs.hoard(b"file", mafs_client::hoard::HoardSpec::PIN).expect("a pin");
        assert_eq!(get(vfs, vnode, "user.mafs.pinned").await.expect("a value"), b"1");
        let (_, file) = create(vfs, "new").await;
        let new = find(vfs, "new").await;
        vfs.write(file, 0, Bytes::from_static(b"x")).await.expect("a write");
        assert_eq!(get(vfs, new, "user.mafs.dirty").await.expect("a value"), b"1");
        assert!(vfs.status().calls <= calls + 3, "the new file was made, and the hoard walked");
        let none = get(vfs, vnode, "user.mafs.other").await;
        assert!(matches!(none, Err(Error::Refused(FsError::NoXattr))), "{none:?}");
        assert!(matches!(set(vfs, vnode, "user.mafs.pinned", "0").await, Err(Error::NotPermitted)));
        let removed = vfs.remove_xattr(vnode, Bytes::from("user.mafs.state"), CALLER).await;
        assert!(matches!(removed, Err(Error::NotPermitted)), "{removed:?}");
        assert!(names(vfs, vnode).await.is_empty(), "a copy does not take them along");
    });
}
