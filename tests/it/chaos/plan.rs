//! Which servers there are, and the configurations that a run goes through.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::servers::{Server, pick};

/// These are good and in service, one in each group.
pub(super) const STEADY: usize = 2;
/// So many more stand in the configuration, for the most part.
pub(super) const LISTED: usize = 4;
/// So many more are found by discovery, for the most part.
pub(super) const FOUND: usize = 2;

pub(super) const GROUPS: [&str; 2] = ["short", "long"];

/// Where the servers are: first the steady ones, then the listed, then the found.
pub(super) struct Fleet {
    pub(super) addresses: Vec<SocketAddr>,
    /// How often each server was about to leave or to join.
    moves: Vec<AtomicU64>,
    folder: tempfile::TempDir,
}

impl Fleet {
    pub(super) fn new(servers: &[Server]) -> Self {
        Self {
            addresses: servers.iter().map(|server| server.address).collect(),
            moves: servers.iter().map(|_| AtomicU64::new(0)).collect(),
            folder: tempfile::tempdir().expect("a temporary directory can be made"),
        }
    }

    pub(super) fn name(&self, server: usize) -> String {
        self.addresses[server].to_string()
    }

    /// The number of the server with this name.
    pub(super) fn number(&self, name: &str) -> usize {
        let position = self.addresses.iter().position(|address| address.to_string() == name);
        position.unwrap_or_else(|| panic!("{name} is none of our servers"))
    }

    pub(super) fn found(&self) -> std::ops::Range<usize> {
        STEADY + LISTED..STEADY + LISTED + FOUND
    }

    /// The file from which a group's servers are discovered.
    pub(super) fn file(&self, group: usize) -> PathBuf {
        self.folder.path().join(GROUPS[group])
    }

    pub(super) fn moves(&self, server: usize) -> u64 {
        self.moves[server].load(Ordering::Relaxed)
    }

    /// The server may leave or join from now on.
    pub(super) fn about_to_move(&self, server: usize) {
        self.moves[server].fetch_add(1, Ordering::Relaxed);
    }
}

/// A server as it stands in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) server: usize,
    pub(super) is_drained: bool,
}

/// A configuration.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) threshold: u64,
    pub(super) groups: [Vec<Place>; 2],
    /// Whether servers of the group are discovered, too.
    pub(super) discovers: [bool; 2],
    is_probing: bool,
    policy: &'static str,
    /// The policy beside it.
    shadow: &'static str,
    ties: &'static str,
    redirect_threshold: &'static str,
    most_in_flight: &'static str,
}

impl Plan {
    /// Everybody is there and may serve.
    pub(super) fn everybody() -> Self {
        let place = |server| Place { server, is_drained: false };
        Self {
            threshold: 1_000,
            groups: [0, 1].map(|group| (0..STEADY + LISTED).filter(|server| server % 2 == group).map(place).collect()),
            discovers: [true, true],
            is_probing: true,
            // Equal prompts go to the server that has them in its cache, by work: all servers get some only by buckets.
            policy: "reference_bucket",
            shadow: "lanes",
            ties: "least_recently_used",
            redirect_threshold: "0.12",
            most_in_flight: "none",
        }
    }

    /// Any configuration, with one steady server in each group.
    pub(super) fn roll(die: &mut StdRng) -> Self {
        let first: usize = die.random_range(0..STEADY);
        let mut groups: [Vec<Place>; 2] = [first, 1 - first].map(|server| vec![Place { server, is_drained: false }]);
        for server in STEADY..STEADY + LISTED {
            let (group, is_drained) = (die.random_range(0..2_usize), die.random_ratio(1, 8));
            if !die.random_ratio(1, 5) {
                groups[group].push(Place { server, is_drained });
            }
        }
        groups.iter_mut().for_each(|group| group.shuffle(die));
        let policies = ["lanes", "reference_bucket", "least_work", "reference_plain"];
        let (policy, shadow) = (pick(die, &policies), pick(die, &policies));
        Self {
            threshold: pick(die, &[50, 200, 1_000, 5_000, 30_000]),
            groups,
            discovers: [0, 1].map(|_| !die.random_ratio(1, 8)),
            is_probing: !die.random_ratio(1, 8),
            policy,
            shadow: if shadow == policy { "none" } else { shadow },
            ties: pick(die, &["first", "least_recently_used"]),
            redirect_threshold: pick(die, &["0", "0.12", "0.5", "1"]),
            most_in_flight: pick(die, &["none", "8", "20"]),
        }
    }

