//! What is compared: a policy with everything that can be set of it.

use super::baseline;
use crate::drive::{POLICIES, Setup, SetupError};
use crate::work::{Dispatcher, HoldLimits, Profile};

/// Every policy there is, the reference first and the default last: the order of tables.
pub const ALL_POLICIES: [&str; 7] =
    ["reference_plain", "reference_bucket", "round_robin", "least_requests", "power_of_two", "least_work", "lanes"];

/// A policy over a number of servers.
#[derive(Debug, Clone)]
pub struct Contender {
    /// What to call it.
    pub name: String,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// One of the product.
    Product(Box<Setup>),
    /// One of others, to compare with.
    Baseline { servers: usize, belief: Profile },
}

impl Contender {
    /// A policy by its name, with defaults.
    ///
    /// # Errors
    /// When there is none of this name, or it cannot be run over so many servers.
    pub fn named(name: &str, servers: usize, belief: Profile) -> Result<Self, SetupError> {
        if POLICIES.contains(&name) || !ALL_POLICIES.contains(&name) {
            return Self::of(name.to_owned(), Setup { profile: belief, ..Setup::new(name, servers) });
        }
        if servers == 0 {
            return Err(SetupError::TooFewServers { policy: name.to_owned(), least: 1, servers });
        }
        Ok(Self { name: name.to_owned(), kind: Kind::Baseline { servers, belief } })
    }

    /// A policy of the product, set up in its own way.
    ///
    /// # Errors
    /// When it cannot be run so.
    pub fn of(name: String, setup: Setup) -> Result<Self, SetupError> {
        setup.clone().dispatcher()?;
        Ok(Self { name, kind: Kind::Product(Box::new(setup)) })
    }

    /// The policy before anything has happened.
    #[must_use]
    pub fn dispatcher(&self, seed: u64) -> Dispatcher {
        match &self.kind {
            Kind::Product(setup) => Setup::clone(setup).dispatcher().expect("it could be made before"),
            Kind::Baseline { servers, belief } => {
                let policy = baseline::named(&self.name, seed).expect("the names are the same");
                Dispatcher::new(*servers, *belief, policy, HoldLimits::default(), None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::LLAMA3_8B_A100;

    #[test]
    fn every_policy_can_be_named_and_is_what_it_is_called() {
        for name in ALL_POLICIES {
            let contender = Contender::named(name, 4, LLAMA3_8B_A100).unwrap();
            assert_eq!(contender.dispatcher(1).policy().name(), name);
        }
        for name in POLICIES {
            assert!(ALL_POLICIES.contains(&name), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let refused = |name, servers| Contender::named(name, servers, LLAMA3_8B_A100).unwrap_err().to_string();
        assert!(refused("best", 4).starts_with("there is no policy \"best\""));
        assert_eq!(refused("round_robin", 0), "round_robin needs at least 1 servers, there are 0");
        assert_eq!(refused("reference_bucket", 1), "reference_bucket needs at least 2 servers, there are 1");
    }
}
