//! Load and running requests, read from the balancer at each scrape.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Waiting;
use crate::balance::{Snapshot, WorkOnServer};

/// The names of groups and servers, by number.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    pub(super) groups: Vec<Arc<str>>,
    /// By number; `None` for numbers that no server has.
    pub(super) servers: Vec<Option<ServerName>>,
}

#[derive(Debug, Clone)]
pub(super) struct ServerName {
    pub(super) group: Arc<str>,
    pub(super) server: Arc<str>,
}

impl Roster {
    /// A roster of groups by name, each with its servers by number and name.
    pub fn new<'a>(groups: impl Iterator<Item = (&'a str, impl Iterator<Item = (usize, &'a str)>)>) -> Self {
        let mut roster = Self::default();
        for (group, servers) in groups {
            let group: Arc<str> = group.into();
            for (number, server) in servers {
                roster.servers.resize(roster.servers.len().max(number + 1), None);
                roster.servers[number] = Some(ServerName { group: Arc::clone(&group), server: server.into() });
            }
            roster.groups.push(group);
        }
        roster
    }

    /// The name of a server, and of its group.
    pub(super) fn server(&self, number: usize) -> Option<&ServerName> {
        self.servers.get(number)?.as_ref()
    }

    /// The name of a group.
    pub(super) fn group(&self, number: usize) -> Option<Arc<str>> {
        self.groups.get(number).cloned()
    }
}

/// The balancer's counters at one moment.
#[derive(Debug)]
pub(super) struct Usage {
    pub(super) roster: Roster,
    pub(super) snapshot: Snapshot,
    /// By group; groups beyond the end have nobody waiting.
    pub(super) waiting: Vec<Waiting>,
}

impl Collector for Usage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let servers = || {
            let named = self.roster.servers.iter().zip(&self.snapshot.servers);
            named.filter_map(|(name, usage)| Some((name.as_ref()?, usage)))
        };
        let server_labels =
            |name: &ServerName| [("group", Arc::clone(&name.group)), ("server", Arc::clone(&name.server))];
        let groups = || self.roster.groups.iter().zip(&self.snapshot.groups);
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
        )?;
        let waiting = || {
            let all = self.waiting.iter().copied().chain(std::iter::repeat(Waiting::default()));
            self.roster.groups.iter().zip(all)
        };
        gauges(
            &mut encoder,
            "tidegate_queue_requests",
            "Requests whose length is for the group and that wait for a server.",
            waiting().map(|(name, waiting)| (group_labels(name), waiting.requests)),
        )?;
        gauges(
            &mut encoder,
            "tidegate_queue_bytes",
            "Bytes of the bodies of the requests that wait.",
            waiting().map(|(name, waiting)| (group_labels(name), waiting.bytes)),
        )?;
        self.encode_work(&mut encoder)
    }
}

impl Usage {
    /// What only the policies by work know.
    fn encode_work(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(work) = &self.snapshot.work else { return Ok(()) };
        let on_servers = |value: fn(&WorkOnServer) -> f64| {
            work.servers.iter().filter_map(move |on| {
                let ServerName { group, server } = self.roster.servers.get(on.server)?.as_ref()?;
                Some(([("group", Arc::clone(group)), ("server", Arc::clone(server))], value(on)))
            })
        };
        gauges(
            encoder,
            "tidegate_server_prefill_seconds",
            "Predicted prefill that waits or runs on the server.",
            on_servers(|on| on.prefill_s),
        )?;
        gauges(
            encoder,
            "tidegate_server_prefilling_requests",
            "Requests on the server without a first token.",
            on_servers(|on| as_f64(on.prefilling)),
        )?;
        gauges(
            encoder,
            "tidegate_server_prefilling_long_requests",
            "Long requests on the server without a first token.",
            on_servers(|on| as_f64(on.prefilling_long)),
        )?;
        gauges(
            encoder,
            "tidegate_server_context_tokens",
            "Prompts and answers of the requests on the server that have a first token.",
            on_servers(|on| as_f64(on.context_tokens)),
        )?;
        let lanes = work.servers.iter().filter_map(|on| {
            let ServerName { group, server } = self.roster.servers.get(on.server)?.as_ref()?;
            let is_lane = u64::from(work.lanes.contains(&on.server));
            Some(([("group", Arc::clone(group)), ("server", Arc::clone(server))], is_lane))
        });
        gauges(encoder, "tidegate_server_lane", "1 when the server is a lane for long requests.", lanes)?;
        let alone = |value| std::iter::once(([] as [(&str, &str); 0], value));
        gauges(
            encoder,
            "tidegate_held_for_seconds",
            "For how long the oldest request has been held that waits for its turn.",
            alone(work.held_for_s),
        )?;
        gauges(
            encoder,
            "tidegate_long_from_prefill_seconds",
            "From which predicted prefill on a request counts as long, unless a number of tokens is configured.",
            alone(work.long_from_s),
        )?;
        gauges(
            encoder,
            "tidegate_mean_output_tokens",
            "Tokens of an answer, as learned.",
            alone(work.mean_output_tokens),
        )?;
        gauges(
            encoder,
            "tidegate_long_work_share",
            "Share of the work of the last minute that was in long requests.",
            alone(work.long_share),
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "what runs on a server is far below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
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
