//! The whole metrics page after each step of a scenario, beside what has happened: no sample may be wrong, missing, or one
//! too many.

mod by_work;
mod model;
mod scenario;
mod timed;

use std::sync::atomic::Ordering;

use crate::support::*;
use model::{Asked, Ending};
use scenario::{LONG, SHORT, Scenario, chat};

#[tokio::test]
async fn the_whole_page_is_right_after_each_step_of_a_day() {
    let mut day = Scenario::start().await;
    day.check("nothing has happened").await;
    answers(&mut day).await;
    clients_that_leave(&mut day).await;
    servers_that_fail(&mut day).await;
    refusals(&mut day).await;
    crossing(&mut day).await;
    drains_and_the_queue(&mut day).await;
    reloads(&mut day).await;
    health(&mut day).await;
    limits(&mut day).await;
    day.is_idle().await;
}

async fn answers(day: &mut Scenario) {
    let (short, long) = (chat(SHORT, "hold"), chat(LONG, "stream"));
    let mut of_short = day.begin(short, "a").await;
    day.check("a short request runs").await;
    let mut of_long = day.begin(long, "c").await;
    day.check("a long one runs beside it").await;
    day.gate("c").admit(1);
    of_long.head().await;
    let first = of_long.body_bytes(sse_event(0).len()).await;
    day.model.first_token(&long, "c");
    day.check("its first token is there").await;
    day.gate("a").admit(1);
    let answer = of_short.response().await;
    day.answered(short, "a", &answer);
    day.check("the short one is answered").await;
    day.gate("c").admit(2);
    let (rest, end) = of_long.rest().await;
    assert_eq!(end, End::Complete);
    day.model.attempt_ended(&long, "c", "answered");
    day.model.over(&long, &Ending::stream("c", first.len() + rest.len(), 3));
    day.check("the long one is answered").await;
    day.exchange(chat(300, ""), "a").await;
    day.check("a third one has come over a kept connection").await;
    let weightless = Asked { endpoint: "other", path: "/version", bytes: 12, what: "" };
    // That which was given something the longest time ago.
    day.exchange(weightless, "b").await;
    day.check("a request that weighs nothing is answered").await;
    let models = Asked { endpoint: "models", path: "/v1/models", bytes: 0, what: "" };
    day.model.arrives(&models);
    let answer = day.tidegate.exchange(&scenario::with_key("GET", &models)).await;
    day.model.over(&models, &Ending::without_answer("complete", Some(200), answer.body.len()));
    day.check("the models of all servers are listed").await;
}

async fn clients_that_leave(day: &mut Scenario) {
    let silent = chat(SHORT, "silent");
    day.begin(silent, "a").await.close();
    day.model.attempt_ended(&silent, "a", "client_gone");
    let gone = Ending::without_answer("client_gone", None, 0);
    day.model.over(&silent, &Ending { on: Some("a"), ..gone });
    day.check("a client has left before the answer").await;

    let stream = chat(SHORT, "stream");
    let mut client = day.begin(stream, "a").await;
    day.gate("a").admit(1);
    client.head().await;
    let sent = client.body_bytes(sse_event(0).len()).await.len();
    client.close();
    day.model.attempt_ended(&stream, "a", "client_gone");
    let begun = Ending { outcome: "client_gone", tokens: 1, ..Ending::stream("a", sent, 1) };
    day.model.over(&stream, &begun);
    day.check("a client has left a stream").await;

    let asked = chat(LONG, "stream");
    let half = scenario::with_key("POST", &asked);
    let client = day.tidegate.begin(&half[..half.len() / 2]).await;
    day.model.count("tidegate_key_requests_total", &[("key", "team")]);
    day.check("half a request is there").await;
    client.close();
    day.model.over(&asked, &Ending::without_answer("client_gone", None, 0));
    day.check("the other half does not come").await;
}

