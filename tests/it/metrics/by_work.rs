//! The same with a policy by work, whose figures rest on estimates: after each step every sample is as it was, but for those
//! that are named.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::model::Asked;
use super::scenario::{CERTIFICATE, LONG, ONLY_BY_WORK, SHORT, Server, chat, connections, scrape, unseen};
use super::timed;
use crate::support::*;

/// How a sample is to differ from before. One that was not there counts as nothing.
#[derive(Debug, Clone, Copy)]
enum Change {
    By(f64),
    /// There is more, by an amount that rests on an estimate.
    Rises,
    /// There is nothing left.
    ToNothing,
}
use Change::{By, Rises, ToNothing};

struct Watched {
    tidegate: Tidegate,
    servers: [Server; 2],
    started: Instant,
    before: Scraped,
}

impl Watched {
    fn server(&self, name: &str) -> &Server {
        &self.servers[usize::from(name == "b")]
    }

    async fn begin(&self, asked: &Asked) -> Client {
        let streamed = "\"stream\":true,";
        // Each begins as no other does: nothing of it is in a server's cache.
        let (beginning, begun) = ("\"content\":\"", self.started.elapsed().as_micros());
        let added = format!("{begun:>12}: ");
        let body = body_of(usize::try_from(asked.bytes).unwrap() - streamed.len() - added.len());
        let mut body = String::from_utf8(body).unwrap().replacen(beginning, &format!("{beginning}{added}"), 1);
        body.insert_str(1, streamed);
        self.tidegate.begin(&request("POST", asked.path, &format!("X-Do: {}\r\n", asked.what), body.as_bytes())).await
    }

    /// What the policy beside would have done with the latest request. Whether that is the same rests on what was seen of
    /// the engines, too: the status says so.
    async fn shadowed(&self) -> (String, Change) {
        let shadow = self.tidegate.status().await["shadow"].clone();
        let choices = |agreement: &str| {
            let labels =
                [("policy", "least_work"), ("group", "all"), ("reason", "least_cost"), ("agreement", agreement)];
            series("tidegate_shadow_choices_total", &labels)
        };
        let was = |agreement: &str| self.before.samples.get(&choices(agreement)).copied().unwrap_or(0.0);
        let mut agreements = ["same_server", "same_group"].into_iter();
        let grown = agreements.find(|agreement| shadow[*agreement].as_f64().unwrap() > was(agreement));
        (choices(grown.expect("it has chosen")), By(1.0))
    }

