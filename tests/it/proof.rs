//! What routing by work is worth: the same traffic over sockets, once as the Python example routes it and once by lanes, with
//! the time to first token as the client sees it.
//!
//! Behind Tidegate stand four servers with the simulator's engine model ([`Modelled`]). Everything runs a number of times as
//! fast as real engines would, and all seconds here are those of the engines; only what Tidegate itself takes is not sped up,
//! so it weighs that much more than it would. Tidegate is told how fast its servers are by `weight`, as for any servers that
//! are faster than the profile.
//!
//! With a trace (the CSV that `tidegate simulate --trace` reads; without one the synthetic mix), by hand:
//!
//! ```text
//! PROOF_TRACE=trace.csv PROOF_REQUESTS=2000 PROOF_LOAD=0.8 PROOF_SPEED=10 PROOF_SEED=1 \
//!     cargo nextest run --test it proof --run-ignored only --no-capture
//! ```

use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use tidegate::simulate::{Contender, Distribution, Job, Load, Plan, Slo, Source, Study, Summary, Timing};
use tidegate::work::{HoldLimits, LLAMA3_8B_A100, Profile};

use crate::support::*;

const PROFILE: Profile = LLAMA3_8B_A100;

/// Half of them are the example's short group.
const SERVERS: usize = 4;

/// By so much of itself the p99 of short prompts has to fall.
const ENOUGH: f64 = 0.8;

/// The example's way first.
const POLICIES: [&str; 2] = ["reference_bucket", "lanes"];

/// What is sent, and how fast.
struct Experiment {
    source: Source,
    requests: usize,
    /// Of what the servers can do.
    load: f64,
    seed: u64,
    /// How many times as fast as real engines.
    speed: f64,
}

impl Experiment {
    /// The same traffic in the simulator, which also knows when each request comes.
    fn simulated(&self) -> Study {
        let contender = |name| Contender::named(name, SERVERS, PROFILE).unwrap();
        let plan = Plan {
            servers: SERVERS,
            profile: PROFILE,
            contenders: POLICIES.map(contender).into(),
            loads: vec![Load::Share(self.load)],
            seeds: vec![self.seed],
            slo: Slo::of(&PROFILE),
            threads: POLICIES.len(),
            most_requests: Some(self.requests),
        };
        let (traffic, _) = self.source.read(self.requests).unwrap();
        Study::of(plan, &traffic[0], &()).unwrap()
    }

    fn setup(&self, policy: &str, servers: &[Modelled]) -> Setup {
        let server =
            |server: &Modelled| format!("{{ address: \"{}\", weight: {} }}", server.backend.name(), self.speed);
        let (short, long) = servers.split_at(SERVERS / 2);
        let setup = Setup::two_groups(short.iter().map(server), long.iter().map(server));
        // What the example does is what a setup has unless told otherwise.
        if policy == "reference_bucket" {
            return setup;
        }
        let max_hold_ms = (HoldLimits::default().max_wait_s / self.speed * 1e3).round();
        setup.section("policy", &format!("{{ kind: {policy}, max_hold: {max_hold_ms}ms }}"))
    }

    /// Sends each request at its time, whatever has become of those before; gives the times of all.
    async fn measured(&self, policy: &str, jobs: &Arc<[Job]>, arrivals_s: &[f64]) -> Vec<Timing> {
        let clock = FastClock::start(self.speed);
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            servers.push(Modelled::start(jobs, PROFILE, clock).await);
        }
        let tidegate = Tidegate::start(&self.setup(policy, &servers)).await;
        let begin_s = clock.now_s();
        let mut asking = Vec::new();
        for (number, job) in jobs.iter().enumerate() {
            let (request, address, tokens) = (chat(number, job), tidegate.address, job.output_tokens);
            clock.sleep_until(begin_s + arrivals_s[number]).await;
            asking.push(tokio::spawn(ask(address, request, tokens, clock)));
        }
        let mut timings = Vec::new();
        for asking in asking {
            timings.push(asking.await.expect("every request is answered"));
        }
        assert_nothing_is_left(&tidegate).await;
        timings
    }

    /// Runs it under both policies; gives what the client saw of each.
    async fn run(&self) -> [Summary; 2] {
        let study = self.simulated();
        let jobs: Arc<[Job]> = study.jobs[0].clone().into();
        let arrivals_s: Vec<f64> = study.runs(0, 0)[0].timings.iter().map(|timing| timing.arrival_s).collect();
        let (example, lanes) = tokio::join!(
            self.measured(POLICIES[0], &jobs, &arrivals_s),
            self.measured(POLICIES[1], &jobs, &arrivals_s)
        );
        let summaries = [example, lanes].map(|timings| Summary::of(&jobs, &timings, &study.plan.slo, &PROFILE));
        println!("{}", report(&study, &summaries, self.speed));
        summaries
    }
}

