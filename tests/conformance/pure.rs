//! Single calls: grouping, weight, affinity, score, and what makes two servers one.

use std::cmp::Ordering;
use std::sync::Arc;

use serde_json::Value;
use tidegate::balance::{Balancer, Bucket, Buckets, Lease, Policy, RedirectTuning, Ties, Topology, Tried};
use tidegate::config::{Server, ServerLimits};
use tidegate::prompt::{Budget, DEFAULT_MAX_TOKENS, Demand};

use crate::algo::ranges;
use crate::deviations::{Instead, Replays, assert_refused};
use crate::vectors::{compare, float, index, items, raised, text, unsigned, within_one_ulp};

pub(crate) struct Replay;

impl Replays for Replay {
    /// The kind of call, and what is out of the ordinary about its arguments.
    fn name(&self, call: &Value) -> String {
        let kind = text(&call["kind"]);
        let particular = match kind {
            "affinity" => about_affinity(call),
            "redirect_probability" => about_score(call),
            "server_eq" => (is_loopback(&call["a"]) && is_loopback(&call["b"]) && call["a"][0] != call["b"][0])
                .then_some("two-names-of-this-machine"),
            _ => None,
        };
        particular.map_or(kind.to_owned(), |particular| format!("{kind}/{particular}"))
    }

    fn replay(&self, call: &Value) -> Result<(), String> {
        match text(&call["kind"]) {
            "group_servers" => grouping(call),
            "request_tokens" => weight(call, &bucket_policy(), 16_000, false),
            "request_score" => {
                let tokens = call["max_tokens"].as_u64();
                let budget = tokens.map_or(DEFAULT_MAX_TOKENS, Budget::from_tokens);
                let ignores_eos = call["ignore_eos"].as_bool().unwrap();
                weight(call, &Policy::ReferencePlain, budget.millitokens(), ignores_eos)
            }
            "affinity" => affinity(call),
            "redirect_probability" => score(call),
            "server_eq" => identity(call),
            other => panic!("unknown kind of call {other}"),
        }
    }

    fn check_instead(&self, call: &Value, instead: Instead) {
        match instead {
            Instead::Refuses(message) => assert_refused(buckets(call), message),
            Instead::Returns(result) => {
                let affinity = buckets(call).unwrap().affinity(index(&call["neighbor"]), float(&call["length"]));
                assert_eq!(affinity, result, "{call}");
            }
            Instead::Stays => {
                let score = score_of(&buckets(call).unwrap(), call);
                assert_ne!(score.partial_cmp(&0.0), Some(Ordering::Greater), "{score} redirects for {call}");
            }
            Instead::TellsApart => assert_told_apart(call),
            _ => panic!("a single call cannot be held against {instead:?}"),
        }
    }
}

fn buckets(call: &Value) -> Result<Buckets, String> {
    let tuning = RedirectTuning {
        sensitivity: call.get("sensitivity").map_or(1.0, float),
        affinity_strength: float(&call["affinity_strength"]),
        ..RedirectTuning::default()
    };
    Buckets::new(ranges(&call["buckets"])?, tuning).map_err(|error| error.to_string())
}

fn bucket_policy() -> Policy {
    Policy::ReferenceBucket(Buckets::equal_width(2, 2, RedirectTuning::default()).unwrap())
}

fn grouping(call: &Value) -> Result<(), String> {
    // A count below zero cannot be said in Tidegate's types.
    let groups = call["groups"].as_u64().ok_or_else(|| "a group count below zero".to_owned());
    let topology = groups.and_then(|groups| {
        let groups = usize::try_from(groups).unwrap();
        Topology::split_evenly(index(&call["servers"]), groups).map_err(|error| error.to_string())
    });
    match (topology, raised(&call["out"])) {
        (Ok(topology), None) => {
            let expected: Vec<Vec<_>> =
                items(&call["out"]).iter().map(|group| items(group).iter().map(index).collect()).collect();
            compare("groups", topology.groups().to_vec(), expected)
        }
        (Err(_), Some(_)) => Ok(()),
        (ours, theirs) => Err(format!("grouping: Tidegate {ours:?}, the example {theirs:?}")),
    }
}

fn weight(call: &Value, policy: &Policy, budget_millitokens: u64, ignore_eos: bool) -> Result<(), String> {
    let max_tokens = Budget::from_fractional_tokens(budget_millitokens as f64 / 1_000.0);
    let demand = Demand { body_bytes: unsigned(&call["bytes"]), max_tokens, ignore_eos, work: None };
    let millitokens = policy.load_of(&demand).millitokens();
    // Loads are exact; only as a float of more than 2^53 thousandths they are not, and some of these are.
    let is_whole = millitokens.is_multiple_of(1_000);
    let tokens = if is_whole { (millitokens / 1_000) as f64 } else { millitokens as f64 / 1_000.0 };
    compare("weight", tokens, float(&call["out"]))
}

