//! The pages that change something: `POST /reload`, `/drain`, `/undrain`.

use http::{Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::{JSON, error, page};
use crate::config::Difference;
use crate::reload::{Reloader, Trigger};
use crate::upstream::{Live, Standing};

/// Reads the configuration again.
pub(super) async fn reload(reloader: &Reloader) -> Response<Vec<u8>> {
    match reloader.reload(Trigger::Request).await {
        Ok(applied) => {
            let Difference { changes, needs_restart } = &applied.difference;
            let generation = applied.generation;
            answer(&json!({ "config_generation": generation, "changes": changes, "needs_restart": needs_restart }))
        }
        Err(refused) => {
            let message = "the configuration cannot be run, nothing has changed";
            let body = json!({
                "error": { "message": message, "type": "invalid_request_error", "code": "bad_configuration" },
                "problems": refused.problems,
            });
            page(StatusCode::BAD_REQUEST, JSON, body.to_string())
        }
    }
}

/// Lets a server run empty, or takes that back.
pub(super) fn drain(live: &Live, query: Option<&str>, is_draining: bool) -> Response<Vec<u8>> {
    let Some(name) = query.and_then(|query| parameter(query, "server")) else {
        return error(StatusCode::BAD_REQUEST, "no_server", "which server? Add ?server=NAME, /status has the names");
    };
    let in_force = live.get();
    let Some(server) = in_force.servers().find(|server| server.name() == name) else {
        return error(StatusCode::NOT_FOUND, "unknown_server", "no server has this name, /status has the names");
    };
    if !is_draining && server.standing().is_drained_by_configuration {
        let message = "the configuration drains this server: remove its `drain: true` and reload";
        return error(StatusCode::CONFLICT, "drained_by_configuration", message);
    }
    let Standing { is_drained_by_hand: was_draining, .. } = server.standing();
    let standing = live.change_standing(server, |standing| standing.is_drained_by_hand = is_draining);
    if was_draining != is_draining {
        log::info!("server {name} {}", if is_draining { "is being drained" } else { "takes requests again" });
    }
    let in_flight = live.balancer().snapshot().servers.get(server.number()).map_or(0, |usage| usage.in_flight);
    let is_draining = standing.is_draining();
    answer(&json!({
        "server": name, "draining": is_draining, "in_flight": in_flight, "drained": is_draining && in_flight == 0,
    }))
}

fn answer(json: &Value) -> Response<Vec<u8>> {
    page(StatusCode::OK, JSON, format!("{json}\n"))
}

/// The value of a parameter in a query.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    percent_decode_str(value).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_be_encoded() {
        assert_eq!(parameter("server=%5Bfd00%3A%3A5%5D:8000", "server").unwrap(), "[fd00::5]:8000");
        assert_eq!(parameter("a=b&server=gpu-1:8000&c", "server").unwrap(), "gpu-1:8000");
        for query in ["", "server", "servers=a", "a=server", "server=%ff"] {
            assert_eq!(parameter(query, "server"), None, "{query}");
        }
    }
}
