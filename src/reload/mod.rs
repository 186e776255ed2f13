//! Puts the configuration file in force anew, while requests run.
//!
//! ```text
//! SIGHUP ------------+
//! POST /reload ------+--> Reloader: read, check, compare, look at new sources --> Live::apply
//! the file changed --+
//! ```
//!
//! A file that cannot be run changes nothing; whoever asked and the log get every problem. What is settled at start
//! (listeners with their TLS, Pingora's own settings) keeps its value and is named as needing a restart; everything else
//! takes effect for requests that begin from then on.

mod service;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;

pub use service::{ReloadService, service, survive_hangup};

use crate::config::{self, Config, Difference, Flags, Source};
use crate::discovery;
use crate::upstream::Live;

/// Where the configuration comes from.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The file.
    pub file: PathBuf,
    /// The flags over it.
    pub flags: Flags,
}

/// What had a configuration read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The process started.
    Start,
    /// SIGHUP.
    Signal,
    /// `POST /reload`.
    Request,
    /// The file has changed.
    Watch,
}

impl Trigger {
    /// The name in status and logs.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Signal => "sighup",
            Self::Request => "request",
            Self::Watch => "watch",
        }
    }
}

/// A configuration that was put in force.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The generation that it is.
    pub generation: u64,
    /// When.
    pub at: SystemTime,
    /// Why.
    pub trigger: Trigger,
    /// What it changed.
    pub difference: Difference,
}

/// A configuration that could not be put in force.
#[derive(Debug, Clone)]
pub struct Refused {
    /// When.
    pub at: SystemTime,
    /// Why it was read.
    pub trigger: Trigger,
    /// All that is wrong, one problem each. Never empty.
    pub problems: Vec<String>,
    /// Whether the same file may be good later: a name did not resolve, say.
    pub may_pass: bool,
}

/// What is wrong with a file.
struct Fault {
    problems: Vec<String>,
    may_pass: bool,
}

impl Fault {
    fn lasting(problems: Vec<String>) -> Self {
        Self { problems, may_pass: false }
    }
}

/// Reads the configuration again when asked to.
#[derive(Debug)]
pub struct Reloader {
    live: Arc<Live>,
    origin: Option<Origin>,
    /// Connections to servers may only then trust the system's authorities when they did at the start.
    has_system_authorities: bool,
    one_at_a_time: tokio::sync::Mutex<()>,
    applied: RwLock<Arc<Applied>>,
    /// The latest attempt, when that failed.
    refused: RwLock<Option<Arc<Refused>>>,
}

impl Reloader {
    /// A reloader of what is in force. Without an origin there is nothing to read.
    #[must_use]
    pub fn new(live: Arc<Live>, origin: Option<Origin>) -> Self {
        let in_force = live.get();
        let (generation, has_system_authorities) = (in_force.generation, in_force.config.uses_system_authorities());
        let applied =
            Applied { generation, at: SystemTime::now(), trigger: Trigger::Start, difference: Difference::default() };
        let applied = RwLock::new(Arc::new(applied));
        let (one_at_a_time, refused) = Default::default();
        Self { live, origin, has_system_authorities, one_at_a_time, applied, refused }
    }

