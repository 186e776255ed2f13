use proptest::prelude::*;

use super::*;
use crate::work::ServerTraits;

fn driver(policy: &str, servers: usize) -> Driver {
    Driver::new(Setup::new(policy, servers).dispatcher().unwrap())
}

/// What is answered to these lines.
fn answers(driver: &mut Driver, lines: &str) -> Vec<String> {
    let mut output = Vec::new();
    run(driver, lines.as_bytes(), &mut output).unwrap();
    String::from_utf8(output).unwrap().lines().map(str::to_owned).collect()
}

fn answer(driver: &mut Driver, line: &str) -> String {
    let answers = answers(driver, line);
    assert_eq!(answers.len(), 1);
    answers[0].clone()
}

fn arrive(id: &str, prompt_tokens: u64) -> String {
    format!(r#"{{"t": 0, "ev": "arrive", "id": "{id}", "prompt_tokens": {prompt_tokens}}}"#)
}

#[test]
fn an_arrival_is_assigned_at_once() {
    let line = r#"{"t": 0.5, "ev": "arrive", "id": "a", "prompt_tokens": 500, "body_bytes": 2000, "max_tokens": null,
                   "ignore_eos": false, "stream": true, "prefix": [1, -2, "ab"]}"#;
    let expected = r#"{"assign":[{"id":"a","server":0,"group":"all","reason":"least_cost"}],"held":0,"lanes":[]}"#;
    assert_eq!(answer(&mut driver("least_work", 2), &line.replace('\n', "")), expected);
}

