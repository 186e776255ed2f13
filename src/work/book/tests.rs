use proptest::prelude::*;

use super::*;

fn entry(prefill_s: f64, prompt_tokens: u64, is_long: bool) -> Entry {
    Entry { prefill_s, prompt_tokens, is_long }
}

fn id(number: u64) -> RequestId {
    RequestId(number)
}

#[test]
fn prefill_work_is_given_back_at_the_first_token_and_the_context_at_the_end() {
    let mut book = Book::new(1);
    book.dispatch(id(1), 0, entry(2.0, 1_000, true), 0.0);
    assert_eq!(
        (book.sums(0).waiting_ns, book.sums(0).waiting_long, book.sums(0).kv_tokens()),
        (2_000_000_000, 1, 1_000)
    );
    assert!(book.first_token(id(1), 1.0));
    assert!(!book.first_token(id(1), 2.0), "only the first counts");
    assert_eq!((book.sums(0).waiting_ns, book.sums(0).streams, book.sums(0).context_tokens), (0, 1, 1_001));
    book.tokens(id(1), 50, 2.0);
    book.tokens(id(1), 20, 3.0);
    assert_eq!(book.sums(0).context_tokens, 1_050);
    assert_eq!(book.end(id(1), 4.0).map(|active| active.generated_tokens), Some(50));
    assert_eq!(book.end(id(1), 5.0), None);
    assert_eq!(book.sums(0), &Sums::default());
}

#[test]
fn tokens_imply_the_first_one() {
    let mut book = Book::new(1);
    book.dispatch(id(1), 0, entry(2.0, 10, false), 0.0);
    book.tokens(id(1), 3, 1.0);
    assert_eq!((book.sums(0).waiting, book.sums(0).context_tokens), (0, 13));
}

#[test]
fn the_head_of_line_shrinks_as_time_goes_by_but_not_to_nothing() {
    let mut book = Book::new(1);
    book.dispatch(id(1), 0, entry(10.0, 1, false), 5.0);
    book.dispatch(id(2), 0, entry(1.0, 1, false), 6.0);
    let waiting = |book: &Book, now_s| (book.waiting_s(0, now_s) * 1e3).round() / 1e3;
    assert_eq!([5.0, 8.0, 14.0, 99.0].map(|now_s| waiting(&book, now_s)), [11.0, 8.0, 2.0, 2.0]);
    book.first_token(id(1), 20.0);
    assert_eq!([20.0, 20.5, 99.0].map(|now_s| waiting(&book, now_s)), [1.0, 0.5, 0.1]);
}

#[test]
fn the_next_in_line_becomes_the_head_also_when_one_between_has_left() {
    let mut book = Book::new(1);
    for number in 1..=3 {
        book.dispatch(id(number), 0, entry(f64::from(u32::try_from(number).unwrap()), 1, false), 0.0);
    }
    book.end(id(2), 1.0);
    book.end(id(1), 2.0);
    assert!((book.waiting_s(0, 3.0) - 2.0).abs() < 1e-9);
}

#[test]
fn what_has_left_behind_a_stuck_head_does_not_pile_up() {
    let mut book = Book::new(1);
    book.dispatch(id(0), 0, entry(1.0, 1, false), 0.0);
    for number in 1..10_000 {
        book.dispatch(id(number), 0, entry(1.0, 1, false), 0.0);
        book.end(id(number), 0.0);
    }
    assert!(book.pages[0].line.len() < 64);
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let mut book = Book::new(1);
    for number in 0..1_000 {
        book.dispatch(id(number), 0, entry(f64::INFINITY, u64::MAX, true), 0.0);
        book.tokens(id(number), u64::MAX, 0.0);
    }
    (0..1_000).for_each(|number| assert!(book.end(id(number), 0.0).is_some()));
    assert_eq!(book.sums(0), &Sums::default());
}

