//! The live page and the events that it shows. How it looks and works in a browser: tests/browser.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

/// A watcher of the admin listener's events.
struct Watcher {
    client: Client,
    text: String,
}

impl Watcher {
    /// Watches; `fields` are whole header lines.
    async fn start(tidegate: &Tidegate, fields: &str) -> Self {
        let mut client = Client::connect(tidegate.admin).await;
        client.send(format!("GET /events HTTP/1.1\r\nHost: localhost:9400\r\n{fields}\r\n").as_bytes()).await;
        let head = client.head().await;
        assert_eq!((head.status(), head.get("content-type")), (200, Some("text/event-stream")));
        assert_eq!(head.get("cache-control"), Some("no-store"));
        Self { client, text: String::new() }
    }

    /// The next event: its name and what it says.
    async fn next(&mut self) -> (String, Value) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (name, data) = event.split_once('\n').unwrap();
                let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
                let event = (name.strip_prefix("event: ").unwrap().to_owned(), data);
                self.text = rest.to_owned();
                return event;
            }
            let piece = self.client.piece().await.unwrap().expect("the stream goes on");
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// The next event of a kind.
    async fn wait_for(&mut self, name: &str) -> Value {
        let event = async {
            loop {
                let (found, data) = self.next().await;
                if found == name {
                    return data;
                }
            }
        };
        tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("no {name} within {PATIENCE:?}"))
    }

    /// How the stream ends.
    async fn end(mut self) -> End {
        self.client.rest().await.1
    }
}

