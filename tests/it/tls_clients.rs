//! The TLS listener, with a real client.

use std::net::SocketAddr;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};
use tokio::net::TcpStream;

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

/// A Tidegate with a TLS listener, whose certificate can be swapped.
struct Secured {
    tidegate: Tidegate,
    tls: SocketAddr,
    authority: Authority,
    pair: Pair,
}

impl Secured {
    async fn start(setup: Setup) -> Self {
        Self::start_with(setup, "").await
    }

    /// With more keys in the section `tls`.
    async fn start_with(setup: Setup, keys: &str) -> Self {
        let loopback = Loopback::new();
        let [address, admin, tls] = loopback.free_ports();
        let authority = Authority::new();
        let pair = authority.issue("listener", &[&loopback.ip().to_string()]);
        let setup = setup.section("tls", &format!("{{ listen: \"{tls}\", {}, {keys} }}", pair.yaml()));
        let tidegate = Tidegate::start_at(address, admin, &setup).await;
        until("the TLS listener accepts connections", async || TcpStream::connect(tls).await.is_ok()).await;
        Self { tidegate, tls, authority, pair }
    }

    /// Where plain text is taken to the TLS listener.
    async fn relay(&self, protocols: &[&str]) -> Relay {
        Relay::into_tls(self.tls, self.authority.client(protocols)).await
    }

    /// The protocol agreed on and the certificate shown; `None` when there is no handshake.
    async fn handshake(&self, config: ClientConfig) -> Option<(Option<String>, Vec<u8>)> {
        let stream = tls_connect(self.tls, config).await.ok()?;
        let connection = stream.get_ref().1;
        let protocol = connection.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
        Some((protocol, connection.peer_certificates()?.first()?.to_vec()))
    }
}

#[tokio::test]
async fn both_versions_of_http_are_served_as_agreed_on() {
    let server = Backend::start(echo()).await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    for (offered, agreed) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let (protocol, _) = secured.handshake(secured.authority.client(offered)).await.unwrap();
        assert_eq!(protocol.as_deref(), agreed, "{offered:?}");
        let relay = secured.relay(offered).await;
        let response = if agreed == Some("h2") {
            H2Client::connect(relay.address).await.post(COMPLETIONS, b"{}").await
        } else {
            Client::connect(relay.address).await.exchange(&post(COMPLETIONS, b"{}")).await
        };
        assert_eq!((response.status(), &response.json()["length"]), (200, &2.into()), "{offered:?}");
    }
    assert!(secured.handshake(secured.authority.client(&["spdy/3"])).await.is_none());
    secured.tidegate.idle().await;
}

#[tokio::test]
async fn a_connection_is_kept_for_many_requests() {
    let server = Backend::start(echo()).await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    let relay = secured.relay(&["http/1.1"]).await;
    let mut client = Client::connect(relay.address).await;
    for length in [100, 200, 300] {
        let response = client.exchange(&post(COMPLETIONS, &body_of(length))).await;
        assert_eq!(response.json()["length"], length);
    }
}

#[tokio::test]
async fn large_bodies_are_whole_both_ways() {
    let body = body_of(3 << 20);
    let server = Backend::start(reply(json_response(200, &String::from_utf8(body.clone()).unwrap()))).await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    let (one, two) = (secured.relay(&["http/1.1"]).await, secured.relay(&["h2"]).await);
    let responses = [
        Client::connect(one.address).await.exchange(&post(COMPLETIONS, &body)).await,
        Client::connect(one.address).await.exchange(&chunked(COMPLETIONS, &body, 10_000)).await,
        H2Client::connect(two.address).await.post(COMPLETIONS, &body).await,
    ];
    for response in responses {
        assert_eq!((sha256(&response.body), response.end), (sha256(&body), End::Complete));
    }
    for request in server.received() {
        assert_eq!(sha256(&request.body), sha256(&body));
    }
    assert_eq!(server.count(), 3);
}