/// Sends one request on a connection of its own and reads the whole answer.
async fn ask(address: std::net::SocketAddr, request: Vec<u8>, tokens: u64, clock: FastClock) -> Timing {
    let arrival_s = clock.now_s();
    let mut client = Client::connect(address).await;
    client.send(&request).await;
    assert_eq!(client.head().await.status(), 200);
    let mut body = client.piece().await.expect("the answer goes on").expect("an answer has a token");
    let first_s = clock.now_s();
    let (rest, end) = client.rest().await;
    let end_s = clock.now_s();
    body.extend(rest);
    let body = String::from_utf8(body).unwrap();
    assert_eq!((body.matches("\"text\":").count() as u64, end), (tokens, End::Complete));
    assert!(body.ends_with("data: [DONE]\n\n"));
    Timing { arrival_s, first_s, end_s }
}

/// A streamed chat with the text of a job.
fn chat(number: usize, job: &Job) -> Vec<u8> {
    let body = format!(
        "{{\"model\":\"m\",\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\
         \"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}",
        job.text(number as u64)
    );
    request("POST", "/v1/chat/completions", &format!("X-Request-Id: {number}\r\n"), body.as_bytes())
}

async fn assert_nothing_is_left(tidegate: &Tidegate) {
    tidegate.idle().await;
    let status = tidegate.status().await;
    let Some(servers) = status["work"]["servers"].as_array() else { return };
    assert_eq!(status["work"]["held"], 0);
    for server in servers {
        for sum in ["prefill_seconds", "prefilling", "prefilling_long", "streams", "context_tokens"] {
            assert_eq!(server[sum].as_f64(), Some(0.0), "{sum}: {status}");
        }
    }
}

/// By how much of itself the p99 of short requests falls.
fn fall([example, lanes]: &[Summary; 2]) -> f64 {
    1.0 - lanes.short_ttft.p99 / example.short_ttft.p99
}

/// What was measured, and what the simulator says of the same traffic.
fn report(study: &Study, measured: &[Summary; 2], speed: f64) -> String {
    let mut report = tidegate::simulate::describe(study);
    let simulated = [study.summary(0, 0), study.summary(0, 1)];
    for (what, summaries) in [("measured by the client", measured), ("simulated", &simulated)] {
        let head = "short p50 |    p99 | long mean |    p99 | latency mean";
        write!(report, "\n\nload {}, speed {speed}, {what}, TTFT in s:\n", study.load_name(0)).unwrap();
        write!(report, "\n| policy           | {head} |\n| --- | ---: | ---: | ---: | ---: | ---: |").unwrap();
        for (policy, summary) in POLICIES.iter().zip(summaries) {
            let Summary { short_ttft: Distribution { p50, p99, .. }, long_ttft: long, latency, .. } = summary;
            write!(report, "\n| {policy:<16} | {p50:>9.3} | {p99:>6.2}").unwrap();
            write!(report, " | {:>9.2} | {:>6.2} | {:>12.2} |", long.mean, long.p99, latency.mean).unwrap();
        }
        write!(report, "\n\nThe p99 of short requests falls by {:.1} %.", 100.0 * fall(summaries)).unwrap();
    }
    report
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_prompts_wait_a_fifth_or_less_of_what_they_wait_in_the_examples_buckets() {
    let at = |speed| Experiment { source: Source::Mix("synthetic".into()), requests: 400, load: 0.8, seed: 2, speed };
    let mut summaries = at(5.0).run().await;
    if fall(&summaries) < ENOUGH {
        // On a machine with many times as much to do as it can, short prompts wait for the processor, not for engines. The
        // slower everything is, the less that weighs; what the policy does stays.
        summaries = at(2.0).run().await;
    }
    assert!(fall(&summaries) >= ENOUGH, "the p99 of short prompts falls by {}", fall(&summaries));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints tables of what PROOF_TRACE names, for people"]
async fn a_trace_is_replayed_and_the_tables_are_printed() {
    fn or<T: FromStr>(name: &str, default: T) -> T {
        let given = std::env::var(name).ok();
        given.map_or(default, |text| {
            text.parse().ok().unwrap_or_else(|| panic!("{name} is {text:?}, expected a number"))
        })
    }
    let mix = Source::Mix("synthetic".into());
    let experiment = Experiment {
        source: std::env::var_os("PROOF_TRACE").map_or(mix, |file| Source::Trace(PathBuf::from(file))),
        requests: or("PROOF_REQUESTS", 2_000),
        load: or("PROOF_LOAD", 0.8),
        seed: or("PROOF_SEED", 1),
        speed: or("PROOF_SPEED", 10.0),
    };
    experiment.run().await;
}
