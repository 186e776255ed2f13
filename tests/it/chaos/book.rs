//! What the servers did for each request, and what follows for how it may end.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::support::*;

/// How one attempt went, as its server knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing of a body was sent. Ended like this, it is for another server.
    Begun,
    /// It will stay like that: the server does not answer.
    Hangs,
    /// A part of the body was sent. Ended like this, the client has a broken answer.
    InBody,
    /// All of the answer was sent.
    Answered,
}

#[derive(Debug)]
struct Attempt {
    server: usize,
    progress: Progress,
    /// The connection that it is on; `None` when the server has ended it.
    open: Option<Line>,
}

impl Attempt {
    /// Whether Tidegate still waits for this server. What it has closed is seen here at once, and not only when the
    /// server's turn comes to read.
    fn is_waited_for(&self) -> bool {
        self.open.as_ref().is_some_and(|line| !line.is_closed_by_peer())
    }
}

#[derive(Debug, Default)]
struct Request {
    attempts: Vec<Attempt>,
    has_left: bool,
    is_over: bool,
}

impl Request {
    fn describe(&self) -> String {
        let attempts = self.attempts.iter().map(|attempt| {
            let open = if attempt.open.is_some() { ", open" } else { "" };
            format!("server {}: {:?}{open}", attempt.server, attempt.progress)
        });
        format!("[{}]", attempts.collect::<Vec<_>>().join("; "))
    }
}

#[derive(Debug, Default)]
struct Pages {
    requests: HashMap<Arc<str>, Request>,
    /// By server, in the order of arrival.
    arrivals: HashMap<usize, Vec<Arc<str>>>,
    violations: Vec<String>,
    /// What was done, by name.
    tally: BTreeMap<&'static str, u64>,
}

/// Shared by all servers and clients.
#[derive(Debug, Clone, Default)]
pub(super) struct Book(Arc<Mutex<Pages>>);

/// An attempt in the hands of its server. It ends with its value, also when the server is killed; a server that ends it
/// drops it before Tidegate can know.
#[derive(Debug)]
pub(super) struct Ongoing {
    book: Book,
    id: Arc<str>,
    number: usize,
    /// What it came to when its answer, which is being sent, is not sent to its end.
    unless_sent: Option<Progress>,
}

impl Book {
    /// A server has received a request on a connection.
    pub(super) fn begin(&self, id: &str, server: usize, line: Line) -> Ongoing {
        let mut pages = self.0.lock();
        let id: Arc<str> = id.into();
        let request = pages.requests.entry(Arc::clone(&id)).or_default();
        let is_elsewhere = request.attempts.iter().any(Attempt::is_waited_for);
        request.attempts.push(Attempt { server, progress: Progress::Begun, open: Some(line) });
        let (number, is_over) = (request.attempts.len() - 1, request.is_over);
        pages.arrivals.entry(server).or_default().push(Arc::clone(&id));
        if is_elsewhere {
            pages.violate(&id, "it was at two servers at once");
        }
        if is_over {
            pages.violate(&id, "it was given to a server after its client had the answer");
        }
        Ongoing { book: self.clone(), id, number, unless_sent: None }
    }

    /// Its client is about to leave.
    pub(super) fn leaves(&self, id: &str) {
        self.0.lock().requests.entry(id.into()).or_default().has_left = true;
    }

    /// Its client has all that will come: how the last attempt went, if there was one, and all of them in words.
    pub(super) fn ends(&self, id: &str) -> (Option<Progress>, String) {
        let mut pages = self.0.lock();
        let request = pages.requests.entry(id.into()).or_default();
        request.is_over = true;
        (request.attempts.last().map(|attempt| attempt.progress), request.describe())
    }

    /// How many requests have arrived at a server so far.
    pub(super) fn arrived(&self, server: usize) -> usize {
        self.0.lock().arrivals.get(&server).map_or(0, Vec::len)
    }

