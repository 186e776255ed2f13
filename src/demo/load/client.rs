//! One client of the load: a streamed chat over a connection of its own.

use std::io;
use std::net::SocketAddr;

use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::demo::reply::quoted;
use crate::simulate::Job;

/// What every event of an answer begins with, at the beginning of a line.
const EVENT: &[u8] = b"\ndata: ";

/// What a stream ends with.
const DONE: &[u8] = b"data: [DONE]";

/// As much of the last bytes as is kept: the end of a stream and what frames it fit in.
const TAIL_BYTES: usize = 64;

/// Longest head of an answer that is waited for, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Why a client has no whole answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("answered {0:?} instead of a stream")]
    Status(String),
    #[error("the stream broke off")]
    BrokenOff,
}

/// Whether somebody accepts connections there.
pub(super) async fn can_connect(to: SocketAddr) -> bool {
    TcpStream::connect(to).await.is_ok()
}

/// A request for a streamed chat with the text of a job, which generates exactly what the job does.
pub(super) fn chat(model: &str, number: u64, job: &Job) -> Vec<u8> {
    let (model, text, tokens) = (quoted(model), job.text(number), job.output_tokens);
    let body = format!(
        r#"{{"model":{model},"messages":[{{"role":"user","content":"{text}"}}],"max_tokens":{tokens},"ignore_eos":true,"stream":true,"stream_options":{{"include_usage":true}}}}"#
    );
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: demo\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    (head + &body).into_bytes()
}

/// Sends a request and reads the answer to its end; `first` is called when the first event comes.
///
/// # Errors
/// When there is no whole stream.
pub(super) async fn exchange(to: SocketAddr, request: &[u8], first: impl FnOnce()) -> Result<(), Failure> {
    let mut connection = TcpStream::connect(to).await?;
    connection.set_nodelay(true)?;
    connection.write_all(request).await?;
    let mut seen = Vec::with_capacity(4 << 10);
    while memmem::find(&seen, EVENT).is_none() {
        if seen.len() > MAX_HEAD_BYTES || connection.read_buf(&mut seen).await? == 0 {
            return Err(Failure::Status(status_line(&seen)));
        }
    }
    if !status_line(&seen).contains(" 200 ") {
        return Err(Failure::Status(status_line(&seen)));
    }
    first();
    loop {
        seen.drain(..seen.len().saturating_sub(TAIL_BYTES));
        if connection.read_buf(&mut seen).await? == 0 {
            let is_whole = memmem::find(&seen, DONE).is_some();
            return if is_whole { Ok(()) } else { Err(Failure::BrokenOff) };
        }
    }
}

fn status_line(answer: &[u8]) -> String {
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    String::from_utf8_lossy(line).into_owned()
}
