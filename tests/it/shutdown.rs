//! The end of the process: SIGTERM, SIGINT, and what still runs.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tokio::net::TcpStream;

use crate::support::*;

/// Longer than a test waits: an end that comes in time did not wait for it.
const LONG: &str = "600s";

fn setup(server: &Backend, shutdown: &str) -> Setup {
    Setup::one_group([server]).section("shutdown", shutdown)
}

/// Waits until no new client gets in.
async fn closed_to_clients(tidegate: &Tidegate) {
    until("new connections are refused", async || TcpStream::connect(tidegate.address).await.is_err()).await;
}

// B73
#[tokio::test]
async fn an_idle_program_ends_at_once_whatever_its_grace() {
    let server = Backend::start(echo()).await;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        for shutdown in ["{}", "{ grace: 0s }", "{ grace: 3s }", "{ grace: 600s }"] {
            let mut tidegate = Tidegate::start(&setup(&server, shutdown)).await;
            tidegate.signal(signal);
            assert!(tidegate.ended().await.success(), "{signal} {shutdown}");
            assert!(TcpStream::connect(tidegate.address).await.is_err());
        }
    }
}

// B73
#[tokio::test]
async fn idle_connections_do_not_hold_up_the_end() {
    let server = Backend::start(echo()).await;
    let mut tidegate = Tidegate::start(&setup(&server, &format!("{{ grace: {LONG} }}"))).await;
    let mut kept = tidegate.client().await;
    assert_eq!(kept.exchange(&post("/v1/completions", b"{}")).await.status(), 200);
    let mut fresh = tidegate.client().await;
    let http2 = H2Client::connect(tidegate.address).await;
    assert_eq!(http2.post("/v1/completions", b"{}").await.status(), 200);

    assert!(tidegate.terminate().await.success());
    for client in [&mut kept, &mut fresh] {
        assert_eq!(client.closed().await, (Vec::new(), End::Truncated));
    }
}

/// Clients have a second to begin a request when no new ones are let in (`LAST_CALL`); a busy machine may take longer to
/// send it.
const IN_TIME: Duration = Duration::from_millis(800);

#[tokio::test]
async fn a_request_that_crosses_with_the_end_is_served() {
    let server = Backend::start(echo()).await;
    let request = post("/v1/completions", b"{}");
    for _ in 0..10 {
        let mut tidegate = Tidegate::start(&setup(&server, &format!("{{ grace: {LONG} }}"))).await;
        // Half a header: this one is being read.
        let mut fresh = tidegate.begin(&request[..20]).await;
        let mut kept = tidegate.client().await;
        assert_eq!(kept.exchange(&request).await.status(), 200);
        let begun = Instant::now();
        tidegate.signal(Signal::SIGTERM);
        closed_to_clients(&tidegate).await;
        fresh.send(&request[20..]).await;
        kept.send(&request).await;
        if begun.elapsed() > IN_TIME {
            continue;
        }
        for client in [&mut kept, &mut fresh] {
            let response = client.response().await;
            assert_eq!((response.status(), response.head.get("connection")), (200, Some("close")));
        }
        assert!(tidegate.ended().await.success());
        return;
    }
    panic!("this machine is too slow to tell");
}

