//! Load is given back exactly once, however a request ends, and the server is told when the client has left.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
/// How soon a server must see that the client has left.
const SOON: Duration = Duration::from_secs(2);

/// How a client leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leave {
    Close,
    Reset,
    HalfClose,
}

impl Leave {
    const ALL: [Self; 3] = [Self::Close, Self::Reset, Self::HalfClose];

    async fn apply(self, mut client: Client) {
        match self {
            Self::Close => client.close(),
            Self::Reset => client.reset(),
            Self::HalfClose => {
                client.half_close().await;
                client.closed().await;
            }
        }
    }
}

/// Waits until the servers saw the given number of connections closed in all and nothing is counted any more.
async fn all_returned(tidegate: &Tidegate, servers: &[&Backend], closed: usize) {
    until_within(SOON, "the servers see their connections closed", async || {
        servers.iter().map(|server| server.ends().len()).sum::<usize>() >= closed
    })
    .await;
    tidegate.idle().await;
}

fn total(servers: &[&Backend]) -> usize {
    servers.iter().map(|server| server.count()).sum()
}

// B01
#[tokio::test]
async fn clients_that_leave_before_the_header_give_their_load_back() {
    let gate = Gate::closed();
    let s0 = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let s1 = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let servers = [&s0, &s1];
    let tidegate = Tidegate::start(&Setup::one_group(servers)).await;
    let mut gone = 0;
    for leave in [Leave::Close, Leave::Reset] {
        for at_once in [20, 20, 10] {
            let mut clients = Vec::new();
            for _ in 0..at_once {
                clients.push(tidegate.begin(&post(CHAT, &body_of(200))).await);
            }
            gone += at_once;
            until("the servers have the requests", async || total(&servers) == gone).await;
            assert_eq!(tidegate.load("all").await, f64::from(u32::try_from(at_once).unwrap()) * 50.0);
            for client in clients {
                leave.apply(client).await;
            }
            all_returned(&tidegate, &servers, gone).await;
        }
    }
    assert_eq!(total(&servers), 100, "nothing was tried again");
    gate.open();
    assert_eq!(tidegate.exchange(&post(CHAT, &body_of(200))).await.status(), 200);
    tidegate.finished(101).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"client_gone\""]).await, 100.0);
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"complete\""]).await, 1.0);
}

// B02
#[tokio::test]
async fn a_stream_counts_until_its_last_byte() {
    let gate = Gate::closed();
    let s0 = Backend::start(sse(2, &gate)).await;
    let s1 = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1])).await;
    let mut stream = tidegate.begin(&post(CHAT, &body_of(40_000))).await;
    gate.admit(1);
    stream.head().await;
    stream.body_bytes(sse_event(0).len()).await;
    for _ in 0..4 {
        assert_eq!(tidegate.load(&s0.name()).await, 10_000.0);
        assert_eq!(tidegate.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    }
    assert_eq!((s0.count(), s1.count()), (1, 4));
    until("only the stream is counted", async || tidegate.load("all").await == 10_000.0).await;
    gate.admit(1);
    assert_eq!(stream.rest().await.1, End::Complete);
    tidegate.idle().await;
}

#[tokio::test]
async fn clients_that_leave_in_mid_stream_give_their_load_back() {
    let gate = Gate::closed();
    let server = Backend::start(sse(1_000, &gate)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for (number, leave) in Leave::ALL.into_iter().enumerate() {
        let mut client = tidegate.begin(&post(CHAT, &body_of(400))).await;
        gate.admit(1);
        client.head().await;
        client.body_bytes(sse_event(0).len()).await;
        assert_eq!(tidegate.load("all").await, 100.0, "{leave:?}");
        leave.apply(client).await;
        all_returned(&tidegate, &[&server], number + 1).await;
    }
    tidegate.finished(3).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"client_gone\""]).await, 3.0);
}

#[tokio::test]
async fn clients_that_leave_over_h2c_give_their_load_back() {
    let gate = Gate::closed();
    let server = Backend::start(sse(1_000, &gate)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let client = H2Client::connect(tidegate.address).await;
    gate.admit(1);
    let mut stream = client.begin(CHAT, &body_of(400)).await;
    assert_eq!(stream.body_mut().data().await.unwrap().unwrap(), sse_event(0).as_bytes());
    assert_eq!(tidegate.load("all").await, 100.0);
    // Dropping the stream resets it; the connection stays.
    drop(stream);
    all_returned(&tidegate, &[&server], 1).await;
    // A stream that waits for its header.
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.post(CHAT, &body_of(400)).await }
    });
    server.whole_requests(2).await;
    waiting.abort();
    all_returned(&tidegate, &[&server], 2).await;
    // The whole connection.
    gate.admit(1);
    let stream = client.begin(CHAT, &body_of(400)).await;
    drop((client, stream));
    all_returned(&tidegate, &[&server], 3).await;
}

