//! The balancer against a plain model, and what it promises under concurrency.

use std::ops::Range;
use std::sync::Barrier;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::prompt::Budget;

/// What a test does next.
#[derive(Debug, Clone)]
enum Step {
    Acquire {
        demand: Demand,
        tried: u16,
    },
    AcquireWeightless {
        tried: u16,
    },
    /// Ends one of the running requests, counted round.
    Drop(usize),
}

/// The balancer retold without a ledger: everything is computed anew from the requests that run.
struct Model {
    groups: Vec<Range<usize>>,
    policy: Policy,
    ties: Ties,
    running: Vec<Running>,
    /// When each server was last chosen; 0 is never.
    last_chosen: Vec<usize>,
    choices: usize,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    server: usize,
    millitokens: u64,
}

impl Model {
    fn usage(&self, servers: Range<usize>) -> Usage {
        let here = || self.running.iter().filter(|request| servers.contains(&request.server));
        let millitokens = here().map(|request| request.millitokens).sum();
        Usage { load: Load::from_millitokens(millitokens), in_flight: here().count() as u64 }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            servers: self.all().map(|server| self.usage(server..server + 1)).collect(),
            groups: self.groups.iter().map(|group| self.usage(group.clone())).collect(),
        }
    }

    fn all(&self) -> Range<usize> {
        0..self.last_chosen.len()
    }

    /// The best server of a range: least load, and of equals the first or the one not chosen for longest.
    fn best(&self, servers: Range<usize>, tried: u16, ties: Ties) -> Option<usize> {
        servers.filter(|server| tried & 1 << server == 0).min_by_key(|&server| {
            let waited = if ties == Ties::First { 0 } else { self.last_chosen[server] };
            (self.usage(server..server + 1).load, waited, server)
        })
    }

    fn best_of_all(&self, tried: u16, ties: Ties) -> usize {
        self.best(self.all(), tried, ties).or_else(|| self.best(self.all(), 0, ties)).unwrap()
    }

    /// Server and standard group for a request. Which group the length and the loads ask for is `Buckets`' own matter.
    fn expected(&self, demand: &Demand, tried: u16) -> (usize, usize) {
        let Policy::ReferenceBucket(buckets) = &self.policy else {
            let server = self.best_of_all(tried, self.ties);
            return (server, self.group_of(server));
        };
        let loads: Vec<_> = self.groups.iter().map(|group| self.usage(group.clone()).load.tokens()).collect();
        let length = self.policy.load_of(demand).tokens();
        let BucketChoice { standard, chosen } = buckets.choose(length, |group| loads[group]);
        let mut near: Vec<_> = (0..self.groups.len()).collect();
        near.sort_by_key(|&group| (group.abs_diff(chosen), group));
        let mut untried = near.into_iter().filter_map(|group| self.best(self.groups[group].clone(), tried, self.ties));
        let again = || self.best(self.groups[chosen].clone(), 0, self.ties);
        (untried.next().or_else(again).unwrap(), standard)
    }

    fn group_of(&self, server: usize) -> usize {
        self.groups.iter().position(|group| group.contains(&server)).unwrap()
    }

    fn start(&mut self, server: usize, load: Load) {
        self.choices += 1;
        self.last_chosen[server] = self.choices;
        self.running.push(Running { server, millitokens: load.millitokens() });
    }
}

fn tried(servers: u16) -> Tried {
    let mut tried = Tried::default();
    (0..16).filter(|server| servers & 1 << server != 0).for_each(|server| tried.insert(server));
    tried
}

/// Sizes of 1 to 5 groups with 1 to 9 servers in all.
fn any_sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..=9, 1..=5).prop_map(|mut sizes| {
        while sizes.iter().sum::<usize>() > 9 {
            sizes.pop();
        }
        sizes
    })
}

fn any_tuning() -> impl Strategy<Value = RedirectTuning> {
    let neighbours = prop_oneof![Just(Neighbours::Adjacent), Just(Neighbours::All)];
    (0.2..5.0, 0.0..2.0, 0.0..0.5, neighbours).prop_map(|(sensitivity, affinity_strength, threshold, neighbours)| {
        RedirectTuning { sensitivity, affinity_strength, threshold, neighbours }
    })
}