// B72
#[tokio::test]
async fn running_requests_complete_and_the_end_comes_with_the_last_one() {
    let gate = Gate::closed();
    let server = Backend::start(sse_held(&gate)).await;
    let slow = Gate::closed();
    let slow_server = Backend::start(hold(&slow, json_response(200, r#"{"slow":true}"#))).await;
    let setup = Setup::two_groups([&server], [&slow_server]).section("shutdown", &format!("{{ grace: {LONG} }}"));
    // No request crosses.
    let setup = setup.section("policy", "{ kind: reference_bucket, redirect_threshold: 1 }");
    let mut tidegate = Tidegate::start(&setup).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(tidegate.begin(&post("/v1/completions", b"{}")).await);
    }
    let http2 = H2Client::connect(tidegate.address).await;
    let over_http2 = tokio::spawn(async move { http2.post("/v1/completions", b"{}").await });
    let mut plain = tidegate.begin(&post("/v1/completions", &body_of(200_000))).await;
    for stream in &mut streams {
        assert_eq!(stream.head().await.status(), 200);
    }
    server.whole_requests(4).await;
    slow_server.requests(1).await;
    let mut uploading = tidegate.client().await;
    let whole = post("/v1/completions", &body_of(200_000));
    uploading.send(&whole[..whole.len() / 2]).await;

    tidegate.signal(Signal::SIGTERM);
    closed_to_clients(&tidegate).await;
    uploading.send(&whole[whole.len() / 2..]).await;
    slow_server.requests(2).await;
    gate.open();
    slow.open();
    for stream in &mut streams {
        stream.whole_stream().await;
    }
    let response = over_http2.await.unwrap();
    assert_eq!((response.status(), &response.end), (200, &End::Complete));
    assert!(response.text().ends_with("data: [DONE]\n\n"));
    for client in [&mut plain, &mut uploading] {
        let response = client.response().await;
        assert_eq!((response.status(), response.head.get("connection")), (200, Some("close")));
    }
    assert!(tidegate.ended().await.success());
    assert!(tidegate.stderr().contains("stopped: all requests were finished"), "{}", tidegate.stderr());
}

// B72
#[tokio::test]
async fn a_stream_without_end_is_cut_at_the_grace_limit_for_all_to_see() {
    let gate = Gate::closed();
    let server = Backend::start(sse_held(&gate)).await;
    let mut tidegate = Tidegate::start(&setup(&server, "{ grace: 1s }")).await;
    let mut http1 = tidegate.begin(&post("/v1/completions", b"{}")).await;
    let http2 = H2Client::connect(tidegate.address).await;
    assert_eq!(http1.head().await.status(), 200);
    let mut over_http2 = http2.begin("/v1/completions", b"{}").await.into_body();
    over_http2.data().await.unwrap().unwrap();

    assert!(tidegate.terminate().await.success());
    let (body, end) = http1.rest().await;
    assert_eq!((String::from_utf8(body).unwrap(), end), (sse_event(0), End::Truncated));
    assert!(over_http2.data().await.is_some_and(|piece| piece.is_err()), "the end of a stream is not clean");
    assert!(tidegate.stderr().contains("stopped: 2 running requests were cut off"), "{}", tidegate.stderr());
}

// B73
#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let server = Backend::start(silent()).await;
    for second in [Signal::SIGTERM, Signal::SIGINT] {
        for (shutdown, first_word) in
            [("{ delay: 600s, grace: 600s }", "new clients for 600s"), ("{ grace: 600s }", "600s for what runs")]
        {
            let mut tidegate = Tidegate::start(&setup(&server, shutdown)).await;
            server.forget();
            let mut client = tidegate.begin(&post("/v1/completions", b"{}")).await;
            server.requests(1).await;
            tidegate.signal(Signal::SIGTERM);
            tidegate.logs(first_word).await;
            tidegate.signal(second);
            assert!(tidegate.ended().await.success(), "{second} {shutdown}");
            assert_eq!(client.closed().await, (Vec::new(), End::Truncated));
        }
    }
}

#[tokio::test]
async fn readiness_goes_first_and_clients_are_still_served_during_the_delay() {
    let server = Backend::start(echo()).await;
    let mut tidegate = Tidegate::start(&setup(&server, "{ delay: 600s }")).await;
    let admin = async |path: &str| {
        let response = Client::connect(tidegate.admin).await.exchange(&get(path)).await;
        (response.status(), response.text())
    };
    assert_eq!(admin("/readyz").await, (200, "ok\n".to_owned()));
    let mut kept = tidegate.client().await;
    let response = kept.exchange(&get("/healthcheck")).await;
    assert_eq!(response.text(), r#"{"status":"ok","server_instances":1}"#);

    tidegate.signal(Signal::SIGTERM);
    until("it is not ready", async || admin("/readyz").await == (503, "stopping\n".to_owned())).await;
    assert_eq!(admin("/healthz").await, (200, "ok\n".to_owned()));
    let response = tidegate.exchange(&get("/healthcheck")).await;
    assert_eq!((response.status(), response.text().as_str()), (503, r#"{"status":"stopping","server_instances":1}"#));

    // Kept connections are told to go elsewhere, new ones as well.
    for mut client in [kept, tidegate.client().await] {
        let response = client.exchange(&post("/v1/completions", b"{}")).await;
        assert_eq!((response.status(), response.head.get("connection")), (200, Some("close")));
        assert_eq!(client.closed().await, (Vec::new(), End::Truncated));
    }
    assert!(tidegate.terminate().await.success());
}

#[tokio::test]
async fn the_listener_closes_after_the_delay_and_the_admin_listener_with_the_process() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let mut tidegate = Tidegate::start(&setup(&server, &format!("{{ delay: 1s, grace: {LONG} }}"))).await;
    let mut running = tidegate.begin(&post("/v1/completions", b"{}")).await;
    server.requests(1).await;
    tidegate.signal(Signal::SIGTERM);
    tidegate.logs("SIGTERM").await;
    closed_to_clients(&tidegate).await;
    assert_eq!(tidegate.usage().await["all"].in_flight, 1);
    gate.open();
    assert_eq!(running.response().await.status(), 200);
    assert!(tidegate.ended().await.success());
}
