//! Writes to a connection at once, and keeps what its reader does not take yet.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pingora::protocols::Stream;
use tokio::io::AsyncWrite;

/// Parts up to this length together are put together before they are written, in bytes: for the kernel one piece is cheaper
/// than several.
pub(super) const SHORT_BYTES: usize = 4096;

thread_local! {
    /// Where short parts are put together.
    static TOGETHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Writes as much of the parts as is taken.
fn write(stream: &mut Stream, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
    let stream = Pin::new(stream);
    match parts {
        [part] => stream.poll_write(cx, part),
        parts if parts.iter().map(|part| part.len()).sum::<usize>() <= SHORT_BYTES => {
            TOGETHER.with_borrow_mut(|together| {
                together.clear();
                for part in parts {
                    together.extend_from_slice(part);
                }
                stream.poll_write(cx, together)
            })
        }
        parts => stream.poll_write_vectored(cx, parts),
    }
}

/// What is still to be written.
#[derive(Debug, Default)]
pub(super) struct Output {
    pending: Vec<u8>,
    /// Bytes of it that have been.
    written: usize,
    /// The connection has been given something that may still lie there.
    is_unflushed: bool,
}

impl Output {
    /// Whether everything has been written.
    pub(super) fn is_done(&self) -> bool {
        self.pending.is_empty() && !self.is_unflushed
    }

    /// Writes the parts behind what is still to be written. What is not taken now is kept; see [`Self::poll_done`].
    pub(super) fn put(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
        parts: &mut [IoSlice<'_>],
    ) -> io::Result<()> {
        let mut parts = parts;
        IoSlice::advance_slices(&mut parts, 0);
        if self.pending.is_empty() {
            while !parts.is_empty() {
                match write(stream, cx, parts) {
                    Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                    Poll::Ready(Ok(length)) => IoSlice::advance_slices(&mut parts, length),
                    Poll::Ready(Err(error)) => return Err(error),
                    Poll::Pending => break,
                }
            }
            self.is_unflushed = true;
        }
        for part in &*parts {
            self.pending.extend_from_slice(part);
        }
        match self.poll_done(stream, cx) {
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) | Poll::Pending => Ok(()),
        }
    }

    /// Writes on, until everything has been.
    pub(super) fn poll_done(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.pending.len() {
            let length = ready!(Pin::new(&mut *stream).poll_write(cx, &self.pending[self.written..]))?;
            if length == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += length;
            self.is_unflushed = true;
        }
        if !self.pending.is_empty() {
            (self.pending, self.written) = (Vec::new(), 0);
        }
        if self.is_unflushed {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}
