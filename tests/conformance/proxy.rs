//! The whole selection path: measure, bucket, server, count, give back, through the real [`Balancer`] and its leases.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use tidegate::balance::{
    Balancer, Bucket, BucketError, Buckets, Lease, Placement, Policy, RedirectTuning, Snapshot, Ties, Topology, Tried,
};
use tidegate::prompt::{Demand, measure};

use crate::deviations::{Instead, Replays, assert_refused};
use crate::rule;
use crate::vectors::{compare, float, floats, index, items, raised, text, thousandths, unsigned, within_one_ulp};

pub(crate) struct Replay;

impl Replays for Replay {
    fn name(&self, scenario: &Value) -> String {
        text(&scenario["name"]).to_owned()
    }

    fn replay(&self, scenario: &Value) -> Result<(), String> {
        let balancer = match (balancer(&scenario["config"]), raised(&scenario["init"])) {
            (Ok(balancer), None) => balancer,
            (Err(_), Some(_)) => return Ok(()),
            (ours, theirs) => return Err(format!("construction: Tidegate {ours:?}, the example {theirs:?}")),
        };
        let mut run = Run::new(balancer);
        compare("groups", run.balancer.topology().groups().to_vec(), integer_lists(&scenario["init"]["groups"]))?;
        for (number, step) in items(&scenario["steps"]).iter().enumerate() {
            run.step(step).map_err(|difference| format!("step {number}: {difference}"))?;
        }
        run.end();
        Ok(())
    }

    fn check_instead(&self, scenario: &Value, instead: Instead) {
        match instead {
            Instead::Refuses(message) => assert_refused(balancer(&scenario["config"]), message),
            Instead::RunsByItsOwnRules => run_by_own_rules(scenario),
            _ => panic!("a scenario cannot be held against {instead:?}"),
        }
    }
}

/// The balancer that a configuration asks for.
fn balancer(config: &Value) -> Result<Arc<Balancer>, String> {
    let servers = index(&config["servers"]);
    let (policy, groups) = match text(&config["mode"]) {
        "plain" => (Policy::ReferencePlain, 1),
        _ => (Policy::ReferenceBucket(buckets(config)?), 2),
    };
    let topology = Topology::split_evenly(servers, groups).map_err(|error| error.to_string())?;
    Ok(Arc::new(Balancer::new(topology, policy, Ties::First).unwrap()))
}

fn buckets(config: &Value) -> Result<Buckets, String> {
    // Below zero cannot be said in Tidegate's types; the configuration refuses it with the like of this.
    let length = |value: &Value| value.as_u64().ok_or_else(|| format!("{value} is below zero"));
    let threshold = length(&config["server_group_threshold"])?;
    let most = length(&config["max_request_tokens"])?;
    let ranges = vec![Bucket { from: 0, to: threshold }, Bucket { from: threshold, to: most }];
    Buckets::new(ranges, RedirectTuning::default()).map_err(|error: BucketError| error.to_string())
}

fn integer_lists(value: &Value) -> Vec<Vec<usize>> {
    items(value).iter().map(|list| items(list).iter().map(index).collect()).collect()
}

/// What the real code measures: the fields as JSON, and the recorded length of the body they stood in.
fn demand(step: &Value) -> Demand {
    let field = |(key, value): (&String, &Value)| match value.as_str() {
        Some(literal @ ("NaN" | "Infinity" | "-Infinity")) => format!("\"{key}\":{literal}"),
        _ => format!("\"{key}\":{value}"),
    };
    let fields: Vec<_> = step["body"].as_object().unwrap().iter().map(field).collect();
    let body = format!("{{{}}}", fields.join(","));
    Demand { body_bytes: unsigned(&step["bytes"]), ..measure(body.as_bytes()) }
}

/// A scenario being replayed.
struct Run {
    balancer: Arc<Balancer>,
    leases: HashMap<String, Lease>,
    dispatched: u64,
    redirected: u64,
}

impl Run {
    fn new(balancer: Arc<Balancer>) -> Self {
        Self { balancer, leases: HashMap::new(), dispatched: 0, redirected: 0 }
    }

