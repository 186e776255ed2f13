//! Load and running requests, read from the balancer at each scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::balance::Snapshot;
use crate::config::Group;

/// The configured names, by number.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) groups: Vec<Arc<str>>,
    pub(super) servers: Vec<ServerName>,
}

#[derive(Debug)]
pub(super) struct ServerName {
    pub(super) group: Arc<str>,
    pub(super) server: Arc<str>,
}

impl Names {
    pub(super) fn of(groups: &[Group]) -> Self {
        let mut names = Self { groups: Vec::new(), servers: Vec::new() };
        for group in groups {
            let group_name: Arc<str> = group.name.as_str().into();
            for server in &group.servers {
                names.servers.push(ServerName { group: Arc::clone(&group_name), server: server.name.as_str().into() });
            }
            names.groups.push(group_name);
        }
        names
    }
}

/// The balancer's counters at one moment.
#[derive(Debug)]
pub(super) struct Usage {
    pub(super) names: Arc<Names>,
    pub(super) snapshot: Snapshot,
}

impl Collector for Usage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let servers = || self.names.servers.iter().zip(&self.snapshot.servers);
        let server_labels =
            |name: &ServerName| [("group", Arc::clone(&name.group)), ("server", Arc::clone(&name.server))];
        let groups = || self.names.groups.iter().zip(&self.snapshot.groups);
        let group_labels = |name: &Arc<str>| [("group", Arc::clone(name))];

        gauges(
            &mut encoder,
            "tidegate_server_load_tokens",
            "Active load of the server: the weight of the requests that run on it.",
            servers().map(|(name, usage)| (server_labels(name), usage.load.tokens())),
        )?;
        gauges(
            &mut encoder,
            "tidegate_server_in_flight_requests",
            "Requests that run on the server.",
            servers().map(|(name, usage)| (server_labels(name), usage.in_flight)),
        )?;
        gauges(
            &mut encoder,
            "tidegate_group_load_tokens",
            "Active load of the group: the sum over its servers.",
            groups().map(|(name, usage)| (group_labels(name), usage.load.tokens())),
        )?;
        gauges(
            &mut encoder,
            "tidegate_group_in_flight_requests",
            "Requests that run in the group.",
            groups().map(|(name, usage)| (group_labels(name), usage.in_flight)),
        )
    }
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl Iterator<Item = (impl EncodeLabelSet, impl EncodeGaugeValue)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in samples {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