#[tokio::test]
async fn each_event_of_a_stream_comes_when_it_is_sent() {
    let gate = Gate::closed();
    let server = Backend::start(sse(3, &gate)).await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    let relay = secured.relay(&["http/1.1"]).await;
    let mut client = Client::connect(relay.address).await;
    client.send(&post(COMPLETIONS, b"{\"stream\":true}")).await;
    for number in 0..2 {
        gate.admit(1);
        if number == 0 {
            assert_eq!(client.head().await.status(), 200);
        }
        let event = sse_event(number);
        assert_eq!(client.body_bytes(event.len()).await, event.as_bytes());
    }
    gate.admit(1);
    let rest = [sse_event(2).as_bytes(), b"data: [DONE]\n\n"].concat();
    assert_eq!(client.rest().await, (rest, End::Complete));
}

#[tokio::test]
async fn a_client_that_leaves_frees_the_server() {
    let server = Backend::start(silent()).await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    for (round, reset) in [false, true].into_iter().enumerate() {
        let relay = secured.relay(&["http/1.1"]).await;
        let mut client = Client::connect(relay.address).await;
        client.send(&post(COMPLETIONS, b"{}")).await;
        server.requests(round + 1).await;
        if reset {
            client.reset()
        } else {
            client.close()
        }
        server.closed_within(Duration::from_secs(2), round + 1).await;
        secured.tidegate.idle().await;
    }
}