async fn servers_that_fail(day: &mut Scenario) {
    let fault = |server: &'static str, kind: &'static str| [("server", server), ("kind", kind)];
    day.exchange(chat(SHORT, "500"), "a").await;
    day.model.count("tidegate_server_faults_total", &fault("a", "status"));
    day.check("a server has answered 500").await;
    day.exchange(chat(SHORT, "400"), "a").await;
    day.check("a server has answered 400").await;

    day.retried(chat(SHORT, "503@a"), "refused_5xx", "status").await;
    day.model.count("tidegate_server_faults_total", &fault("a", "saturated"));
    day.check("a full server has sent a request to the next").await;
    day.retried(chat(SHORT, "close@a"), "broken", "reset").await;
    if !day.was_reused("a") {
        day.model.count("tidegate_server_faults_total", &fault("a", "reset"));
    }
    day.check("a server has closed a connection in place of an answer").await;

    day.retried(chat(SHORT, "error@a"), "refused_5xx", "status").await;
    day.model.count("tidegate_server_faults_total", &fault("a", "stream"));
    day.check("a stream has begun with an error").await;
    // One good answer ends a row of faults.
    day.exchange(chat(SHORT, ""), "a").await;
    day.check("a server has recovered").await;

    let leaving = chat(SHORT, "leaving@a");
    day.retried(leaving, "refused_5xx", "status").await;
    day.model.count("tidegate_server_faults_total", &fault("a", "leaving"));
    day.model.count("tidegate_ejections_total", &[("server", "a"), ("reason", "leaving")]);
    day.model.health.insert("a", "out");
    day.check("a server has said that it is shutting down").await;
    // It has not: it is seen down, and up again, and proves itself.
    day.server("a").health.store(503, Ordering::SeqCst);
    until("it is seen down", async || day.server("a").probes(false) >= 2).await;
    day.server("a").health.store(200, Ordering::SeqCst);
    day.model.health.insert("a", "probation");
    day.check("it is back").await;
    day.exchange(chat(SHORT, ""), "a").await;
    day.model.health.insert("a", "healthy");
    day.check("it has proved itself").await;

    let broken = chat(SHORT, "break");
    let mut client = day.begin(broken, "a").await;
    let answer = client.response().await;
    assert_eq!((answer.status(), answer.end), (200, End::Truncated));
    day.model.attempt_ended(&broken, "a", "broken");
    let ending =
        Ending { outcome: "upstream_broken", has_usage: false, ..Ending::complete("a", 200, answer.body.len()) };
    day.model.over(&broken, &ending);
    day.model.count("tidegate_server_faults_total", &fault("a", "stream"));
    day.check("an answer has broken off").await;
}

async fn refusals(day: &mut Scenario) {
    let refused = async |day: &mut Scenario, request: Vec<u8>, asked: &Asked, reason: &str| {
        let answer = day.tidegate.exchange(&request).await;
        assert_eq!(answer.head.get("x-tidegate-error"), Some(reason), "{}", answer.text());
        let ending = Ending::without_answer("rejected", Some(answer.status()), answer.body.len());
        day.model.over(asked, &ending);
        day.model.rejected(reason);
    };
    let asked = chat(SHORT, "");
    refused(day, post(asked.path, &body_of(4_000)), &asked, "invalid_api_key").await;
    day.check("a request without a key is refused").await;
    let closed = Asked { endpoint: "other", path: "/sleep", bytes: 100, what: "" };
    refused(day, scenario::with_key("POST", &closed), &closed, "closed_path").await;
    day.model.count("tidegate_key_rejections_total", &[("key", "team"), ("reason", "closed_path")]);
    day.check("a closed path is refused").await;
    let large = chat(1_100_000, "");
    refused(day, scenario::with_key("POST", &large), &large, "body_too_large").await;
    day.model.count("tidegate_key_requests_total", &[("key", "team")]);
    day.check("too large a body is refused").await;
    let head = Asked { endpoint: "other", path: "/sleep", bytes: 0, what: "" };
    let answer = day.tidegate.exchange(&scenario::with_key("HEAD", &head)).await;
    assert_eq!((answer.status(), answer.body.len()), (403, 0));
    day.model.over(&head, &Ending::without_answer("rejected", Some(403), 0));
    day.model.rejected("closed_path");
    day.model.count("tidegate_key_rejections_total", &[("key", "team"), ("reason", "closed_path")]);
    day.check("a refusal without a body has no bytes").await;
    let healthcheck = Asked { endpoint: "other", path: "/healthcheck", bytes: 0, what: "" };
    let answer = day.tidegate.exchange(&get(healthcheck.path)).await;
    day.model.over(&healthcheck, &Ending::without_answer("complete", Some(200), answer.body.len()));
    day.check("the health check is answered").await;
}

async fn crossing(day: &mut Scenario) {
    let long = chat(LONG, "hold");
    let mut first = day.begin(long, "c").await;
    let mut second = day.begin(long, "a").await;
    day.check("the second long one has crossed to the other group").await;
    for (client, server) in [(&mut first, "c"), (&mut second, "a")] {
        day.gate(server).admit(1);
        let answer = client.response().await;
        day.answered(long, server, &answer);
        day.check(&format!("the one on {server} is answered")).await;
    }
}

async fn drains_and_the_queue(day: &mut Scenario) {
    day.drain(&["a", "b"]).await;
    day.check("all servers of a group are drained").await;
    day.exchange(chat(SHORT, ""), "c").await;
    day.check("the other group has served").await;
    day.drain(&["c"]).await;
    let waiting = chat(SHORT, "");
    let client = day.waits(waiting).await;
    day.check("a request waits").await;
    let full = chat(500, "");
    day.model.arrives(&full);
    day.model.body_came(&full);
    day.rejected(full, "queue_full").await;
    day.model.count("tidegate_queue_exits_total", &[("group", "short"), ("result", "full")]);
    day.check("there is no room for another").await;
    client.close();
    day.model.left_queue(&waiting, "client_gone");
    day.model.over(&waiting, &Ending::without_answer("client_gone", None, 0));
    day.check("its client has left").await;
    let mut client = day.waits(waiting).await;
    day.check("another one waits").await;
    day.undrain(&["b"]).await;
    let answer = client.response().await;
    day.model.left_queue(&waiting, "served");
    day.model.placed(waiting, "b", &[]);
    day.answered(waiting, "b", &answer);
    day.check("it is served when a server comes back").await;
    day.undrain(&["a", "c"]).await;
    day.check("all take requests again").await;
}

