//! Replays what a real vLLM put on the wire: a client sends the captured request, a fake server answers with the
//! captured bytes, and the client must get the same through Tidegate as without it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::support::*;

/// Requests that Tidegate refuses by itself with 400 before any server sees them. vLLM, too, answers 400 to most; not to
/// a missing or doubled host, and it has no limit of 256 header fields.
const REFUSED: [&str; 11] = [
    "http-bad-chunk",
    "http-bad-request-line",
    "http-bare-lf",
    "http-headers-300",
    "http-no-host",
    "http-obs-fold",
    "http-space-in-header",
    "http-te-gzip-chunked",
    "http-tls-hello",
    "http-two-cl",
    "http-two-hosts",
];

/// Connections that the server ended without an answer.
const NO_ANSWER: [&str; 4] = [
    "life-kill9-plain",
    "life-sigterm-drain-short-plain",
    "life-sigterm-hang-late-plain",
    "life-sigterm-hang-late-stream",
];

/// What is not replayed, and why.
const SKIPPED: [(&str, &str); 13] = [
    ("http-bad-method", "vLLM's parser refuses the method; Tidegate passes any method on (headers.rs)"),
    ("http-body-extra", "the bytes behind the body are a second, broken request (security.rs)"),
    ("http-h2-preface", "Tidegate speaks h2c (wire.rs)"),
    ("http-cl-and-te", "vLLM refuses it; Tidegate may take it in one clear way (security.rs)"),
    ("http-expect-100-wrong-path", "the body was never sent; Tidegate tells clients to send (body.rs)"),
    ("http-half-close-post", "no answer: the client has left (release.rs)"),
    ("http-half-close-stream", "no answer: the client has left (release.rs)"),
    ("http-idle-half-request", "no whole request (limits.rs)"),
    ("http-idle-no-request", "no request (limits.rs)"),
    ("life-disconnect-plain-fin", "no answer: the client has left (release.rs)"),
    ("life-disconnect-plain-half", "no answer: the client has left (release.rs)"),
    ("life-disconnect-plain-rst", "no answer: the client has left (release.rs)"),
    ("life-disconnect-waiting", "no answer: the client has left (release.rs)"),
];

/// Requests that were cut for storing, and how long they were.
const CUT_REQUESTS: [(&str, usize); 2] = [("http-body-5mb", 5_000_237), ("http-early-error-big-body", 5_000_227)];

/// Fields that a proxy makes anew for its own connection, and those that Tidegate adds.
const NOT_END_TO_END: [&str; 4] = ["connection", "keep-alive", "transfer-encoding", "x-request-id"];

struct Capture {
    name: String,
    request: Vec<u8>,
    /// One per request on the connection.
    responses: Vec<Vec<u8>>,
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/vllm-wire")
}

impl Capture {
    fn all() -> Vec<Self> {
        let files = std::fs::read_dir(directory()).expect("the captures are there");
        let names =
            files.filter_map(|file| file.unwrap().file_name().to_str()?.strip_suffix(".req").map(str::to_owned));
        let names: BTreeSet<String> = names.collect();
        names.into_iter().map(Self::read).collect()
    }

    fn read(name: String) -> Self {
        let file = |kind: &str| std::fs::read(directory().join(format!("{name}.{kind}"))).unwrap();
        let mut request = file("req");
        if let Some((_, length)) = CUT_REQUESTS.iter().find(|(cut, _)| *cut == name) {
            request.resize(*length, b'x');
        }
        let mut bytes = file("resp");
        if let Some(cut) = bytes.windows(11).position(|window| window == b"\n...cut...\n") {
            bytes.truncate(cut);
        }
        let starts: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"HTTP/1.1 ")).collect();
        let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
        let parts = starts.iter().zip(ends).map(|(start, end)| bytes[*start..end].to_vec());
        // `100 Continue` is Tidegate's own: it does not pass the expectation on.
        let responses = parts.filter(|part| !part.starts_with(b"HTTP/1.1 100")).collect();
        Self { name, request, responses }
    }

    fn method(&self) -> String {
        String::from_utf8_lossy(self.request.split(|byte| *byte == b' ').next().unwrap()).into_owned()
    }

    /// Sends the request and reads as many responses as there were; what a client sees of each, or why there is none.
    async fn replay(&self, to: std::net::SocketAddr) -> Vec<Result<Response, String>> {
        let mut client = Client::connect(to).await;
        client.send(&self.request).await;
        let mut responses = Vec::new();
        for _ in &self.responses {
            let response = tokio::time::timeout(PATIENCE / 4, client.try_response(&self.method())).await;
            let response = response.map_err(|_| "nothing came".to_owned());
            responses
                .push(response.and_then(|response| response.map_err(|end| format!("{end:?} in place of a header"))));
            if responses.last().is_some_and(Result::is_err) {
                break;
            }
        }
        responses
    }
}

/// The answers of a capture, one for each request; the last one again and again.
#[derive(Debug, Default)]
struct Tape {
    answers: Vec<Vec<u8>>,
    next: usize,
}

impl Tape {
    fn of(capture: &Capture) -> Self {
        Self { answers: capture.responses.clone(), next: 0 }
    }

    fn play(&mut self) -> Vec<u8> {
        let answer = self.answers[self.next.min(self.answers.len() - 1)].clone();
        self.next += 1;
        answer
    }
}

/// A server that plays the tape, and closes behind an answer that is not whole.
async fn player(tape: &Arc<Mutex<Tape>>) -> Backend {
    let tape = Arc::clone(tape);
    Backend::start(move |mut conn: Conn| {
        let tape = Arc::clone(&tape);
        async move {
            while conn.request().await.is_some() {
                let answer = tape.lock().play();
                if !conn.send(&answer).await {
                    return;
                }
                if !is_whole(&answer) {
                    return conn.finish().await;
                }
            }
        }
    })
    .await
}

