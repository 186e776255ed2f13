//! Tidegate: a load balancer for vLLM servers that routes requests by prompt length and load.

pub mod balance;
pub mod cli;
pub mod config;
pub mod prompt;
