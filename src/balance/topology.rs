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
