//! Addresses that nobody else uses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};

/// A loopback address (all of 127/8 is loopback on Linux) that belongs to its owner alone, so that a port found free
/// on it stays free until the owner binds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loopback(Ipv4Addr);

impl Loopback {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Processes that run at the same time have close ids: give each a block of its own.
        let number = std::process::id().wrapping_mul(251).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        // The first and the last block hold the usual 127.0.0.1 and the broadcast address.
        let [_, a, b, c] = (number % ((1 << 24) - 512) + 256).to_be_bytes();
        Self(Ipv4Addr::new(127, a, b, c))
    }

    pub(crate) fn ip(self) -> IpAddr {
        self.0.into()
    }

    /// `N` different free ports.
    pub(crate) fn free_ports<const N: usize>(self) -> [SocketAddr; N] {
        let listeners: Vec<TcpListener> =
            (0..N).map(|_| TcpListener::bind((self.0, 0)).expect("a loopback address has free ports")).collect();
        std::array::from_fn(|n| listeners[n].local_addr().expect("a bound socket has an address"))
    }
}

/// An address at which connections are refused.
pub(crate) fn closed_address() -> SocketAddr {
    let [address] = Loopback::new().free_ports();
    address
}

/// An address at which connections are neither accepted nor refused.
#[derive(Debug)]
pub(crate) struct BlackHole {
    listener: tokio::net::TcpListener,
    _fill: Vec<TcpStream>,
}

impl BlackHole {
    pub(crate) async fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket can be made");
        socket.bind(SocketAddr::new(Loopback::new().ip(), 0)).expect("nobody else uses the address");
        // When the queue of connections nobody accepts is full, Linux drops what else comes.
        let listener = socket.listen(0).expect("a bound socket can listen");
        let address = listener.local_addr().expect("a bound socket has an address");
        let mut fill = Vec::new();
        while let Ok(stream) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            fill.push(stream.expect("the first connections are queued"));
        }
        Self { listener, _fill: fill }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("a bound socket has an address")
    }
}
