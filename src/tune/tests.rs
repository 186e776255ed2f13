use super::*;
use crate::drive::Setup;
use crate::simulate::{Job, Load, Mix, Slo, Traffic, cores};
use crate::work::LLAMA3_8B_A100;

fn question(servers: usize, load: f64) -> Question {
    Question {
        servers,
        profile: LLAMA3_8B_A100,
        load: Load::Share(load),
        slo: Slo::of(&LLAMA3_8B_A100),
        seed: 1,
        present: None,
        threads: cores(),
    }
}

fn text(advice: &Advice) -> String {
    let mut output = Vec::new();
    advice.write(&mut output).unwrap();
    String::from_utf8(output).unwrap()
}

#[test]
fn short_traffic_gets_nothing_pinned_and_no_lanes() {
    let jobs =
        (0..1_000_u32).map(|number| Job::new(f64::from(number) * 0.05, 200 + u64::from(number * 7_919 % 800), 60));
    let traffic = Traffic::recorded("short".into(), jobs.collect(), true);
    let advice = advise(&question(4, 0.8), &traffic, &()).unwrap();
    assert!([Pins::LANES, Pins::LeastWork].contains(&advice.pins()), "{:?}", advice.pins());
    let text = text(&advice);
    assert!(
        text.contains("There are no long prompts: least_work does as well") || advice.pins() == Pins::LeastWork,
        "{text}"
    );
}

#[test]
fn what_runs_already_is_left_alone() {
    let present = Some(Setup { profile: LLAMA3_8B_A100, ..Setup::new("lanes", 3) });
    let advice = advise(&Question { present, ..question(3, 0.7) }, &Traffic::made_up(Mix::Steady, 600), &()).unwrap();
    if advice.pins() == Pins::LANES {
        let text = text(&advice);
        assert!(!advice.is_worth_it());
        assert!(text.contains("No significant gain over the present configuration: leave it."), "{text}");
        assert!(!text.contains("To be pasted"), "{text}");
    } else {
        assert!(advice.is_worth_it(), "only what is better replaces the default: {:?}", advice.gain());
    }
}

#[test]
fn the_same_question_has_the_same_answer() {
    let traffic = Traffic::made_up(Mix::Burst, 400);
    let answer = |threads| text(&advise(&Question { threads, ..question(2, 0.8) }, &traffic, &()).unwrap());
    assert_eq!(answer(1), answer(3));
}
