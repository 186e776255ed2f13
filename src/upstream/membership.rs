//! Which servers are in which group: the configured ones and those that discovery has found, as one list.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::{InForce, Server};
use crate::config::{self, Config, Source};

/// What discovery has found last, by source; the addresses are sorted.
pub type Found = HashMap<Source, Vec<SocketAddr>>;

/// The servers of each group: those of the file in its order, then those found, by address.
///
/// A server that stands in the file, or was found for an earlier group, is not taken a second time, and Tidegate is no
/// server of its own.
pub(super) fn members(config: &Config, found: &Found) -> Vec<Vec<config::Server>> {
    let mut taken = HashSet::new();
    for server in config.groups.iter().flat_map(|group| &group.servers) {
        taken.extend([server.authority(), server.name.clone()]);
    }
    let tls_listen = config.tls.iter().flat_map(|tls| &tls.listen);
    taken.extend(config.listen.iter().chain(tls_listen).chain(&config.admin).map(ToString::to_string));
    let mut groups = Vec::new();
    for group in &config.groups {
        let found = group.discover.iter().flat_map(|discover| {
            let addresses = found.get(&discover.source).into_iter().flatten();
            addresses
                .map(|address| config::Server::at(*address, discover.limits, discover.traits, discover.tls.clone()))
        });
        let found = found.filter(|server| taken.insert(server.authority()));
        groups.push(group.servers.iter().cloned().chain(found.collect::<Vec<_>>()).collect());
    }
    groups
}

impl InForce {
    /// All servers by their address, also those that have left while their number is not yet another's.
    pub(super) fn known(&self) -> HashMap<String, Known<'_>> {
        let left = self.left().map(|server| (server.config().authority(), Known::Left(server.number())));
        let here = self.servers().map(|server| (server.config().authority(), Known::Here(server)));
        left.chain(here).collect()
    }

    /// Servers that have left and still stand in the list of numbers.
    pub fn left(&self) -> impl Iterator<Item = &Arc<Server>> {
        let here: HashSet<usize> = self.groups.iter().flatten().copied().collect();
        self.servers.iter().flatten().filter(move |server| !here.contains(&server.number()))
    }
}

/// A server that has a number.
#[derive(Clone, Copy)]
pub(super) enum Known<'a> {
    /// It is in a group.
    Here(&'a Server),
    /// It is in none any more.
    Left(usize),
}

impl Known<'_> {
    pub(super) fn number(self) -> usize {
        match self {
            Self::Here(server) => server.number(),
            Self::Left(number) => number,
        }
    }
}