    /// Compares the page with the one before.
    ///
    /// # Panics
    /// When it is not as expected in time.
    async fn check(&mut self, step: &str, changes: &[(String, Change)]) {
        let mut wrong = Vec::new();
        let agree = async {
            loop {
                match self.compare(changes).await {
                    Ok(page) => return page,
                    Err(differences) => wrong = differences,
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let agreed = tokio::time::timeout(PATIENCE, agree).await;
        self.before = agreed.unwrap_or_else(|_| panic!("{step}:\n{}\n", wrong.join("\n")));
    }

    async fn compare(&self, changes: &[(String, Change)]) -> Result<Scraped, Vec<String>> {
        let (page, mut wrong) = scrape(&self.tidegate).await;
        wrong.extend(timed::faults(&page, Some(&self.before), self.started.elapsed()));
        let [(_, exact), (_, mut expected)] = [&page, &self.before].map(timed::split);
        for (series, change) in changes {
            let (was, is) = [&expected, &exact].map(|samples| samples.get(series).copied().unwrap_or(0.0)).into();
            let is_right = match change {
                By(amount) => is == was + amount,
                Rises => is > was,
                ToNothing => is == 0.0 && was > 0.0,
            };
            if !is_right {
                wrong.push(format!("{series} was {was} and is {is}, not {change:?}"));
            }
            expected.insert(series.clone(), is);
        }
        expected.extend(self.seen_by_servers());
        wrong.extend(differences(&exact, &expected));
        if wrong.is_empty() { Ok(page) } else { Err(wrong) }
    }

    fn seen_by_servers(&self) -> BTreeMap<String, f64> {
        let mut samples: BTreeMap<String, f64> = connections(self.servers.iter()).into();
        for (name, server) in ["a", "b"].iter().zip(&self.servers) {
            let labels = [("server", *name), ("result", "ok")];
            let asked = server.engine.asked.load(Ordering::SeqCst);
            samples.insert(series("tidegate_engine_scrapes_total", &labels), asked.into());
        }
        samples
    }
}

/// A request has gone to a server.
fn placed(server: &str, length: &str, reason: &str) -> Vec<(String, Change)> {
    let on = [("group", "all"), ("server", server)];
    let mut changes = before_first_token(server, length, (By(1.0), Rises));
    changes.extend([
        (series("tidegate_decisions_total", &[("reason", reason)]), By(1.0)),
        (series("tidegate_server_load_tokens", &on), Rises),
        (series("tidegate_group_load_tokens", &on[..1]), Rises),
        (series("tidegate_server_in_flight_requests", &on), By(1.0)),
        (series("tidegate_group_in_flight_requests", &on[..1]), By(1.0)),
        (series("tidegate_engine_running_requests", &on[1..]), By(1.0)),
    ]);
    changes
}

/// Its first token has come.
fn first_token(server: &str, length: &str) -> Vec<(String, Change)> {
    let mut changes = before_first_token(server, length, (By(-1.0), ToNothing));
    changes.push((series("tidegate_server_context_tokens", &[("group", "all"), ("server", server)]), Rises));
    changes
}

/// What counts of a request until its first token is there: requests, and what rests on estimates.
fn before_first_token(server: &str, length: &str, (requests, estimated): (Change, Change)) -> Vec<(String, Change)> {
    let labels = [("group", "all"), ("server", server), ("length", length)];
    let mut changes = vec![
        (series("tidegate_server_prefilling_requests", &labels[..2]), requests),
        (series("tidegate_server_prefill_seconds", &labels[..2]), estimated),
        (series("tidegate_server_waiting_requests", &labels), requests),
        (series("tidegate_server_waiting_prompt_tokens", &labels), estimated),
    ];
    if length == "long" {
        changes.push((series("tidegate_server_prefilling_long_requests", &labels[..2]), requests));
    }
    changes
}

/// The end of a request with a first token, the only one on its server and in its group.
fn ended(asked: &Asked, server: &str, sent: usize) -> Vec<(String, Change)> {
    let labels = [("endpoint", "chat"), ("outcome", "complete"), ("code", "2xx")];
    let bytes = f64::from(asked.bytes);
    let on = [("group", "all"), ("server", server)];
    let mut changes = vec![
        (series("tidegate_server_context_tokens", &on), ToNothing),
        (series("tidegate_server_load_tokens", &on), ToNothing),
        (series("tidegate_group_load_tokens", &on[..1]), ToNothing),
        (series("tidegate_server_in_flight_requests", &on), By(-1.0)),
        (series("tidegate_group_in_flight_requests", &on[..1]), By(-1.0)),
        (series("tidegate_engine_running_requests", &on[1..]), By(-1.0)),
        (series("tidegate_requests_total", &labels), By(1.0)),
        (series("tidegate_attempts_total", &[("server", server), ("result", "answered")]), By(1.0)),
        (series("tidegate_request_bytes_total", &[]), By(bytes)),
        (series("tidegate_response_bytes_total", &[]), By(f64::from(u32::try_from(sent).unwrap()))),
        (series("tidegate_request_body_bytes_count", &[]), By(1.0)),
        (series("tidegate_request_body_bytes_sum", &[]), By(bytes)),
        (series("tidegate_time_to_header_seconds_count", &[]), By(1.0)),
    ];
    let bounds = (4..=13).map(|power| 4.0_f64.powi(power)).filter(|bound| *bound >= bytes);
    let bounds = bounds.map(|bound| format!("{bound}.0")).chain(["+Inf".to_owned()]);
    changes.extend(bounds.map(|bound| (series("tidegate_request_body_bytes_bucket", &[("le", &bound)]), By(1.0))));
    for name in ["time_to_first_byte", "request_duration"] {
        changes.push((series(&format!("tidegate_{name}_seconds_count"), &[("group", "all")]), By(1.0)));
    }
    let (length, size) = if asked.bytes == LONG { ("long", "10k_to_100k") } else { ("short", "under_1k") };
    let first_token = "tidegate_time_to_first_token_seconds_count";
    changes.push((series(first_token, &[("length", length), ("size", size)]), By(1.0)));
    for name in ["time_per_output_token", "longest_token_gap"] {
        changes.push((series(&format!("tidegate_{name}_seconds_count"), &[("length", length)]), By(1.0)));
    }
    changes
}

#[tokio::test]
async fn by_work_nothing_changes_on_the_page_but_what_has_happened() {
    let (folder, started) = (tempfile::tempdir().unwrap(), Instant::now());
    let file = folder.path().join("servers");
    std::fs::write(&file, "").unwrap();
    let servers = [Server::start("a").await, Server::start("b").await];
    let names = ["a", "b"].iter().zip(&servers);
    let yaml = names.map(|(name, server)| format!("{{ name: {name}, address: \"{}\" }}", server.backend.address()));
    let policy = "{ kind: lanes, lanes: 1, long_from_tokens: 10000, shadow: least_work }";
    let setup = Setup::one_group(yaml.collect::<Vec<_>>())
        .section("policy", policy)
        .section("engines", "{ interval: 300ms, timeout: 5s }");
    let [address, admin] = Loopback::new().free_ports();
    let discover = format!("discover: {{ file: {}, interval: 100ms }}", file.display());
    let text = setup.yaml(address, admin).replace("servers: [", &format!("{discover}, servers: ["));
    let tidegate = Tidegate::start_with(address, admin, &text).await;
    until("the engines and the source are known", async || {
        let page = tidegate.metrics().await;
        let engines = ["a", "b"].map(|server| series("tidegate_engine_kv_usage_ratio", &[("server", server)]));
        page.contains("tidegate_discovery_failed{") && engines.iter().all(|series| page.contains(series))
    })
    .await;
    let before = Scraped::text(&tidegate.metrics().await);
    let mut day = Watched { tidegate, servers, started, before };
    day.check("nothing has happened", &[]).await;
    engines_and_sources(&mut day, &file).await;
    one_short_request(&mut day).await;
    long_requests(&mut day).await;
    day.tidegate.idle().await;
    let mut unseen = unseen(&day.before);
    unseen.retain(|family| ONLY_BY_WORK.contains(&family.as_str()) || family == CERTIFICATE);
    assert_eq!(unseen, [CERTIFICATE], "the other test sees the others");
}

async fn engines_and_sources(day: &mut Watched, file: &std::path::Path) {
    for (foreign, change) in [(3, 3.0), (0, -3.0)] {
        day.server("a").engine.foreign.store(foreign, Ordering::SeqCst);
        let names = ["tidegate_engine_running_requests", "tidegate_engine_drift_requests"];
        let changes = names.map(|name| (series(name, &[("server", "a")]), By(change)));
        day.check("an engine has other requests", &changes).await;
    }
    let source = format!("file {}", file.display());
    for (text, change) in [("no address\n", 1.0), ("", -1.0)] {
        std::fs::write(file, text).unwrap();
        let changes = [(series("tidegate_discovery_failed", &[("source", &source)]), By(change))];
        day.check("a source of servers has changed", &changes).await;
    }
}

async fn one_short_request(day: &mut Watched) {
    let asked = chat(SHORT, "stream");
    let mut client = day.begin(&asked).await;
    // What costs least rests on what was seen of the engines: the servers say where it is.
    until("a server has it", async || day.servers.iter().any(|server| !server.connections().is_empty())).await;
    let is_on_lane = day.server("a").connections().is_empty();
    let (server, reason) = if is_on_lane { ("b", "short_on_lane") } else { ("a", "short") };
    let mut changes = placed(server, "short", reason);
    changes.push(day.shadowed().await);
    day.check("a short request runs", &changes).await;
    day.server(server).gate.admit(1);
    client.head().await;
    let first = client.body_bytes(sse_event(0).len()).await;
    day.check("its first token is there", &first_token(server, "short")).await;
    day.server(server).gate.admit(2);
    let (rest, end) = client.rest().await;
    assert_eq!(end, End::Complete);
    day.check("it is answered", &ended(&asked, server, first.len() + rest.len())).await;
}

async fn long_requests(day: &mut Watched) {
    let (asked, seen) = (chat(LONG, "stream"), day.server("b").connections().len());
    let mut first = day.begin(&asked).await;
    until("the lane has it", async || day.server("b").connections().len() > seen).await;
    let mut changes = placed("b", "long", "lane");
    changes.push(day.shadowed().await);
    day.check("a long request is on the lane", &changes).await;
    let second = day.begin(&asked).await;
    let waiting = [("tidegate_queue_requests", 1.0), ("tidegate_queue_bytes", f64::from(LONG))];
    let waits = |sign: f64| waiting.map(|(name, amount)| (series(name, &[("group", "all")]), By(sign * amount)));
    day.check("another one is held", &waits(1.0)).await;
    second.close();
    let labels = [("endpoint", "chat"), ("outcome", "client_gone"), ("code", "none")];
    let mut changes = waits(-1.0).to_vec();
    changes.extend([
        (series("tidegate_requests_total", &labels), By(1.0)),
        (series("tidegate_request_bytes_total", &[]), By(LONG.into())),
        (series("tidegate_queue_exits_total", &[("group", "all"), ("result", "client_gone")]), By(1.0)),
        (series("tidegate_queue_wait_seconds_count", &[("group", "all")]), By(1.0)),
    ]);
    day.check("its client has left", &changes).await;
    day.server("b").gate.admit(1);
    first.head().await;
    let sent = first.body_bytes(sse_event(0).len()).await;
    day.check("the first one has its first token", &first_token("b", "long")).await;
    day.server("b").gate.admit(2);
    let (rest, end) = first.rest().await;
    assert_eq!(end, End::Complete);
    day.check("it is answered", &ended(&asked, "b", sent.len() + rest.len())).await;
}
