//! A client that controls every byte it sends and when.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::PATIENCE;
use super::wire::{End, Framing, Head, Response, Wire};

#[derive(Debug)]
pub(crate) struct Client {
    wire: Wire,
    framing: Framing,
    interim: Vec<u16>,
}

impl Client {
    pub(crate) async fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.expect("the address accepts connections");
        Self { wire: Wire::new(stream), framing: Framing::Ended, interim: Vec::new() }
    }

    /// Sends bytes. A peer that closes early shows when reading, so errors are passed over.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        drop(self.wire.send(bytes).await);
    }

    /// Sends bytes in pieces, each written by itself.
    pub(crate) async fn send_in_pieces(&mut self, bytes: &[u8], size: usize) {
        for piece in bytes.chunks(size) {
            self.send(piece).await;
            tokio::task::yield_now().await;
        }
    }

    /// Reads the header of the final response to a request with `method`. Interim responses are passed over.
    pub(crate) async fn try_head(&mut self, method: &str) -> Result<Head, End> {
        self.interim.clear();
        loop {
            let head = self.wire.head().await?;
            if (100..200).contains(&head.status()) && head.status() != 101 {
                self.interim.push(head.status());
                continue;
            }
            self.framing = head.response_framing(method);
            return Ok(head);
        }
    }

    /// Reads one interim response.
    pub(crate) async fn interim_response(&mut self) -> u16 {
        self.wire.head().await.expect("an interim response comes").status()
    }

    /// Reads the header of the response to a POST or GET.
    pub(crate) async fn head(&mut self) -> Head {
        self.try_head("POST").await.expect("a response header comes")
    }

    /// The next piece of the body, as much as is there; `None` at its end.
    pub(crate) async fn piece(&mut self) -> Result<Option<Vec<u8>>, End> {
        self.wire.piece(&mut self.framing).await
    }

    /// Reads exactly so many bytes of the body.
    pub(crate) async fn body_bytes(&mut self, count: usize) -> Vec<u8> {
        let body = self.body_at_least(count).await;
        assert_eq!(body.len(), count, "more came than was waited for: {:?}", String::from_utf8_lossy(&body));
        body
    }

    /// Reads at least so many bytes of the body.
    pub(crate) async fn body_at_least(&mut self, count: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < count {
            body.extend(self.piece().await.expect("the body goes on").expect("the body is not over"));
        }
        body
    }

    /// The rest of the body and how it ended.
    pub(crate) async fn rest(&mut self) -> (Vec<u8>, End) {
        self.wire.rest(&mut self.framing).await
    }

    /// Reads a stream of events to its end, which must be whole.
    pub(crate) async fn whole_stream(&mut self) {
        let (body, end) = self.rest().await;
        assert_eq!(end, End::Complete);
        assert!(String::from_utf8_lossy(&body).ends_with("data: [DONE]\n\n"));
    }

    /// Reads one whole response.
    pub(crate) async fn try_response(&mut self, method: &str) -> Result<Response, End> {
        let head = self.try_head(method).await?;
        let (body, end) = self.rest().await;
        Ok(Response { head, body, trailers: self.wire.take_trailers(), end, interim: self.interim.clone() })
    }

    /// Reads one whole response to a POST; `None` when it does not come within `patience`.
    pub(crate) async fn response_within(&mut self, patience: Duration) -> Option<Result<Response, End>> {
        tokio::time::timeout(patience, self.try_response("POST")).await.ok()
    }

    /// Reads one whole response to a POST or GET.
    pub(crate) async fn response(&mut self) -> Response {
        self.try_response("POST").await.expect("a response comes")
    }

    /// Sends a request and reads the response.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Response {
        self.send(request).await;
        let method = request.split(|byte| *byte == b' ').next().unwrap_or_default();
        self.try_response(&String::from_utf8_lossy(method)).await.expect("a response comes")
    }

    /// Waits until the peer closes, and says how; bytes that come before are returned.
    pub(crate) async fn closed(&mut self) -> (Vec<u8>, End) {
        self.closed_within(PATIENCE).await.expect("the peer closes the connection")
    }

    /// Like [`closed`](Self::closed), but `None` when it takes longer than `patience`.
    pub(crate) async fn closed_within(&mut self, patience: Duration) -> Option<(Vec<u8>, End)> {
        let end = async {
            loop {
                if let Err(end) = self.wire.fill().await {
                    return end;
                }
            }
        };
        let end = tokio::time::timeout(patience, end).await.ok()?;
        Some((std::mem::take(&mut self.wire.buffer), end))
    }

    /// Whether nothing comes and the connection stays open for a moment.
    pub(crate) async fn is_quiet_for(&mut self, moment: Duration) -> bool {
        self.wire.buffer.is_empty() && tokio::time::timeout(moment, self.wire.fill()).await.is_err()
    }

    /// Sends FIN and goes on reading.
    pub(crate) async fn half_close(&mut self) {
        self.wire.stream.shutdown().await.expect("an open socket can be half-closed");
    }

    /// Leaves with FIN, or with RST when there is unread data.
    pub(crate) fn close(self) {
        drop(self);
    }

    /// Leaves with RST.
    pub(crate) fn reset(self) {
        self.wire.reset();
    }
}
