//! Everything at once, by the roll of seeded dice: servers that are killed, start slowly, refuse, reset, hang, break off
//! or are slow, and whose probes fail; clients that leave; plain requests and streams of all lengths; drains; reloads
//! that move servers and thresholds and change the policy; a changing list of servers. Of each group one server stays good and in service, so
//! that every request could be served.
//!
//! In CI it runs for a few seconds. A long run: `TIDEGATE_CHAOS_SECONDS=600 TIDEGATE_CHAOS_SEED=7 cargo nextest run chaos
//! --no-capture`. A run tells its seed. Everybody has a die of their own: the same seed has everybody do the same in the
//! same order, though not at the same moments.

mod book;
mod clients;
mod plan;
mod servers;
mod trouble;
mod watcher;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::support::*;
use book::Book;
use clients::{Bodies, Chaotic, Outcome, Outcomes};
use plan::{FOUND, Fleet, LISTED, Plan, STEADY};
use servers::Server;
use trouble::{Listing, Operators, servers_of};

/// Each eighth speaks HTTP/2.
const CLIENTS: usize = 48;

/// Who rolls a die.
#[derive(Debug, Clone, Copy)]
enum Roller {
    Bodies,
    Reloads,
    Drains,
    Discovery,
    Server(usize),
    Client(usize),
}

impl Roller {
    fn die(self, seed: u64) -> StdRng {
        let number = match self {
            Self::Bodies => 0,
            Self::Reloads => 1,
            Self::Drains => 2,
            Self::Discovery => 3,
            Self::Server(number) => 100 + number,
            Self::Client(number) => 1_000 + number,
        };
        StdRng::seed_from_u64(seed ^ ((number as u64) << 32))
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("a whole number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chaos_loses_no_request_that_could_be_served_and_leaves_nothing_behind() {
    let seconds = setting("TIDEGATE_CHAOS_SECONDS", 6);
    let seed = setting("TIDEGATE_CHAOS_SEED", 20_261_129);
    println!("chaos: seed {seed}, {seconds} s");
    let book = Book::default();
    let bodies = Arc::new(Bodies::new(Roller::Bodies.die(seed)));
    let mut servers = Vec::new();
    for number in 0..STEADY + LISTED + FOUND {
        servers.push(Server::start(number, &book, &bodies).await);
    }
    let fleet = Fleet::new(&servers);
    let [address, admin] = Loopback::new().free_ports();
    let plan = Plan::everybody().yaml(&fleet, [address, admin]);
    let tidegate = Tidegate::start_with(address, admin, &plan).await;
    let listing = Mutex::new(Listing::default());
    let operators = Operators { tidegate: &tidegate, fleet: &fleet, book: &book, listing: &listing };
    operators.find_everybody().await;
    let client = |number| Chaotic { tidegate: &tidegate, book: &book, bodies: &bodies, number };
    let files = tidegate.metric("process_open_fds", &[]).await;
    let memory = Memory::start(&tidegate, Duration::from_secs(seconds));

    let until_then = Instant::now() + Duration::from_secs(seconds);
    let clients = join_all((0..CLIENTS).map(async |number| {
        let (client, die) = (client(number), Roller::Client(number).die(seed));
        if number % 8 == 0 { client.run_h2(die, until_then).await } else { client.run(die, until_then).await }
    }));
    let troubles = join_all(servers.iter_mut().skip(STEADY).map(async |server| {
        let die = Roller::Server(server.number).die(seed);
        server.misbehave(die, until_then).await;
        server.recover().await;
    }));
    let (outcomes, _, (), (), (), (), grown) = tokio::join!(
        clients,
        troubles,
        operators.reload(Roller::Reloads.die(seed), until_then),
        operators.drain(Roller::Drains.die(seed), until_then),
        operators.discover(Roller::Discovery.die(seed), until_then),
        watcher::watch(&tidegate, &fleet, &book, until_then),
        memory.watch(&tidegate),
    );

    operators.undrain_everybody().await;

    let mut sums = Outcomes::new();
    for (outcome, count) in outcomes.into_iter().flatten() {
        *sums.entry(outcome).or_insert(0) += count;
    }
    println!("chaos: {} requests: {sums:?}", sums.values().sum::<u64>());
    println!("chaos: {:?}", book.tally());
    print_metrics(&tidegate).await;
    tidegate.idle().await;
    book.assert_no_violations();
    assert_accounts(&tidegate, &sums).await;
    assert_all_gauges_are_zero(&tidegate).await;
    let mut open = 0.0;
    until("all files are closed again", async || {
        open = tidegate.metric("process_open_fds", &[]).await;
        open <= files + 4.0
    })
    .await;
    println!("chaos: {files} files were open at the start, {open} at the end");
    println!("chaos: memory grew by {} KiB, {} KiB of that after the first third", grown.all >> 10, grown.late >> 10);
    assert!(grown.all < 128 << 20 && grown.late < 64 << 20, "memory grew by {grown:?} bytes");
    assert_all_serve_again(&client(CLIENTS), &fleet).await;
    assert_probes_decide(&tidegate, &servers[STEADY..]).await;
    let tally = book.tally();
    for what in ["servers killed", "listeners closed", "health flaps", "reloads", "drains", "discovery files changed"] {
        assert!(tally.contains_key(what), "there were {what}: {tally:?}");
    }
}

/// Memory in use as a run goes on.
struct Memory {
    start: u64,
    settled_after: Duration,
    ends_after: Duration,
}

#[derive(Debug)]
struct Grown {
    all: u64,
    /// Since the first third of the run was over.
    late: u64,
}

impl Memory {
    fn start(tidegate: &Tidegate, run: Duration) -> Self {
        Self { start: tidegate.rss_bytes(), settled_after: run / 3, ends_after: run }
    }

    async fn watch(&self, tidegate: &Tidegate) -> Grown {
        tokio::time::sleep(self.settled_after).await;
        let settled = tidegate.rss_bytes();
        tokio::time::sleep(self.ends_after - self.settled_after).await;
        let end = tidegate.rss_bytes();
        Grown { all: end.saturating_sub(self.start), late: end.saturating_sub(settled) }
    }
}

/// Tidegate counts each request in one outcome, the one that its client saw. What became of requests whose clients left
/// is not known to the clients; some were gone before their header was read.
async fn assert_accounts(tidegate: &Tidegate, sums: &Outcomes) {
    let seen = |outcome| sums.get(&outcome).copied().unwrap_or_default();
    let left = seen(Outcome::Left);
    let all = ["complete", "upstream_broken", "rejected", "client_gone"];
    let expected = [
        seen(Outcome::Answered) + seen(Outcome::Failed),
        seen(Outcome::BrokenOff),
        seen(Outcome::TimedOut) + seen(Outcome::Denied),
        0,
    ];
    let sent: u64 = sums.values().sum();
    let mut counted = [0; 4];
    until("every request is counted in exactly one outcome", async || {
        let status = tidegate.status().await;
        counted = all.map(|outcome| status["totals"]["requests"][outcome].as_u64().expect("a number"));
        (sent - left..=sent).contains(&counted.iter().sum())
    })
    .await;
    println!("chaos: counted {all:?} {counted:?}");
    // Each request that was let in had one attempt, and one more for each retry. Those of clients that left may have
    // had none, or have been left before the retry.
    let attempts = tidegate.metric("tidegate_attempts_total", &[]).await;
    let retries = tidegate.metric("tidegate_retries_total", &[]).await;
    let let_in = float(sent - seen(Outcome::Denied)) + retries;
    assert!(
        (let_in - 2.0 * float(left)..=let_in).contains(&attempts),
        "{attempts} attempts, {retries} retries, {sums:?}"
    );
    for ((outcome, counted), expected) in all.iter().zip(counted).zip(expected) {
        assert!((expected..=expected + left).contains(&counted), "{outcome}: {counted}, clients saw {sums:?}");
    }
    assert!(seen(Outcome::Answered) > sent / 2, "{sums:?}");
}

fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).expect("there are not that many"))
}