#[derive(Debug, Clone)]
enum Step {
    Dispatch { server: usize, prefill_s: f64, prompt_tokens: u64, is_long: bool },
    First(usize),
    Tokens(usize, u64),
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3_usize, 0.0..50.0, 0..200_000_u64, any::<bool>()).prop_map(
            |(server, prefill_s, prompt_tokens, is_long)| Step::Dispatch { server, prefill_s, prompt_tokens, is_long }
        ),
        3 => (0..40_usize).prop_map(Step::First),
        2 => (0..40_usize, 0..500_u64).prop_map(|(which, generated)| Step::Tokens(which, generated)),
        2 => (0..40_usize).prop_map(Step::End),
    ]
}

/// The same, told by a list that is walked.
#[derive(Debug, Clone)]
struct Told {
    id: RequestId,
    server: usize,
    entry: Entry,
    generated: u64,
}

fn sums_of(told: &[Told], server: usize) -> Sums {
    let mut sums = Sums::default();
    for one in told.iter().filter(|one| one.server == server) {
        if one.generated == 0 {
            sums.waiting += 1;
            sums.waiting_long += u64::from(one.entry.is_long);
            sums.waiting_ns += nanoseconds(one.entry.prefill_s);
            sums.waiting_tokens += one.entry.prompt_tokens;
        } else {
            sums.streams += 1;
            sums.context_tokens += one.entry.prompt_tokens + one.generated;
        }
    }
    sums
}

fn waiting_of(told: &[Told], server: usize, heads: &[(Option<RequestId>, f64)], now_s: f64) -> f64 {
    let line = told.iter().filter(|one| one.server == server && one.generated == 0);
    let sum: f64 = line.clone().map(|one| one.entry.prefill_s).sum();
    let head = line.clone().next();
    sum - head.map_or(0.0, |head| (now_s - heads[server].1).min(0.9 * head.entry.prefill_s))
}

proptest! {
    #[test]
    fn the_sums_are_what_a_walk_over_all_requests_gives(steps in prop::collection::vec(step(), 0..300)) {
        let (mut book, mut told, mut now_s) = (Book::new(3), Vec::<Told>::new(), 0.0);
        let mut heads = vec![(None, 0.0); 3];
        for (number, step) in steps.into_iter().enumerate() {
            now_s += 0.25;
            match step {
                Step::Dispatch { server, prefill_s, prompt_tokens, is_long } => {
                    let (id, entry) = (RequestId(number as u64), Entry { prefill_s, prompt_tokens, is_long });
                    book.dispatch(id, server, entry, now_s);
                    told.push(Told { id, server, entry, generated: 0 });
                }
                Step::First(which) if which < told.len() => {
                    book.first_token(told[which].id, now_s);
                    told[which].generated = told[which].generated.max(1);
                }
                Step::Tokens(which, generated) if which < told.len() => {
                    book.tokens(told[which].id, generated, now_s);
                    told[which].generated = told[which].generated.max(generated).max(1);
                }
                Step::End(which) if which < told.len() => {
                    prop_assert!(book.end(told[which].id, now_s).is_some());
                    told.remove(which);
                }
                _ => {}
            }
            for server in 0..3 {
                let head = told.iter().find(|one| one.server == server && one.generated == 0).map(|one| one.id);
                if heads[server].0 != head {
                    heads[server] = (head, now_s);
                }
                prop_assert_eq!(*book.sums(server), sums_of(&told, server));
                let difference = book.waiting_s(server, now_s + 0.1) - waiting_of(&told, server, &heads, now_s + 0.1);
                prop_assert!(difference.abs() < 1e-6, "{}", difference);
            }
        }
        for one in told {
            book.end(one.id, now_s);
        }
        prop_assert!(book.is_empty());
        for server in 0..3 {
            prop_assert_eq!(*book.sums(server), Sums::default());
            prop_assert_eq!(book.waiting_s(server, now_s).to_bits(), 0.0_f64.to_bits());
        }
    }
}
