//! Servers, settings and policy change while requests run and wait.

use std::collections::HashMap;

use super::*;

fn kept(origin: usize) -> ServerSpec {
    ServerSpec { origin: Some(origin), ..ServerSpec::default() }
}

fn settings() -> Settings {
    Settings { profile: LLAMA3_8B_A100, hold: HoldLimits::default(), long_from_tokens: None }
}

#[test]
fn what_runs_on_a_server_goes_with_it_to_its_new_place() {
    let mut dispatcher = dispatcher(3, LeastWork);
    for id in 0..3 {
        assert_eq!(arrive(&mut dispatcher, id, 1_000 * (id + 1), 0.0).len(), 1);
    }
    dispatcher.first_token(RequestId(2), 1.0);
    let before: Vec<Sums> = (0..3).map(|server| *dispatcher.fleet().book.sums(server)).collect();
    // Server 1 goes, one comes, the others change places.
    dispatcher.reshape(&[kept(2), ServerSpec::default(), kept(0)], 2.0);
    let after: Vec<Sums> = (0..3).map(|server| *dispatcher.fleet().book.sums(server)).collect();
    assert_eq!(after, [before[2], Sums::default(), before[0]]);
    let server_of = |id| dispatcher.fleet().book.active(RequestId(id)).unwrap().server;
    assert_eq!([0, 1, 2].map(server_of), [2, 3, 0]);
    assert!(!dispatcher.fleet().is_up(3), "what has gone takes nothing");
    // What runs where nobody is any more is heard of and ends like everything else.
    dispatcher.tokens(RequestId(1), 7, 3.0);
    dispatcher.reshape(&[kept(2), kept(1)], 4.0);
    dispatcher.tokens(RequestId(1), 9, 5.0);
    (0..3).for_each(|id| dispatcher.end(RequestId(id), true, None, 6.0));
    assert!(dispatcher.fleet().book.is_empty());
    assert_eq!((0..2).map(|server| *dispatcher.fleet().book.sums(server)).collect::<Vec<_>>(), [Sums::default(); 2]);
}

#[test]
fn what_is_held_stays_held_and_knows_where_it_must_not_go() {
    let mut dispatcher = dispatcher(3, Lanes::new(Some(1)));
    assert_eq!(arrive(&mut dispatcher, 1, LONG, 0.0), [(1, 2)]);
    let held = Request { excluded: vec![1], ..Request::of_tokens(2, LONG) };
    dispatcher.arrive(held, 0.0).unwrap();
    assert_eq!(dispatcher.held(), 1);
    // The lane it waited for is no lane now; server 1 is, and it must not go there.
    dispatcher.reshape(&[kept(0), kept(2), kept(1)], 1.0);
    assert_eq!(assigned(&mut dispatcher), [(2, 0)]);
    assert_eq!(dispatcher.policy().lanes(), [2]);
}

#[test]
fn a_new_server_takes_what_waits_for_one_unless_it_is_not_up_yet() {
    let mut dispatcher = dispatcher(1, LeastWork);
    dispatcher.server(0, false, 0.0);
    assert_eq!(arrive(&mut dispatcher, 1, 10, 0.0), []);
    let is_down = ServerSpec { is_up: false, ..ServerSpec::default() };
    dispatcher.reshape(&[ServerSpec { is_up: false, ..kept(0) }, is_down], 1.0);
    assert_eq!(assigned(&mut dispatcher), []);
    dispatcher.reshape(&[ServerSpec { is_up: false, ..kept(0) }, kept(1)], 2.0);
    assert_eq!(assigned(&mut dispatcher), [(1, 1)]);
    // Nobody left, a place that never was, and one that stands twice.
    dispatcher.reshape(&[], 3.0);
    assert_eq!(arrive(&mut dispatcher, 2, 10, 3.0), []);
    dispatcher.reshape(&[kept(7), kept(7)], 4.0);
    assert_eq!(assigned(&mut dispatcher), [(2, 0)]);
    dispatcher.reshape(&[kept(0), kept(0)], 5.0);
    let streams = |server| dispatcher.fleet().book.sums(server).active();
    assert_eq!([streams(0), streams(1)], [1, 0]);
}