    /// Where a server stands in it.
    pub(super) fn place(&self, server: usize) -> Option<Place> {
        self.groups.iter().flatten().find(|place| place.server == server).copied()
    }

    /// Where a group ends for the status, in tokens: ranges are of buckets.
    pub(super) fn to_tokens(&self, group: usize) -> Option<u64> {
        (self.policy == "reference_bucket").then_some([self.threshold, 131_072][group])
    }

    pub(super) fn yaml(&self, fleet: &Fleet, [address, admin]: [SocketAddr; 2]) -> String {
        let mut groups = String::new();
        for (group, places) in self.groups.iter().enumerate() {
            let servers = places.iter().map(|place| {
                let (name, drain) = (fleet.name(place.server), place.is_drained);
                format!("{{ address: \"{name}\", drain: {drain} }}")
            });
            let servers = servers.collect::<Vec<_>>().join(", ");
            let up_to = [self.threshold, 131_072][group];
            let file = fleet.file(group);
            let discover = format!(", discover: {{ file: {}, interval: 100ms }}", file.display());
            let discover = if self.discovers[group] { &discover } else { "" };
            let name = GROUPS[group];
            writeln!(groups, "  - {{ name: {name}, up_to_tokens: {up_to}, servers: [{servers}]{discover} }}")
                .expect("a string takes all");
        }
        let Self { is_probing, policy, shadow, ties, redirect_threshold, most_in_flight, threshold, .. } = self;
        format!(
            "listen: \"{address}\"\nadmin: {{ listen: \"{admin}\" }}\npingora: {{ threads: 2 }}\ngroups:\n{groups}\
             policy: {{ kind: {policy}, shadow: {shadow}, ties: {ties}, redirect_threshold: {redirect_threshold}, \
             long_from_tokens: {threshold}, max_hold: 10s }}\n\
             engines: {{ enabled: false }}\n\
             queue: {{ server_max_in_flight: {most_in_flight}, max_wait: 15s }}\n{RETRY}{TIMEOUTS}\
             health:\n  active: {{ enabled: {is_probing}, interval: 50ms, timeout: 1s, failures: 3, successes: 2 }}\n\
             {PASSIVE}"
        )
    }
}

/// More attempts than there are servers: the last one finds the good one.
const RETRY: &str = "retry: { max_attempts: 12, base_delay: 1ms, max_delay: 5ms }\n";

/// Short enough for servers that hang, and long enough for good ones on a busy machine. Kept connections end soon, so that
/// files that stay open are seen.
const TIMEOUTS: &str = "timeouts: { connect: 3s, first_byte: 2s, response_idle: 2s, server_keepalive: 1s }\n";

const PASSIVE: &str = "  passive: { base_ejection: 100ms, max_ejection: 1s, first_byte_limit: 1s, \
                       dead_stream_limit: 2s }\n";

#[test]
fn plans_can_be_run_and_leave_a_steady_server_in_each_group() {
    use rand::SeedableRng;
    let mut die = StdRng::seed_from_u64(1);
    for _ in 0..1_000 {
        let plan = Plan::roll(&mut die);
        for group in &plan.groups {
            assert_eq!(group.iter().filter(|place| place.server < STEADY && !place.is_drained).count(), 1, "{plan:?}");
        }
    }
}
