//! Tests of the whole program over real sockets.
//!
//! Every test starts the `tidegate` binary in front of scripted servers ([`support`]) and looks at it from outside: at
//! the bytes on both sides, the admin listener, and the process. Ids like B27 name the field reports that a test
//! answers.
//!
//! Where a new test belongs:
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails right there")]
#![allow(clippy::large_futures, reason = "tests run once; their size does not matter")]
#![allow(clippy::needless_pass_by_value, reason = "helpers of tests take what is at hand")]

mod access; // API keys and their limits, closed paths, limits on the header, secrets
mod access_log; // one line for each request
mod addresses; // addresses of servers, the health check, the list of models
mod body; // a request body on its way to the server
mod broken; // servers that die before they have answered
mod captures; // replays of what a real vLLM put on the wire
mod chaos; // everything at once
mod corners; // early and interim answers, bytes at odd moments
mod counted; // what the metrics say of requests
mod demo; // the demo with the load that it brings along
mod discovery; // servers that come and go
mod drain; // servers that are to run empty
mod edges; // what browsers and servers are told: CORS, forwarded headers
mod engine; // what real servers do when their engine hangs, dies or shuts down
mod engines; // what engines are asked, and what becomes of it
mod estimate; // how much a request counts
#[cfg(feature = "exact-tokens")]
mod exact; // prompts that are counted by the model's own tokenizer
mod explain; // why a request would go where it would go
mod harness; // the support module itself, without Tidegate
mod headers; // header fields in both directions, and the framing of responses
mod health; // which servers are taken out of service, and how they come back
mod http2; // HTTP/2 by its frames
mod lanes; // routing by work: lanes, what is held, what fits where
mod layering; // which part of the source may know which
mod limits; // time limits and slow clients
mod memory; // memory in use
mod metrics; // the whole metrics page, beside what has happened
mod page; // the live page and its events
mod proof; // what routing by work is worth, measured by a client
mod release; // how a request ends, and that its load ends with it
mod reload; // the configuration changes while requests run
mod retry; // what is tried again, where, and how often
mod saturation; // more connections than files may be open, more data than a client reads
mod security; // requests with an ambiguous end, bodies that look like requests
mod selection; // which server a request goes to
mod shadow; // a policy beside the one in force, conversations with a name
mod shutdown; // the end of the process, on signals
mod streaming; // a response on its way to the client, also when it breaks
mod support;
mod tls_clients; // the TLS listener
mod tls_servers; // servers that are reached over TLS
mod top; // tidegate top
#[cfg(feature = "otel")]
mod traces; // spans of requests, at a collector
mod trailers; // fields behind a response's body, and its date
mod upgrade; // a successor takes the sockets over
mod waiting; // requests that no server can take now
mod wire; // connections: reuse, upgrades, pipelining, HTTP/1.0, h2c
