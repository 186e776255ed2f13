//! What changes of the servers: requests come and go; servers come, go, open and close; what is known of them grows.

use super::{Capacity, Fleet, Prefill};
use crate::work::book::{Active, Entry};
use crate::work::calibration::{Dispatched, Learning};
use crate::work::observation::{EngineState, Observation};
use crate::work::profile::{Profile, as_f64};
use crate::work::request::{Request, RequestId};
use crate::work::server::{Admission, Server, ServerSpec};

impl Fleet {
    /// Enters a request on a server.
    pub(in crate::work) fn dispatch(&mut self, request: &Request, server: usize, now_s: f64) {
        let prefill = self.prefill(server, request);
        let (prefill_s, slowness) = (self.prefill_s(server, prefill), self.slowness(server));
        let Prefill { new_tokens, cached_tokens, .. } = prefill;
        if request.is_streamed {
            let dispatched = Dispatched { id: request.id, new_tokens, cached_tokens, prefill_s };
            self.calibration.dispatched(server, dispatched, self.book.sums(server), slowness, now_s);
        }
        let entry = Entry { prefill_s, prompt_tokens: request.prompt_tokens, is_long: self.is_long(prefill) };
        self.book.dispatch(request.id, server, entry, now_s);
        self.dispatches += 1;
        self.servers[server].last_dispatch = self.dispatches;
        self.servers[server].prefixes.touch(&request.prefix);
        self.servers[server].prefixes.touch(&request.session);
        self.refresh(server);
    }

    /// Notes a first token that was seen.
    pub(in crate::work) fn first_token(&mut self, id: RequestId, now_s: f64) {
        let Some(server) = self.book.active(id).map(|active| active.server) else { return };
        if self.book.first_token(id, now_s)
            && server < self.servers.len()
            && self.calibration.first_token(server, id, self.slowness(server), now_s)
        {
            self.adopt_learned();
        }
    }

    /// Notes how much a request has generated.
    pub(in crate::work) fn tokens(&mut self, id: RequestId, generated: u64, now_s: f64) {
        if let Some(server) = self.book.active(id).map(|active| active.server) {
            // When its first token came nobody knows.
            self.calibration.forget(server, id);
        }
        self.book.tokens(id, generated, now_s);
    }

    pub(in crate::work) fn observed(&mut self, server: usize, engine: EngineState, valid_for_s: f64, now_s: f64) {
        let book = *self.book.sums(server);
        self.servers[server].observation = Some(Observation { engine, book, at_s: now_s, valid_for_s });
        self.observed_until_s = self.observed_until_s.max(now_s + valid_for_s);
    }

    /// Strikes a request out; also says whether its server takes requests again because of that.
    pub(in crate::work) fn end(&mut self, id: RequestId, now_s: f64) -> Option<(Active, bool)> {
        let server = self.book.active(id)?.server;
        let active = self.book.end(id, now_s)?;
        self.calibration.forget(server, id);
        if server >= self.servers.len() {
            return Some((active, false));
        }
        let took = self.takes[server];
        self.refresh(server);
        Some((active, !took && self.takes[server]))
    }

    /// Says whether a server takes requests from now on. What runs on it stays in the book until it ends.
    pub(in crate::work) fn set_up(&mut self, server: usize, is_up: bool) {
        self.servers[server].set_up(is_up);
        self.count_anew();
    }

    pub(in crate::work) fn set_admission(&mut self, server: usize, admission: Admission) {
        self.servers[server].admission = admission;
        self.refresh(server);
    }

    /// Another profile from now on. What is in the book stays as it was predicted.
    pub(in crate::work) fn set_profile(&mut self, profile: Profile) {
        self.calibration.restart(profile);
        self.servers.iter_mut().for_each(|server| server.adopt(&profile));
        self.count_anew();
    }

    /// Other servers from now on, each with its place before. No place may stand twice.
    pub(in crate::work) fn reshape(&mut self, specs: &[ServerSpec]) {
        let mut old: Vec<Option<Server>> = std::mem::take(&mut self.servers).into_iter().map(Some).collect();
        for spec in specs {
            let kept = spec.origin.and_then(|origin| old.get_mut(origin)?.take());
            self.servers.push(match kept {
                Some(mut server) => {
                    server.become_as(spec, &self.profile);
                    server
                }
                None => Server::new(spec, &self.profile),
            });
        }
        let origins: Vec<Option<usize>> = specs.iter().map(|spec| spec.origin).collect();
        self.book.reshape(&origins);
        self.calibration
            .reshape(self.servers.iter().zip(&origins).map(|(server, origin)| (*origin, server.engine_class())));
        self.count_anew();
    }

    /// Takes so much memory for what all servers are believed to hold of prompts.
    pub(in crate::work) fn set_prefix_memory(&mut self, bytes: u64) {
        self.prefix_bytes = bytes;
        self.count_anew();
    }

    /// What is learned from now on of the seconds that servers take.
    pub(in crate::work) fn learn(&mut self, learning: Learning) {
        self.calibration.learn(learning);
        self.count_anew();
    }

    /// Takes over what has been learned, for what is dispatched from now on.
    fn adopt_learned(&mut self) {
        let count = as_f64(self.servers.len().max(1) as u64);
        let (prior, mut mean) = (*self.calibration.prior(), [0.0; 3]);
        for (server, (traits, capacity)) in self.servers.iter().zip(&mut self.capacities).enumerate() {
            capacity.slowness = traits.traits.slowness() * self.calibration.factor(server);
            let profile = self.calibration.classes()[capacity.engine_class].profile();
            let learned = [profile.per_token_s, profile.per_token_pair_s, profile.latency_s];
            mean.iter_mut().zip(learned).for_each(|(sum, value)| *sum += value / count);
        }
        let [per_token_s, per_token_pair_s, latency_s] = mean;
        let is_alike = self.calibration.classes().len() == 1 || self.servers.is_empty();
        self.profile = if is_alike {
            *self.class_profile(0)
        } else {
            Profile { per_token_s, per_token_pair_s, latency_s, ..prior }
        };
    }

    fn refresh(&mut self, server: usize) {
        self.takes[server] = self.servers[server].is_up && self.is_open(server);
    }

    /// Brings everything that is derived from the servers up to date.
    pub(super) fn count_anew(&mut self) {
        self.up = self.servers.iter().filter(|server| server.is_up).count();
        self.least_model_len =
            self.servers.iter().filter_map(|server| server.traits.max_model_len).min().unwrap_or(u64::MAX);
        let each_bytes = self.prefix_bytes / (self.servers.len() as u64).max(1);
        self.servers.iter_mut().for_each(|server| server.prefixes.limit_memory(each_bytes));
        let prior = self.calibration.prior();
        let capacity = |server: &Server| Capacity {
            slowness: server.traits.slowness(),
            kv_tokens: server.kv_tokens(prior),
            engine_class: server.engine_class(),
        };
        self.capacities = self.servers.iter().map(capacity).collect();
        self.adopt_learned();
        self.takes.resize(self.servers.len(), false);
        (0..self.servers.len()).for_each(|server| self.refresh(server));
        self.changes += 1;
    }
}
