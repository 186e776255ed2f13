//! The balancer against a plain model, and what it promises under concurrency.

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
    /// Opens, limits or closes one of the servers, counted round.
    Admit(usize, Admission),
    /// Deals the servers out to the groups anew; those that get the last value leave.
    Regroup(Vec<usize>),
}

/// The balancer retold without a ledger: everything is computed anew from the requests that run.
struct Model {
    groups: Vec<Vec<usize>>,
    policy: Policy,
    ties: Ties,
    running: Vec<Running>,
    admissions: Vec<Admission>,
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
    fn usage(&self, servers: &[usize]) -> Usage {
        let here = || self.running.iter().filter(|request| servers.contains(&request.server));
        let millitokens = here().map(|request| request.millitokens).sum();
        Usage { load: Load::from_millitokens(millitokens), in_flight: here().count() as u64 }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            servers: (0..self.last_chosen.len()).map(|server| self.usage(&[server])).collect(),
            groups: self.groups.iter().map(|group| self.usage(group)).collect(),
            admissions: self.admissions.clone(),
            work: None,
        }
    }

    fn all(&self) -> Vec<usize> {
        self.groups.concat()
    }

    fn live(&self, servers: &[usize]) -> Vec<usize> {
        servers.iter().copied().filter(|server| self.admissions[*server].is_open).collect()
    }

    /// The best of some servers: least load, and of equals the first or the one not chosen for longest.
    fn best(&self, servers: &[usize], ties: Ties) -> Option<usize> {
        let place = |server: usize| servers.iter().position(|other| *other == server);
        servers.iter().copied().min_by_key(|&server| {
            let waited = if ties == Ties::First { 0 } else { self.last_chosen[server] };
            (self.usage(&[server]).load, waited, place(server))
        })
    }

    /// The best of the live untried servers, of all live ones when all were tried, among those that have room.
    fn best_with_room(&self, live: &[usize], tried: u16, load: Load) -> Result<usize, Unavailable> {
        let untried: Vec<_> = live.iter().copied().filter(|server| tried & 1 << server == 0).collect();
        let eligible = if untried.is_empty() { live } else { &untried };
        let has_room = |server: &usize| self.admissions[*server].admits(self.usage(&[*server]), load);
        let free: Vec<_> = eligible.iter().copied().filter(has_room).collect();
        let none = if live.is_empty() { Unavailable::NoneLive } else { Unavailable::NoneFree };
        self.best(&free, self.ties).ok_or(none)
    }

    fn weightless(&self, tried: u16) -> Result<usize, Unavailable> {
        let live = self.live(&self.all());
        let untried: Vec<_> = live.iter().copied().filter(|server| tried & 1 << server == 0).collect();
        let eligible = if untried.is_empty() { live } else { untried };
        self.best(&eligible, Ties::LeastRecentlyUsed).ok_or(Unavailable::NoneLive)
    }

    /// Server, standard group and placement. Which group length and loads ask for is `Buckets`' own matter.
    fn expected(&self, demand: &Demand, tried: u16) -> Result<(usize, usize, Placement), Unavailable> {
        let load = self.policy.load_of(demand);
        let Policy::ReferenceBucket(buckets) = &self.policy else {
            let server = self.best_with_room(&self.live(&self.all()), tried, load)?;
            return Ok((server, self.group_of(server), Placement::Standard));
        };
        let load_of = |group: &Vec<usize>| {
            if self.live(group).is_empty() { f64::INFINITY } else { self.usage(group).load.tokens() }
        };
        let loads: Vec<_> = self.groups.iter().map(load_of).collect();
        let BucketChoice { standard, chosen } = buckets.choose(load.tokens(), |group| loads[group]);
        let mut near: Vec<_> = (0..self.groups.len()).collect();
        near.sort_by_key(|&group| (group.abs_diff(chosen), group));
        // The nearest group with an untried live server, else the nearest with a live one, decides alone.
        let live: Vec<_> = near.iter().map(|group| self.live(&self.groups[*group])).collect();
        let has_untried = |servers: &&Vec<usize>| servers.iter().any(|server| tried & 1 << server == 0);
        let deciding = live.iter().find(has_untried).or_else(|| live.iter().find(|servers| !servers.is_empty()));
        let server = self.best_with_room(deciding.ok_or(Unavailable::NoneLive)?, tried, load)?;
        let group = self.group_of(server);
        let placement = match group {
            _ if group == standard => Placement::Standard,
            _ if group == chosen => Placement::Redirected,
            _ => Placement::Failover,
        };
        Ok((server, standard, placement))
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
        work: None,
    })
}

fn any_admission() -> impl Strategy<Value = Admission> {
    let load = prop::option::of((0_u64..20_000).prop_map(|tokens| Load::from_millitokens(tokens * 1_000)));
    (prop::bool::weighted(0.6), prop::option::of(0_u64..3), load)
        .prop_map(|(is_open, max_in_flight, max_load)| Admission { is_open, max_in_flight, max_load })
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let tried = || prop_oneof![2 => Just(0), 1 => any::<u16>(), 1 => Just(u16::MAX)];
    let step = prop_oneof![
        10 => (any_demand(), tried()).prop_map(|(demand, tried)| Step::Acquire { demand, tried }),
        2 => tried().prop_map(|tried| Step::AcquireWeightless { tried }),
        8 => any::<usize>().prop_map(Step::Drop),
        2 => (any::<usize>(), any_admission()).prop_map(|(server, admission)| Step::Admit(server, admission)),
        1 => prop::collection::vec(0_usize..6, 9).prop_map(Step::Regroup),
    ];
    prop::collection::vec(step, 1..120)
}

