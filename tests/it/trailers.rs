//! What a server says behind the body of its answer, and its `Date`: both reach the client as they were sent.

use std::time::Duration;

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";
const HEAD: &str = "HTTP/1.1 200 OK\r\ntrailer: X-Sum\r\ntransfer-encoding: chunked\r\n\r\n";
const END: &str = "0\r\nX-Sum: 7\r\nserver-timing: a;dur=1\r\nX-Sum: 8\r\n\r\n";

/// An answer with the body `ab` and trailers.
fn answer() -> String {
    format!("{HEAD}2\r\nab\r\n{END}")
}

fn sent() -> Vec<(String, String)> {
    fields(&[("X-Sum", "7"), ("server-timing", "a;dur=1"), ("X-Sum", "8")])
}

fn fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Answers the requests of all connections with these, one after the other, the last one again and again.
async fn in_turn(answers: Vec<String>) -> Backend {
    let next = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    Backend::start(move |mut conn: Conn| {
        let (answers, next) = (answers.clone(), next.clone());
        async move {
            while conn.request().await.is_some() {
                let turn = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(answers.len() - 1);
                conn.send(&answers[turn]).await;
            }
        }
    })
    .await
}

fn is_whole(response: &Response, body: &str, trailers: &[(String, String)]) {
    assert_eq!((response.status(), response.text().as_str(), &response.end), (200, body, &End::Complete));
    assert_eq!(response.trailers, trailers);
}

#[tokio::test]
async fn trailers_reach_the_client_as_they_were_sent() {
    let without = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\ncd\r\n0\r\n\r\n".to_owned();
    let server = in_turn(vec![answer(), answer(), without, answer()]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for (body, trailers) in [("ab", sent()), ("ab", sent()), ("cd", Vec::new()), ("ab", sent())] {
        let response = client.exchange(&post(COMPLETIONS, b"{}")).await;
        is_whole(&response, body, &trailers);
        assert_eq!(response.head.get("trailer"), (!trailers.is_empty()).then_some("X-Sum"));
        tidegate.idle().await;
    }
    assert_eq!(server.connections(), 1, "the connection is kept");
    assert!(client.is_quiet_for(Duration::from_millis(50)).await);
    tidegate.finished(4).await;
    assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"complete\""]).await, 4.0);
}

#[tokio::test]
async fn trailers_behind_requests_sent_ahead_stay_with_their_answers() {
    let other = answer().replace("X-Sum: 7", "X-Sum: 9");
    let server = in_turn(vec![answer(), other, answer()]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, b"{}").repeat(3)).await;
    for first in ["7", "9", "7"] {
        let response = client.response().await;
        assert_eq!((response.text().as_str(), response.trailers[0].1.as_str()), ("ab", first));
    }
}

