//! Servers that are reached over TLS: whom Tidegate trusts, and who it is to them.

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

/// A plain server behind a relay that speaks TLS, with a certificate for its address.
async fn secured(server: &Backend, authority: &Authority, clients: Option<&Authority>) -> Relay {
    let pair = authority.issue("server", &["127.0.0.1", "vllm.test"]);
    Relay::from_tls(tls_server(&pair, clients), server.address()).await
}

fn ca(authority: &Authority) -> String {
    format!("ca: {}", authority.file().display())
}

/// The lines of the log that say that TLS towards a server failed.
fn failures(tidegate: &Tidegate) -> Vec<String> {
    tidegate.stderr().lines().filter(|line| line.contains("TLS failed")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_server_with_a_certificate_for_its_name_is_served_from() {
    let server = Backend::start(echo()).await;
    let authority = Authority::new();
    let relay = secured(&server, &authority, None).await;
    // The certificate is for another address than the relay's, so the name is given.
    let keys = format!("{}, server_name: vllm.test", ca(&authority));
    let tidegate = Tidegate::start(&Setup::one_group([relay.server(&keys)])).await;
    let mut client = tidegate.client().await;
    for length in [100, 65_535, 65_536, 65_537, 3 << 20] {
        let body = body_of(length);
        let response = client.exchange(&post(COMPLETIONS, &body)).await;
        assert_eq!((response.status(), response.json()["sha256"].as_str()), (200, Some(sha256(&body).as_str())));
    }
    assert_eq!(server.connections(), 1, "the connection is kept");
    assert_eq!(server.received()[0].head.get("host"), Some(relay.address.to_string().as_str()));
    assert_eq!(tidegate.status().await["groups"][0]["servers"][0]["tls"], true);
    assert_eq!(failures(&tidegate), [""; 0]);
}

#[tokio::test]
async fn without_a_name_the_host_of_the_address_must_be_in_the_certificate() {
    let server = Backend::start(echo()).await;
    let authority = Authority::new();
    let good = Relay::from_tls(tls_server(&authority.issue("good", &["localhost"]), None), server.address()).await;
    let tidegate = Tidegate::start(&Setup::one_group([relayed_as_localhost(&good, &authority).await])).await;
    assert_eq!(tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status(), 200);

    let bad = secured(&server, &authority, None).await;
    let tidegate = Tidegate::start(&Setup::one_group([bad.server(&ca(&authority))])).await;
    assert_refusal(&tidegate.exchange(&post(COMPLETIONS, b"{}")).await, 502);
    assert!(failures(&tidegate)[0].contains("not valid for name"), "{:?}", failures(&tidegate));
}

/// The relay at a port of `localhost`.
async fn relayed_as_localhost(relay: &Relay, authority: &Authority) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, to) = (listener.local_addr().unwrap().port(), relay.address);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut onward = tokio::net::TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut onward).await });
        }
    });
    format!("{{ address: \"https://localhost:{port}\", tls: {{ {} }} }}", ca(authority))
}

#[tokio::test]
async fn a_server_signed_by_a_stranger_gets_no_request_and_is_logged_once() {
    let server = Backend::start(echo()).await;
    let (authority, stranger) = (Authority::new(), Authority::new());
    let relay = secured(&server, &stranger, None).await;
    let keys = format!("{}, server_name: vllm.test", ca(&authority));
    let tidegate = Tidegate::start(&Setup::one_group([relay.server(&keys)])).await;
    for _ in 0..2 {
        let response = tidegate.exchange(&post(COMPLETIONS, b"{}")).await;
        assert_refusal(&response, 502);
        assert_eq!(response.head.get("x-tidegate-error"), Some("not_reachable"));
    }
    assert_eq!(server.connections(), 0);
    let failures = failures(&tidegate);
    assert_eq!(failures.len(), 1, "{failures:?}");
    let expected = format!("server {}: TLS failed: invalid peer certificate: UnknownIssuer", relay.address);
    assert!(failures[0].ends_with(&expected), "{failures:?}");
    tidegate.idle().await;
}

