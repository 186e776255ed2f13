//! Explanations say what then happens.

use super::*;
use crate::balance::{Lease, Placed};
use crate::config::of_text;
use serde_json::json;

const GROUPS: &str = "groups:\n- {name: short, up_to_tokens: 1000, servers: [{address: 'a:1', name: a}, {address: 'b:1', name: b}]}\n\
                      - {name: long, up_to_tokens: 100000, servers: [{address: 'c:1', name: c}]}\n";

fn live(policy: &str) -> Live {
    Live::new(of_text(&format!("{GROUPS}policy: {policy}\n"))).unwrap()
}

fn asked(live: &Live, tokens: u64) -> Answer {
    explain(live, None, json!({ "prompt_tokens": tokens, "max_tokens": 100 }).to_string().as_bytes()).unwrap()
}

/// Has the request really come.
fn place(live: &Live, tokens: u64) -> Placed {
    let body = json!({ "prompt_tokens": tokens, "max_tokens": 100 }).to_string();
    live.balancer().ask(&Asked::read(live, None, body.as_bytes()).unwrap().demand, &Tried::default())
}

fn lease(live: &Live, tokens: u64) -> Lease {
    match place(live, tokens) {
        Placed::Now(lease) => lease,
        other => panic!("{other:?}"),
    }
}

fn server_of(answer: &Answer) -> &str {
    match &answer.decision {
        answer::Decision::Server { server, .. } => server,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_explained_is_what_happens_under_every_policy() {
    for policy in [
        "{kind: reference_bucket}",
        "{kind: reference_plain}",
        "{kind: least_work}",
        "{kind: lanes, lanes: 1, long_from_tokens: 20000}",
    ] {
        let live = live(policy);
        let (mut leases, mut held) = (Vec::new(), 0);
        for number in 0..60_u64 {
            let tokens = [100, 700, 30_000, 50, 5_000, 60_000][(number % 6) as usize] + number;
            let counted = || {
                let snapshot = live.balancer().snapshot();
                (snapshot.servers, snapshot.groups, snapshot.work.map(|work| (work.held, work.lanes)))
            };
            let before = counted();
            let answer = asked(&live, tokens);
            assert_eq!(counted(), before, "{policy}: nothing has changed");
            match place(&live, tokens) {
                Placed::Now(lease) => {
                    let server = live.get().server(lease.server()).unwrap().name().to_owned();
                    assert_eq!(server_of(&answer), server, "{policy}: {answer:?}");
                    leases.push(lease);
                }
                Placed::Held(_) => {
                    held += 1;
                    assert_eq!(answer.decision, answer::Decision::Held, "{policy}: {answer:?}");
                }
                Placed::Not(why) => panic!("{policy}: {why}"),
            }
            if number % 4 == 3 {
                drop(leases.remove(0));
            }
        }
        assert_eq!(held > 0, policy.contains("lanes"), "{policy}");
    }
}

#[test]
fn a_crossing_is_explained_by_its_numbers() {
    let live = live("{kind: reference_bucket}");
    let _short = lease(&live, 100);
    let _long = lease(&live, 60_000);
    let answer = asked(&live, 2_000);
    let short = &answer.groups[0];
    assert_eq!(short.verdict, "chosen", "{answer:?}");
    assert!(short.product.unwrap() > short.threshold.unwrap());
    let product = short.gap.unwrap() * short.affinity.unwrap();
    assert_eq!(product.to_bits(), short.product.unwrap().to_bits());
    let text = answer.words.join("\n");
    assert!(text.contains("The prompt counts as 2,000 tokens, a quarter of the body's bytes."), "{text}");
    assert!(
        text.contains("Group short is lighter (100 tokens beside 60,000 in long): gap 0.998 x affinity "),
        "{text}"
    );
    assert!(text.contains(", above 0.12."), "{text}");
    assert!(
        text.contains(
            "It would go to b of group short, crossing from long (redirected): 0 tokens active, the least of 2 servers."
        ),
        "{text}"
    );
    assert_eq!(answer.servers[2].verdict, "other_group");
}

#[test]
fn work_is_explained_by_its_cost() {
    let live = live("{kind: lanes, lanes: 1, long_from_tokens: 20000}");
    let answer = asked(&live, 50_000);
    assert_eq!(server_of(&answer), "c");
    let text = answer.words.join("\n");
    assert!(text.contains("The prompt has 50,000 tokens."), "{text}");
    assert!(text.contains("it is long") && text.contains("a lane without another long prompt (c)"), "{text}");
    let _long = lease(&live, 50_000);
    let answer = asked(&live, 50_001);
    assert_eq!(answer.decision, answer::Decision::Held);
    assert!(answer.words.join("\n").contains("It would be held here until it is its turn."), "{:?}", answer.words);
    let answer = asked(&live, 100);
    let chosen = answer.servers.iter().find(|server| server.verdict == "chosen").unwrap();
    let cost = chosen.cost.unwrap();
    let sum = cost.waiting + cost.prefill + cost.decode + cost.kv_wait + cost.harm + cost.risk;
    assert!((sum - cost.total).abs() < 1e-9 && !cost.is_long, "{cost:?}");
    assert!(answer.servers[2].cost.unwrap().waiting > 1.0, "{answer:?}");
    let text = answer.words.join("\n");
    assert!(text.contains("of its own") && text.contains("; the next is "), "{text}");
}

#[test]
fn servers_that_take_nothing_are_named() {
    let live = live("{kind: reference_bucket}");
    let in_force = live.get();
    for server in in_force.servers().take(2) {
        live.change_standing(server, |standing| standing.is_drained_by_hand = true);
    }
    let answer = asked(&live, 100);
    assert_eq!(server_of(&answer), "c");
    let text = answer.words.join("\n");
    assert!(text.contains("Server a takes no requests: it is out or drained."), "{text}");
    assert!(text.contains("because short has no server that takes requests ("), "{text}");
    let last = in_force.servers().nth(2).unwrap();
    live.change_standing(last, |standing| standing.is_drained_by_hand = true);
    assert_eq!(asked(&live, 100).decision, answer::Decision::Waits { why: "no server is live".to_owned() });
}

#[test]
fn a_body_is_measured_as_the_proxy_would() {
    let live = live("{kind: least_work}");
    let text = "The gate opens when the water stands high enough. ".repeat(100);
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": text }], "max_tokens": 7 }).to_string();
    let answer = explain(&live, None, body.as_bytes()).unwrap();
    assert!(answer.is_estimated && (800.0..1_400.0).contains(&answer.prompt_tokens), "{answer:?}");
    assert_eq!(answer.endpoint, "chat");
    assert!(answer.needed_tokens.unwrap() > 800);
    let refused = |path: Option<&str>, body: &str| explain(&live, path, body.as_bytes()).unwrap_err().to_string();
    assert!(refused(None, "{}").starts_with("the body has no prompt: expected messages"));
    assert!(refused(None, "x").starts_with("expected a request's JSON body"));
    let path = Some("/version");
    assert!(refused(path, &body).starts_with("requests to /version are not measured"));
}
