//! Counts the instructions that a request takes, part by part and as a whole, with Valgrind: a count does not depend on how
//! busy the machine is, so that it can be compared with what was recorded.
//!
//! ```text
//! cargo bench --bench instructions                       # optimised: the figures that matter
//! cargo build --benches && target/debug/deps/instructions-… --check benches/instructions.tsv
//! ```
//!
//! The second is what `.ci/run` does: as the tests are compiled, so that nothing is compiled for it. Those figures are larger,
//! and grow like the others when work is added: a count that is more than a tenth above the recorded one fails.
//! `--record FILE` writes them anew.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tidegate::drive::Setup;
use tidegate::prompt::{Endpoint, content, measure};
use tidegate::work::{Dispatcher, Request, RequestId};

/// More than this above what was recorded fails: compilers differ by a few hundredths.
const MOST_ABOVE: f64 = 1.10;

/// A part's name, how often it is repeated, and what is called with a number of rounds. It is called with that number and with
/// twice that: the difference is what the repetitions take, without what comes before.
type Part = (&'static str, usize, fn(usize));

const PARTS: [Part; 6] = [
    ("decision, lanes, 8 servers", 40, |rounds| decide(8, rounds)),
    ("decision, lanes, 64 servers", 40, |rounds| decide(64, rounds)),
    ("decision, lanes, 512 servers", 40, |rounds| decide(512, rounds)),
    ("reading a chat, 1 KiB", 40, |rounds| read(1 << 10, "The tide comes in twice a day. ", rounds)),
    ("reading a chat, 64 KiB", 4, |rounds| read(64 << 10, "The tide comes in twice a day. ", rounds)),
    ("reading a chat, 64 KiB, Chinese", 4, |rounds| read(64 << 10, "潮水每天涨落两次。", rounds)),
];

/// The same of a whole request.
const WHOLE_ROUNDS: usize = 400;

const WHOLE: &str = "a whole request, 1 KiB";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        // Under Valgrind, one part.
        ["part", name, rounds] => {
            let (_, _, run) = PARTS.into_iter().find(|(part, ..)| *part == name).expect("a part's name");
            run(rounds.parse().expect("a number"));
            ExitCode::SUCCESS
        }
        [] => {
            count_all().iter().for_each(|(name, count)| println!("{count:>12}  {name}"));
            ExitCode::SUCCESS
        }
        ["--record", file] => {
            let lines: Vec<String> = count_all().iter().map(|(name, count)| format!("{name}\t{count}\n")).collect();
            std::fs::write(file, lines.concat()).expect("the file can be written");
            ExitCode::SUCCESS
        }
        ["--check", file] => check(&std::fs::read_to_string(file).expect("the recorded counts")),
        _ => panic!("--check FILE, --record FILE, or nothing"),
    }
}

