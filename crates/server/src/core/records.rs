//! Records: the parts of the index beside objects and names: the volume's counters and its clients.

use bytes::Bytes;
use mafs_proto::{ChangeNumber, Incarnation, StoreId, Wire};
use prost::Message;

use super::Refusal;

/// The counters of a volume; every transaction writes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VolumeState {
    /// The last change.
    pub(crate) change: ChangeNumber,
    /// The next block of vnode numbers to grant.
    pub(crate) next_block: u64,
    /// Bytes of all files.
    pub(crate) used_bytes: u64,
    /// Objects, the root included.
    pub(crate) objects: u64,
    /// Vnode numbers for objects that the server makes itself: the next one, and the first behind them.
    pub(crate) own_vnodes: [u64; 2],
}

/// A client that has attached at least once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientState {
    /// Its last life.
    pub(crate) incarnation: Incarnation,
    /// Replies below this one have arrived.
    pub(crate) confirmed_below: Option<StoreId>,
    /// Replies kept for it.
    pub(crate) replies: u64,
    /// Its host name, to show to people.
    pub(crate) name: String,
    /// Whether it may hold promises.
    pub(crate) has_session: bool,
    /// Number of fids by which it means other objects.
    pub(crate) aliases: u64,
    /// The decision on its removals without a connection.
    pub(crate) judged: Option<Judged>,
}

/// Decision on the removals of a client that could not ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Judged {
    /// Last record of the removals that it is about.
    pub(crate) up_to: StoreId,
    /// Time under which the removed objects go to the trash, in seconds; `None`: the removals are done.
    pub(crate) trash: Option<i64>,
}

impl VolumeState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let message = VolumeMessage {
            change: self.change.0,
            next_block: self.next_block,
            used_bytes: self.used_bytes,
            objects: self.objects,
            next_own: self.own_vnodes[0],
            end_own: self.own_vnodes[1],
        };
        message.encode_to_vec()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let message = VolumeMessage::decode(bytes).map_err(|_| Refusal::damaged("the volume's counters"))?;
        Ok(Self {
            change: ChangeNumber(message.change),
            next_block: message.next_block,
            used_bytes: message.used_bytes,
            objects: message.objects,
            own_vnodes: [message.next_own, message.end_own],
        })
    }
}

impl ClientState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let message = ClientMessage {
            incarnation: self.incarnation.0,
            confirmed_below: self.confirmed_below.map(|id| Wire::encode(&id)).unwrap_or_default(),
            replies: self.replies,
            name: self.name.clone(),
            has_session: self.has_session,
            aliases: self.aliases,
            judged_up_to: self.judged.map(|judged| Wire::encode(&judged.up_to)).unwrap_or_default(),
            trash_s: self.judged.and_then(|judged| judged.trash),
        };
        message.encode_to_vec()
    }

    pub(crate) fn decode(bytes: Vec<u8>) -> Result<Self, Refusal> {
        let damaged = || Refusal::damaged("the record of a client");
        let message = ClientMessage::decode(Bytes::from(bytes)).map_err(|_| damaged())?;
        let confirmed_below = match &message.confirmed_below[..] {
            [] => None,
            _ => Some(StoreId::decode(message.confirmed_below).map_err(|_| damaged())?),
        };
        let judged = match &message.judged_up_to[..] {
            [] => None,
            _ => {
                let up_to = StoreId::decode(message.judged_up_to).map_err(|_| damaged())?;
                Some(Judged { up_to, trash: message.trash_s })
            }
        };
        Ok(Self {
            incarnation: Incarnation(message.incarnation),
            confirmed_below,
            replies: message.replies,
            name: message.name,
            has_session: message.has_session,
            aliases: message.aliases,
            judged,
        })
    }
}

#[derive(Clone, PartialEq, Message)]
struct VolumeMessage {
    #[prost(uint64, tag = "1")]
    change: u64,
    #[prost(uint64, tag = "2")]
    next_block: u64,
    #[prost(uint64, tag = "3")]
    used_bytes: u64,
    #[prost(uint64, tag = "4")]
    objects: u64,
    #[prost(uint64, tag = "5")]
    next_own: u64,
    #[prost(uint64, tag = "6")]
    end_own: u64,
}

#[derive(Clone, PartialEq, Message)]
struct ClientMessage {
    #[prost(uint64, tag = "1")]
    incarnation: u64,
    #[prost(bytes = "bytes", tag = "2")]
    confirmed_below: Bytes,
    #[prost(uint64, tag = "3")]
    replies: u64,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(bool, tag = "5")]
    has_session: bool,
    #[prost(uint64, tag = "6")]
    aliases: u64,
    #[prost(bytes = "bytes", tag = "7")]
    judged_up_to: Bytes,
    #[prost(sint64, optional, tag = "8")]
    trash_s: Option<i64>,
}
