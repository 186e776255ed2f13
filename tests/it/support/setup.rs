//! The configuration that a test starts Tidegate with.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use super::Backend;

/// Groups of servers, and sections of the file as YAML text. Retries are quick, servers get no questions of Tidegate's own
/// that a test would have to tell from its requests, everything else is as by default.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    groups: Vec<(String, u64, Vec<String>)>,
    sections: BTreeMap<String, String>,
    open_files: Option<u32>,
    log_level: Option<String>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self { groups: Vec::new(), sections: BTreeMap::new(), open_files: None, log_level: None }
            .section("policy", "{ kind: reference_bucket, ties: first }")
            .section("retry", "{ max_attempts: 3, base_delay: 1ms, max_delay: 5ms }")
            .section("health", "{ active: { enabled: false } }")
            .section("engines", "{ enabled: false }")
            .section("pingora", "{ threads: 2 }")
    }

    /// One group for all lengths.
    pub(crate) fn one_group<S: ToYaml>(servers: impl IntoIterator<Item = S>) -> Self {
        Self::new().group("all", 131_072, servers)
    }

    /// The groups of the Python example: up to 32,768 tokens, and up to 131,072.
    pub(crate) fn two_groups<S: ToYaml, L: ToYaml>(
        short: impl IntoIterator<Item = S>,
        long: impl IntoIterator<Item = L>,
    ) -> Self {
        Self::new().group("short", 32_768, short).group("long", 131_072, long)
    }

    /// Adds a group.
    pub(crate) fn group<S: ToYaml>(
        mut self,
        name: &str,
        up_to_tokens: u64,
        servers: impl IntoIterator<Item = S>,
    ) -> Self {
        self.groups.push((name.into(), up_to_tokens, servers.into_iter().map(|server| server.to_yaml()).collect()));
        self
    }

    /// Sets a whole section.
    pub(crate) fn section(mut self, name: &str, yaml: &str) -> Self {
        self.sections.insert(name.into(), yaml.into());
        self
    }

    /// Servers stay in service whatever they do.
    pub(crate) fn without_health(self) -> Self {
        self.section("health", "{ active: { enabled: false }, passive: { enabled: false } }")
    }

    /// Limits how many files, sockets included, the program may have open.
    pub(crate) fn open_files(mut self, limit: u32) -> Self {
        self.open_files = Some(limit);
        self
    }

    /// The program, without arguments.
    pub(crate) fn program(&self) -> Command {
        let program = env!("CARGO_BIN_EXE_tidegate");
        let Some(limit) = self.open_files else { return Command::new(program) };
        let mut shell = Command::new("sh");
        // The shell becomes the program, so that its process id is the program's.
        shell.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &limit.to_string(), program]);
        shell
    }

    /// Logs at this level instead of the default.
    pub(crate) fn logging(mut self, level: &str) -> Self {
        self.log_level = Some(level.into());
        self
    }

    pub(crate) fn log_level(&self) -> Option<&str> {
        self.log_level.as_deref()
    }

    /// The file.
    pub(crate) fn yaml(&self, listen: impl std::fmt::Display, admin: impl std::fmt::Display) -> String {
        let mut text = format!("listen: \"{listen}\"\nadmin: {{ listen: \"{admin}\" }}\ngroups:\n");
        for (name, up_to, servers) in &self.groups {
            let servers = servers.join(", ");
            writeln!(text, "  - {{ name: {name}, up_to_tokens: {up_to}, servers: [{servers}] }}")
                .expect("a string takes all");
        }
        for (name, yaml) in &self.sections {
            writeln!(text, "{name}: {yaml}").expect("a string takes all");
        }
        text
    }
}

/// What can stand in a list of servers.
pub(crate) trait ToYaml {
    fn to_yaml(&self) -> String;
}

impl ToYaml for &Backend {
    fn to_yaml(&self) -> String {
        self.address().to_yaml()
    }
}

impl ToYaml for std::net::SocketAddr {
    fn to_yaml(&self) -> String {
        format!("\"{self}\"")
    }
}

impl ToYaml for String {
    fn to_yaml(&self) -> String {
        self.clone()
    }
}
