//! Lanes: directories that are worked on in order, each by one client, by records that are made beforehand. So every
//! run sends the same bytes, and the state of each lane after each record is known.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use mafs_arpc::Payload;
use mafs_proto::call::{ApplyReply, GetXattrsRequest};
use mafs_proto::{
    Base, ClientId, CmlOp, CmlRecord, Fid, FidRange, Incarnation, Kind, Mode, Object, RenameMode, SetAttr, StoreId,
    VolumeId, XattrMode, XattrName, XattrValue, Xattrs,
};
use mafs_server::MemoryStorage;

use super::{ALICE, Client, Refused, create, make_dir, name, noise, open, record, store, whole};

/// A record and the content that goes with it.
pub(crate) type Step = (CmlRecord, Option<Bytes>);

/// State that a client can see below a lane, by path: objects, contents, extended attributes.
pub(crate) type Seen = BTreeMap<String, (Object, Option<Bytes>, Xattrs)>;

/// Results of an undisturbed run: the records of each lane, and the state before and after each record.
pub(crate) struct Expected {
    pub(crate) lanes: Vec<Vec<Step>>,
    pub(crate) states: Vec<Vec<Seen>>,
}

/// Runs a future in a runtime of its own, and kills all that is left in it.
pub(crate) fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

/// Runs lanes of so many records, all of one client, undisturbed.
pub(crate) fn undisturbed(lengths: &[usize]) -> Expected {
    let lanes: Vec<_> = lengths.iter().map(|length| (ALICE, *length)).collect();
    undisturbed_by(&lanes)
}

/// Runs lanes of several clients undisturbed.
pub(crate) fn undisturbed_by(lanes_of: &[(ClientId, usize)]) -> Expected {
    on_runtime(async {
        let storage = MemoryStorage::new(1);
        let server = open(&storage);
        let mut clients: BTreeMap<ClientId, Client> = BTreeMap::new();
        for (id, _) in lanes_of {
            if !clients.contains_key(id) {
                clients.insert(*id, Client::attached(&server, *id).await);
                clients.get_mut(id).unwrap().acknowledge_all();
            }
        }
        let (mut lanes, mut states) = (Vec::new(), Vec::new());
        for (lane, (id, length)) in lanes_of.iter().enumerate() {
            let client = &clients[id];
            let steps = Lane::new(lane, client).steps(*length);
            let mut after = vec![Seen::new()];
            for step in &steps {
                send(client, step).await;
                after.push(see(client, lane).await);
            }
            lanes.push(steps);
            states.push(after);
        }
        Expected { lanes, states }
    })
}

pub(crate) async fn send(client: &Client, step: &Step) -> ApplyReply {
    try_send(client, step).await.unwrap_or_else(|refused| panic!("{:?}: {refused:?}", step.0))
}

pub(crate) async fn try_send(client: &Client, (record, content): &Step) -> Result<ApplyReply, Refused> {
    client.apply_with(record.clone(), content.as_deref().map_or(Payload::None, whole)).await
}

/// Looks at everything below a lane's directory.
pub(crate) async fn see(client: &Client, lane: usize) -> Seen {
    let mut seen = Seen::new();
    let Some(top) = client.lookup(client.root(), &format!("lane{lane}")).await.unwrap() else { return seen };
    let mut to_visit = vec![(String::new(), top)];
    while let Some((path, object)) = to_visit.pop() {
        let content = match object.status.kind {
            Kind::Directory => {
                let page = client.read_dir(object.fid, None, 1000).await.unwrap();
                to_visit.extend(page.entries.into_iter().map(|entry| (format!("{path}/{}", entry.name), entry.object)));
                None
            }
            _ => Some(client.read(object.fid).await),
        };
        let xattrs = client
            .call(GetXattrsRequest { fid: object.fid, settled: false, unanswered: Vec::new() })
            .await
            .unwrap()
            .xattrs;
        seen.insert(path, (object, content, xattrs));
    }
    seen
}

