//! The `pingora` section: settings of the server framework.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::thread;

use pingora::server::configuration::ServerConf;

use super::problem::{Located, Problems, Spot};
use super::section::{Parsed, Section, or_none};
use super::value;
use super::yaml::Node;

/// The section, with what can only be judged when the flags are known.
#[derive(Debug)]
pub(super) struct PingoraDraft {
    pub(super) conf: ServerConf,
    /// Keys given that work only in a daemon.
    daemon_only: Vec<Spot>,
}

/// No service has more threads.
const MAX_THREADS: u64 = 1_024;

/// Longest wait at the start, in seconds.
const MAX_SECONDS: u64 = 24 * 3_600;

impl Default for PingoraDraft {
    fn default() -> Self {
        let conf = ServerConf {
            threads: cpus(),
            pid_file: "/tmp/tidegate.pid".to_owned(),
            upgrade_sock: "/tmp/tidegate_upgrade.sock".to_owned(),
            // Pingora's own 128 is fewer than a handful of servers run at once.
            upstream_keepalive_pool_size: 1_024,
            daemon_ready_timeout_seconds: NonZeroU64::new(600),
            ..ServerConf::default()
        };
        Self { conf, daemon_only: Vec::new() }
    }
}

impl PingoraDraft {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let mut draft = Self::default();
        let PingoraDraft { conf, daemon_only } = &mut draft;
        section.set("threads", &mut conf.threads, threads);
        section.set("work_stealing", &mut conf.work_stealing, value::switch);
        section.set("listener_tasks_per_fd", &mut conf.listener_tasks_per_fd, value::count(1..=64));
        let pool_size = value::count(1..=1_000_000);
        section.set("upstream_keepalive_pool_size", &mut conf.upstream_keepalive_pool_size, pool_size);

        // Pingora's own times are not used: the process ends when `drain` says so.
        section.gone("grace_period", "expected shutdown.grace in its place");
        section.gone("graceful_shutdown_timeout", "expected shutdown.grace in its place");
        section.set("upgrade_sock", &mut conf.upgrade_sock, value::text);
        section.gone("upgrade_sock_max_retries", "expected it to be left out: it has no effect");

        section.set("daemon", &mut conf.daemon, value::switch);
        let wait = section.value("daemon_wait_for_ready", value::switch);
        if let Some(wait) = wait.filter(|wait| wait.value) {
            conf.daemon_wait_for_ready = true;
            daemon_only.push(wait.spot);
        }
        if let Some(timeout) = section.value("daemon_ready_timeout", value::seconds(1..=MAX_SECONDS)) {
            conf.daemon_ready_timeout_seconds = NonZeroU64::new(timeout.value);
        }
        section.set("pid_file", &mut conf.pid_file, value::text);
        conf.error_log = daemon_text(section, "error_log", daemon_only);
        conf.user = daemon_text(section, "user", daemon_only);
        conf.group = daemon_text(section, "group", daemon_only);
        conf.working_directory = daemon_text(section, "working_directory", daemon_only).map(PathBuf::from);
        draft
    }

    /// The settings, with a warning for each that has no effect in the foreground.
    pub(super) fn finish(self, problems: &Problems) -> ServerConf {
        if !self.conf.daemon {
            for spot in &self.daemon_only {
                problems.warn(spot, "has no effect without pingora.daemon: true or the flag --daemon");
            }
        }
        self.conf
    }
}

/// A text that is off by default, and whose place is noted when it is not off.
fn daemon_text(section: &mut Section<'_>, key: &'static str, daemon_only: &mut Vec<Spot>) -> Option<String> {
    let Located { value, spot } = section.value(key, or_none(value::text))?;
    if value.is_some() {
        daemon_only.push(spot);
    }
    value
}

fn threads(node: &Node) -> Parsed<usize> {
    match node.plain() {
        Some("auto") => Ok(cpus()),
        _ => value::count(1..=MAX_THREADS)(node).map_err(|expected| format!("{expected}, or auto")),
    }
}

/// What the machine, or its container, lets this process use.
fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::super::yaml::parse;
    use super::*;

    fn read(yaml: &str) -> Result<(ServerConf, Vec<String>), String> {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        let draft = Section::read(root.as_ref(), Spot::file("f"), &problems, PingoraDraft::read);
        let conf = draft.finish(&problems);
        let (conf, warnings) = problems.finish(Some(conf)).map_err(|refusal| refusal.to_string())?;
        Ok((conf, warnings.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn every_key_reaches_its_setting() {
        let yaml = "threads: 3\nwork_stealing: false\nlistener_tasks_per_fd: 2\nupstream_keepalive_pool_size: 9\n\
                    upgrade_sock: /u\n\
                    daemon: true\ndaemon_wait_for_ready: true\ndaemon_ready_timeout: 8s\npid_file: /p\n\
                    error_log: /e\nuser: u\ngroup: g\nworking_directory: /w\n";
        let expected = ServerConf {
            threads: 3,
            work_stealing: false,
            listener_tasks_per_fd: 2,
            upstream_keepalive_pool_size: 9,
            upgrade_sock: "/u".to_owned(),
            daemon: true,
            daemon_wait_for_ready: true,
            daemon_ready_timeout_seconds: NonZeroU64::new(8),
            pid_file: "/p".to_owned(),
            error_log: Some("/e".to_owned()),
            user: Some("u".to_owned()),
            group: Some("g".to_owned()),
            working_directory: Some("/w".into()),
            ..ServerConf::default()
        };
        assert_eq!(read(yaml), Ok((expected, Vec::new())));
    }

    #[test]
    fn keys_that_moved_say_where_to() {
        let error = read("grace_period: 2s\ngraceful_shutdown_timeout: 3s\nupgrade_sock_max_retries: 4\n").unwrap_err();
        assert_eq!(
            error,
            "error: f:1: grace_period: no longer known, expected shutdown.grace in its place\n\
             error: f:2: graceful_shutdown_timeout: no longer known, expected shutdown.grace in its place\n\
             error: f:3: upgrade_sock_max_retries: no longer known, expected it to be left out: it has no effect"
        );
    }

    #[test]
    fn keys_that_need_a_daemon_warn_in_the_foreground() {
        let (_, warnings) = read("user: www\ngroup: none\n").unwrap();
        assert_eq!(warnings, ["f:1: user: has no effect without pingora.daemon: true or the flag --daemon"]);
    }

    #[test]
    fn threads_are_counted_by_the_machine_or_by_hand() {
        assert_eq!(read("threads: auto\n").unwrap().0.threads, cpus());
        let error = read("threads: 0\n").unwrap_err();
        assert_eq!(error, "error: f:1: threads: found 0, expected a whole number from 1 to 1024, or auto");
    }
}
