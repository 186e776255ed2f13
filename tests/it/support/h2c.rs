//! An HTTP/2 client without TLS (prior knowledge).

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;

use super::PATIENCE;
use super::wire::{End, Head, Response};

#[derive(Debug, Clone)]
pub(crate) struct H2Client {
    send: SendRequest<Bytes>,
    authority: SocketAddr,
}

impl H2Client {
    pub(crate) async fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.expect("the address accepts connections");
        stream.set_nodelay(true).expect("a connected socket takes the option");
        let (send, connection) = h2::client::handshake(stream).await.expect("HTTP/2 is spoken");
        // Ends with the last handle; what is wrong with the connection shows in the streams.
        tokio::spawn(connection);
        Self { send, authority: to }
    }

    /// Sends a POST and reads the response.
    pub(crate) async fn post(&self, path: &str, body: &[u8]) -> Response {
        self.post_in_pieces(path, body, usize::MAX, Duration::ZERO).await
    }

    /// Sends a POST in pieces of `size` bytes with a pause between them, and reads the response.
    pub(crate) async fn post_in_pieces(&self, path: &str, body: &[u8], size: usize, pause: Duration) -> Response {
        let exchange = self.exchange("POST", path, body, size, pause);
        tokio::time::timeout(PATIENCE, exchange).await.expect("a response comes").expect("the stream is not reset")
    }

    /// Sends a GET and reads the response.
    pub(crate) async fn get(&self, path: &str) -> Response {
        let exchange = self.exchange("GET", path, b"", 1, Duration::ZERO);
        tokio::time::timeout(PATIENCE, exchange).await.expect("a response comes").expect("the stream is not reset")
    }

    /// Sends a POST with further header fields and reads the response. Dropping it resets the stream.
    pub(crate) async fn try_post(
        &self,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response, h2::Error> {
        let request = self.request("POST", path);
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let exchange = self.send(request, body, usize::MAX, Duration::ZERO);
        tokio::time::timeout(PATIENCE, exchange).await.expect("a response comes")
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
        size: usize,
        pause: Duration,
    ) -> Result<Response, h2::Error> {
        self.send(self.request(method, path), body, size, pause).await
    }

    fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(format!("http://{}{path}", self.authority))
    }

    async fn send(
        &self,
        request: http::request::Builder,
        body: &[u8],
        size: usize,
        pause: Duration,
    ) -> Result<Response, h2::Error> {
        let mut send = self.send.clone().ready().await?;
        let request = request.body(()).expect("the parts are valid");
        let (response, mut stream) = send.send_request(request, body.is_empty())?;
        let mut left = Bytes::copy_from_slice(body);
        while !left.is_empty() {
            let piece = left.split_to(size.min(left.len()));
            send_piece(&mut stream, piece, left.is_empty()).await?;
            if !left.is_empty() && !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        read(response.await?).await
    }

    /// Begins a request whose response is read by the caller.
    pub(crate) async fn begin(&self, path: &str, body: &[u8]) -> http::Response<h2::RecvStream> {
        let mut send = self.send.clone().ready().await.expect("the connection is open");
        let request = self.request("POST", path);
        let (response, mut stream) =
            send.send_request(request.body(()).expect("the parts are valid"), false).expect("the connection is open");
        stream.send_data(Bytes::copy_from_slice(body), true).expect("the stream is open");
        tokio::time::timeout(PATIENCE, response).await.expect("a header comes").expect("the stream is not reset")
    }
}

async fn send_piece(stream: &mut h2::SendStream<Bytes>, mut piece: Bytes, is_last: bool) -> Result<(), h2::Error> {
    while !piece.is_empty() {
        stream.reserve_capacity(piece.len());
        let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let Some(capacity) = capacity.transpose()? else { return Ok(()) };
        let part = piece.split_to(capacity.min(piece.len()));
        stream.send_data(part, is_last && piece.is_empty())?;
    }
    Ok(())
}

async fn read(response: http::Response<h2::RecvStream>) -> Result<Response, h2::Error> {
    let (parts, mut stream) = response.into_parts();
    let value = |value: &http::HeaderValue| value.as_bytes().iter().copied().map(char::from).collect();
    let fields = parts.headers.iter().map(|(name, field)| (name.to_string(), value(field))).collect();
    let head = Head { line: format!("HTTP/2 {}", parts.status.as_u16()), fields };
    let mut body = Vec::new();
    let mut end = End::Complete;
    while let Some(piece) = stream.data().await {
        let Ok(piece) = piece else {
            end = End::Reset;
            break;
        };
        stream.flow_control().release_capacity(piece.len())?;
        body.extend(piece);
    }
    let trailers = if end == End::Complete { stream.trailers().await? } else { None };
    let trailers = trailers.iter().flatten().map(|(name, field)| (name.to_string(), value(field))).collect();
    Ok(Response { head, body, trailers, end, interim: Vec::new() })
}