#[test]
fn a_long_prompt_is_held_and_assigned_by_a_later_event() {
    let mut driver = driver("lanes", 2);
    let lines = [
        &*arrive("a", 100_000),
        &arrive("b", 100_000),
        r#"{"t": 1, "ev": "tick"}"#,
        r#"{"t": 2, "ev": "first", "id": "a"}"#,
        r#"{"t": 2, "ev": "tokens", "id": "a", "n": 5}"#,
        r#"{"t": 3, "ev": "end", "id": "a", "ok": true}"#,
    ];
    let lane = |id: &str| format!(r#"{{"id":"{id}","server":1,"group":"long","reason":"lane"}}"#);
    let expected = [
        format!(r#"{{"assign":[{}],"held":0,"lanes":[1]}}"#, lane("a")),
        r#"{"assign":[],"held":1,"lanes":[1]}"#.to_owned(),
        r#"{"assign":[],"held":1,"lanes":[1]}"#.to_owned(),
        format!(r#"{{"assign":[{}],"held":0,"lanes":[1]}}"#, lane("b")),
        r#"{"assign":[],"held":0,"lanes":[1]}"#.to_owned(),
        r#"{"assign":[],"held":0,"lanes":[1]}"#.to_owned(),
    ];
    assert_eq!(answers(&mut driver, &lines.join("\n")), expected);
}

#[test]
fn without_a_server_an_arrival_waits_and_is_rejected_in_the_end() {
    let mut driver = driver("lanes", 1);
    answer(&mut driver, r#"{"t": 0, "ev": "server", "server": 0, "up": false}"#);
    assert_eq!(answer(&mut driver, &arrive("a", 1)), r#"{"assign":[],"held":1,"lanes":[]}"#);
    let expected = r#"{"assign":[],"held":0,"lanes":[],"reject":[{"id":"a","status":503}]}"#;
    assert_eq!(answer(&mut driver, r#"{"t": 121, "ev": "tick"}"#), expected);
    // Its name may be used again.
    assert_eq!(answer(&mut driver, &arrive("a", 1)), r#"{"assign":[],"held":1,"lanes":[]}"#);
}

#[test]
fn wrong_lines_are_answered_and_change_nothing() {
    let mut driver = driver("lanes", 2);
    answers(&mut driver, &format!("{}\n{}\n", arrive("a", 100_000), arrive("b", 100_000)));
    for (line, expected) in [
        ("", "EOF while parsing"),
        ("{", "EOF while parsing"),
        ("[]", "invalid length 0"),
        (r#"{"ev": "tick"}"#, "missing field `t`"),
        (r#"{"t": -1, "ev": "tick"}"#, "t is -1, expected seconds, 0 to 1000000000000"),
        (r#"{"t": 1764500000000000000, "ev": "tick"}"#, "t is 1764500000000000000, expected seconds"),
        (r#"{"t": 1, "ev": "stop"}"#, r#"ev is \"stop\", expected arrive"#),
        (r#"{"t": 1, "ev": "arrive", "id": "x"}"#, "arrive needs prompt_tokens"),
        (r#"{"t": 1, "ev": "arrive", "prompt_tokens": 1}"#, "arrive needs id"),
        (r#"{"t": 1, "ev": "arrive", "id": "a", "prompt_tokens": 1}"#, r#"\"a\" is active or held already"#),
        (r#"{"t": 1, "ev": "arrive", "id": "x", "prompt_tokens": -1}"#, "invalid value"),
        (r#"{"t": 1, "ev": "first", "id": "x"}"#, r#"\"x\" is neither active nor held"#),
        (r#"{"t": 1, "ev": "first", "id": "b"}"#, r#"\"b\" is held, no server has it"#),
        (r#"{"t": 1, "ev": "tokens", "id": "a"}"#, "tokens needs n"),
        (r#"{"t": 1, "ev": "server", "server": 2, "up": true}"#, "server is 2, expected 0 to 1"),
        (r#"{"t": 1, "ev": "server", "server": 1}"#, "server needs up"),
    ] {
        let found = answer(&mut driver, &format!("{line}\n"));
        assert!(found.starts_with("{\"error\":\"") && found.contains(expected), "{line}: {found}");
    }
    assert_eq!(answer(&mut driver, r#"{"t": 1, "ev": "tick"}"#), r#"{"assign":[],"held":1,"lanes":[1]}"#);
}

#[test]
fn a_request_on_a_server_that_has_gone_may_come_again() {
    let mut driver = driver("least_work", 2);
    assert!(answer(&mut driver, &arrive("a", 500)).contains("\"server\":0"));
    assert!(answer(&mut driver, &arrive("a", 500)).starts_with("{\"error\""));
    answer(&mut driver, r#"{"t": 1, "ev": "server", "server": 0, "up": false}"#);
    assert!(answer(&mut driver, &arrive("a", 500)).contains("\"server\":1"));
    answer(&mut driver, r#"{"t": 1, "ev": "server", "server": 0, "up": true}"#);
    assert!(answer(&mut driver, &arrive("b", 500)).contains("\"server\":0"), "nothing is left of it there");
}

#[test]
fn what_fits_nowhere_is_refused_and_what_fits_somewhere_goes_there() {
    let sized = |max_model_len| ServerTraits { max_model_len: Some(max_model_len), ..ServerTraits::default() };
    for policy in POLICIES {
        let setup = Setup { traits: vec![sized(8_192), sized(32_768)], ..Setup::new(policy, 2) };
        let mut driver = Driver::new(setup.dispatcher().unwrap());
        let line = |id: &str, prompt_tokens: u64, max_tokens: u64| {
            let line = arrive(id, prompt_tokens);
            format!("{},\"max_tokens\":{max_tokens}}}", line.strip_suffix('}').unwrap())
        };
        assert!(answer(&mut driver, &line("a", 8_000, 192)).contains("\"assign\":[{"), "{policy}");
        assert!(answer(&mut driver, &line("b", 8_000, 193)).contains("\"id\":\"b\",\"server\":1"), "{policy}");
        let found = answer(&mut driver, &line("c", 32_768, 1));
        assert!(found.ends_with(r#""reject":[{"id":"c","status":400}]}"#), "{policy}: {found}");
    }
}

#[test]
fn names_are_written_as_json() {
    let found = answer(&mut driver("least_work", 1), r#"{"t":0,"ev":"arrive","id":"a\"\né","prompt_tokens":1}"#);
    assert!(found.starts_with(r#"{"assign":[{"id":"a\"\né","#), "{found}");
}

#[test]
fn a_line_without_an_end_is_refused_without_being_kept() {
    let mut lines = vec![b'x'; usize::try_from(MAX_LINE_BYTES + 10).unwrap()];
    lines.extend_from_slice(b"\n{\"t\":1,\"ev\":\"tick\"}\n");
    let mut output = Vec::new();
    run(&mut driver("lanes", 2), lines.as_slice(), &mut output).unwrap();
    let expected = "{\"error\":\"the line is longer than 16777216 bytes\"}\n{\"assign\":[],\"held\":0,\"lanes\":[1]}\n";
    assert_eq!(String::from_utf8(output).unwrap(), expected);
}

/// The servers that these prompts go to.
fn servers_of(driver: &mut Driver, prompts: &[u64]) -> Vec<u64> {
    let lines: Vec<String> =
        prompts.iter().enumerate().map(|(number, tokens)| arrive(&number.to_string(), *tokens)).collect();
    let server = |line: &String| {
        let reply: serde_json::Value = serde_json::from_str(line).unwrap();
        reply["assign"][0]["server"].as_u64().unwrap()
    };
    answers(driver, &lines.join("\n")).iter().map(server).collect()
}

#[test]
fn the_policies_of_the_example_decide_as_the_balancer_does() {
    use std::sync::Arc;

    use crate::balance::{Balancer, Bucket, Buckets, Policy, RedirectTuning, Ties, Topology, Tried};
    use crate::prompt::Demand;

    let prompts: Vec<u64> = (0..500).map(|number: u64| number * 7_919 % 130_000 + 1).collect();
    let ranges = vec![Bucket { from: 0, to: 32_768 }, Bucket { from: 32_768, to: 131_072 }];
    let bucket = Policy::ReferenceBucket(Buckets::new(ranges, RedirectTuning::default()).unwrap());
    for (policy, groups) in [(Policy::ReferencePlain, 1), (bucket, 2)] {
        let mut driven = driver(policy.name(), 5);
        let topology = Topology::split_evenly(5, groups).unwrap();
        let balancer = Arc::new(Balancer::new(topology, policy, Ties::First).unwrap());
        let leases: Vec<_> = prompts
            .iter()
            .map(|tokens| balancer.acquire(&Demand::of_bytes(4 * tokens), &Tried::default()).unwrap())
            .collect();
        let expected: Vec<u64> = leases.iter().map(|lease| lease.server() as u64).collect();
        assert_eq!(servers_of(&mut driven, &prompts), expected);
    }
}

#[test]
fn the_policies_of_the_example_give_load_back_and_know_who_is_up() {
    let mut driver = driver("reference_plain", 2);
    assert_eq!(servers_of(&mut driver, &[1_000, 10]), [0, 1]);
    answer(&mut driver, r#"{"t": 1, "ev": "end", "id": "0", "ok": false}"#);
    assert!(answer(&mut driver, &arrive("c", 1)).contains("\"server\":0"));
    answer(&mut driver, r#"{"t": 1, "ev": "server", "server": 0, "up": false}"#);
    assert!(answer(&mut driver, &arrive("d", 1)).contains("\"server\":1"));
    answer(&mut driver, r#"{"t": 1, "ev": "server", "server": 1, "up": false}"#);
    assert_eq!(answer(&mut driver, &arrive("e", 1)), r#"{"assign":[],"held":1,"lanes":[]}"#);
    let found = answer(&mut driver, r#"{"t": 2, "ev": "server", "server": 0, "up": true}"#);
    assert!(found.contains(r#"{"id":"e","server":0,"group":"all","reason":"standard"}"#), "{found}");
}

#[test]
fn what_cannot_be_run_is_refused_with_a_reason() {
    let refused = |setup: Setup| setup.dispatcher().unwrap_err().to_string();
    let expected = "there is no policy \"best\", expected one of lanes, least_work, reference_bucket, reference_plain";
    assert_eq!(refused(Setup::new("best", 2)), expected);
    assert_eq!(refused(Setup::new("lanes", 0)), "lanes needs at least 1 servers, there are 0");
    assert_eq!(refused(Setup::new("reference_bucket", 1)), "reference_bucket needs at least 2 servers, there are 1");
    let threshold = Setup { group_threshold: 200_000, ..Setup::new("reference_bucket", 2) };
    assert!(refused(threshold).contains("bucket 1 is empty"));
}

/// A line that may be right or wrong, with sizes up to absurd ones.
fn line() -> impl Strategy<Value = String> {
    let number = || prop_oneof![0..2_000_u64, 30_000..200_000_u64, Just(u64::MAX)];
    let ev = prop::sample::select(vec!["arrive", "first", "tokens", "end", "server", "tick", "stop"]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let (time, prefix) = (prop_oneof![5 => 0.0..200.0, 1 => Just(1e12)], prop::collection::vec(0..40_u64, 0..9));
    (time, ev, 0..9_u64, (number(), number(), number()), flags, 0..4_usize, prefix).prop_map(
        |(t, ev, id, (prompt_tokens, max_tokens, n), (stream, ok, up), server, prefix)| {
            serde_json::json!({
                "t": t, "ev": ev, "id": id.to_string(), "prompt_tokens": prompt_tokens, "body_bytes": prompt_tokens,
                "max_tokens": max_tokens, "ignore_eos": up, "stream": stream, "ok": ok, "n": n, "server": server, "up": up,
                "prefix": prefix,
            })
            .to_string()
        },
    )
}

proptest! {
    #[test]
    fn every_line_gets_one_reply_whatever_it_says(
        lines in prop::collection::vec(prop_oneof![9 => line(), 1 => "[ -~]{0,40}"], 0..60),
        policy in prop::sample::select(POLICIES.to_vec()),
    ) {
        let answers = answers(&mut driver(policy, 3), &lines.join("\n"));
        let last_is_empty = lines.last().is_some_and(String::is_empty);
        prop_assert_eq!(answers.len(), lines.len() - usize::from(last_is_empty));
        for answer in answers {
            prop_assert!(serde_json::from_str::<serde_json::Value>(&answer).is_ok(), "{}", answer);
        }
    }
}