/// Whether a captured response is whole: streams that were cut lack their last chunk.
fn is_whole(response: &[u8]) -> bool {
    let is_chunked = response.windows(26).any(|window| window == b"transfer-encoding: chunked");
    !is_chunked || response.ends_with(b"\r\n0\r\n\r\n")
}

/// What is not the same with and without Tidegate, of status, fields, body, and whether the body is whole.
fn difference(direct: &Response, through: &Response) -> Option<String> {
    let seen = |response: &Response| {
        let mut lines = vec![format!("{} {}", response.status(), response.end == End::Complete)];
        lines.extend(end_to_end(&response.head).into_iter().map(|(name, value)| format!("{name}: {value}")));
        lines.push(response.text());
        lines
    };
    let (mut without, mut with) = (seen(direct), seen(through));
    if without == with {
        let ids = through.head.all("x-request-id");
        return (ids.len() != 1).then(|| format!("request ids {ids:?}"));
    }
    let common: BTreeSet<_> = without.iter().filter(|line| with.contains(line)).cloned().collect();
    without.retain(|line| !common.contains(line));
    with.retain(|line| !common.contains(line));
    Some(format!("{without:?} became {with:?}"))
}

fn end_to_end(head: &Head) -> Vec<(String, String)> {
    let mut fields: Vec<_> =
        head.fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    fields.retain(|(name, _)| !NOT_END_TO_END.contains(&name.as_str()));
    // Stable, so that values of one name keep their order.
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    fields
}

#[tokio::test]
async fn every_response_of_a_real_server_arrives_as_it_was() {
    let tape = Arc::new(Mutex::new(Tape::default()));
    let server = player(&tape).await;
    // What Tidegate keeps back on purpose is let through.
    let setup = Setup::one_group([&server]).section("headers", "{ strip: [] }");
    let setup = setup.section("access", "{ open_admin_paths: all }").without_health();
    let tidegate = Tidegate::start(&setup).await;
    let mut replayed = 0;
    let mut differences = Vec::new();
    for capture in Capture::all() {
        let name = capture.name.as_str();
        let is_special =
            REFUSED.contains(&name) || NO_ANSWER.contains(&name) || SKIPPED.iter().any(|(skipped, _)| *skipped == name);
        if is_special {
            continue;
        }
        assert!(!capture.responses.is_empty(), "{name}: no response, and no reason is listed");
        *tape.lock() = Tape::of(&capture);
        let direct = capture.replay(server.address()).await;
        *tape.lock() = Tape::of(&capture);
        let through = capture.replay(tidegate.address).await;
        replayed += 1;
        for (direct, through) in direct.iter().zip(&through) {
            let direct = direct.as_ref().unwrap_or_else(|why| panic!("{name} from the player: {why}"));
            match through {
                Ok(through) => differences.extend(difference(direct, through).map(|what| format!("{name}: {what}"))),
                Err(why) => differences.push(format!("{name}: {why}")),
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(replayed > 200, "only {replayed} captures were replayed");
    tidegate.idle().await;
}

#[tokio::test]
async fn requests_that_are_framed_wrongly_are_refused_before_a_server_sees_them() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut wrong = Vec::new();
    for name in REFUSED {
        let capture = Capture::read(name.into());
        let mut client = tidegate.begin(&capture.request).await;
        let response = client.response_within(Duration::from_secs(2)).await;
        let status = response.map(|response| response.map(|response| response.status()));
        let is_closed = client.closed_within(Duration::from_secs(2)).await.is_some();
        if status != Some(Ok(400)) || !is_closed || server.count() > 0 {
            wrong.push(format!("{name}: {status:?}, closed: {is_closed}, {} requests at the server", server.count()));
        }
        server.forget();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    tidegate.idle().await;
}

#[tokio::test]
async fn servers_that_were_killed_before_they_answered_give_502() {
    for resets in [false, true] {
        let server = Backend::start(move |mut conn: Conn| async move {
            conn.request().await;
            if resets { conn.reset() } else { conn.finish().await }
        })
        .await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        for name in NO_ANSWER {
            let capture = Capture::read(name.into());
            assert!(capture.responses.is_empty(), "{name} has an answer");
            assert_refusal(&tidegate.exchange(&capture.request).await, 502);
        }
        tidegate.idle().await;
    }
}

#[tokio::test]
async fn an_overloaded_server_is_replaced_by_another_one() {
    let capture = Capture::read("life-limit-stream".into());
    let tape = Arc::new(Mutex::new(Tape::of(&capture)));
    let (full, free) = (player(&tape).await, Backend::start(echo()).await);
    let tidegate = Tidegate::start(&Setup::one_group([&full, &free])).await;
    let response = tidegate.exchange(&capture.request).await;
    assert_eq!(response.status(), 200);
    tokio::time::timeout(Duration::from_secs(1), full.whole_requests(1)).await.unwrap();
    assert_eq!(free.count(), 1);
}

#[test]
fn every_listed_capture_exists() {
    let names: BTreeSet<String> = Capture::all().into_iter().map(|capture| capture.name).collect();
    let skipped = SKIPPED.iter().map(|(name, _)| *name);
    for name in REFUSED.into_iter().chain(NO_ANSWER).chain(skipped).chain(CUT_REQUESTS.map(|(name, _)| name)) {
        assert!(names.contains(name), "{name}");
    }
}
