//! Changes of what is in force, while requests run.

use super::*;
use crate::balance::{Placement, Tried, Unavailable};
use crate::config::of_text;
use crate::prompt::Demand;

/// How a server comes that joins.
const PROBATION: Verdict = Verdict::Probation { max_in_flight: 4 };
const SHORT: Demand = Demand::of_bytes(400);

/// Groups of a thousand tokens each, with servers on these ports.
fn config(groups: &[(&str, &[u16])]) -> Config {
    of_groups(groups, "")
}

/// The same; the first group with something more.
fn of_groups(groups: &[(&str, &[u16])], more: &str) -> Config {
    let mut text = "policy: {kind: reference_bucket, ties: first}\ngroups:\n".to_owned();
    for (number, (name, ports)) in groups.iter().enumerate() {
        let server = |port| format!("{{address: 127.0.0.1:{port}, name: s{port}}}");
        let servers: Vec<String> = ports.iter().map(server).collect();
        let (up_to, servers, more) = ((number + 1) * 1_000, servers.join(", "), if number == 0 { more } else { "" });
        text += &format!("- {{name: {name}, up_to_tokens: {up_to}, servers: [{servers}]{more}}}\n");
    }
    of_text(&text)
}

fn ports(in_force: &InForce) -> Vec<Vec<u16>> {
    in_force.groups().map(|servers| servers.map(|server| server.config().port).collect()).collect()
}

fn number_of(live: &Live, port: u16) -> usize {
    live.get().servers().find(|server| server.config().port == port).map(|server| server.number()).unwrap()
}

#[test]
fn a_server_that_stays_keeps_its_number_and_its_load_whatever_group_it_is_in() {
    let live = Live::new(config(&[("short", &[1, 2]), ("long", &[3])])).unwrap();
    let lease = live.balancer().acquire(&SHORT, &Tried::default()).unwrap();
    assert_eq!(lease.server(), number_of(&live, 1));
    let in_force = live.apply(config(&[("short", &[3, 4]), ("long", &[2, 1])])).unwrap();
    assert_eq!(ports(&in_force), [vec![3, 4], vec![2, 1]]);
    assert_eq!(in_force.generation, 2);
    assert_eq!(lease.server(), number_of(&live, 1), "the number stays");
    let snapshot = live.balancer().snapshot();
    assert_eq!((snapshot.groups[0].in_flight, snapshot.groups[1].in_flight), (0, 1), "the load has moved along");
    drop(lease);
    assert_eq!(live.balancer().snapshot().groups[1].load.millitokens(), 0);
}

#[test]
fn a_member_is_known_by_number_and_address_while_it_is_in_a_group() {
    let live = Live::new(config(&[("short", &[1, 2]), ("long", &[3])])).unwrap();
    let number = number_of(&live, 1);
    let port = |in_force: &InForce, number, authority: &str| {
        in_force.member(number, authority).map(|server| server.config().port)
    };
    let in_force = live.get();
    assert_eq!(port(&in_force, number, "127.0.0.1:1"), Some(1));
    assert_eq!(port(&in_force, number, "127.0.0.1:2"), None, "the number is another server's");
    assert_eq!(port(&in_force, 99, "127.0.0.1:1"), None);
    // One that has left is known, to what runs on it, and is no member.
    let _lease = live.balancer().acquire(&SHORT, &Tried::default()).unwrap();
    let in_force = live.apply(config(&[("short", &[2]), ("long", &[3])])).unwrap();
    assert!(in_force.server(number).is_some());
    assert_eq!(port(&in_force, number, "127.0.0.1:1"), None);
}

#[test]
fn a_server_that_goes_gets_nothing_new_and_is_still_known_to_what_runs_on_it() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    let lease = live.balancer().acquire(&SHORT, &Tried::default()).unwrap();
    let in_force = live.apply(config(&[("short", &[3]), ("long", &[2])])).unwrap();
    assert_eq!(in_force.server(lease.server()).unwrap().config().port, 1);
    let next = live.balancer().acquire(&SHORT, &Tried::default()).unwrap();
    assert_eq!(in_force.server(next.server()).unwrap().config().port, 3);
}