    /// What is in force.
    #[must_use]
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// The file; `None` when there is none.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.origin.as_ref().map(|origin| origin.file.as_path())
    }

    /// The configuration that was put in force last.
    #[must_use]
    pub fn applied(&self) -> Arc<Applied> {
        Arc::clone(&self.applied.read())
    }

    /// The latest reload, when it was refused.
    #[must_use]
    pub fn refused(&self) -> Option<Arc<Refused>> {
        self.refused.read().clone()
    }

    /// Reads the file and puts it in force. Both outcomes are logged.
    ///
    /// # Errors
    /// When the configuration cannot be run. Then nothing has changed.
    pub async fn reload(&self, trigger: Trigger) -> Result<Arc<Applied>, Arc<Refused>> {
        let _one_at_a_time = self.one_at_a_time.lock().await;
        let reloaded = self.try_reload(trigger).await;
        self.live.metrics().config_refused(reloaded.is_err());
        match reloaded {
            Ok(applied) => {
                let refused = self.refused.write().take();
                let Some(applied) = applied.map(Arc::new) else {
                    if refused.is_some() {
                        log::info!("the file is again what is in force");
                    }
                    return Ok(self.applied());
                };
                *self.applied.write() = Arc::clone(&applied);
                log_applied(&applied);
                Ok(applied)
            }
            Err(Fault { problems, may_pass }) => {
                let refused = Arc::new(Refused { at: SystemTime::now(), trigger, problems, may_pass });
                let before = self.refused.write().replace(Arc::clone(&refused));
                // The watcher comes back every other second.
                let is_news = before.is_none_or(|before| before.problems != refused.problems);
                for problem in refused.problems.iter().filter(|_| is_news || trigger != Trigger::Watch) {
                    log::error!("reload ({}) refused, nothing has changed: {problem}", trigger.label());
                }
                Err(refused)
            }
        }
    }

    /// `None` when the watched file holds what is in force.
    async fn try_reload(&self, trigger: Trigger) -> Result<Option<Applied>, Fault> {
        let Some(origin) = self.origin.clone() else {
            let text = "there is no file to read: Tidegate was started without --conf";
            return Err(Fault::lasting(vec![text.to_owned()]));
        };
        let mut config = read(origin).await.map_err(Fault::lasting)?;
        if config.uses_system_authorities() && !self.has_system_authorities {
            let text = "no server needed the certificate authorities of the system at the start, so they are not loaded: \
                        name a file in upstream.tls.ca, or start Tidegate anew (--replace)";
            return Err(Fault::lasting(vec![text.to_owned()]));
        }
        let old = self.live.get();
        let difference = config::difference(&old.config, &config);
        if trigger == Trigger::Watch && difference.is_empty() {
            return Ok(None);
        }
        config.keep_fixed(&old.config).map_err(|error| Fault::lasting(vec![error]))?;
        let known = self.live.discovered();
        let new_sources: Vec<Source> = config
            .sources()
            .map(|discover| discover.source.clone())
            .filter(|source| !known.contains_key(source) && !old.config.sources().any(|old| old.source == *source))
            .collect();
        let found = discovery::first_look(new_sources).await;
        let found = found.map_err(|problems| Fault { problems, may_pass: true })?;
        let log_level = config.log_level;
        let applied = self.live.apply_with(config, found);
        let in_force = applied.map_err(|error| Fault::lasting(vec![error.to_string()]))?;
        crate::logging::set_level(log_level);
        Ok(Some(Applied { generation: in_force.generation, at: SystemTime::now(), trigger, difference }))
    }
}

/// Reading may block: on the disk, and on names of listeners.
async fn read(origin: Origin) -> Result<Config, Vec<String>> {
    let load = move || config::load(Some(&origin.file), &origin.flags, &|name| std::env::var(name).ok());
    let loaded = tokio::task::spawn_blocking(load).await.map_err(|error| vec![error.to_string()])?;
    let loaded = loaded.map_err(|refusal| {
        let problems: Vec<String> = refusal.problems().iter().map(ToString::to_string).collect();
        if refusal.unlisted() > 0 {
            [problems, vec![format!("and {} more", refusal.unlisted())]].concat()
        } else {
            problems
        }
    })?;
    for warning in &loaded.warnings {
        log::warn!("{warning}");
    }
    Ok(loaded.config)
}

fn log_applied(applied: &Applied) {
    let Applied { generation, trigger, difference, .. } = applied;
    let changes = if difference.changes.is_empty() { "nothing" } else { &difference.changes.join("; ") };
    log::info!("reload ({}): configuration {generation} is in force; changed: {changes}", trigger.label());
    for change in &difference.needs_restart {
        log::warn!("needs a restart: {change}");
    }
}
