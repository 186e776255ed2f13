//! What others do, to compare with.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::work::{Fleet, Holding, Policy, Request, Verdict};

/// The baseline of this name.
pub(super) fn named(name: &str, seed: u64) -> Option<Box<dyn Policy>> {
    let kind = match name {
        "round_robin" => Kind::RoundRobin { next: 0 },
        "least_requests" => Kind::LeastRequests,
        "power_of_two" => Kind::PowerOfTwo { random: Box::new(StdRng::seed_from_u64(seed)) },
        _ => return None,
    };
    Some(Box::new(Baseline { kind }))
}

#[derive(Debug)]
struct Baseline {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    RoundRobin { next: usize },
    LeastRequests,
    PowerOfTwo { random: Box<StdRng> },
}

fn requests(fleet: &Fleet, server: usize) -> u64 {
    let sums = fleet.book.sums(server);
    sums.waiting + sums.streams
}

impl Policy for Baseline {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::RoundRobin { .. } => "round_robin",
            Kind::LeastRequests => "least_requests",
            Kind::PowerOfTwo { .. } => "power_of_two",
        }
    }

    fn place(&mut self, fleet: &Fleet, request: &Request, _: Holding, _: f64) -> Verdict {
        let up: Vec<usize> = fleet.candidates(request).collect();
        let least = |servers: &[usize]| {
            servers.iter().copied().min_by_key(|server| (requests(fleet, *server), fleet.last_dispatch(*server)))
        };
        let server = match &mut self.kind {
            Kind::RoundRobin { next } => {
                *next += 1;
                up[*next % up.len()]
            }
            Kind::LeastRequests => least(&up).unwrap_or(up[0]),
            Kind::PowerOfTwo { random } => {
                let pair = [0, 1].map(|_| up[random.random_range(0..up.len())]);
                least(&pair).unwrap_or(up[0])
            }
        };
        Verdict::Assign { server, reason: "baseline" }
    }

    fn group(&self, _: usize) -> &'static str {
        "all"
    }
}
