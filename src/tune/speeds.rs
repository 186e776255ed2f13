//! How fast each server of a log is, relative to the others.
//!
//! The quickest first tokens of a server are those of requests that met it idle; there the time is the prefill alone.
//! Their ratio to the predicted prefill tells the speed, whatever the profile: only the servers' ratios to each other are
//! used.

use crate::simulate::FirstToken;
use crate::work::Profile;

/// One server's speed; 1 is the mean of all.
#[derive(Debug, Clone, PartialEq)]
pub struct Speed {
    /// Its name in the log.
    pub server: String,
    /// How many times as fast as the mean.
    pub speed: f64,
    /// Requests that it rests on.
    pub requests: usize,
}

/// Prefills that are quicker are mostly the fixed time of a step and of the network.
const LEAST_PREFILL_S: f64 = 0.05;

/// With fewer requests nothing is said of a server.
const LEAST_REQUESTS: usize = 50;

/// One of so many is looked at: the quickest.
const QUICKEST: usize = 10;

/// Speeds of servers that differ by less are alike.
const ALIKE: f64 = 1.2;

/// The speeds of all servers, when they differ; nothing when they are alike or too little is known.
#[must_use]
pub fn speeds(first_tokens: &[FirstToken], servers: &[String], profile: &Profile) -> Vec<Speed> {
    let of = |server: usize| {
        let these = first_tokens.iter().filter(|first| first.server == server);
        let prefill = |first: &FirstToken| (first.ttft_s, profile.prefill_s(first.new_tokens, 0));
        let mut slowness: Vec<f64> = these
            .map(prefill)
            .filter(|(ttft_s, prefill_s)| *prefill_s >= LEAST_PREFILL_S && *ttft_s > 0.0)
            .map(|(ttft_s, prefill_s)| ttft_s / prefill_s)
            .collect();
        slowness.sort_by(f64::total_cmp);
        let requests = slowness.len();
        (requests >= LEAST_REQUESTS).then(|| (1.0 / slowness[requests / QUICKEST], requests))
    };
    let Some(known) = (0..servers.len()).map(of).collect::<Option<Vec<(f64, usize)>>>() else { return Vec::new() };
    let (least, most) =
        known.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), (speed, _)| (a.min(*speed), b.max(*speed)));
    if known.len() < 2 || most / least < ALIKE {
        return Vec::new();
    }
    let mean = known.iter().map(|(speed, _)| speed).sum::<f64>() / crate::simulate::as_f64(known.len() as u64);
    let speed = |(server, (speed, requests)): (&String, &(f64, usize))| Speed {
        server: server.clone(),
        speed: speed / mean,
        requests: *requests,
    };
    servers.iter().zip(&known).map(speed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::LLAMA3_8B_A100;

    /// First tokens of two servers, each after its prefill and, three times of four, a wait.
    fn first_tokens(slowness: [f64; 2], count: u64) -> Vec<FirstToken> {
        let one = |number: u64| {
            let (server, new_tokens) = ((number % 2) as usize, 1_000 + number * 37 % 4_000);
            let prefill_s = slowness[server] * LLAMA3_8B_A100.prefill_s(new_tokens, 0);
            FirstToken { server, new_tokens, ttft_s: prefill_s * [1.0, 1.5, 2.0, 9.0][(number / 2 % 4) as usize] }
        };
        (0..count).map(one).collect()
    }

    fn names() -> Vec<String> {
        ["a", "b"].map(str::to_owned).to_vec()
    }

    #[test]
    fn a_server_that_is_twice_as_fast_is_found_whatever_the_profile() {
        let found = speeds(&first_tokens([3.0, 6.0], 800), &names(), &LLAMA3_8B_A100);
        assert_eq!(found.len(), 2);
        assert!((found[0].speed / found[1].speed - 2.0).abs() < 0.05, "{found:?}");
        assert!((found[0].speed + found[1].speed - 2.0).abs() < 1e-9 && found[0].requests == 400, "{found:?}");
    }

    #[test]
    fn servers_that_are_alike_or_hardly_known_have_no_speeds() {
        assert_eq!(speeds(&first_tokens([1.0, 1.1], 800), &names(), &LLAMA3_8B_A100), []);
        assert_eq!(speeds(&first_tokens([1.0, 2.0], 60), &names(), &LLAMA3_8B_A100), []);
        assert_eq!(speeds(&[], &[], &LLAMA3_8B_A100), []);
    }
}
