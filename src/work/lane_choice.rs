//! Which servers are lanes, when so many are wanted.

use super::fleet::Fleet;
use super::profile::as_f64;
use super::server::Prefers;

/// How readily a server is made a lane, the most willing first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Willingness {
    /// Marked for long prompts.
    Marked,
    /// Not marked, and large enough for every prompt that any server can take.
    Large,
    /// Not marked, and too small for some.
    Small,
    /// Marked for short prompts.
    Averse,
}

/// The lanes, in the order of servers: the most willing of those that are up, of equally willing ones the last in order, and
/// none that is marked for short prompts while there are others. Never all of two and more.
///
/// `wanted` counts servers of mean speed, so that slow ones are taken in larger number; with `is_exact` it counts servers.
pub(super) fn choose(fleet: &Fleet, wanted: usize, is_exact: bool) -> Vec<usize> {
    let room = |server: usize| fleet.traits(server).max_model_len.unwrap_or(u64::MAX);
    let largest = fleet.up().map(room).max().unwrap_or(0);
    let willingness = |server: usize| match fleet.traits(server).prefers {
        Some(Prefers::Long) => Willingness::Marked,
        None if room(server) == largest => Willingness::Large,
        None => Willingness::Small,
        Some(Prefers::Short) => Willingness::Averse,
    };
    let mut order: Vec<(Willingness, usize)> = fleet.up().rev().map(|server| (willingness(server), server)).collect();
    order.sort_by_key(|(willingness, _)| *willingness);
    if order.first().is_some_and(|(willingness, _)| *willingness < Willingness::Averse) {
        order.retain(|(willingness, _)| *willingness < Willingness::Averse);
    }
    order.truncate(fleet.up_count().saturating_sub(1));
    let speed = |server: usize| if is_exact { 1.0 } else { fleet.slowness(server).recip() };
    let mean_speed = fleet.up().map(speed).sum::<f64>() / as_f64(fleet.up_count().max(1) as u64);
    // The number whose capacity is nearest to what is wanted.
    let (mut missing, mut lanes) = ((as_f64(wanted as u64) - 0.5) * mean_speed, Vec::new());
    for (_, server) in order {
        if missing <= 0.0 {
            break;
        }
        missing -= speed(server);
        lanes.push(server);
    }
    lanes.sort_unstable();
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{LLAMA3_8B_A100, ServerSpec, ServerTraits};

    fn lanes(traits: &[ServerTraits], wanted: usize, is_exact: bool) -> Vec<usize> {
        let specs: Vec<ServerSpec> =
            traits.iter().map(|traits| ServerSpec { traits: *traits, ..ServerSpec::default() }).collect();
        choose(&Fleet::new(&specs, LLAMA3_8B_A100, None), wanted, is_exact)
    }

    fn prefers(prefers: Option<Prefers>) -> ServerTraits {
        ServerTraits { prefers, ..ServerTraits::default() }
    }

    #[test]
    fn without_marks_the_last_servers_are_lanes() {
        let found = |servers: usize, wanted| lanes(&vec![ServerTraits::default(); servers], wanted, false);
        assert_eq!([found(4, 0), found(4, 1), found(4, 2), found(4, 9)], [vec![], vec![3], vec![2, 3], vec![1, 2, 3]]);
        assert!(found(1, 1).is_empty() && found(0, 1).is_empty());
    }

    #[test]
    fn marks_come_before_the_order_and_those_for_short_prompts_are_no_lanes() {
        let (long, short, none) = (prefers(Some(Prefers::Long)), prefers(Some(Prefers::Short)), prefers(None));
        let servers = [none, long, none, short, long, none, short];
        let found = |wanted| lanes(&servers, wanted, false);
        assert_eq!([found(1), found(2), found(3)], [vec![4], vec![1, 4], vec![1, 4, 5]]);
        assert_eq!(found(7), [0, 1, 2, 4, 5]);
        assert_eq!(lanes(&[short, short, short], 2, false), [1, 2]);
        assert_eq!(lanes(&[long, short], 1, false), [0]);
    }

    #[test]
    fn servers_that_are_too_small_for_some_prompts_are_taken_last() {
        let sized = |max_model_len| ServerTraits { max_model_len, ..ServerTraits::default() };
        let servers = [sized(Some(131_072)), sized(Some(131_072)), sized(Some(8_192)), sized(Some(32_768))];
        let found = |wanted| lanes(&servers, wanted, false);
        assert_eq!([found(1), found(2), found(3)], [vec![1], vec![0, 1], vec![0, 1, 3]]);
        assert_eq!(lanes(&[sized(None), sized(Some(9))], 1, false), [0]);
    }

    #[test]
    fn slow_servers_are_taken_in_larger_number_unless_it_is_pinned() {
        let at = |speed| ServerTraits { speed, ..ServerTraits::default() };
        let servers = [at(2.0), at(2.0), at(2.0), at(0.5), at(0.5), at(0.5), at(0.5), at(0.5)];
        assert_eq!(lanes(&servers, 1, false), [6, 7]);
        assert_eq!(lanes(&servers, 2, false), [4, 5, 6, 7]);
        assert_eq!(lanes(&servers, 2, true), [6, 7]);
    }
}
