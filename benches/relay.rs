//! What the proxy adds: to each event of a stream, and to a small request.
//!
//! A fake server stamps each event with the time at which it writes it; the client, in the same process and on the
//! same clock, reads it directly and through the real binary, in alternating rounds. Run it with
//! `cargo bench --bench relay`; both sides are measured in the same run, so the ratio means something on a noisy
//! machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const EVENTS: usize = 1_000;
const BETWEEN_EVENTS: Duration = Duration::from_millis(1);
const REQUESTS: usize = 2_000;

fn main() {
    // Criterion's own flags (`--bench`) come in; there is nothing to choose here.
    let base = Instant::now();
    let server = serve(base);
    let (proxy, _running) = start_tidegate(server);

    println!("{EVENTS} events, one a millisecond, {ROUNDS} rounds each way; delay from write to read:");
    let (direct, proxied) = alternate(|address| stream_delays(address, base), server, proxy);
    report(&direct, &proxied);
    println!("{REQUESTS} small requests one after the other on one connection, {ROUNDS} rounds each way; round trip:");
    let (direct, proxied) = alternate(round_trips, server, proxy);
    report(&direct, &proxied);
}

fn alternate(
    measure: impl Fn(SocketAddr) -> Vec<Duration>,
    direct: SocketAddr,
    proxied: SocketAddr,
) -> (Vec<Duration>, Vec<Duration>) {
    let (mut direct_times, mut proxied_times) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        direct_times.extend(measure(direct));
        proxied_times.extend(measure(proxied));
    }
    direct_times.sort();
    proxied_times.sort();
    (direct_times, proxied_times)
}

fn report(direct: &[Duration], proxied: &[Duration]) {
    for (name, percent) in [("median", 50), ("p99", 99)] {
        let at = |times: &[Duration]| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        let (direct, proxied) = (at(direct), at(proxied));
        println!(
            "  {name:<6} direct {direct:7.1} us   through tidegate {proxied:7.1} us   added {:7.1} us   ratio {:.2}",
            proxied - direct,
            proxied / direct
        );
    }
}

/// The delay of each event of one stream.
fn stream_delays(address: SocketAddr, base: Instant) -> Vec<Duration> {
    let mut reader = request(address, r#"{"stream":true}"#);
    let mut delays = Vec::with_capacity(EVENTS);
    let mut line = String::new();
    while delays.len() < EVENTS {
        line.clear();
        assert!(reader.read_line(&mut line).expect("the stream goes on") > 0, "the stream ended early");
        if let Some(stamp) = line.strip_prefix("data: ") {
            let sent_ns: u64 = stamp.trim().parse().expect("a time stamp");
            delays.push(base.elapsed().saturating_sub(Duration::from_nanos(sent_ns)));
        }
    }
    delays
}

/// The time of each of many small requests on one connection.
fn round_trips(address: SocketAddr) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).expect("the address is served");
    stream.set_nodelay(true).expect("a TCP option");
    let mut answer = vec![0; 64 * 1024];
    (0..REQUESTS)
        .map(|_| {
            let begin = Instant::now();
            stream.write_all(&post("{}")).expect("the request goes out");
            let mut length = 0;
            while !answer[..length].ends_with(b"{\"ok\":1}") {
                let read = stream.read(&mut answer[length..]).expect("an answer");
                assert!(read > 0, "the connection ended early");
                length += read;
            }
            begin.elapsed()
        })
        .collect()
}

fn post(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn request(address: SocketAddr, body: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).expect("the address is served");
    stream.write_all(&post(body)).expect("the request goes out");
    BufReader::new(stream)
}

/// A server that streams time stamps to requests that ask for a stream, and answers the others at once.
fn serve(base: Instant) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || answer(&stream, base));
        }
    });
    address
}

/// Answers the requests of one connection; ends when the client does.
fn answer(mut stream: &TcpStream, base: Instant) -> Option<()> {
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
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if body.starts_with(br#"{"stream"#) {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
            let mut next = Instant::now();
            for _ in 0..EVENTS {
                next += BETWEEN_EVENTS;
                thread::park_timeout(next.saturating_duration_since(Instant::now()));
                let event = format!("data: {}\n\n", base.elapsed().as_nanos());
                stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).ok()?;
            }
            stream.write_all(b"0\r\n\r\n").ok()?;
        } else {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"ok\":1}").ok()?;
        }
    }
}

/// Ends the process when the benchmark does.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).map_or_else(|error| eprintln!("tidegate: {error}"), drop);
    }
}

fn start_tidegate(server: SocketAddr) -> (SocketAddr, Running) {
    // The port is free when it is looked for; nobody else takes ports on this address.
    let own_address = format!("127.{}.{}.7:0", std::process::id() % 250 + 1, std::process::id() / 250 % 250);
    let address =
        TcpListener::bind(own_address).and_then(|listener| listener.local_addr()).expect("a free port on loopback");
    let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()])
        .args(["--server-hosts", &server.ip().to_string(), "--server-ports", &server.port().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary is there");
    let running = Running(child);
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "tidegate does not listen");
        thread::park_timeout(Duration::from_millis(20));
    }
    (address, running)
}
