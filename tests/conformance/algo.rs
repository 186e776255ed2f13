//! The bucket rule alone: [`Buckets`] decides, given loads that are added and subtracted as the example does it.

use std::collections::HashMap;

use serde_json::Value;
use tidegate::balance::{Bucket, Buckets, Neighbours, RedirectTuning};

use crate::deviations::{Instead, Replays, assert_refused};
use crate::proxy::compare_candidates;
use crate::rule;
use crate::vectors::{compare, float, floats, index, items, raised, text, thousandths, unsigned};

pub(crate) struct Replay;

impl Replays for Replay {
    fn name(&self, scenario: &Value) -> String {
        text(&scenario["name"]).to_owned()
    }

    fn replay(&self, scenario: &Value) -> Result<(), String> {
        let init = scenario.get("init").and_then(raised);
        let buckets = match (buckets(&scenario["config"]), init) {
            (Ok(buckets), None) => buckets,
            (Err(_), Some(_)) => return Ok(()),
            (ours, theirs) => return Err(format!("construction: Tidegate {ours:?}, the example {theirs:?}")),
        };
        if let Some(derived) = scenario["config"].get("derived_buckets") {
            compare("ranges", ranges(derived)?, buckets.ranges().to_vec())?;
        }
        let mut run = Run::new(&buckets);
        for (number, step) in items(&scenario["steps"]).iter().enumerate() {
            run.step(step).map_err(|difference| format!("step {number}: {difference}"))?;
        }
        Ok(())
    }

    fn check_instead(&self, scenario: &Value, instead: Instead) {
        match instead {
            Instead::Refuses(message) => assert_refused(buckets(&scenario["config"]), message),
            Instead::RunsByItsOwnRules => run_by_own_rules(scenario),
            _ => panic!("a scenario cannot be held against {instead:?}"),
        }
    }
}

fn buckets(config: &Value) -> Result<Buckets, String> {
    let built = if text(&config["class"]) == "NoStandardBucketLoadBalancer" {
        let count = &config["num_buckets"];
        let count = count.as_u64().ok_or_else(|| format!("{count} is below zero"))?;
        let count = usize::try_from(count).unwrap();
        Buckets::equal_width(unsigned(&config["max_length"]), count, RedirectTuning::load_only())
    } else {
        let all = config["all_neighbor"].as_bool().unwrap();
        let tuning = RedirectTuning {
            sensitivity: float(&config["sensitivity"]),
            affinity_strength: float(&config["affinity_strength"]),
            neighbours: if all { Neighbours::All } else { Neighbours::Adjacent },
            ..RedirectTuning::default()
        };
        Buckets::new(ranges(&config["buckets"])?, tuning)
    };
    built.map_err(|error| error.to_string())
}

pub(crate) fn ranges(value: &Value) -> Result<Vec<Bucket>, String> {
    let bound = |value: &Value| value.as_u64().ok_or_else(|| format!("{value} is below zero"));
    items(value).iter().map(|pair| Ok(Bucket { from: bound(&pair[0])?, to: bound(&pair[1])? })).collect()
}

/// A scenario being replayed, with the example's bookkeeping: floats, and a table of what runs by id.
struct Run<'a> {
    buckets: &'a Buckets,
    loads: Vec<f64>,
    counts: Vec<u64>,
    running: HashMap<String, (usize, f64)>,
    dispatched: u64,
    redirected: u64,
}

impl<'a> Run<'a> {
    fn new(buckets: &'a Buckets) -> Self {
        let count = buckets.count().get();
        let (loads, counts) = (vec![0.0; count], vec![0; count]);
        Self { buckets, loads, counts, running: HashMap::new(), dispatched: 0, redirected: 0 }
    }

    fn step(&mut self, step: &Value) -> Result<(), String> {
        if let Some(exception) = step.get("out").and_then(raised) {
            return Err(format!("the example raises {exception}"));
        }
        match text(&step["op"]) {
            "dispatch" => self.dispatch(step)?,
            "release" => self.release(text(&step["id"])),
            "release_all" => {
                self.running.clear();
                self.loads.fill(0.0);
                self.counts.fill(0);
            }
            "bulk" => self.bulk(items(&step["ops"]))?,
            other => return Err(format!("{other} cannot be said")),
        }
        let state = &step["state"];
        compare("loads", &self.loads, &floats(&state["load"]))?;
        compare("counts", &self.counts, &items(&state["count"]).iter().map(unsigned).collect())?;
        compare("dispatched", self.dispatched, unsigned(&state["total"]))?;
        compare("redirected so far", self.redirected, unsigned(&state["redir"]))
    }

