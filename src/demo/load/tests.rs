//! What the load sends, and that it does so over sockets.

use std::num::NonZeroU64;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::*;
use crate::simulate::LONG_FROM_TOKENS;

#[test]
fn prompts_come_as_fast_as_is_wanted_and_go_on_after_a_round() {
    let mut arrivals = Arrivals::new(8_000.0);
    let (mut tokens, mut last_s, count) = (0, 0.0, 20 * REQUESTS_PER_ROUND as u64);
    for number in 1..=count {
        let (given, at_s, job) = arrivals.next();
        assert!(given == number && at_s >= last_s, "{number} comes at {at_s} after {last_s}");
        last_s = at_s;
        tokens += job.prompt_tokens;
    }
    let rate = as_f64(tokens) / last_s;
    assert!((7_200.0..8_800.0).contains(&rate), "{rate}");
}

#[test]
fn a_newcomer_soon_sees_long_prompts_that_meet() {
    let settings = DemoSettings::default();
    let load = Load::new(([127, 0, 0, 1], 1).into(), 2, &settings);
    let mut arrivals = Arrivals::new(load.tokens_per_second);
    let mut long = Vec::new();
    loop {
        let (_, at_s, job) = arrivals.next();
        if at_s > 20.0 {
            break;
        }
        if job.prompt_tokens >= LONG_FROM_TOKENS {
            let prompt_tokens = load.cut(&job).prompt_tokens;
            long.push((at_s, at_s + as_f64(prompt_tokens) / as_f64(settings.prefill_tokens_per_second.get())));
        }
    }
    assert!(long.windows(2).any(|pair| pair[1].0 < pair[0].1), "one comes while another is prefilled: {long:?}");
}

#[test]
fn a_request_asks_for_what_the_job_generates() {
    let job = Job::new(0.0, 500, 17);
    let request = String::from_utf8(client::chat("demo", 3, &job)).unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["messages"][0]["content"].as_str().unwrap().len(), 2_000);
    assert_eq!((body["max_tokens"].as_u64(), body["ignore_eos"].as_bool()), (Some(17), Some(true)));
    assert_eq!(body["stream"], true);
}

/// Reads the whole request of one client, then sends these pieces and closes.
async fn seen_of(pieces: &[&str]) -> (Result<(), String>, bool) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let to = listener.local_addr().unwrap();
    let request = client::chat("demo", 1, &Job::new(0.0, 10, 1));
    let serve = async {
        let (mut connection, _) = listener.accept().await.unwrap();
        connection.read_exact(&mut vec![0; request.len()]).await.unwrap();
        for piece in pieces {
            connection.write_all(piece.as_bytes()).await.unwrap();
        }
    };
    let mut has_begun = false;
    let (answer, ()) = tokio::join!(client::exchange(to, &request, || has_begun = true), serve);
    (answer.map_err(|failure| failure.to_string()), has_begun)
}

#[tokio::test]
async fn an_answer_is_whole_when_its_stream_says_so() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";
    let refused = "HTTP/1.1 503 Service Unavailable\r\n\r\n{}";
    let long = format!("data: {}\n\n", "x".repeat(10_000));
    let no_stream = |status: &str| (Err(format!("answered \"{status}\" instead of a stream")), false);
    for (pieces, expected) in [
        (vec![HEAD, "data: 1\n\n", &long, "data: [DO", "NE]\n\n", "0\r\n\r\n"], (Ok(()), true)),
        (vec![HEAD, "data: 1\n\n", &long], (Err("the stream broke off".into()), true)),
        (vec![refused], no_stream("HTTP/1.1 503 Service Unavailable")),
        (vec!["HTTP/1.1 500 x\r\n\r\ndata: 1\n\n"], no_stream("HTTP/1.1 500 x")),
        (vec![HEAD], no_stream("HTTP/1.1 200 OK")),
        (vec![], no_stream("")),
    ] {
        assert_eq!(seen_of(&pieces).await, expected, "{pieces:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_reached_is_waited_for_until_the_end() {
    let nobody = TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
    let settings = DemoSettings { prefill_tokens_per_second: NonZeroU64::MAX, ..DemoSettings::default() };
    let load = Load::new(nobody, 1, &settings);
    let (stop, stopped) = oneshot::channel();
    stop.send(()).unwrap();
    load.run(async { stopped.await.unwrap() }).await;
    assert_eq!(load.answers(), Answers::default());
}