async fn answers() -> Backend {
    Backend::start(reply(json_response(200, r#"{"usage":{"prompt_tokens":7,"completion_tokens":3}}"#))).await
}

#[tokio::test]
async fn browsers_get_the_page_and_programs_the_index() {
    let server = answers().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = Client::connect(tidegate.admin).await;
    let page = client.exchange(b"GET / HTTP/1.1\r\nHost: admin\r\nAccept: text/html,*/*;q=0.8\r\n\r\n").await;
    assert_eq!((page.status(), page.head.get("content-type")), (200, Some("text/html; charset=utf-8")));
    assert_eq!((page.head.get("cache-control"), page.head.get("vary")), (Some("no-store"), Some("Accept")));
    assert_eq!(page.head.get("content-length"), Some(page.body.len().to_string().as_str()));
    let policy = page.head.get("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
    assert!(policy.contains("connect-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(page.body.len() < 100_000, "{} bytes", page.body.len());

    let head = client.exchange(b"HEAD / HTTP/1.1\r\nHost: admin\r\nAccept: text/html\r\n\r\n").await;
    assert_eq!(head.head.get("content-length"), page.head.get("content-length"));
    for accept in ["", "Accept: */*\r\n", "Accept: application/json\r\n"] {
        let index = client.exchange(format!("GET / HTTP/1.1\r\nHost: admin\r\n{accept}\r\n").as_bytes()).await;
        assert_eq!(index.head.get("content-type"), Some("text/plain; charset=utf-8"), "{accept}");
        assert!(index.text().contains("/events"));
    }
}

#[tokio::test]
async fn a_watcher_sees_the_status_and_then_each_request_as_it_happens() {
    let gate = Gate::closed();
    let short = Backend::start(sse(1, &gate)).await;
    let long = answers().await;
    let tidegate = Tidegate::start(&Setup::two_groups([&short], [&long])).await;
    let early = tidegate.exchange(&request("POST", COMPLETIONS, "X-Request-Id: early\r\n", &body_of(200_000))).await;
    assert_eq!(early.status(), 200);
    tidegate.finished(1).await;

    let mut watcher = Watcher::start(&tidegate, "").await;
    let (name, hello) = watcher.next().await;
    assert_eq!((name.as_str(), &hello["changes"]), ("hello", &"open".into()));
    let (name, mut status) = watcher.next().await;
    assert_eq!(
        (name.as_str(), &status["groups"][0]["in_flight"], &status["ready"]),
        ("status", &0.into(), &true.into())
    );
    let mut page = tidegate.status().await;
    for status in [&mut status, &mut page] {
        status.as_object_mut().unwrap().shift_remove("uptime_seconds");
        for group in status["groups"].as_array_mut().unwrap() {
            group["servers"][0].as_object_mut().unwrap().shift_remove("health_for_seconds");
        }
    }
    assert_eq!(status, page, "the same as /status");
    let (name, recent) = watcher.next().await;
    assert_eq!((name.as_str(), recent.as_array().unwrap().len()), ("recent", 1));
    assert_eq!((&recent[0]["request_id"], &recent[0]["group"]), (&"early".into(), &"long".into()));

    let mut client = tidegate.begin(&request("POST", COMPLETIONS, "X-Request-Id: now\r\n", &body_of(400))).await;
    let placed = watcher.wait_for("placed").await;
    assert_eq!((&placed["request_id"], &placed["tokens"]), (&"now".into(), &100.into()));
    assert_eq!((&placed["standard_group"], &placed["server"]), (&"short".into(), &short.name().into()));
    let running = watcher.wait_for("status").await;
    assert_eq!(running["groups"][0]["in_flight"], 1);
    gate.open();
    assert_eq!(client.response().await.end, End::Complete);
    let ended = watcher.wait_for("ended").await;
    assert_eq!(
        (&ended["request_id"], &ended["end"], &ended["status"]),
        (&"now".into(), &"complete".into(), &200.into())
    );
    assert!(ended["ttft_s"].as_f64().unwrap() > 0.0, "{ended}");
    // The next one shows that it is gone.
    assert_eq!(watcher.wait_for("status").await["groups"][0]["in_flight"], 0);
}

#[tokio::test]
async fn a_watcher_needs_the_token_where_reading_does_and_the_page_does_not() {
    let server = answers().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut unasked = Watcher::start(&tidegate, "").await;
    unasked.wait_for("recent").await;

    let text = std::fs::read_to_string(tidegate.configuration()).unwrap();
    tidegate.write_text(&text.replace("admin: { ", "admin: { token: right, protect_reads: true, "));
    assert_eq!(tidegate.admin_post("/reload", "").await.status(), 200);
    // Who watched without it watches no more.
    assert_eq!(unasked.end().await, End::Complete);
    let mut client = Client::connect(tidegate.admin).await;
    for authorization in ["", "Authorization: Bearer wrong\r\n"] {
        let request = format!("GET /events HTTP/1.1\r\nHost: admin\r\n{authorization}\r\n");
        assert_eq!(client.exchange(request.as_bytes()).await.status(), 401, "{authorization}");
    }
    assert_eq!(client.exchange(b"GET / HTTP/1.1\r\nHost: admin\r\nAccept: text/html\r\n\r\n").await.status(), 200);
    assert_eq!(client.exchange(b"GET / HTTP/1.1\r\nHost: admin\r\n\r\n").await.status(), 401);
    let mut watcher = Watcher::start(&tidegate, "Authorization: Bearer right\r\n").await;
    assert_eq!(watcher.wait_for("hello").await["changes"], "token");
    watcher.wait_for("status").await;
}

#[tokio::test]
async fn without_a_token_the_own_page_may_drain_and_another_may_not() {
    let server = answers().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let drain = async |host: &str, origin: &str| {
        let path = format!("/drain?server={}", server.name());
        let request = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nContent-Length: 0\r\n\r\n");
        Client::connect(tidegate.admin).await.exchange(request.as_bytes()).await.status()
    };
    for (host, origin) in [
        ("localhost:9400", "http://evil.example"),
        ("localhost:9400", "http://localhost:8000"),
        ("localhost:9400", "null"),
        // A name of a page's own that its name server has turned to this machine.
        ("evil.example:9400", "http://evil.example:9400"),
        ("localhost.evil.example", "http://localhost.evil.example"),
    ] {
        assert_eq!(drain(host, origin).await, 403, "{host} {origin}");
    }
    assert_eq!(tidegate.status().await["groups"][0]["servers"][0]["draining"], false);
    for own in ["localhost:9400", "127.0.0.1:9400", "[::1]:9400"] {
        assert_eq!(drain(own, &format!("http://{own}")).await, 200, "{own}");
    }
}

#[tokio::test]
async fn a_watcher_that_reads_nothing_harms_nobody() {
    const REQUESTS: u32 = 400;
    let server = answers().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let deaf = Watcher::start(&tidegate, "").await;
    let mut watcher = Watcher::start(&tidegate, "").await;
    watcher.wait_for("recent").await;
    let mut client = tidegate.client().await;
    for _ in 0..REQUESTS {
        assert_eq!(client.exchange(&post(COMPLETIONS, &body_of(400))).await.status(), 200);
    }
    tidegate.finished(REQUESTS).await;
    // The other one has seen, or was told of, all of them.
    let mut ended = 0;
    while ended < u64::from(REQUESTS) {
        match watcher.next().await {
            (name, _) if name == "ended" => ended += 1,
            (name, data) if name == "lagged" => ended += data["missed"].as_u64().unwrap() / 2,
            _ => {}
        }
    }
    drop(deaf);
    tidegate.idle().await;
}

#[tokio::test]
async fn of_many_requests_in_a_second_some_are_explained() {
    const REQUESTS: usize = 200;
    let server = answers().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut watcher = Watcher::start(&tidegate, "").await;
    watcher.wait_for("recent").await;
    let (mut client, started) = (tidegate.client().await, std::time::Instant::now());
    let mut explained = Vec::new();
    for _ in 0..REQUESTS {
        assert_eq!(client.exchange(&post(COMPLETIONS, &body_of(400))).await.status(), 200);
        let placed = watcher.wait_for("placed").await;
        assert_eq!((&placed["reason"], &placed["tokens"]), (&"standard".into(), &100.into()));
        explained.push(!placed["words"].as_array().unwrap().is_empty());
    }
    let most = 50 * (usize::try_from(started.elapsed().as_secs()).unwrap() + 1);
    let count = explained.iter().filter(|is_explained| **is_explained).count();
    assert!(explained[0] && (50..=most).contains(&count), "{count} of {REQUESTS}, at most {most}");
}

#[tokio::test]
async fn by_bytes_the_text_is_read_only_for_those_who_look() {
    let stream = Backend::start(sse(2, &opened())).await;
    let folder = tempfile::tempdir().unwrap();
    let log = format!("{{ format: json, path: \"{}\" }}", folder.path().join("access.log").display());
    for policy in ["reference_bucket", "reference_plain"] {
        let setup = Setup::one_group([&stream]).section("policy", &format!("{{ kind: {policy} }}"));
        let setup = setup.section("headers", "{ decision: all }");
        let tidegate = Tidegate::start(&setup).await;
        let answer = tidegate.exchange(&post(COMPLETIONS, &body_of(400))).await;
        assert_eq!(answer.head.get("x-tidegate-prompt-tokens"), Some("100"));
        tidegate.finished(1).await;
        let mut watcher = Watcher::start(&tidegate, "").await;
        let unread = watcher.wait_for("recent").await[0].clone();
        // What is known without.
        assert_eq!(
            (&unread["status"], &unread["stream"], &unread["output_tokens"]),
            (&200.into(), &true.into(), &2.into())
        );
        assert_eq!(
            (&unread["estimated_tokens"], &unread["model"]),
            (&100.into(), &Value::Null),
            "a quarter of the bytes"
        );

        tidegate.exchange(&post(COMPLETIONS, &body_of(400))).await;
        let seen = watcher.wait_for("ended").await;
        assert_eq!((&seen["model"], &seen["stream"]), (&"tiny".into(), &false.into()), "what was asked");
        assert_ne!(seen["estimated_tokens"], 100, "by the text");
        drop(watcher);
        tidegate.reload(&setup.section("access_log", &log)).await;
        tidegate.exchange(&post(COMPLETIONS, &body_of(400))).await;
        tidegate.finished(3).await;
        let mut watcher = Watcher::start(&tidegate, "").await;
        assert_eq!(watcher.wait_for("recent").await[2]["model"], "tiny", "the access log has it");
    }
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_the_events_until_the_connection_ends() {
    let server = answers().await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = Client::connect(tidegate.admin).await;
    client.send(b"GET /events HTTP/1.0\r\nHost: admin\r\n\r\n").await;
    let head = client.head().await;
    assert_eq!((head.status(), head.get("transfer-encoding")), (200, None));
    let begin = client.body_at_least(20).await;
    assert!(begin.starts_with(b"event: hello\ndata: {"), "{}", String::from_utf8_lossy(&begin));
}

#[tokio::test]
async fn watchers_do_not_hold_up_the_end_and_see_it_come() {
    let gate = Gate::closed();
    let server = Backend::start(sse(1, &gate)).await;
    let setup = Setup::one_group([&server]).section("shutdown", "{ grace: 600s }");
    let mut tidegate = Tidegate::start(&setup).await;
    let mut watcher = Watcher::start(&tidegate, "").await;
    let mut client = tidegate.begin(&post(COMPLETIONS, &body_of(400))).await;
    watcher.wait_for("placed").await;
    tidegate.signal(Signal::SIGTERM);
    while watcher.wait_for("status").await["ready"] == true {}
    gate.open();
    assert_eq!(client.response().await.end, End::Complete);
    watcher.wait_for("ended").await;
    assert!(tidegate.ended().await.success());
    assert_ne!(tokio::time::timeout(PATIENCE, watcher.end()).await, Ok(End::Complete), "cut off");
}

#[tokio::test]
async fn watchers_go_over_to_a_successor() {
    let server = answers().await;
    let setup = Setup::one_group([&server]).section("pingora", "{ threads: 2, upgrade_sock: upgrade.sock }");
    let mut old = Tidegate::start(&setup).await;
    let mut watcher = Watcher::start(&old, "").await;
    let status = watcher.wait_for("status").await;
    let new = old.start_successor();
    old.signal(Signal::SIGQUIT);
    assert_eq!(watcher.end().await, End::Complete);
    assert!(old.ended().await.success());
    let mut watcher = Watcher::start(&new, "").await;
    assert_ne!(watcher.wait_for("status").await["start_time_seconds"], status["start_time_seconds"]);
}