/// What counts what runs or waits says that nothing does.
async fn assert_all_gauges_are_zero(tidegate: &Tidegate) {
    for gauge in [
        "tidegate_server_load_tokens",
        "tidegate_server_in_flight_requests",
        "tidegate_group_load_tokens",
        "tidegate_group_in_flight_requests",
        "tidegate_queue_requests",
        "tidegate_queue_bytes",
        "tidegate_server_draining",
    ] {
        assert_eq!(tidegate.metric(gauge, &[]).await, 0.0, "{gauge}");
    }
    assert_eq!(tidegate.status().await["leaving"], serde_json::json!([]));
}

/// When all trouble is over every server is in service, is probed, and gets requests.
async fn assert_all_serve_again(client: &Chaotic<'_>, fleet: &Fleet) {
    let arrived = || (0..fleet.addresses.len()).map(|server| client.book.arrived(server)).collect::<Vec<_>>();
    let before = arrived();
    until("all servers get requests", async || {
        client.simple_requests().await;
        arrived().iter().zip(&before).all(|(now, before)| now > before)
    })
    .await;
    until("all servers are healthy", async || {
        client.simple_requests().await;
        let status = client.tidegate.status().await;
        servers_of(&status).count() == fleet.addresses.len()
            && servers_of(&status).all(|server| server["health"] == "healthy" && server["draining"] == false)
    })
    .await;
}

/// Every server is probed: one that answers badly goes out, and comes back.
async fn assert_probes_decide(tidegate: &Tidegate, servers: &[Server]) {
    for (is_good, health) in [(false, "out"), (true, "probation")] {
        servers.iter().for_each(|server| server.answer_probes(is_good));
        for server in servers {
            let name = server.address.to_string();
            until(&format!("{name} (server {}) is {health} by probes", server.number), async || {
                let status = tidegate.status().await;
                let shown = servers_of(&status).find(|shown| shown["name"] == name.as_str());
                shown.is_some_and(|shown| shown["health"] == health && shown["health_reason"] == "probes")
            })
            .await;
        }
    }
}

/// What happened, as far as Tidegate counts it.
async fn print_metrics(tidegate: &Tidegate) {
    for (name, label, values) in [
        (
            "tidegate_attempts_total",
            "result",
            &["answered", "broken", "client_gone", "connect_failed", "refused_5xx", "timed_out", "too_long"][..],
        ),
        ("tidegate_retries_total", "reason", &["connect", "reset", "status"]),
        (
            "tidegate_ejections_total",
            "reason",
            &["probes", "connect", "reset", "status", "first_byte", "stream", "saturated", "leaving"],
        ),
        ("tidegate_probes_total", "result", &["passed", "failed"]),
        ("tidegate_queue_exits_total", "result", &["served", "asked_again", "time_up", "client_gone"]),
    ] {
        let mut text = String::new();
        for value in values {
            let count = tidegate.metric(name, &[&format!("{label}=\"{value}\"")]).await;
            text += &format!(" {value} {count}");
        }
        println!("chaos: {name}:{text}");
    }
}
