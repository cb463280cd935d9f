//! Tests of the core: a small world to apply records in, and whole-tree properties against a reference model.

mod announce;
mod changes;
mod directory;
mod exactly_once;
mod exclusive;
mod formats;
mod keep;
mod locks;
mod model;
mod pending;
mod promises;
mod quota;
mod refused;
mod trash;
mod xattrs;

use bytes::Bytes;
use mafs_durable::{Kv, MemoryKv};
use mafs_proto::call::{ApplyReply, ApplyRequest};
use mafs_proto::{
    Base, ClientId, CmlOp, CmlRecord, ContentHash, Fid, FidRange, FsError, Incarnation, Kind, Mode, Name, StoreId,
    Timestamp, VolumeId, Wire,
};

use super::edit::ContentBody;
use super::replies::{self, Decision, Limits};
use super::{NewContent, Overlay, Refusal, clients};

const VOLUME: VolumeId = VolumeId(3);
const ROOT: Fid = Fid::root(VOLUME);
const CLIENT: ClientId = ClientId([7; 16]);

/// A volume in memory with one attached client.
struct World {
    kv: MemoryKv,
    client: ClientId,
    incarnation: Incarnation,
    spare_lives: u64,
    fids: FidRange,
    seq: u64,
}

impl World {
    fn new() -> Self {
        let kv = MemoryKv::new();
        kv.apply(&clients::found(&Overlay::new(VOLUME, &kv), (10, 20), time(1))).unwrap();
        let granted = attach(&kv, CLIENT);
        let clients::Granted { incarnation, spare_lives, fids, .. } = granted;
        Self { kv, client: CLIENT, incarnation, spare_lives, fids, seq: 0 }
    }

    fn overlay(&self) -> Overlay<'_> {
        Overlay::new(VOLUME, &self.kv)
    }

    fn next_fid(&mut self) -> Fid {
        self.fids.take().unwrap()
    }

    fn next_record(&mut self, op: CmlOp) -> CmlRecord {
        self.seq += 1;
        let id = StoreId { client: self.client, incarnation: self.incarnation, seq: self.seq };
        let seconds = i64::try_from(self.seq).unwrap() + 100;
        CmlRecord { id, depends_on: Vec::new(), time: time(seconds), uid: 1000, gid: 2000, removes: None, op }
    }

    fn apply(&mut self, op: CmlOp) -> Result<ApplyReply, FsError> {
        let record = self.next_record(op);
        self.apply_record(record, None)
    }

    fn store(&mut self, fid: Fid, base: Base, bytes: &[u8]) -> Result<ApplyReply, FsError> {
        let record = self.next_record(store(fid, base, bytes));
        self.apply_record(record, Some(bytes))
    }

    fn apply_record(&mut self, record: CmlRecord, bytes: Option<&[u8]>) -> Result<ApplyReply, FsError> {
        self.apply_request(&ApplyRequest::new(record, None), bytes)
    }

    fn apply_request(&mut self, request: &ApplyRequest, bytes: Option<&[u8]>) -> Result<ApplyReply, FsError> {
        let decision = self.decide(request, bytes);
        let reply = match decision.map_err(|refusal| refusal.error)? {
            Decision::Known(reply) => reply,
            Decision::Apply(applied) => {
                self.kv.apply(&applied.batch).unwrap();
                applied.reply
            }
        };
        Ok(ApplyReply::decode(reply).unwrap())
    }

    fn decide(&self, request: &ApplyRequest, bytes: Option<&[u8]>) -> Result<Decision, Refusal> {
        let content = bytes.map(|bytes| content(request.record.op.fid(), bytes));
        replies::decide(&self.overlay(), self.client, request, content, Limits::default())
    }

    fn create(&mut self, parent: Fid, text: &str) -> Fid {
        let fid = self.next_fid();
        self.apply(create(parent, text, fid)).unwrap();
        fid
    }

    fn make_dir(&mut self, parent: Fid, text: &str) -> Fid {
        let fid = self.next_fid();
        self.apply(make_dir(parent, text, fid)).unwrap();
        fid
    }
}

fn attach(kv: &MemoryKv, client: ClientId) -> clients::Granted {
    let (batch, granted) = clients::attach(&Overlay::new(VOLUME, kv), client, "laptop", None).unwrap();
    kv.apply(&batch).unwrap();
    granted
}

fn content(fid: Fid, bytes: &[u8]) -> NewContent {
    let body = ContentBody::Bytes(Bytes::copy_from_slice(bytes));
    NewContent { fid, size: bytes.len() as u64, hash: ContentHash::of(bytes), body }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

fn time(seconds: i64) -> Timestamp {
    Timestamp::new(seconds, 0).unwrap()
}

fn create(parent: Fid, text: &str, fid: Fid) -> CmlOp {
    CmlOp::Create { parent, name: name(text), fid, kind: Kind::File, mode: Mode::from_bits(0o644), rdev: 0 }
}

fn make_dir(parent: Fid, text: &str, fid: Fid) -> CmlOp {
    CmlOp::MakeDir { parent, name: name(text), fid, mode: Mode::from_bits(0o755) }
}

fn store(fid: Fid, base: Base, bytes: &[u8]) -> CmlOp {
    CmlOp::Store { fid, base, size: bytes.len() as u64, mtime: time(5) }
}
