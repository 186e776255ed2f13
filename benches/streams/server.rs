//! The server: a process of its own that answers by path.
//!
//! `/slow` is a stream with an event every few seconds until the line `end` comes in (another line takes that back),
//! `/flood` is 64 MiB at once, and everything else a short answer.

use std::io::BufRead;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Between two events of a stream.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const EVENT: &str =
    "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"choices\":[{\"index\":0,\"text\":\" tide\"}]}\n\n";
const FLOOD_BYTES: usize = 64 << 20;

/// Serves until standard input ends. Prints its port.
pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    let (sender, ended) = watch::channel(false);
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        println!("{}", listener.local_addr().expect("it is bound").port());
        let commands = tokio::task::spawn_blocking(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                sender.send_replace(line == "end");
            }
        });
        let accepting = async {
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(answer(stream, ended.clone()));
                }
            }
        };
        tokio::select! {
            _ = commands => {}
            () = accepting => {}
        }
    });
}

/// Answers one connection's requests; ends when the peer does.
async fn answer(mut stream: TcpStream, mut ended: watch::Receiver<bool>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut request = Vec::with_capacity(512);
    loop {
        // Bodies are `{}`, so a request is over with them; health probes have none.
        while !is_whole(&request) {
            (stream.read_buf(&mut request).await.ok()? > 0).then_some(())?;
        }
        if request.starts_with(b"POST /slow") {
            stream.write_all(STREAM_HEAD).await.ok()?;
            let chunk = format!("{:x}\r\n{EVENT}\r\n", EVENT.len());
            while !*ended.borrow() {
                stream.write_all(chunk.as_bytes()).await.ok()?;
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    _ = ended.changed() => {}
                }
            }
            stream.write_all(b"0\r\n\r\n").await.ok()?;
        } else if request.starts_with(b"POST /flood") {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {FLOOD_BYTES}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.ok()?;
            let piece = vec![b'x'; 64 << 10];
            for _ in 0..FLOOD_BYTES / piece.len() {
                stream.write_all(&piece).await.ok()?;
            }
        } else {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.ok()?;
        }
        request.clear();
    }
}

fn is_whole(request: &[u8]) -> bool {
    request.ends_with(b"{}") || (request.starts_with(b"GET ") && request.ends_with(b"\r\n\r\n"))
}
