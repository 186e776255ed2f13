//! The `shutdown` section: how the process ends.

use std::time::Duration;

use super::section::Section;
use super::value;

/// How long the steps of a gentle end may take, after SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// How long new connections are still accepted, while the process already says that it is not ready.
    pub delay: Duration,
    /// After that: how long running requests may go on. Also after a hand-over to a successor.
    pub grace: Duration,
}

/// Longer is a mistaken unit.
const MAX: Duration = Duration::from_secs(24 * 3_600);

impl Default for Shutdown {
    /// Below the 30 s after which Kubernetes kills.
    fn default() -> Self {
        Self { delay: Duration::ZERO, grace: Duration::from_secs(25) }
    }
}

impl Shutdown {
    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let mut shutdown = Self::default();
        section.set("delay", &mut shutdown.delay, value::at_most(MAX));
        section.set("grace", &mut shutdown.grace, value::at_most(MAX));
        shutdown
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::{Problems, Spot};
    use super::super::yaml::parse;
    use super::*;

    fn read(yaml: &str) -> Result<Shutdown, String> {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        let shutdown = Section::read(root.as_ref(), Spot::file("f"), &problems, Shutdown::read);
        problems.finish(Some(shutdown)).map(|(shutdown, _)| shutdown).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn both_times_have_their_key_and_may_be_zero() {
        let seconds = |delay, grace| Shutdown { delay: Duration::from_secs(delay), grace: Duration::from_secs(grace) };
        assert_eq!(read("delay: 5s\ngrace: 10m\n"), Ok(seconds(5, 600)));
        assert_eq!(read("grace: 0s\n"), Ok(seconds(0, 0)));
    }

    #[test]
    fn an_end_by_default_fits_into_what_kubernetes_allows() {
        let Shutdown { delay, grace } = read("").unwrap();
        assert!(delay + grace < Duration::from_secs(30));
    }

    #[test]
    fn a_time_needs_its_unit_and_is_at_most_a_day() {
        let error = read("grace: 25\n").unwrap_err();
        assert_eq!(error, "error: f:1: grace: found 25, expected a duration from 0s to 1day, such as 500ms, 5s or 10m");
        assert!(read("delay: 2days\n").is_err());
    }
}
