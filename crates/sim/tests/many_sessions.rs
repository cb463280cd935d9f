//! As many sessions as a server takes, on one file.

#[path = "../../server/tests/support/mod.rs"]
mod peers;

use std::time::Duration;

use mafs_proto::{ClientId, CmlOp, SetAttr};
use mafs_server::MemoryStorage;
use peers::{ALICE, Client, acknowledge, open};
use tokio::task::JoinSet;
use tokio::time::Instant;

const SESSIONS: u16 = 1000;

/// A few times there and back: timers have a resolution of 1 ms.
const ROUND: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn a_break_reaches_a_thousand_sessions_in_one_round() {
    let server = open(&MemoryStorage::new(1));
    let mut alice = Client::attached(&server, ALICE).await;
    let root = alice.root();
    let file = alice.create(root, "f").await;
    let mut told = JoinSet::new();
    for number in 0..SESSIONS {
        let mut id = [9; 16];
        id[..2].copy_from_slice(&number.to_be_bytes());
        let mut holder = Client::attached(&server, ClientId(id)).await;
        assert!(holder.renew().await.unwrap());
        holder.lookup(root, "f").await.unwrap().unwrap();
        told.spawn(async move {
            acknowledge(holder.next_break().await.1);
            // Its connection goes with it.
            holder
        });
    }
    alice.renew().await.unwrap();
    let began = Instant::now();
    let set = SetAttr { uid: Some(7), ..SetAttr::default() };
    alice.apply(CmlOp::SetAttr { fid: file, set }).await.unwrap();
    assert!(began.elapsed() <= ROUND, "{SESSIONS} sessions were told within {:?}", began.elapsed());
    assert_eq!(told.join_all().await.len(), usize::from(SESSIONS));
}
