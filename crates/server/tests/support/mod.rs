//! Support for tests: a client that says exactly what a test wants, over the memory carrier.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod announcing;
pub(crate) mod lanes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mafs_arpc::carrier::memory::{Cable, pair_with_fault};
use mafs_arpc::{Config, Incoming, IncomingCall, Payload, PayloadError, PayloadReader, Peer};
use mafs_proto::call::{
    ApplyReply, ApplyRequest, AttachReply, AttachRequest, BreakReply, BreakRequest, ErrorDetail, FetchReply,
    FetchRequest, GetStatusReply, GetStatusRequest, HeldLocks, InvalidateReply, InvalidateRequest, LookupRequest,
    PullReply, PullRequest, ReadDirPage, ReadDirRequest, RenewLeaseRequest,
};
use mafs_proto::{
    Base, Call, Class, Classes, ClientId, Clock, CmlOp, CmlRecord, ContentHash, ContentPart, DataVersion, Fid,
    FidRange, FsError, Incarnation, Instant, Kind, Mode, Name, Object, PROTOCOL_MAX, PROTOCOL_MIN, Segment,
    SegmentReader, StoreId, Timestamp, VolumeName, Wire,
};
use mafs_server::{Server, ServerConfig, Storage};

pub(crate) const ALICE: ClientId = ClientId([1; 16]);
pub(crate) const BOB: ClientId = ClientId([2; 16]);

/// The paused clock of tokio.
pub(crate) struct TestClock(tokio::time::Instant);

impl TestClock {
    pub(crate) fn start() -> Arc<Self> {
        Arc::new(Self(tokio::time::Instant::now()))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        Instant(u64::try_from(self.0.elapsed().as_nanos()).unwrap())
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }
}

/// Opens a server without a reserve, so that a memory disk may be small.
pub(crate) fn open(storage: &(impl Storage + Clone)) -> Arc<Server> {
    let config = ServerConfig::default().with_space_reserve_bytes(0);
    Server::open(Arc::new(storage.clone()), TestClock::start(), config).unwrap()
}

/// One connection, and what its attach granted.
pub(crate) struct Client {
    pub(crate) peer: Peer,
    pub(crate) cut: Cable,
    pub(crate) id: ClientId,
    pub(crate) attached: Option<AttachReply>,
    fids: Option<FidRange>,
    seq: u64,
    incoming: Option<Incoming>,
}

/// A refusal as it arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub(crate) error: FsError,
    pub(crate) message: String,
    pub(crate) progress: u64,
}

impl Client {
    pub(crate) fn connect(server: &Arc<Server>, id: ClientId) -> Self {
        let (near, far, cut) = pair_with_fault(Duration::from_micros(100));
        tokio::spawn(Arc::clone(server).serve_connection(far));
        let (peer, incoming) = Peer::start(near, Config::default(), TestClock::start());
        Self { peer, cut, id, attached: None, fids: None, seq: 0, incoming: Some(incoming) }
    }

    /// Connects and attaches to `home`.
    pub(crate) async fn attached(server: &Arc<Server>, id: ClientId) -> Self {
        let mut client = Self::connect(server, id);
        client.attach().await.unwrap();
        client
    }

    /// Acknowledges all that the server says, from now on.
    pub(crate) fn acknowledge_all(&mut self) {
        let mut incoming = self.incoming.take().unwrap();
        tokio::spawn(async move {
            while let Some(call) = incoming.next().await {
                acknowledge(call);
            }
        });
    }

    pub(crate) async fn attach(&mut self) -> Result<AttachReply, Refused> {
        let reply = self.call(self.attach_request()).await?;
        self.fids = Some(reply.fids);
        self.seq = 0;
        self.attached = Some(reply.clone());
        Ok(reply)
    }

    pub(crate) fn attach_request(&self) -> AttachRequest {
        AttachRequest {
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
            client: self.id,
            client_name: format!("host-{}", self.id.0[0]),
            volume: VolumeName::new("home").unwrap(),
            confirmed_below: None,
            session: None,
            locks: HeldLocks::default(),
            decides: false,
        }
    }

    /// Goes on with the session of an earlier connection.
    pub(crate) async fn resumed(server: &Arc<Server>, earlier: &Self) -> Self {
        let mut client = Self::connect(server, earlier.id);
        let session = earlier.attached.as_ref().map(|attached| attached.generation);
        let reply = client.call(AttachRequest { session, ..client.attach_request() }).await.unwrap();
        client.fids = Some(reply.fids);
        client.attached = Some(reply);
        client
    }

    pub(crate) async fn renew(&self) -> Result<bool, Refused> {
        Ok(self.call(RenewLeaseRequest { undecided: false }).await?.renewed)
    }

