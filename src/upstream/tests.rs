//! Changes of what is in force, while requests run.

use pingora::server::configuration::ServerConf;

use super::*;
use crate::balance::{Bucket, Buckets, Placement, Policy, RedirectTuning, Ties, Tried, Unavailable};
use crate::config::{Group, QueueLimits, Retry, ServerLimits, Shutdown, Timeouts};
use crate::prompt::Demand;

const SHORT: Demand = Demand::of_bytes(400);

fn config(groups: &[(&str, &[u16])]) -> Config {
    let server = |port: &u16| crate::config::Server {
        name: format!("s{port}"),
        host: "127.0.0.1".to_owned(),
        port: *port,
        authorization: None,
        limits: ServerLimits::default(),
        tls: None,
    };
    let ranges = (0..groups.len() as u64).map(|number| Bucket { from: number * 1_000, to: (number + 1) * 1_000 });
    Config {
        listen: Vec::new(),
        tls: None,
        admin: None,
        groups: (groups.iter())
            .map(|(name, ports)| Group { name: (*name).to_owned(), servers: ports.iter().map(server).collect() })
            .collect(),
        policy: Policy::ReferenceBucket(Buckets::new(ranges.collect(), RedirectTuning::default()).unwrap()),
        ties: Ties::First,
        max_body_bytes: 1 << 20,
        timeouts: Timeouts::default(),
        health: crate::config::Health::default(),
        retry: Retry::default(),
        queue: QueueLimits::default(),
        strip_request_headers: Vec::new(),
        upstream_authorization: None,
        access: crate::access::Rules::default(),
        shutdown: Shutdown::default(),
        pingora: ServerConf::default(),
    }
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
    live.change_standing(&server, |standing| standing.is_draining = true);
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
    assert_eq!(verdict(3), Verdict::Probation { max_in_flight: 4 });
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
