//! Connections: reuse towards the servers, upgrades, pipelining, HTTP/1.0 and h2c.

use std::time::Duration;

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

// B78 a, with times a tenth of vLLM's
#[tokio::test]
async fn a_server_that_closes_idle_connections_just_as_they_are_used_again_costs_no_request() {
    let server = Backend::start(async |mut conn: Conn| {
        loop {
            match tokio::time::timeout(Duration::from_millis(500), conn.request()).await {
                Ok(Some(_)) => drop(conn.send(json_response(200, "{}")).await),
                Ok(None) => return,
                Err(_idle) => return conn.finish().await,
            }
        }
    })
    .await;
    // Tidegate would keep them longer, so that the server's close wins the race.
    let setup = Setup::one_group([&server]).section("timeouts", "{ server_keepalive: 30s }");
    let tidegate = Tidegate::start(&setup).await;
    let address = tidegate.address;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..20_u64 {
        clients.spawn(async move {
            let mut connection = Client::connect(address).await;
            for round in 0..10_u64 {
                let response = connection.exchange(&post(CHAT, &body_of(100))).await;
                assert_eq!(response.status(), 200, "{}", response.text());
                tokio::time::sleep(Duration::from_millis(490 + (client * 10 + round) * 7 % 21)).await;
            }
        });
    }
    clients.join_all().await;
    let answered = server.received().iter().filter(|request| request.end == Some(End::Complete)).count();
    assert_eq!(answered, 200, "each is delivered once");
    tidegate.idle().await;
}

