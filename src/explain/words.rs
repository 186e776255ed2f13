//! An explanation in sentences, for people who are paged at night.

use super::answer::{Answer, CostView, Decision, GroupView, ServerView};

/// One sentence after the other: the request, the groups, the servers, the outcome.
pub(super) fn of(answer: &Answer) -> Vec<String> {
    let mut words = vec![request(answer)];
    words.extend(answer.groups.iter().filter_map(|group| crossing(answer, group)));
    words.extend(long(answer));
    words.extend(answer.servers.iter().filter_map(obstacle));
    words.push(outcome(answer));
    words
}

fn request(answer: &Answer) -> String {
    let tokens = number(answer.prompt_tokens);
    match (answer.long_from_seconds, answer.policy) {
        (Some(_), _) if answer.is_estimated => {
            format!("The prompt has about {tokens} tokens, estimated from its text.")
        }
        (Some(_), _) => format!("The prompt has {tokens} tokens."),
        (None, "reference_plain") => {
            format!("The request weighs {}: its bytes and its budget.", number(answer.load_tokens))
        }
        (None, _) => format!("The prompt counts as {tokens} tokens, a quarter of the body's bytes."),
    }
}

/// Whether the request crosses to a neighbour.
fn crossing(answer: &Answer, group: &GroupView) -> Option<String> {
    let standard = match &answer.decision {
        Decision::Server { standard_group, .. } => standard_group.as_str(),
        _ => return None,
    };
    let name = &group.name;
    let (gap, affinity, product, threshold) = (group.gap?, group.affinity?, group.product?, group.threshold?);
    let own = answer.groups.iter().find(|group| group.name == standard)?;
    if own.verdict == "no_live_server" && group.verdict != "no_live_server" {
        return Some(format!("Group {standard} has no server that takes requests, so {name} counts as lighter."));
    }
    let loads = format!("{} tokens beside {} in {standard}", number(group.load_tokens), number(own.load_tokens));
    Some(match group.verdict {
        "no_live_server" => format!("Group {name} has no server that takes requests."),
        "not_lighter" => format!("Group {name} is not lighter: {loads}."),
        _ => {
            let than = if product > threshold { "above" } else { "not above" };
            format!(
                "Group {name} is lighter ({loads}): gap {gap:.3} x affinity {affinity:.3} = {product:.3}, {than} {threshold}."
            )
        }
    })
}

/// By work: whether it is long, and where long ones go.
fn long(answer: &Answer) -> Option<String> {
    let from = answer.long_from_seconds?;
    let costs: Vec<CostView> = answer.servers.iter().filter_map(|server| server.cost).collect();
    let prefill = costs.iter().map(|cost| cost.prefill).fold(f64::INFINITY, f64::min);
    let lanes: Vec<&str> = answer
        .servers
        .iter()
        .filter(|server| server.is_lane == Some(true))
        .map(|server| server.name.as_str())
        .collect();
    let length = format!("Its prefill takes {} at least", seconds(prefill));
    Some(match (costs.iter().all(|cost| cost.is_long), lanes.is_empty()) {
        (_, true) => format!("{length}. There are no lanes: it goes where it costs least."),
        (true, false) => format!(
            "{length}: it is long (from {} on, or as configured) and goes to a lane without another long prompt ({}).",
            seconds(from),
            lanes.join(", ")
        ),
        (false, false) => format!("{length}: it is short (long is from {} on, or as configured).", seconds(from)),
    })
}

fn obstacle(server: &ServerView) -> Option<String> {
    let name = &server.name;
    Some(match server.verdict {
        "out" => format!("Server {name} takes no requests: it is out or drained."),
        "full" => format!("Server {name} is full: it has as much as its limits allow."),
        "too_long" => format!("Server {name} takes no requests that long (max_model_len)."),
        "tried" => format!("Server {name} was tried."),
        _ => return None,
    })
}

fn outcome(answer: &Answer) -> String {
    match &answer.decision {
        Decision::Server { server, group, standard_group, placement, reason } => {
            let chosen = answer.servers.iter().find(|view| view.name == *server);
            let why = chosen.map_or_else(String::new, |chosen| why(answer, chosen, group));
            let from = match *placement {
                _ if standard_group != group && is_out(answer, standard_group) => {
                    format!(", because {standard_group} has no server that takes requests")
                }
                "redirected" => format!(", crossing from {standard_group}"),
                _ => String::new(),
            };
            format!("It would go to {server} of group {group}{from} ({reason}): {why}.")
        }
        Decision::Held => format!(
            "It would be held here until it is its turn{}.",
            if answer.held > 0 { format!(", with {} others", answer.held) } else { String::new() }
        ),
        Decision::Waits { why } => format!("It would wait in the queue: {why}."),
        Decision::Refused { why } => format!("It would be refused: {why}."),
    }
}

fn is_out(answer: &Answer, group: &str) -> bool {
    answer.groups.iter().any(|view| view.name == group && view.verdict == "no_live_server")
}

/// Why that server and no other.
fn why(answer: &Answer, chosen: &ServerView, group: &str) -> String {
    let Some(cost) = chosen.cost else {
        let others =
            answer.servers.iter().filter(|server| answer.policy == "reference_plain" || server.group == *group);
        let count = others.count();
        let of = if count == 1 { "the only server there".to_owned() } else { format!("the least of {count} servers") };
        return format!("{} tokens active, {of}", number(chosen.load_tokens));
    };
    let mut parts =
        vec![(cost.waiting, "of prefill before it"), (cost.prefill, "of its own"), (cost.decode, "to answer")];
    parts.extend([(cost.kv_wait, "for room in the cache"), (cost.harm, "of harm to others"), (cost.risk, "of risk")]);
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(value, _)| *value >= 0.000_5)
        .map(|(value, what)| format!("{} {what}", seconds(value)))
        .collect();
    let next = answer.servers.iter().filter(|server| server.verdict == "dearer" && is_comparable(chosen, server));
    let next = next.filter_map(|server| Some((server.cost?.total, &server.name))).min_by(|a, b| a.0.total_cmp(&b.0));
    let next = next.map_or_else(String::new, |(total, name)| format!("; the next is {name} with {}", seconds(total)));
    format!("it costs {} there, {}{next}", seconds(cost.total), parts.join(", "))
}

/// Long requests are compared on lanes only.
fn is_comparable(chosen: &ServerView, other: &ServerView) -> bool {
    let is_long = chosen.cost.is_some_and(|cost| cost.is_long);
    !is_long || chosen.is_lane == other.is_lane
}

fn seconds(value: f64) -> String {
    if value < 1.0 { format!("{:.0} ms", value * 1_000.0) } else { format!("{value:.2} s") }
}

/// A number with its thousands apart.
fn number(value: f64) -> String {
    let text = format!("{:.0}", value.max(0.0));
    let mut grouped = String::new();
    for (place, digit) in text.chars().enumerate() {
        if place > 0 && (text.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
