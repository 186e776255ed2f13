use proptest::prelude::*;

use super::*;

fn turn(id: u64, prefill_s: f64, since_s: f64) -> Held {
    Held {
        request: Request::of_tokens(id, 1_000),
        since_s,
        prefill_s,
        is_long: true,
        waits_for: WaitsFor::Turn,
        size_class: u64::MAX,
    }
}

fn server(id: u64, since_s: f64, excluded: &[usize]) -> Held {
    let request = Request { excluded: excluded.to_vec(), ..Request::of_tokens(id, 1_000) };
    Held { request, waits_for: WaitsFor::Server, ..turn(id, 1.0, since_s) }
}

fn hold(all: impl IntoIterator<Item = Held>) -> Hold {
    let mut hold = Hold::default();
    all.into_iter().for_each(|held| hold.put(held));
    hold.begin_round();
    hold
}

fn drain(mut hold: Hold, waits_for: WaitsFor) -> Vec<u64> {
    let next = |hold: &mut Hold| hold.next(waits_for).map(|held| held.request.id).and_then(|id| hold.take(id));
    std::iter::from_fn(|| next(&mut hold)).map(|held| held.request.id.0).collect()
}

#[test]
fn of_those_that_wait_for_their_turn_the_shortest_prefill_is_next_but_waiting_counts() {
    let drained = |all: &[(u64, f64, f64)]| {
        drain(hold(all.iter().map(|(id, prefill_s, since_s)| turn(*id, *prefill_s, *since_s))), WaitsFor::Turn)
    };
    assert_eq!(drained(&[(1, 20.0, 0.0), (2, 5.0, 0.0), (3, 5.0, 10.0), (4, 7.5, 0.0)]), [2, 4, 3, 1]);
    assert_eq!(drained(&[(1, 20.0, 0.0), (2, 5.0, 60.0)]), [1, 2]);
}

#[test]
fn of_those_that_wait_for_a_server_the_first_to_come_is_next_whatever_its_line() {
    let all = [server(1, 3.0, &[]), server(2, 1.0, &[4]), server(3, 2.0, &[]), turn(4, 0.0, 0.0)];
    assert_eq!(drain(hold(all), WaitsFor::Server), [2, 3, 1]);
}

#[test]
fn a_blocked_line_is_passed_over_until_the_next_round() {
    let mut hold = hold([server(1, 1.0, &[4]), server(2, 2.0, &[4]), server(3, 3.0, &[])]);
    let next = |hold: &Hold| hold.next(WaitsFor::Server).map(|held| held.request.id.0);
    assert_eq!(next(&hold), Some(1));
    hold.block(RequestId(1));
    assert_eq!(next(&hold), Some(3));
    hold.block(RequestId(3));
    assert_eq!(next(&hold), None);
    hold.begin_round();
    assert_eq!(next(&hold), Some(1));
}

#[test]
fn room_is_bounded_by_number_and_bytes_and_given_back() {
    let mut hold = hold([turn(1, 1.0, 0.0)]);
    let limits = HoldLimits { max_requests: 2, max_bytes: 10_000, ..HoldLimits::default() };
    assert!(hold.has_room(6_000, &limits) && !hold.has_room(6_001, &limits));
    hold.put(Held { request: Request::of_tokens(2, 1), ..turn(2, 1.0, 0.0) });
    assert!(!hold.has_room(0, &limits));
    assert!(hold.take(RequestId(1)).is_some() && hold.take(RequestId(1)).is_none());
    assert!(hold.has_room(9_996, &limits) && !hold.has_room(9_997, &limits));
}

#[test]
fn the_oldest_is_known_whatever_the_order() {
    let mut hold = hold([turn(1, 50.0, 3.0), turn(2, 1.0, 4.0), server(3, 2.0, &[])]);
    let oldest = |hold: &Hold| (hold.oldest().map(|held| held.request.id.0), hold.turn_since_s());
    assert_eq!(oldest(&hold), (Some(3), Some(3.0)));
    hold.take(RequestId(1));
    assert_eq!(oldest(&hold), (Some(3), Some(4.0)));
    hold.now_waits_for(RequestId(3), WaitsFor::Turn);
    assert_eq!((oldest(&hold), drain(hold, WaitsFor::Turn)), ((Some(3), Some(2.0)), vec![3, 2]));
}

#[derive(Debug, Clone)]
enum Step {
    Put { waits_for: WaitsFor, prefill_s: f64, excluded: Vec<usize>, size_class: u64 },
    Take(usize),
    Move(usize, WaitsFor),
    ChangeAll(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let waits_for = || prop::sample::select(vec![WaitsFor::Turn, WaitsFor::Server]);
    let excluded = prop::collection::vec(0..3_usize, 0..2);
    prop_oneof![
        4 => (waits_for(), 0.0..9.0, excluded, 0..2_u64).prop_map(|(waits_for, prefill_s, excluded, size_class)| {
            Step::Put { waits_for, prefill_s, excluded, size_class }
        }),
        2 => (0..20_usize).prop_map(Step::Take),
        1 => (0..20_usize, waits_for()).prop_map(|(which, waits_for)| Step::Move(which, waits_for)),
        1 => (0..3_usize).prop_map(Step::ChangeAll),
    ]
}

proptest! {
    #[test]
    fn everything_that_is_held_stands_in_one_line_at_its_place(steps in prop::collection::vec(step(), 0..80)) {
        let (mut hold, mut told) = (Hold::default(), Vec::<Held>::new());
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Put { waits_for, prefill_s, excluded, size_class } => {
                    let request = Request { excluded, ..Request::of_tokens(number as u64, 10) };
                    let since_s = f64::from(u32::try_from(number).unwrap());
                    let held = Held { request, since_s, prefill_s, is_long: true, waits_for, size_class };
                    told.push(held.clone());
                    hold.put(held);
                }
                Step::Take(which) if which < told.len() => {
                    let held = told.remove(which);
                    prop_assert_eq!(hold.take(held.request.id), Some(held));
                }
                Step::Move(which, waits_for) if which < told.len() => {
                    told[which].waits_for = waits_for;
                    hold.now_waits_for(told[which].request.id, waits_for);
                }
                Step::ChangeAll(server) => {
                    told.iter_mut().for_each(|held| held.request.excluded = vec![server]);
                    hold.change_all(|held| held.request.excluded = vec![server]);
                }
                _ => {}
            }
            prop_assert_eq!((hold.len(), hold.body_bytes()), (told.len(), told.iter().map(|one| one.request.body_bytes).sum()));
            prop_assert_eq!(hold.iter().cloned().collect::<Vec<_>>(), told.clone());
            for waits_for in [WaitsFor::Turn, WaitsFor::Server] {
                let expected = told.iter().filter(|held| held.waits_for == waits_for).min_by_key(|held| (held.rank(), held.request.id));
                prop_assert_eq!(hold.next(waits_for), expected);
            }
        }
        told.iter().for_each(|held| drop(hold.take(held.request.id)));
        prop_assert!(hold.lines.is_empty() && hold.by_age.is_empty() && hold.turns_by_age.is_empty());
    }
}
