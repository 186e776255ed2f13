//! One line of output.

use std::io::Write;
use std::sync::Arc;

use crate::work::{Policy, Rejection};

/// A request that goes to a server now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// Its name.
    pub id: Arc<str>,
    /// The server's place in the configured order, from 0.
    pub server: usize,
    /// Why there.
    pub reason: &'static str,
}

/// A request that goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Its name.
    pub id: Arc<str>,
    /// Why.
    pub rejection: Rejection,
}

impl Rejected {
    /// The HTTP status that its client would get.
    fn status(&self) -> u16 {
        match self.rejection {
            Rejection::TooLong { .. } => 400,
            Rejection::NoServer | Rejection::Excluded | Rejection::HoldFull | Rejection::HeldTooLong => 503,
        }
    }
}

/// What follows from one event.
#[derive(Debug)]
pub struct Reply<'d> {
    /// What goes where.
    pub assigned: Vec<Assigned>,
    /// What is refused.
    pub rejected: Vec<Rejected>,
    /// How many requests are held.
    pub held: usize,
    /// Knows the groups.
    pub policy: &'d dyn Policy,
    /// The servers that are lanes, as a list in JSON.
    pub lanes: &'d str,
}

impl Reply<'_> {
    /// Writes the line, its end included.
    pub fn write(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(b"{\"assign\":[");
        for (index, Assigned { id, server, reason }) in self.assigned.iter().enumerate() {
            comma(text, index);
            text.extend_from_slice(b"{\"id\":");
            string(text, id);
            print(text, format_args!(",\"server\":{server},\"group\":"));
            string(text, self.policy.group(*server));
            print(text, format_args!(",\"reason\":\"{reason}\"}}"));
        }
        print(text, format_args!("],\"held\":{},\"lanes\":{}", self.held, self.lanes));
        if !self.rejected.is_empty() {
            text.extend_from_slice(b",\"reject\":[");
            for (index, rejected) in self.rejected.iter().enumerate() {
                comma(text, index);
                text.extend_from_slice(b"{\"id\":");
                string(text, &rejected.id);
                print(text, format_args!(",\"status\":{}}}", rejected.status()));
            }
            text.push(b']');
        }
        text.extend_from_slice(b"}\n");
    }
}

/// Writes the line for what could not be done.
pub(super) fn write_error(text: &mut Vec<u8>, error: &str) {
    text.extend_from_slice(b"{\"error\":");
    string(text, error);
    text.extend_from_slice(b"}\n");
}

fn comma(text: &mut Vec<u8>, index: usize) {
    if index > 0 {
        text.push(b',');
    }
}

fn string(text: &mut Vec<u8>, string: &str) {
    serde_json::to_writer(text, string).expect("text can be written to memory");
}

fn print(text: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("text can be written to memory");
}