#[test]
fn policy_pins_and_bounds_change_without_losing_anything() {
    let mut dispatcher = dispatcher(4, Lanes::new(Some(1)));
    assert_eq!(arrive(&mut dispatcher, 1, LONG, 0.0), [(1, 3)]);
    assert_eq!(arrive(&mut dispatcher, 2, LONG, 0.0), []);
    assert_eq!(arrive(&mut dispatcher, 3, LONG, 0.0), []);
    let book = *dispatcher.fleet().book.sums(3);
    dispatcher.reconfigure(settings(), Some(Box::new(Lanes::new(Some(2)))), 1.0);
    assert_eq!((assigned(&mut dispatcher), dispatcher.policy().lanes()), (vec![(2, 2)], &[2, 3][..]));
    assert_eq!(dispatcher.fleet().book.sums(3), &book);
    // Bounds that are exceeded throw nobody out; time that is over is over.
    let hold = HoldLimits { max_requests: 0, max_wait_s: 50.0, ..HoldLimits::default() };
    dispatcher.reconfigure(Settings { hold, ..settings() }, None, 2.0);
    assert_eq!((assigned(&mut dispatcher), dispatcher.held()), (vec![], 1));
    dispatcher.tick(50.0);
    assert_eq!(assigned(&mut dispatcher).len(), 1);
    // What is long is pinned anew, and another profile counts from now on.
    let pinned = Settings { long_from_tokens: Some(10), profile: LLAMA3_70B_TP8, ..settings() };
    dispatcher.reconfigure(pinned, None, 51.0);
    assert_eq!(dispatcher.fleet().book.sums(3).waiting_ns % book.waiting_ns, 0);
    dispatcher.arrive(Request::of_tokens(5, 10), 51.0).unwrap();
    assert_eq!((assigned(&mut dispatcher), dispatcher.held()), (vec![], 1));
    dispatcher.reconfigure(settings(), Some(Box::new(LeastWork)), 52.0);
    assert_eq!((assigned(&mut dispatcher).len(), dispatcher.held()), (1, 0));
    (1..6).for_each(|id| dispatcher.end(RequestId(id), true, None, 60.0));
    assert!(dispatcher.fleet().book.is_empty());
}

#[test]
fn what_waits_for_time_is_known_beforehand_and_happens_then() {
    let mut dispatcher = dispatcher(3, Lanes::new(Some(2)));
    assert_eq!(dispatcher.next_wakeup_s(), None);
    let unseen = Request { is_streamed: false, ..Request::of_tokens(1, LONG) };
    dispatcher.arrive(unseen, 5.0).unwrap();
    assert_eq!((assigned(&mut dispatcher), dispatcher.next_wakeup_s()), (vec![(1, 1)], None));
    assert_eq!(arrive(&mut dispatcher, 2, LONG, 6.0), [(2, 2)]);
    assert_eq!(arrive(&mut dispatcher, 3, LONG, 7.0), []);
    let first_s = 5.0 + LLAMA3_8B_A100.prefill_s(LONG, 0);
    let due_s = dispatcher.next_wakeup_s().unwrap();
    assert!((due_s - first_s).abs() < 1e-9, "{due_s}");
    dispatcher.tick(due_s);
    assert_eq!((assigned(&mut dispatcher), dispatcher.next_wakeup_s()), (vec![(3, 1)], None));

    let mut dispatcher = super::dispatcher(4, Lanes::new(None));
    (0..400).for_each(|id| drop(arrive(&mut dispatcher, id, 8_000, 0.0)));
    (0..400).for_each(|id| dispatcher.end(RequestId(id), true, Some(100), 0.0));
    assert_eq!(arrive(&mut dispatcher, 500, LONG, 1.0), [(500, 3)]);
    assert_eq!((arrive(&mut dispatcher, 501, LONG, 1.5), dispatcher.next_wakeup_s()), (vec![], Some(11.5)));
    dispatcher.tick(11.5);
    assert_eq!((assigned(&mut dispatcher), dispatcher.next_wakeup_s()), (vec![(501, 2)], None));
    (0..4).for_each(|server| dispatcher.server(server, false, 12.0));
    assert_eq!((arrive(&mut dispatcher, 502, 10, 13.0), dispatcher.next_wakeup_s()), (vec![], Some(133.0)));
}

