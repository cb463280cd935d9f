//! The first bytes of the other end, which tell a stranger from a server whose connection was lost.
//!
//! A stranger may answer the first bytes and close while the next ones are on their way. Writing these fails, and the
//! stranger's answer would not be read; so a failed write is left for the read to tell.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The header of the first frame of every HTTP/2 server, behind its length: SETTINGS without flags, of the connection
/// (RFC 9113 sections 3.4 and 4.1).
const SETTINGS: [u8; 6] = [4, 0, 0, 0, 0, 0];
const LENGTH_BYTES: usize = 3;
const GREETING_BYTES: usize = LENGTH_BYTES + SETTINGS.len();

/// The first bytes that the other end has said.
#[derive(Clone, Default)]
pub(super) struct Greeting(Arc<Mutex<Vec<u8>>>);

impl Greeting {
    /// Whether something was said that is no HTTP/2.
    pub(super) fn is_strange(&self) -> bool {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !said.is_empty() && said.get(LENGTH_BYTES..) != Some(&SETTINGS)
    }

    fn hear(&self, said: &[u8]) {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = GREETING_BYTES - heard.len();
        heard.extend(said.iter().take(missing));
    }
}

/// A connection whose greeting is heard, and whose writes do not fail because the other end has closed or reset it:
/// reading tells, after the last bytes of the other end.
pub(super) struct Heard<T> {
    pub(super) connection: T,
    pub(super) greeting: Greeting,
}

/// Returns the result of a write of `bytes` bytes, as it is told to the writer.
fn told(written: io::Result<usize>, bytes: usize) -> io::Result<usize> {
    match written {
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(bytes),
        written => written,
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Heard<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.connection).poll_read(cx, buffer))?;
        self.greeting.hear(buffer.filled().get(before..).unwrap_or_default());
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Heard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.connection).poll_write(cx, bytes));
        Poll::Ready(told(written, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.connection).poll_write_vectored(cx, slices));
        Poll::Ready(told(written, slices.iter().map(|slice| slice.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(cx)
    }
}