#[test]
fn a_drained_server_stays_drained_through_a_change() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    let server = Arc::clone(live.get().server(number_of(&live, 1)).unwrap());
    live.change_standing(&server, |standing| standing.is_drained_by_hand = true);
    live.apply(config(&[("short", &[1]), ("long", &[2, 3])])).unwrap();
    let lease = live.balancer().acquire(&SHORT, &Tried::default()).unwrap();
    assert_eq!(lease.placement(), Placement::Redirected, "a group without a live server attracts nobody");
    assert_ne!(lease.server(), number_of(&live, 1));
}

#[test]
fn a_server_that_joins_is_on_probation_and_one_that_was_there_is_not() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    let in_force = live.apply(config(&[("short", &[1, 3]), ("long", &[2])])).unwrap();
    let verdict = |port| in_force.server(number_of(&live, port)).unwrap().standing().verdict;
    assert_eq!((verdict(1), verdict(2)), (Verdict::Healthy, Verdict::Healthy));
    assert_eq!(verdict(3), PROBATION);
    let admission = live.balancer().snapshot().admissions[number_of(&live, 3)];
    assert_eq!(admission.max_in_flight, Some(4), "the balancer knows");
}

#[test]
fn without_a_live_server_there_is_none_to_be_had() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    for server in live.get().servers() {
        live.change_standing(server, |standing| standing.verdict = Verdict::Out);
    }
    assert_eq!(live.balancer().acquire(&SHORT, &Tried::default()).unwrap_err(), Unavailable::NoneLive);
}

#[test]
fn a_server_on_probation_gets_so_many_requests_and_no_more() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    let server = Arc::clone(live.get().server(number_of(&live, 1)).unwrap());
    live.change_standing(&server, |standing| standing.verdict = Verdict::Probation { max_in_flight: 1 });
    let _lease = live.balancer().acquire(&Demand::of_bytes(0), &Tried::default()).unwrap();
    assert_eq!(live.balancer().acquire(&Demand::of_bytes(0), &Tried::default()).unwrap_err(), Unavailable::NoneFree);
}

#[test]
fn what_cannot_be_run_changes_nothing() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    let mut wrong = config(&[("short", &[3]), ("long", &[2])]);
    wrong.groups.pop();
    assert!(matches!(live.apply(wrong), Err(ApplyError::GroupMismatch(_))));
    assert_eq!(ports(&live.get()), [[1], [2]]);
    assert_eq!(live.get().generation, 1);
}

/// A configuration whose first group also has servers from a file.
fn with_source(groups: &[(&str, &[u16])]) -> (Config, Source) {
    let config = of_groups(groups, ", discover: {file: servers, interval: 1s}");
    let source = config.groups[0].discover.clone().unwrap().source;
    (config, source)
}

fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
    ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect()
}

#[test]
fn discovered_servers_follow_the_listed_ones_in_the_order_of_their_addresses() {
    let (config, source) = with_source(&[("short", &[9]), ("long", &[2])]);
    let live = Live::new(config).unwrap();
    assert!(live.replace_discovered(&source, addresses(&[8, 1, 9, 2, 8])).unwrap());
    assert_eq!(ports(&live.get()), [vec![9, 1, 8], vec![2]], "and nobody is taken twice");
    assert_eq!(live.get().generation, 1, "the configuration is the same");
    assert!(!live.replace_discovered(&source, addresses(&[1, 2, 8, 9])).unwrap(), "nothing is new");
    assert!(live.replace_discovered(&source, Vec::new()).unwrap());
    assert_eq!(ports(&live.get()), [[9], [2]]);
}

#[test]
fn what_was_discovered_stays_through_a_reload_that_keeps_its_source_and_only_then() {
    let (first, source) = with_source(&[("short", &[]), ("long", &[2])]);
    let live = Live::new(first).unwrap();
    live.replace_discovered(&source, addresses(&[7])).unwrap();
    let lease = live.balancer().acquire(&SHORT, &Tried::default()).unwrap();
    live.apply(with_source(&[("short", &[3]), ("long", &[2])]).0).unwrap();
    assert_eq!(ports(&live.get()), [vec![3, 7], vec![2]]);
    assert_eq!(number_of(&live, 7), lease.server());
    live.apply(config(&[("short", &[3]), ("long", &[2])])).unwrap();
    assert_eq!(ports(&live.get()), [[3], [2]]);
    assert!(!live.replace_discovered(&source, addresses(&[8])).unwrap(), "nobody wants it any more");
}

#[test]
fn a_configuration_comes_into_force_with_what_its_new_sources_have() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    let (next, source) = with_source(&[("short", &[]), ("long", &[2])]);
    live.apply_with(next, Found::from([(source, addresses(&[5]))])).unwrap();
    assert_eq!(ports(&live.get()), [[5], [2]]);
}

