//! What it costs to choose a server, count the request there and give the load back, by number of servers.
//!
//! `one thread` is the cost of one such pair. `all threads` runs as many threads as there are processors against one
//! balancer (at least two); its figure is wall time per pair over all of them, so with perfect scaling it would be the
//! first one divided by the number of threads, and under one lock it cannot be below it.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate::balance::{Balancer, Bucket, Buckets, Policy, RedirectTuning, Ties, Topology, Tried};
use tidegate::prompt::Demand;

/// Requests that run meanwhile on each server, so that loads differ and the groups are compared.
const BACKGROUND_PER_SERVER: usize = 2;

fn balancer(policy: Policy, servers: usize) -> Arc<Balancer> {
    let groups = if policy == Policy::ReferencePlain { 1 } else { 2 };
    let topology = Topology::split_evenly(servers, groups).expect("more servers than groups");
    Arc::new(Balancer::new(topology, policy, Ties::LeastRecentlyUsed).expect("as many groups as buckets"))
}

fn policies() -> [Policy; 2] {
    let ranges = vec![Bucket { from: 0, to: 32_768 }, Bucket { from: 32_768, to: 131_072 }];
    let buckets = Buckets::new(ranges, RedirectTuning::default()).expect("ascending ranges");
    [Policy::ReferencePlain, Policy::ReferenceBucket(buckets)]
}

/// A request, different from turn to turn: mostly short, some long.
fn demand(turn: u64) -> Demand {
    Demand::of_bytes(if turn.is_multiple_of(8) { 200_000 } else { 1_000 + turn % 97 })
}

fn acquire_and_drop(balancer: &Arc<Balancer>, tried: &Tried, turn: u64) {
    drop(black_box(balancer.acquire(black_box(&demand(turn)), tried).expect("all servers are open")));
}

/// Wall time of `pairs` acquisitions and drops, shared out over the threads.
fn contended(balancer: &Arc<Balancer>, threads: usize, pairs: u64) -> Duration {
    let per_thread = pairs.div_ceil(threads as u64);
    let start = Barrier::new(threads + 1);
    let wall = thread::scope(|scope| {
        let worker = |_| {
            scope.spawn(|| {
                let tried = Tried::default();
                start.wait();
                (0..per_thread).for_each(|turn| acquire_and_drop(balancer, &tried, turn));
            })
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        start.wait();
        let begun = Instant::now();
        workers.into_iter().for_each(|worker| worker.join().expect("no worker panics"));
        begun.elapsed()
    });
    // Rounded up to equal shares: scale to what was asked for.
    wall.mul_f64(pairs as f64 / (per_thread * threads as u64) as f64)
}

fn choosing(criterion: &mut Criterion) {
    let threads = thread::available_parallelism().map_or(2, |threads| threads.get().max(2));
    let mut group = criterion.benchmark_group("choose_and_release");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);
    group.throughput(Throughput::Elements(1));
    for policy in policies() {
        let name = policy.name();
        for servers in [4, 64, 1_024] {
            let balancer = balancer(policy.clone(), servers);
            let tried = Tried::default();
            let background = (0..(servers * BACKGROUND_PER_SERVER) as u64).map(demand);
            let background: Vec<_> =
                background.map(|demand| balancer.acquire(&demand, &tried).expect("all servers are open")).collect();
            let mut turn = 0;
            group.bench_function(BenchmarkId::new(format!("{name}/one thread"), servers), |bencher| {
                bencher.iter(|| {
                    turn += 1;
                    acquire_and_drop(&balancer, &tried, turn);
                });
            });
            group.bench_function(BenchmarkId::new(format!("{name}/all threads"), servers), |bencher| {
                bencher.iter_custom(|pairs| contended(&balancer, threads, pairs));
            });
            drop(background);
        }
    }
    group.finish();
}

criterion_group!(benches, choosing);
criterion_main!(benches);
