//! One line of input.

use std::borrow::Cow;

use serde::Deserialize;

/// Times beyond are no times: a clock in nanoseconds, say.
const LATEST_S: f64 = 1e12;

/// What has happened, and when.
#[derive(Debug, PartialEq)]
pub struct Event<'l> {
    /// Seconds since any epoch.
    pub now_s: f64,
    /// What.
    pub what: What<'l>,
}

/// The kinds of events.
#[derive(Debug, PartialEq)]
pub enum What<'l> {
    /// A request has come.
    Arrive(Arrival<'l>),
    /// Its first token has come.
    First {
        /// The request.
        id: Cow<'l, str>,
    },
    /// It has generated so much so far.
    Tokens {
        /// The request.
        id: Cow<'l, str>,
        /// Tokens.
        generated: u64,
    },
    /// It is over.
    End {
        /// The request.
        id: Cow<'l, str>,
        /// Whether it was answered to its end.
        is_ok: bool,
        /// What it has generated in all, when that is known.
        generated: Option<u64>,
    },
    /// A server takes requests, or none, from now on.
    Server {
        /// Its place in the configured order, from 0.
        server: usize,
        /// Whether it takes requests.
        is_up: bool,
    },
    /// Nothing but time.
    Tick,
}

/// A request as it comes.
#[derive(Debug, PartialEq)]
pub struct Arrival<'l> {
    /// Its name.
    pub id: Cow<'l, str>,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Length of its body; by default four bytes a token.
    pub body_bytes: u64,
    /// Most tokens that it may generate.
    pub max_tokens: Option<u64>,
    /// Whether it generates exactly that many.
    pub ignore_eos: bool,
    /// Whether its answer is streamed. The default.
    pub is_streamed: bool,
    /// Hashes of its blocks.
    pub prefix: Vec<u64>,
}

/// The line as it is written. Unknown fields are ignored: whoever drives may keep notes in them.
#[derive(Deserialize)]
struct Line<'l> {
    t: f64,
    #[serde(borrow)]
    ev: Cow<'l, str>,
    #[serde(borrow, default)]
    id: Option<Cow<'l, str>>,
    prompt_tokens: Option<u64>,
    body_bytes: Option<u64>,
    max_tokens: Option<u64>,
    #[serde(default)]
    ignore_eos: Option<bool>,
    stream: Option<bool>,
    #[serde(borrow, default)]
    prefix: Option<Vec<Block<'l>>>,
    n: Option<u64>,
    ok: Option<bool>,
    server: Option<usize>,
    up: Option<bool>,
}

/// Hashes are numbers or words, as the driver likes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Block<'l> {
    Number(u64),
    Signed(i64),
    #[serde(borrow)]
    Word(Cow<'l, str>),
}

impl<'l> Event<'l> {
    /// Reads a line.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub fn parse(line: &'l [u8]) -> Result<Self, String> {
        let line: Line<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        if !(0.0..=LATEST_S).contains(&line.t) {
            return Err(format!("t is {}, expected seconds, 0 to {LATEST_S}", line.t));
        }
        let (now_s, ev) = (line.t, line.ev.clone());
        Ok(Event { now_s, what: line.what(&ev)? })
    }
}

impl<'l> Line<'l> {
    fn what(self, ev: &str) -> Result<What<'l>, String> {
        let missing = |field: &str| format!("{ev} needs {field}");
        let id = || missing("id, a text");
        Ok(match ev {
            "arrive" => {
                let prompt_tokens = self.prompt_tokens.ok_or_else(|| missing("prompt_tokens, a whole number"))?;
                What::Arrive(Arrival {
                    id: self.id.ok_or_else(id)?,
                    prompt_tokens,
                    body_bytes: self.body_bytes.unwrap_or_else(|| prompt_tokens.saturating_mul(4)),
                    max_tokens: self.max_tokens,
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    is_streamed: self.stream.unwrap_or(true),
                    prefix: self.prefix.unwrap_or_default().into_iter().map(Block::hash).collect(),
                })
            }
            "first" => What::First { id: self.id.ok_or_else(id)? },
            "tokens" => {
                let generated = self.n.ok_or_else(|| missing("n, the tokens generated so far"))?;
                What::Tokens { id: self.id.ok_or_else(id)?, generated }
            }
            "end" => What::End { id: self.id.ok_or_else(id)?, is_ok: self.ok.unwrap_or(true), generated: self.n },
            "server" => {
                let server = self.server.ok_or_else(|| missing("server, its place from 0"))?;
                What::Server { server, is_up: self.up.ok_or_else(|| missing("up, true or false"))? }
            }
            "tick" => What::Tick,
            _ => return Err(format!("ev is {ev:?}, expected arrive, first, tokens, end, server or tick")),
        })
    }
}

impl Block<'_> {
    fn hash(self) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Signed(number) => number.cast_unsigned(),
            Self::Word(word) => {
                // FNV-1a: equal words must give equal numbers, and nobody attacks this from outside.
                word.bytes()
                    .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
            }
        }
    }
}
