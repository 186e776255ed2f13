//! The policies through the dispatcher: what goes where, what is held, and what never happens.

mod change;
mod limits;
mod observed;

use proptest::prelude::*;

use super::*;

/// A prompt that is long with the first profile, whatever the traffic is like.
const LONG: u64 = 100_000;

fn dispatcher(servers: usize, policy: impl Policy + 'static) -> Dispatcher {
    Dispatcher::new(servers, LLAMA3_8B_A100, Box::new(policy), HoldLimits::default(), None)
}

fn lanes(servers: usize) -> Dispatcher {
    dispatcher(servers, Lanes::new(None))
}

fn arrive(dispatcher: &mut Dispatcher, id: u64, prompt_tokens: u64, now_s: f64) -> Vec<(u64, usize)> {
    dispatcher.arrive(Request::of_tokens(id, prompt_tokens), now_s).unwrap();
    assigned(dispatcher)
}

fn assigned(dispatcher: &mut Dispatcher) -> Vec<(u64, usize)> {
    let pair = |outcome| match outcome {
        Outcome::Assigned { id, server, .. } => (id.0, server),
        Outcome::Rejected { id, rejection } => panic!("{id:?} was rejected: {rejection:?}"),
    };
    dispatcher.outcomes().map(pair).collect()
}

#[test]
fn least_work_spreads_equals_and_avoids_what_waits() {
    let mut dispatcher = dispatcher(3, LeastWork);
    let first: Vec<_> = (0..3).flat_map(|id| arrive(&mut dispatcher, id, 1_000, 0.0)).collect();
    assert_eq!(first, [(0, 0), (1, 1), (2, 2)]);
    dispatcher.end(RequestId(1), true, Some(5), 0.1);
    assert_eq!(arrive(&mut dispatcher, 3, 1_000, 0.1), [(3, 1)]);
}

// What waits becomes a stream as well, and a few streams less are soon evened out by those that come after.
#[test]
fn without_long_work_a_few_streams_less_are_not_worth_a_prompt_that_waits() {
    for policy in [Box::new(LeastWork) as Box<dyn Policy>, Box::new(Lanes::new(None))] {
        let mut dispatcher = Dispatcher::new(2, LLAMA3_8B_A100, policy, HoldLimits::default(), None);
        let request = |id, prompt_tokens| Request {
            max_tokens: Some(1_100),
            ignore_eos: true,
            ..Request::of_tokens(id, prompt_tokens)
        };
        for id in 0..42 {
            dispatcher.arrive(request(id, 800), 0.0).unwrap();
            dispatcher.first_token(RequestId(id), 0.0);
        }
        // Every other one was on server 0; four of these end, and one comes there.
        let on_first: Vec<u64> =
            assigned(&mut dispatcher).iter().filter(|(_, server)| *server == 0).map(|(id, _)| *id).collect();
        on_first[..4].iter().for_each(|id| dispatcher.end(RequestId(*id), true, Some(1_100), 1.0));
        dispatcher.arrive(request(100, 300), 1.0).unwrap();
        dispatcher.arrive(request(101, 300), 1.0).unwrap();
        assert_eq!(assigned(&mut dispatcher), [(100, 0), (101, 1)]);
    }
}

#[test]
fn where_there_can_be_no_more_lanes_a_prompt_that_waits_out_of_proportion_borrows_the_last_server() {
    let places = |mut dispatcher: Dispatcher| {
        // The lane has a prefill that does not end, so that the next ones are held: 40,000 tokens take 5.2 s.
        assert_eq!(arrive(&mut dispatcher, 1, LONG, 0.0), [(1, 1)]);
        assert!(
            arrive(&mut dispatcher, 2, 40_000, 0.0).is_empty() && arrive(&mut dispatcher, 3, 40_000, 0.0).is_empty()
        );
        let patience_s = 7.0 * LLAMA3_8B_A100.prefill_s(40_000, 0);
        let wakeups = std::iter::from_fn(|| {
            let at_s = dispatcher.next_wakeup_s().filter(|at_s| *at_s < 60.0)?;
            dispatcher.tick(at_s);
            Some((at_s, assigned(&mut dispatcher)))
        });
        let placed: Vec<_> = wakeups.take(100).filter(|(_, placed)| !placed.is_empty()).collect();
        assert!(placed.iter().all(|(at_s, _)| (at_s - patience_s).abs() < 1e-6), "{placed:?}");
        placed.into_iter().flat_map(|(_, placed)| placed).collect::<Vec<_>>()
    };
    // One of them: the last server has one long prefill at a time, too.
    assert_eq!(places(lanes(2)), [(2, 0)]);
    let prefers =
        |prefers| ServerSpec { traits: ServerTraits { prefers, ..ServerTraits::default() }, ..ServerSpec::default() };
    let servers = [prefers(Some(Prefers::Short)), prefers(None)];
    let settings = Settings { profile: LLAMA3_8B_A100, hold: HoldLimits::default(), long_from_tokens: None };
    assert_eq!(places(Dispatcher::of_servers(&servers, settings, Box::new(Lanes::new(None)))), []);
    assert_eq!(places(dispatcher(2, Lanes::new(Some(1)))), []);
}