#[tokio::test]
async fn plain_text_on_the_tls_port_is_not_served() {
    let server = Backend::start(echo()).await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    for bytes in [&get("/v1/models")[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut client = Client::connect(secured.tls).await;
        client.send(bytes).await;
        let (answer, _) = client.closed().await;
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(server.count(), 0);
    // And TLS is not spoken on the plain port, which works as ever.
    let plain = secured.tidegate.address;
    assert!(tls_connect(plain, secured.authority.client(&["http/1.1"])).await.is_err());
    assert_eq!(secured.tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status(), 200);
    assert!(!secured.tidegate.stderr().contains("ERROR"), "a scan of the port is no error of ours");
}

#[tokio::test]
async fn a_client_that_does_not_finish_the_handshake_is_let_go() {
    let server = Backend::start(echo()).await;
    let setup = Setup::one_group([&server]).section("timeouts", "{ request_header: 300ms }");
    let secured = Secured::start(setup).await;
    let mut silent = Client::connect(secured.tls).await;
    let mut halfway = Client::connect(secured.tls).await;
    halfway.send(&[22, 3, 1, 2, 0, 1]).await;
    for client in [&mut silent, &mut halfway] {
        assert_eq!(client.closed_within(PATIENCE).await.unwrap().0, b"");
    }
    // The same when the handshake is done and nothing follows.
    for protocol in ["h2", "http/1.1"] {
        let relay = secured.relay(&[protocol]).await;
        let mut idle = Client::connect(relay.address).await;
        assert_eq!(idle.closed_within(PATIENCE).await.unwrap().0, b"", "{protocol}");
    }
    let relay = secured.relay(&["h2"]).await;
    let mut other = Client::connect(relay.address).await;
    other.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(other.closed_within(PATIENCE).await.unwrap().0, b"", "no HTTP/2, as was agreed on");
}

#[tokio::test]
async fn the_lowest_version_is_as_configured() {
    let server = Backend::start(echo()).await;
    let from_2 = Secured::start(Setup::one_group([&server])).await;
    let from_3 = Secured::start_with(Setup::one_group([&server]), "min_version: \"1.3\"").await;
    for (secured, version, accepted) in
        [(&from_2, &TLS12, true), (&from_2, &TLS13, true), (&from_3, &TLS12, false), (&from_3, &TLS13, true)]
    {
        let config = secured.authority.client_of_versions(&["h2"], &[version]);
        assert_eq!(secured.handshake(config).await.is_some(), accepted, "{version:?}");
    }
}

#[tokio::test]
async fn a_new_certificate_is_shown_and_a_broken_one_is_not() {
    let gate = Gate::closed();
    let server = Backend::start(sse(2, &gate)).await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    let first = secured.pair.der().to_vec();
    let shown = async || secured.handshake(secured.authority.client(&["h2"])).await.unwrap().1;
    assert_eq!(shown().await, first);
    let relay = secured.relay(&["http/1.1"]).await;
    let mut streaming = Client::connect(relay.address).await;
    streaming.send(&post(COMPLETIONS, b"{\"stream\":true}")).await;
    gate.admit(1);
    let event = sse_event(0);
    assert_eq!(streaming.head().await.status(), 200);
    assert_eq!(streaming.body_bytes(event.len()).await, event.as_bytes());

    // A key without its certificate, as between the two steps of a renewal.
    let ip = secured.tls.ip().to_string();
    let other = secured.authority.issue("other", &[&ip]);
    std::fs::copy(&other.key, &secured.pair.key).unwrap();
    let refused = "tls files have changed but are not used, listener: ";
    let tidegate = &secured.tidegate;
    assert_eq!(tidegate.metric("tidegate_tls_files_refused", &[]).await, 0.0);
    until("the broken pair is noticed", async || tidegate.stderr().contains(refused)).await;
    assert_eq!(shown().await, first);
    assert_eq!(tidegate.metric("tidegate_tls_files_refused", &[]).await, 1.0);

    std::fs::copy(&other.certificate, &secured.pair.certificate).unwrap();
    until("the new certificate is shown", async || shown().await == other.der().to_vec()).await;
    assert_eq!(tidegate.stderr().matches(refused).count(), 1, "{}", tidegate.stderr());
    assert_eq!(tidegate.metric("tidegate_tls_files_refused", &[]).await, 0.0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!(tidegate.metric("tidegate_tls_certificate_valid_until_seconds", &[]).await > now);
    gate.open();
    let rest = [sse_event(1).as_bytes(), b"data: [DONE]\n\n"].concat();
    assert_eq!(streaming.rest().await, (rest, End::Complete), "connections go on with the certificate they began with");
}

#[tokio::test]
async fn a_redirect_of_the_server_stays_with_the_clients_scheme() {
    let server = Backend::start(async |mut conn: Conn| {
        let own = conn.local_address();
        while conn.request().await.is_some() {
            conn.send(format!("HTTP/1.1 307 Moved\r\nlocation: http://{own}/docs/\r\ncontent-length: 0\r\n\r\n")).await;
        }
    })
    .await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    let relay = secured.relay(&["http/1.1"]).await;
    let response = Client::connect(relay.address).await.exchange(&get("/docs")).await;
    assert_eq!(response.head.get("location"), Some("https://gateway.test/docs/"));
    let response = secured.tidegate.exchange(&get("/docs")).await;
    assert_eq!(response.head.get("location"), Some("http://gateway.test/docs/"));
}

#[tokio::test]
async fn the_status_says_what_is_in_force_and_holds_no_key() {
    let server = Backend::start(echo()).await;
    let secured = Secured::start(Setup::one_group([&server])).await;
    let tls = &secured.tidegate.status().await["config"]["tls"];
    assert_eq!(tls["listen"][0], secured.tls.to_string());
    assert_eq!(tls["certificate"], secured.pair.certificate.display().to_string());
    assert_eq!(tls["min_version"], "1.2");
    assert!(tls["valid_until"].as_str().is_some_and(|until| until.contains("4096")), "{tls}");
    let key = std::fs::read_to_string(&secured.pair.key).unwrap();
    let line = key.lines().nth(1).unwrap();
    assert!(!tls.to_string().contains(line) && !secured.tidegate.stderr().contains(line));
}

#[tokio::test]
async fn a_reload_leaves_the_listener_as_it_is_and_says_what_needs_a_restart() {
    let server = Backend::start(echo()).await;
    let secured = Secured::start_with(Setup::one_group([&server]), "min_version: \"1.2\"").await;
    let text = std::fs::read_to_string(secured.tidegate.configuration()).unwrap();
    secured.tidegate.write_text(&text.replace("\"1.2\"", "\"1.3\""));
    let reloaded = secured.tidegate.admin_post("/reload", "").await.json();
    assert_eq!(reloaded["needs_restart"], serde_json::json!(["tls.min_version: 1.2 -> 1.3"]));
    let client = || secured.authority.client_of_versions(&[], &[&TLS12]);
    let shown = async || secured.handshake(client()).await.map(|(_, shown)| shown);
    assert_eq!(shown().await, Some(secured.pair.der().to_vec()));

    let other = secured.authority.issue("other", &[&secured.tls.ip().to_string()]);
    std::fs::copy(&other.key, &secured.pair.key).unwrap();
    std::fs::copy(&other.certificate, &secured.pair.certificate).unwrap();
    until("the new certificate is shown", async || shown().await == Some(other.der().to_vec())).await;
}
