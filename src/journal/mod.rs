//! What happens to requests, for whoever wants to see it: the access log, the live page.
//!
//! ```text
//! proxy -- placed, ended --> Journal --> Writer (access log), by its settings
//!                                    --> whoever follows (a bounded broadcast: who is slow misses some, and is told)
//!                                    --> the latest records, for whoever comes later
//! ```
//!
//! Nothing here waits, and nothing is made of a request that nobody wants to see:
//!
//! | who looks | what is made for it of each request |
//! |---|---|
//! | nobody, and nobody can: no admin listener, no access log | nothing |
//! | whoever may come later | a record, of what is known anyway |
//! | the access log | a record; the prompt's text is read, if the policy does not read it anyway |
//! | a follower | the same, and where it goes; why, in sentences, of 50 requests a second at the most |

mod ration;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::broadcast;

use crate::access_log::{Counts, End, Format, Record, Writer};
use crate::config::{AccessLog, LogFormat};
use ration::Ration;

/// Events that a follower may be behind before it misses some.
const MOST_BEHIND: usize = 1_024;

/// Records that are kept for whoever comes later.
const MOST_RECENT: usize = 512;

/// Requests that are explained in a second, while somebody follows: an explanation looks at every server, on the way of
/// the request, and for that long no other is placed. A person does not read as many.
const MOST_EXPLAINED: u32 = 50;

/// At the end of the process lines have this long to reach the disk.
const FLUSHED_WITHIN: Duration = Duration::from_secs(2);

/// Something that has happened to a request.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It was given a place on a server.
    Placed(Placed),
    /// It is over.
    Ended(Box<Record>),
}

impl Event {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Placed(_) => "placed",
            Self::Ended(_) => "ended",
        }
    }
}

/// A request that was given a place on a server.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Placed {
    /// The id under which the request is known to client and server (`x-request-id`).
    pub request_id: String,
    /// Which attempt it is, from 1.
    pub attempt: usize,
    /// The prompt's length in tokens, as the policy sees it; null for requests that weigh nothing.
    pub tokens: Option<u64>,
    /// Name of the group that the prompt's length is for.
    pub standard_group: String,
    /// Name of the group of the server.
    pub group: String,
    /// Name of the server.
    pub server: String,
    /// Why that server, in the policy's words.
    pub reason: &'static str,
    /// For how long it has waited in the balancer, in seconds.
    pub waited_s: f64,
    /// Why, in sentences, as it stood when the request asked for a place. Empty when it was not explained: only so many
    /// are, each second.
    pub words: Vec<String>,
}

/// The file of the access log cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("access_log.path {}: {source}", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: std::io::Error,
}

/// See the module.
#[derive(Debug)]
pub struct Journal {
    followers: broadcast::Sender<Arc<Event>>,
    /// `None`: nobody can ask for them.
    recent: Option<Mutex<VecDeque<Arc<Event>>>>,
    explained: Ration,
    log: ArcSwapOption<Log>,
    counts: Counts,
}

/// An access log that is open.
#[derive(Debug)]
pub struct Log {
    sample: f64,
    slower_than: Duration,
    writer: Writer,
}

impl Journal {
    /// A journal without an access log. `keeps_recent` says whether anybody may ask for what has been.
    #[must_use]
    pub fn new(keeps_recent: bool, counts: Counts) -> Self {
        let (followers, _) = broadcast::channel(MOST_BEHIND);
        let recent = keeps_recent.then(|| Mutex::new(VecDeque::with_capacity(MOST_RECENT)));
        Self { followers, recent, explained: Ration::of(MOST_EXPLAINED), log: ArcSwapOption::empty(), counts }
    }

    /// Writes the access log like this from now on. Its file is opened anew, also when its name is the same: whoever
    /// has moved the old one away gets a new one.
    ///
    /// # Errors
    /// When the file cannot be opened; then nothing has changed.
    pub fn configure(&self, access_log: Option<&AccessLog>) -> Result<(), OpenError> {
        self.write_to(self.open(access_log)?);
        Ok(())
    }

    /// Opens an access log that is to be [written to](Self::write_to) later.
    ///
    /// # Errors
    /// When its file cannot be opened.
    pub fn open(&self, access_log: Option<&AccessLog>) -> Result<Option<Log>, OpenError> {
        let Some(AccessLog { format, path, sample, slower_than }) = access_log else { return Ok(None) };
        let format = match format {
            LogFormat::Json => Format::Json,
            LogFormat::Text => Format::Text,
        };
        let writer = Writer::start(path.as_deref(), format, self.counts.clone());
        let writer = writer.map_err(|source| OpenError { path: path.clone().unwrap_or_default(), source })?;
        Ok(Some(Log { sample: *sample, slower_than: *slower_than, writer }))
    }

    /// Writes the access log there from now on, or none.
    pub fn write_to(&self, log: Option<Log>) {
        self.log.store(log.map(Arc::new));
    }

    /// Whether somebody wants to see where requests go.
    #[must_use]
    pub fn wants_places(&self) -> bool {
        self.followers.receiver_count() > 0
    }

    /// Whether somebody wants to know why the next request goes where it goes. That is a right to one explanation, which
    /// is used up by asking.
    #[must_use]
    pub fn wants_words(&self) -> bool {
        self.wants_places() && self.explained.take(Instant::now())
    }

    /// Whether somebody wants to see what is asked, for which the text of prompts has to be read. Whoever may come later
    /// is no reason to.
    #[must_use]
    pub fn wants_prompts(&self) -> bool {
        self.wants_places() || self.log.load().is_some()
    }

    /// Whether somebody wants to see how requests end.
    #[must_use]
    pub fn wants_ends(&self) -> bool {
        self.recent.is_some() || self.wants_prompts()
    }

    /// A request was given a place.
    pub fn placed(&self, placed: Placed) {
        // An error says that nobody follows.
        drop(self.followers.send(Arc::new(Event::Placed(placed))));
    }

    /// A request is over.
    pub fn ended(&self, record: Record) {
        if let Some(log) = self.log.load().as_ref().filter(|log| log.wants(&record)) {
            log.writer.write(Arc::new(record.clone()));
        }
        let event = Arc::new(Event::Ended(Box::new(record)));
        if let Some(recent) = &self.recent {
            let mut recent = recent.lock();
            if recent.len() == MOST_RECENT {
                recent.pop_front();
            }
            recent.push_back(Arc::clone(&event));
        }
        drop(self.followers.send(event));
    }

    /// Everything from now on. Who does not take it in time is told how much was missed.
    #[must_use]
    pub fn follow(&self) -> broadcast::Receiver<Arc<Event>> {
        self.followers.subscribe()
    }

    /// The latest requests that are over, the oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Arc<Event>> {
        self.recent.as_ref().map_or_else(Vec::new, |recent| recent.lock().iter().cloned().collect())
    }

    /// Waits until the access log is written, at the end of the process.
    pub fn flush(&self) {
        if let Some(log) = &*self.log.load() {
            log.writer.flush(FLUSHED_WITHIN);
        }
    }
}

impl Log {
    /// What went wrong always gets a line.
    fn wants(&self, record: &Record) -> bool {
        let went_well = record.end == End::Complete && record.status.is_some_and(|status| status < 400);
        !went_well
            || (record.duration_s >= self.slower_than.as_secs_f64()
                && (self.sample >= 1.0 || rand::random::<f64>() < self.sample))
    }
}