#[tokio::test]
async fn a_request_goes_on_to_a_server_that_is_trusted() {
    let server = Backend::start(echo()).await;
    let (authority, stranger) = (Authority::new(), Authority::new());
    let keys = format!("{}, server_name: vllm.test", ca(&authority));
    let bad = secured(&server, &stranger, None).await;
    let good = secured(&server, &authority, None).await;
    let tidegate = Tidegate::start(&Setup::one_group([bad.server(&keys), good.server(&keys)])).await;
    let body = body_of(200_000);
    let response = tidegate.exchange(&post(COMPLETIONS, &body)).await;
    assert_eq!(response.json()["sha256"], sha256(&body));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_gets_no_request() {
    let server = Backend::start(reply("SSH-2.0-OpenSSH_9.2\r\n")).await;
    let authority = Authority::new();
    let address = format!("{{ address: \"https://{}\", tls: {{ {} }} }}", server.address(), ca(&authority));
    let setup = Setup::one_group([address]).section("timeouts", "{ connect: 500ms }");
    let tidegate = Tidegate::start(&setup).await;
    assert_refusal(&tidegate.exchange(&post(COMPLETIONS, b"{\"secret\":1}")).await, 502);
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn an_insecure_server_may_have_any_certificate() {
    let server = Backend::start(echo()).await;
    let relay = secured(&server, &Authority::new(), None).await;
    let tidegate = Tidegate::start(&Setup::one_group([relay.server("insecure: true")])).await;
    assert_eq!(tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status(), 200);
}

#[tokio::test]
async fn a_server_that_demands_a_certificate_gets_ours() {
    let server = Backend::start(echo()).await;
    let authority = Authority::new();
    let relay = secured(&server, &authority, Some(&authority)).await;
    let us = authority.issue("us", &["tidegate.test"]);
    let all = format!("{{ tls: {{ {}, server_name: vllm.test, {} }} }}", ca(&authority), us.yaml());
    let tidegate = Tidegate::start(&Setup::one_group([relay.server("")]).section("upstream", &all)).await;
    let body = body_of(200_000);
    let response = tidegate.exchange(&post(COMPLETIONS, &body)).await;
    assert_eq!(response.json()["sha256"], sha256(&body));
    let models = tidegate.exchange(&get("/v1/models")).await;
    assert_eq!(models.status(), 200, "{}", models.text());
}

#[tokio::test]
async fn a_server_that_misses_our_certificate_is_logged() {
    let server = Backend::start(echo()).await;
    let authority = Authority::new();
    let relay = secured(&server, &authority, Some(&authority)).await;
    let keys = format!("{}, server_name: vllm.test", ca(&authority));
    let tidegate = Tidegate::start(&Setup::one_group([relay.server(&keys)])).await;
    assert_refusal(&tidegate.exchange(&post(COMPLETIONS, b"{}")).await, 502);
    assert_eq!(server.connections(), 0);
    let failures = failures(&tidegate);
    assert!(failures[0].ends_with("received fatal alert: CertificateRequired"), "{failures:?}");
}

#[tokio::test]
async fn a_new_certificate_of_ours_is_used() {
    let server = Backend::start(echo()).await;
    let (authority, stranger) = (Authority::new(), Authority::new());
    let relay = secured(&server, &authority, Some(&authority)).await;
    // Signed by the wrong one at first.
    let us = stranger.issue("us", &["tidegate.test"]);
    let keys = format!("{}, server_name: vllm.test, {}", ca(&authority), us.yaml());
    let tidegate = Tidegate::start(&Setup::one_group([relay.server(&keys)])).await;
    assert_refusal(&tidegate.exchange(&post(COMPLETIONS, b"{}")).await, 502);

    let new = authority.issue("new", &["tidegate.test"]);
    std::fs::copy(&new.key, &us.key).unwrap();
    std::fs::copy(&new.certificate, &us.certificate).unwrap();
    until("the new certificate is used", async || tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status() == 200)
        .await;
}

#[tokio::test]
async fn a_stream_that_breaks_ends_broken_and_a_client_that_leaves_is_noticed() {
    let gate = Gate::closed();
    let server = Backend::start(sse(2, &gate)).await;
    let authority = Authority::new();
    let relay = secured(&server, &authority, None).await;
    let keys = format!("{}, server_name: vllm.test", ca(&authority));
    let tidegate = Tidegate::start(&Setup::one_group([relay.server(&keys)])).await;
    let mut client = tidegate.begin(&post(COMPLETIONS, b"{\"stream\":true}")).await;
    gate.admit(1);
    assert_eq!(client.head().await.status(), 200);
    assert_eq!(client.body_bytes(sse_event(0).len()).await, sse_event(0).as_bytes());
    client.close();
    server.closed_within(std::time::Duration::from_secs(2), 1).await;
    tidegate.idle().await;

    let broken = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let breaking = Backend::start(reply_then_close(broken)).await;
    let relay = secured(&breaking, &authority, None).await;
    let tidegate = Tidegate::start(&Setup::one_group([relay.server(&keys)])).await;
    let response = tidegate.exchange(&post(COMPLETIONS, b"{}")).await;
    assert_ne!(response.end, End::Complete);
}

#[tokio::test]
async fn plain_servers_do_not_need_the_certificates_of_the_system() {
    // Pingora reads them when it starts, and panics when that fails.
    let server = Backend::start(echo()).await;
    let tidegate = Tidegate::start_with_environment(&Setup::one_group([&server]), "SSL_CERT_FILE", "/no/file").await;
    assert_eq!(tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status(), 200);
    assert_eq!(tidegate.exchange(&get("/v1/models")).await.status(), 200);
}

#[tokio::test]
async fn a_reload_brings_a_server_over_tls_and_takes_it_back() {
    let server = Backend::start(echo()).await;
    let authority = Authority::new();
    let relay = secured(&server, &authority, None).await;
    let keys = format!("{}, server_name: vllm.test", ca(&authority));
    let plain = Setup::one_group([&server]);
    let tidegate = Tidegate::start(&plain).await;
    tidegate.reload(&Setup::one_group([relay.server(&keys)])).await;
    assert_eq!(tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status(), 200);
    assert_eq!(server.received()[0].head.get("host"), Some(relay.address.to_string().as_str()));

    let renamed = tidegate.reload(&Setup::one_group([relay.server(&keys.replace("vllm.test", "other.test"))])).await;
    let changes = renamed["changes"].to_string();
    assert!(
        changes.contains("tls: server_name vllm.test") && changes.contains("-> server_name other.test"),
        "{changes}"
    );
    assert_refusal(&tidegate.exchange(&post(COMPLETIONS, b"{}")).await, 502);
    tidegate.reload(&plain).await;
    assert_eq!(tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status(), 200);
}

#[tokio::test]
async fn servers_that_are_discovered_can_be_reached_over_tls() {
    let servers = [Backend::start(echo()).await, Backend::start(echo()).await];
    let authority = Authority::new();
    let relays = [secured(&servers[0], &authority, None).await, secured(&servers[1], &authority, None).await];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers");
    std::fs::write(&file, relays.iter().map(|relay| format!("{}\n", relay.address)).collect::<String>()).unwrap();
    let tidegate = Tidegate::start(&Setup::one_group(servers.iter())).await;
    let with_tls = |tls: &str| {
        let (listen, admin) = (tidegate.address, tidegate.admin);
        format!(
            "listen: \"{listen}\"\nadmin: {{ listen: \"{admin}\" }}\nhealth: {{ active: {{ interval: 100ms }} }}\n\
             pingora: {{ threads: 2 }}\npolicy: {{ kind: reference_bucket, ties: first }}\ngroups: [{{ name: all, \
             up_to_tokens: 131072, discover: {{ file: {}, https: true, tls: {{ {tls} }} }} }}]\n",
            file.display()
        )
    };
    tidegate.write_text(&with_tls(&ca(&authority)));
    let refused = tidegate.admin_post("/reload", "").await;
    assert_eq!(refused.status(), 400);
    assert!(refused.text().contains("discover.file: found over https without tls.server_name"), "{}", refused.text());

    tidegate.write_text(&with_tls(&format!("{}, server_name: vllm.test", ca(&authority))));
    let applied = tidegate.admin_post("/reload", "").await;
    assert_eq!(applied.status(), 200, "{}", applied.text());
    assert!(applied.text().contains("discovered servers' tls: none -> server_name vllm.test"), "{}", applied.text());
    for server in tidegate.status().await["groups"][0]["servers"].as_array().unwrap() {
        assert_eq!(server["tls"], true, "{server}");
    }
    for _ in 0..2 {
        assert_eq!(tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status(), 200);
    }
    // Probes are made over TLS, too, and find both in order.
    for relay in &relays {
        let server = format!("server=\"{}\"", relay.address);
        until("a probe has passed", async || {
            tidegate.metric("tidegate_probes_total", &[&server, "result=\"passed\""]).await > 0.0
        })
        .await;
    }
    assert_eq!(failures(&tidegate), [""; 0]);
}

#[tokio::test]
async fn a_reload_that_would_need_the_authorities_of_the_system_for_the_first_time_is_refused() {
    let server = Backend::start(echo()).await;
    let authority = Authority::new();
    let plain = Setup::one_group([&server]);
    let store = authority.file().display().to_string();
    let tidegate = Tidegate::start_with_environment(&plain, "SSL_CERT_FILE", &store).await;
    tidegate.write(&Setup::one_group(["\"https://127.0.0.1:1\"".to_owned()]));
    let response = tidegate.admin_post("/reload", "").await;
    assert_eq!(response.status(), 400, "{}", response.text());
    assert!(response.text().contains("upstream.tls.ca"), "{}", response.text());
    assert_eq!(tidegate.exchange(&post(COMPLETIONS, b"{}")).await.status(), 200);
}