#[test]
fn ties_rotate() {
    let mut dispatcher = dispatcher(3, LeastWork);
    let mut server_of = |id: u64| {
        let found = arrive(&mut dispatcher, id, 10, 0.0);
        dispatcher.end(RequestId(id), true, Some(1), 0.0);
        found[0].1
    };
    assert_eq!((0..6).map(&mut server_of).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_second_long_prompt_is_held_until_the_lane_has_its_first_token() {
    let mut dispatcher = lanes(4);
    // Shorts keep the share of long work at one lane.
    (0..400).for_each(|id| drop(arrive(&mut dispatcher, id, 8_000, 0.0)));
    (0..400).for_each(|id| dispatcher.end(RequestId(id), true, Some(100), 0.0));
    assert_eq!(arrive(&mut dispatcher, 500, LONG, 1.0), [(500, 3)]);
    assert_eq!(arrive(&mut dispatcher, 501, LONG, 1.0), []);
    assert_eq!((dispatcher.held(), dispatcher.policy().lanes()), (1, &[3][..]));
    // Short ones go on, elsewhere.
    assert!(arrive(&mut dispatcher, 502, 500, 2.0).iter().all(|(_, server)| *server < 3));
    dispatcher.first_token(RequestId(500), 9.0);
    assert_eq!((assigned(&mut dispatcher), dispatcher.held()), (vec![(501, 3)], 0));
}

#[test]
fn the_shorter_of_the_held_is_next_and_a_cancelled_one_is_out() {
    let mut dispatcher = dispatcher(2, Lanes::new(Some(1)));
    assert_eq!(arrive(&mut dispatcher, 1, LONG, 0.0), [(1, 1)]);
    for (id, tokens) in [(2, 120_000), (3, 50_000), (4, 60_000)] {
        assert_eq!(arrive(&mut dispatcher, id, tokens, 0.0), []);
    }
    dispatcher.end(RequestId(3), false, None, 1.0);
    assert_eq!(dispatcher.held(), 2);
    dispatcher.end(RequestId(1), false, None, 2.0);
    assert_eq!(assigned(&mut dispatcher), [(4, 1)]);
}

#[test]
fn one_server_that_is_up_holds_nothing() {
    let mut dispatcher = lanes(1);
    let all: Vec<_> = (0..5).flat_map(|id| arrive(&mut dispatcher, id, LONG, 0.0)).collect();
    assert_eq!((all.len(), dispatcher.held()), (5, 0));
    let mut dispatcher = lanes(3);
    dispatcher.server(0, false, 0.0);
    assert_eq!(arrive(&mut dispatcher, 1, LONG, 0.0).len(), 1);
    (2..9).for_each(|id| drop(arrive(&mut dispatcher, id, LONG, 0.0)));
    assert!(dispatcher.held() > 0);
    dispatcher.server(1, false, 1.0);
    assert_eq!((dispatcher.held(), dispatcher.policy().lanes()), (0, &[][..]));
}

#[test]
fn a_server_that_goes_leaves_the_lanes_at_once() {
    let mut dispatcher = dispatcher(4, Lanes::new(Some(1)));
    assert_eq!(dispatcher.policy().lanes(), [3]);
    assert_eq!(arrive(&mut dispatcher, 1, LONG, 0.0), [(1, 3)]);
    assert_eq!(arrive(&mut dispatcher, 2, LONG, 0.0), []);
    dispatcher.server(3, false, 1.0);
    assert_eq!((assigned(&mut dispatcher), dispatcher.policy().lanes()), (vec![(2, 2)], &[2][..]));
    dispatcher.server(3, true, 2.0);
    assert_eq!(dispatcher.policy().lanes(), [3]);
    // What ran there when it went still counts.
    assert_eq!(arrive(&mut dispatcher, 3, LONG, 2.0), []);
}

#[test]
fn without_any_server_all_wait_and_go_when_one_comes() {
    let mut dispatcher = lanes(2);
    (0..2).for_each(|server| dispatcher.server(server, false, 0.0));
    assert_eq!(arrive(&mut dispatcher, 1, LONG, 0.0), []);
    assert_eq!(arrive(&mut dispatcher, 2, LONG, 0.0), []);
    assert_eq!(arrive(&mut dispatcher, 3, 10, 90.0), []);
    dispatcher.server(1, true, 91.0);
    assert_eq!(assigned(&mut dispatcher).len(), 3);
}

#[test]
fn without_any_server_waiting_is_bounded_in_number_and_time() {
    let limits = HoldLimits { max_requests: 1, max_wait_s: 5.0, ..HoldLimits::default() };
    let mut dispatcher = Dispatcher::new(1, LLAMA3_8B_A100, Box::new(Lanes::new(None)), limits, None);
    let no_server = |id| Outcome::Rejected { id: RequestId(id), rejection: Rejection::NoServer };
    dispatcher.server(0, false, 0.0);
    (1..3).for_each(|id| dispatcher.arrive(Request::of_tokens(id, 10), 0.0).unwrap());
    assert_eq!(dispatcher.outcomes().collect::<Vec<_>>(), [no_server(2)]);
    dispatcher.tick(5.5);
    assert_eq!(dispatcher.outcomes().collect::<Vec<_>>(), [no_server(1)]);
}

#[test]
fn a_long_prompt_that_has_waited_for_too_long_goes_behind_another_on_a_lane() {
    let limits = HoldLimits { max_wait_s: 5.0, ..HoldLimits::default() };
    let mut dispatcher = Dispatcher::new(4, LLAMA3_8B_A100, Box::new(Lanes::new(Some(1))), limits, None);
    assert_eq!([1, 2].map(|id| arrive(&mut dispatcher, id, LONG, 0.0)), [vec![(1, 3)], vec![]]);
    dispatcher.tick(4.9);
    assert_eq!(assigned(&mut dispatcher), []);
    dispatcher.tick(5.0);
    assert_eq!(assigned(&mut dispatcher), [(2, 3)]);
}

#[test]
fn an_answer_that_is_not_streamed_has_its_first_token_by_the_clock() {
    let mut dispatcher = dispatcher(1, LeastWork);
    let request = Request { is_streamed: false, ..Request::of_tokens(1, 50_000) };
    let prefill_s = LLAMA3_8B_A100.prefill_s(50_000, 0);
    dispatcher.arrive(request, 0.0).unwrap();
    dispatcher.tick(0.99 * prefill_s);
    assert_eq!(dispatcher.fleet().book.sums(0).waiting, 1);
    dispatcher.tick(1.01 * prefill_s);
    assert_eq!((dispatcher.fleet().book.sums(0).waiting, dispatcher.fleet().book.sums(0).streams), (0, 1));
}

#[test]
fn a_request_goes_where_its_prefix_is_unless_that_server_is_busy() {
    let mut dispatcher = dispatcher(3, LeastWork);
    let chat = |id: u64| Request { prefix: (0..20).collect(), ..Request::of_tokens(id, 10_500) };
    dispatcher.arrive(chat(1), 0.0).unwrap();
    dispatcher.end(RequestId(1), true, Some(10), 1.0);
    dispatcher.arrive(chat(2), 2.0).unwrap();
    assert_eq!(assigned(&mut dispatcher), [(1, 0), (2, 0)]);
    assert!(arrive(&mut dispatcher, 3, 100_000, 3.0) != [(3, 0)]);
    (4..9).for_each(|id| drop(arrive(&mut dispatcher, id, 100_000, 3.0)));
    dispatcher.end(RequestId(3), true, Some(10), 3.0);
    dispatcher.arrive(chat(10), 3.0).unwrap();
    assert!(assigned(&mut dispatcher) != [(10, 0)]);
}

#[test]
fn a_number_in_use_is_refused() {
    let mut dispatcher = lanes(2);
    drop(arrive(&mut dispatcher, 1, LONG, 0.0));
    drop(arrive(&mut dispatcher, 2, LONG, 0.0));
    assert_eq!([1, 2].map(|id| dispatcher.arrive(Request::of_tokens(id, 1), 0.0)), [Err(Repeated); 2]);
}

#[test]
fn the_mean_output_is_learned_from_counts_and_from_time() {
    let mean = |end: &dyn Fn(&mut Dispatcher, u64)| {
        let mut dispatcher = dispatcher(1, LeastWork);
        for id in 0..500 {
            drop(arrive(&mut dispatcher, id, 10, 0.0));
            end(&mut dispatcher, id);
        }
        dispatcher.fleet().learned.mean_output_tokens()
    };
    let counted = mean(&|dispatcher, id| {
        dispatcher.tokens(RequestId(id), 40, 0.0);
        dispatcher.end(RequestId(id), true, None, 0.0);
    });
    let told = mean(&|dispatcher, id| dispatcher.end(RequestId(id), true, Some(40), 0.0));
    let failed = mean(&|dispatcher, id| dispatcher.end(RequestId(id), false, Some(40), 0.0));
    assert!((40.0..50.0).contains(&counted) && (40.0..50.0).contains(&told), "{counted} {told}");
    assert!((failed - 200.0).abs() < 1e-9);
    let mut dispatcher = dispatcher(1, LeastWork);
    for id in 0..500_u32 {
        let now_s = f64::from(id);
        drop(arrive(&mut dispatcher, id.into(), 10, now_s));
        dispatcher.first_token(RequestId(id.into()), now_s);
        dispatcher.end(RequestId(id.into()), true, None, now_s + 0.5);
    }
    // 0.5 s at 12.9 ms a step.
    assert!((38.0..45.0).contains(&dispatcher.fleet().learned.mean_output_tokens()));
}

#[derive(Debug, Clone)]
enum Step {
    Arrive { prompt_tokens: u64, is_streamed: bool },
    First(usize),
    Tokens(usize, u64),
    End(usize, bool),
    Server(usize, bool),
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    let prompt = prop_oneof![4 => 1..5_000_u64, 1 => 40_000..130_000_u64];
    prop_oneof![
        5 => (prompt, any::<bool>()).prop_map(|(prompt_tokens, is_streamed)| Step::Arrive { prompt_tokens, is_streamed }),
        4 => (0..30_usize).prop_map(Step::First),
        2 => (0..30_usize, 1..900_u64).prop_map(|(which, generated)| Step::Tokens(which, generated)),
        4 => (0..30_usize, any::<bool>()).prop_map(|(which, is_ok)| Step::End(which, is_ok)),
        1 => (0..4_usize, any::<bool>()).prop_map(|(server, is_up)| Step::Server(server, is_up)),
        1 => Just(Step::Tick),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_requests_go_to_servers_that_are_up_and_nothing_waits_without_need(
        steps in prop::collection::vec((step(), 0.0..3.0), 0..200),
        has_lanes in any::<bool>(),
    ) {
        let mut dispatcher = if has_lanes { lanes(4) } else { dispatcher(4, LeastWork) };
        let (mut live, mut now_s, mut up) = (Vec::<u64>::new(), 0.0, [true; 4]);
        for (number, (step, pause_s)) in steps.into_iter().enumerate() {
            now_s += pause_s;
            let pick = |which: usize| live.get(which).map(|id| RequestId(*id));
            match step {
                Step::Arrive { prompt_tokens, is_streamed } => {
                    let request = Request { is_streamed, ..Request::of_tokens(number as u64, prompt_tokens) };
                    dispatcher.arrive(request, now_s).unwrap();
                    live.push(number as u64);
                }
                Step::First(which) => pick(which).into_iter().for_each(|id| dispatcher.first_token(id, now_s)),
                Step::Tokens(which, n) => pick(which).into_iter().for_each(|id| dispatcher.tokens(id, n, now_s)),
                Step::End(which, is_ok) => {
                    pick(which).into_iter().for_each(|id| dispatcher.end(id, is_ok, None, now_s));
                    if which < live.len() {
                        live.remove(which);
                    }
                }
                Step::Server(server, is_up) => {
                    up[server] = is_up;
                    dispatcher.server(server, is_up, now_s);
                }
                Step::Tick => dispatcher.tick(now_s),
            }
            for outcome in dispatcher.outcomes() {
                match outcome {
                    Outcome::Assigned { server, .. } => prop_assert!(up[server]),
                    Outcome::Rejected { id, rejection } => {
                        prop_assert_eq!((up, rejection), ([false; 4], Rejection::NoServer));
                        live.retain(|other| *other != id.0);
                    }
                }
            }
            prop_assert_eq!(dispatcher.fleet().book.len() + dispatcher.held(), live.len());
            let lanes = dispatcher.policy().lanes();
            prop_assert!(lanes.iter().all(|lane| up[*lane]));
            let up_count = up.iter().filter(|is_up| **is_up).count();
            let sums = |lane: &usize| dispatcher.fleet().book.sums(*lane);
            // With room for the longest prompt that is made here.
            let has_room = |lane: &usize| sums(lane).kv_tokens() + 140_000 <= LLAMA3_8B_A100.kv_tokens;
            let is_free = |lane: &usize| sums(lane).waiting_long == 0 && has_room(lane);
            let nobody_may_wait = up_count == 1 || (up_count > 0 && !has_lanes) || lanes.iter().any(is_free);
            prop_assert!(!nobody_may_wait || dispatcher.held() == 0);
        }
        for id in live {
            dispatcher.end(RequestId(id), false, None, now_s);
        }
        for server in 0..4 {
            prop_assert_eq!(dispatcher.fleet().book.sums(server), &Sums::default());
        }
        prop_assert_eq!(dispatcher.held(), 0);
    }
}
