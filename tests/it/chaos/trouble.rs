//! What operators do while requests run: reloads, drains, and a list of servers that changes.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::time::sleep;

use super::book::Book;
use super::plan::{FOUND, Fleet, GROUPS, LISTED, Plan, STEADY};
use crate::support::*;

/// The running program, and what is changed about it.
pub(super) struct Operators<'a> {
    pub(super) tidegate: &'a Tidegate,
    pub(super) fleet: &'a Fleet,
    pub(super) book: &'a Book,
    /// What is found where. Only [`Operators::discover`] changes it.
    pub(super) listing: &'a Mutex<Listing>,
}

/// The files of discovery.
#[derive(Debug, Default, Clone)]
pub(super) struct Listing {
    groups: [Vec<usize>; 2],
    /// Files that cannot be used just now.
    broken: [bool; 2],
}

impl Operators<'_> {
    /// Reloads until time is up.
    pub(super) async fn reload(&self, mut die: StdRng, until: Instant) {
        let mut in_force = Plan::everybody();
        while Instant::now() < until {
            sleep(Duration::from_millis(die.random_range(10..400))).await;
            if die.random_ratio(1, 10) {
                self.refused_reload().await;
                continue;
            }
            let plan = Plan::roll(&mut die);
            in_force = self.put_in_force(&in_force, plan, die.random_ratio(1, 4)).await;
        }
        // At the end everybody is there. A broken file is mended by somebody else.
        until_within(PATIENCE, "the last plan is in force", async || {
            let plan = Plan::everybody();
            in_force = self.put_in_force(&in_force, plan.clone(), false).await;
            in_force.groups == plan.groups && in_force.discovers == plan.discovers
        })
        .await;
    }

    /// Reloads a plan in place of another; what is in force then.
    async fn put_in_force(&self, old: &Plan, new: Plan, by_signal: bool) -> Plan {
        for server in 0..STEADY + LISTED {
            if old.place(server).is_some() != new.place(server).is_some() {
                self.fleet.about_to_move(server);
            }
        }
        if old.discovers != new.discovers {
            self.fleet.found().for_each(|server| self.fleet.about_to_move(server));
        }
        let generation = self.generation().await;
        let brings_source = (0..2).any(|group| new.discovers[group] && !old.discovers[group]);
        self.tidegate.write_text(&new.yaml(self.fleet, [self.tidegate.address, self.tidegate.admin]));
        if by_signal && !brings_source {
            self.book.count("reloads by SIGHUP");
            self.tidegate.signal(Signal::SIGHUP);
            self.tidegate.generation(generation + 1).await;
        } else {
            let answer = self.tidegate.admin_post("/reload", "").await;
            if answer.status() == 400 && brings_source && answer.text().contains("file /") {
                self.book.count("reloads refused, no source");
                return old.clone();
            }
            assert_eq!(answer.status(), 200, "{}", answer.text());
            self.book.count("reloads");
            assert_eq!(answer.json()["config_generation"], generation + 1);
        }
        self.assert_in_force(&new).await;
        new
    }

    /// What was reloaded is what the status shows.
    async fn assert_in_force(&self, plan: &Plan) {
        let status = self.tidegate.status().await;
        for (group, places) in plan.groups.iter().enumerate() {
            let shown = &status["groups"][group];
            assert_eq!(shown["to_tokens"].as_u64(), plan.to_tokens(group), "{plan:?}, {status}");
            assert_eq!(shown["discover"].is_string(), plan.discovers[group], "{plan:?}, {status}");
            let servers = shown["servers"].as_array().expect("servers are listed");
            for (place, server) in places.iter().zip(servers) {
                assert_eq!(server["name"], self.fleet.name(place.server), "{plan:?}, {status}");
                assert!(server["draining"] == true || !place.is_drained, "{plan:?}, {status}");
            }
            assert!(servers.len() >= places.len(), "{plan:?}, {status}");
        }
    }

    async fn refused_reload(&self) {
        let generation = self.generation().await;
        self.tidegate.write_text("groups: [");
        let answer = self.tidegate.admin_post("/reload", "").await;
        assert_eq!(answer.status(), 400, "{}", answer.text());
        assert_eq!(self.generation().await, generation, "nothing has changed");
        self.book.count("reloads refused, bad file");
    }

    async fn generation(&self) -> u64 {
        self.tidegate.status().await["config_generation"].as_u64().expect("a whole number")
    }

    /// Drains servers and takes that back until time is up.
    pub(super) async fn drain(&self, mut die: StdRng, until: Instant) {
        while Instant::now() < until {
            sleep(Duration::from_millis(die.random_range(0..150))).await;
            let server = die.random_range(STEADY..STEADY + LISTED + FOUND);
            // Some stay drained, until they leave or it is their turn again.
            let (is_awaited, is_undrained) = (die.random_ratio(2, 3), die.random_ratio(4, 5));
            let rests = Duration::from_millis(die.random_range(0..150));
            let moves = self.fleet.moves(server);
            let answer = self.ask("drain", server).await;
            if answer.status() == 404 {
                continue;
            }
            assert_eq!(answer.status(), 200, "{}", answer.text());
            self.book.count("drains");
            if is_awaited && self.runs_empty(server).await {
                let arrived = self.book.arrived(server);
                sleep(rests).await;
                let since = self.book.arrived_between(server, arrived..self.book.arrived(server));
                // One that has left meanwhile may have come back, and is drained no more.
                if moves == self.fleet.moves(server) {
                    self.book.count("drains to the end");
                    assert!(since.is_empty(), "{} is drained and was given {since:?}", self.fleet.name(server));
                }
            }
            if is_undrained {
                self.undrain(server).await;
            }
        }
    }

    /// Takes all drains by hand back. What the configuration drains keeps them.
    pub(super) async fn undrain_everybody(&self) {
        for server in STEADY..STEADY + LISTED + FOUND {
            self.undrain(server).await;
        }
    }

    async fn undrain(&self, server: usize) {
        let answer = self.ask("undrain", server).await;
        // It may be drained by the configuration, or not be there.
        assert!([200, 404, 409].contains(&answer.status()), "{}", answer.text());
    }

    async fn ask(&self, what: &str, server: usize) -> Response {
        self.tidegate.admin_post(&format!("/{what}?server={}", self.fleet.name(server)), "").await
    }

    /// Waits until nothing runs on a server that is being drained; false when it leaves instead.
    async fn runs_empty(&self, server: usize) -> bool {
        let name = self.fleet.name(server);
        let mut is_here = true;
        until(&format!("{name} is drained"), async || {
            let status = self.tidegate.status().await;
            let shown = servers_of(&status).find(|shown| shown["name"] == name.as_str());
            is_here = shown.is_some_and(|shown| shown["draining"] == true);
            !is_here || shown.is_some_and(|shown| shown["drained"] == true)
        })
        .await;
        is_here
    }

    /// Changes what discovery finds until time is up.
    pub(super) async fn discover(&self, mut die: StdRng, until: Instant) {
        while Instant::now() < until {
            sleep(Duration::from_millis(die.random_range(0..300))).await;
            let group = die.random_range(0..2_usize);
            let mut listing = self.listing.lock().clone();
            if die.random_ratio(1, 5) {
                self.book.count("discovery files broken");
                listing.broken[group] = true;
                self.publish(&listing, group, die.random()).await;
                continue;
            }
            listing.broken[group] = false;
            for server in self.fleet.found() {
                let (is_wanted, other) = (die.random_ratio(2, 3), &listing.groups[1 - group]);
                let is_here = listing.groups[group].contains(&server);
                if is_here && !is_wanted {
                    listing.groups[group].retain(|here| *here != server);
                } else if !is_here && is_wanted && !other.contains(&server) {
                    listing.groups[group].push(server);
                }
            }
            self.publish(&listing, group, false).await;
        }
        self.find_everybody().await;
    }

    /// One server is found for each group.
    pub(super) async fn find_everybody(&self) {
        // First nobody, so that no server is in both files.
        for groups in [Default::default(), [0, 1].map(|group| vec![self.fleet.found().start + group])] {
            let listing = Listing { groups, broken: [false; 2] };
            for group in 0..2 {
                self.publish(&listing, group, false).await;
            }
        }
    }

    /// Writes a group's file, and waits until it counts.
    async fn publish(&self, listing: &Listing, group: usize, is_removed: bool) {
        let file = self.fleet.file(group);
        let before = std::mem::replace(&mut *self.listing.lock(), listing.clone());
        if listing.broken[group] && is_removed {
            std::fs::remove_file(&file).ok();
            return;
        }
        for server in self.fleet.found() {
            if before.groups[group].contains(&server) != listing.groups[group].contains(&server) {
                self.fleet.about_to_move(server);
            }
        }
        let mut names: Vec<_> = listing.groups[group].iter().map(|server| self.fleet.addresses[*server]).collect();
        let mut text: String = names.iter().map(|address| format!("{address}\n")).collect();
        if listing.broken[group] {
            text.push_str("nonsense\n");
        }
        let new = file.with_extension("new");
        std::fs::write(&new, text).expect("the directory is writable");
        std::fs::rename(new, file).expect("the directory is writable");
        if listing.broken[group] {
            return;
        }
        self.book.count("discovery files changed");
        names.sort();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        until(&format!("{names:?} are found for {}", GROUPS[group]), async || {
            let status = self.tidegate.status().await;
            let group = &status["groups"][group];
            let servers = group["servers"].as_array().expect("servers are listed").iter();
            let shown = servers.filter_map(|server| server["name"].as_str());
            let found = shown.filter(|name| self.fleet.found().contains(&self.fleet.number(name)));
            group["discover"].is_null() || found.eq(names.iter())
        })
        .await;
    }
}

/// All servers that are in a group.
pub(super) fn servers_of(status: &Value) -> impl Iterator<Item = &Value> {
    let groups = status["groups"].as_array().expect("groups are listed").iter();
    groups.flat_map(|group| group["servers"].as_array().expect("servers are listed"))
}
