//! Numbers of this process: its panics, and what Linux tells of it, which is left out elsewhere.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// One reading.
#[derive(Debug)]
pub(super) struct Process {
    resident_memory_bytes: Option<u64>,
    open_fds: Option<u64>,
    max_fds: Option<u64>,
    cpu_seconds: Option<f64>,
    threads: Option<u64>,
}

impl Process {
    pub(super) fn read() -> Self {
        let text = |path| fs::read_to_string(path).ok();
        Self {
            resident_memory_bytes: text("/proc/self/status").and_then(|status| resident_memory_bytes(&status)),
            // Listing the directory holds one descriptor open itself.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| (fds.count() as u64).saturating_sub(1)),
            max_fds: text("/proc/self/limits").and_then(|limits| max_fds(&limits)),
            cpu_seconds: text("/proc/self/stat").and_then(|stat| cpu_seconds(&stat)),
            threads: fs::read_dir("/proc/self/task").ok().map(|tasks| tasks.count() as u64),
        }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let families = [
            ("process_resident_memory_bytes", "Resident memory size in bytes.", self.resident_memory_bytes),
            ("process_open_fds", "Number of open file descriptors.", self.open_fds),
            ("process_max_fds", "Maximum number of open file descriptors (soft limit).", self.max_fds),
            ("process_threads", "Number of threads.", self.threads),
        ];
        for (name, help, value) in families {
            if let Some(value) = value {
                ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
            }
        }
        if let Some(seconds) = self.cpu_seconds {
            let help = "Total user and system processor time in seconds.";
            let family = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(seconds).encode(family)?;
        }
        let help = "Panics of Tidegate's: each ended a request or a background task, and is a fault.";
        let panics = encoder.encode_descriptor("tidegate_panics", help, None, MetricType::Counter)?;
        ConstCounter::new(crate::panics::count()).encode(panics)
    }
}

/// User and system time of `/proc/self/stat`, which is in hundredths of a second on every Linux (`USER_HZ`).
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The second field, the program's name, may hold anything; what follows it begins with the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<u32>().ok().map(f64::from);
    Some((ticks(14)? + ticks(15)?) / 100.0)
}

/// `VmRSS` of `/proc/self/status`, which is in units of 1,024 bytes.
fn resident_memory_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The soft limit of open files in `/proc/self/limits`; `None` when there is no limit.
fn max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_linux_are_read() {
        let status = "Name:\ttidegate\nVmHWM:\t    9000 kB\nVmRSS:\t    1624 kB\nRssAnon:\t      80 kB\n";
        assert_eq!(resident_memory_bytes(status), Some(1624 * 1024));
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             15000                15000                processes \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(max_fds(limits), Some(1024));
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        for text in ["", "VmRSS:", "VmRSS: many kB", "VmRSS: 5 pages", "VmRSS: 18446744073709551615 kB"] {
            assert_eq!(resident_memory_bytes(text), None, "{text:?}");
        }
        for text in ["", "Max open files", "Max open files            unlimited            unlimited   files"] {
            assert_eq!(max_fds(text), None, "{text:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_is_read() {
        let before = Process::read();
        assert!(before.resident_memory_bytes.is_some_and(|bytes| bytes > 100_000), "{before:?}");
        assert!(before.open_fds.is_some_and(|fds| fds >= 3), "{before:?}");
        assert!(before.max_fds > before.open_fds, "{before:?}");
    }
}