#[derive(Debug, Clone)]
enum Step {
    Arrive { prompt_tokens: u64, needed_tokens: Option<u64>, excluded: Vec<usize>, is_streamed: bool },
    First(usize),
    Tokens(usize, u64),
    End(usize),
    Server(usize, bool),
    Admit(usize, Admission),
    Reshape(Vec<(Option<usize>, bool, Option<u64>)>),
    Tick,
}

fn admission() -> impl Strategy<Value = Admission> {
    (prop::bool::weighted(0.7), prop::option::of(0..3_u64))
        .prop_map(|(is_open, max_active)| Admission { is_open, max_active })
}

fn step() -> impl Strategy<Value = Step> {
    let prompt = prop_oneof![3 => 1..5_000_u64, 1 => 40_000..130_000_u64];
    let arrive = (prompt, any::<bool>(), prop::collection::vec(0..5_usize, 0..3), any::<bool>());
    let max_model_len = prop::option::of(prop::sample::select(vec![4_000, 50_000, 200_000_u64]));
    let spec = (prop::option::of(0..5_usize), prop::bool::weighted(0.8), max_model_len);
    prop_oneof![
        8 => arrive.prop_map(|(prompt_tokens, is_sized, excluded, is_streamed)| {
            let needed_tokens = is_sized.then_some(prompt_tokens + 100);
            Step::Arrive { prompt_tokens, needed_tokens, excluded, is_streamed }
        }),
        5 => (0..30_usize).prop_map(Step::First),
        2 => (0..30_usize, 1..900_u64).prop_map(|(which, generated)| Step::Tokens(which, generated)),
        5 => (0..30_usize).prop_map(Step::End),
        1 => (0..5_usize, any::<bool>()).prop_map(|(server, is_up)| Step::Server(server, is_up)),
        2 => (0..5_usize, admission()).prop_map(|(server, admission)| Step::Admit(server, admission)),
        1 => prop::collection::vec(spec, 0..5).prop_map(Step::Reshape),
        1 => Just(Step::Tick),
    ]
}

/// What should be known of the servers: each by a name of its own, whatever its place.
#[derive(Debug, Clone, Copy)]
struct Told {
    name: usize,
    is_up: bool,
    admission: Admission,
    max_model_len: Option<u64>,
}

