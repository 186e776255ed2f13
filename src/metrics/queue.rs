//! What happens to requests that wait for a server.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::families::{SecondsByGroup, registered, seconds_by_group};
use super::labels::{GroupLabels, QueueExit, QueueLabels};
use super::{Metrics, Series};

/// What waits in one group at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Requests that wait.
    pub requests: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

#[derive(Debug)]
pub(super) struct QueueMetrics {
    exits: Family<QueueLabels, Counter>,
    wait: SecondsByGroup,
}

impl QueueMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        Self {
            exits: registered(
                registry,
                "tidegate_queue_exits",
                "Requests that had to wait for a server, by how their waiting ended; full: there was no room to wait",
                Family::default(),
            ),
            wait: registered(
                registry,
                "tidegate_queue_wait_seconds",
                "How long requests waited for a server, of those that had to wait",
                seconds_by_group(),
            ),
        }
    }
}

impl Series {
    fn group(&self, number: usize) -> Option<GroupLabels> {
        Some(GroupLabels { group: Arc::clone(self.roster.groups.get(number)?) })
    }
}

impl Metrics {
    /// Counts a request of a group that has left the queue after so long.
    pub fn queue_left(&self, group: usize, exit: QueueExit, waited: Duration) {
        if let Some(labels) = self.series.load().group(group) {
            self.queue.wait.get_or_create(&labels).observe(waited.as_secs_f64());
            self.queue.exits.get_or_create(&QueueLabels { group: labels.group, result: exit.label() }).inc();
        }
    }

    /// Counts a request of a group that found no room to wait.
    pub fn queue_refused(&self, group: usize) {
        if let Some(labels) = self.series.load().group(group) {
            self.queue.exits.get_or_create(&QueueLabels { group: labels.group, result: "full" }).inc();
        }
    }
}
