//! Watches the client while a connection to a server is being made.
//!
//! Pingora does not look at the client then, and making a connection may take seconds. So the client's session is lent to
//! what makes the connection, which gives up when the client leaves or its request takes too long.

use std::future::Future;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::connectors::L4Connect;
use pingora::protocols::http::ServerSession;
use pingora::protocols::l4::ext;
use pingora::protocols::l4::socket::SocketAddr;
use pingora::protocols::l4::stream::Stream;
use pingora::proxy::Session;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::connect::left_or_late;
use super::downstream;

/// A session that is lent. It comes back by [`Loan::end`]; dropped before, it closes the client's connection.
pub(super) struct Loan(Arc<Lent>);

#[derive(Default)]
struct Lent {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Box<ServerSession>>,
    /// Why the request is over, when it is.
    over: Option<Box<Error>>,
    /// Watches while TLS is agreed on.
    watcher: Option<AbortHandle>,
}

impl std::fmt::Debug for Lent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lent").finish_non_exhaustive()
    }
}

impl Loan {
    /// Lends the session to the making of connections to the peer, which may take so long.
    pub(super) fn begin(session: &mut Session, peer: &mut HttpPeer, limit: Duration) -> Self {
        let real = std::mem::replace(&mut session.downstream_session, downstream::placeholder());
        let lent = Arc::new(Lent { state: Mutex::new(State { session: Some(real), ..State::default() }) });
        let connect = Connect { lent: Arc::clone(&lent), limit, has_tls: peer.is_tls() };
        peer.options.custom_l4 = Some(Arc::new(connect));
        Self(lent)
    }

    /// The session is its owner's again; with the reason when the request is over.
    pub(super) fn end(self, session: &mut Session) -> Option<Box<Error>> {
        let mut state = self.0.state.lock();
        if let Some(real) = state.session.take() {
            session.downstream_session = real;
        }
        state.over.take()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let State { session, over: _, watcher } = std::mem::take(&mut *self.0.state.lock());
        drop(session);
        if let Some(watcher) = watcher {
            watcher.abort();
        }
    }
}

impl Lent {
    /// Resolves when the client has left, or its request has taken too long. Cancel safe.
    async fn over(&self) {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            let Some(session) = &mut state.session else { return Poll::Pending };
            let Poll::Ready(read) = pin!(session.read_body_or_idle(true)).poll(cx) else { return Poll::Pending };
            state.over = Some(left_or_late(read));
            Poll::Ready(())
        })
        .await;
    }
}

/// Makes the TCP connection, in place of Pingora.
#[derive(Debug)]
struct Connect {
    lent: Arc<Lent>,
    limit: Duration,
    has_tls: bool,
}

#[async_trait]
impl L4Connect for Connect {
    async fn connect(&self, address: &SocketAddr) -> Result<Stream> {
        let address = address
            .as_inet()
            .ok_or_else(|| Error::explain(ErrorType::ConnectError, "servers have Internet addresses only"))?;
        let stream = tokio::select! {
            biased;
            () = self.lent.over() => return Error::e_explain(ErrorType::ConnectionClosed, "the request is over"),
            connected = timeout(self.limit, ext::connect(address, None)) => connected.unwrap_or_else(|_| {
                Error::e_explain(ErrorType::ConnectTimedout, format!("no connection within {:?}", self.limit))
            })?,
        };
        if self.has_tls {
            self.watch(&stream);
        }
        Ok(stream.into())
    }
}

impl Connect {
    /// Watches on while Pingora agrees with the server on TLS: the connection is shut down when the request is over.
    fn watch(&self, stream: &TcpStream) {
        let copy = match stream.as_fd().try_clone_to_owned() {
            Ok(copy) => std::net::TcpStream::from(copy),
            Err(error) => return log::debug!("a TLS handshake is not watched: {error}"),
        };
        let lent = Arc::clone(&self.lent);
        let watcher = tokio::spawn(async move {
            lent.over().await;
            if let Err(error) = copy.shutdown(Shutdown::Both) {
                log::debug!("a TLS handshake cannot be ended: {error}");
            }
        });
        self.lent.state.lock().watcher = Some(watcher.abort_handle());
    }
}