#[test]
fn a_server_that_returns_has_its_load_and_a_fresh_standing() {
    let both = || config(&[("short", &[1]), ("long", &[2])]);
    let live = Live::new(both()).unwrap();
    let lease = live.balancer().acquire(&SHORT, &Tried::default()).unwrap();
    let server = Arc::clone(live.get().server(lease.server()).unwrap());
    live.change_standing(&server, |standing| standing.verdict = Verdict::Out);
    live.apply(config(&[("short", &[3]), ("long", &[2])])).unwrap();
    assert_eq!(live.get().left().map(|server| server.number()).collect::<Vec<_>>(), [lease.server()]);
    live.apply(both()).unwrap();
    assert_eq!(number_of(&live, 1), lease.server());
    assert_eq!(live.balancer().snapshot().groups[0].in_flight, 1);
    let joined = Standing { verdict: PROBATION, ..Standing::default() };
    assert_eq!(live.get().server(lease.server()).unwrap().standing(), joined);
    assert!(live.balancer().snapshot().admissions[lease.server()].is_open);
}

#[test]
fn a_verdict_on_a_server_that_has_left_does_not_fall_on_the_one_that_got_its_number() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    let old = Arc::clone(live.get().server(number_of(&live, 1)).unwrap());
    live.apply(config(&[("short", &[3]), ("long", &[2])])).unwrap();
    live.apply(config(&[("short", &[4]), ("long", &[2])])).unwrap();
    assert_eq!(number_of(&live, 4), old.number(), "the number is given again");
    live.change_standing(&old, |standing| standing.verdict = Verdict::Out);
    assert!(live.balancer().snapshot().admissions[old.number()].is_open);
    assert_eq!(live.get().server(old.number()).unwrap().standing().verdict, PROBATION);
}

#[test]
fn a_verdict_on_an_older_picture_of_a_server_reaches_the_newest() {
    let live = Live::new(config(&[("short", &[1]), ("long", &[2])])).unwrap();
    let old = Arc::clone(live.get().server(number_of(&live, 1)).unwrap());
    live.apply(config(&[("short", &[1, 3]), ("long", &[2])])).unwrap();
    live.change_standing(&old, |standing| standing.verdict = Verdict::Out);
    assert_eq!(live.get().server(old.number()).unwrap().standing().verdict, Verdict::Out);
    assert!(!live.balancer().snapshot().admissions[old.number()].is_open);
}

#[test]
fn the_configuration_and_the_hand_drain_a_server_independently() {
    let drained = |is_drained| {
        let mut config = config(&[("short", &[1]), ("long", &[2])]);
        config.groups[0].servers[0].is_drained = is_drained;
        config
    };
    let live = Live::new(drained(true)).unwrap();
    let is_open = || live.balancer().snapshot().admissions[0].is_open;
    assert!(!is_open());
    live.change_standing(&Arc::clone(live.get().server(0).unwrap()), |standing| standing.is_drained_by_hand = true);
    live.apply(drained(false)).unwrap();
    assert!(!is_open(), "the hand still holds it");
    live.change_standing(&Arc::clone(live.get().server(0).unwrap()), |standing| standing.is_drained_by_hand = false);
    assert!(is_open());
    live.apply(drained(true)).unwrap();
    assert!(!is_open());
}

#[test]
fn the_groups_that_are_in_force_have_what_their_servers_have_while_servers_move() {
    let layout = |round: usize| {
        let ports: [&[u16]; 2] = if round.is_multiple_of(2) { [&[1], &[2]] } else { [&[2], &[1]] };
        config(&[("short", ports[0]), ("long", ports[1])])
    };
    let live = Live::new(layout(0)).unwrap();
    let lease = live.balancer().acquire(&SHORT, &Tried::default()).unwrap();
    std::thread::scope(|threads| {
        let moving = threads.spawn(|| (1..=2_000).for_each(|round| drop(live.apply(layout(round)).unwrap())));
        while !moving.is_finished() {
            let Moment { in_force, usage, .. } = live.at_one_moment();
            for (group, servers) in in_force.groups().enumerate() {
                let running: u64 = servers.map(|server| usage.servers[server.number()].in_flight).sum();
                assert_eq!(usage.groups[group].in_flight, running, "in generation {}", in_force.generation);
            }
        }
    });
    drop(lease);
}