    /// What has arrived at a server between two counts; not what its client has left: that the server may have read only
    /// when all was over.
    pub(super) fn arrived_between(&self, server: usize, counts: Range<usize>) -> Vec<Arc<str>> {
        let pages = self.0.lock();
        let arrivals = pages.arrivals.get(&server).map_or(&[][..], |arrivals| &arrivals[counts]);
        arrivals.iter().filter(|id| !pages.requests[*id].has_left).cloned().collect()
    }

    /// Counts something that was done.
    pub(super) fn count(&self, what: &'static str) {
        *self.0.lock().tally.entry(what).or_default() += 1;
    }

    pub(super) fn tally(&self) -> BTreeMap<&'static str, u64> {
        self.0.lock().tally.clone()
    }

    /// How many attempts reached a server.
    pub(super) fn attempts(&self) -> usize {
        self.0.lock().arrivals.values().map(Vec::len).sum()
    }

    /// # Panics
    /// When a request was at two servers at once, was answered twice, or was altered.
    pub(super) fn assert_no_violations(&self) {
        let violations = std::mem::take(&mut self.0.lock().violations);
        assert!(violations.is_empty(), "{violations:#?}");
    }
}

impl Pages {
    fn violate(&mut self, id: &str, how: &str) {
        let text = format!("{id}: {how}: {}", self.requests[id].describe());
        self.violations.push(text);
    }
}

impl Ongoing {
    /// The request is not what its client sent.
    pub(super) fn is_altered(&self) {
        self.book.0.lock().violate(&self.id, "its body is not what was sent");
    }

    /// The server will not answer.
    pub(super) fn hangs(&self) {
        self.progresses(Progress::Hangs);
    }

    /// The first byte of the answer's body is about to be sent.
    pub(super) fn body_begins(&self) {
        self.progresses(Progress::InBody);
    }

    /// Sends the rest of the answer; false when that cannot be done. The client may have it before the server knows that
    /// it was sent, so it counts as answered from the beginning; when the server is killed before, it was not.
    pub(super) async fn answers(mut self, conn: &mut Conn, rest: impl AsRef<[u8]>) -> bool {
        {
            let mut pages = self.book.0.lock();
            let request = pages.requests.get_mut(&self.id).expect("it began");
            let is_answered = request.attempts.iter().any(|attempt| attempt.progress == Progress::Answered);
            self.unless_sent = Some(request.attempts[self.number].progress);
            request.attempts[self.number].progress = Progress::Answered;
            if is_answered {
                pages.violate(&self.id, "it was answered twice");
            }
        }
        let is_sent = conn.send(rest).await;
        if is_sent {
            self.unless_sent = None;
        }
        is_sent
    }

    fn progresses(&self, progress: Progress) {
        let mut pages = self.book.0.lock();
        let request = pages.requests.get_mut(&self.id).expect("it began");
        request.attempts[self.number].progress = progress;
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        let mut pages = self.book.0.lock();
        let request = pages.requests.get_mut(&self.id).expect("it began");
        request.attempts[self.number].open = None;
        if let Some(progress) = self.unless_sent {
            request.attempts[self.number].progress = progress;
        }
    }
}

#[tokio::test]
async fn the_book_sees_a_request_that_is_at_two_servers_at_once() {
    for leaves_first in [true, false] {
        let book = Book::default();
        let its_book = book.clone();
        let server = Backend::start(move |mut conn: Conn| {
            let book = its_book.clone();
            async move {
                if conn.request().await.is_some() {
                    let _ongoing = book.begin("one", conn.number, conn.line());
                    conn.closed().await;
                }
            }
        })
        .await;
        let first = Client::connect(server.address()).await;
        let mut connections = [Some(first), Some(Client::connect(server.address()).await)];
        for (number, place) in connections.iter_mut().enumerate() {
            place.as_mut().expect("it is still there").send(&post("/", b"{}")).await;
            until("the server has begun", async || book.attempts() == number + 1).await;
            if leaves_first {
                *place = None;
            }
        }
        assert_eq!(book.0.lock().violations.is_empty(), leaves_first);
        book.0.lock().violations.clear();
    }
}
