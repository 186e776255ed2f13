//! Two policies over the same requests.

use std::num::NonZeroUsize;

use super::*;
use crate::balance::{Buckets, ByWork, RedirectTuning, Usage, WorkKind};
use crate::prompt::Work;

const LONG_TOKENS: u64 = 60_000;

fn topology() -> Topology {
    Topology::new(vec![vec![0, 1], vec![2, 3]]).unwrap()
}

fn lanes() -> Policy {
    Policy::ByWork(ByWork {
        kind: WorkKind::Lanes { count: Some(1) },
        long_from_tokens: Some(20_000),
        ..ByWork::default()
    })
}

fn buckets() -> Policy {
    let count = NonZeroUsize::new(2).unwrap();
    Policy::ReferenceBucket(Buckets::equal_width(65_536, count.get(), RedirectTuning::default()).unwrap())
}

type Told = Arc<Mutex<Vec<(Option<usize>, &'static str, Agreement)>>>;

fn shadow(policy: Policy) -> (Arc<Shadow>, Told) {
    let told = Told::default();
    let ears = Arc::clone(&told);
    let tell = move |choice: Choice| ears.lock().push((choice.group, choice.reason, choice.agreement));
    let shadow = Shadow::new(topology(), policy, Ties::First, &[], Arc::new(|| 0.0), tell).unwrap();
    (shadow, told)
}

fn demand(prompt_tokens: u64) -> Demand {
    let work = Work { prompt_tokens, is_streamed: true, ..Work::default() };
    Demand { work: Some(Arc::new(work)), ..Demand::of_bytes(prompt_tokens * 4) }
}

fn is_idle(shadow: &Shadow) -> bool {
    let snapshot = shadow.balancer.snapshot();
    snapshot.servers.iter().all(|usage| *usage == Usage::default()) && shadow.state.lock().requests.is_empty()
}

#[test]
fn choices_are_compared_with_where_requests_really_went() {
    let (shadow, told) = shadow(buckets());
    let short: Vec<Followed> = (0..3).map(|_| shadow.arrive(&demand(100))).collect();
    assert!(told.lock().is_empty(), "where they went is not known yet");
    // The buckets take servers 0 and 1 in turn, and cross to 2 when those have more.
    short[0].placed(0, 0);
    short[1].placed(3, 1);
    let long = shadow.arrive(&demand(LONG_TOKENS));
    long.placed(3, 1);
    let agreements: Vec<Agreement> = told.lock().iter().map(|(_, _, agreement)| *agreement).collect();
    assert_eq!(agreements[0], Agreement::SameServer);
    assert_eq!(agreements.len(), 3);
    let Counts { same_server, same_group, other_group, none } = shadow.counts();
    assert_eq!((same_server + same_group + other_group, none), (3, 0));
    drop((short, long));
    assert!(is_idle(&shadow));
    // The third one really went nowhere.
    assert_eq!(told.lock().len(), 3);
}

#[test]
fn what_the_shadow_holds_is_compared_when_it_lets_it_go_and_counted_when_it_never_does() {
    let (shadow, told) = shadow(lanes());
    let long: Vec<Followed> = (0..3).map(|_| shadow.arrive(&demand(LONG_TOKENS))).collect();
    long.iter().for_each(|request| request.placed(3, 1));
    assert_eq!(*told.lock(), [(Some(1), "lane", Agreement::SameServer)]);
    assert_eq!(shadow.held(), 2);
    long[0].first_token();
    assert_eq!(shadow.held(), 1);
    assert_eq!(told.lock().len(), 2);
    // It has its answer while the shadow still holds it.
    long[2].answered(Some(7));
    assert_eq!(told.lock().last(), Some(&(None, "held", Agreement::None)));
    long[0].generated(64);
    long[0].answered(Some(70));
    long[1].answered(None);
    drop(long);
    assert!(is_idle(&shadow));
    assert_eq!(shadow.counts(), Counts { same_server: 2, none: 1, ..Counts::default() });
}

#[test]
fn without_servers_nothing_is_chosen() {
    let (shadow, told) = shadow(lanes());
    (0..4).for_each(|server| shadow.set_admission(server, Admission::closed()));
    let request = shadow.arrive(&demand(100));
    request.placed(0, 0);
    drop(request);
    assert_eq!(told.lock().len(), 1);
    assert_eq!(told.lock()[0].2, Agreement::None);
    shadow.set_admission(2, Admission::default());
    let request = shadow.arrive(&demand(100));
    request.placed(3, 1);
    assert_eq!(told.lock()[1].2, Agreement::SameGroup);
    drop(request);
    assert!(is_idle(&shadow));
}

#[test]
fn other_servers_are_taken_over() {
    let (shadow, _) = shadow(lanes());
    let before = shadow.arrive(&demand(100));
    shadow.reconfigure(Topology::new(vec![vec![7], vec![9]]).unwrap(), lanes(), Ties::First, &[]).unwrap();
    let after = shadow.arrive(&demand(LONG_TOKENS));
    after.placed(9, 1);
    assert_eq!(shadow.counts().same_server, 1);
    drop((before, after));
    assert!(is_idle(&shadow));
    assert!(shadow.reconfigure(Topology::new(vec![vec![7]]).unwrap(), buckets(), Ties::First, &[]).is_err());
}
