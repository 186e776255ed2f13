//! Tidegate: a load balancer for vLLM servers that routes requests by prompt length and load.

pub mod balance;
pub mod config;
pub mod demo;
pub mod healthcheck;
pub mod prompt;