#[tokio::test]
async fn clients_that_leave_when_they_have_sent_something_ahead_give_their_load_back() {
    let gate = Gate::closed();
    let server = Backend::start(sse(1_000, &gate)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let next = post(CHAT, &body_of(400));
    for (number, ahead) in [&b"\r\n"[..], b"G", &next[..30], &next[..next.len() - 1], &next].into_iter().enumerate() {
        let mut client = tidegate.begin(&post(CHAT, &body_of(400))).await;
        gate.admit(1);
        client.head().await;
        client.body_bytes(sse_event(0).len()).await;
        client.send(ahead).await;
        assert!(client.is_quiet_for(Duration::from_millis(20)).await, "the stream goes on");
        client.close();
        all_returned(&tidegate, &[&server], number + 1).await;
    }
    assert_eq!(server.count(), 5, "what was sent ahead never began");
}

// B04
#[tokio::test]
async fn a_client_that_leaves_at_the_very_end_is_counted_once() {
    // Each client's time begins when the server has its request: one that left before was not counted at all.
    let arrived: Arc<Vec<Notify>> = Arc::new((0..32 * 63).map(|_| Notify::new()).collect());
    let seen = Arc::clone(&arrived);
    let server = Backend::start(move |mut conn: Conn| {
        let seen = Arc::clone(&seen);
        async move {
            while let Some(request) = conn.request().await {
                let number: usize = request.head.get("x-number").unwrap().parse().unwrap();
                seen[number].notify_one();
                tokio::time::sleep(Duration::from_millis(20)).await;
                let answer = match request.body.last() {
                    Some(b' ') => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n".to_vec(),
                    _ => json_response(200, "{}"),
                };
                if !conn.send(answer).await {
                    return;
                }
            }
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let address = tidegate.address;
    let mut connections = tokio::task::JoinSet::new();
    for connection in 0..32 {
        let arrived = Arc::clone(&arrived);
        connections.spawn(async move {
            for round in 0..63 {
                let number = connection * 63 + round;
                let mut client = Client::connect(address).await;
                let mut body = body_of(200);
                body.extend(if round % 2 == 0 { &b" "[..] } else { b"" });
                client.send(&request("POST", CHAT, &format!("x-number: {number}\r\n"), &body)).await;
                arrived[number].notified().await;
                // Spread evenly over 15 to 25 ms, the same in every run.
                tokio::time::sleep(Duration::from_micros(15_000 + number as u64 * 7_919 % 10_000)).await;
                if round % 3 == 0 { client.reset() } else { client.close() }
            }
        });
    }
    while !connections.is_empty() {
        tidegate.usage().await;
        while connections.try_join_next().transpose().unwrap().is_some() {}
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tidegate.idle().await;
    let count =
        async |outcome: &str| tidegate.metric("tidegate_requests_total", &[&format!("outcome=\"{outcome}\"")]).await;
    let (complete, gone) = (count("complete").await, count("client_gone").await);
    assert_eq!(complete + gone, f64::from(32 * 63), "{}", tidegate.metrics().await);
}

// B08
#[tokio::test]
async fn requests_that_run_on_no_server_do_not_move_its_load() {
    let gate = Gate::closed();
    let s0 = Backend::start(sse(1, &gate)).await;
    let s1 = Backend::start(reply(json_response(404, "{}"))).await;
    let setup = Setup::one_group([&s0, &s1]).section("limits", "{ max_body_size: 1KiB }");
    let tidegate = Tidegate::start(&setup).await;
    let mut stream = tidegate.begin(&post(CHAT, &body_of(444))).await;
    s0.whole_requests(1).await;
    let mut client = tidegate.client().await;
    let others = [
        post(CHAT, b"{no json"),
        post(CHAT, b""),
        post("/unknown", b"{}"),
        request("DELETE", CHAT, "", b""),
        get("/healthcheck"),
        get("/metrics"),
    ];
    for other in &others {
        for _ in 0..100 {
            client.exchange(other).await;
        }
        assert_eq!(tidegate.load(&s0.name()).await, 111.0);
    }
    for _ in 0..100 {
        assert_refusal(&tidegate.exchange(&post(CHAT, &body_of(1_025))).await, 413);
        assert_eq!(tidegate.load("all").await, 111.0);
    }
    gate.open();
    assert_eq!(stream.response().await.end, End::Complete);
    tidegate.idle().await;

    let down = Tidegate::start(&Setup::one_group([closed_address(), closed_address()])).await;
    for _ in 0..100 {
        assert_refusal(&down.exchange(&post(CHAT, &body_of(444))).await, 502);
    }
    down.idle().await;
}

// B39
#[tokio::test]
async fn cancelled_plain_requests_reach_the_server_at_once() {
    let (s0, s1) = (Backend::start(silent()).await, Backend::start(silent()).await);
    let tidegate = Tidegate::start(&Setup::one_group([&s0, &s1])).await;
    for (round, leave) in Leave::ALL.into_iter().enumerate() {
        let mut clients = Vec::new();
        for _ in 0..20 {
            clients.push(tidegate.begin(&post(CHAT, &body_of(200))).await);
        }
        let so_far = 20 * (round + 1);
        until("the servers have the requests", async || total(&[&s0, &s1]) == so_far).await;
        for client in clients {
            leave.apply(client).await;
        }
        all_returned(&tidegate, &[&s0, &s1], so_far).await;
    }
    assert_eq!(total(&[&s0, &s1]), 60, "nothing was tried again");
    tidegate.finished(60).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"client_gone\""]).await, 60.0);
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"upstream_broken\""]).await, 0.0);
}

