//! The least that a proxy on Pingora does, to compare Tidegate with: each request goes to the next server, nothing is read,
//! counted or decided.
//!
//! ```text
//! cargo run --release --example bare_pingora -- PORT SERVER...
//! ```

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pingora::Result;
use pingora::modules::http::HttpModules;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server};
use pingora::upstreams::peer::HttpPeer;

// As Tidegate has it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

struct RoundRobin {
    servers: Vec<SocketAddr>,
    next: AtomicUsize,
}

#[async_trait]
impl ProxyHttp for RoundRobin {
    type CTX = ();

    fn new_ctx(&self) {}

    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn upstream_peer(&self, _session: &mut Session, (): &mut ()) -> Result<Box<HttpPeer>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(HttpPeer::new(self.servers[turn % self.servers.len()], false, String::new())))
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().expect("a port to listen on");
    let servers: Vec<SocketAddr> = arguments.map(|address| address.parse().expect("IP:PORT of a server")).collect();
    assert!(!servers.is_empty(), "usage: bare_pingora PORT SERVER...");
    // One thread, as the others in the comparison have; kept connections as many as Tidegate's.
    let conf = ServerConf {
        threads: 1,
        work_stealing: false,
        upstream_keepalive_pool_size: 10_240,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, RoundRobin { servers, next: AtomicUsize::new(0) });
    service.add_tcp(&format!("127.0.0.1:{port}"));
    server.add_service(service);
    server.run(RunArgs::default());
}
