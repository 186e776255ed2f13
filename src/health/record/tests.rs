use super::*;
use crate::config::{ActiveChecks, PassiveChecks, Probation};

const CONNECT: Signal = Signal::Fault(Fault::Connect);
const STATUS: Signal = Signal::Fault(Fault::Status);
const OVERDUE: Signal = Signal::Fault(Fault::FirstByte);
const FAILED: Signal = Signal::ProbeFailed { is_refused: false };

/// A record and a clock that the test moves.
struct Case {
    record: Record,
    rules: Rules,
    now: Instant,
    may_eject: bool,
}

impl Case {
    fn new(phase: Phase) -> Self {
        let now = Instant::now();
        let record = Record::new(phase, Cause::Started, now);
        let rules = Rules {
            active: Some(ActiveChecks { failures: 3, successes: 2, ..ActiveChecks::default() }),
            passive: Some(PassiveChecks {
                failures: 3,
                base_ejection: Duration::from_secs(5),
                max_ejection: Duration::from_secs(60),
                ..PassiveChecks::default()
            }),
            probation: Probation { max_in_flight: 4, successes: 3 },
        };
        Self { record, rules, now, may_eject: true }
    }

    /// Notes the signals one after the other; the phase and cause after the last.
    fn note(&mut self, signals: &[Signal]) -> (Phase, Cause) {
        for signal in signals {
            self.record.note(*signal, &self.rules, self.may_eject, self.now);
        }
        (self.record.phase(), self.record.cause())
    }

    fn wait(&mut self, seconds: u64) -> (Phase, Cause) {
        self.now += Duration::from_secs(seconds);
        self.note(&[Signal::Tick])
    }
}

#[test]
fn three_faults_in_a_row_take_a_server_out_and_a_good_answer_between_them_does_not() {
    let mut case = Case::new(Phase::Healthy);
    assert_eq!(case.note(&[CONNECT, STATUS, Signal::Answered, CONNECT, STATUS]).0, Phase::Healthy);
    assert_eq!(case.note(&[CONNECT]), (Phase::Out, Cause::Faults(Fault::Connect)));
}

#[test]
fn a_change_says_how_long_the_former_phase_lasted() {
    let mut case = Case::new(Phase::Healthy);
    case.note(&[STATUS, STATUS]);
    case.now += Duration::from_secs(7);
    let change = case.record.note(STATUS, &case.rules, true, case.now).unwrap();
    let expected = Change {
        from: Phase::Healthy,
        lasted: Duration::from_secs(7),
        to: Phase::Out,
        cause: Cause::Faults(Fault::Status),
    };
    assert_eq!(change, expected);
    assert_eq!(case.record.note(STATUS, &case.rules, true, case.now), None, "it is out already");
}

#[test]
fn a_group_that_cannot_spare_the_server_keeps_it_in_doubt() {
    let mut case = Case::new(Phase::Healthy);
    case.may_eject = false;
    assert!(!case.record.is_in_doubt(&case.rules));
    assert_eq!(case.note(&[CONNECT; 10]).0, Phase::Healthy);
    assert!(case.record.is_in_doubt(&case.rules), "probes hurry");
    case.note(&[Signal::Answered]);
    assert!(!case.record.is_in_doubt(&case.rules));
}

#[test]
fn every_ejection_is_longer_than_the_one_before_up_to_the_bound() {
    let mut case = Case::new(Phase::Healthy);
    case.note(&[STATUS; 3]);
    for seconds in [5, 10, 20, 40, 60, 60] {
        assert_eq!(case.wait(seconds - 1).0, Phase::Out, "{seconds}");
        assert_eq!(case.wait(1), (Phase::Probation, Cause::TimeServed), "{seconds}");
        assert_eq!(case.note(&[STATUS]).0, Phase::Out, "one fault in probation is enough");
    }
}

#[test]
fn ejections_begin_anew_after_the_server_was_good_for_long() {
    for (seconds, first) in [(30, 20), (61, 5)] {
        let mut case = Case::new(Phase::Healthy);
        case.note(&[STATUS; 3]);
        case.wait(5);
        case.note(&[STATUS]);
        case.wait(10);
        assert_eq!(case.note(&[Signal::Began; 3]), (Phase::Healthy, Cause::Proved));
        case.wait(seconds);
        assert_eq!(case.note(&[STATUS; 3]).0, Phase::Out);
        assert_eq!(case.wait(first - 1).0, Phase::Out, "good for {seconds} s");
        assert_eq!(case.wait(1).0, Phase::Probation, "good for {seconds} s");
    }
}

#[test]
fn a_server_on_probation_proves_itself_by_answers_that_begin_well() {
    let mut case = Case::new(Phase::Probation);
    assert_eq!(case.note(&[Signal::Began, Signal::Answered, Signal::Began]).0, Phase::Probation);
    assert_eq!(case.note(&[Signal::Began]), (Phase::Healthy, Cause::Proved));
}

