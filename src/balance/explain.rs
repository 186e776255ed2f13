//! Why a request would go where it would go, without sending it.

use super::{Load, Placement, Unavailable, Usage};
use crate::work::Explained;

/// What would become of a request now, and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The policy's name.
    pub policy: &'static str,
    /// Tokens of the prompt, as the policy sees it.
    pub prompt_tokens: u64,
    /// What the request would weigh.
    pub load: Load,
    /// What would become of it.
    pub verdict: WouldBe,
    /// The groups, in order.
    pub groups: Vec<ExplainedGroup>,
    /// The servers, group by group.
    pub servers: Vec<ExplainedServer>,
    /// Requests that are held now, by work.
    pub held: usize,
    /// From which predicted prefill on a request is long, in seconds, by work.
    pub long_from_s: Option<f64>,
}

/// What would become of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WouldBe {
    /// It would go to a server.
    On {
        /// The server's number.
        server: usize,
        /// The server's group.
        group: usize,
        /// The group that the length is for.
        standard_group: usize,
        /// Why it is in that group.
        placement: Placement,
        /// Why that server, in the policy's words.
        reason: &'static str,
    },
    /// It would be held until it is its turn.
    Held,
    /// It would have to wait for a server, or be refused.
    Not(Unavailable),
}

/// A group in the eyes of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExplainedGroup {
    /// What runs in it.
    pub usage: Usage,
    /// Whether a server of it takes requests.
    pub is_live: bool,
    /// Whether the request's length is for it; by buckets only.
    pub is_standard: bool,
    /// What speaks for crossing to it; `None` when it is no neighbour of the standard group.
    pub crossing: Option<Crossing>,
}

/// What speaks for crossing to a neighbour of the standard group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crossing {
    /// `1 - (load / load of the standard group)^sensitivity`, 0 to 1; 0 when it is not lighter.
    pub gap: f64,
    /// `exp(-strength x distance)`, 0 to 1.
    pub affinity: f64,
    /// Their product.
    pub score: f64,
    /// What the score has to be above.
    pub threshold: f64,
}

/// A server in the eyes of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExplainedServer {
    /// Its number.
    pub server: usize,
    /// Its group.
    pub group: usize,
    /// What runs on it.
    pub usage: Usage,
    /// Why the request cannot go there, in a word or two of a closed list.
    pub obstacle: Option<&'static str>,
    /// What it would cost there, by work.
    pub work: Option<Explained>,
}
