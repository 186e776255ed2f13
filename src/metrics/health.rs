//! What is counted of the health of servers. Series come with the first event of their kind and stay.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The names of the states a server can be in.
const STATES: [&str; 3] = ["healthy", "probation", "out"];

/// Counters and gauges of health. Updated at changes, faults and probes, not at every request.
#[derive(Debug, Default)]
pub struct HealthMetrics {
    state: Family<StateLabels, Gauge>,
    faults: Family<FaultLabels, Counter>,
    ejections: Family<EjectionLabels, Counter>,
    spared: Family<EjectionLabels, Counter>,
    probes: Family<ProbeLabels, Counter>,
    failovers: Family<FailoverLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    server: Arc<str>,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FaultLabels {
    server: Arc<str>,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EjectionLabels {
    server: Arc<str>,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeLabels {
    server: Arc<str>,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailoverLabels {
    from: Arc<str>,
    to: Arc<str>,
}

impl HealthMetrics {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "tidegate_server_health",
            "The state of a server: 1 for the one it is in, 0 for the others",
            metrics.state.clone(),
        );
        registry.register(
            "tidegate_server_faults",
            "What requests met that speaks against a server, by kind; comments, 4xx and clients that left do not",
            metrics.faults.clone(),
        );
        registry.register(
            "tidegate_ejections",
            "How often a server was taken out of service, by reason",
            metrics.ejections.clone(),
        );
        registry.register(
            "tidegate_ejections_spared",
            "Faults that would have taken a server out, had max_ejected_share let them, by kind",
            metrics.spared.clone(),
        );
        registry.register("tidegate_probes", "Health probes by result", metrics.probes.clone());
        registry.register(
            "tidegate_failovers",
            "Attempts that went to another group because no server of their own could be tried",
            metrics.failovers.clone(),
        );
        metrics
    }

    /// Says in which state (of a closed list) a server is now.
    pub fn phase(&self, server: &str, state: &'static str) {
        for each in STATES {
            let labels = StateLabels { server: server.into(), state: each };
            self.state.get_or_create(&labels).set(i64::from(each == state));
        }
    }

    /// Says that a server is in no state any more.
    pub fn gone(&self, server: &str) {
        for state in STATES {
            self.state.remove(&StateLabels { server: server.into(), state });
        }
    }

    /// Counts what speaks against a server, by a kind from a closed list.
    pub fn fault(&self, server: &str, kind: &'static str) {
        self.faults.get_or_create(&FaultLabels { server: server.into(), kind }).inc();
    }

    /// Counts that a server was taken out, by a reason from a closed list.
    pub fn ejected(&self, server: &str, reason: &'static str) {
        self.ejections.get_or_create(&EjectionLabels { server: server.into(), reason }).inc();
    }

    /// Counts a fault that would have taken a server out, by a kind from a closed list.
    pub fn spared(&self, server: &str, reason: &'static str) {
        self.spared.get_or_create(&EjectionLabels { server: server.into(), reason }).inc();
    }

    /// Counts a probe by its result, `passed` or `failed`.
    pub fn probed(&self, server: &str, result: &'static str) {
        self.probes.get_or_create(&ProbeLabels { server: server.into(), result }).inc();
    }

    /// Counts that another group serves in place of the own one.
    pub fn failed_over(&self, from: &str, to: &str) {
        self.failovers.get_or_create(&FailoverLabels { from: from.into(), to: to.into() }).inc();
    }
}