proptest! {
    #[test]
    fn whatever_changes_requests_go_where_they_may_and_the_sums_are_those_of_a_walk(
        steps in prop::collection::vec((step(), 0.0..3.0), 0..150),
        has_lanes in any::<bool>(),
    ) {
        let mut dispatcher = if has_lanes { lanes(4) } else { dispatcher(4, LeastWork) };
        let server = |name| Told { name, is_up: true, admission: Admission::default(), max_model_len: None };
        let (mut servers, mut names) = ((0..4).map(server).collect::<Vec<_>>(), 4..);
        // Requests by number, with the names of the servers that they must not go to; active ones with their server's name.
        let mut live: Vec<(u64, Request, Vec<usize>)> = Vec::new();
        let mut active: HashMap<u64, usize> = HashMap::new();
        let mut now_s = 0.0;
        for (number, (step, pause_s)) in steps.into_iter().enumerate() {
            now_s += pause_s;
            let pick = |which: usize| live.get(which).map(|(id, ..)| RequestId(*id));
            match step {
                Step::Arrive { prompt_tokens, needed_tokens, excluded, is_streamed } => {
                    let request = Request { needed_tokens, excluded, is_streamed, ..Request::of_tokens(number as u64, prompt_tokens) };
                    let tried = request.excluded.iter().filter_map(|place| servers.get(*place).map(|told| told.name)).collect();
                    live.push((number as u64, request.clone(), tried));
                    dispatcher.arrive(request, now_s).unwrap();
                }
                Step::First(which) => pick(which).into_iter().for_each(|id| dispatcher.first_token(id, now_s)),
                Step::Tokens(which, n) => pick(which).into_iter().for_each(|id| dispatcher.tokens(id, n, now_s)),
                Step::End(which) => if let Some(id) = pick(which) {
                    dispatcher.end(id, true, None, now_s);
                    active.remove(&id.0);
                    live.remove(which);
                },
                Step::Server(place, is_up) => if let Some(told) = servers.get_mut(place) {
                    told.is_up = is_up;
                    dispatcher.server(place, is_up, now_s);
                },
                Step::Admit(place, admission) => if let Some(told) = servers.get_mut(place) {
                    told.admission = admission;
                    dispatcher.set_admission(place, admission, now_s);
                },
                Step::Reshape(list) => {
                    let (old, mut specs) = (std::mem::take(&mut servers), Vec::new());
                    for (origin, is_up, max_model_len) in list {
                        let kept = origin.and_then(|origin| old.get(origin)).filter(|one| servers.iter().all(|told| told.name != one.name));
                        let told = kept.copied().unwrap_or_else(|| server(names.next().unwrap()));
                        let told = Told { is_up, max_model_len, ..told };
                        let traits = ServerTraits { max_model_len, ..ServerTraits::default() };
                        specs.push(ServerSpec { origin, is_up, admission: told.admission, traits });
                        servers.push(told);
                    }
                    dispatcher.reshape(&specs, now_s);
                }
                Step::Tick => dispatcher.tick(now_s),
            }
            for outcome in dispatcher.outcomes() {
                let (id, server) = match outcome {
                    Outcome::Assigned { id, server, .. } => (id, Some(server)),
                    Outcome::Rejected { id, .. } => (id, None),
                };
                let index = live.iter().position(|(number, ..)| *number == id.0).unwrap();
                let Some(server) = server else {
                    live.remove(index);
                    continue;
                };
                let (told, (_, request, tried)) = (servers[server], &live[index]);
                prop_assert!(told.is_up && told.admission.is_open && !tried.contains(&told.name));
                prop_assert!(told.max_model_len.is_none_or(|most| request.needed_tokens.is_none_or(|needed| needed <= most)));
                active.insert(id.0, told.name);
                let runs = active.values().filter(|name| **name == told.name).count() as u64;
                prop_assert!(told.admission.max_active.is_none_or(|most| runs <= most));
            }
            let book = &dispatcher.fleet().book;
            prop_assert_eq!((book.len(), book.len() + dispatcher.held()), (active.len(), live.len()));
            for (place, told) in servers.iter().enumerate() {
                let mut sums = Sums::default();
                for (id, _) in active.iter().filter(|(_, name)| **name == told.name) {
                    let one = book.active(RequestId(*id)).unwrap();
                    prop_assert_eq!(one.server, place);
                    if one.first_token_at_s.is_some() {
                        sums.streams += 1;
                        sums.context_tokens += one.prompt_tokens + one.generated_tokens;
                    } else {
                        sums.waiting += 1;
                        sums.waiting_long += u64::from(one.is_long);
                        sums.waiting_ns += one.prefill_ns;
                        sums.waiting_tokens += one.prompt_tokens;
                    }
                }
                prop_assert_eq!(book.sums(place), &sums);
            }
            let (fleet, lanes) = (dispatcher.fleet(), dispatcher.policy().lanes());
            prop_assert!(lanes.iter().all(|lane| servers[*lane].is_up));
            for held in dispatcher.hold().iter() {
                let reach = fleet.reach(&held.request);
                prop_assert!(matches!(reach, Reach::Closed | Reach::Down) || held.waits_for == WaitsFor::Turn, "{:?} {:?}", held, reach);
                let has_room = |lane: usize| fleet.book.sums(lane).kv_tokens() + 140_000 <= LLAMA3_8B_A100.kv_tokens;
                let is_free = |lane: usize| fleet.takes(lane) && fleet.book.sums(lane).waiting_long == 0 && has_room(lane);
                let free = lanes.iter().find(|lane| fleet.suits(**lane, &held.request) && is_free(**lane));
                prop_assert_eq!(free, None);
                let (_, _, tried) = live.iter().find(|(id, ..)| *id == held.request.id.0).unwrap();
                let mut excluded: Vec<usize> = servers.iter().enumerate().filter(|(_, told)| tried.contains(&told.name)).map(|(place, _)| place).collect();
                excluded.sort_unstable();
                // A place that never was may stand there too.
                prop_assert!(excluded.iter().all(|place| held.request.excluded.contains(place)));
            }
        }
        for (id, ..) in live {
            dispatcher.end(RequestId(id), false, None, now_s);
        }
        prop_assert!(dispatcher.fleet().book.is_empty() && dispatcher.hold().is_empty());
        for place in 0..servers.len() {
            prop_assert_eq!(dispatcher.fleet().book.sums(place), &Sums::default());
        }
    }
}
