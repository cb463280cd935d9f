//! Messages as lines: framing, bounds, versions.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::VERSION;

/// The longest question: a path of 4,096 bytes, each as a number, fits.
pub(super) const REQUEST_BYTES_MAX: u64 = 20 * 1024;

/// The longest answer: a status with [`REFUSED_MAX`] refused updates whose paths are 4,096 bytes each fits.
///
/// [`REFUSED_MAX`]: super::server::REFUSED_MAX
pub(super) const RESPONSE_BYTES_MAX: u64 = 16 * 1024 * 1024;

#[derive(Serialize)]
struct Sealed<T> {
    version: u32,
    message: T,
}

#[derive(Deserialize)]
struct Seal {
    version: u32,
}

#[derive(Deserialize)]
struct Opened<T> {
    message: T,
}

/// Writes one message.
pub(super) async fn write<T: Serialize>(to: &mut (impl AsyncWrite + Unpin), message: T) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Sealed { version: VERSION, message })?;
    line.push(b'\n');
    to.write_all(&line).await
}

/// Reads one message; `None` at the end of the stream.
pub(super) async fn read<T: DeserializeOwned>(
    from: &mut (impl AsyncBufRead + Unpin),
    bytes_max: u64,
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(bytes_max).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop() != Some(b'\n') {
        return Err(invalid(format!("the message is cut short, or longer than {bytes_max} bytes")));
    }
    // The version is read first: a message of another version need not make sense.
    let seal: Seal = serde_json::from_slice(&line).map_err(|error| invalid(format!("not a message: {error}")))?;
    if seal.version != VERSION {
        return Err(invalid(format!("the message has version {}, this program speaks {VERSION}", seal.version)));
    }
    let opened: Opened<T> =
        serde_json::from_slice(&line).map_err(|error| invalid(format!("not a known message: {error}")))?;
    Ok(Some(opened.message))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::super::{Request, SyncRequest};
    use super::*;

    async fn parse(mut line: &[u8]) -> io::Result<Option<Request>> {
        read(&mut line, REQUEST_BYTES_MAX).await
    }

    #[tokio::test]
    async fn a_message_survives_the_wire() {
        let mut wire = Vec::new();
        write(&mut wire, Request::Status).await.unwrap();
        assert_eq!(wire, b"{\"version\":8,\"message\":\"status\"}\n");
        assert_eq!(parse(&wire).await.unwrap(), Some(Request::Status));
        let limit = Request::Limit("store=64k".parse().unwrap());
        let mut wire = Vec::new();
        write(&mut wire, limit.clone()).await.unwrap();
        assert_eq!(wire, b"{\"version\":8,\"message\":{\"limit\":\"store=65536\"}}\n");
        assert_eq!(parse(&wire).await.unwrap(), Some(limit));
        assert_eq!(parse(b"").await.unwrap(), None);
        let longest = Request::Sync(SyncRequest { below: vec![0xff; 4096], ticket: u64::MAX });
        let mut wire = Vec::new();
        write(&mut wire, longest.clone()).await.unwrap();
        assert_eq!(parse(&wire).await.unwrap(), Some(longest));
    }

    #[tokio::test]
    async fn bad_lines_give_clear_errors() {
        let long = [b"{\"version\":8,\"message\":\"".as_slice(), &vec![b'x'; 25_000], b"\"}\n"].concat();
        for (line, expected) in [
            (b"{\"version\":8,\"message\":\"status\"}".as_slice(), "cut short"),
            (long.as_slice(), "longer than 20480 bytes"),
            (b"\xff\n", "not a message"),
            (b"{\"version\":9,\"message\":{\"new\":1}}\n", "version 9, this program speaks 8"),
            (b"{\"version\":8,\"message\":\"fly\"}\n", "not a known message"),
            (b"{\"version\":8,\"message\":{\"limit\":\"control=64k\"}}\n", "`control` cannot be limited"),
        ] {
            let error = parse(line).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn proptest_arbitrary_bytes_are_refused_without_panic(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 1..200),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            proptest::prop_assert!(runtime.block_on(parse(&bytes)).is_err());
        }
    }
}