    /// Waits for the next break that the server sends. Returns the call that acknowledges it, too.
    pub(crate) async fn next_break(&mut self) -> (BreakRequest, IncomingCall) {
        let mut call = self.incoming.as_mut().unwrap().next().await.expect("a call of the server");
        assert_eq!(call.method, BreakRequest::METHOD.number());
        (BreakRequest::decode(std::mem::take(&mut call.body)).unwrap(), call)
    }

    /// Waits for the next pull that the server sends, and answers it with these as missing.
    pub(crate) async fn next_pull(&mut self, missing: &[StoreId]) -> Vec<StoreId> {
        let mut call = self.incoming.as_mut().unwrap().next().await.expect("a call of the server");
        assert_eq!(call.method, PullRequest::METHOD.number());
        let ids = PullRequest::decode(std::mem::take(&mut call.body)).unwrap().ids;
        call.reply(0, PullReply { missing: missing.to_vec() }.encode(), Payload::None);
        ids
    }

    pub(crate) async fn announce(&self, records: &[CmlRecord]) -> Result<InvalidateReply, Refused> {
        self.invalidate(InvalidateRequest {
            records: records.to_vec(),
            retracted: Vec::new(),
            confirmed_below: None,
            settled: Vec::new(),
        })
        .await
    }

    pub(crate) async fn invalidate(&self, request: InvalidateRequest) -> Result<InvalidateReply, Refused> {
        let method = InvalidateRequest::METHOD.number();
        let (body, _) = self.raw(method, request.encode(), Payload::None, Class::Metadata).await?;
        Ok(InvalidateReply::decode(body).unwrap())
    }

    pub(crate) async fn status(&self, fid: Fid, settled: bool) -> Result<GetStatusReply, Refused> {
        self.call(GetStatusRequest { fids: vec![fid], settled, unanswered: Vec::new() }).await
    }

    pub(crate) fn root(&self) -> Fid {
        self.attached.as_ref().unwrap().root.fid
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.attached.as_ref().unwrap().incarnation
    }

    pub(crate) fn next_fid(&mut self) -> Fid {
        self.fids.as_mut().unwrap().take().unwrap()
    }

    pub(crate) fn next_record(&mut self, op: CmlOp) -> CmlRecord {
        self.seq += 1;
        let id = StoreId { client: self.id, incarnation: self.incarnation(), seq: self.seq };
        record(id, op)
    }

    pub(crate) async fn raw(
        &self,
        method: u32,
        body: Bytes,
        payload: Payload,
        class: Class,
    ) -> Result<(Bytes, PayloadReader), Refused> {
        let timeout = Some(Duration::from_secs(60));
        let reply = self.peer.call(mafs_arpc::Call { class, timeout, method, body, payload }).reply().await;
        let reply =
            reply.map_err(|error| Refused { error: FsError::Unknown(0), message: error.to_string(), progress: 0 })?;
        if reply.status == 0 {
            return Ok((reply.body, reply.payload));
        }
        let ErrorDetail { message, progress } = ErrorDetail::decode(reply.body).unwrap();
        Err(Refused { error: FsError::from_number(reply.status), message, progress })
    }

    pub(crate) async fn call<C: Call>(&self, request: C) -> Result<C::Reply, Refused> {
        let (body, _) = self.raw(C::METHOD.number(), request.encode(), Payload::None, Class::Control).await?;
        Ok(C::Reply::decode(body).unwrap())
    }

    pub(crate) async fn apply_with(&self, record: CmlRecord, payload: Payload) -> Result<ApplyReply, Refused> {
        self.apply_request(ApplyRequest::new(record, None), payload).await
    }

    /// Applies a record that comes again after a transient refusal.
    pub(crate) async fn apply_queued(&self, record: CmlRecord, payload: Payload) -> Result<ApplyReply, Refused> {
        self.apply_request(ApplyRequest { comes_again: true, ..ApplyRequest::new(record, None) }, payload).await
    }

    pub(crate) async fn apply_request(&self, request: ApplyRequest, payload: Payload) -> Result<ApplyReply, Refused> {
        let class = Classes::default().class(request.record.op.purpose());
        let (body, _) = self.raw(ApplyRequest::METHOD.number(), request.encode(), payload, class).await?;
        Ok(ApplyReply::decode(body).unwrap())
    }

    pub(crate) async fn apply(&mut self, op: CmlOp) -> Result<ApplyReply, Refused> {
        let record = self.next_record(op);
        self.apply_with(record, Payload::None).await
    }

    pub(crate) async fn create(&mut self, parent: Fid, text: &str) -> Fid {
        let fid = self.next_fid();
        self.apply(create(parent, text, fid)).await.unwrap();
        fid
    }

    pub(crate) async fn store(&mut self, fid: Fid, base: u64, bytes: Bytes) -> Result<ApplyReply, Refused> {
        let base = Base::Version(DataVersion(base));
        let record = self.next_record(store(fid, base, bytes.len() as u64));
        self.apply_with(record, whole(&bytes)).await
    }

