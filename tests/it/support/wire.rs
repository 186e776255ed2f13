//! HTTP/1.1 as bytes on a socket, for both sides. Strict: what is not framed as RFC 9112 says is reported.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::PATIENCE;

/// How a message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// As its framing says.
    Complete,
    /// The connection ended (FIN) before the message did.
    Truncated,
    /// The connection was reset.
    Reset,
    /// The bytes are no HTTP/1.1.
    Garbage(String),
}

/// The first line and the header fields of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// Request line or status line.
    pub(crate) line: String,
    /// Names as they came, values without surrounding blanks.
    pub(crate) fields: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, End> {
        // Latin-1, so that no byte is lost.
        let text: String = bytes.iter().copied().map(char::from).collect();
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let mut fields = Vec::new();
        for field in lines.filter(|line| !line.is_empty()) {
            let (name, value) =
                field.split_once(':').ok_or_else(|| End::Garbage(format!("no colon in header line {field:?}")))?;
            fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
        }
        Ok(Self { line, fields })
    }

    /// All values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// The first value of a field.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// The status code of a response, 0 when there is none.
    pub(crate) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    fn is_chunked(&self) -> bool {
        self.get("transfer-encoding").is_some_and(|value| value.to_ascii_lowercase().ends_with("chunked"))
    }

    fn content_length(&self) -> Option<usize> {
        self.get("content-length").and_then(|value| value.parse().ok())
    }

    /// How the body of this request is framed.
    pub(crate) fn request_framing(&self) -> Framing {
        if self.is_chunked() { Framing::Chunked(0) } else { Framing::Length(self.content_length().unwrap_or(0)) }
    }

    /// How the body of this response to a request with `method` is framed.
    pub(crate) fn response_framing(&self, method: &str) -> Framing {
        if method == "HEAD" || matches!(self.status(), 100..200 | 204 | 304) {
            return Framing::Length(0);
        }
        match self.content_length() {
            _ if self.is_chunked() => Framing::Chunked(0),
            Some(length) => Framing::Length(length),
            None => Framing::UntilClose,
        }
    }
}

/// What is left of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes.
    Length(usize),
    /// So many bytes of the present chunk, then more chunks.
    Chunked(usize),
    /// Everything.
    UntilClose,
    /// Nothing.
    Ended,
}

/// A whole response.
#[derive(Debug, Clone)]
pub(crate) struct Response {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    pub(crate) end: End,
    /// Status codes of the interim responses before it.
    pub(crate) interim: Vec<u16>,
}

impl Response {
    pub(crate) fn status(&self) -> u16 {
        self.head.status()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("no JSON ({e}): {:?}", self.text()))
    }
}

/// A socket with what was read from it but not used yet.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    pub(crate) buffer: Vec<u8>,
    trailers: Vec<(String, String)>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("a connected socket takes the option");
        Self { stream, buffer: Vec::new(), trailers: Vec::new() }
    }

    /// Reads once, without a deadline. Cancel safe.
    pub(crate) async fn fill(&mut self) -> Result<(), End> {
        match self.stream.read_buf(&mut self.buffer).await {
            Ok(0) => Err(End::Truncated),
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => Err(End::Reset),
            Err(e) => panic!("reading failed in an unexpected way: {e}"),
        }
    }

    async fn fill_in_time(&mut self, what: &str) -> Result<(), End> {
        let filled = tokio::time::timeout(PATIENCE, self.fill()).await;
        filled.unwrap_or_else(|_| panic!("nothing came while waiting for {what}; so far {:?}", self.peek()))
    }

    fn peek(&self) -> String {
        String::from_utf8_lossy(&self.buffer[..self.buffer.len().min(300)]).into_owned()
    }

    /// The bytes up to and with `mark`.
    async fn take_past(&mut self, mark: &[u8], what: &str) -> Result<Vec<u8>, End> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].windows(mark.len()).position(|window| window == mark) {
                return Ok(self.buffer.drain(..searched + at + mark.len()).collect());
            }
            searched = self.buffer.len().saturating_sub(mark.len() - 1);
            self.fill_in_time(what).await?;
        }
    }

    pub(crate) async fn head(&mut self) -> Result<Head, End> {
        let bytes = self.take_past(b"\r\n\r\n", "a header").await?;
        Head::parse(&bytes)
    }

    /// The next piece of a body, as much as is there; `None` at its end.
    pub(crate) async fn piece(&mut self, framing: &mut Framing) -> Result<Option<Vec<u8>>, End> {
        if matches!(framing, Framing::Chunked(0)) && !self.chunk_begins(framing).await? {
            *framing = Framing::Ended;
        }
        let left = match framing {
            Framing::Length(0) | Framing::Ended => return Ok(None),
            Framing::Length(left) | Framing::Chunked(left) => *left,
            Framing::UntilClose => usize::MAX,
        };
        if self.buffer.is_empty() {
            match self.fill_in_time("a body").await {
                Err(End::Truncated) if *framing == Framing::UntilClose => return Ok(None),
                filled => filled?,
            }
        }
        let piece: Vec<u8> = self.buffer.drain(..left.min(self.buffer.len())).collect();
        match framing {
            Framing::Length(left) => *left -= piece.len(),
            Framing::Chunked(left) => {
                *left -= piece.len();
                if *left == 0 && self.take_past(b"\r\n", "the end of a chunk").await? != b"\r\n" {
                    return Err(End::Garbage("a chunk is longer than its size".into()));
                }
            }
            Framing::UntilClose | Framing::Ended => {}
        }
        Ok(Some(piece))
    }

    /// Reads a chunk's size; false after the last chunk and the trailers.
    async fn chunk_begins(&mut self, framing: &mut Framing) -> Result<bool, End> {
        let line = self.take_past(b"\r\n", "a chunk").await?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| End::Garbage(format!("chunk size {line:?}")))?;
        *framing = Framing::Chunked(size);
        if size > 0 {
            return Ok(true);
        }
        let mut block = b"\r\n".to_vec();
        loop {
            let line = self.take_past(b"\r\n", "trailers").await?;
            if line == b"\r\n" {
                break;
            }
            block.extend(line);
        }
        self.trailers = Head::parse(&block)?.fields;
        Ok(false)
    }

    /// The rest of a body and how it ended.
    pub(crate) async fn rest(&mut self, framing: &mut Framing) -> (Vec<u8>, End) {
        let mut body = Vec::new();
        loop {
            match self.piece(framing).await {
                Ok(Some(piece)) => body.extend(piece),
                Ok(None) => return (body, End::Complete),
                Err(end) => return (body, end),
            }
        }
    }

    pub(crate) fn take_trailers(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.trailers)
    }

    /// Writes all; an error means that the peer is gone.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Closes with RST instead of FIN.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().expect("a connected socket takes the option");
    }
}