/// Servers dealt out to so many groups; the ones that get the number of groups are in none.
fn dealt(places: &[usize], servers: usize, groups: usize) -> Vec<Vec<usize>> {
    let mut dealt = vec![Vec::new(); groups + 1];
    (0..servers).for_each(|server| dealt[places[server % places.len()] % (groups + 1)].push(server));
    dealt.truncate(groups);
    dealt
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
        let servers = topology.servers().count();
        let mut model = Model {
            groups: topology.groups().to_vec(),
            policy: policy.clone(),
            ties,
            running: Vec::new(),
            admissions: vec![Admission::default(); servers],
            last_chosen: vec![0; servers],
            choices: 0,
        };
        let balancer = Arc::new(Balancer::new(topology, policy, ties).unwrap());
        let mut leases = Vec::new();
        for step in steps {
            match step {
                Step::Acquire { demand, tried: failed } => {
                    let lease = balancer.acquire(&demand, &tried(failed));
                    let placed = lease.as_ref().map(|lease| (lease.server(), lease.standard_group(), lease.placement()));
                    prop_assert_eq!(placed.map_err(|unavailable| *unavailable), model.expected(&demand, failed));
                    if let Ok(lease) = lease {
                        prop_assert!(model.admissions[lease.server()].is_open, "no closed server gets a request");
                        prop_assert_eq!(lease.group(), model.group_of(lease.server()));
                        prop_assert_eq!(lease.load(), model.policy.load_of(&demand));
                        model.start(lease.server(), lease.load());
                        leases.push(lease);
                    }
                }
                Step::AcquireWeightless { tried: failed } => {
                    let lease = balancer.acquire_weightless(&tried(failed));
                    let server = lease.as_ref().map(Lease::server).map_err(|unavailable| *unavailable);
                    prop_assert_eq!(server, model.weightless(failed));
                    if let Ok(lease) = lease {
                        prop_assert_eq!((lease.load(), lease.placement()), (Load::ZERO, Placement::Standard));
                        model.start(lease.server(), Load::ZERO);
                        leases.push(lease);
                    }
                }
                Step::Drop(number) if !leases.is_empty() => {
                    let number = number % leases.len();
                    drop(leases.swap_remove(number));
                    model.running.swap_remove(number);
                }
                Step::Drop(_) => {}
                Step::Admit(server, admission) => {
                    balancer.set_admission(server % servers, admission);
                    model.admissions[server % servers] = admission;
                }
                Step::Regroup(places) => {
                    model.groups = dealt(&places, servers, sizes.len());
                    let topology = Topology::new(model.groups.clone()).unwrap();
                    balancer.reconfigure(topology, model.policy.clone(), ties, &[]).unwrap();
                }
            }
            prop_assert_eq!(balancer.snapshot(), model.snapshot());
        }
        drop(leases);
        assert_idle(&balancer);
    }
}

fn assert_idle(balancer: &Balancer) {
    let Snapshot { servers, groups, .. } = balancer.snapshot();
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
                let (start, demand) = (&start, &demand);
                scope.spawn(move || {
                    start.wait();
                    let requests = (first..REQUESTS).step_by(threads);
                    requests.map(|_| balancer.acquire(demand, &Tried::default()).unwrap()).collect::<Vec<_>>()
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
    let lease = balancer.acquire(&Demand::of_bytes(100), &Tried::default()).unwrap();
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
    let mut chosen = vec![0; balancer.topology().servers().count()];
    let mut running = std::collections::VecDeque::new();
    for _ in 0..requests {
        let lease = balancer.acquire(&Demand::of_bytes(100), &Tried::default()).unwrap();
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
        let lease = balancer.acquire(&short, &tried(failed)).unwrap();
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

#[test]
fn whoever_waits_is_told_when_a_place_may_be_free() {
    let told = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let times = || told.load(std::sync::atomic::Ordering::Relaxed);
    let balancer = plain(1, Ties::First);
    let counter = Arc::clone(&told);
    balancer.on_capacity(move || {
        counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    let lease = balancer.acquire(&Demand::of_bytes(100), &Tried::default()).unwrap();
    assert_eq!(times(), 0);
    drop(lease);
    assert_eq!(times(), 1);
    balancer.set_admission(0, Admission::closed());
    balancer.set_admission(0, Admission::default());
    assert_eq!(times(), 3);
    balancer.reconfigure(Topology::split_evenly(1, 1).unwrap(), Policy::ReferencePlain, Ties::First, &[]).unwrap();
    assert_eq!(times(), 4);
}

#[test]
fn a_server_that_left_is_counted_until_its_last_request_ends_and_then_gives_its_number_away() {
    let balancer = plain(2, Ties::First);
    let lease = balancer.acquire(&Demand::of_bytes(100), &Tried::default()).unwrap();
    let only_the_other = Topology::new(vec![vec![1]]).unwrap();
    balancer.reconfigure(only_the_other, Policy::ReferencePlain, Ties::First, &[]).unwrap();
    assert_eq!(balancer.snapshot().servers[0], Usage { load: lease.load(), in_flight: 1 });
    assert_eq!(balancer.snapshot().groups[0], Usage::default());
    assert_eq!(balancer.add_server(Admission::default(), &[]), 2, "its number is in use");
    drop(lease);
    assert_idle(&balancer);
    assert_eq!(balancer.add_server(Admission::closed(), &[2]), 0, "its number is free");
    assert_eq!(balancer.snapshot().admissions[0], Admission::closed());
}
