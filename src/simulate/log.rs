//! Tidegate's own access log as traffic.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::SystemTime;

use super::trace::TraceError;
use super::traffic::{Job, Traffic};
use crate::access_log::{End, Record};

/// A line that is longer is no record, and is not kept in memory.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Output tokens of an answer that nobody counted, when no other answer was counted either.
const DEFAULT_OUTPUT_TOKENS: u64 = 200;

/// What was found in an access log.
#[derive(Debug, Default, PartialEq)]
pub struct LogNotes {
    /// Lines that are no records.
    pub foreign: usize,
    /// The first of them, counted from 1, and what is wrong with it.
    pub first_foreign: Option<(usize, String)>,
    /// Records of requests without a prompt, such as lists of models.
    pub without_prompt: usize,
    /// Records of requests that no server has had.
    pub rejected: usize,
    /// Requests of which nobody counted the output; the mean of the others stands for it.
    pub uncounted: usize,
    /// Names of the servers that answered, in order of their names.
    pub servers: Vec<String>,
    /// First tokens that servers gave.
    pub first_tokens: Vec<FirstToken>,
}

/// A first token that a server gave to a request that was sent once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstToken {
    /// The server's place among [`LogNotes::servers`].
    pub server: usize,
    /// Tokens of the prompt that were not cached.
    pub new_tokens: u64,
    /// From when the request was sent on, in seconds.
    pub ttft_s: f64,
}

/// One request that was served.
#[derive(Debug)]
struct Served {
    time: SystemTime,
    output_tokens: Option<u64>,
    job: Job,
}

/// Reads the first requests of a log; `-` is the standard input.
///
/// # Errors
/// When it cannot be read, or holds no request that was served.
pub(super) fn read(file: &Path, most: usize) -> Result<(Traffic, LogNotes), TraceError> {
    let unreadable = |error| TraceError::Unreadable { file: file.to_owned(), error };
    let read = if file.as_os_str() == "-" {
        read_lines(io::stdin().lock(), most)
    } else {
        read_lines(BufReader::new(File::open(file).map_err(unreadable)?), most)
    };
    let (served, notes) = read.map_err(unreadable)?;
    match (served.is_empty(), &notes.first_foreign) {
        (true, Some((line, what))) => {
            let what = format!("no line is an access record that can be replayed; this one is none: {what}");
            Err(TraceError::Line { file: file.to_owned(), line: *line, what })
        }
        (true, None) => Err(TraceError::Empty { file: file.to_owned() }),
        _ => Ok((traffic(served), notes)),
    }
}

fn read_lines(mut input: impl BufRead, most: usize) -> io::Result<(Vec<Served>, LogNotes)> {
    let (mut served, mut notes, mut line, mut number) = (Vec::new(), LogNotes::default(), Vec::new(), 0);
    while served.len() < most {
        line.clear();
        number += 1;
        let read = io::Read::take(&mut input, MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        if read as u64 == MAX_LINE_BYTES && line.last() != Some(&b'\n') {
            input.skip_until(b'\n')?;
            notes.note_foreign(number, format!("it is longer than {MAX_LINE_BYTES} bytes"));
        } else if !line.trim_ascii().is_empty() {
            match Record::parse(&line) {
                Ok(record) => served.extend(notes.sort(&record)),
                Err(error) => notes.note_foreign(number, error.to_string()),
            }
        }
    }
    notes.uncounted = served.iter().filter(|served| served.output_tokens.is_none()).count();
    notes.sort_servers();
    Ok((served, notes))
}

impl LogNotes {
    fn note_foreign(&mut self, line: usize, what: String) {
        self.foreign += 1;
        self.first_foreign.get_or_insert((line, what));
    }

    /// The request of a record, when it can be replayed.
    fn sort(&mut self, record: &Record) -> Option<Served> {
        let Some(prompt_tokens) = record.tokens_of_prompt() else {
            self.without_prompt += 1;
            return None;
        };
        if record.end == End::Rejected {
            self.rejected += 1;
            return None;
        }
        self.note_server(record, prompt_tokens);
        let job = Job {
            body_bytes: if record.body_bytes > 0 { record.body_bytes } else { prompt_tokens.saturating_mul(4) },
            max_tokens: record.max_tokens,
            ignore_eos: record.ignore_eos,
            is_streamed: record.stream,
            ..Job::new(0.0, prompt_tokens, 1)
        };
        Some(Served { time: record.time, output_tokens: record.output_tokens, job })
    }

    fn note_server(&mut self, record: &Record, prompt_tokens: u64) {
        let Some(name) = &record.server else { return };
        let known = self.servers.iter().position(|server| server == name);
        let server = known.unwrap_or_else(|| {
            self.servers.push(name.clone());
            self.servers.len() - 1
        });
        // An answer that is not streamed begins when it is complete; a second attempt has waited for the first.
        if let Some(ttft_s) = record.ttft_s.filter(|_| record.stream && record.attempts <= 1) {
            let new_tokens = prompt_tokens.saturating_sub(record.cached_tokens.unwrap_or_default());
            self.first_tokens.push(FirstToken { server, new_tokens, ttft_s: ttft_s - record.waited_s });
        }
    }

    fn sort_servers(&mut self) {
        let mut order: Vec<usize> = (0..self.servers.len()).collect();
        order.sort_by(|a, b| self.servers[*a].cmp(&self.servers[*b]));
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, server)| places[*server] = place);
        self.first_tokens.iter_mut().for_each(|first| first.server = places[first.server]);
        self.servers.sort();
    }

    /// What the operator should know, a sentence each.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if let Some((line, what)) = &self.first_foreign {
            let count = self.foreign;
            sentences.push(format!(
                "{count} lines are no access records and are left out, the first is line {line}: {what}"
            ));
        }
        let counts = [
            (self.without_prompt, "requests have no prompt and are left out"),
            (self.rejected, "requests were rejected and are left out: the traffic that was wanted was more"),
            (self.uncounted, "answers were not counted; the mean of the others stands for their length"),
        ];
        sentences.extend(counts.iter().filter(|(count, _)| *count > 0).map(|(count, text)| format!("{count} {text}")));
        sentences
    }
}