fn any_demand() -> impl Strategy<Value = Demand> {
    // Few sizes, so that equal loads are common.
    let bytes = prop_oneof![3 => (0_u64..5).prop_map(|size| size * 1_000), 1 => 0_u64..30_000];
    let tokens = prop_oneof![Just(16.0), 0.0..1000.0, Just(1e12)];
    (bytes, tokens, any::<bool>()).prop_map(|(body_bytes, tokens, ignore_eos)| Demand {
        body_bytes,
        max_tokens: Budget::from_fractional_tokens(tokens),
        ignore_eos,
    })
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let tried = || prop_oneof![2 => Just(0), 1 => any::<u16>(), 1 => Just(u16::MAX)];
    let step = prop_oneof![
        5 => (any_demand(), tried()).prop_map(|(demand, tried)| Step::Acquire { demand, tried }),
        1 => tried().prop_map(|tried| Step::AcquireWeightless { tried }),
        4 => any::<usize>().prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn the_counters_are_the_sum_of_what_runs_and_the_choice_is_the_least_loaded(
        sizes in any_sizes(),
        tuning in prop::option::of(any_tuning()),
        rotate in any::<bool>(),
        steps in any_steps(),
    ) {
        let topology = Topology::from_sizes(sizes.iter().copied()).unwrap();
        let policy = tuning.map_or(Policy::ReferencePlain, |tuning| {
            Policy::ReferenceBucket(Buckets::equal_width(5_000, sizes.len(), tuning).unwrap())
        });
        let ties = if rotate { Ties::LeastRecentlyUsed } else { Ties::First };
        let mut model = Model {
            groups: topology.groups().to_vec(),
            policy: policy.clone(),
            ties,
            running: Vec::new(),
            last_chosen: vec![0; topology.servers()],
            choices: 0,
        };
        let balancer = Arc::new(Balancer::new(topology, policy, ties).unwrap());
        let mut leases = Vec::new();
        for step in steps {
            match step {
                Step::Acquire { demand, tried: failed } => {
                    let (server, standard) = model.expected(&demand, failed);
                    let lease = balancer.acquire(&demand, &tried(failed));
                    prop_assert_eq!((lease.server(), lease.standard_group()), (server, standard));
                    prop_assert_eq!(lease.group(), model.group_of(server));
                    prop_assert_eq!(lease.is_redirected(), lease.group() != standard);
                    prop_assert_eq!(lease.load(), model.policy.load_of(&demand));
                    model.start(server, lease.load());
                    leases.push(lease);
                }
                Step::AcquireWeightless { tried: failed } => {
                    let server = model.best_of_all(failed, Ties::LeastRecentlyUsed);
                    let lease = balancer.acquire_weightless(&tried(failed));
                    prop_assert_eq!((lease.server(), lease.load()), (server, Load::ZERO));
                    prop_assert!(!lease.is_redirected());
                    model.start(server, Load::ZERO);
                    leases.push(lease);
                }
                Step::Drop(number) if !leases.is_empty() => {
                    let number = number % leases.len();
                    drop(leases.swap_remove(number));
                    model.running.swap_remove(number);
                }
                Step::Drop(_) => {}
            }
            prop_assert_eq!(balancer.snapshot(), model.snapshot());
        }
        drop(leases);
        assert_idle(&balancer);
    }
}

fn assert_idle(balancer: &Balancer) {
    let Snapshot { servers, groups } = balancer.snapshot();
    assert!(servers.iter().chain(&groups).all(|usage| *usage == Usage::default()), "{servers:?} {groups:?}");
}

fn plain(servers: usize, ties: Ties) -> Arc<Balancer> {
    let topology = Topology::split_evenly(servers, 1).unwrap();
    Arc::new(Balancer::new(topology, Policy::ReferencePlain, ties).unwrap())
}

fn bucketed(servers: usize, groups: usize, tuning: RedirectTuning) -> Arc<Balancer> {
    let topology = Topology::split_evenly(servers, groups).unwrap();
    let buckets = Buckets::equal_width(131_072, groups, tuning).unwrap();
    Arc::new(Balancer::new(topology, Policy::ReferenceBucket(buckets), Ties::First).unwrap())
}

/// Sends 1,000 equal requests at once, from all threads, and checks how they lie on the servers.
fn assert_a_burst_spreads(balancer: &Arc<Balancer>) {
    const REQUESTS: usize = 1_000;
    let threads = thread::available_parallelism().map_or(8, |threads| threads.get().max(8));
    let start = Barrier::new(threads);
    let demand = Demand::of_bytes(4_000);
    for round in 0..10 {
        let leases: Vec<Lease> = thread::scope(|scope| {
            let sender = |first: usize| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let requests = (first..REQUESTS).step_by(threads);
                    requests.map(|_| balancer.acquire(&demand, &Tried::default())).collect::<Vec<_>>()
                })
            };
            let senders: Vec<_> = (0..threads).map(sender).collect();
            senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
        });
        let in_flight: Vec<_> = balancer.snapshot().servers.iter().map(|server| server.in_flight).collect();
        assert_eq!(in_flight.iter().sum::<u64>(), REQUESTS as u64);
        let spread = in_flight.iter().max().unwrap() - in_flight.iter().min().unwrap();
        assert!(spread <= 2, "round {round}: {in_flight:?}");
        drop(leases);
        assert_idle(balancer);
    }
}

