//! What cannot be provoked from outside: a panic in the middle of a request.

use std::sync::Arc;

use pingora::protocols::l4::stream::Stream;
use pingora::server::configuration::ServerConf;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{ClientConnections, Proxy};
use crate::balance::Usage;
use crate::config::of_text;
use crate::upstream::Live;

#[tokio::test]
async fn a_panic_ends_one_request_and_gives_its_load_back() {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = backend.local_addr().unwrap();
    let config =
        of_text(&format!("policy: {{kind: reference_plain}}\ngroups: [{{name: all, servers: [\"{server}\"]}}]"));
    let live = Arc::new(Live::new(config).unwrap());
    let balancer = Arc::clone(live.balancer());
    let health = Arc::new(crate::health::Health::new(Arc::clone(&live)));
    let mut proxy = Proxy::new(&ServerConf::default(), live, health, Arc::default());
    proxy.panics_at_answers = true;
    let clients = Arc::new(ClientConnections::new(proxy));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let (_keep, shutdown) = tokio::sync::watch::channel(false);
    let handling = tokio::spawn(async move { clients.serve(Box::new(Stream::from(stream)), &shutdown).await });

    client.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
    let (mut server_side, _) = backend.accept().await.unwrap();
    let mut request = vec![0; 1024];
    let read = server_side.read(&mut request).await.unwrap();
    assert!(read > 0);
    assert_eq!(balancer.snapshot().servers[0].in_flight, 1, "the request is counted while it runs");
    server_side.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();

    assert!(handling.await.is_err_and(|error| error.is_panic()));
    assert_eq!(balancer.snapshot().servers[0], Usage::default());
    while client.read(&mut request).await.unwrap_or(0) > 0 {}
    // What was under way may still come; then the end must, on both sides.
    while server_side.read(&mut request).await.unwrap_or(0) > 0 {}
}
