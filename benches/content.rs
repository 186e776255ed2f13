//! What it costs to find out what a body asks of an engine, by kind of content and size.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate::prompt::{Endpoint, TokenEstimator, content, measured_content};

const KIB: usize = 1024;

const ENGLISH: &str = "The tide comes in twice a day, and the gate lets it through when the levels differ enough. ";
const CODE: &str =
    "    for level in levels:\n        if level[\"cm\"] > 250.0:\n            print(f\"{level['cm']} cm\")\n\n";
const CHINESE: &str = "潮水每天涨落两次，闸门在水位差足够大时放行。";

const PROSE: &str =
    "\"It was in 1904,\" said Mr. Carter, \"that the gate was opened.\" They'd come by boat; nobody knew why.\n\n";
const RUSSIAN: &str = "Прилив приходит дважды в день, и ворота пропускают его, когда уровни различаются достаточно. ";
const KOREAN: &str = "조수는 하루에 두 번 들어오고, 수문은 수위 차이가 충분할 때 그것을 통과시킨다. ";
const FRENCH: &str =
    "La marée monte deux fois par jour, et l'écluse la laisse passer dès que les niveaux diffèrent assez. ";
const EMOJI: &str =
    "The tide comes in twice a day 🌊, and the gate lets it through — “when the levels differ enough” 👍. ";

/// A chat of a few messages, about `bytes` long. `is_ascii` escapes all else, as Python's encoder does.
fn chat(bytes: usize, sentence: &str, is_ascii: bool) -> String {
    let message = sentence.repeat((bytes / 4).div_ceil(sentence.len()));
    let json = serde_json::to_string(&message).expect("a string is JSON");
    let units = |c: char| c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    let json = if is_ascii {
        json.chars().map(|c| if c.is_ascii() { c.to_string() } else { units(c) }).collect()
    } else {
        json
    };
    let messages =
        ["system", "user", "assistant", "user"].map(|role| format!(r#"{{"role":"{role}","content":{json}}}"#));
    format!(r#"{{"model":"m","messages":[{}],"stream":true,"max_tokens":512}}"#, messages.join(","))
}

fn reading(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("content");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(20);
    let mut measure = |kind: &str, size: &str, body: &str, endpoint: Endpoint| {
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_with_input(BenchmarkId::new(kind, size), body.as_bytes(), |bencher, body| {
            bencher.iter(|| content(endpoint, black_box(body)));
        });
    };
    for (kind, sentence, is_ascii) in [
        ("english", ENGLISH, false),
        ("prose", PROSE, false),
        ("code", CODE, false),
        ("chinese", CHINESE, false),
        ("russian", RUSSIAN, false),
        ("korean", KOREAN, false),
        ("french", FRENCH, false),
        ("emoji", EMOJI, false),
        ("chinese escaped", CHINESE, true),
    ] {
        for size in [KIB, 64 * KIB, 512 * KIB] {
            measure(kind, &format!("{} KiB", size / KIB), &chat(size, sentence, is_ascii), Endpoint::Chat);
        }
    }
    let message = format!(r#"{{"role":"user","content":"{ENGLISH}"}}"#);
    measure("messages", "200", &format!(r#"{{"messages":[{}]}}"#, vec![message; 200].join(",")), Endpoint::Chat);
    let ids: Vec<_> = (0..40_000_u32).map(|place| (place * 7_919 % 150_000).to_string()).collect();
    measure("token ids", "40000", &format!(r#"{{"prompt":[{}]}}"#, ids.join(", ")), Endpoint::Completions);
    let image = format!(
        r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{}"}}}}]}}]}}"#,
        "iVBORw0KGgoAAAANSUhEUgAA".repeat(5 * KIB * KIB / 24)
    );
    measure("image", "5 MiB", &image, Endpoint::Chat);
    let tool = r#"{"type":"function","function":{"name":"level","description":"Reads the level of a station.","parameters":{"type":"object","properties":{"station":{"type":"string"}}}}}"#;
    measure("tools", "64 KiB", &format!(r#"{{"messages":[],"tools":[{}]}}"#, [tool; 400].join(",")), Endpoint::Chat);
    group.finish();

    let mut group = criterion.benchmark_group("measured content");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(20);
    for (kind, sentence) in [("english", ENGLISH), ("code", CODE)] {
        for size in [KIB, 64 * KIB, 512 * KIB] {
            let body = chat(size, sentence, false);
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_with_input(BenchmarkId::new(kind, format!("{} KiB", size / KIB)), &body, |bencher, body| {
                bencher.iter(|| measured_content(Endpoint::Chat, black_box(body.as_bytes())));
            });
        }
    }
    group.finish();

    let found = content(Endpoint::Chat, chat(64 * KIB, ENGLISH, false).as_bytes());
    let mut estimator = TokenEstimator::default();
    criterion.bench_function("estimate", |bencher| {
        bencher.iter(|| estimator.estimate(Endpoint::Chat, black_box(&found)));
    });
    let estimate = estimator.estimate(Endpoint::Chat, &found);
    criterion.bench_function("learn", |bencher| bencher.iter(|| estimator.learn(black_box(&estimate), 15_000)));
}

criterion_group!(benches, reading);
criterion_main!(benches);