    fn step(&mut self, step: &Value) -> Result<(), String> {
        let (id, out) = (text(&step["id"]), &step["out"]);
        if let Some(exception) = raised(out) {
            return Err(format!("the example raises {exception}"));
        }
        match text(&step["op"]) {
            "dispatch" => {
                let lease = self.dispatch(&demand(step), out)?;
                if self.leases.insert(id.to_owned(), lease).is_some() {
                    return Err(format!("id {id} is used twice"));
                }
            }
            "release" => drop(self.leases.remove(id).ok_or_else(|| format!("id {id} is not known"))?),
            other => return Err(format!("{other} cannot be said")),
        }
        self.compare_state(&step["state"])
    }

    fn dispatch(&mut self, demand: &Demand, out: &Value) -> Result<Lease, String> {
        let before = self.balancer.snapshot();
        let lease = self.balancer.acquire(demand, &Tried::default()).unwrap();
        self.dispatched += 1;
        self.redirected += u64::from(is_redirected(&lease));
        compare("score", lease.load().tokens(), float(&out["score"]))?;
        compare("server", lease.server(), index(&out["server"]))?;
        if let Policy::ReferenceBucket(buckets) = &*self.balancer.policy() {
            compare("tokens", lease.load().tokens(), float(&out["tokens"]))?;
            compare("standard bucket", lease.standard_group(), index(&out["std"]))?;
            let load_of = |group: usize| before.groups[group].load.tokens();
            let candidates = buckets.candidates(lease.standard_group(), lease.load().tokens(), load_of);
            compare_candidates(candidates.map(|candidate| (candidate.bucket, candidate.score)), &out["cand"])?;
            compare("bucket", lease.group(), index(&out["bucket"]))?;
            compare("redirected", is_redirected(&lease), out["redirected"].as_bool().unwrap())?;
        }
        Ok(lease)
    }

    fn compare_state(&self, state: &Value) -> Result<(), String> {
        let Snapshot { servers, groups, .. } = self.balancer.snapshot();
        let active: Vec<_> = servers.iter().map(|server| server.load.tokens()).collect();
        compare("active tokens", &active, &floats(&state["active"]))?;
        if let Some(loads) = state.get("load") {
            compare("loads", groups.iter().map(|group| group.load.tokens()).collect(), floats(loads))?;
            let counts = items(&state["count"]).iter().map(unsigned).collect();
            compare("counts", groups.iter().map(|group| group.in_flight).collect::<Vec<_>>(), counts)?;
            compare("dispatched", self.dispatched, unsigned(&state["total"]))?;
            compare("redirected so far", self.redirected, unsigned(&state["redir"]))?;
        }
        // The example chooses by a second record of its loads: here it must hold nothing else.
        for (group, heap) in state.get("heap").into_iter().flat_map(|heaps| items(heaps).iter().enumerate()) {
            let servers = self.balancer.topology().groups()[group].clone();
            let heap: Vec<_> = items(heap).iter().map(|entry| (index(&entry[1]), float(&entry[0]))).collect();
            compare("heap", servers.into_iter().map(|server| (server, active[server])).collect(), heap)?;
        }
        Ok(())
    }

    /// Drops what the scenario left running. Whatever happened before, nothing may be left.
    fn end(mut self) {
        self.leases.clear();
        assert_idle(&self.balancer);
    }
}

pub(crate) fn compare_candidates(ours: impl Iterator<Item = (usize, f64)>, theirs: &Value) -> Result<(), String> {
    let ours: Vec<_> = ours.collect();
    let theirs: Vec<_> = items(theirs).iter().map(|pair| (index(&pair[0]), &pair[1])).collect();
    let equal = |(ours, theirs): (&(usize, f64), &(usize, &Value))| {
        ours.0 == theirs.0 && theirs.1.is_number() && within_one_ulp(ours.1, float(theirs.1))
    };
    if ours.len() == theirs.len() && ours.iter().zip(&theirs).all(equal) {
        Ok(())
    } else {
        Err(format!("candidates: Tidegate {ours:?}, the example {theirs:?}"))
    }
}

fn assert_idle(balancer: &Balancer) {
    let Snapshot { servers, groups, .. } = balancer.snapshot();
    for usage in servers.iter().chain(&groups) {
        assert_eq!((usage.load.millitokens(), usage.in_flight), (0, 0), "something is left on an idle balancer");
    }
}

