//! Requests that may not go everywhere: tried servers, closed servers, servers that are too small.

use super::*;

fn pinned(servers: usize, lanes: usize) -> Dispatcher {
    dispatcher(servers, Lanes::new(Some(lanes)))
}

fn excluding(id: u64, prompt_tokens: u64, excluded: &[usize]) -> Request {
    Request { excluded: excluded.to_vec(), is_retry: true, ..Request::of_tokens(id, prompt_tokens) }
}

/// What has been decided: where requests go, or why they go nowhere.
fn decided(dispatcher: &mut Dispatcher) -> Vec<(u64, Result<usize, Rejection>)> {
    let pair = |outcome| match outcome {
        Outcome::Assigned { id, server, .. } => (id.0, Ok(server)),
        Outcome::Rejected { id, rejection } => (id.0, Err(rejection)),
    };
    dispatcher.outcomes().map(pair).collect()
}

fn come(dispatcher: &mut Dispatcher, request: Request, now_s: f64) -> Vec<(u64, Result<usize, Rejection>)> {
    dispatcher.arrive(request, now_s).unwrap();
    decided(dispatcher)
}

#[test]
fn a_request_never_goes_where_it_was_tried() {
    for policy in [true, false] {
        let mut dispatcher = if policy { pinned(3, 1) } else { dispatcher(3, LeastWork) };
        let (retry, all) = (excluding(1, 10, &[2, 0, 0]), excluding(2, 10, &[1, 0, 2]));
        assert_eq!(come(&mut dispatcher, retry, 0.0), [(1, Ok(1))]);
        assert_eq!(come(&mut dispatcher, all, 0.0), [(2, Err(Rejection::Excluded))]);
        dispatcher.server(1, false, 0.0);
        assert_eq!(come(&mut dispatcher, excluding(3, 10, &[0, 2]), 0.0), [(3, Err(Rejection::Excluded))]);
    }
}

#[test]
fn a_long_one_waits_for_a_lane_that_it_may_take_and_goes_elsewhere_when_there_is_none() {
    let mut dispatcher = pinned(4, 2);
    assert_eq!(come(&mut dispatcher, Request::of_tokens(1, LONG), 0.0), [(1, Ok(2))]);
    // Lane 3 is free, but not for this one.
    assert_eq!(come(&mut dispatcher, excluding(2, LONG, &[3]), 0.0), []);
    assert_eq!(come(&mut dispatcher, excluding(3, LONG, &[2, 3]), 0.0), [(3, Ok(0))]);
    // Whoever may take lane 3 does not wait behind the one that may not.
    assert_eq!(come(&mut dispatcher, Request::of_tokens(4, LONG), 0.0), [(4, Ok(3))]);
    dispatcher.first_token(RequestId(4), 1.0);
    assert_eq!(decided(&mut dispatcher), []);
    dispatcher.first_token(RequestId(1), 2.0);
    assert_eq!(decided(&mut dispatcher), [(2, Ok(2))]);
}

#[test]
fn a_held_request_is_rejected_when_what_is_left_was_tried() {
    let mut dispatcher = pinned(3, 1);
    drop(come(&mut dispatcher, Request::of_tokens(1, LONG), 0.0));
    assert_eq!(come(&mut dispatcher, excluding(2, LONG, &[0, 1]), 0.0), []);
    dispatcher.server(2, false, 1.0);
    assert_eq!(decided(&mut dispatcher), [(2, Err(Rejection::Excluded))]);
}

#[test]
fn a_retry_counts_once_as_traffic() {
    let share = |is_retry: bool| {
        let mut dispatcher = pinned(2, 1);
        drop(come(&mut dispatcher, Request::of_tokens(1, 8_000), 0.0));
        drop(come(&mut dispatcher, Request::of_tokens(2, LONG), 0.0));
        dispatcher.end(RequestId(2), false, None, 1.0);
        drop(come(&mut dispatcher, Request { is_retry, ..excluding(2, LONG, &[1]) }, 1.0));
        dispatcher.fleet().learned.long_share()
    };
    let mut once = pinned(2, 1);
    drop(come(&mut once, Request::of_tokens(1, 8_000), 0.0));
    drop(come(&mut once, Request::of_tokens(2, LONG), 0.0));
    assert_eq!(share(true).to_bits(), once.fleet().learned.long_share().to_bits());
    assert!(share(false) > share(true));
}