#[test]
fn a_burst_from_all_threads_spreads_in_plain_mode() {
    for ties in [Ties::First, Ties::LeastRecentlyUsed] {
        assert_a_burst_spreads(&plain(4, ties));
    }
}

#[test]
fn a_burst_from_all_threads_spreads_inside_a_group() {
    assert_a_burst_spreads(&bucketed(4, 1, RedirectTuning::default()));
}

#[test]
fn a_burst_from_all_threads_spreads_over_groups_when_only_load_counts() {
    assert_a_burst_spreads(&bucketed(4, 2, RedirectTuning::load_only()));
}

#[test]
fn a_panicking_thread_gives_back_the_load_of_its_lease() {
    let balancer = plain(2, Ties::First);
    let lease = balancer.acquire(&Demand::of_bytes(100), &Tried::default());
    assert_eq!(balancer.snapshot().servers[0].in_flight, 1);
    let panicked = thread::scope(|scope| {
        let owner = scope.spawn(move || {
            let _held = lease;
            // Unwinds like a panic, without the message on the test's output.
            std::panic::resume_unwind(Box::new("on purpose"))
        });
        let outcome: thread::Result<()> = owner.join();
        outcome.is_err()
    });
    assert!(panicked);
    assert_idle(&balancer);
}

/// How often each server is chosen when so many requests overlap.
fn choices(balancer: &Arc<Balancer>, requests: usize, overlapping: usize) -> Vec<usize> {
    let mut chosen = vec![0; balancer.topology().servers()];
    let mut running = std::collections::VecDeque::new();
    for _ in 0..requests {
        let lease = balancer.acquire(&Demand::of_bytes(100), &Tried::default());
        chosen[lease.server()] += 1;
        running.push_back(lease);
        if running.len() == overlapping {
            running.pop_front();
        }
    }
    chosen
}

#[test]
fn rotating_ties_use_idle_servers_in_turn() {
    assert_eq!(choices(&plain(4, Ties::LeastRecentlyUsed), 40, 1), [10; 4]);
    assert_eq!(choices(&plain(4, Ties::LeastRecentlyUsed), 40, 2), [10; 4]);
    // The example's way, for comparison.
    assert_eq!(choices(&plain(4, Ties::First), 40, 1), [40, 0, 0, 0]);
}

#[test]
fn a_retry_leaves_its_group_only_when_all_of_it_was_tried() {
    let balancer = bucketed(4, 2, RedirectTuning::default());
    let short = Demand::of_bytes(100);
    let servers = [0b0000, 0b0001, 0b0011, 0b0111, 0b1111].map(|failed| {
        let lease = balancer.acquire(&short, &tried(failed));
        assert_eq!(lease.standard_group(), 0);
        lease.server()
    });
    assert_eq!(servers, [0, 1, 2, 3, 0]);
}

#[test]
fn buckets_and_groups_must_be_equal_in_number() {
    let topology = Topology::split_evenly(4, 2).unwrap();
    let buckets = Buckets::equal_width(9, 3, RedirectTuning::default()).unwrap();
    let mismatch = Balancer::new(topology, Policy::ReferenceBucket(buckets), Ties::First).unwrap_err();
    assert_eq!(mismatch, GroupMismatch { buckets: 3, groups: 2 });
    assert_eq!(mismatch.to_string(), "3 buckets need as many groups, there are 2");
}
