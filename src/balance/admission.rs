//! Whether a server takes requests, and how many.

use super::{Load, load::Usage};

/// What a server may be given. Decided outside (health, draining, configuration); the balancer only obeys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Whether it takes new requests at all. A closed server keeps what runs on it.
    pub is_open: bool,
    /// Most requests that may run on it at once; `None` is no limit.
    pub max_in_flight: Option<u64>,
    /// Most load that may be active on it; a request that is larger by itself is let through when nothing else runs.
    /// `None` is no limit.
    pub max_load: Option<Load>,
}

impl Default for Admission {
    /// Open, without limits.
    fn default() -> Self {
        Self { is_open: true, max_in_flight: None, max_load: None }
    }
}

impl Admission {
    /// Takes nothing new.
    #[must_use]
    pub fn closed() -> Self {
        Self { is_open: false, ..Self::default() }
    }

    /// Whether a server on which so much runs may be given another request at all.
    pub(super) fn has_place(&self, usage: Usage) -> bool {
        self.is_open && self.max_in_flight.is_none_or(|most| usage.in_flight < most)
    }

    /// Whether it may be given this much more.
    pub(super) fn admits(&self, usage: Usage, load: Load) -> bool {
        let has_room = self.max_load.is_none_or(|most| {
            usage.in_flight == 0 || usage.load.millitokens() + load.millitokens() <= most.millitokens()
        });
        self.has_place(usage) && has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(in_flight: u64, load: u64) -> Usage {
        Usage { in_flight, load: Load::from_millitokens(load) }
    }

    #[test]
    fn an_open_server_without_limits_takes_everything() {
        assert!(Admission::default().admits(usage(1_000, u64::MAX / 2), Load::from_millitokens(u64::MAX / 2)));
    }

    #[test]
    fn a_closed_server_takes_nothing() {
        assert!(!Admission::closed().admits(usage(0, 0), Load::ZERO));
    }

    #[test]
    fn requests_are_counted_against_their_limit() {
        let admission = Admission { max_in_flight: Some(2), ..Admission::default() };
        assert!(admission.admits(usage(1, 0), Load::ZERO));
        assert!(!admission.admits(usage(2, 0), Load::ZERO));
    }

    #[test]
    fn load_is_counted_against_its_limit_but_a_giant_alone_may_pass() {
        let admission = Admission { max_load: Some(Load::from_millitokens(100)), ..Admission::default() };
        assert!(admission.admits(usage(1, 60), Load::from_millitokens(40)));
        assert!(!admission.admits(usage(1, 60), Load::from_millitokens(41)));
        assert!(admission.admits(usage(0, 0), Load::from_millitokens(500)));
    }
}
