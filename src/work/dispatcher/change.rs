//! What changes while requests run: servers come, go, close and open; the list of servers, the settings and the policy are
//! replaced. Nothing is lost of the book or of what is held.

use super::{Dispatcher, Settings};
use crate::work::calibration::Learning;
use crate::work::observation::EngineState;
use crate::work::policy::Policy;
use crate::work::server::{Admission, ServerSpec};

impl Dispatcher {
    /// A server is up from now on, or not: it is not healthy, or drains. One that is not up is no lane, and gets nothing; what
    /// runs on it stays in the book until it ends.
    pub fn server(&mut self, server: usize, is_up: bool, now_s: f64) {
        self.pass(now_s);
        self.fleet.set_up(server, is_up);
        self.policy.server_changed(server, is_up);
        self.settle_anew();
    }

    /// A server that is up takes requests from now on, or none for the moment.
    pub fn set_open(&mut self, server: usize, is_open: bool, now_s: f64) {
        self.set_admission(server, Admission { is_open, ..self.fleet.admission(server) }, now_s);
    }

    /// What a server may be given from now on, while it is up. While no server that a request may go to takes it, it is held,
    /// short or long, and goes in order of arrival when one does; a long one takes its turn on a lane before those.
    pub fn set_admission(&mut self, server: usize, admission: Admission, now_s: f64) {
        self.pass(now_s);
        self.fleet.set_admission(server, admission);
        self.settle_anew();
    }

    /// The servers from now on, in order, each with its place in the list before. A place that stands twice counts once.
    ///
    /// What runs on a server that is gone stays in the book until it ends. What is held stays held; the servers that it must not
    /// go to are known by their new places, and those of requests that come are meant so from now on.
    pub fn reshape(&mut self, servers: &[ServerSpec], now_s: f64) {
        self.pass(now_s);
        let mut places = vec![None; self.fleet.server_count()];
        let mut specs = servers.to_vec();
        for (place, spec) in specs.iter_mut().enumerate() {
            let free = spec.origin.and_then(|origin| places.get_mut(origin)).filter(|found| found.is_none());
            match free {
                Some(found) => *found = Some(place),
                None => spec.origin = None,
            }
        }
        self.fleet.reshape(&specs);
        let origins: Vec<Option<usize>> = specs.iter().map(|spec| spec.origin).collect();
        self.policy.reshaped(&origins);
        let fleet = &self.fleet;
        self.hold.change_all(|held| {
            let excluded = &mut held.request.excluded;
            *excluded = excluded.iter().filter_map(|server| places.get(*server).copied().flatten()).collect();
            excluded.sort_unstable();
            held.size_class = fleet.size_class(&held.request);
        });
        self.settle_anew();
    }

    /// Other settings from now on, and another policy if there is one. What is in the book stays as it was predicted; what was
    /// learned of the traffic stays, only that a new policy finds its own numbers (as that of lanes) anew. What is held beyond new
    /// bounds stays held.
    pub fn reconfigure(&mut self, settings: Settings, policy: Option<Box<dyn Policy>>, now_s: f64) {
        self.pass(now_s);
        self.limits = settings.hold;
        self.fleet.learned.pin(settings.long_from_tokens);
        if *self.fleet.calibration().prior() != settings.profile {
            self.fleet.set_profile(settings.profile);
        }
        if let Some(policy) = policy {
            self.policy = policy;
            for server in (0..self.fleet.server_count()).filter(|server| !self.fleet.is_up(*server)) {
                self.policy.server_changed(server, false);
            }
        }
        self.settle_anew();
    }

    /// What is learned from now on of the seconds that servers take; by default nothing. What is not learned any more is
    /// forgotten. See [`Calibration`](crate::work::Calibration).
    pub fn learn(&mut self, learning: Learning) {
        self.fleet.learn(learning);
    }

    /// Takes so many bytes of memory for what all servers are believed to hold of prompts, each the same part. By default
    /// [`DEFAULT_PREFIX_BYTES`](crate::work::DEFAULT_PREFIX_BYTES).
    pub fn set_prefix_memory(&mut self, bytes: u64) {
        self.fleet.set_prefix_memory(bytes);
    }

    /// An engine has reported how busy it is. What it has beyond the book is added to what decisions read of it, less and less
    /// for so many seconds. The book itself is not touched, and nothing happens at once.
    pub fn observed(&mut self, server: usize, engine: EngineState, valid_for_s: f64, now_s: f64) {
        self.pass(now_s);
        self.fleet.observed(server, engine, valid_for_s, self.now_s);
    }

    /// Asks again for everything that is held.
    fn settle_anew(&mut self) {
        self.has_opened = true;
        self.settle();
    }
}
