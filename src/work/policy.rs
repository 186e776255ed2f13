//! What a policy is: one decision about one request. To add one, write a file with an implementation, and name it where
//! policies are chosen by name.

use super::cost::Cost;
use super::fleet::Fleet;
use super::request::{Request, RequestId};

/// What is to happen with a request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to a server.
    Assign {
        /// Which.
        server: usize,
        /// Why there, in a word or two.
        reason: &'static str,
    },
    /// It waits in the balancer and is asked for again when something has changed.
    Hold,
}

/// Whether a request may still be held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Holding {
    /// It may.
    Allowed {
        /// For how long it has been held; 0 when it has just come.
        waited_s: f64,
    },
    /// There is no room, or it has waited for too long: it has to go somewhere if any server is up.
    Over,
}

/// Decides where requests go.
///
/// A policy reads the [`Fleet`] and is told of nothing that it can read there. Times are seconds since any epoch.
pub trait Policy: std::fmt::Debug + Send {
    /// Its name in configuration, metrics and status.
    fn name(&self) -> &'static str;

    /// Adapts what depends on time and traffic, before requests are placed. `held_since_s`: since when the oldest of the
    /// requests waits that were answered with [`Verdict::Hold`].
    fn adapt(&mut self, _fleet: &Fleet, _held_since_s: Option<f64>, _now_s: f64) {}

    /// When time alone will make [`adapt`](Self::adapt) change something for requests that are held since then.
    fn next_change_s(&self, _held_since_s: f64) -> Option<f64> {
        None
    }

    /// When time alone may let a request go somewhere that is held since then; `prefill_s`: its least prefill when it came.
    fn patience_ends_s(&self, _held_since_s: f64, _prefill_s: f64) -> Option<f64> {
        None
    }

    /// Decides about a request, which goes to one of [`Fleet::candidates`] or nowhere. Asked only while there is one. When it says
    /// [`Verdict::Assign`], the request does go there.
    fn place(&mut self, fleet: &Fleet, request: &Request, holding: Holding, now_s: f64) -> Verdict;

    /// An assigned request has ended, however. For policies that keep a count of their own.
    fn left(&mut self, _id: RequestId) {}

    /// A server takes requests from now on, or takes none. For policies that keep a count of their own.
    fn server_changed(&mut self, _server: usize, _is_up: bool) {}

    /// The list of servers has been replaced; `origins` has for each its place before. For policies that keep a count of
    /// their own.
    fn reshaped(&mut self, _origins: &[Option<usize>]) {}

    /// What a request is charged with on a server beyond its [`Cost`], in seconds.
    fn surcharge_s(&self, _fleet: &Fleet, _server: usize, _cost: &Cost, _now_s: f64) -> f64 {
        0.0
    }

    /// The servers that are lanes for long requests, in order.
    fn lanes(&self) -> &[usize] {
        &[]
    }

    /// The name of the group that a server belongs to now.
    fn group(&self, server: usize) -> &str;
}
