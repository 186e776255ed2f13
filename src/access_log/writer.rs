//! Lines on their way to a file, on a thread of their own: a disk that hangs must not hold up a request.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;

use super::record::Record;
use super::text;

/// Records that wait for the disk, at most: some ten megabytes. What comes beyond that is dropped, and counted.
const MOST_WAITING: usize = 16_384;

/// So many bytes of lines are written at once.
const WRITTEN_AT_ONCE_BYTES: usize = 64 << 10;

/// A disk that stays full is told of again after this time.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A JSON object.
    Json,
    /// Names and values.
    Text,
}

/// What has become of lines, since the start of the process.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Lines that were written.
    pub written: Counter,
    /// Lines that were not: the file could not be written to, or not fast enough.
    pub dropped: Counter,
}

/// Takes records, and has them written. When it is dropped its thread writes what it has, and ends.
#[derive(Debug)]
pub struct Writer {
    queue: SyncSender<Message>,
    counts: Counts,
    /// What writes, until it does: from the first record on, because a daemon loses the threads that were there before.
    lines: Mutex<Option<Lines>>,
    has_begun: Once,
}

#[derive(Debug)]
enum Message {
    Record(Arc<Record>),
    /// All before it is to be written, and this is to be dropped then.
    Flush(SyncSender<()>),
}

impl Writer {
    /// Begins to write: to the end of a file, which is made when it is not there, or to the standard output.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn start(path: Option<&Path>, format: Format, counts: Counts) -> io::Result<Self> {
        let out: Box<dyn Write + Send> = match path {
            Some(path) => Box::new(OpenOptions::new().append(true).create(true).open(path)?),
            None => Box::new(io::stdout()),
        };
        Ok(Self::start_on(out, format, counts, MOST_WAITING))
    }

    fn start_on(out: Box<dyn Write + Send>, format: Format, counts: Counts, most_waiting: usize) -> Self {
        let (queue, records) = sync_channel(most_waiting);
        let lines = Mutex::new(Some(Lines::new(out, format, counts.clone(), records)));
        Self { queue, counts, lines, has_begun: Once::new() }
    }

    fn begin(&self) {
        let Some(lines) = self.lines.lock().take() else { return };
        // Without it the queue has no other end, and every record counts as dropped.
        if let Err(error) = thread::Builder::new().name("access log".to_owned()).spawn(move || lines.run()) {
            log::error!("the access log has no thread, and is not written: {error}");
        }
    }

    /// Has a record written, soon. Never waits.
    pub fn write(&self, record: Arc<Record>) {
        self.has_begun.call_once(|| self.begin());
        match self.queue.try_send(Message::Record(record)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.counts.dropped.inc();
            }
        }
    }

    /// Waits until everything before is written, but not longer than this. Blocks: for the end of a process.
    pub fn flush(&self, patience: Duration) {
        if !self.has_begun.is_completed() {
            return;
        }
        crate::flush::flush(&self.queue, Message::Flush, patience);
    }
}

/// The thread's side.
struct Lines {
    out: Box<dyn Write + Send>,
    format: Format,
    counts: Counts,
    buffer: Vec<u8>,
    /// Lines in the buffer.
    buffered: u64,
    /// The last write failed, and may have left a part of a line.
    is_torn: bool,
    told_at: Option<Instant>,
    dropped_since: u64,
    records: Receiver<Message>,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("format", &self.format).finish_non_exhaustive()
    }
}

impl Lines {
    fn new(out: Box<dyn Write + Send>, format: Format, counts: Counts, records: Receiver<Message>) -> Self {
        Self {
            out,
            format,
            counts,
            buffer: Vec::new(),
            buffered: 0,
            is_torn: false,
            told_at: None,
            dropped_since: 0,
            records,
        }
    }

    fn run(mut self) {
        loop {
            let message = match self.records.try_recv() {
                Ok(message) => message,
                // Nothing more for now: what there is should not wait.
                Err(TryRecvError::Empty) => {
                    self.flush();
                    match self.records.recv() {
                        Ok(message) => message,
                        Err(_) => return,
                    }
                }
                Err(TryRecvError::Disconnected) => return self.flush(),
            };
            match message {
                Message::Record(record) => self.add(&record),
                Message::Flush(done) => {
                    self.flush();
                    drop(done);
                }
            }
        }
    }

