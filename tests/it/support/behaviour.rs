//! Servers that behave in the usual ways.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::{Conn, json_response, sha256};

/// Holds servers back until the test lets them go on, one pass at a time or for good.
#[derive(Debug, Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets so many through.
    pub(crate) fn admit(&self, count: usize) {
        self.0.add_permits(count);
    }

    /// Lets all through from now on.
    pub(crate) fn open(&self) {
        self.0.close();
    }

    /// Waits to be let through.
    pub(crate) async fn pass(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A script for [`Backend::start`](super::Backend::start).
pub(crate) type Behaviour = Box<dyn Fn(Conn) -> Running + Send + Sync>;

/// Answers every request with the length and the SHA-256 of its body.
pub(crate) fn echo() -> Behaviour {
    Box::new(|mut conn| {
        Box::pin(async move {
            while let Some(request) = conn.request().await {
                let body = format!(r#"{{"length":{},"sha256":"{}"}}"#, request.body.len(), sha256(&request.body));
                if !conn.send(json_response(200, &body)).await {
                    return;
                }
            }
        })
    })
}

/// Answers every request with the length of its body.
pub(crate) fn lengths() -> Behaviour {
    Box::new(|mut conn| {
        Box::pin(async move {
            while let Some(request) = conn.request().await {
                if !conn.send(json_response(200, &format!(r#"{{"length":{}}}"#, request.body.len()))).await {
                    return;
                }
            }
        })
    })
}

/// Answers every request with the same bytes.
pub(crate) fn reply(bytes: impl Into<Vec<u8>>) -> Behaviour {
    hold(&opened(), bytes)
}

/// Answers one request and closes with FIN.
pub(crate) fn reply_then_close(bytes: impl Into<Vec<u8>>) -> Behaviour {
    let bytes = bytes.into();
    Box::new(move |mut conn| {
        let bytes = bytes.clone();
        Box::pin(async move {
            if conn.request().await.is_some() && conn.send(&bytes).await {
                conn.finish().await;
            }
        })
    })
}

/// Answers every request with the same bytes, each when the gate lets it through.
pub(crate) fn hold(gate: &Gate, bytes: impl Into<Vec<u8>>) -> Behaviour {
    let (gate, bytes) = (gate.clone(), bytes.into());
    Box::new(move |mut conn| {
        let (gate, bytes) = (gate.clone(), bytes.clone());
        Box::pin(async move {
            while conn.request().await.is_some() {
                if conn.unless_closed(gate.pass()).await.is_none() || !conn.send(&bytes).await {
                    return;
                }
            }
        })
    })
}

/// Reads requests and never answers.
pub(crate) fn silent() -> Behaviour {
    hold(&Gate::closed(), "")
}

/// The event number `number` of [`sse`].
pub(crate) fn sse_event(number: usize) -> String {
    format!("data: {{\"id\":\"cmpl-1\",\"choices\":[{{\"index\":0,\"text\":\"token {number}\"}}]}}\n\n")
}

/// Streams as vLLM does: the header at once, `events` events, one chunk each and each let through by the gate, then
/// `[DONE]` and the end of the body.
pub(crate) fn sse(events: usize, gate: &Gate) -> Behaviour {
    let gate = gate.clone();
    Box::new(move |mut conn| {
        let gate = gate.clone();
        Box::pin(async move { while conn.request().await.is_some() && sse_answer(&mut conn, events, &gate).await {} })
    })
}

/// Like [`sse`] with two events, of which the first comes at once and the second when the gate lets it through.
pub(crate) fn sse_held(gate: &Gate) -> Behaviour {
    let gate = gate.clone();
    Box::new(move |mut conn| {
        let gate = gate.clone();
        Box::pin(async move {
            while conn.request().await.is_some()
                && sse_head(&mut conn).await
                && sse_chunk(&mut conn, 0, &opened()).await
                && sse_chunk(&mut conn, 1, &gate).await
                && sse_end(&mut conn).await
            {}
        })
    })
}

/// One answer of [`sse`]; false when the peer left.
pub(crate) async fn sse_answer(conn: &mut Conn, events: usize, gate: &Gate) -> bool {
    if !sse_head(conn).await {
        return false;
    }
    for number in 0..events {
        if !sse_chunk(conn, number, gate).await {
            return false;
        }
    }
    sse_end(conn).await
}

async fn sse_head(conn: &mut Conn) -> bool {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                transfer-encoding: chunked\r\n\r\n";
    conn.send(head).await
}

async fn sse_chunk(conn: &mut Conn, number: usize, gate: &Gate) -> bool {
    let event = sse_event(number);
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    conn.unless_closed(gate.pass()).await.is_some() && conn.send(chunk).await
}

async fn sse_end(conn: &mut Conn) -> bool {
    conn.send("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await
}

fn opened() -> Gate {
    let gate = Gate::closed();
    gate.open();
    gate
}