fn traffic(served: Vec<Served>) -> Traffic {
    let begin = served.iter().map(|served| served.time).min().unwrap_or(SystemTime::UNIX_EPOCH);
    let counted: Vec<u64> = served.iter().filter_map(|served| served.output_tokens).collect();
    let mean = counted.iter().fold(0_u64, |sum, tokens| sum.saturating_add(*tokens)).checked_div(counted.len() as u64);
    let usual = mean.unwrap_or(DEFAULT_OUTPUT_TOKENS);
    let job = |Served { time, output_tokens, job }: Served| Job {
        arrival_s: time.duration_since(begin).unwrap_or_default().as_secs_f64(),
        output_tokens: output_tokens.unwrap_or(usual).max(1),
        ..job
    };
    Traffic::recorded("access log".to_owned(), served.into_iter().map(job).collect(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(second: u64, more: &str) -> String {
        let time = humantime::format_rfc3339_micros(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second));
        let head =
            format!(r#""version":1,"time":"{time}","request_id":"a","endpoint":"/v1/completions","duration_s":1"#);
        format!("{{{head},{more}}}\n")
    }

    fn read_text(text: &str) -> (Vec<Job>, LogNotes) {
        let (served, notes) = read_lines(text.as_bytes(), 100).unwrap();
        (traffic(served).jobs(1), notes)
    }

    #[test]
    fn records_become_requests_in_order_of_arrival() {
        let text = [
            line(
                7,
                r#""end":"complete","prompt_tokens":50,"output_tokens":10,"stream":true,"server":"b","body_bytes":300,"ttft_s":0.5,"waited_s":0.2,"cached_tokens":20"#,
            ),
            line(5, r#""end":"client_gone","estimated_tokens":9,"output_tokens":20,"server":"a","max_tokens":64"#),
        ];
        let (jobs, notes) = read_text(&text.concat());
        let first = Job { max_tokens: Some(64), is_streamed: false, ..Job::new(0.0, 9, 20) };
        assert_eq!(jobs, [first, Job { body_bytes: 300, ..Job::new(2.0, 50, 10) }]);
        let first_tokens = vec![FirstToken { server: 1, new_tokens: 30, ttft_s: 0.3 }];
        assert_eq!(notes, LogNotes { servers: vec!["a".into(), "b".into()], first_tokens, ..LogNotes::default() });
        assert_eq!(notes.sentences(), [""; 0]);
    }

    #[test]
    fn what_cannot_be_replayed_is_counted_and_named() {
        let text = [
            "started\n".to_owned(),
            line(1, r#""end":"complete","prompt_tokens":5,"output_tokens":40,"stream":true"#),
            line(2, r#""end":"complete""#),
            "\n{}\n".to_owned(),
            line(3, r#""end":"rejected","estimated_tokens":7"#),
            line(4, r#""end":"upstream_broken","estimated_tokens":7,"stream":true"#),
        ];
        let (jobs, notes) = read_text(&text.concat());
        assert_eq!(jobs, [Job::new(0.0, 5, 40), Job::new(3.0, 7, 40)]);
        assert_eq!(
            notes.sentences(),
            [
                "2 lines are no access records and are left out, the first is line 1: expected value",
                "1 requests have no prompt and are left out",
                "1 requests were rejected and are left out: the traffic that was wanted was more",
                "1 answers were not counted; the mean of the others stands for their length",
            ]
        );
    }

    #[test]
    fn a_file_without_a_record_is_refused_with_the_reason() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"msg\":\"hello\"}\n").unwrap();
        let refused = read(file.path(), 9).unwrap_err().to_string();
        assert!(
            refused.ends_with(
                ":1: no line is an access record that can be replayed; this one is none: missing field `version`"
            ),
            "{refused}"
        );
        assert!(read(Path::new("/nowhere.log"), 9).unwrap_err().to_string().starts_with("/nowhere.log: "));
    }
}
