//! Tidegate: a load balancer for vLLM servers that routes requests by prompt length and load.
//!
//! A tide gate lets water through between two basins when their levels differ enough. Tidegate does that with LLM
//! requests: servers are grouped by the length of prompt they are for, and a request crosses to the neighbouring group
//! when the difference in load is worth it.
//!
//! # A request's way
//!
//! ```text
//! client -> [ admit -> measure -> choose bucket -> choose server (lease) -> relay ] -> vLLM server
//!             proxy    prompt     balance          balance                  proxy
//!                                                     lease drops: load given back, at the last byte or any failure
//! ```
//!
//! # Who may know whom
//!
//! ```text
//! main -> app -> proxy  -> http1, access, prompt, balance, metrics, queue, upstream, health, engines, drain, tls,
//!                          journal, explain, shadow, traces
//!                health -> upstream, metrics, tls      (upstream keeps each server's record)
//!                engines -> upstream, metrics, prompt, tls (upstream keeps each engine's report)
//!                explain -> balance, prompt, upstream
//!                admin  -> explain, balance, metrics, queue, upstream, drain, reload, journal
//!                reload -> discovery, upstream, config
//!                discovery -> upstream, config
//!                upstream (what is in force) -> access, balance, metrics, queue, config, journal, shadow, traces,
//!                                              health and engines (their records)
//!                shadow -> balance          (another policy beside the one in force)
//!                queue  -> balance, metrics
//!                drain  -> upstream         (how long an end may take)
//!         config -> access, balance, prompt, tls (only to build their types)
//!         balance -> prompt                 (what a request asks for)
//! main -> offline -> drive, simulate, tune, config, explain, remote (commands that serve nobody)
//! main -> top -> remote, access_log    (a client of the admin listener)
//!         tune   -> simulate, drive, balance (only to build its types)
//!         simulate -> drive, work, access_log
//!         journal: access_log, config; what happens to requests, for whoever wants to see it
//!         traces: access_log (the record), config, tls; spans of requests, for a collector
//!         access_log: small crates; the record of one request, for whoever writes or reads it
//!         drive  -> work, balance, prompt   (the policies under one driver)
//!         work: std and small crates only, like balance
//!         http1: Pingora's streams and headers; HTTP/1.1 on the wire, nothing above it
//!         tls: Pingora, rustls and files; nothing above it
//!         flush: std; waits for the threads of access log and traces at the end
//!         panics: std and `log`; read by metrics
//!         access: pingora-limits and small crates; no proxy of Pingora, no I/O, the clock is an argument
//!         prompt: std and small crates only; no Pingora, no I/O, no clock
//! ```
//!
//! # Where do I change ...?
//!
//! | the ... | open |
//! |---|---|
//! | bucket borders, when a request crosses | `src/balance/bucket.rs` |
//! | choice inside a group, ties | `src/balance/pick.rs` |
//! | how much a request weighs | `src/balance/policy.rs` |
//! | what a prefill and a decode step cost, engine profiles | `src/work/profile.rs`, `src/work/cost.rs` |
//! | what is long, how many lanes | `src/work/learned.rs`, `src/work/lane_count.rs` |
//! | the policy `lanes`; a policy of your own beside it | `src/work/lanes.rs`, `src/drive/choice.rs` |
//! | what is read of a body | `src/prompt/measure.rs` |
//! | which endpoints count | `src/prompt/endpoint.rs` |
//! | what happens to a request, in its order | `src/proxy/` (start at `mod.rs`) |
//! | how HTTP/1.1 is read and written | `src/http1/` |
//! | which connections to servers are kept | `src/proxy/server_connections.rs`, `src/upstream/kept.rs` |
//! | when a request is tried elsewhere | `src/proxy/retry.rs` |
//! | when a server is taken out, and comes back | `src/health/record.rs` |
//! | what servers are asked of their engines, and what becomes of it | `src/engines/` |
//! | an error answer | `src/proxy/reject.rs` |
//! | who may do what: keys, closed paths, CORS | `src/access/` |
//! | a time limit towards a server | `src/proxy/silence.rs` |
//! | a configuration key | `src/config/` |
//! | what a reload changes, and what needs a restart | `src/config/difference/`, `src/reload/` |
//! | where servers are found | `src/discovery/` |
//! | why a request would go where it would go, in words | `src/explain/` |
//! | who waits, and who is next | `src/queue/` |
//! | what a policy beside the one in force is told | `src/shadow/` |
//! | a line of the access log, which requests get one | `src/access_log/record.rs`, `src/journal/` |
//! | a span, its attributes; what a server is told of a trace | `src/traces/exporter/spans.rs`, `src/traces/trace.rs` |
//! | the engine model, its tables, its report | `src/simulate/engine.rs`, `src/simulate/table.rs`, `src/simulate/report/` |
//! | what `tidegate tune` tries and recommends | `src/tune/candidates.rs`, `src/tune/search.rs` |
//! | the demo servers, what `tidegate demo --load` sends | `src/demo/`, `src/demo/load/` |
//! | which servers there are, and how they stand | `src/upstream/` |
//! | a metric | `src/metrics/` |
//! | TLS, certificates | `src/tls/` |
//! | the admin listener | `src/admin/` |
//! | the live page, its events | `src/admin/page/`, `src/admin/events.rs` |
//! | `tidegate top` | `src/top/` |
//! | how the process ends, signals, upgrades | `src/drain/` |

pub mod access;
pub mod access_log;
pub mod admin;
pub mod app;
pub mod balance;
pub mod cli;
pub mod config;
pub mod demo;
pub mod discovery;
pub mod drain;
pub mod drive;
pub mod engines;
pub mod explain;
mod flush;
pub mod health;
pub mod healthcheck;
mod http1;
pub mod journal;
pub mod launcher;
pub mod logging;
pub mod metrics;
pub mod offline;
pub mod panics;
pub mod prompt;
pub mod proxy;
pub mod queue;
pub mod reload;
pub mod remote;
pub mod replace;
mod settled;
pub mod shadow;
pub mod simulate;
pub mod tls;
pub mod top;
pub mod traces;
pub mod tune;
pub mod upstream;
pub mod work;
