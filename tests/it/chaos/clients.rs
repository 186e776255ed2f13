//! Clients with requests of all lengths, some of which leave. What they get must be what the servers did for them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::book::{Book, Progress};
use super::servers::pick;
use crate::support::*;

/// How a request ended for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Answered,
    /// The server's own error, which no other server is asked about.
    Failed,
    /// The client left.
    Left,
    BrokenOff,
    TimedOut,
    /// Tidegate says no to everybody.
    Denied,
}

pub(super) type Outcomes = BTreeMap<Outcome, u64>;

/// What a client sends and wants of the server, in a header field: which body it is, how many events are to come, and how
/// long the pause before each is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    body: usize,
    pub(super) events: usize,
    pub(super) pause: Duration,
}

const WISH: &str = "x-wish";

impl Wish {
    pub(super) fn of(head: &Head) -> Self {
        let wish = head.get(WISH).expect("each request has a wish");
        let numbers: Vec<usize> = wish.split('/').map(|number| number.parse().expect("a number")).collect();
        Self { body: numbers[0], events: numbers[1], pause: Duration::from_millis(numbers[2] as u64) }
    }

    fn roll(die: &mut StdRng) -> Self {
        let (events, pause) = match die.random_range(0..20) {
            0..12 => (0, 0),
            12..19 => (die.random_range(1..20), die.random_range(0..15)),
            // These see drains and reloads go by.
            _ => (die.random_range(20..60), die.random_range(10..40)),
        };
        Self { body: die.random_range(0..BODIES), events, pause: Duration::from_millis(pause) }
    }

    fn value(&self) -> String {
        format!("{}/{}/{}", self.body, self.events, self.pause.as_millis())
    }

    fn field(&self) -> String {
        format!("{WISH}: {}\r\n", self.value())
    }

    pub(super) fn is_stream(&self) -> bool {
        self.events > 0
    }

    /// Whether this is the body that was sent.
    pub(super) fn is_body(&self, body: &[u8], bodies: &Bodies) -> bool {
        bodies.0[self.body] == body
    }

    /// The header of its answer.
    pub(super) fn head(&self) -> String {
        let kind = if self.is_stream() { "text/event-stream" } else { "application/json" };
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n")
    }

    /// The first piece of its answer.
    pub(super) fn first(&self, id: &str) -> String {
        if self.is_stream() { sse_event(0) } else { self.last(id)[..8].to_owned() }
    }

    /// The last piece of its answer, which tells that the right request got the right answer.
    pub(super) fn last(&self, id: &str) -> String {
        let last = format!("{{\"id\": \"{id}\", \"body\": {}}}", self.body);
        if self.is_stream() { format!("data: {last}\n\ndata: [DONE]\n\n") } else { last }
    }

    fn whole(&self, id: &str) -> String {
        (0..self.events).map(sse_event).chain([self.last(id)]).collect()
    }
}

const BODIES: usize = 100;

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"];

/// Requests at a time on a connection of HTTP/2.
const LANES: usize = 3;

/// What all clients send, known to the servers too: making and hashing bodies takes longer than sending them.
pub(super) struct Bodies(Vec<Vec<u8>>);

impl Bodies {
    /// Of all lengths, most of them short, and no two of the same length.
    pub(super) fn new(mut die: StdRng) -> Self {
        let mut lengths = BTreeSet::new();
        while lengths.len() < BODIES {
            lengths.insert(match lengths.len() {
                0..60 => die.random_range(100..4_000),
                60..85 => die.random_range(4_000..65_000),
                // Around what Pingora itself can send again.
                85..88 => die.random_range(65_530..65_545),
                88..98 => die.random_range(65_545..300_000),
                _ => die.random_range(300_000..1_000_000),
            });
        }
        Self(lengths.into_iter().map(body_of).collect())
    }
}

/// One client, which sends one request after the other.
pub(super) struct Chaotic<'a> {
    pub(super) tidegate: &'a Tidegate,
    pub(super) book: &'a Book,
    pub(super) bodies: &'a Bodies,
    pub(super) number: usize,
}