// B39
#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_a_plain_response_frees_the_server() {
    let server = Backend::start(async |mut conn: Conn| {
        conn.request().await;
        conn.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await;
        conn.send(vec![b'x'; 500_000]).await;
        conn.closed().await;
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for (number, leave) in Leave::ALL.into_iter().enumerate() {
        let mut client = tidegate.begin(&post(CHAT, &body_of(200))).await;
        client.head().await;
        client.body_at_least(500_000).await;
        leave.apply(client).await;
        all_returned(&tidegate, &[&server], number + 1).await;
    }
    tidegate.finished(3).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"client_gone\""]).await, 3.0);
}

// B40
#[tokio::test]
async fn no_attempt_starts_after_the_client_has_left() {
    let (s0, s1) = (Backend::start(reply(json_response(503, "{}"))).await, Backend::start(echo()).await);
    let setup = Setup::one_group([&s0, &s1]).section("retry", "{ max_attempts: 3, base_delay: 2s, max_delay: 2s }");
    let tidegate = Tidegate::start(&setup).await;
    let client = tidegate.begin(&post(CHAT, &body_of(200))).await;
    s0.whole_requests(1).await;
    client.close();
    tidegate.idle().await;
    // Longer than the pause before the next attempt would have been.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!((s0.count(), s1.connections()), (1, 0));
    tidegate.finished(1).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"client_gone\""]).await, 1.0);
}

// B40
#[tokio::test]
async fn a_client_that_leaves_while_a_server_is_being_connected_is_noticed_at_once() {
    // One drops what is sent to it, the other lets connections be made and is silent when TLS is to be agreed on.
    let (hole, silent) = (BlackHole::new().await, TcpListener::bind((Loopback::new().ip(), 0)).await.unwrap());
    let hole_address = hole.address().to_yaml();
    let silent_address =
        format!("{{ address: \"https://{}\", tls: {{ insecure: true }} }}", silent.local_addr().unwrap());
    for (address, has_tls) in [(hole_address, false), (silent_address, true)] {
        let other = Backend::start(echo()).await;
        let setup = Setup::one_group([address, other.address().to_yaml()]).section("timeouts", "{ connect: 60s }");
        let tidegate = Tidegate::start(&setup).await;
        let mut gone = 0.0;
        let mut all_is_over = async || {
            until_within(SOON, "nothing is counted", async || tidegate.load("all").await == 0.0).await;
            tidegate.idle().await;
            if has_tls {
                let (mut connection, _) = silent.accept().await.unwrap();
                let mut sent = Vec::new();
                let read = tokio::time::timeout(SOON, connection.read_to_end(&mut sent)).await;
                assert!(matches!(read, Ok(Ok(_))), "the server's connection is closed: {read:?}");
            }
            gone += 1.0;
            until("the request is counted as given up", async || {
                tidegate.metric("tidegate_requests_total", &["outcome=\"client_gone\""]).await == gone
            })
            .await;
        };
        let is_counted = async || until("the request is counted", async || tidegate.load("all").await > 0.0).await;
        for leave in Leave::ALL {
            let client = tidegate.begin(&post(CHAT, &body_of(200))).await;
            is_counted().await;
            leave.apply(client).await;
            all_is_over().await;
        }
        // A client that has sent the beginning of its next request.
        let client = tidegate.begin(&[&post(CHAT, &body_of(200))[..], b"GET"].concat()).await;
        is_counted().await;
        client.close();
        all_is_over().await;
        // One stream of a connection that stays.
        let client = H2Client::connect(tidegate.address).await;
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.post(CHAT, &body_of(400)).await }
        });
        is_counted().await;
        waiting.abort();
        all_is_over().await;
        assert_eq!(other.connections(), 0, "no attempt starts after the client has left");
        let health = tidegate.status().await["groups"][0]["servers"][0]["health"].clone();
        assert_eq!(health, "healthy", "the server is not at fault");
    }
}

#[tokio::test]
async fn the_total_time_counts_while_a_server_is_being_connected() {
    let hole = BlackHole::new().await;
    let setup = Setup::one_group([hole.address()]).section("timeouts", "{ connect: 60s, total: 1s }");
    let tidegate = Tidegate::start(&setup).await;
    assert_refusal(&tidegate.exchange(&post(CHAT, &body_of(200))).await, 504);
    tidegate.idle().await;
}
