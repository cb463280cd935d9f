//! arpc by itself: the cost of a call, and the rate of payloads, over memory, and over gRPC and QUIC on loopback.
#![allow(clippy::expect_used, reason = "a step that fails ends the measurement")]

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mafs_arpc::carrier::grpc::{Address, Listener, connect};
use mafs_arpc::carrier::{Carrier, bare, memory, quic};
use mafs_arpc::{BootClock, Call, Config, Incoming, IncomingCall, Payload, Peer};
use mafs_proto::Class;
use tokio::runtime::Runtime;

const ECHO: u32 = 1;
const DOWNLOAD: u32 = 2;
const UPLOAD: u32 = 3;

const PAYLOAD_BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 256 << 10;
/// Size of the largest chunk that the engine makes.
const CHUNK_BYTES: usize = 64 << 10;

fn arpc(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let carriers = [
        ("memory", memory::pair(Duration::ZERO)),
        ("grpc", runtime.block_on(grpc_pair())),
        ("quic", runtime.block_on(quic_pair())),
    ];
    for (name, (near, far)) in carriers {
        // The far end's own handle keeps its side of the connection open.
        let (_keep, peer) = runtime.block_on(async {
            let (keep, incoming) = Peer::start(far, Config::default(), Arc::new(BootClock));
            tokio::spawn(serve(incoming));
            (keep, Peer::start(near, Config::default(), Arc::new(BootClock)).0)
        });
        measure(criterion, &runtime, name, &peer);
    }
    for (name, (near, far)) in [("grpc", runtime.block_on(grpc_pair())), ("quic", runtime.block_on(quic_pair()))] {
        runtime.spawn(bare::answer(far));
        measure_bare(criterion, &runtime, name, near);
    }
}

/// Measures the carrier without an engine.
fn measure_bare(criterion: &mut Criterion, runtime: &Runtime, name: &str, mut carrier: Carrier) {
    let small = Bytes::from_static(&[7; 64]);
    criterion.bench_function(&format!("bare {name}/echo of 64 bytes"), |bencher| {
        bencher.iter(|| runtime.block_on(bare::send(&mut carrier, &small, 1)).expect("an answer"));
    });
    let mut group = criterion.benchmark_group(format!("bare {name}/64 MB"));
    group.throughput(Throughput::Bytes(PAYLOAD_BYTES as u64)).sample_size(10);
    group.measurement_time(Duration::from_secs(5));
    let chunk = Bytes::from(vec![1; CHUNK_BYTES]);
    group.bench_function("upload", |bencher| {
        let count = PAYLOAD_BYTES / CHUNK_BYTES;
        bencher.iter(|| runtime.block_on(bare::send(&mut carrier, &chunk, count)).expect("an answer"));
    });
    group.finish();
}

fn measure(criterion: &mut Criterion, runtime: &Runtime, name: &str, peer: &Peer) {
    criterion.bench_function(&format!("{name}/echo of 64 bytes"), |bencher| {
        bencher.iter(|| runtime.block_on(call(peer, Class::Control, ECHO, Payload::None)));
    });
    let mut group = criterion.benchmark_group(format!("{name}/64 MB"));
    group.throughput(Throughput::Bytes(PAYLOAD_BYTES as u64)).sample_size(10);
    group.measurement_time(Duration::from_secs(5));
    group.bench_function("download", |bencher| {
        bencher.iter(|| assert_eq!(runtime.block_on(call(peer, Class::Fetch, DOWNLOAD, Payload::None)), PAYLOAD_BYTES));
    });
    group.bench_function("upload", |bencher| {
        bencher.iter(|| runtime.block_on(async { call(peer, Class::Store, UPLOAD, payload()).await }));
    });
    group.finish();
}

/// Makes a call and returns the length of the reply's payload.
async fn call(peer: &Peer, class: Class, method: u32, payload: Payload) -> usize {
    let body = Bytes::from_static(&[7; 64]);
    let handle = peer.call(Call { class, timeout: None, method, body, payload });
    let mut reply = handle.reply().await.expect("a reply");
    let mut length = 0;
    while let Some(piece) = reply.payload.read().await.expect("the payload") {
        length += black_box(piece).len();
    }
    length
}

async fn serve(mut incoming: Incoming) {
    while let Some(call) = incoming.next().await {
        tokio::spawn(answer(call));
    }
}

async fn answer(mut call: IncomingCall) {
    match call.method {
        DOWNLOAD => call.reply(0, Bytes::new(), payload()),
        UPLOAD => {
            let mut length = 0;
            while let Some(piece) = call.payload.read().await.expect("the payload") {
                length += black_box(piece).len();
            }
            assert_eq!(length, PAYLOAD_BYTES);
            call.reply(0, Bytes::new(), Payload::None);
        }
        _ => {
            let body = call.body.clone();
            call.reply(0, body, Payload::None);
        }
    }
}

/// Returns a payload that a task produces piece by piece.
fn payload() -> Payload {
    let (mut writer, payload) = Payload::stream();
    tokio::spawn(async move {
        let piece = Bytes::from(vec![1; PIECE_BYTES]);
        for _ in 0..PAYLOAD_BYTES / PIECE_BYTES {
            writer.write(piece.clone()).await.expect("a reader");
        }
        writer.finish();
    });
    payload
}

async fn grpc_pair() -> (Carrier, Carrier) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut listener = Listener::bind_tcp(address).await.expect("a port");
    let port = listener.local_address().expect("an address").port();
    let near = connect(&Address::Tcp(format!("127.0.0.1:{port}"))).await.expect("a connection");
    let far = listener.accept().await.expect("a connection");
    // A listener that is dropped closes its connections.
    tokio::spawn(async move { while listener.accept().await.is_some() {} });
    (near, far)
}

async fn quic_pair() -> (Carrier, Carrier) {
    let key = quic::ServerKey::generate().expect("a key");
    let mut listener = quic::Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), &key).expect("a port");
    let address = listener.local_address().to_string();
    let (near, _) = quic::connect(&address, None).await.expect("a connection");
    let far = listener.accept().await.expect("a connection");
    tokio::spawn(async move { while listener.accept().await.is_some() {} });
    (near, far)
}

criterion_group!(benches, arpc);
criterion_main!(benches);