    pub(crate) async fn lookup(&self, parent: Fid, text: &str) -> Result<Option<Object>, Refused> {
        Ok(self.call(LookupRequest { parent, name: name(text), unanswered: Vec::new() }).await?.object)
    }

    pub(crate) async fn fetch(&self, request: FetchRequest) -> Result<(Object, Bytes), Refused> {
        let (body, mut payload) =
            self.raw(FetchRequest::METHOD.number(), request.encode(), Payload::None, Class::Fetch).await?;
        let object = FetchReply::decode(body).unwrap().object;
        let mut segments = SegmentReader::new(object.status.size.saturating_sub(request.offset));
        let mut bytes = Vec::new();
        while let Some(mut piece) = payload.read().await.map_err(ended)? {
            while let Some(part) = segments.next(&mut piece).unwrap() {
                match part {
                    ContentPart::Segment(Segment { zeros, .. }) => {
                        bytes.resize(bytes.len() + usize::try_from(zeros).unwrap(), 0);
                    }
                    ContentPart::Data(data) => bytes.extend_from_slice(&data),
                }
            }
        }
        assert!(segments.is_whole());
        Ok((object, bytes.into()))
    }

    pub(crate) async fn read(&self, fid: Fid) -> Bytes {
        self.fetch(FetchRequest { fid, data_version: None, offset: 0 }).await.unwrap().1
    }

    pub(crate) async fn read_dir(
        &self,
        fid: Fid,
        after: Option<Name>,
        entries_max: u32,
    ) -> Result<ReadDirPage, Refused> {
        let body = ReadDirRequest { fid, after, entries_max, unanswered: Vec::new() }.encode();
        let method = ReadDirRequest::METHOD.number();
        let (_, mut payload) = self.raw(method, body, Payload::None, Class::Fetch).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = payload.read().await.map_err(ended)? {
            bytes.extend_from_slice(&piece);
        }
        Ok(ReadDirPage::decode(bytes.into()).unwrap())
    }
}

fn ended(error: PayloadError) -> Refused {
    Refused { error: FsError::Unknown(0), message: error.to_string(), progress: 0 }
}

/// Sends a record without waiting for the answer, as one that comes again.
pub(crate) fn send(peer: &Peer, record: CmlRecord) -> impl Future<Output = ()> + Send + 'static {
    let request = ApplyRequest { comes_again: true, ..ApplyRequest::new(record, None) };
    let (method, class) = (ApplyRequest::METHOD.number(), Class::Store);
    let call = mafs_arpc::Call { class, timeout: None, method, body: request.encode(), payload: Payload::None };
    let reply = peer.call(call).reply();
    async move { drop(reply.await) }
}

pub(crate) fn acknowledge(call: IncomingCall) {
    call.reply(0, BreakReply::default().encode(), Payload::None);
}

/// Makes the payload of a content.
pub(crate) fn whole(content: &[u8]) -> Payload {
    Payload::Bytes(Segment::upload(content))
}

/// Makes the end of the payload of a content.
pub(crate) fn trailer(content: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&ContentHash::of(content).0)
}

/// Makes the payload of the rest of a content, from `offset` on.
pub(crate) fn rest(content: &[u8], offset: usize) -> Payload {
    Payload::Bytes([Segment::of(&content[offset..]), trailer(content)].concat().into())
}

/// Makes the beginning of the payload of a content without holes.
pub(crate) fn header(data: usize) -> Bytes {
    Bytes::copy_from_slice(&Segment { zeros: 0, data: u64::try_from(data).unwrap() }.encode())
}

pub(crate) fn record(id: StoreId, op: CmlOp) -> CmlRecord {
    let time = Timestamp::new(i64::try_from(id.seq).unwrap(), 0).unwrap();
    CmlRecord { id, depends_on: Vec::new(), time, uid: 1000, gid: 1000, removes: None, op }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text.as_bytes().to_vec()).unwrap()
}

pub(crate) fn create(parent: Fid, text: &str, fid: Fid) -> CmlOp {
    CmlOp::Create { parent, name: name(text), fid, kind: Kind::File, mode: Mode::from_bits(0o644), rdev: 0 }
}

pub(crate) fn make_dir(parent: Fid, text: &str, fid: Fid) -> CmlOp {
    CmlOp::MakeDir { parent, name: name(text), fid, mode: Mode::from_bits(0o755) }
}

pub(crate) fn store(fid: Fid, base: Base, size: u64) -> CmlOp {
    CmlOp::Store { fid, base, size, mtime: Timestamp::default() }
}

/// Makes bytes that differ from those of another seed everywhere.
pub(crate) fn noise(seed: u64, size: usize) -> Bytes {
    let mut bytes = vec![0; size];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes.into()
}
