//! How much a request counts: the rule is the raw size of its body (and, in plain mode, its output budget), and what
//! was added is what is taken away.

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Sends a body to two groups of one server each; returns the group and the load that it counted there.
async fn measured(path: &str, body: &[u8]) -> (&'static str, f64) {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let other = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::two_groups([&server], [&other])).await;
    let mut client = tidegate.begin(&post(path, body)).await;
    until("a server has the request", async || {
        [&server, &other].iter().any(|server| server.received().iter().any(|request| request.end.is_some()))
    })
    .await;
    let (group, received) = if server.count() == 1 { ("short", server.only()) } else { ("long", other.only()) };
    assert!(received.body == body, "the body is forwarded unchanged");
    let load = tidegate.load(group).await;
    gate.open();
    assert_eq!(client.response().await.status(), 200);
    tidegate.idle().await;
    (group, load)
}

#[expect(clippy::cast_precision_loss, reason = "sizes of bodies are small")]
fn quarter(body: &str) -> f64 {
    body.len() as f64 / 4.0
}

// B16
#[tokio::test]
async fn chinese_text_counts_its_bytes() {
    let chinese = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "中".repeat(60_000));
    let ascii = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "a".repeat(60_000));
    assert_eq!(measured(CHAT, chinese.as_bytes()).await, ("long", quarter(&chinese)));
    assert_eq!(measured(CHAT, ascii.as_bytes()).await, ("short", quarter(&ascii)));
}

