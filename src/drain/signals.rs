//! What the process does on signals, from its start to its end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use super::announce::announce;
use super::hand_over::hand_over;
use super::{Drain, LOOK_EVERY, Sockets};
use crate::config::Shutdown;
use crate::upstream::Live;

/// After the sockets were handed over: how long both processes accept, so that connections go on being accepted while
/// the successor comes up.
const OVERLAP: Duration = Duration::from_secs(1);

/// Runs the process's end: Pingora is told of a shutdown when there is nothing left to wait for.
#[derive(Debug)]
pub struct Signals {
    /// Whom to tell, and what runs.
    pub drain: Arc<Drain>,
    /// Whose configuration says how long the steps may take, when they begin.
    pub live: Arc<Live>,
    /// The listening sockets.
    pub sockets: Sockets,
    /// All addresses that this process will listen on.
    pub addresses: Vec<String>,
    /// Path of Pingora's upgrade socket.
    pub upgrade_sock: String,
    /// Whether this process takes over from another one.
    pub took_over: bool,
}

/// What a signal asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    /// SIGTERM.
    Stop,
    /// SIGINT.
    StopNow,
    /// SIGQUIT.
    HandOver,
}

struct Incoming {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

impl Incoming {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        })
    }

    /// The next signal. Cancel safe.
    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.terminate.recv() => Wish::Stop,
            _ = self.interrupt.recv() => Wish::StopNow,
            _ = self.quit.recv() => Wish::HandOver,
        }
    }

    /// Resolves at a second signal. SIGQUIT does not hurry: an end is on its way that is as gentle.
    async fn hurry(&mut self) {
        while self.next().await == Wish::HandOver {}
    }
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    /// Returns when the process is to end. Always a fast shutdown: the gentle part is over by then.
    async fn recv(&self) -> ShutdownSignal {
        match Incoming::new() {
            Ok(incoming) => {
                self.sockets.open();
                self.until_the_end(incoming).await;
            }
            Err(error) => log::error!("signals cannot be received, stopping: {error}"),
        }
        ShutdownSignal::FastShutdown
    }
}

impl Signals {
    fn limits(&self) -> Shutdown {
        self.live.get().config.shutdown.clone()
    }

    async fn until_the_end(&self, mut incoming: Incoming) {
        let mut announcing = pin!(self.announce_once_listening());
        let mut wish = None;
        loop {
            let next = match wish.take() {
                Some(wish) => wish,
                None => tokio::select! {
                    never = &mut announcing => never,
                    wish = incoming.next() => wish,
                },
            };
            match next {
                Wish::StopNow => {
                    log::info!("SIGINT: stopping at once");
                    return self.report_cut(self.drain.requests_running());
                }
                Wish::Stop => {
                    let Shutdown { delay, grace } = self.limits();
                    log::info!("SIGTERM: not ready; new clients for {delay:?} yet, then {grace:?} for what runs");
                    self.drain.stop_being_ready();
                    return self.wind_down(delay, &mut incoming).await;
                }
                Wish::HandOver => {
                    let is_handed_over = tokio::select! {
                        is_handed_over = self.hand_over() => is_handed_over,
                        // Waiting for a successor does not make it deaf. A repeated SIGQUIT begins anew.
                        other = incoming.next() => {
                            wish = Some(other);
                            false
                        }
                    };
                    if is_handed_over {
                        return self.wind_down(OVERLAP, &mut incoming).await;
                    }
                }
            }
        }
    }

    /// Says once that this process serves; then waits for ever.
    async fn announce_once_listening(&self) -> Wish {
        while !self.sockets.have_all(&self.addresses) {
            sleep(LOOK_EVERY).await;
        }
        log::info!("serving");
        announce(self.took_over);
        std::future::pending().await
    }

    /// True when a successor has the sockets.
    async fn hand_over(&self) -> bool {
        log::info!("SIGQUIT: handing the listening sockets over at {}", self.upgrade_sock);
        let Some(sockets) = self.sockets.table() else {
            log::error!("there are no sockets to hand over yet; going on");
            return false;
        };
        match hand_over(sockets, &self.upgrade_sock).await {
            Ok(()) => {
                log::info!("a successor has the sockets; finishing what runs here, for {:?}", self.limits().grace);
                true
            }
            Err(error) => {
                log::error!("the listening sockets were not handed over, going on serving: {error}");
                false
            }
        }
    }

    /// Accepts clients for so long, then lets what runs come to its end. A second signal ends it all.
    async fn wind_down(&self, accept_for: Duration, incoming: &mut Incoming) {
        let is_upgrade = self.drain.is_ready();
        self.drain.leave();
        let wind_down = async {
            sleep(accept_for).await;
            if is_upgrade {
                self.drain.close_admin();
            }
            self.drain.finish(self.limits().grace).await
        };
        let cut = tokio::select! {
            cut = wind_down => cut,
            () = incoming.hurry() => {
                log::info!("a second signal: stopping at once");
                self.drain.requests_running()
            }
        };
        self.report_cut(cut);
    }

    fn report_cut(&self, requests: usize) {
        if requests > 0 {
            log::warn!("stopped: {requests} running requests were cut off (shutdown.grace {:?})", self.limits().grace);
        } else {
            log::info!("stopped: all requests were finished");
        }
    }
}
