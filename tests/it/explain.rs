//! Why a request would go where it would go: `POST /explain`, and the command.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

async fn asked(tidegate: &Tidegate, body: &Value) -> Value {
    let answer = tidegate.admin_post_body("/explain", "", body.to_string().as_bytes()).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    answer.json()
}

async fn run(tidegate: &Tidegate, arguments: &[&str]) -> Output {
    let mut program = Setup::new().program();
    program.args(arguments).env("TOKEN", "the-token");
    let _outlives = tidegate;
    tokio::task::spawn_blocking(move || program.output().unwrap()).await.unwrap()
}

fn chat(bytes: usize) -> Vec<u8> {
    let text = "The gate opens when the water stands high enough. ".repeat(bytes / 50 + 1);
    let messages = json!([{ "role": "user", "content": &text[..bytes] }]);
    post(CHAT, json!({ "model": "m", "stream": true, "messages": messages }).to_string().as_bytes())
}

#[tokio::test]
async fn the_answer_is_what_then_happens() {
    let gate = Gate::closed();
    let servers = [Backend::start(sse(1, &gate)).await, Backend::start(sse(1, &gate)).await];
    let setup = Setup::one_group(&servers).section("policy", "{ kind: lanes, lanes: 1, long_from_tokens: 20000 }");
    let tidegate = Tidegate::start(&setup).await;
    let long = json!({ "prompt_tokens": 50_000, "max_tokens": 10 });
    let answer = asked(&tidegate, &long).await;
    assert_eq!(answer["decision"]["server"], servers[1].name(), "{answer}");
    assert_eq!((answer["policy"].as_str(), answer["decision"]["reason"].as_str()), (Some("lanes"), Some("lane")));
    let mut running = tidegate.begin(&chat(200_000)).await;
    servers[1].requests(1).await;
    let answer = asked(&tidegate, &long).await;
    assert_eq!(answer["decision"]["outcome"], "held", "{answer}");
    // Nothing was sent, held or counted by asking.
    assert_eq!((servers[0].count(), servers[1].count()), (0, 1));
    assert_eq!(tidegate.status().await["work"]["held"], 0);
    let short = json!({ "messages": [{ "role": "user", "content": "Hello" }] });
    let answer = asked(&tidegate, &short).await;
    assert_eq!(answer["decision"]["server"], servers[0].name(), "{answer}");
    assert_eq!((answer["endpoint"].as_str(), answer["is_estimated"].as_bool()), (Some("chat"), Some(true)));
    let admin = tidegate.admin.to_string();
    let output = run(&tidegate, &["explain", "--admin", &admin, "--prompt-tokens", "50000"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("It would be held here until it is its turn."), "{text}");
    assert!(text.contains("server") && text.contains("lane_taken"), "{text}");
    gate.open();
    assert_eq!(running.response().await.status(), 200);
    tidegate.idle().await;
}

#[tokio::test]
async fn it_is_asked_with_the_token_where_reading_needs_one() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let answer = Client::connect(tidegate.admin).await.exchange(&get("/explain")).await;
    assert_eq!((answer.status(), answer.head.get("allow")), (405, Some("POST")));
    for (path, body, code) in [
        ("/explain", "{}", "bad_question"),
        ("/explain", "no json", "bad_question"),
        ("/explain?path=/version", r#"{"prompt":"a"}"#, "bad_question"),
    ] {
        let answer = tidegate.admin_post_body(path, "", body.as_bytes()).await;
        assert_eq!((answer.status(), answer.json()["error"]["code"].as_str()), (400, Some(code)), "{}", answer.text());
    }
    let admin = tidegate.admin;
    let listen = format!("{{ listen: \"{admin}\", token: the-token, protect_reads: true }}");
    tidegate.write_text(
        &Setup::one_group([&server]).yaml(tidegate.address, "REPLACED").replace("{ listen: \"REPLACED\" }", &listen),
    );
    assert_eq!(tidegate.admin_post("/reload", "").await.status(), 200);
    let question = br#"{"prompt_tokens": 5}"#;
    assert_eq!(tidegate.admin_post_body("/explain", "", question).await.status(), 401);
    let with_token = "authorization: Bearer the-token\r\n";
    assert_eq!(tidegate.admin_post_body("/explain", with_token, question).await.status(), 200);
    let admin = admin.to_string();
    let output = run(&tidegate, &["explain", "--admin", &admin, "--prompt-tokens", "5"]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("wants its token: --token-env NAME"), "{said}");
    let output =
        run(&tidegate, &["explain", "--admin", &admin, "--token-env", "TOKEN", "--prompt-tokens", "5", "--json"]).await;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["decision"]["server"], server.name(), "{answer}");
}

#[tokio::test]
async fn without_a_running_one_a_configuration_answers_with_the_loads_given() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let file = tidegate.file("offline.yaml");
    let groups = "groups:\n- {name: short, up_to_tokens: 1000, servers: [{address: 'a:1', name: a}]}\n\
                  - {name: long, up_to_tokens: 9000, servers: [{address: 'b:1', name: b}]}\n";
    let log = tidegate.file("never.log");
    let settings =
        format!("access_log: {{format: json, path: \"{}\"}}\npolicy: {{kind: reference_bucket}}\n", log.display());
    std::fs::write(&file, format!("{groups}{settings}")).unwrap();
    let file = file.to_str().unwrap();
    let arguments = ["explain", "--conf", file, "--prompt-tokens", "2000", "--load", "b=8000", "--load", "a=100"];
    let output = run(&tidegate, &arguments).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("crossing from long (redirected)"), "{text}");
    assert!(!log.exists(), "nothing is written");
    let output = run(&tidegate, &["explain", "--conf", file, "--prompt-tokens", "2000", "--load", "x=8000"]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(64) && said.contains("there is no server x, expected one of: a, b"), "{said}");
    for wrong in [
        &["explain"][..],
        &["explain", "-", "--prompt-tokens", "5"],
        &["explain", "--prompt-tokens", "5", "--load", "a=1"],
    ] {
        assert_eq!(run(&tidegate, wrong).await.status.code(), Some(64), "{wrong:?}");
    }
}

#[tokio::test]
async fn responses_say_where_the_request_went_to_those_who_may_know() {
    let server = Backend::start(sse(1, &opened())).await;
    let dead = closed_address();
    let setup = |decision: &str, trusted: &str| {
        Setup::one_group([dead, server.address()])
            .without_health()
            .section("headers", &format!("{{ decision: {decision} }}"))
            .section("forwarded", &format!("{{ trusted_proxies: [{trusted}] }}"))
    };
    let tidegate = Tidegate::start(&setup("none", "")).await;
    let fields = async || {
        let answer = tidegate.exchange(&chat(400)).await;
        assert_eq!(answer.status(), 200);
        let names = ["server", "group", "standard-group", "reason", "prompt-tokens", "attempts", "waited-ms"];
        names.map(|name| answer.head.get(&format!("x-tidegate-{name}")).map(str::to_owned))
    };
    assert_eq!(fields().await, [const { None }; 7]);
    for decision in ["trusted", "all"] {
        tidegate.reload(&setup(decision, "")).await;
        let [on, group, standard_group, reason, tokens, attempts, waited] = fields().await.map(Option::unwrap);
        assert_eq!((on, group.as_str(), standard_group.as_str()), (server.name(), "all", "all"));
        assert_eq!((reason.as_str(), attempts.as_str()), ("standard", "2"));
        assert!(
            (100..140).contains(&tokens.parse::<u32>().unwrap()) && waited.parse::<u32>().is_ok(),
            "{tokens} {waited}"
        );
    }
}