impl Chaotic<'_> {
    /// Sends requests until time is up; what became of them.
    pub(super) async fn run(&self, mut die: StdRng, until: Instant) -> Outcomes {
        let mut outcomes = Outcomes::new();
        let mut kept = None;
        let mut sent = 0_u64;
        while Instant::now() < until {
            sent += 1;
            let id = format!("{}-{sent}", self.number);
            // Rolled in any case: whether there is one depends on what the servers did.
            let is_kept = die.random_ratio(4, 5);
            let connection = match kept.take().filter(|_| is_kept) {
                Some(connection) => connection,
                None => self.tidegate.client().await,
            };
            let (outcome, connection) = self.request(&id, connection, &mut die).await;
            *outcomes.entry(outcome).or_insert(0) += 1;
            kept = connection;
        }
        outcomes
    }

    /// The same over HTTP/2, several requests at a time on one connection.
    pub(super) async fn run_h2(&self, mut die: StdRng, until: Instant) -> Outcomes {
        let connection = H2Client::connect(self.tidegate.address).await;
        let dice = [(); LANES].map(|()| StdRng::from_rng(&mut die));
        let lanes = dice.into_iter().enumerate().map(async |(lane, mut die)| {
            let mut outcomes = Outcomes::new();
            let mut sent = 0_u64;
            while Instant::now() < until {
                sent += 1;
                let id = format!("{}-{lane}-{sent}", self.number);
                *outcomes.entry(self.request_h2(&id, &connection, &mut die).await).or_insert(0) += 1;
            }
            outcomes
        });
        let mut sums = Outcomes::new();
        for (outcome, count) in join_all(lanes).await.into_iter().flatten() {
            *sums.entry(outcome).or_insert(0) += count;
        }
        sums
    }

    async fn request_h2(&self, id: &str, connection: &H2Client, die: &mut StdRng) -> Outcome {
        let wish = Wish::roll(die);
        let value = wish.value();
        let fields = [("x-request-id", id), (WISH, &value)];
        let exchange = connection.try_post(pick(die, &PATHS), &fields, &self.bodies.0[wish.body]);
        if die.random_ratio(1, 12) {
            let stays = Duration::from_millis(die.random_range(0..60));
            tokio::pin!(exchange);
            drop(tokio::time::timeout(stays, &mut exchange).await);
            // Before it is dropped.
            self.book.leaves(id);
            return Outcome::Left;
        }
        let response = exchange.await.map_err(|error| End::Garbage(error.to_string()));
        self.judge(&response, id, &wish.whole(id))
    }

    /// A short and a long request, which are served.
    pub(super) async fn simple_requests(&self) {
        for body in [0, BODIES - 1] {
            let id = format!("simple-{}", self.book.attempts());
            let wish = Wish { body, events: 0, pause: Duration::ZERO };
            let fields = format!("X-Request-Id: {id}\r\n{}", wish.field());
            let message = request("POST", "/v1/completions", &fields, &self.bodies.0[body]);
            assert_eq!(self.tidegate.exchange(&message).await.text(), wish.whole(&id));
        }
    }

    /// One request; the connection comes back when it can be used again.
    async fn request(&self, id: &str, mut connection: Client, die: &mut StdRng) -> (Outcome, Option<Client>) {
        let wish = Wish::roll(die);
        if die.random_ratio(1, 50) {
            connection.send(&request("POST", "/sleep", "", b"{}")).await;
            let denied = connection.response().await;
            assert_refusal(&denied, 403);
            return (Outcome::Denied, Some(connection).filter(|_| stays_open(&denied)));
        }
        let message = message(id, &self.bodies.0[wish.body], wish, die);
        if die.random_ratio(1, 12) {
            self.leave(id, connection, &message, die).await;
            return (Outcome::Left, None);
        }
        if die.random_ratio(1, 20) {
            connection.send_in_pieces(&message, message.len() / 8 + 1).await;
        } else {
            connection.send(&message).await;
        }
        let response = connection.try_response("POST").await;
        let outcome = self.judge(&response, id, &wish.whole(id));
        (outcome, Some(connection).filter(|_| response.is_ok_and(|response| stays_open(&response))))
    }

    /// Sends a request, all of it or not, and does not wait for the end of its answer.
    async fn leave(&self, id: &str, mut connection: Client, message: &[u8], die: &mut StdRng) {
        match die.random_range(0..4) {
            0 => connection.send(&message[..die.random_range(1..message.len())]).await,
            1 => {
                connection.send(message).await;
                // It may be at its end, or broken.
                if connection.try_head("POST").await.is_ok() {
                    drop(connection.piece().await);
                }
            }
            _ => {
                connection.send(message).await;
                let stays = Duration::from_millis(die.random_range(0..60));
                drop(tokio::time::timeout(stays, connection.try_response("POST")).await);
            }
        }
        self.book.leaves(id);
        if die.random() { connection.reset() } else { connection.close() }
    }

    fn judge(&self, response: &Result<Response, End>, id: &str, whole: &str) -> Outcome {
        let (last, attempts) = self.book.ends(id);
        let (outcome, expected) = match response {
            Ok(response) if response.status() == 200 && response.end == End::Complete => {
                assert_eq!(response.text(), whole, "request {id}: {attempts}");
                (Outcome::Answered, Progress::Answered)
            }
            Ok(response) if response.status() == 200 => {
                assert!(whole.starts_with(&response.text()), "request {id}: {}, {attempts}", response.text());
                (Outcome::BrokenOff, Progress::InBody)
            }
            Ok(response) if [429, 500].contains(&response.status()) && response.end == End::Complete => {
                assert_eq!(response.text(), "{}", "request {id}: {attempts}");
                (Outcome::Failed, Progress::Answered)
            }
            Ok(response) if response.status() == 504 => {
                assert_refusal(response, 504);
                (Outcome::TimedOut, Progress::Hangs)
            }
            lost => panic!("request {id} is lost, though a good server was there: {lost:?}, {attempts}"),
        };
        assert_eq!(last, Some(expected), "request {id} has {response:?}: {attempts}");
        outcome
    }
}

fn stays_open(response: &Response) -> bool {
    response.end == End::Complete && response.head.get("connection") != Some("close")
}

/// A request as bytes, its body with a length or in chunks.
fn message(id: &str, body: &[u8], wish: Wish, die: &mut StdRng) -> Vec<u8> {
    let path = pick(die, &PATHS);
    let fields = format!("X-Request-Id: {id}\r\n{}", wish.field());
    if !die.random_ratio(1, 5) {
        return request("POST", path, &fields, body);
    }
    let whole = chunked(path, body, die.random_range(500..100_000));
    let at = whole.windows(2).position(|pair| pair == b"\r\n").expect("it has lines") + 2;
    [&whole[..at], fields.as_bytes(), &whole[at..]].concat()
}
