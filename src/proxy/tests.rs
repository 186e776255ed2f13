//! What cannot be provoked from outside: a panic in the middle of a request.

use std::os::fd::RawFd;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::apps::HttpServerApp;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::protocols::http::ServerSession;
use pingora::protocols::l4::stream::Stream;
use pingora::proxy::{ProxyHttp, Session, http_proxy};
use pingora::server::configuration::ServerConf;
use pingora::upstreams::peer::HttpPeer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Proxy, RequestContext};
use crate::balance::Usage;
use crate::config::of_text;
use crate::upstream::Live;

/// The proxy with a fault: it panics when the server's answer arrives.
struct Panicking(Proxy);

#[async_trait]
impl ProxyHttp for Panicking {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        self.0.new_ctx()
    }

    async fn request_filter(&self, session: &mut Session, ctx: &mut RequestContext) -> pingora::Result<bool> {
        self.0.request_filter(session, ctx).await
    }

    async fn upstream_peer(&self, session: &mut Session, ctx: &mut RequestContext) -> pingora::Result<Box<HttpPeer>> {
        self.0.upstream_peer(session, ctx).await
    }

    async fn connected_to_upstream(
        &self,
        session: &mut Session,
        reused: bool,
        peer: &HttpPeer,
        fd: RawFd,
        digest: Option<&Digest>,
        ctx: &mut RequestContext,
    ) -> pingora::Result<()> {
        self.0.connected_to_upstream(session, reused, peer, fd, digest, ctx).await
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        ctx: &mut RequestContext,
    ) -> pingora::Result<()> {
        self.0.upstream_request_filter(session, request, ctx).await
    }

    async fn response_filter(
        &self,
        _session: &mut Session,
        _response: &mut ResponseHeader,
        _ctx: &mut RequestContext,
    ) -> pingora::Result<()> {
        panic!("a fault in a filter")
    }
}

#[tokio::test]
async fn a_panic_in_a_filter_ends_one_request_and_gives_its_load_back() {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = backend.local_addr().unwrap();
    let config =
        of_text(&format!("policy: {{kind: reference_plain}}\ngroups: [{{name: all, servers: [\"{server}\"]}}]"));
    let live = Arc::new(Live::new(config).unwrap());
    let balancer = Arc::clone(live.balancer());
    let health = Arc::new(crate::health::Health::new(Arc::clone(&live)));
    let proxy = Proxy::new(live, health, Arc::default());
    let proxy = Arc::new(http_proxy(&Arc::new(ServerConf::default()), Panicking(proxy)));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let session = ServerSession::new_http1(Box::new(Stream::from(stream)));
    let (_keep, shutdown) = tokio::sync::watch::channel(false);
    let handling = tokio::spawn(async move { proxy.process_new_http(session, &shutdown).await });

    client.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
    let (mut server_side, _) = backend.accept().await.unwrap();
    let mut request = vec![0; 1024];
    let read = server_side.read(&mut request).await.unwrap();
    assert!(read > 0);
    assert_eq!(balancer.snapshot().servers[0].in_flight, 1, "the request is counted while it runs");
    server_side.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.unwrap();

    assert!(handling.await.is_err_and(|error| error.is_panic()));
    assert_eq!(balancer.snapshot().servers[0], Usage::default());
    assert_eq!(client.read(&mut request).await.unwrap_or(0), 0, "the client's connection is closed");
    // The rest of the request may still be on its way; then the end must come.
    while server_side.read(&mut request).await.unwrap_or(0) > 0 {}
}
