//! Demo servers: stand-ins for vLLM, so that the first request works without an accelerator.
//!
//! A demo server speaks vLLM's OpenAI-compatible HTTP (chat and text completions, streamed or whole, models, health,
//! and vLLM's own wording of errors) and simulates the one thing about an engine that length-aware routing is for:
//! **a prompt blocks the prompts behind it**. Prefill takes time in proportion to the prompt, the prefills of one
//! server run one after the other, and only then do tokens come, one per interval. A client that goes away stops the
//! work. What it answers says which server it was, how long the prompt was and how long it waited.
//!
//! | to change | open |
//! |---|---|
//! | what it says | `answer.rs` |
//! | how long things take | `engine.rs` |
//! | the load that `--load` sends, and what is logged of it | `load/` |
//! | what a request may say, and what is refused | `request.rs` |
//! | the bytes of an answer | `reply.rs`, of a refusal `refusal.rs` |
//! | paths, streaming, clients that leave | `server.rs` |

mod answer;
mod engine;
pub mod load;
mod refusal;
mod reply;
mod request;
mod server;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use pingora::services::listening::Service;

pub use server::DemoServer;

/// How a demo server behaves.
#[derive(Debug, Clone)]
pub struct DemoSettings {
    /// Speed of prefill. One prompt of a server is prefilled at a time.
    pub prefill_tokens_per_second: NonZeroU64,
    /// Pause between two tokens of an answer.
    pub token_interval: Duration,
    /// Longest prompt that is accepted, in tokens (a quarter of the bytes of its text).
    pub max_model_len: u64,
    /// The name that requests call the model by.
    pub model_name: String,
}

impl Default for DemoSettings {
    /// 8,000 prompt tokens and 33 answer tokens a second, prompts up to 131,072 tokens, the model `demo`.
    fn default() -> Self {
        Self {
            prefill_tokens_per_second: NonZeroU64::new(8_000).expect("8000 is not 0"),
            token_interval: Duration::from_millis(30),
            max_model_len: 131_072,
            model_name: "demo".to_owned(),
        }
    }
}

/// A demo server called `name` that listens on `listen`, as a service to add to a Pingora server.
///
/// The address is bound when the Pingora server starts the service; as with every Pingora listener, an address that
/// cannot be bound ends the process.
#[must_use]
pub fn service(name: &str, listen: SocketAddr, settings: DemoSettings) -> Service<DemoServer> {
    let mut service = Service::new(format!("demo server {name}"), DemoServer::new(name, settings));
    service.add_tcp(&listen.to_string());
    service
}