    fn add(&mut self, record: &Record) {
        let length = self.buffer.len();
        let written = match self.format {
            Format::Json => {
                serde_json::to_writer(&mut self.buffer, record).map(|()| self.buffer.push(b'\n')).map_err(Into::into)
            }
            Format::Text => text::write(record, &mut self.buffer),
        };
        if written.is_err() {
            // A number that is none: there is no such record, and no half of a line either.
            self.buffer.truncate(length);
            self.counts.dropped.inc();
            return;
        }
        self.buffered += 1;
        if self.buffer.len() >= WRITTEN_AT_ONCE_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.buffered == 0 {
            return;
        }
        if self.is_torn {
            self.buffer.insert(0, b'\n');
        }
        let written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.is_torn = written.is_err();
        match written {
            Ok(()) => {
                self.counts.written.inc_by(self.buffered);
            }
            Err(error) => self.failed(&error),
        }
        self.buffer.clear();
        self.buffered = 0;
    }

    fn failed(&mut self, error: &io::Error) {
        self.counts.dropped.inc_by(self.buffered);
        self.dropped_since += self.buffered;
        if self.told_at.is_none_or(|at| at.elapsed() >= TOLD_AGAIN_AFTER) {
            log::error!("{} lines of the access log are lost: {error}", self.dropped_since);
            self.told_at = Some(Instant::now());
            self.dropped_since = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use parking_lot::Mutex;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn record(id: &str) -> Arc<Record> {
        let json = format!(
            r#"{{"version":1,"time":"2026-01-31T12:00:00Z","request_id":"{id}","endpoint":"/v1/models","duration_s":0.5,"end":"complete"}}"#
        );
        Arc::new(Record::parse(json.as_bytes()).unwrap())
    }

    /// Fails when it is told to, after a part of the bytes; waits for a word before each write when somebody holds it.
    #[derive(Clone, Default)]
    struct Disk {
        written: Arc<Mutex<Vec<u8>>>,
        is_full: Arc<Mutex<bool>>,
        gate: Option<Arc<Mutex<Receiver<()>>>>,
    }

    impl Disk {
        fn held() -> (Self, Sender<()>) {
            let (open, gate) = channel();
            (Self { gate: Some(Arc::new(Mutex::new(gate))), ..Self::default() }, open)
        }

        fn text(&self) -> String {
            String::from_utf8(self.written.lock().clone()).unwrap()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(gate) = &self.gate {
                gate.lock().recv().ok();
            }
            let is_full = *self.is_full.lock();
            let taken = if is_full { &bytes[..bytes.len().min(7)] } else { bytes };
            self.written.lock().extend_from_slice(taken);
            if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn ids(text: &str) -> Vec<String> {
        text.lines().filter_map(|line| Record::parse(line.as_bytes()).ok()).map(|record| record.request_id).collect()
    }

    #[test]
    fn lines_are_written_in_order_and_counted() {
        let (disk, counts) = (Disk::default(), Counts::default());
        let writer = Writer::start_on(Box::new(disk.clone()), Format::Json, counts.clone(), 1_000);
        let names: Vec<String> = (0..500).map(|number| number.to_string()).collect();
        names.iter().for_each(|name| writer.write(record(name)));
        writer.flush(PATIENCE);
        assert_eq!(ids(&disk.text()), names);
        assert_eq!((counts.written.get(), counts.dropped.get()), (500, 0));
    }

    #[test]
    fn what_a_slow_disk_cannot_take_is_dropped_and_counted() {
        let (disk, open) = Disk::held();
        let counts = Counts::default();
        let writer = Writer::start_on(Box::new(disk.clone()), Format::Text, counts.clone(), 10);
        (0..100).for_each(|number| writer.write(record(&number.to_string())));
        let dropped = counts.dropped.get();
        assert!((80..=90).contains(&dropped), "{dropped}");
        drop(open);
        writer.flush(PATIENCE);
        assert_eq!(disk.text().lines().count() as u64, 100 - dropped);
        assert_eq!((counts.written.get(), counts.dropped.get()), (100 - dropped, dropped));
    }

    #[test]
    fn after_a_full_disk_lines_are_whole_again() {
        let (disk, counts) = (Disk::default(), Counts::default());
        let writer = Writer::start_on(Box::new(disk.clone()), Format::Json, counts.clone(), 10);
        let write = |id: &str| {
            writer.write(record(id));
            writer.flush(PATIENCE);
        };
        write("before");
        *disk.is_full.lock() = true;
        write("lost");
        *disk.is_full.lock() = false;
        write("after");
        assert_eq!(ids(&disk.text()), ["before", "after"]);
        assert_eq!((counts.written.get(), counts.dropped.get()), (2, 1));
    }

    #[test]
    fn a_file_is_added_to_and_one_that_cannot_be_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.log");
        for id in ["a", "b"] {
            let writer = Writer::start(Some(&path), Format::Json, Counts::default()).unwrap();
            writer.write(record(id));
            writer.flush(PATIENCE);
        }
        assert_eq!(ids(&std::fs::read_to_string(&path).unwrap()), ["a", "b"]);
        assert!(Writer::start(Some(folder.path()), Format::Json, Counts::default()).is_err());
    }
}
