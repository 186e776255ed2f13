//! What the tests stand on: the real program, scriptable servers, and clients that control every byte.

mod address;
mod backend;
mod behaviour;
mod client;
mod h2c;
mod modelled;
mod request;
mod scraped;
mod setup;
mod switched;
mod tidegate;
mod tls;
mod wire;

use std::time::Duration;

use sha2::{Digest, Sha256};

pub(crate) use address::{BlackHole, Loopback, closed_address};
pub(crate) use backend::{Backend, Conn, Line, Received};
pub(crate) use behaviour::{
    Gate, echo, hold, lengths, opened, reply, reply_then_close, silent, sse, sse_answer, sse_event, sse_held,
};
pub(crate) use client::Client;
pub(crate) use h2c::H2Client;
pub(crate) use modelled::{FastClock, Modelled};
pub(crate) use request::{body_of, chunked, get, json_response, post, request};
pub(crate) use scraped::{Scraped, differences, name_and_labels, series};
pub(crate) use setup::{Setup, ToYaml};
pub(crate) use switched::{RESET, SILENT, Switched};
pub(crate) use tidegate::{Tidegate, Usage};
pub(crate) use tls::{Authority, Pair, Relay, tls_connect, tls_server};
pub(crate) use wire::{End, Head, Response};

/// How long a test waits for something that must happen, before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Polls a condition until it holds.
///
/// # Panics
/// When it does not hold within [`PATIENCE`].
pub(crate) async fn until(what: &str, condition: impl AsyncFnMut() -> bool) {
    until_within(PATIENCE, what, condition).await;
}

/// Polls a condition until it holds.
///
/// # Panics
/// When it does not hold within `patience`.
pub(crate) async fn until_within(patience: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    };
    assert!(tokio::time::timeout(patience, holds).await.is_ok(), "not within {patience:?}: {what}");
}

/// The SHA-256 of some bytes in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that a response is a refusal by Tidegate itself: a JSON error, marked as its own.
pub(crate) fn assert_refusal(response: &Response, status: u16) {
    assert_eq!(response.status(), status, "{}", response.text());
    assert_eq!(response.end, End::Complete);
    assert!(response.head.get("x-tidegate-error").is_some_and(|reason| !reason.is_empty()), "{:?}", response.head);
    assert_eq!(response.head.get("content-type"), Some("application/json"));
    let error = &response.json()["error"];
    for key in ["message", "type"] {
        assert!(error[key].as_str().is_some_and(|text| !text.is_empty()), "{}", response.text());
    }
    assert!(!error["code"].is_null(), "{}", response.text());
}
