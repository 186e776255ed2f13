//! What it costs to measure a request body, by size.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate::prompt::{Budget, measure};

const KIB: usize = 1024;

/// A chat of a few long messages, about `bytes` long, with the measured fields behind them.
fn chat(bytes: usize, sentence: &str) -> String {
    let escaped = serde_json::to_string(sentence).expect("a string is JSON");
    let piece = escaped.trim_matches('"');
    let message = piece.repeat(bytes / 4 / piece.len());
    let messages: Vec<_> = ["system", "user", "assistant", "user"]
        .map(|role| format!(r#"{{"role":"{role}","content":"{message}"}}"#))
        .into();
    format!(r#"{{"model":"m","messages":[{}],"stream":true,"max_tokens":512,"ignore_eos":false}}"#, messages.join(","))
}

fn measuring(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("measure");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);
    let kinds = [
        ("text", "The tide comes in twice a day, and the gate lets it through when the levels differ enough. "),
        ("escapes", "fn main() {\n\tprintln!(\"{:?}\", \"a\\tb\");\n}\n"),
    ];
    for (kind, sentence) in kinds {
        for size in [KIB, 64 * KIB, 512 * KIB, 8 * KIB * KIB] {
            let body = chat(size, sentence);
            assert_eq!(measure(body.as_bytes()).max_tokens, Budget::from_tokens(512));
            group.throughput(Throughput::Bytes(body.len() as u64));
            let id = BenchmarkId::new(kind, format!("{} KiB", size / KIB));
            group.bench_with_input(id, body.as_bytes(), |bencher, body| bencher.iter(|| measure(black_box(body))));
        }
    }
    group.finish();
}

criterion_group!(benches, measuring);
criterion_main!(benches);
