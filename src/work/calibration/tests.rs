use super::*;
use crate::work::{Dispatcher, HoldLimits, LLAMA3_8B_A100, LeastWork, Request, ServerSpec, ServerTraits, Settings};

const BOTH: Learning = Learning { coefficients: true, speeds: true };

/// Servers of these classes, which believe in the profile.
fn dispatcher(classes: &[u16], learning: Learning) -> Dispatcher {
    let spec = |engine_class: &u16| ServerSpec {
        traits: ServerTraits { engine_class: *engine_class, ..ServerTraits::default() },
        ..ServerSpec::default()
    };
    let servers: Vec<ServerSpec> = classes.iter().map(spec).collect();
    let settings = Settings { profile: LLAMA3_8B_A100, hold: HoldLimits::default(), long_from_tokens: None };
    let mut dispatcher = Dispatcher::of_servers(&servers, settings, Box::new(LeastWork));
    dispatcher.learn(learning);
    dispatcher
}

/// One request after the other, to each server in turn, on engines of these speeds, from a time on.
fn serve(dispatcher: &mut Dispatcher, speeds: &[f64], requests: u64, from_s: f64) {
    let mut now_s = from_s;
    for id in 0..requests {
        let prompt_tokens = 100 + id * 7_919 % 60_000;
        let server = usize::try_from(id).unwrap() % speeds.len();
        let excluded = (0..speeds.len()).filter(|other| *other != server).collect();
        dispatcher.arrive(Request { excluded, ..Request::of_tokens(id, prompt_tokens) }, now_s).unwrap();
        _ = dispatcher.outcomes().count();
        assert_eq!(dispatcher.fleet().book.active(RequestId(id)).unwrap().server, server);
        now_s += LLAMA3_8B_A100.at_speed(speeds[server]).prefill_s(prompt_tokens, 0);
        dispatcher.first_token(RequestId(id), now_s);
        dispatcher.end(RequestId(id), true, Some(10), now_s);
    }
}

#[test]
fn each_class_of_engines_is_learned_apart() {
    let mut dispatcher = dispatcher(&[0, 0, 1, 1], Learning { speeds: false, ..BOTH });
    serve(&mut dispatcher, &[0.5, 0.5, 2.0, 2.0], 400, 0.0);
    let classes = dispatcher.fleet().calibration().classes();
    let factor = |class: usize| classes[class].profile().per_token_s / LLAMA3_8B_A100.per_token_s;
    assert!((factor(0) - 2.0).abs() < 0.1 && (factor(1) - 0.5).abs() < 0.05, "{} {}", factor(0), factor(1));
    // What is long is judged by the mean; what a server takes by its own.
    let mean = dispatcher.fleet().profile.per_token_s / LLAMA3_8B_A100.per_token_s;
    assert!((mean - 1.25).abs() < 0.1, "{mean}");
    let prefill_s = |server: usize| {
        let fleet = dispatcher.fleet();
        fleet.prefill_s(server, fleet.prefill(server, &Request::of_tokens(0, 30_000)))
    };
    let ratio = prefill_s(0) / prefill_s(3);
    assert!((ratio - 4.0).abs() < 0.3, "{ratio}");
    assert_eq!(dispatcher.fleet().slowness(0).to_bits(), 1.0_f64.to_bits());
}

#[test]
fn a_server_that_is_slower_than_the_others_of_its_class_is_found() {
    let mut dispatcher = dispatcher(&[0; 4], BOTH);
    let speeds = [1.0, 1.0, 1.0, 0.5];
    serve(&mut dispatcher, &speeds, 600, 0.0);
    let fleet = dispatcher.fleet();
    for (server, speed) in speeds.iter().enumerate() {
        let prefill_s = fleet.prefill_s(server, fleet.prefill(server, &Request::of_tokens(0, 20_000)));
        let share = prefill_s / LLAMA3_8B_A100.at_speed(*speed).prefill_s(20_000, 0);
        assert!((0.85..1.15).contains(&share), "{server}: {share}");
    }
}

