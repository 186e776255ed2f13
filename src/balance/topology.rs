//! The servers in their groups: which server numbers belong to which group.

use std::ops::Range;

/// Servers numbered from 0 in configured order, cut into groups. Never empty, and no group is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    groups: Vec<Range<usize>>,
}

/// Why servers cannot be grouped so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// No group was asked for.
    #[error("at least one group is needed")]
    NoGroup,
    /// Some group would have no server.
    #[error("{groups} groups need at least {groups} servers, there are {servers}")]
    TooFewServers {
        /// Servers there are.
        servers: usize,
        /// Groups to fill.
        groups: usize,
    },
}

impl Topology {
    /// Cuts servers, in order, into groups of equal size; the first `servers % groups` groups get one more.
    ///
    /// # Errors
    /// When there is no group or fewer servers than groups.
    pub fn split_evenly(servers: usize, groups: usize) -> Result<Self, TopologyError> {
        if groups == 0 {
            return Err(TopologyError::NoGroup);
        }
        let (base, larger) = (servers / groups, servers % groups);
        Self::from_sizes((0..groups).map(|group| base + usize::from(group < larger)))
    }

    /// Groups of given sizes, one after the other.
    ///
    /// # Errors
    /// When there is no group or one of them is empty.
    pub fn from_sizes(sizes: impl IntoIterator<Item = usize>) -> Result<Self, TopologyError> {
        let mut groups = Vec::new();
        let mut next = 0;
        let mut has_empty = false;
        for size in sizes {
            groups.push(next..next + size);
            next += size;
            has_empty |= size == 0;
        }
        if groups.is_empty() {
            return Err(TopologyError::NoGroup);
        }
        if has_empty {
            return Err(TopologyError::TooFewServers { servers: next, groups: groups.len() });
        }
        Ok(Self { groups })
    }

    /// The server numbers of each group.
    #[must_use]
    pub fn groups(&self) -> &[Range<usize>] {
        &self.groups
    }

    /// The number of servers.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.groups.last().map_or(0, |group| group.end)
    }

    /// The group of a server.
    #[must_use]
    pub fn group_of(&self, server: usize) -> usize {
        self.groups.partition_point(|group| group.end <= server)
    }

    /// All groups, nearest to `home` first, itself in front; of two at the same distance the shorter prompts' one.
    pub fn nearest_first(&self, home: usize) -> impl Iterator<Item = usize> {
        let count = self.groups.len();
        (0..count).flat_map(move |distance| {
            let below = home.checked_sub(distance);
            let above = (distance > 0 && home + distance < count).then_some(home + distance);
            below.into_iter().chain(above)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest_first(groups: usize, home: usize) -> Vec<usize> {
        Topology::split_evenly(groups, groups).unwrap().nearest_first(home).collect()
    }

    #[test]
    fn the_first_groups_take_the_servers_that_do_not_come_out_even() {
        let topology = Topology::split_evenly(8, 3).unwrap();
        assert_eq!(topology.groups(), [0..3, 3..6, 6..8]);
        assert_eq!(topology.servers(), 8);
    }

    #[test]
    fn every_server_is_in_the_group_that_holds_its_number() {
        let topology = Topology::from_sizes([1, 3, 2]).unwrap();
        assert_eq!((0..6).map(|server| topology.group_of(server)).collect::<Vec<_>>(), [0, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn empty_groups_are_refused() {
        assert_eq!(Topology::split_evenly(4, 0), Err(TopologyError::NoGroup));
        assert_eq!(Topology::from_sizes([]), Err(TopologyError::NoGroup));
        assert_eq!(Topology::split_evenly(2, 3), Err(TopologyError::TooFewServers { servers: 2, groups: 3 }));
        assert_eq!(Topology::from_sizes([2, 0]), Err(TopologyError::TooFewServers { servers: 2, groups: 2 }));
    }

    #[test]
    fn the_nearest_group_comes_first_and_of_two_the_one_for_shorter_prompts() {
        assert_eq!(nearest_first(1, 0), [0]);
        assert_eq!(nearest_first(5, 0), [0, 1, 2, 3, 4]);
        assert_eq!(nearest_first(5, 1), [1, 0, 2, 3, 4]);
        assert_eq!(nearest_first(5, 2), [2, 1, 3, 0, 4]);
        assert_eq!(nearest_first(5, 4), [4, 3, 2, 1, 0]);
    }
}
