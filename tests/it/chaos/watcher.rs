//! Looks at the status all the time: what it shows must hang together, and be true.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::sleep;

use super::book::Book;
use super::plan::{Fleet, STEADY};
use super::trouble::servers_of;
use crate::support::*;

/// Taken just before a look at the status.
struct Counts {
    asked: Instant,
    /// How many requests had arrived, by server.
    arrived: Vec<usize>,
}

/// A server that was out, with nothing on it.
struct Out {
    asked: Instant,
    /// How many requests had arrived there when the status had been read.
    arrived: usize,
}

/// Looks until time is up.
pub(super) async fn watch(tidegate: &Tidegate, fleet: &Fleet, book: &Book, until: Instant) {
    let mut last: Option<Value> = None;
    let mut out: HashMap<usize, Out> = HashMap::new();
    while Instant::now() < until {
        // Before the status is asked for: a server that is out there may serve again just after, and the answer may take
        // its time to come.
        let asked = Instant::now();
        let arrived: Vec<usize> = (0..fleet.addresses.len()).map(|server| book.arrived(server)).collect();
        let status = tidegate.status().await;
        assert_adds_up(&status);
        if let Some(last) = &last {
            assert_goes_on(last, &status);
        }
        assert_steady(&status, fleet);
        let counts = Counts { asked, arrived };
        assert_out_gets_nothing(&status, fleet, book, &counts, &mut out);
        book.assert_no_violations();
        book.count("looks at the status");
        last = Some(status);
        sleep(Duration::from_millis(20)).await;
    }
}

/// The groups have what their servers have.
fn assert_adds_up(status: &Value) {
    let mut names = Vec::new();
    for group in status["groups"].as_array().expect("groups are listed") {
        let servers = group["servers"].as_array().expect("servers are listed");
        for key in ["load_tokens", "in_flight"] {
            let number = |value: &Value| value[key].as_f64().filter(|value| *value >= 0.0).expect("not below zero");
            let sum: f64 = servers.iter().map(number).sum();
            assert!((number(group) - sum).abs() < 1e-6, "{key} of a group is not its servers': {status}");
        }
        names.extend(servers.iter().map(|server| &server["name"]));
    }
    let leaving = status["leaving"].as_array().expect("leaving servers are listed");
    for server in servers_of(status).chain(leaving) {
        let is_empty = server["in_flight"] == 0;
        assert_eq!(server["drained"] == true, server["draining"] == true && is_empty, "{server}");
        assert!(!is_empty || server["load_tokens"] == 0.0, "a load without a request: {server}");
    }
    names.extend(leaving.iter().map(|server| &server["name"]));
    let shown = names.len();
    names.sort_by_key(|name| name.as_str());
    names.dedup();
    assert_eq!(names.len(), shown, "a server stands twice: {status}");
}

/// What is counted only grows.
fn assert_goes_on(before: &Value, now: &Value) {
    let requests = ["complete", "client_gone", "upstream_broken", "rejected"];
    let totals = requests.map(|outcome| format!("/totals/requests/{outcome}"));
    let others = ["/totals/retries", "/totals/redirects", "/config_generation"].map(str::to_owned);
    for path in totals.iter().chain(&others) {
        let [before, now] = [before, now].map(|status| status.pointer(path).and_then(Value::as_u64).expect("a number"));
        assert!(before <= now, "{path} went from {before} to {now}");
    }
}

/// Servers that are good all the time are in service all the time.
fn assert_steady(status: &Value, fleet: &Fleet) {
    for steady in 0..STEADY {
        let server = servers_of(status).find(|server| server["name"] == fleet.name(steady));
        let server = server.unwrap_or_else(|| panic!("a steady server is gone: {status}"));
        assert_eq!((&server["health"], &server["draining"]), (&"healthy".into(), &false.into()), "{server}");
    }
    for group in status["groups"].as_array().expect("groups are listed") {
        let servers = group["servers"].as_array().expect("servers are listed");
        let steady = servers.iter().filter(|server| (0..STEADY).any(|steady| server["name"] == fleet.name(steady)));
        assert_eq!(steady.count(), 1, "each group has a steady server: {status}");
    }
}

/// A server that was out from one look to the next was given nothing between them.
fn assert_out_gets_nothing(status: &Value, fleet: &Fleet, book: &Book, counts: &Counts, out: &mut HashMap<usize, Out>) {
    let mut now_out = HashMap::new();
    for server in servers_of(status) {
        let number = fleet.number(server["name"].as_str().expect("a name is text"));
        let seconds = server["health_for_seconds"].as_f64().expect("a number");
        if server["health"] != "out" {
            continue;
        }
        if let Some(before) = out.get(&number)
            && seconds > before.asked.elapsed().as_secs_f64()
        {
            let since = book.arrived_between(number, before.arrived..counts.arrived[number]);
            book.count("looks at servers that are out");
            assert!(since.is_empty(), "{server} is out and was given {since:?}");
        }
        if server["in_flight"] == 0 {
            now_out.insert(number, Out { asked: counts.asked, arrived: book.arrived(number) });
        }
    }
    *out = now_out;
}