/// What a scenario's request weighs by Tidegate's rules, in thousandths of a token, told without `measure`.
fn own_weight(mode: &str, step: &Value) -> u64 {
    let bytes = unsigned(&step["bytes"]);
    if mode != "plain" {
        return bytes * 250;
    }
    let tokens = match &step["body"]["max_tokens"] {
        Value::Bool(flag) => f64::from(u8::from(*flag)),
        Value::Number(number) => number.as_f64().unwrap().clamp(0.0, 4_294_967_296.0),
        Value::String(digits) if digits.parse::<u32>().is_ok() => digits.parse().unwrap(),
        // Absent, null, a list, an object, and the literals that no number stands for.
        _ => 16.0,
    };
    let ignores_eos = match &step["body"]["ignore_eos"] {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    };
    let millitokens = u64::try_from(thousandths(tokens)).unwrap();
    bytes * 1_000 + if ignores_eos { millitokens } else { millitokens / 2 }
}

/// Replays a deviating scenario against a model of Tidegate's own rules: weights as above, the example's choice given
/// those loads, loads the exact sum of what runs. Releases that name no running request do nothing.
fn run_by_own_rules(scenario: &Value) {
    let config = &scenario["config"];
    let (balancer, mode) = (balancer(config).unwrap(), text(&config["mode"]));
    let mut running: Vec<(String, Lease, u64)> = Vec::new();
    for (number, step) in items(&scenario["steps"]).iter().enumerate() {
        let id = step["id"].as_str().unwrap_or("(none)");
        match text(&step["op"]) {
            "dispatch" => {
                let weight = own_weight(mode, step);
                let before = sums(&balancer, &running);
                let lease = balancer.acquire(&demand(step), &Tried::default()).unwrap();
                let context = format!("{} step {number}", scenario["name"]);
                assert_eq!(lease.load().millitokens(), weight, "{context}: weight");
                assert_eq!(lease.server(), expected_server(&balancer, &before, weight), "{context}: server");
                running.push((id.to_owned(), lease, weight));
            }
            _ => {
                if let Some(place) = running.iter().position(|(running, ..)| running == id) {
                    drop(running.remove(place));
                }
            }
        }
        let Snapshot { servers, groups, .. } = balancer.snapshot();
        let counted = |usages: &[tidegate::balance::Usage]| -> Vec<_> {
            usages.iter().map(|usage| (usage.load.millitokens(), usage.in_flight)).collect()
        };
        assert_eq!((counted(&servers), counted(&groups)), sums(&balancer, &running), "{}", scenario["name"]);
    }
    drop(running);
    assert_idle(&balancer);
}

fn is_redirected(lease: &Lease) -> bool {
    lease.placement() == Placement::Redirected
}

type Counters = Vec<(u64, u64)>;

/// Load and number of what runs, per server and per group.
fn sums(balancer: &Balancer, running: &[(String, Lease, u64)]) -> (Counters, Counters) {
    let topology = balancer.topology();
    let mut servers = vec![(0, 0); topology.servers().count()];
    for (_, lease, weight) in running {
        servers[lease.server()].0 += weight;
        servers[lease.server()].1 += 1;
    }
    let total = |group: &Vec<usize>| {
        group.iter().fold((0, 0), |sum, server| (sum.0 + servers[*server].0, sum.1 + servers[*server].1))
    };
    let groups = topology.groups().iter().map(total).collect();
    (servers, groups)
}

fn expected_server(balancer: &Balancer, (servers, groups): &(Counters, Counters), weight: u64) -> usize {
    let tokens = |millitokens: u64| millitokens as f64 / 1_000.0;
    let group = match &*balancer.policy() {
        Policy::ReferenceBucket(buckets) => {
            let loads: Vec<_> = groups.iter().map(|group| tokens(group.0)).collect();
            rule::choice(buckets.ranges(), buckets.tuning(), tokens(weight), &loads).1
        }
        _ => 0,
    };
    balancer.topology().groups()[group].iter().copied().min_by_key(|&server| (servers[server].0, server)).unwrap()
}
