//! How much Tidegate holds: many slow streams, many idle connections, clients that do not read, and more connections
//! than files may be open. Prints figures; nothing is judged but what must never happen.
//!
//! ```sh
//! cargo bench --bench streams             # as many as the limit of open files lets
//! cargo bench --bench streams -- 500      # so many streams
//! ```
//!
//! A stream takes two files in Tidegate, one here and one in the server, which are three processes for that reason.
//! Linux only.

mod client;
mod process;
mod server;

use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use client::Clients;
use process::{ServerProcess, Tidegate};

/// Files that Tidegate needs beside connections, generously.
const OTHER_FILES: u64 = 200;
/// How long a steady state is watched.
const WATCHED: Duration = Duration::from_secs(30);
/// The limit of open files under which connections run out.
const FEW_FILES: u64 = 1_024;

const KIB: u64 = 1_024;
const MIB: u64 = 1_024 * KIB;

fn main() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("Linux has this limit");
    // 2^20 files are more than one address has ports.
    let files = hard.min(1 << 20);
    setrlimit(Resource::RLIMIT_NOFILE, files, hard).expect("the soft limit may be raised to the hard one");
    if std::env::args().any(|argument| argument == "server") {
        return server::run();
    }
    let asked = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let most = usize::try_from((files - OTHER_FILES) / 2).expect("limits are small").min(9_000);
    let streams = asked.unwrap_or(most).min(most);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built");
    runtime.block_on(async {
        println!("at most {files} open files");
        slow_streams(streams).await;
        idle_connections(streams * 2).await;
        unread_streams(50).await;
        few_files().await;
    });
}

/// Streams with an event every few seconds.
async fn slow_streams(count: usize) {
    let server = ServerProcess::start();
    let tidegate = Tidegate::start(&server, None);
    let mut clients = Clients::new(tidegate.address);
    clients.open_streams(1, "/slow").await;
    let (before, begin) = (tidegate.resident_bytes(), Instant::now());
    clients.open_streams(count, "/slow").await;
    let opened = begin.elapsed();
    let (cpu, events) = (tidegate.cpu_share(WATCHED).await, clients.events());
    println!("\n{count} streams, an event every {:?} on each:", server::PAUSE);
    println!(
        "  opened in {:.1} s ({:.0}/s), {} refused",
        opened.as_secs_f64(),
        per_second(count, opened),
        clients.failed()
    );
    let grown = tidegate.resident_bytes().saturating_sub(before);
    println!("  memory {:.1} MiB, {:.1} KiB for each stream", mib(grown), kib(grown, count));
    println!("  processor {:.1} % of one, {} files open, {events} events so far", cpu * 100.0, tidegate.open_files());
    server.end_streams();
    let (whole, broken) = clients.finish().await;
    println!("  {whole} ended whole, {broken} broken; {} events came", clients.events());
    assert_eq!((whole, clients.failed()), (count + 1, 0), "every stream is opened and ends whole");
    tidegate.settle(OTHER_FILES).await;
    let kept = tidegate.resident_bytes().saturating_sub(before);
    println!("  after them {} files open, memory {:.1} MiB above the start", tidegate.open_files(), mib(kept));
}

/// Connections that have been used once and then stay.
async fn idle_connections(count: usize) {
    let server = ServerProcess::start();
    let tidegate = Tidegate::start(&server, None);
    let mut clients = Clients::new(tidegate.address);
    clients.answer_once(1).await;
    let (before, begin) = (tidegate.resident_bytes(), Instant::now());
    clients.answer_once(count).await;
    let opened = begin.elapsed();
    let cpu = tidegate.cpu_share(Duration::from_secs(10)).await;
    let grown = tidegate.resident_bytes().saturating_sub(before);
    println!("\n{count} idle connections, each after one answer:");
    println!(
        "  opened in {:.1} s ({:.0}/s), {} failed",
        opened.as_secs_f64(),
        per_second(count, opened),
        clients.failed()
    );
    println!("  memory {:.1} MiB, {:.1} KiB for each connection", mib(grown), kib(grown, count));
    println!("  processor {:.2} % of one, {} files open", cpu * 100.0, tidegate.open_files());
    assert_eq!(clients.failed(), 0, "every connection is served");
}

/// Clients that read the header of 64 MiB and nothing more.
async fn unread_streams(count: usize) {
    let server = ServerProcess::start();
    let tidegate = Tidegate::start(&server, None);
    let mut clients = Clients::new(tidegate.address);
    clients.open_streams(1, "/slow").await;
    let before = tidegate.resident_bytes();
    let unread = clients.open_unread(count).await;
    let cpu = tidegate.cpu_share(Duration::from_secs(5)).await;
    let grown = tidegate.resident_bytes().saturating_sub(before);
    println!("\n{count} clients that do not read their 64 MiB:");
    println!(
        "  memory {:.1} MiB, {:.1} KiB for each; processor {:.1} % of one",
        mib(grown),
        kib(grown, count),
        cpu * 100.0
    );
    assert!(grown < count as u64 * 2 * MIB, "what is not read waits at the server");
    drop(unread);
    tidegate.settle(30 + OTHER_FILES / 10).await;
}

/// More streams than files.
async fn few_files() {
    let server = ServerProcess::start();
    let tidegate = Tidegate::start(&server, Some(FEW_FILES));
    let mut clients = Clients::new(tidegate.address);
    let early = 200;
    clients.open_streams(early, "/slow").await;
    let mut more = Clients::new(tidegate.address);
    more.press(usize::try_from(FEW_FILES).expect("it is small")).await;
    let events = clients.events();
    let cpu = tidegate.cpu_share(Duration::from_secs(10)).await;
    println!("\n{FEW_FILES} open files at most, {early} streams, then {FEW_FILES} requests for more:");
    let [answered, refused, waiting] = more.outcomes();
    println!("  {answered} streams, {refused} refused (502), {waiting} wait; {} files open", tidegate.open_files());
    println!("  processor {:.1} % of one; the early streams got {} events", cpu * 100.0, clients.events() - events);
    more.leave();
    let mut after = Clients::new(tidegate.address);
    let begin = Instant::now();
    after.open_streams(100, "/slow").await;
    println!(
        "  when they are gone 100 new streams open in {:.1} s, {} refused",
        begin.elapsed().as_secs_f64(),
        after.failed()
    );
    server.end_streams();
    let (whole, broken) = clients.finish().await;
    println!("  of the early streams {whole} end whole, {broken} broken");
    assert_eq!((whole, after.failed()), (early, 0), "running streams go on, and new ones open afterwards");
}

fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn kib(bytes: u64, count: usize) -> f64 {
    bytes as f64 / KIB as f64 / count as f64
}
