//! The `engines` section: what the servers' engines are asked for themselves.

use std::time::Duration;

use super::section::Section;
use super::value;

/// How the servers' engines are asked how busy they are (`/metrics`) and what they can do (`/v1/models`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engines {
    /// From the end of one question for their metrics to the next, give or take a tenth.
    pub interval: Duration,
    /// Longest time that an answer may take, from the beginning of the question to its last byte.
    pub timeout: Duration,
}

impl Default for Engines {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), timeout: Duration::from_secs(2) }
    }
}

impl Engines {
    /// `None`: they are not asked.
    pub(super) fn read(section: &mut Section<'_>) -> Option<Self> {
        let mut is_on = true;
        let mut engines = Self::default();
        section.set("enabled", &mut is_on, value::switch);
        section.set("interval", &mut engines.interval, value::duration);
        section.set("timeout", &mut engines.timeout, value::duration);
        is_on.then_some(engines)
    }

    /// For how long what an engine has reported counts: a few questions may stay without an answer.
    #[must_use]
    pub fn valid_for(&self) -> Duration {
        3 * self.interval
    }
}

#[cfg(test)]
mod tests {
    use super::super::of_text;
    use super::*;

    fn engines(section: &str) -> Option<Engines> {
        of_text(&format!("groups: [{{name: a, servers: [x:1]}}]\n{section}")).engines
    }

    #[test]
    fn engines_are_asked_unless_it_is_switched_off() {
        assert_eq!(engines(""), Some(Engines::default()));
        assert_eq!(engines("engines: {enabled: false}"), None);
        let [interval, timeout] = [3, 1].map(Duration::from_secs);
        assert_eq!(engines("engines: {interval: 3s, timeout: 1s}"), Some(Engines { interval, timeout }));
    }
}