async fn reloads(day: &mut Scenario) {
    day.tidegate.write_text("groups: 7\n");
    assert_eq!(day.tidegate.admin_post("/reload", "").await.status(), 400);
    day.model.is_refused = true;
    day.check("a reload is refused").await;
    let held = chat(SHORT, "hold");
    let mut client = day.begin(held, "a").await;
    // The one goes, the other comes; what runs stays.
    day.reload(&["a", "d"], &["c"], true).await;
    day.model.is_refused = false;
    day.model.health.remove("b");
    day.model.health.insert("d", "probation");
    day.check("a server has left, and another one has come").await;
    day.gate("a").admit(1);
    let answer = client.response().await;
    day.answered(held, "a", &answer);
    day.check("what ran through the reload is answered").await;
    day.drain(&["a"]).await;
    day.exchange(chat(SHORT, ""), "d").await;
    day.model.health.insert("d", "healthy");
    day.undrain(&["a"]).await;
    day.check("the new server has proved itself").await;
}

async fn health(day: &mut Scenario) {
    day.server("d").health.store(503, Ordering::SeqCst);
    day.model.health.insert("d", "out");
    day.model.count("tidegate_ejections_total", &[("server", "d"), ("reason", "probes")]);
    day.check("a server has failed its probes").await;
    day.server("d").health.store(200, Ordering::SeqCst);
    day.model.health.insert("d", "probation");
    day.check("it passes them again").await;
    day.drain(&["a"]).await;
    day.exchange(chat(SHORT, ""), "d").await;
    day.model.health.insert("d", "healthy");
    day.check("it has proved itself once more").await;
    day.undrain(&["a"]).await;
    day.check("the other one takes requests again").await;
}

async fn limits(day: &mut Scenario) {
    day.reload(&["a", "d"], &["c"], false).await;
    day.check("a reload has brought limits on time").await;
    let silent = chat(SHORT, "silent");
    let mut client = day.begin(silent, "a").await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 504);
    late(day, &silent, "a", &answer);
    day.check("a server was silent for too long").await;

    let long_for_all = chat(SHORT, "too-long@a,silent@c");
    let mut client = day.begin(long_for_all, "a").await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 504);
    day.model.attempt_ended(&long_for_all, "a", "too_long");
    day.model.count("tidegate_retries_total", &[("reason", "context_length")]);
    // No server of the group may take more.
    day.model.placed(long_for_all, "c", &["a", "d"]);
    late(day, &long_for_all, "c", &answer);
    day.check("a longer request was tried elsewhere, where it found silence").await;

    day.drain(&["a", "c", "d"]).await;
    let waiting = chat(SHORT, "");
    let mut client = day.waits(waiting).await;
    let answer = client.response().await;
    assert_eq!(answer.status(), 503);
    day.model.left_queue(&waiting, "time_up");
    day.model.over(&waiting, &Ending::without_answer("rejected", Some(503), answer.body.len()));
    day.model.rejected("no_live_server");
    day.check("a request has waited in vain").await;
    day.undrain(&["c"]).await;

    day.reload(&["e"], &["c"], false).await;
    for gone in ["a", "d"] {
        day.model.draining.remove(gone);
        day.model.health.remove(gone);
    }
    day.model.health.insert("e", "probation");
    day.check("a server has come where nobody listens").await;
    let asked = chat(SHORT, "");
    let answer = day.tidegate.exchange(&scenario::with_key("POST", &asked)).await;
    assert_eq!(answer.status(), 200);
    day.model.arrives(&asked);
    day.model.body_came(&asked);
    day.model.placed(asked, "e", &[]);
    day.model.attempt_ended(&asked, "e", "connect_failed");
    // It is the only one of its group.
    day.model.count("tidegate_ejections_spared_total", &[("server", "e"), ("reason", "connect")]);
    day.model.count("tidegate_retries_total", &[("reason", "connect")]);
    day.model.count("tidegate_server_faults_total", &[("server", "e"), ("kind", "connect")]);
    day.model.placed(asked, "c", &["e"]);
    day.answered(asked, "c", &answer);
    day.check("the other group has served").await;
}

/// A server was silent for too long.
fn late(day: &mut Scenario, asked: &Asked, server: &'static str, answer: &Response) {
    day.model.attempt_ended(asked, server, "timed_out");
    let ending = Ending::without_answer("rejected", Some(504), answer.body.len());
    day.model.over(asked, &Ending { on: Some(server), ..ending });
    day.model.rejected("first_byte_timeout");
    day.model.count("tidegate_timeouts_total", &[("limit", "first_byte")]);
    day.model.count("tidegate_server_faults_total", &[("server", server), ("kind", "first_byte")]);
}
