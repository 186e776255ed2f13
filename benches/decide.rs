//! What one request costs the policies that route by work: arrival, decision, first token and end.
//!
//! A decision is to take under 1 us with 8 servers and under 20 us with 512, whatever runs on them; here 2,000 streams run on
//! each, and long requests are held, so that each event asks for those again.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tidegate::drive::Setup;
use tidegate::work::{Dispatcher, Request, RequestId};

const ACTIVE_PER_SERVER: u64 = 2_000;

/// A dispatcher with so many streams on each server, and a long request now and then.
fn busy(policy: &str, servers: usize) -> Dispatcher {
    let mut dispatcher = Setup::new(policy, servers).dispatcher().expect("the policy is known");
    for id in 0..ACTIVE_PER_SERVER * servers as u64 {
        let prompt_tokens = if id % 30 == 0 { 40_000 } else { 100 + id % 700 };
        dispatcher.arrive(Request::of_tokens(id, prompt_tokens), 0.0).expect("each number is used once");
        _ = dispatcher.outcomes().count();
        dispatcher.first_token(RequestId(id), 0.0);
    }
    _ = dispatcher.outcomes().count();
    dispatcher
}

fn decide(criterion: &mut Criterion) {
    for policy in ["least_work", "lanes"] {
        let mut group = criterion.benchmark_group(policy);
        for servers in [8, 64, 512] {
            let (mut dispatcher, mut id, mut now_s) = (busy(policy, servers), 1 << 40, 1.0);
            group.bench_function(BenchmarkId::new("arrive_first_end", servers), |bencher| {
                bencher.iter(|| {
                    id += 1;
                    now_s += 1e-4;
                    dispatcher.arrive(Request::of_tokens(id, 500), now_s).expect("each number is used once");
                    dispatcher.outcomes().for_each(|outcome| _ = black_box(outcome));
                    dispatcher.first_token(RequestId(id), now_s);
                    dispatcher.end(RequestId(id), true, Some(200), now_s);
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, decide);
criterion_main!(benches);
