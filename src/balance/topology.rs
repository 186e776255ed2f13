//! The servers in their groups: which server numbers belong to which group.

/// Servers, known by number, in groups: in order, short prompts first.
///
/// Numbers are given once and stay with a server while it is known, so that what runs on it is counted through every
/// change. A server is in one group at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    groups: Vec<Vec<usize>>,
    /// The group of each server, by number; `None` for numbers that are in none.
    group_of: Vec<Option<usize>>,
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
    /// A server is in two groups, or twice in one.
    #[error("server number {server} stands twice")]
    Twice {
        /// Its number.
        server: usize,
    },
}

impl Topology {
    /// Groups of servers that have their numbers already. A group may be empty: discovery may find nobody for a while.
    ///
    /// # Errors
    /// When there is no group, or a server stands twice.
    pub fn new(groups: Vec<Vec<usize>>) -> Result<Self, TopologyError> {
        if groups.is_empty() {
            return Err(TopologyError::NoGroup);
        }
        let mut group_of = Vec::new();
        for (group, servers) in groups.iter().enumerate() {
            for &server in servers {
                if group_of.len() <= server {
                    group_of.resize(server + 1, None);
                }
                if group_of[server].replace(group).is_some() {
                    return Err(TopologyError::Twice { server });
                }
            }
        }
        Ok(Self { groups, group_of })
    }

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

    /// Groups of given sizes, numbered one after the other from 0.
    ///
    /// # Errors
    /// When there is no group or one of them is empty.
    pub fn from_sizes(sizes: impl IntoIterator<Item = usize>) -> Result<Self, TopologyError> {
        let mut next = 0;
        let groups: Vec<Vec<usize>> = sizes
            .into_iter()
            .map(|size| {
                next += size;
                (next - size..next).collect()
            })
            .collect();
        if groups.iter().any(Vec::is_empty) {
            return Err(TopologyError::TooFewServers { servers: next, groups: groups.len() });
        }
        Self::new(groups)
    }

    /// The server numbers of each group.
    #[must_use]
    pub fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// All server numbers, group by group.
    pub fn servers(&self) -> impl Iterator<Item = usize> + Clone {
        self.groups.iter().flatten().copied()
    }

    /// The group of a server; `None` when it is in none.
    #[must_use]
    pub fn group_of(&self, server: usize) -> Option<usize> {
        self.group_of.get(server).copied().flatten()
    }

    /// All groups, nearest to `home` first, itself in front; of two at the same distance the shorter prompts' one.
    pub fn nearest_first(&self, home: usize) -> impl Iterator<Item = usize> + use<> {
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
        assert_eq!(topology.groups(), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(topology.servers().count(), 8);
    }

    #[test]
    fn every_server_is_in_the_group_that_holds_its_number() {
        let topology = Topology::from_sizes([1, 3, 2]).unwrap();
        assert_eq!((0..6).map(|server| topology.group_of(server)).collect::<Vec<_>>(), [0, 1, 1, 1, 2, 2].map(Some));
        assert_eq!(topology.group_of(6), None);
    }

    #[test]
    fn empty_groups_are_refused() {
        assert_eq!(Topology::split_evenly(4, 0), Err(TopologyError::NoGroup));
        assert_eq!(Topology::from_sizes([]), Err(TopologyError::NoGroup));
        assert_eq!(Topology::split_evenly(2, 3), Err(TopologyError::TooFewServers { servers: 2, groups: 3 }));
        assert_eq!(Topology::from_sizes([2, 0]), Err(TopologyError::TooFewServers { servers: 2, groups: 2 }));
    }

    #[test]
    fn a_server_stands_once() {
        assert_eq!(Topology::new(vec![vec![4, 1], vec![1]]), Err(TopologyError::Twice { server: 1 }));
        let topology = Topology::new(vec![vec![4, 1], vec![]]).unwrap();
        assert_eq!((topology.group_of(4), topology.group_of(0)), (Some(0), None));
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