#[test]
fn while_all_servers_are_closed_everything_is_held_and_goes_in_order_of_arrival() {
    let mut dispatcher = pinned(3, 1);
    (0..3).for_each(|server| dispatcher.set_open(server, false, 0.0));
    let prompts = [(1, 900), (2, LONG), (3, 10), (4, LONG), (5, 400)];
    for (id, prompt_tokens) in prompts {
        assert_eq!(come(&mut dispatcher, Request::of_tokens(id, prompt_tokens), 1.0), []);
    }
    assert_eq!(dispatcher.policy().lanes(), [2], "a closed server is still a lane");
    dispatcher.set_open(0, true, 2.0);
    // The long ones wait on for the lane, and nobody waits behind them.
    assert_eq!(decided(&mut dispatcher), [(1, Ok(0)), (3, Ok(0)), (5, Ok(0))]);
    dispatcher.set_open(2, true, 3.0);
    assert_eq!(decided(&mut dispatcher), [(2, Ok(2))]);
}

#[test]
fn a_limit_is_never_exceeded_and_each_end_lets_the_next_in() {
    let mut dispatcher = pinned(2, 1);
    for server in 0..2 {
        dispatcher.set_admission(server, Admission { max_active: Some(2), ..Admission::default() }, 0.0);
    }
    for id in 0..4 {
        assert_eq!(come(&mut dispatcher, Request::of_tokens(id, 100), 0.0).len(), 1);
    }
    for id in 4..7 {
        assert_eq!(come(&mut dispatcher, Request::of_tokens(id, 100), 0.0), []);
    }
    assert_eq!(come(&mut dispatcher, Request::of_tokens(7, LONG), 0.0), []);
    let server_of = |dispatcher: &Dispatcher, id| dispatcher.fleet().book.active(RequestId(id)).unwrap().server;
    let on = |dispatcher: &Dispatcher, server| (0..4).find(|id| server_of(dispatcher, *id) == server).unwrap();
    let (on_short, on_lane) = (on(&dispatcher, 0), on(&dispatcher, 1));
    dispatcher.end(RequestId(on_short), true, None, 1.0);
    assert_eq!(decided(&mut dispatcher), [(4, Ok(0))]);
    // Its first chance on the lane makes the long one wait for its turn there from now on.
    dispatcher.end(RequestId(on_lane), true, None, 2.0);
    assert_eq!(decided(&mut dispatcher), [(5, Ok(1))]);
    dispatcher.end(RequestId(5), true, None, 3.0);
    assert_eq!(decided(&mut dispatcher), [(6, Ok(1))]);
    dispatcher.end(RequestId(6), true, None, 4.0);
    assert_eq!(decided(&mut dispatcher), [(7, Ok(1))]);
    dispatcher.set_admission(0, Admission::default(), 5.0);
    assert_eq!(come(&mut dispatcher, Request::of_tokens(8, 100), 5.0), [(8, Ok(0))]);
}

#[test]
fn waiting_for_a_closed_server_is_bounded_like_all_holding() {
    let limits = HoldLimits { max_requests: 1, max_wait_s: 5.0, ..HoldLimits::default() };
    let mut dispatcher = Dispatcher::new(2, LLAMA3_8B_A100, Box::new(Lanes::new(None)), limits, None);
    (0..2).for_each(|server| dispatcher.set_open(server, false, 0.0));
    assert_eq!(come(&mut dispatcher, Request::of_tokens(1, 10), 0.0), []);
    assert_eq!(come(&mut dispatcher, Request::of_tokens(2, 10), 0.0), [(2, Err(Rejection::HoldFull))]);
    dispatcher.tick(5.0);
    assert_eq!(decided(&mut dispatcher), [(1, Err(Rejection::HeldTooLong))]);
}

/// The largest is not the lane.
fn small_and_large() -> Dispatcher {
    let spec = |(max_model_len, prefers)| ServerSpec {
        traits: ServerTraits { max_model_len: Some(max_model_len), prefers, ..ServerTraits::default() },
        ..ServerSpec::default()
    };
    let settings = Settings { profile: LLAMA3_8B_A100, hold: HoldLimits::default(), long_from_tokens: None };
    let servers = [(8_192, None), (131_072, None), (32_768, Some(Prefers::Long))].map(spec);
    Dispatcher::of_servers(&servers, settings, Box::new(Lanes::new(Some(1))))
}

fn needing(id: u64, prompt_tokens: u64) -> Request {
    Request { needed_tokens: Some(prompt_tokens + 200), ..Request::of_tokens(id, prompt_tokens) }
}

#[test]
fn a_request_goes_only_where_it_has_room() {
    let mut dispatcher = small_and_large();
    assert_eq!(come(&mut dispatcher, needing(1, 7_000), 0.0), [(1, Ok(0))]);
    assert_eq!(come(&mut dispatcher, needing(2, 20_000), 0.0), [(2, Ok(1))]);
    // Too long for the lane: it does not wait for it.
    assert_eq!(come(&mut dispatcher, needing(3, 100_000), 0.0), [(3, Ok(1))]);
    let too_long = Rejection::TooLong { max_model_len: 131_072 };
    assert_eq!(come(&mut dispatcher, needing(4, 131_000), 0.0), [(4, Err(too_long))]);
    dispatcher.server(1, false, 1.0);
    // The only one that is large enough may come back.
    assert_eq!(come(&mut dispatcher, needing(5, 100_000), 1.0), []);
    assert_eq!(come(&mut dispatcher, needing(6, 131_000), 1.0), [(6, Err(too_long))]);
    assert_eq!(come(&mut dispatcher, excluding(7, 10, &[0, 2]), 1.0), [(7, Err(Rejection::Excluded))]);
    dispatcher.server(1, true, 2.0);
    assert_eq!(decided(&mut dispatcher), [(5, Ok(1))]);
    dispatcher.server(1, false, 3.0);
    drop(come(&mut dispatcher, needing(8, 100_000), 3.0));
    dispatcher.tick(200.0);
    assert_eq!(decided(&mut dispatcher), [(8, Err(Rejection::NoServer))]);
}

