use super::*;
use crate::work::{LLAMA3_8B_A100, LLAMA3_70B_TP8, ServerTraits};

fn plan(policies: &[&str], servers: usize) -> Plan {
    Plan {
        servers,
        profile: LLAMA3_8B_A100,
        belief: LLAMA3_8B_A100,
        policies: policies.iter().copied().map(str::to_owned).collect(),
        loads: vec![0.8],
        seed: 1,
        requests: 3_000,
    }
}

fn summary(policy: &str, mix: Mix, servers: usize) -> Summary {
    summary_of(&plan(&[policy], servers), mix)
}

fn summary_of(plan: &Plan, mix: Mix) -> Summary {
    let (policy, servers) = (plan.policies[0].as_str(), plan.servers);
    let mut jobs = Source::Mix(mix).jobs(plan).unwrap();
    let natural = trace::natural_load(&jobs, &plan.profile, servers);
    jobs.iter_mut().for_each(|job| job.arrival_s *= natural / 0.8);
    Summary::of(&jobs, &World::new(&jobs, dispatcher(policy, plan).unwrap(), plan.profile, servers).run())
}

// What the policy is for: short requests are not in the way of long ones, and nobody pays for it.
#[test]
fn lanes_take_nine_tenths_off_the_wait_of_short_requests_and_long_ones_do_not_pay() {
    let (before, after) = (summary("reference_bucket", Mix::Steady, 8), summary("lanes", Mix::Steady, 8));
    assert!(after.short_ttft.p99 < 0.1 * before.short_ttft.p99, "{before:?} {after:?}");
    assert!(after.ttft.mean < 0.7 * before.ttft.mean, "{before:?} {after:?}");
    assert!(after.long_ttft.mean < 1.02 * before.long_ttft.mean, "{before:?} {after:?}");
    assert!(after.latency.mean < before.latency.mean, "{before:?} {after:?}");
}

#[test]
fn a_wrong_belief_does_little_harm() {
    let before = summary("reference_bucket", Mix::Steady, 8);
    let plan = plan(&["lanes"], 8);
    let halved = Profile { per_token_s: 33e-6, per_token_pair_s: 1e-9, ..LLAMA3_8B_A100 };
    let linear = Profile { per_token_pair_s: 0.0, ..LLAMA3_8B_A100 };
    let short = Profile { per_token_s: 33e-6, per_token_pair_s: 0.8e-9, ..LLAMA3_8B_A100 };
    for belief in [LLAMA3_70B_TP8, halved, linear, short] {
        let after = summary_of(&Plan { belief, ..plan.clone() }, Mix::Steady);
        assert!(after.short_ttft.p99 < 0.2 * before.short_ttft.p99, "{belief:?} {after:?}");
        assert!(after.ttft.mean < before.ttft.mean, "{belief:?} {after:?}");
    }
}

/// Two engines of the profile and two of half their speed, last in order; what the policy believes of them is given.
fn unequal(policy: &str, believed: [f64; 4], mix: Mix) -> Summary {
    let plan = plan(&[policy], 4);
    let mut jobs = Source::Mix(mix).jobs(&plan).unwrap();
    let natural = trace::natural_load(&jobs, &plan.profile, 3);
    jobs.iter_mut().for_each(|job| job.arrival_s *= natural / 0.7);
    let traits = believed.map(|speed| ServerTraits { speed, ..ServerTraits::default() });
    let dispatcher = Setup { traits: traits.to_vec(), ..Setup::new(policy, 4) }.dispatcher().unwrap();
    let engines = [1.0, 1.0, 0.5, 0.5].map(|speed| plan.profile.at_speed(speed));
    Summary::of(&jobs, &World::of_engines(&jobs, dispatcher, &engines).run())
}

#[test]
fn servers_of_known_speed_share_the_work_so_that_all_is_quicker() {
    for policy in ["least_work", "lanes"] {
        let (equal, known) =
            (unequal(policy, [1.0; 4], Mix::Steady), unequal(policy, [1.0, 1.0, 0.5, 0.5], Mix::Steady));
        assert!(known.ttft.mean < 0.95 * equal.ttft.mean, "{policy}: {equal:?} {known:?}");
        assert!(known.latency.mean < 0.98 * equal.latency.mean, "{policy}: {equal:?} {known:?}");
    }
}

// The whole way: engines that are not as believed, under traffic; what is learned in the end.
#[test]
fn while_traffic_runs_the_coefficients_of_the_engines_are_learned() {
    for (b, d) in [(0.5, 0.5), (2.0, 2.0), (1.5, 3.0)] {
        let plan = Plan { requests: 6_000, ..plan(&["lanes"], 8) };
        let engine = Profile {
            per_token_s: LLAMA3_8B_A100.per_token_s * b,
            per_token_pair_s: LLAMA3_8B_A100.per_token_pair_s * d,
            ..LLAMA3_8B_A100
        };
        let mut jobs = Source::Mix(Mix::Steady).jobs(&plan).unwrap();
        let natural = trace::natural_load(&jobs, &engine, 8);
        jobs.iter_mut().for_each(|job| job.arrival_s *= natural / 0.5);
        let (_, dispatcher) = World::new(&jobs, dispatcher("lanes", &plan).unwrap(), engine, 8).run_to_end();
        let found = dispatcher.fleet().profile;
        let (b, d) = (found.per_token_s / engine.per_token_s, found.per_token_pair_s / engine.per_token_pair_s);
        assert!((b - 1.0).abs() < 0.15 && (d - 1.0).abs() < 0.15, "{b} {d}");
    }
}

#[test]
fn every_policy_comes_to_an_end_and_the_same_seed_to_the_same_one() {
    for policy in ["round_robin", "power_of_two", "least_requests", "reference_plain", "least_work", "lanes"] {
        let summary = || summary(policy, Mix::Burst, 4);
        let (once, again) = (summary(), summary());
        assert_eq!(once, again, "{policy}");
        assert_eq!(once.short_ttft.count + once.long_ttft.count, 3_000);
        assert!(once.ttft.mean > 0.0 && once.latency.mean > once.ttft.mean, "{policy}: {once:?}");
    }
}

#[test]
fn the_table_has_a_line_for_each_policy_and_load() {
    let plan = Plan { requests: 200, loads: vec![0.5, 0.8], ..plan(&["lanes", "reference_plain"], 2) };
    let mut output = Vec::new();
    run(&plan, &Source::Mix(Mix::Steady), &mut output).unwrap();
    let text = String::from_utf8(output).unwrap();
    let begins = |line: &&str| line.starts_with("| 0.5 | lanes |") || line.starts_with("| 0.8 | reference_plain |");
    assert_eq!(text.lines().filter(begins).count(), 2, "{text}");
    assert_eq!(text.lines().count(), 9, "{text}");
}

#[test]
fn what_cannot_be_simulated_is_refused_with_a_reason() {
    let refused = |plan: Plan| run(&plan, &Source::Mix(Mix::Steady), &mut Vec::new()).unwrap_err().to_string();
    let load = Plan { loads: vec![80.0], ..plan(&["lanes"], 2) };
    assert_eq!(refused(load), "a load is 80, expected a number above 0 and up to 2, such as 0.8");
    assert!(refused(plan(&["lanes", "best"], 2)).starts_with("there is no policy \"best\""));
    assert!(Source::mix("real").unwrap_err().to_string().starts_with("there is no mix \"real\""));
}