    fn dispatch(&mut self, step: &Value) -> Result<(), String> {
        let (length, out) = (float(&step["length"]), &step["out"]);
        let standard = self.buckets.standard(length);
        let candidates = self.buckets.candidates(standard, length, |bucket| self.loads[bucket]);
        compare_candidates(candidates.map(|candidate| (candidate.bucket, candidate.score)), &out["cand"])?;
        let by_rule = rule::choice(self.buckets.ranges(), self.buckets.tuning(), length, &self.loads);
        let (chosen_standard, chosen) = self.choose(text(&step["id"]), length, float(&step["load"]));
        compare("standard bucket", chosen_standard, index(&out["std"]))?;
        compare("bucket", chosen, index(&out["bucket"]))?;
        compare("redirected", standard != chosen, out["redirected"].as_bool().unwrap())?;
        // Shows that the second writing of the rule may stand in for the recording elsewhere.
        compare("the rule, written twice", (chosen_standard, chosen), by_rule)
    }

    fn choose(&mut self, id: &str, length: f64, load: f64) -> (usize, usize) {
        let choice = self.buckets.choose(length, |bucket| self.loads[bucket]);
        self.dispatched += 1;
        self.redirected += u64::from(choice.standard != choice.chosen);
        self.loads[choice.chosen] += load;
        self.counts[choice.chosen] += 1;
        assert!(self.running.insert(id.to_owned(), (choice.chosen, load)).is_none(), "id {id} runs already");
        (choice.standard, choice.chosen)
    }

    fn release(&mut self, id: &str) {
        let (bucket, load) = self.running.remove(id).unwrap_or_else(|| panic!("id {id} does not run"));
        self.loads[bucket] -= load;
        self.counts[bucket] -= 1;
    }

    fn bulk(&mut self, ops: &[Value]) -> Result<(), String> {
        for op in ops {
            let id = text(&op[1]);
            match text(&op[0]) {
                "d" => {
                    let (_, chosen) = self.choose(id, float(&op[2]), float(&op[3]));
                    compare(id, chosen, index(&op[4]))?;
                }
                _ => self.release(id),
            }
        }
        Ok(())
    }
}

/// Replays a deviating scenario with loads in exact units, as the ledger keeps them, and requests that are told apart
/// by being there, as leases are. The choice must be what the rule says for those loads, an idle bucket must weigh
/// nothing, and a release of what does not run does nothing.
fn run_by_own_rules(scenario: &Value) {
    let buckets = buckets(&scenario["config"]).unwrap();
    let name = text(&scenario["name"]);
    let mut running: Vec<(String, usize, u128)> = Vec::new();
    for step in items(&scenario["steps"]) {
        let id = step["id"].as_str().unwrap_or("(all)");
        match text(&step["op"]) {
            "dispatch" => {
                let loads = exact_loads(&running, &buckets);
                let length = float(&step["length"]);
                let choice = buckets.choose(length, |bucket| loads[bucket]);
                let expected = rule::choice(buckets.ranges(), buckets.tuning(), length, &loads);
                assert_eq!((choice.standard, choice.chosen), expected, "{name} {id}");
                running.push((id.to_owned(), choice.chosen, thousandths(float(&step["load"]))));
            }
            "release_all" => running.clear(),
            _ => {
                if let Some(place) = running.iter().position(|(running, ..)| running == id) {
                    running.remove(place);
                }
            }
        }
    }
    running.clear();
    assert_eq!(exact_loads(&running, &buckets), vec![0.0; buckets.count().get()], "{name}");
}

fn exact_loads(running: &[(String, usize, u128)], buckets: &Buckets) -> Vec<f64> {
    let mut loads = vec![0; buckets.count().get()];
    for (_, bucket, load) in running {
        loads[*bucket] += load;
    }
    loads.into_iter().map(|load: u128| load as f64 / 1_000.0).collect()
}