#[test]
fn an_explanation_adds_up_and_names_what_is_in_the_way() {
    let mut dispatcher = small_and_large();
    // Long work about, so that a lane has its risk.
    dispatcher.arrive(Request::of_tokens(1, 30_000), 0.0).unwrap();
    assert_eq!(decided(&mut dispatcher), [(1, Ok(2))]);
    dispatcher.first_token(RequestId(1), 5.0);
    let request = Request { excluded: vec![1], ..needing(2, 1_000) };
    let explained = dispatcher.explain(&request, 6.0);
    let obstacles: Vec<_> = explained.iter().map(|one| (one.server, one.is_lane, one.obstacle)).collect();
    assert_eq!(obstacles, [(0, false, None), (1, false, Some(Obstacle::Excluded)), (2, true, None)]);
    for one in &explained {
        let cost = one.cost;
        let sum = cost.waiting_s + cost.prefill_s + cost.decode_s + cost.kv_wait_s + cost.harm_s + one.surcharge_s;
        assert!((one.total_s() - sum).abs() < 1e-12);
    }
    assert!(explained[2].surcharge_s > 0.0 && explained[2].cost.harm_s > 0.0 && explained[0].surcharge_s == 0.0);
    let best = explained.iter().filter(|one| one.obstacle.is_none()).min_by(|a, b| a.total_s().total_cmp(&b.total_s()));
    assert_eq!(come(&mut dispatcher, request, 6.0), [(2, Ok(best.unwrap().server))]);
    dispatcher.set_open(0, false, 7.0);
    dispatcher.server(2, false, 7.0);
    let obstacles: Vec<_> = dispatcher.explain(&needing(3, 20_000), 7.0).iter().map(|one| one.obstacle).collect();
    assert_eq!(obstacles, [Some(Obstacle::TooLong), None, Some(Obstacle::Down)]);
    assert_eq!(dispatcher.explain(&needing(3, 20), 7.0)[0].obstacle, Some(Obstacle::Closed));
}

#[test]
fn servers_share_in_proportion_to_their_speed() {
    let speeds = [1.0, 2.0, 4.0];
    let spec =
        |speed| ServerSpec { traits: ServerTraits { speed, ..ServerTraits::default() }, ..ServerSpec::default() };
    let settings = Settings { profile: LLAMA3_8B_A100, hold: HoldLimits::default(), long_from_tokens: None };
    let mut dispatcher = Dispatcher::of_servers(&speeds.map(spec), settings, Box::new(LeastWork));
    for id in 0..700 {
        assert_eq!(
            come(&mut dispatcher, Request { max_tokens: Some(1), ..Request::of_tokens(id, 4_000) }, 0.0).len(),
            1
        );
    }
    let waiting = [0, 1, 2].map(|server| dispatcher.fleet().book.sums(server).waiting);
    assert!(waiting.iter().zip([100, 200, 400]).all(|(found, expected)| found.abs_diff(expected) <= 1), "{waiting:?}");
    // The same seconds wait on all: what is entered is what the server takes.
    let seconds = [0, 1, 2].map(|server| dispatcher.fleet().book.waiting_s(server, 0.0));
    assert!((seconds[0] - seconds[2]).abs() < 0.5, "{seconds:?}");
}

#[test]
fn a_slow_server_makes_no_prompt_longer() {
    let spec =
        |speed| ServerSpec { traits: ServerTraits { speed, ..ServerTraits::default() }, ..ServerSpec::default() };
    let settings = Settings { profile: LLAMA3_8B_A100, hold: HoldLimits::default(), long_from_tokens: None };
    let mut dispatcher = Dispatcher::of_servers(&[spec(0.1), spec(0.1)], settings, Box::new(Lanes::new(Some(1))));
    // 0.7 s at speed 1, which is short; 7 s here.
    assert_eq!(come(&mut dispatcher, Request::of_tokens(1, 10_000), 0.0), [(1, Ok(0))]);
    assert_eq!(dispatcher.fleet().book.sums(0).waiting_long, 0);
    assert!(dispatcher.fleet().book.waiting_s(0, 0.0) > 6.0);
}