#[test]
fn probes_take_a_server_out_and_bring_it_back_when_they_agree_often_enough() {
    let mut case = Case::new(Phase::Healthy);
    assert_eq!(case.note(&[FAILED, FAILED, Signal::ProbePassed, FAILED, FAILED]).0, Phase::Healthy);
    assert_eq!(case.note(&[FAILED]), (Phase::Out, Cause::Probes));
    assert_eq!(case.wait(1_000).0, Phase::Out, "time alone does not bring it back");
    assert_eq!(case.note(&[Signal::ProbePassed, FAILED, Signal::ProbePassed]).0, Phase::Out);
    assert!(case.record.is_in_doubt(&case.rules), "the next probe comes soon");
    assert_eq!(case.note(&[Signal::ProbePassed]), (Phase::Probation, Cause::Probes));
}

#[test]
fn a_server_out_by_probes_comes_back_when_they_are_switched_off() {
    let mut case = Case::new(Phase::Healthy);
    case.note(&[FAILED; 3]);
    case.rules.active = None;
    assert_eq!(case.wait(0).0, Phase::Probation);
}

#[test]
fn good_probes_do_not_shorten_an_ejection_by_faults() {
    let mut case = Case::new(Phase::Healthy);
    case.note(&[STATUS; 3]);
    case.now += Duration::from_secs(4);
    assert_eq!(case.note(&[Signal::ProbePassed, Signal::ProbePassed, Signal::ProbePassed, Signal::Tick]).0, Phase::Out);
    assert_eq!(case.wait(1).0, Phase::Probation);
}

#[test]
fn the_end_of_an_ejection_brings_no_server_back_that_probes_say_is_down() {
    let mut case = Case::new(Phase::Healthy);
    case.note(&[STATUS; 3]);
    case.note(&[FAILED; 3]);
    assert_eq!(case.wait(100).0, Phase::Out);
    assert_eq!(case.note(&[Signal::ProbePassed; 2]).0, Phase::Probation);
}

#[test]
fn a_leaving_server_is_out_at_once_until_it_was_quiet_or_was_seen_to_be_replaced() {
    let mut case = Case::new(Phase::Healthy);
    case.may_eject = false;
    assert_eq!(case.note(&[Signal::Leaving]), (Phase::Out, Cause::Leaving));
    case.now += Duration::from_secs(59);
    assert_eq!(case.note(&[Signal::ProbePassed, Signal::ProbePassed, Signal::Tick]).0, Phase::Out);
    assert_eq!(case.wait(1).0, Phase::Probation);

    case.note(&[Signal::Leaving]);
    case.note(&[FAILED; 3]);
    assert_eq!(case.note(&[Signal::ProbePassed; 2]), (Phase::Probation, Cause::Probes), "a new process answers");
}

// B52
#[test]
fn a_full_server_is_left_alone_for_a_moment_that_does_not_grow() {
    let mut case = Case::new(Phase::Healthy);
    assert_eq!(case.note(&[Signal::Saturated; 3]), (Phase::Out, Cause::Saturated));
    for _ in 0..5 {
        assert_eq!(case.wait(1).0, Phase::Probation);
        assert_eq!(case.note(&[Signal::Saturated]), (Phase::Out, Cause::Saturated));
    }
    let mut alone = Case::new(Phase::Healthy);
    alone.may_eject = false;
    assert_eq!(alone.note(&[Signal::Saturated; 100]).0, Phase::Healthy);
}

#[test]
fn streams_that_do_not_begin_speak_against_a_server_only_while_no_other_begins() {
    let mut case = Case::new(Phase::Healthy);
    assert_eq!(case.note(&[OVERDUE, OVERDUE, Signal::Began, OVERDUE, OVERDUE]).0, Phase::Healthy);
    // Streams that began long ago go on ending well although nothing begins any more.
    assert_eq!(case.note(&[Signal::Answered, OVERDUE]), (Phase::Out, Cause::Faults(Fault::FirstByte)));
}

#[test]
fn a_server_refuses_when_it_is_out_and_the_last_connection_was_refused() {
    let mut case = Case::new(Phase::Healthy);
    case.note(&[CONNECT]);
    assert!(!case.record.is_refusing(), "once is nothing");
    case.note(&[CONNECT, CONNECT]);
    assert!(case.record.is_refusing());
    case.note(&[Signal::ProbePassed]);
    assert!(!case.record.is_refusing());
    case.note(&[Signal::ProbeFailed { is_refused: true }]);
    assert!(case.record.is_refusing());
}

#[test]
fn nothing_is_concluded_from_requests_when_that_is_switched_off() {
    let mut case = Case::new(Phase::Healthy);
    case.rules.passive = None;
    let signals = [CONNECT, STATUS, OVERDUE, Signal::Saturated, Signal::Leaving].repeat(5);
    assert_eq!(case.note(&signals).0, Phase::Healthy);
}