// B17: the raw size is the documented measure
#[tokio::test]
async fn escapes_white_space_and_metadata_count_as_the_bytes_they_are() {
    let raw = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "中".repeat(30_000));
    let escaped = format!(r#"{{"messages":[{{"role":"user","content":"{}"}}]}}"#, "\\u4e2d".repeat(30_000));
    let spaced = format!(r#"{{"messages":[],{}"model":"tiny"}}"#, " ".repeat(102_400));
    let with_metadata = format!(r#"{{"messages":[],"metadata":{{"x":"{}"}}}}"#, "m".repeat(102_400));
    let with_tools = format!(r#"{{"messages":[],"tools":[{{"x":"{}"}}]}}"#, "t".repeat(102_400));
    assert_eq!(measured(CHAT, raw.as_bytes()).await, ("short", quarter(&raw)));
    assert_eq!(measured(CHAT, escaped.as_bytes()).await, ("long", quarter(&escaped)));
    for body in [spaced, with_metadata, with_tools] {
        assert_eq!(measured(CHAT, body.as_bytes()).await, ("short", quarter(&body)));
    }
}

// B19
#[tokio::test]
async fn a_prompt_may_be_a_list_or_missing() {
    let many = format!(r#"{{"prompt":[{}]}}"#, vec![format!("\"{}\"", "x".repeat(1_024)); 200].join(","));
    let bodies = [r#"{"prompt":["a","b"]}"#, r#"{"prompt":[""]}"#, r#"{"prompt":[]}"#, r#"{"model":"tiny"}"#];
    for body in bodies {
        assert_eq!(measured(COMPLETIONS, body.as_bytes()).await, ("short", quarter(body)));
    }
    assert_eq!(measured(COMPLETIONS, many.as_bytes()).await, ("long", quarter(&many)));
}

// B20
#[tokio::test]
async fn prompts_of_token_ids_and_embeddings_are_counted() {
    let ids = |count: usize| (0..count).map(|id| (10_000 + id * 7 % 900_000).to_string()).collect::<Vec<_>>().join(",");
    let flat = format!(r#"{{"prompt":[{}]}}"#, ids(40_000));
    let nested = format!(r#"{{"prompt":[[{}],[{}]]}}"#, ids(20_000), ids(20_000));
    let input = format!(r#"{{"input":[{}]}}"#, ids(40_000));
    let embeds = format!(r#"{{"prompt_embeds":"{}"}}"#, "QUJD".repeat(50_000));
    for (path, body) in [(COMPLETIONS, flat), (COMPLETIONS, nested), ("/v1/embeddings", input), (COMPLETIONS, embeds)] {
        assert_eq!(measured(path, body.as_bytes()).await, ("long", quarter(&body)));
    }
}

/// One server in plain mode that holds requests; the load that a body counts there.
async fn plain_scores(path: &str, bodies: &[(&str, f64)]) {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server]).section("policy", "{ kind: reference_plain }")).await;
    for (number, (body, output)) in bodies.iter().enumerate() {
        let mut client = tidegate.begin(&post(path, body.as_bytes())).await;
        server.whole_requests(number + 1).await;
        assert_eq!(server.received()[number].body, body.as_bytes());
        assert_eq!(tidegate.load(&server.name()).await, quarter(body) * 4.0 + output, "{body}");
        gate.admit(1);
        assert_eq!(client.response().await.status(), 200);
        tidegate.idle().await;
    }
}

// B22
#[tokio::test]
async fn an_odd_max_tokens_is_forwarded_and_never_counts_less_than_nothing() {
    plain_scores(
        CHAT,
        &[
            (r#"{"messages":[]}"#, 8.0),
            (r#"{"messages":[],"max_tokens":null}"#, 8.0),
            (r#"{"messages":[],"max_tokens":0}"#, 0.0),
            (r#"{"messages":[],"max_tokens":-1}"#, 0.0),
            (r#"{"messages":[],"max_tokens":-9223372036854775808}"#, 0.0),
            (r#"{"messages":[],"max_tokens":10.5}"#, 5.25),
            (r#"{"messages":[],"max_tokens":100,"max_completion_tokens":900}"#, 50.0),
            (r#"{"messages":[],"max_tokens":100,"ignore_eos":true}"#, 100.0),
            (r#"{"messages":[],"max_tokens":100,"ignore_eos":false}"#, 50.0),
            (r#"{"messages":[],"max_tokens":100,"ignore_eos":null}"#, 50.0),
        ],
    )
    .await;
}

// B30: of doubled keys the last counts, as in Python
#[tokio::test]
async fn of_a_doubled_max_tokens_the_last_counts() {
    plain_scores(COMPLETIONS, &[(r#"{"max_tokens":900,"prompt":"a","max_tokens":100}"#, 50.0)]).await;
}

// B25: n and best_of are ignored on purpose, as the Python example does
#[tokio::test]
async fn n_and_best_of_do_not_change_the_score() {
    let list = format!(r#"{{"max_tokens":1000,"n":4,"prompt":[{}]}}"#, vec!["\"a\""; 50].join(","));
    plain_scores(
        COMPLETIONS,
        &[
            (r#"{"prompt":"a","max_tokens":1000,"n":1}"#, 500.0),
            (r#"{"prompt":"a","max_tokens":1000,"n":8}"#, 500.0),
            (r#"{"prompt":"a","max_tokens":1000,"n":128}"#, 500.0),
            (r#"{"prompt":"a","max_tokens":1000,"n":null}"#, 500.0),
            (r#"{"prompt":"a","max_tokens":1000,"n":0}"#, 500.0),
            (r#"{"prompt":"a","max_tokens":1000,"best_of":100}"#, 500.0),
            (&list, 500.0),
        ],
    )
    .await;
}

// B23
#[tokio::test]
async fn an_enormous_max_tokens_leaves_no_residue() {
    let gate = Gate::closed();
    let server = Backend::start(move |mut conn: Conn| {
        let gate = gate.clone();
        async move {
            while let Some(request) = conn.request().await {
                if !request.body.windows(10).any(|window| window == b"max_tokens") {
                    gate.pass().await;
                }
                conn.send(json_response(200, "{}")).await;
            }
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server]).section("policy", "{ kind: reference_plain }")).await;
    let stream = tidegate.begin(&post(COMPLETIONS, &body_of(333))).await;
    server.whole_requests(1).await;
    let load = tidegate.load(&server.name()).await;
    assert_eq!(load, 341.0);
    let mut client = tidegate.client().await;
    for _ in 0..20 {
        for huge in ["2147483647", "9223372036854775807", "18446744073709551616", "1e18", "1e309", "0.1", "1e-9"] {
            let body = format!(r#"{{"prompt":"a","max_tokens":{huge}}}"#);
            assert_eq!(client.exchange(&post(COMPLETIONS, body.as_bytes())).await.status(), 200, "{huge}");
            until("the load is what it was", async || tidegate.load(&server.name()).await == load).await;
        }
    }
    let metrics = tidegate.metrics().await;
    assert!(!metrics.contains("NaN") && !metrics.to_lowercase().contains(" inf"), "{metrics}");
    stream.close();
    tidegate.idle().await;
}

#[tokio::test]
async fn a_huge_budget_is_clamped_while_it_runs() {
    // 2^32 tokens, half of them counted.
    let clamped = 2_147_483_648.0;
    plain_scores(
        COMPLETIONS,
        &[
            (r#"{"max_tokens":18446744073709551616}"#, clamped),
            (r#"{"max_tokens":1e18}"#, clamped),
            (r#"{"max_tokens":1e309}"#, clamped),
        ],
    )
    .await;
}