fn check(recorded: &str) -> ExitCode {
    let mut has_grown = false;
    for (name, count) in count_all() {
        let line = recorded.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        let before: u64 = line.and_then(|count| count.parse().ok()).expect("each part has a recorded count");
        let ratio = count as f64 / before as f64;
        let verdict = match ratio {
            _ if ratio > MOST_ABOVE => "MORE THAN RECORDED",
            _ if ratio < 1.0 / MOST_ABOVE => "less: record it (--record)",
            _ => "",
        };
        has_grown |= ratio > MOST_ABOVE;
        println!("{count:>12}  {ratio:>5.2} of {before:>12}  {name}  {verdict}");
    }
    if has_grown { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn count_all() -> Vec<(&'static str, u64)> {
    let own = std::env::current_exe().expect("this program has a file");
    let of_part = |(name, rounds, _): Part| {
        let run = |rounds: usize| {
            let mut command = valgrind();
            command.arg(&own).args(["part", name, &rounds.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
            collected(command.stderr(Stdio::piped()).spawn().expect("valgrind is installed"))
        };
        (name, run(2 * rounds).saturating_sub(run(rounds)) / rounds as u64)
    };
    let mut counts: Vec<(&str, u64)> = PARTS.into_iter().map(of_part).collect();
    counts.push((WHOLE, whole_request()));
    counts
}

fn valgrind() -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command
}

/// The instructions that a process under Valgrind has taken, once it ends.
fn collected(mut child: Child) -> u64 {
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("text");
    let ended = child.wait().expect("it was started");
    let line = said.lines().find_map(|line| line.split_once("Collected : "));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    count.unwrap_or_else(|| panic!("valgrind ({ended}) counted nothing:\n{said}"))
}

/// Arrival, decision, first token and end, so many times, with 20 streams on each server.
fn decide(servers: usize, rounds: usize) {
    let mut dispatcher: Dispatcher = Setup::new("lanes", servers).dispatcher().expect("the policy is known");
    let before = 20 * servers as u64;
    for id in 0..before + rounds as u64 {
        let prompt_tokens = if id % 30 == 0 { 40_000 } else { 100 + id % 700 };
        dispatcher.arrive(Request::of_tokens(id, prompt_tokens), 0.0).expect("each number is used once");
        dispatcher.outcomes().for_each(|outcome| _ = black_box(outcome));
        dispatcher.first_token(RequestId(id), 0.0);
        if id >= before {
            dispatcher.end(RequestId(id), true, Some(200), 0.0);
        }
    }
}

/// Reads a chat of about so many bytes, so many times.
fn read(bytes: usize, sentence: &str, rounds: usize) {
    let text = sentence.repeat(bytes.div_ceil(sentence.len()));
    let body = chat(&text);
    for _ in 0..rounds {
        black_box(content(Endpoint::Chat, black_box(body.as_bytes())));
        black_box(measure(black_box(body.as_bytes())));
    }
}

fn chat(text: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}],"max_tokens":64}}"#)
}

/// What the whole program takes for one request more, with one client and one server.
fn whole_request() -> u64 {
    let server = serve();
    let run = |rounds: usize| {
        // Looked for before: nobody else takes ports on this address.
        let own = format!("127.{}.{}.9:0", std::process::id() % 250 + 1, std::process::id() / 250 % 250);
        let address = TcpListener::bind(own).and_then(|listener| listener.local_addr()).expect("a free port");
        let mut command = valgrind();
        command.arg(env!("CARGO_BIN_EXE_tidegate")).args(["--host", &address.ip().to_string()]);
        command.args(["--port", &address.port().to_string(), "--server-hosts", &server.ip().to_string()]);
        command.args(["--server-ports", &server.port().to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::piped()).spawn().expect("valgrind is installed");
        let process = child.id();
        exchange(address, rounds);
        // The program ends at once when nothing runs.
        let stopped = Command::new("kill").args(["-TERM", &process.to_string()]).status().expect("there is a kill");
        assert!(stopped.success(), "the program has ended early");
        collected(child)
    };
    // What it does by the clock (checks of health) comes in both, and is little beside so many.
    run(2 * WHOLE_ROUNDS).saturating_sub(run(WHOLE_ROUNDS)) / WHOLE_ROUNDS as u64
}

fn exchange(address: SocketAddr, rounds: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "the program does not listen: {error}"),
        }
        thread::park_timeout(Duration::from_millis(50));
    };
    let body = chat(&"The tide comes in twice a day. ".repeat(33));
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {}\r\n\r\n", body.len());
    let request = [head, body].concat();
    let mut answer = vec![0; 64 << 10];
    for _ in 0..rounds {
        stream.write_all(request.as_bytes()).expect("the request goes out");
        let mut length = 0;
        while !answer[..length].ends_with(b"{\"ok\":1}") {
            let read = stream.read(&mut answer[length..]).expect("an answer");
            assert!(read > 0, "the connection ended early");
            length += read;
        }
    }
}

/// A server that answers every request.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(&stream));
        }
    });
    address
}

/// Answers the requests of one connection; ends when the client does.
fn answer(mut stream: &TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            (reader.read_line(&mut line).ok()? > 0).then_some(())?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line == "\r\n" {
                break;
            }
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink()).ok()?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"ok\":1}").ok()?;
    }
}
