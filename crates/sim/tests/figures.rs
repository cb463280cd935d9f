//! Figures 5 and 6 of the MAFS paper, from what really happens: docs/protocol.md, "An update on its way", shows them.

#![allow(clippy::expect_used, reason = "clippy sees helpers of tests outside of #[test]")]

#[allow(dead_code, reason = "one binary uses a part")]
mod support;

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mafs_arpc::link::Profile;
use mafs_client::vfs::{RecordState, Vfs, Writeback};
use mafs_proto::VnodeId;
use mafs_sim::{Path, World};
use tokio::time::{Instant, sleep};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::support::{WRITE, clients, configured, content, look, open_as, simulate, write_and_close};

const PAGE: &str = include_str!("../../../docs/protocol.md");

/// The writer's link: 64 KB/s, and its round trip.
const RATE: u64 = 64_000;
const WRITER_RTT: Duration = Duration::from_millis(100);
const READER_RTT: Duration = Duration::from_millis(20);
/// The file that is written, and the content that waits before it.
const FILE_BYTES: usize = 64 << 10;
const QUEUE_BYTES: usize = 256 << 10;
/// The page tells times as exactly as this.
const STEP_MS: u128 = 10;

/// The party that does something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Writer,
    Server,
    Reader,
}

/// Events that are logged by server and client, in the words of the page.
const LOGGED: [(&str, &str, Who, &str); 7] = [
    ("mafs_server", "announced", Who::Server, "knows of A"),
    ("mafs_client", "promises of the server are broken", Who::Reader, "discards A"),
    ("mafs_client", "announced", Who::Writer, "hears that nobody uses the old A"),
    ("mafs_server", "waits for announced records", Who::Server, "lets that wait"),
    ("mafs_server", "pull", Who::Server, "asks for A"),
    ("mafs_client", "somebody waits for what was announced", Who::Writer, "is asked for A and sends it first"),
    ("mafs_server", "an announced record is applied", Who::Server, "has A"),
];

/// Held by the test that listens. While there is one listener, tracing-core takes a place in the code that is first
/// reached on another thread for one that nobody listens to, for good (`Rebuilder::JustOne`).
static LISTENING: Mutex<()> = Mutex::new(());

/// The events and their times.
#[derive(Clone)]
struct Figure {
    begun: Instant,
    lines: Arc<Mutex<String>>,
}

impl Figure {
    fn begin() -> Self {
        Self { begun: Instant::now(), lines: Arc::default() }
    }

    fn note(&self, who: Who, what: &str) {
        let after_ms = (self.begun.elapsed().as_millis() + STEP_MS / 2) / STEP_MS * STEP_MS;
        // The lanes of the paper: the writer at the left, the readers at the right.
        let place = match who {
            Who::Writer => 0,
            Who::Server => 22,
            Who::Reader => 44,
        };
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(lines, "{after_ms:>5} ms  {:place$}{what}", "").expect("a line");
    }

    /// Compares with the block of this name on the page.
    fn compare(&self, name: &str) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        println!("{name}:\n{lines}");
        let (_, behind) = PAGE.split_once(&format!("```{name}\n")).expect("the block on the page");
        let (shown, _) = behind.split_once("```").expect("its end");
        assert_eq!(shown, lines.as_str(), "docs/protocol.md shows something else for {name}");
    }
}

/// The message of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Figure {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("mafs_")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        let is_told =
            |told: &&(&str, &str, Who, &str)| event.metadata().target().starts_with(told.0) && message.0 == told.1;
        if let Some((_, _, who, what)) = LOGGED.iter().find(is_told) {
            self.note(*who, what);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A writer at the end of a slow link with much to send, and a reader near the server that has the first version of A.
async fn prepared(writeback: Writeback) -> World {
    let link = Profile::steady(RATE, WRITER_RTT);
    let paths = vec![Path::Link(Box::new(link)), Path::Delay(READER_RTT / 2)];
    let world = World::start_over(1, paths, false).await.expect("a world");
    let world = configured(world, |machine| machine.set_writeback(writeback)).await;
    let [writer, reader] = clients(&world);
    write_and_close(&writer, "A", vec![1; FILE_BYTES]).await;
    writer.sync().await.expect("a sync");
    assert_eq!(content(&reader, "A").await, vec![1; FILE_BYTES]);
    write_and_close(&writer, "queued", vec![9; QUEUE_BYTES]).await;
    // The link is full of it by then.
    sleep(Duration::from_secs(1)).await;
    world
}

async fn save(figure: &Figure, writer: &Vfs) -> VnodeId {
    let vnode = look(writer, "A").await.fid.vnode;
    let file = open_as(writer, "A", WRITE).await;
    writer.write(file, 0, vec![2; FILE_BYTES].into()).await.expect("a write");
    writer.flush(file).await.expect("a close");
    writer.release(file);
    figure.note(Who::Writer, "closes A (logged)");
    vnode
}

async fn open(figure: &Figure, reader: &Vfs) {
    figure.note(Who::Reader, "opens A");
    let found = content(reader, "A").await;
    assert!(found.iter().all(|byte| *byte == found[0]), "a mixture");
    figure.note(Who::Reader, if found[0] == 1 { "has read the old A" } else { "has read the new A" });
}

/// Notes when A begins to be sent, and when the server has it.
async fn follow(figure: &Figure, writer: &Vfs, vnode: VnodeId) {
    let state = || writer.object_report(vnode).expect("a state").unsent;
    while !matches!(state(), Some(RecordState::Sending { .. })) {
        sleep(Duration::from_millis(1)).await;
    }
    figure.note(Who::Writer, "begins to send A");
    while state().is_some() {
        sleep(Duration::from_millis(1)).await;
    }
    figure.note(Who::Writer, "hears that the server has A");
}

/// Figure 5, and 6 (a).
#[test]
fn without_announcements_others_read_the_old_version_until_the_log_is_sent() {
    let _alone = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    simulate(async {
        let world = prepared(Writeback::Async).await;
        let [writer, reader] = clients(&world);
        let figure = Figure::begin();
        let _told = tracing::subscriber::set_default(figure.clone());
        let vnode = save(&figure, &writer).await;
        let reading = async {
            sleep(Duration::from_millis(500)).await;
            open(&figure, &reader).await;
        };
        tokio::join!(follow(&figure, &writer, vnode), reading);
        open(&figure, &reader).await;
        figure.compare("timeline-async");
    });
}

/// Figure 6 (b).
#[test]
fn announced_versions_are_asked_for_by_who_opens_them() {
    let _alone = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    simulate(async {
        let world = prepared(Writeback::Sirp).await;
        let [writer, reader] = clients(&world);
        let figure = Figure::begin();
        let _told = tracing::subscriber::set_default(figure.clone());
        save(&figure, &writer).await;
        sleep(Duration::from_millis(500)).await;
        open(&figure, &reader).await;
        figure.compare("timeline-sirp");
    });
}