#[test]
fn nothing_is_learned_unless_it_is_asked_for_and_then_it_can_be_forgotten() {
    let mut dispatcher = dispatcher(&[0, 0], Learning::default());
    serve(&mut dispatcher, &[0.5, 0.5], 100, 0.0);
    assert_eq!(
        (dispatcher.fleet().calibration().classes()[0].times(), dispatcher.fleet().profile),
        (0, LLAMA3_8B_A100)
    );
    dispatcher.learn(BOTH);
    serve(&mut dispatcher, &[0.5, 0.5], 100, 10_000.0);
    assert!(dispatcher.fleet().profile.per_token_s > 1.8 * LLAMA3_8B_A100.per_token_s);
    dispatcher.learn(Learning::default());
    assert_eq!((dispatcher.fleet().profile, dispatcher.fleet().slowness(0)), (LLAMA3_8B_A100, 1.0));
}

#[test]
fn what_was_learned_stays_when_the_list_changes_and_goes_with_the_profile() {
    let mut dispatcher = dispatcher(&[0, 0], BOTH);
    serve(&mut dispatcher, &[0.5, 0.5], 100, 0.0);
    let learned = dispatcher.fleet().profile;
    let kept = |origin| ServerSpec { origin, ..ServerSpec::default() };
    dispatcher.reshape(&[kept(Some(1)), kept(None), kept(Some(0))], 1e6);
    assert_eq!(dispatcher.fleet().profile, learned);
    let profile = crate::work::LLAMA3_70B_TP8;
    let settings = Settings { profile, hold: HoldLimits::default(), long_from_tokens: None };
    dispatcher.reconfigure(settings, None, 1e6);
    assert_eq!(dispatcher.fleet().profile, profile);
}

#[test]
fn what_runs_already_stays_as_it_was_entered() {
    let mut dispatcher = dispatcher(&[0, 0], BOTH);
    dispatcher.arrive(Request::of_tokens(1 << 40, 50_000), 0.0).unwrap();
    let server = dispatcher.fleet().book.active(RequestId(1 << 40)).unwrap().server;
    serve(&mut dispatcher, &[0.5, 0.5], 200, 20_000.0);
    assert!(dispatcher.fleet().profile.per_token_s > 1.5 * LLAMA3_8B_A100.per_token_s);
    dispatcher.end(RequestId(1 << 40), true, None, 1e6);
    assert_eq!(*dispatcher.fleet().book.sums(server), Sums::default());
}

/// What one first token after so many seconds teaches of class 0.
fn times(prepare: impl Fn(&mut Dispatcher), between: impl Fn(&mut Dispatcher)) -> u64 {
    let mut dispatcher = dispatcher(&[0], BOTH);
    prepare(&mut dispatcher);
    let before = dispatcher.fleet().calibration().classes()[0].times();
    dispatcher.arrive(Request::of_tokens(100, 10_000), 10.0).unwrap();
    between(&mut dispatcher);
    dispatcher.first_token(RequestId(100), 11.0);
    dispatcher.fleet().calibration().classes()[0].times() - before
}

#[test]
fn only_a_first_token_on_an_idle_server_counts() {
    let arrive = |dispatcher: &mut Dispatcher, id, prompt_tokens| {
        dispatcher.arrive(Request::of_tokens(id, prompt_tokens), 10.0).unwrap();
    };
    let nothing = |_: &mut Dispatcher| {};
    assert_eq!(times(nothing, nothing), 1);
    assert_eq!(times(nothing, |dispatcher| arrive(dispatcher, 1, 500)), 1, "a little more does not matter");
    assert_eq!(times(nothing, |dispatcher| arrive(dispatcher, 1, 5_000)), 0, "much more does");
    assert_eq!(times(|dispatcher| arrive(dispatcher, 1, 500), nothing), 0, "a prefill waits there");
    let streams = |dispatcher: &mut Dispatcher, count: u64| {
        (0..count).for_each(|id| arrive(dispatcher, id, 50));
        (0..count).for_each(|id| dispatcher.first_token(RequestId(id), 10.0));
    };
    assert_eq!(times(|dispatcher| streams(dispatcher, MOST_STREAMS), nothing), 1);
    assert_eq!(times(|dispatcher| streams(dispatcher, MOST_STREAMS + 1), nothing), 0);
    assert_eq!(times(nothing, |dispatcher| dispatcher.tokens(RequestId(100), 2, 11.0)), 0, "its time was not seen");
}
