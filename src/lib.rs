//! Tidegate: a load balancer for vLLM servers that routes requests by prompt length and load.

pub mod admin;
pub mod balance;
pub mod config;
pub mod metrics;
pub mod prompt;