#[tokio::test]
async fn trailers_may_come_in_any_pieces() {
    let server = Backend::start(async |mut conn: Conn| {
        while conn.request().await.is_some() {
            for byte in answer().into_bytes() {
                conn.send([byte]).await;
                tokio::task::yield_now().await;
            }
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for _ in 0..3 {
        is_whole(&client.exchange(&post(COMPLETIONS, b"{}")).await, "ab", &sent());
    }
    assert_eq!(server.connections(), 1);
    let response = H2Client::connect(tidegate.address).await.post(COMPLETIONS, b"{}").await;
    assert_eq!(response.trailers.len(), 3);
}

#[tokio::test]
async fn a_cut_at_every_offset_changes_nothing() {
    let end = "2\r\nab\r\n0\r\nX-Sum: 7\r\n\r\n";
    let server = Backend::start(async move |mut conn: Conn| {
        for at in 1..end.len() {
            if conn.request().await.is_none() {
                return;
            }
            conn.send([HEAD, &end[..at]].concat()).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
            conn.send(&end[at..]).await;
        }
        conn.closed().await;
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for _ in 1..end.len() {
        is_whole(&client.exchange(&post(COMPLETIONS, b"{}")).await, "ab", &fields(&[("X-Sum", "7")]));
    }
}

#[tokio::test]
async fn nothing_waits_for_trailers() {
    let gate = Gate::closed();
    let go_on = gate.clone();
    let server = Backend::start(move |mut conn: Conn| {
        let gate = go_on.clone();
        async move {
            conn.request().await;
            conn.send(HEAD).await;
            for part in ["2\r\nab\r\n", "2\r\ncd\r\n", "0\r\nX-Sum:", " 7\r\n\r\n"] {
                gate.pass().await;
                conn.send(part).await;
            }
            conn.closed().await;
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, b"{}")).await;
    gate.admit(1);
    client.head().await;
    for event in ["ab", "cd"] {
        assert_eq!(client.body_bytes(2).await, event.as_bytes());
        gate.admit(1);
    }
    assert!(client.is_quiet_for(Duration::from_millis(50)).await, "the end is not there yet");
    gate.admit(1);
    assert_eq!(client.rest().await, (Vec::new(), End::Complete));
}

#[tokio::test]
async fn trailers_of_a_server_with_tls_reach_the_client() {
    let server = in_turn(vec![answer()]).await;
    let authority = Authority::new();
    let relay = Relay::from_tls(tls_server(&authority.issue("server", &["vllm.test"]), None), server.address()).await;
    let keys = format!("ca: {}, server_name: vllm.test", authority.file().display());
    let tidegate = Tidegate::start(&Setup::one_group([relay.server(&keys)])).await;
    let mut client = tidegate.client().await;
    for _ in 0..3 {
        is_whole(&client.exchange(&post(COMPLETIONS, b"{}")).await, "ab", &sent());
    }
    assert_eq!(server.connections(), 1, "the connection is kept");
}

#[tokio::test]
async fn a_client_of_http_2_gets_trailers_in_its_own_way() {
    let without = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\ncd".to_owned();
    let alone = format!("{HEAD}{END}");
    let server = in_turn(vec![answer(), without, alone, answer()]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let client = H2Client::connect(tidegate.address).await;
    // A map of fields: those of one name stand together.
    let sent = fields(&[("x-sum", "7"), ("x-sum", "8"), ("server-timing", "a;dur=1")]);
    for (body, trailers) in [("ab", sent.clone()), ("cd", Vec::new()), ("", sent.clone()), ("ab", sent)] {
        let mut response = client.post(COMPLETIONS, b"{}").await;
        response.trailers.sort_by_key(|(name, _)| std::cmp::Reverse(name.clone()));
        is_whole(&response, body, &trailers);
        tidegate.idle().await;
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn where_there_are_no_chunks_there_are_no_trailers() {
    // To a client of HTTP/1.0 the body goes as it is, whatever it looks like.
    let server = in_turn(vec![format!("{HEAD}5\r\n0\r\n\r\n\r\n{END}")]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let old = format!("POST {COMPLETIONS} HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}");
    is_whole(&tidegate.exchange(old.as_bytes()).await, "0\r\n\r\n", &[]);
    is_whole(&tidegate.exchange(&post(COMPLETIONS, b"{}")).await, "0\r\n\r\n", &sent());
    assert_eq!(server.connections(), 1);

    let server = Backend::start(async |mut conn: Conn| {
        while let Some(request) = conn.request().await {
            let is_head = request.head.line.starts_with("HEAD ");
            conn.send(if is_head { HEAD.to_owned() } else { answer() }).await;
        }
    })
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for _ in 0..2 {
        let response = client.exchange(b"HEAD /version HTTP/1.1\r\nHost: a\r\n\r\n").await;
        is_whole(&response, "", &[]);
        is_whole(&client.exchange(&post(COMPLETIONS, b"{}")).await, "ab", &sent());
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn interim_answers_are_no_hindrance() {
    let early = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
    let server = in_turn(vec![format!("{early}{}", answer())]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    for _ in 0..2 {
        is_whole(&client.exchange(&post(COMPLETIONS, b"{}")).await, "ab", &sent());
    }
}

#[tokio::test]
async fn trailers_are_those_of_the_attempt_that_was_relayed() {
    for refusal in [
        // Its trailers have come, and its body has no byte that went out.
        format!("HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n{}", END.replace("X-Sum", "X-Bad")),
        // It breaks off within the trailers.
        format!("{HEAD}0\r\nX-Bad: 1\r\n"),
        format!("{HEAD}0\r\nno field\r\n\r\n"),
    ] {
        for (rest, trailers) in [(END, sent()), ("0\r\n\r\n", Vec::new())] {
            let bad = Backend::start(reply_then_close(refusal.clone())).await;
            let good = in_turn(vec![format!("{HEAD}2\r\nab\r\n{rest}")]).await;
            let tidegate = Tidegate::start(&Setup::one_group([&bad, &good])).await;
            is_whole(&tidegate.exchange(&post(COMPLETIONS, b"{}")).await, "ab", &trailers);
            assert_eq!((bad.count(), good.count()), (1, 1), "{refusal:?}");
            tidegate.idle().await;
        }
    }
}

#[tokio::test]
async fn what_cannot_be_read_in_one_way_breaks_the_answer() {
    let long = |bytes: usize| format!("0\r\nx: {}\r\n\r\n", "y".repeat(bytes));
    for (body, end) in [
        ("2\r\nab\r\n", "0\r\nno field\r\n\r\n".to_owned()),
        ("2\r\nab\r\n", "0\r\nx : y\r\n\r\n".to_owned()),
        ("2\r\nab\r\n", "0\r\nx: y\r\n folded\r\n\r\n".to_owned()),
        ("2\r\nab\r\n", "0\r\nx: y\n\r\n".to_owned()),
        ("2\r\nab\r\n", "0\r\nx: \0\r\n\r\n".to_owned()),
        ("2\r\nab\r\n", long(65_536)),
        ("2\r\nab\r\n", format!("0\r\n{}\r\n", "x: y\r\n".repeat(257))),
        // Pingora would take this for the end.
        ("2\r\nab\r\n", "\r\n\r\n".to_owned()),
        ("2\r\nab\r\n", ";\r\n\r\n".to_owned()),
    ] {
        let shown = &end[..end.len().min(40)];
        let parts = [format!("{HEAD}{body}"), end.clone()];
        let server = Backend::start(move |mut conn: Conn| {
            let parts = parts.clone();
            async move {
                conn.request().await;
                if conn.number == 0 {
                    conn.send(parts.concat()).await;
                } else {
                    conn.send(&parts[0]).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    conn.send(&parts[1]).await;
                }
                conn.closed().await;
            }
        })
        .await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        for way in ["in one piece", "apart"] {
            let mut client = tidegate.begin(&post(COMPLETIONS, b"{}")).await;
            assert_eq!(client.head().await.status(), 200);
            assert_eq!(client.rest().await, (b"ab".to_vec(), End::Truncated), "{shown:?}, sent {way}");
            tidegate.idle().await;
        }
        let response = H2Client::connect(tidegate.address).await.post(COMPLETIONS, b"{}").await;
        assert_eq!(response.end, End::Reset, "{shown:?}");
        // A reset may overtake what was sent before it.
        assert!("ab".starts_with(&response.text()), "{shown:?}: {}", response.text());
        tidegate.finished(3).await;
        assert_eq!(tidegate.metric("tidegate_requests_total", &["outcome=\"upstream_broken\""]).await, 3.0);
        assert_eq!(server.connections(), 3, "the connection is not used again");
    }
}

#[tokio::test]
async fn trailers_up_to_the_bound_pass() {
    let value = "y".repeat(60_000);
    let server = in_turn(vec![format!("{HEAD}2\r\nab\r\n0\r\nx: {value}\r\n{}\r\n", "a: b\r\n".repeat(255))]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let response = tidegate.exchange(&post(COMPLETIONS, b"{}")).await;
    assert_eq!((response.text().as_str(), response.end), ("ab", End::Complete));
    assert_eq!((response.trailers.len(), response.trailers[0].1 == value), (256, true));
}

#[tokio::test]
async fn what_would_change_the_message_is_left_out() {
    let end = "0\r\nContent-Length: 99\r\nTransfer-Encoding: gzip\r\nHost: b\r\nConnection: close\r\nKeep-Alive: 1\r\n\
               Set-Cookie: a=b\r\nContent-Type: text/html\r\nWWW-Authenticate: Basic\r\nTrailer: x\r\nX-Sum: 7\r\n\
               Upgrade: h2c\r\nDate: x\r\n\r\n";
    let all = "0\r\nContent-Length: 99\r\n\r\n";
    let server = in_turn(vec![format!("{HEAD}2\r\nab\r\n{end}"), format!("{HEAD}2\r\nab\r\n{all}")]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    is_whole(&client.exchange(&post(COMPLETIONS, b"{}")).await, "ab", &fields(&[("X-Sum", "7")]));
    is_whole(&client.exchange(&post(COMPLETIONS, b"{}")).await, "ab", &[]);

    let server = in_turn(vec![format!("{HEAD}2\r\nab\r\n{end}")]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let response = H2Client::connect(tidegate.address).await.post(COMPLETIONS, b"{}").await;
    is_whole(&response, "ab", &fields(&[("x-sum", "7")]));
}

#[tokio::test]
async fn the_servers_date_is_kept() {
    for dates in [&["Sun, 06 Nov 1994 08:49:37 GMT"][..], &["then"], &["Sunday, 06-Nov-94 08:49:37 GMT", "x"]] {
        let lines: String = dates.iter().map(|date| format!("DATE: {date}\r\n")).collect();
        let server = Backend::start(move |mut conn: Conn| {
            let lines = lines.clone();
            async move {
                while let Some(request) = conn.request().await {
                    let head = format!("HTTP/1.1 200 OK\r\nx-before: 1\r\n{lines}x-behind: 2\r\n");
                    let end = if request.head.line.starts_with("GET ") {
                        "content-length: 2\r\n\r\nok"
                    } else {
                        "transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n"
                    };
                    conn.send(head + end).await;
                }
            }
        })
        .await;
        let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
        let mut client = tidegate.client().await;
        for request in [post(COMPLETIONS, b"{}"), get("/version"), post(COMPLETIONS, b"{}")] {
            let response = client.exchange(&request).await;
            assert_eq!((response.text().as_str(), response.end), ("ok", End::Complete));
            assert_eq!(response.head.all("date"), dates);
            assert_eq!((response.head.get("x-before"), response.head.get("x-behind")), (Some("1"), Some("2")));
        }
    }
}

/// Whether this is a date of now and not one of a server's.
fn is_now(date: Option<&str>) -> bool {
    date.is_some_and(|date| date.len() == 29 && date.ends_with(" GMT") && !date.contains(" 1994 "))
}

#[tokio::test]
async fn answers_without_a_date_get_one() {
    let server = in_turn(vec![
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: 0\r\n\r\n".to_owned(),
    ])
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut client = tidegate.client().await;
    assert!(is_now(client.exchange(&post(COMPLETIONS, b"{}")).await.head.get("date")));
    assert!(!is_now(client.exchange(&post(COMPLETIONS, b"{}")).await.head.get("date")));
    // Tidegate's own answer, on the connection on which the server's date was kept before.
    assert!(is_now(client.exchange(&get("/healthcheck")).await.head.get("date")));

    // A server's header that was held back and never went out.
    let broken = Backend::start(reply_then_close(
        "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: 2\r\n\r\n",
    ))
    .await;
    let tidegate = Tidegate::start(&Setup::one_group([&broken])).await;
    let response = tidegate.exchange(&post(COMPLETIONS, b"{}")).await;
    assert_refusal(&response, 502);
    assert!(is_now(response.head.get("date")));
}

// Pingora writes the header of HTTP/2 by itself, into the compression that a connection's headers share.
#[tokio::test]
async fn over_http_2_the_date_is_the_time_of_relaying() {
    let dated = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: 0\r\n\r\n";
    let server = in_turn(vec![dated.to_owned()]).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let response = H2Client::connect(tidegate.address).await.post(COMPLETIONS, b"{}").await;
    assert!(is_now(response.head.get("date")));
}
