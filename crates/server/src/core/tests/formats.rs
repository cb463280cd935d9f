//! docs/formats.md, "Server data directory": its examples are what the code writes.

use bytes::Bytes;
use mafs_proto::{ChangeNumber, CmlOp, DataVersion, Fid, Incarnation, SetAttr, StatusVersion, StoreId, VnodeId};

use super::{CLIENT, ROOT, World, name};
use crate::core::pending::Announced;
use crate::core::records::{ClientState, Judged, VolumeState};
use crate::core::{Node, Place, tables};

const FILE: Fid = Fid { vnode: VnodeId(0x1001), ..ROOT };

#[test]
fn the_keys_of_the_index_are_as_documented() {
    let id = StoreId { client: CLIENT, incarnation: Incarnation(2), seq: 9 };
    let keys = [
        ("key-node", tables::node(FILE)),
        ("key-entry", tables::entry(FILE, &name("ab"))),
        ("key-inline", tables::inline(FILE, DataVersion(3))),
        ("key-client", tables::client(CLIENT)),
        ("key-reply", tables::reply(&id)),
        ("key-grant", tables::grant(1)),
        ("key-used", tables::used(FILE.vnode)),
        ("key-xattrs", tables::xattrs(FILE, StatusVersion(4))),
        ("key-announced", tables::announced(&id)),
        ("key-change", tables::change(ChangeNumber(5))),
        ("value-entry", tables::fid_bytes(FILE).to_vec()),
    ];
    for (example, key) in keys {
        assert_eq!(hex(&key), hex(&documented(example)), "{example}");
    }
}

#[test]
fn the_counters_are_as_documented() {
    let bytes = documented("value-volume");
    let state = VolumeState::decode(&bytes).unwrap();
    assert_eq!((state.change.0, state.next_block, state.used_bytes, state.objects), (3, 2, 300, 4));
    assert_eq!(hex(&state.encode()), hex(&bytes));
}

#[test]
fn a_node_survives_encoding() {
    let mut world = World::new();
    let fid = world.create(ROOT, "f");
    world.store(fid, mafs_proto::Base::Version(DataVersion(1)), b"hello").unwrap();
    let mut node = world.overlay().begin().node(fid).unwrap();
    if let Some(content) = &mut node.content {
        content.place = Place::File(crate::core::ContentSerial { epoch: 3, number: 4 });
        content.came_for = Some(ROOT);
    }
    assert_eq!(Node::decode(fid, node.encode(fid)).unwrap(), node);
    assert!(Node::decode(ROOT, node.encode(fid)).is_err(), "a node under another key is damage");
    for cut in 0..node.encode(fid).len() {
        // Any outcome but a panic is right: cut bytes are damage, or a field less.
        let _ = Node::decode(fid, node.encode(fid)[..cut].to_vec());
    }
}

#[test]
fn an_announced_record_is_as_documented() {
    let bytes = documented("value-announced");
    let announced = Announced::decode(&bytes).unwrap();
    assert_eq!(announced.since, ChangeNumber(5));
    assert_eq!(announced.record.op, CmlOp::SetAttr { fid: FILE, set: SetAttr::default() });
    assert_eq!(hex(&announced.encode()), hex(&bytes));
}

#[test]
fn a_client_survives_encoding() {
    let state = ClientState {
        incarnation: Incarnation(7),
        confirmed_below: Some(StoreId { client: CLIENT, incarnation: Incarnation(6), seq: 5 }),
        replies: 4,
        name: "laptop".to_owned(),
        has_session: true,
        aliases: 3,
        judged: None,
    };
    let up_to = StoreId { client: CLIENT, incarnation: Incarnation(6), seq: 9 };
    for judged in [None, Some(Judged { up_to, trash: None }), Some(Judged { up_to, trash: Some(0) })] {
        let state = ClientState { judged, ..state.clone() };
        assert_eq!(ClientState::decode(state.encode()).unwrap(), state);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes of the example marked `hex NAME`.
fn documented(example: &str) -> Bytes {
    let document = include_str!("../../../../../docs/formats.md");
    let block = document.split(&format!("```hex {example}\n")).nth(1);
    let block = block.unwrap_or_else(|| panic!("no example {example}")).split("```").next().unwrap();
    let digits: String = block.split_whitespace().collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}
