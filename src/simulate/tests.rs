use super::*;
use crate::drive::Setup;
use crate::work::{LLAMA3_8B_A100, LLAMA3_70B_TP8, Learning, Profile, ServerTraits};

fn plan(policies: &[&str], servers: usize, belief: Profile) -> Plan {
    Plan {
        servers,
        profile: LLAMA3_8B_A100,
        contenders: policies.iter().map(|name| Contender::named(name, servers, belief).unwrap()).collect(),
        loads: vec![Load::Share(0.8)],
        seeds: vec![1],
        slo: Slo::of(&LLAMA3_8B_A100),
        threads: cores(),
        most_requests: None,
    }
}

fn simulate(plan: Plan, mix: Mix) -> Study {
    Study::of(plan, &Traffic::made_up(mix, 3_000), &()).unwrap()
}

// What the policy is for: short requests are not in the way of long ones, and nobody pays for it.
#[test]
fn lanes_take_nine_tenths_off_the_wait_of_short_requests_and_long_ones_do_not_pay() {
    let study = simulate(plan(&["reference_bucket", "lanes"], 8, LLAMA3_8B_A100), Mix::Steady);
    let (before, after) = (study.summary(0, 0), study.summary(0, 1));
    assert!(after.short_ttft.p99 < 0.1 * before.short_ttft.p99, "{before:?} {after:?}");
    assert!(after.ttft.mean < 0.7 * before.ttft.mean, "{before:?} {after:?}");
    assert!(after.long_ttft.mean < 1.02 * before.long_ttft.mean, "{before:?} {after:?}");
    assert!(after.latency.mean < before.latency.mean, "{before:?} {after:?}");
    assert!(after.met_share > before.met_share, "{before:?} {after:?}");
}

#[test]
fn a_wrong_belief_does_little_harm() {
    let before = simulate(plan(&["reference_bucket"], 8, LLAMA3_8B_A100), Mix::Steady).summary(0, 0);
    let halved = Profile { per_token_s: 33e-6, per_token_pair_s: 1e-9, ..LLAMA3_8B_A100 };
    let linear = Profile { per_token_pair_s: 0.0, ..LLAMA3_8B_A100 };
    let short = Profile { per_token_s: 33e-6, per_token_pair_s: 0.8e-9, ..LLAMA3_8B_A100 };
    for belief in [LLAMA3_70B_TP8, halved, linear, short] {
        let after = simulate(plan(&["lanes"], 8, belief), Mix::Steady).summary(0, 0);
        assert!(after.short_ttft.p99 < 0.2 * before.short_ttft.p99, "{belief:?} {after:?}");
        assert!(after.ttft.mean < before.ttft.mean, "{belief:?} {after:?}");
    }
}

// One lane of two servers is too little for the long prompts of this traffic.
#[test]
fn with_few_servers_long_prompts_do_not_wait_for_ever() {
    let study = simulate(plan(&["reference_bucket", "lanes"], 2, LLAMA3_8B_A100), Mix::Steady);
    let (before, after) = (study.summary(0, 0), study.summary(0, 1));
    assert!(after.ttft.mean < 0.9 * before.ttft.mean, "{before:?} {after:?}");
    assert!(after.latency.mean < before.latency.mean, "{before:?} {after:?}");
}

// Short prompts, long answers: what waits is other prompts' prefill, and little of it.
#[test]
fn where_hardly_anything_waits_first_tokens_come_no_later_than_with_the_example() {
    let job = |number: u64| Job::new(0.0, 100 + 397 * number % 400, 600 + 617 * number % 1_000);
    let traffic = Traffic::recorded("creation".into(), (0..2_000).map(job).collect(), false);
    let plan = Plan { seeds: vec![1, 2], ..plan(&["reference_bucket", "least_work", "lanes"], 8, LLAMA3_8B_A100) };
    let study = Study::of(plan, &traffic, &()).unwrap();
    let [before, least_work, lanes] = [0, 1, 2].map(|contender| study.summary(0, contender));
    for after in [least_work, lanes] {
        assert!(after.ttft.mean < 1.01 * before.ttft.mean, "{before:?} {after:?}");
        assert!(after.short_ttft.p99 < 1.05 * before.short_ttft.p99, "{before:?} {after:?}");
        assert!(after.latency.mean < 1.01 * before.latency.mean, "{before:?} {after:?}");
    }
}

/// Two engines of the profile and two of half their speed, last in order; what the policy believes of them is given.
fn unequal(policy: &str, believed: [f64; 4], mix: Mix, seed: u64) -> Summary {
    let profile = LLAMA3_8B_A100;
    let jobs = Traffic::made_up(mix, 3_000).jobs(seed);
    let stretch = natural_load(&jobs, &profile, 3) / 0.7;
    let traits = believed.map(|speed| ServerTraits { speed, ..ServerTraits::default() });
    // What is told, not what is learned.
    let setup = Setup { traits: traits.to_vec(), learning: Learning::default(), ..Setup::new(policy, 4) };
    let dispatcher = setup.dispatcher().unwrap();
    let engines = [1.0, 1.0, 0.5, 0.5].map(|speed| profile.at_speed(speed));
    let timings = World::of_engines(&jobs, stretch, dispatcher, &engines).run();
    Summary::of(&jobs, &timings, &Slo::of(&profile), &profile)
}