/// Waits for all of `futures` at the same time.
pub(crate) async fn futures_join<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, output) in futures.iter_mut().zip(&mut outputs).filter(|(_, output)| output.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        match outputs.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// Maker of the records of a lane: a small tree that changes in every way.
struct Lane {
    client: ClientId,
    number: u64,
    fids: FidRange,
    incarnation: Incarnation,
    seq: u64,
    random: u64,
    directories: Vec<(Fid, String)>,
    /// Directory, name, fid, and the record that made its present content.
    files: Vec<(Fid, String, Fid, StoreId)>,
    marked: BTreeSet<Fid>,
}

impl Lane {
    fn new(lane: usize, client: &Client) -> Self {
        let number = lane as u64;
        let attached = client.attached.as_ref().unwrap();
        let mut first = attached.fids.first();
        first.vnode.0 += number * 256;
        let fids = FidRange::new(first, 256).unwrap();
        // Records of several lanes may belong to one client: each lane takes its sequence numbers from a range of its
        // own.
        Self {
            client: client.id,
            number,
            fids,
            incarnation: attached.incarnation,
            seq: number * 1000,
            random: number,
            directories: vec![],
            files: vec![],
            marked: BTreeSet::new(),
        }
    }

    fn steps(mut self, length: usize) -> Vec<Step> {
        let fid = self.fids.take().unwrap();
        let root = Fid::root(VolumeId(fid.volume.0));
        let mut steps = vec![self.step(make_dir(root, &format!("lane{}", self.number), fid), None)];
        self.directories.push((fid, String::new()));
        while steps.len() < length {
            let op = self.op();
            steps.extend(op.map(|(op, content)| self.step(op, content)));
        }
        steps
    }

    fn step(&mut self, op: CmlOp, content: Option<Bytes>) -> Step {
        self.seq += 1;
        let id = StoreId { client: self.client, incarnation: self.incarnation, seq: self.seq };
        (record(id, op), content)
    }

    /// Returns the id that the next record will have.
    fn next_id(&self) -> StoreId {
        StoreId { client: self.client, incarnation: self.incarnation, seq: self.seq + 1 }
    }

    fn op(&mut self) -> Option<(CmlOp, Option<Bytes>)> {
        let (choice, label) = (self.pick(14), format!("n{}", self.seq));
        let at = self.pick(self.directories.len());
        let parent = self.directories[at].0;
        let file = (!self.files.is_empty()).then(|| self.pick(self.files.len()));
        let op = match (choice, file) {
            (0..=2, _) | (_, None) => {
                let fid = self.fids.take()?;
                self.files.push((parent, label.clone(), fid, self.next_id()));
                create(parent, &label, fid)
            }
            (3, Some(_)) if self.directories.len() < 5 => {
                let fid = self.fids.take()?;
                self.directories.push((fid, label.clone()));
                make_dir(parent, &label, fid)
            }
            (4, Some(file)) => {
                let (parent, label, fid, _) = self.files.swap_remove(file);
                self.files.retain(|(_, _, other, _)| *other != fid);
                CmlOp::Remove { parent, name: name(&label), fid }
            }
            (5..=6, Some(file)) => return self.rename(file, parent, &label),
            (7, Some(file)) => {
                let set = SetAttr { mode: Some(Mode::from_bits(0o600)), ..SetAttr::default() };
                CmlOp::SetAttr { fid: self.files[file].2, set }
            }
            (8, Some(file)) => self.set_xattr(self.files[file].2),
            (9, Some(_)) => self.mark(parent),
            (_, Some(file)) => return Some(self.store(file)),
        };
        Some((op, None))
    }

    fn rename(&mut self, file: usize, to_parent: Fid, label: &str) -> Option<(CmlOp, Option<Bytes>)> {
        let target = self.pick(self.files.len());
        let (from_parent, from_name, fid, made) = self.files[file].clone();
        let (to_parent, to_name, replaced) = match self.pick(2) {
            0 if target != file => {
                let (parent, name, fid, _) = self.files[target].clone();
                (parent, name, Some(fid))
            }
            _ => (to_parent, label.to_owned(), None),
        };
        self.files[file] = (to_parent, to_name.clone(), fid, made);
        if replaced.is_some() {
            self.files.remove(target);
        }
        let (from_name, to_name) = (name(&from_name), name(&to_name));
        let mode = RenameMode::Replace;
        Some((CmlOp::Rename { from_parent, from_name, to_parent, to_name, fid, replaced, mode }, None))
    }

    /// Sets the mark of a directory, or removes it.
    fn mark(&mut self, fid: Fid) -> CmlOp {
        let name = XattrName::new(&b"user.mark"[..]).unwrap();
        match self.marked.insert(fid) {
            true => CmlOp::SetXattr { fid, name, value: XattrValue::default(), mode: XattrMode::Create },
            false => {
                self.marked.remove(&fid);
                CmlOp::RemoveXattr { fid, name }
            }
        }
    }

    /// Sets one of three attributes.
    fn set_xattr(&mut self, fid: Fid) -> CmlOp {
        let name = XattrName::new(format!("user.{}", self.pick(3)).into_bytes()).unwrap();
        let value = XattrValue::new(noise(self.seq, [0, 10, 9_000][self.pick(3)])).unwrap();
        CmlOp::SetXattr { fid, name, value, mode: XattrMode::Either }
    }

    fn store(&mut self, file: usize) -> (CmlOp, Option<Bytes>) {
        let size = [0, 10, 4000, 16_384, 16_385, 40_000][self.pick(6)];
        let next = self.next_id();
        let (_, _, fid, made) = &mut self.files[file];
        let op = store(*fid, Base::Record(std::mem::replace(made, next)), size as u64);
        (op, Some(noise(next.seq, size)))
    }

    /// Picks a number below `count`, the same in every run.
    fn pick(&mut self, count: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.random >> 33) % count as u64).unwrap()
    }
}