fn affinity(call: &Value) -> Result<(), String> {
    if let Some(exception) = raised(&call["out"]) {
        return Err(format!("the example raises {exception}"));
    }
    let affinity = buckets(call)?.affinity(index(&call["neighbor"]), float(&call["length"]));
    compare_scores(affinity, float(&call["out"]))
}

fn about_affinity(call: &Value) -> Option<&'static str> {
    let ranges: Vec<Bucket> = ranges(&call["buckets"]).unwrap();
    let (neighbour, length) = (ranges[index(&call["neighbor"])], float(&call["length"]));
    if ranges.iter().any(|range| range.from >= range.to) {
        Some("empty-buckets")
    } else if ranges.windows(2).any(|pair| pair[1].from < pair[0].to) {
        Some("overlapping-buckets")
    } else if float(&call["affinity_strength"]) < 0.0 {
        Some("negative-strength")
    } else {
        let is_inside = (neighbour.from as f64) < length && length < neighbour.to as f64;
        is_inside.then_some("length-inside-the-neighbour")
    }
}

fn score(call: &Value) -> Result<(), String> {
    if let Some(exception) = raised(&call["out"]) {
        return Err(format!("the example raises {exception}"));
    }
    let buckets = buckets(call)?;
    let score = score_of(&buckets, call);
    compare_scores(score, float(&call["out"]))?;
    match call.get("redirects") {
        Some(redirects) => compare("redirects", score > 0.12, redirects.as_bool().unwrap()),
        None => Ok(()),
    }
}

/// The score of the second bucket for a request whose length is for the first: the way round that was recorded.
fn score_of(buckets: &Buckets, call: &Value) -> f64 {
    buckets.score(1, float(&call["length"]), float(&call["neighbor_load"]), float(&call["std_load"]))
}

fn about_score(call: &Value) -> Option<&'static str> {
    let sensitivity = float(&call["sensitivity"]);
    let (neighbour, standard) = (float(&call["neighbor_load"]), float(&call["std_load"]));
    if sensitivity <= 0.0 {
        return Some("sensitivity-not-above-zero");
    }
    // What no power can be taken of: a negative number to a fractional exponent, or one that overflows.
    let power = (neighbour / standard.max(1e-9)).powf(sensitivity);
    (standard > 0.0 && neighbour < 0.0 && !power.is_finite()).then_some("load-below-zero")
}

fn compare_scores(ours: f64, theirs: f64) -> Result<(), String> {
    if within_one_ulp(ours, theirs) { Ok(()) } else { compare("score", ours, theirs) }
}

fn is_loopback(server: &Value) -> bool {
    ["localhost", "127.0.0.1", "0.0.0.0"].contains(&text(&server[0]))
        && [Value::from(80), Value::from("80")].contains(&server[1])
}

fn server(address: &Value) -> Server {
    let port = address[1].as_u64().or_else(|| address[1].as_str()?.parse().ok());
    let port = u16::try_from(port.unwrap()).unwrap();
    Server {
        name: String::new(),
        host: text(&address[0]).to_owned(),
        port,
        authorization: None,
        is_drained: false,
        limits: ServerLimits::default(),
        traits: tidegate::config::Traits::default(),
        tls: None,
    }
}

/// Of the example's server class only the address applies to Tidegate, where a server is a number: servers have the
/// same authority exactly when the example takes them for one, but for the names of this machine.
fn identity(call: &Value) -> Result<(), String> {
    let (a, b) = (server(&call["a"]), server(&call["b"]));
    compare("url", &*format!("http://{}/v1", a.authority()), text(&call["url"]))?;
    compare("equal", a.authority() == b.authority(), call["eq"].as_bool().unwrap())?;
    compare("equal hashes", a.authority() == b.authority(), call["hash_eq"].as_bool().unwrap())
}

/// Two servers of one machine have loads of their own.
fn assert_told_apart(call: &Value) {
    assert_ne!(server(&call["a"]).authority(), server(&call["b"]).authority(), "{call}");
    let topology = Topology::split_evenly(2, 1).unwrap();
    let balancer = Arc::new(Balancer::new(topology, Policy::ReferencePlain, Ties::First).unwrap());
    let demand = Demand::of_bytes(100);
    let leases = [(); 2].map(|()| balancer.acquire(&demand, &Tried::default()).unwrap());
    assert_eq!(leases.each_ref().map(Lease::server), [0, 1]);
}
