//! A plain upload: one gRPC stream, as fast as it goes, with no engine above it.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mafs_arpc::carrier::bare;
use mafs_arpc::carrier::grpc::{Address, Listener, connect};

const PIECE_BYTES: usize = 16 << 10;

pub(crate) async fn serve(address: &str) -> io::Result<()> {
    let address = address.parse().map_err(io::Error::other)?;
    let mut listener = Listener::bind_tcp(address).await.map_err(io::Error::other)?;
    while let Some(carrier) = listener.accept().await {
        tokio::spawn(bare::answer(carrier));
    }
    Ok(())
}

/// Prints how many bytes per second arrived.
pub(crate) async fn upload(address: &str, bytes: usize) -> io::Result<()> {
    let address = Address::Tcp(address.to_owned());
    let mut carrier = loop {
        match connect(&address).await {
            Ok(carrier) => break carrier,
            // The server has just been started.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    };
    let (start, count) = (Instant::now(), bytes / PIECE_BYTES);
    let sent = bare::send(&mut carrier, &Bytes::from(vec![1; PIECE_BYTES]), count).await;
    sent.ok_or_else(|| io::Error::other("the connection ended"))?;
    #[allow(clippy::cast_precision_loss, reason = "some megabytes")]
    let rate = (count * PIECE_BYTES) as f64 / start.elapsed().as_secs_f64();
    println!("{rate}");
    Ok(())
}