// B78 b, e
#[tokio::test]
async fn a_server_that_closes_right_after_an_answer_costs_no_request() {
    let server = Backend::start(reply_then_close(json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for _ in 0..200 {
        assert_eq!(client.exchange(&post(CHAT, &body_of(100))).await.status(), 200);
    }
    for _ in 0..50 {
        assert_eq!(client.exchange(b"HEAD /version HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 200);
    }
    assert_eq!(server.count(), 250, "each is delivered once");
}

// B78 c
#[tokio::test]
async fn a_used_connection_that_resets_is_replaced_by_a_fresh_one() {
    let server = Backend::start(async |mut conn: Conn| {
        conn.request().await;
        conn.send(json_response(200, "{}")).await;
        if conn.request().await.is_some() {
            conn.reset();
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for served in [1, 3] {
        assert_eq!(tidegate.exchange(&post(CHAT, &body_of(70_000))).await.status(), 200);
        assert_eq!(server.count(), served);
        tidegate.idle().await;
    }
    assert_eq!(server.received()[2].body, body_of(70_000));
    assert_eq!(server.connections(), 2);
    tidegate.idle().await;
}

// B78 d
#[tokio::test]
async fn stray_bytes_behind_an_answer_reach_nobody() {
    let stray = json_response(400, "\"stray\"");
    for late in [false, true] {
        let stray = stray.clone();
        let server = Backend::start(move |mut conn: Conn| {
            let stray = stray.clone();
            async move {
                while conn.request().await.is_some() {
                    let answer = json_response(200, "\"own\"");
                    if late {
                        conn.send(answer).await;
                        tokio::time::sleep(Duration::from_millis(30)).await;
                        conn.send(&stray).await;
                    } else {
                        conn.send([answer, stray.clone()].concat()).await;
                    }
                }
            }
        })
        .await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        let mut client = tidegate.client().await;
        for number in 0..5 {
            let response = client.exchange(&post(CHAT, &body_of(100))).await;
            assert_eq!(
                (response.status(), response.text().as_str()),
                (200, "\"own\""),
                "request {number}, late: {late}"
            );
            if late {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        assert_eq!(server.connections(), 5, "a connection with stray bytes is dropped");
        assert!(client.is_quiet_for(Duration::from_millis(100)).await);
    }
}

const OFFER: &str =
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n";

fn is_plain(request: &Received) {
    assert_eq!(request.end, Some(End::Complete));
    for name in ["upgrade", "http2-settings", "connection"] {
        assert_eq!(request.head.get(name), None, "{name} reached the server");
    }
}

// B79 a-c
#[tokio::test]
async fn an_offer_to_upgrade_to_h2c_is_passed_over() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let body = body_of(5_000);
    let with_length = request("POST", CHAT, OFFER, &body);
    let mut in_chunks = chunked(CHAT, &body, 700);
    let line = in_chunks.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
    in_chunks.splice(line..line, OFFER.bytes());
    for (bytes, pause) in [(&with_length, 0), (&with_length, 200), (&in_chunks, 0)] {
        let mut client = tidegate.client().await;
        let (head, rest) = bytes.split_at(bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4);
        if pause == 0 {
            client.send(bytes).await;
        } else {
            client.send(head).await;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            client.send(rest).await;
        }
        let response = client.response().await;
        assert_eq!(response.json()["sha256"], sha256(&body));
    }
    server.received().iter().for_each(is_plain);
    assert_eq!(server.count(), 3);
}

// B79 d
#[tokio::test]
async fn a_request_behind_an_offer_to_upgrade_is_a_request_of_its_own() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    client.send(&[request("POST", CHAT, OFFER, b"one"), post("/tokenize", b"second")].concat()).await;
    assert_eq!(client.response().await.json()["length"], 3);
    assert_eq!(client.response().await.json()["length"], 6);
    server.received().iter().for_each(is_plain);
}

const WEBSOCKET: &[u8] = b"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                           Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";

// B79
#[tokio::test]
async fn a_websocket_is_not_offered_to_the_server() {
    let server = Backend::start(reply(json_response(426, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for _ in 0..2 {
        let response = client.exchange(WEBSOCKET).await;
        assert_eq!((response.status(), response.text().as_str(), response.end), (426, "{}", End::Complete));
    }
    for request in server.received() {
        assert_eq!(request.head.get("upgrade"), None);
        assert_eq!(request.head.get("connection"), None);
    }
    tidegate.idle().await;
}

// B79
#[tokio::test]
async fn a_server_that_switches_protocols_unasked_gives_502() {
    let server = Backend::start(async |mut conn: Conn| {
        conn.request().await;
        conn.send([SWITCHED, "\u{1}frames"].concat()).await;
        conn.closed().await;
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for request in [post(CHAT, b"{}"), get("/version"), request("POST", CHAT, OFFER, b"{}")] {
        assert_refusal(&tidegate.exchange(&request).await, 502);
    }
    tidegate.idle().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    let requests: Vec<u8> = (1..=5).flat_map(|length| post(CHAT, &vec![b'x'; length])).collect();
    client.send(&requests).await;
    for length in 1..=5 {
        assert_eq!(client.response().await.json()["length"], length);
    }
}

#[tokio::test]
async fn a_connection_is_closed_after_the_response_when_the_client_asks_for_it() {
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.begin(&request("POST", CHAT, "Connection: close\r\n", b"{}")).await;
    let response = client.response().await;
    assert_eq!((response.status(), response.head.get("connection")), (200, Some("close")));
    assert_eq!(client.closed().await, (Vec::new(), End::Truncated));
    tidegate.idle().await;
    assert_eq!(tidegate.exchange(&post(CHAT, b"{}")).await.status(), 200);
    assert_eq!(server.connections(), 1, "the server's connection is kept all the same");
}

#[tokio::test]
async fn the_shortest_request_is_answered() {
    let server = Backend::start(reply(json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    // Shorter than the preface of HTTP/2.
    let mut client = tidegate.begin(b"GET / HTTP/1.0\r\n\r\n").await;
    let response = client.response_within(Duration::from_secs(5)).await.expect("an answer comes").unwrap();
    assert_eq!((response.status(), response.text().as_str()), (200, "{}"));
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_chunks() {
    let gate = Gate::closed();
    gate.open();
    let server = Backend::start(sse(2, &gate)).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    for keep_alive in ["", "Connection: keep-alive\r\n"] {
        let head = format!("POST {CHAT} HTTP/1.0\r\nHost: a\r\n{keep_alive}Content-Length: 2\r\n\r\n{{}}");
        let response = tidegate.exchange(head.as_bytes()).await;
        assert_eq!((response.status(), response.head.get("transfer-encoding")), (200, None));
        assert_eq!(response.text(), format!("{}{}data: [DONE]\n\n", sse_event(0), sse_event(1)));
        assert_eq!(response.end, End::Complete);
    }
    assert_eq!(server.received()[0].head.line, format!("POST {CHAT} HTTP/1.1"));
}

#[tokio::test]
async fn h2c_requests_run_side_by_side_on_one_connection() {
    let gate = Gate::closed();
    let server = Backend::start(hold(&gate, json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let client = H2Client::connect(tidegate.address).await;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        running.spawn(async move { client.post(CHAT, &body_of(400)).await });
    }
    server.whole_requests(20).await;
    assert_eq!(tidegate.usage().await["all"], Usage { load_tokens: 2_000.0, in_flight: 20 });
    gate.open();
    for response in running.join_all().await {
        assert_eq!((response.status(), response.text().as_str()), (200, "{}"));
        assert_eq!(response.head.all("x-request-id").len(), 1);
        assert_eq!(response.head.get("connection"), None);
    }
    tidegate.idle().await;
    for request in server.received() {
        assert_eq!(request.head.line, format!("POST {CHAT} HTTP/1.1"));
        assert_eq!(request.head.all("host"), [server.name()]);
    }
}

#[tokio::test]
async fn h2c_gets_errors_health_and_gets_as_http_1_does() {
    let server = Backend::start(reply(json_response(404, "{\"detail\":\"Not Found\"}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let client = H2Client::connect(tidegate.address).await;
    let response = client.get("/nope").await;
    assert_eq!((response.status(), response.text().as_str()), (404, "{\"detail\":\"Not Found\"}"));
    let response = client.get("/healthcheck").await;
    assert_eq!(response.json(), serde_json::json!({ "status": "ok", "server_instances": 1 }));
    let down = Tidegate::start(&Setup::one_group([closed_address()])).await;
    assert_refusal(&H2Client::connect(down.address).await.post(CHAT, b"{}").await, 502);
}