#[test]
fn servers_of_known_speed_share_the_work_so_that_answers_are_complete_sooner() {
    // Without lanes first tokens gain nothing from it: the quick servers get more of the long prompts.
    for (policy, most, most_ttft) in [("least_work", 0.9, 1.2), ("lanes", 0.99, 1.0)] {
        let mean = |believed| Summary::mean(&[1, 2, 3, 4].map(|seed| unequal(policy, believed, Mix::Steady, seed)));
        let (equal, known) = (mean([1.0; 4]), mean([1.0, 1.0, 0.5, 0.5]));
        assert!(known.latency.mean < most * equal.latency.mean, "{policy}: {equal:?} {known:?}");
        assert!(known.ttft.mean < most_ttft * equal.ttft.mean, "{policy}: {equal:?} {known:?}");
    }
}

// The whole way: engines that are not as believed, under traffic; what is learned in the end.
#[test]
fn while_traffic_runs_the_coefficients_of_the_engines_are_learned() {
    for (b, d) in [(0.5, 0.5), (2.0, 2.0), (1.5, 3.0)] {
        let engine = Profile {
            per_token_s: LLAMA3_8B_A100.per_token_s * b,
            per_token_pair_s: LLAMA3_8B_A100.per_token_pair_s * d,
            ..LLAMA3_8B_A100
        };
        let jobs = Traffic::made_up(Mix::Steady, 6_000).jobs(1);
        let stretch = natural_load(&jobs, &engine, 8) / 0.5;
        let dispatcher = Contender::named("lanes", 8, LLAMA3_8B_A100).unwrap().dispatcher(1);
        let (_, dispatcher) = World::new(&jobs, stretch, dispatcher, engine, 8).run_and_learn();
        let found = dispatcher.fleet().profile;
        let (b, d) = (found.per_token_s / engine.per_token_s, found.per_token_pair_s / engine.per_token_pair_s);
        assert!((b - 1.0).abs() < 0.15 && (d - 1.0).abs() < 0.15, "{b} {d}");
    }
}

#[test]
fn every_policy_comes_to_an_end_and_the_same_seed_to_the_same_one_on_any_number_of_cores() {
    let all = |threads| simulate(Plan { threads, ..plan(&ALL_POLICIES, 4, LLAMA3_8B_A100) }, Mix::Burst);
    let (one, many) = (all(1), all(5));
    for (contender, name) in ALL_POLICIES.iter().enumerate() {
        let summary = one.summary(0, contender);
        assert_eq!(summary, many.summary(0, contender), "{name}");
        assert_eq!(summary.short_ttft.count + summary.long_ttft.count, 3_000);
        assert!(summary.ttft.mean > 0.0 && summary.latency.mean > summary.ttft.mean, "{name}: {summary:?}");
        assert!(summary.goodput_per_s <= summary.requests_per_s && summary.goodput_per_s > 0.0, "{name}: {summary:?}");
    }
}

#[test]
fn a_window_can_be_recorded_without_changing_anything() {
    let study = simulate(plan(&["reference_bucket", "lanes"], 4, LLAMA3_8B_A100), Mix::Steady);
    let window = Window { from_s: 100.0, to_s: 160.0 };
    let timeline = study.record(0, 1, 0, window);
    assert_eq!(timeline, study.record(0, 1, 0, window));
    assert_eq!(timeline.servers.len(), 4);
    let seen = |activity| timeline.servers.iter().flatten().any(|change| change.state.activity == activity);
    assert!([Activity::Decoding, Activity::ShortPrefill, Activity::LongPrefill].into_iter().all(seen));
    for changes in &timeline.servers {
        assert!(changes.windows(2).all(|pair| pair[0].at_s < pair[1].at_s && pair[0].state != pair[1].state));
        assert!(changes.iter().all(|change| (100.0..160.0).contains(&change.at_s)));
    }
    assert!(timeline.balancer.iter().all(|change| !change.state.lanes.is_empty()));
    assert!(study.record(0, 0, 0, window).balancer.iter().all(|change| change.state.lanes.is_empty()));
}

#[test]
fn the_own_speed_of_the_traffic_is_a_load() {
    let own = Plan { loads: vec![Load::Own], ..plan(&["least_work"], 8, LLAMA3_8B_A100) };
    let study = simulate(own, Mix::Steady);
    assert!((8.0..11.0).contains(&study.summary(0, 0).requests_per_s));
    assert_eq!(study.load_name(0), format!("own ({:.2})", study.natural[0]));
}

#[test]
fn the_tables_have_a_line_for_each_policy_and_load() {
    let loads = vec![Load::Share(0.5), Load::Share(0.8)];
    let study = simulate(Plan { loads, ..plan(&["lanes", "reference_plain"], 2, LLAMA3_8B_A100) }, Mix::Steady);
    let mut output = Vec::new();
    write_table(&study, &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    for begin in ["|  0.5 | lanes           |", "|  0.8 | reference_plain |"] {
        assert_eq!(text.lines().filter(|line| line.starts_with(begin)).count(), 2, "{begin} {text}");
    }
    assert!(text.starts_with("3000 requests (synthetic), "), "{text}");
}

#[test]
fn what_cannot_be_simulated_is_refused_with_a_reason() {
    let unknown = Source::Mix("real".to_owned()).read(9).unwrap_err().to_string();
    assert_eq!(unknown, "there is no mix \"real\", expected synthetic or synthetic-burst");
    let huge = Traffic::recorded("huge".into(), vec![Job::new(0.0, u64::MAX, 1)], true);
    let refused = Study::of(plan(&["lanes"], 2, LLAMA3_8B_A100), &huge, &()).unwrap_err().to_string();
    assert_eq!(refused, "huge: no request fits into the KV cache of 420000 tokens");
}
