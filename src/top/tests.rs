//! What is drawn for what happens, on a terminal that is a buffer.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::*;

fn status() -> Value {
    let server = |name: &str, in_flight: u64, load: f64, health: &str| {
        json!({
            "name": name, "load_tokens": load, "in_flight": in_flight, "health": health, "health_reason": "connect",
            "health_for_seconds": 12.0, "ejections": u64::from(health == "out"), "draining": false, "drained": false,
        })
    };
    json!({
        "version": "0.1.0", "uptime_seconds": 200.0, "ready": true,
        "policy": { "name": "reference_bucket", "buckets": [{ "to_tokens": 32_768 }, { "to_tokens": 131_072 }],
                    "by_work": null },
        "groups": [
            { "name": "short", "load_tokens": 400.0, "in_flight": 3, "waiting": 0,
              "servers": [server("gpu-1", 3, 400.0, "healthy"), server("gpu-2", 0, 0.0, "out")] },
            { "name": "long", "load_tokens": 66_000.0, "in_flight": 1, "waiting": 2,
              "servers": [server("gpu-3", 1, 66_000.0, "healthy")] },
        ],
        "work": null,
        "totals": { "requests": { "complete": 7, "client_gone": 1, "upstream_broken": 0, "rejected": 2 },
                    "redirects": 4, "retries": 0 },
    })
}

fn event(name: &str, data: &Value) -> News {
    News::Event(name.to_owned(), data.to_string())
}

fn placed(id: &str, tokens: u64, group: &str) -> News {
    event(
        "placed",
        &json!({ "event": "placed", "request_id": id, "attempt": 1, "tokens": tokens, "standard_group": "short",
                 "group": group, "server": "gpu-3", "reason": "redirected", "waited_s": 0.0 }),
    )
}

fn ended(id: &str, tokens: u64, ttft_s: f64) -> Value {
    json!({ "event": "ended", "version": 1, "time": "2026-11-30T02:00:00.000000Z", "request_id": id, "server": "gpu-3",
            "endpoint": "/v1/completions", "estimated_tokens": tokens, "group": "long", "status": 200,
            "reason": "standard", "ttft_s": ttft_s, "duration_s": 2.0, "end": "complete" })
}

fn known() -> Known {
    let mut known = Known::new("127.0.0.1:9400".to_owned());
    known.take(event("status", &status()), Instant::now());
    known
}

fn drawn(known: &mut Known) -> String {
    let mut terminal = Terminal::new(TestBackend::new(110, 30)).unwrap();
    terminal.draw(|frame| view::draw(frame, known, Instant::now())).unwrap();
    terminal.backend().to_string()
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

#[test]
fn groups_servers_and_what_they_do_are_shown() {
    let drawn = drawn(&mut known());
    let text = drawn.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "Tidegate 0.1.0 · policy reference bucket · up 3 min · 127.0.0.1:9400 ● live",
        "≈ short",
        "● gpu-1",
        "✕ gpu-2",
        "out: connect, 12 s · ejected 1x",
        "██████████████████ 1 66k healthy",
        "2 waiting",
        "7 complete, 4 crossed, 0 retried",
        "1 left, 0 broken, 2 rejected",
    ] {
        assert!(text.contains(part), "{part} is not in\n{drawn}");
    }
}

#[test]
fn decisions_are_shown_and_become_figures_when_they_end() {
    let mut known = known();
    let now = Instant::now();
    for id in ["a", "b"] {
        known.take(placed(id, 1_000, "long"), now);
    }
    let text = drawn(&mut known);
    assert!(text.contains("short → long redirected") && text.contains("1.0k gpu-3"), "{text}");
    for (id, ttft_s) in [("a", 0.2), ("b", 0.4)] {
        known.take(event("ended", &ended(id, 1_000, ttft_s)), now);
    }
    known.take(event("recent", &json!([ended("b", 1_000, 0.4)])), now);
    let ttft = known.ttft();
    assert_eq!((ttft[0].answers, ttft[0].p50_s, ttft[0].p99_s), (2, Some(0.2), Some(0.4)));
    assert_eq!((ttft[1].answers, ttft[1].p50_s), (0, None));
    let text = drawn(&mut known);
    assert!(text.contains("first token 200 ms, 2.0 s in all"), "{text}");
    assert!(text.contains("● short below 33k"), "{text}");
}

#[test]
fn what_was_before_is_as_old_as_it_is() {
    let mut known = known();
    let now = Instant::now();
    known.take(event("recent", &json!([ended("long ago", 40_000, 9.0)])), now);
    assert_eq!(known.ttft()[1].answers, 0, "it is older than the window");
    assert_eq!(known.decisions.len(), 1);
}

#[test]
fn a_server_is_drained_after_a_question_only() {
    let mut known = known();
    assert_eq!(pressed(key(KeyCode::Down), &mut known), Pressed::Nothing);
    assert_eq!(pressed(key(KeyCode::Char('d')), &mut known), Pressed::Nothing);
    assert!(drawn(&mut known).contains("Drain gpu-2? It gives it nothing new."));
    assert_eq!(pressed(key(KeyCode::Char('q')), &mut known), Pressed::Nothing, "no, and no end");
    assert_eq!(pressed(key(KeyCode::Char('y')), &mut known), Pressed::Nothing, "nothing is asked");
    pressed(key(KeyCode::Char('u')), &mut known);
    let wish = Wish { server: "gpu-2".to_owned(), is_drain: false };
    assert_eq!(pressed(key(KeyCode::Char('y')), &mut known), Pressed::Change(wish));
    assert!(!known.asks());
    for _ in 0..9 {
        pressed(key(KeyCode::Char('j')), &mut known);
    }
    assert_eq!(known.selected, 2, "the last one");
    assert_eq!(pressed(key(KeyCode::Char('q')), &mut known), Pressed::Quit);
}

#[test]
fn a_lost_connection_is_shown_until_there_is_a_status_again() {
    let mut known = known();
    known.take(News::Lost("refused".to_owned()), Instant::now());
    assert!(drawn(&mut known).contains("✕ not connected, trying again: refused"));
    known.take(event("status", &status()), Instant::now());
    assert!(drawn(&mut known).contains("● live"));
}

#[test]
fn long_is_what_the_policy_by_work_takes_for_long() {
    let mut status = status();
    status["policy"] = json!({ "name": "lanes", "buckets": [], "by_work": { "long_from_tokens": null } });
    let engine = json!({ "microseconds_per_token": 100.0, "nanoseconds_per_token_pair": 0.0, "floor_seconds": 0.0 });
    status["work"] = json!({ "lanes": ["gpu-3"], "held": 3, "held_for_seconds": 4.0, "long_from_prefill_seconds": 2.0,
                             "engines": [engine] });
    let mut known = known();
    known.take(event("status", &status), Instant::now());
    assert_eq!(known.classes()[0].below, Some(20_000));
    let text = drawn(&mut known);
    assert!(text.contains("3 waiting, the oldest for 4.0 s") && text.contains("lane · healthy"), "{text}");
}
