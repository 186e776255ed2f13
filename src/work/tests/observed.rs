//! Engines that serve others too.

use super::*;

const BUSY: EngineState = EngineState { running: 40, waiting: 6, kv_usage: None };

#[test]
fn a_server_that_is_busy_with_others_gets_less_until_that_is_stale() {
    let server = |busy_at_s: Option<f64>, now_s: f64| {
        let mut dispatcher = dispatcher(2, LeastWork);
        assert_eq!(arrive(&mut dispatcher, 1, 5_000, 0.0), [(1, 0)]);
        dispatcher.end(RequestId(1), true, Some(10), 0.0);
        // The other one would be next, of two that are idle.
        busy_at_s.into_iter().for_each(|at_s| dispatcher.observed(1, BUSY, 10.0, at_s));
        arrive(&mut dispatcher, 2, 5_000, now_s)[0].1
    };
    assert_eq!(
        [server(None, 1.0), server(Some(1.0), 1.0), server(Some(1.0), 10.9), server(Some(1.0), 11.0)],
        [1, 0, 0, 1]
    );
}

#[test]
fn drift_is_what_an_engine_has_beyond_the_book() {
    let mut dispatcher = dispatcher(2, LeastWork);
    assert_eq!(arrive(&mut dispatcher, 1, 5_000, 0.0), [(1, 0)]);
    assert_eq!(dispatcher.fleet().observation(0), None);
    dispatcher.observed(0, EngineState { running: 1, ..EngineState::default() }, 10.0, 1.0);
    dispatcher.observed(1, BUSY, 10.0, 1.0);
    let drift = |dispatcher: &Dispatcher, server| dispatcher.fleet().observation(server).unwrap().drift_requests();
    assert_eq!([drift(&dispatcher, 0), drift(&dispatcher, 1)], [0.0, 46.0]);
    // What a server said before it went means nothing when it comes back.
    dispatcher.server(1, false, 2.0);
    dispatcher.server(1, true, 2.0);
    assert_eq!(dispatcher.fleet().observation(1), None);
}

#[test]
fn a_full_cache_that_others_have_filled_keeps_a_long_prompt_back() {
    let mut dispatcher = dispatcher(2, Lanes::new(Some(1)));
    dispatcher.observed(1, EngineState { running: 40, waiting: 0, kv_usage: Some(0.95) }, 10.0, 0.0);
    assert_eq!((arrive(&mut dispatcher, 1, LONG, 0.0), dispatcher.next_wakeup_s()), (vec![], Some(10.0)));
    dispatcher.observed(1, EngineState { running: 4, waiting: 0, kv_usage: Some(0.1) }, 10.0, 1.0);
    dispatcher.tick(1.0);
    assert_eq!(assigned(&mut dispatcher), [(1, 1)]);
}

proptest! {
    #[test]
    fn an_observation_never_makes_a_server_look_idler_and_leaves_the_book_alone(
        arrivals in prop::collection::vec((1..60_000_u64, any::<bool>()), 0..40),
        engine in (0..500_u64, 0..500_u64, prop::option::of(-1.0..2.0)),
        age_s in 0.0..30.0,
    ) {
        let mut dispatcher = dispatcher(2, LeastWork);
        for (id, (prompt_tokens, has_first)) in arrivals.into_iter().enumerate() {
            drop(arrive(&mut dispatcher, id as u64, prompt_tokens, 0.0));
            if has_first {
                dispatcher.first_token(RequestId(id as u64), 0.0);
            }
        }
        let (request, now_s) = (Request::of_tokens(1 << 40, 2_000), 5.0 + age_s);
        let sums = |dispatcher: &Dispatcher| [0, 1].map(|server| *dispatcher.fleet().book.sums(server));
        let before = (dispatcher.explain(&request, now_s), sums(&dispatcher));
        let (running, waiting, kv_usage) = engine;
        dispatcher.observed(1, EngineState { running, waiting, kv_usage }, 10.0, 5.0);
        let after = (dispatcher.explain(&request, now_s), sums(&dispatcher));
        prop_assert_eq!(before.1, after.1);
        prop_assert_eq!(before.0[0], after.0[0]);
        prop_assert!(after.0[1].total_s().is_finite());
        let (then, now) = (before.0[1].cost, after.0[1].cost);
        let terms = |cost: Cost| [cost.waiting_s, cost.prefill_s, cost.decode_s, cost.kv_wait_s, cost.harm_s];
        if age_s >= 10.0 {
            prop_assert_eq!(then, now);
        } else {
            prop_assert!(terms(then).iter().zip(terms(now)).all(|(then, now)| now >= then - 1e-9), "{:?} {:?}", then, now);
        }
    }
}
