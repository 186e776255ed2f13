//! `tidegate explain`: by a running Tidegate, or by a configuration with loads that are given.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::Failure;
use crate::balance::{Lease, Placed, Tried};
use crate::cli::ExplainArgs;
use crate::config::Config;
use crate::explain;
use crate::prompt::{Demand, Work};
use crate::remote::Remote;
use crate::upstream::Live;

/// Prints why a request would go where it would go.
///
/// # Errors
/// When there is no answer: nobody is there, the question is none, a server is not known.
pub fn explain(arguments: &ExplainArgs, config: Option<Config>) -> Result<(), Failure> {
    let body = match (&arguments.body, arguments.prompt_tokens) {
        (Some(file), _) => read(file)?,
        (None, tokens) => {
            json!({ "prompt_tokens": tokens, "max_tokens": arguments.max_tokens }).to_string().into_bytes()
        }
    };
    let answer = match config {
        Some(config) => offline(arguments, config, &body)?,
        None => {
            let remote = Remote::new(&arguments.remote.admin, arguments.remote.token_env.as_deref())?;
            let query = arguments.path.as_ref().map_or_else(String::new, |path| format!("?path={path}"));
            remote.post(&format!("/explain{query}"), &body)?
        }
    };
    let mut out = io::stdout().lock();
    if arguments.json {
        return Ok(writeln!(out, "{answer:#}")?);
    }
    for sentence in answer["words"].as_array().into_iter().flatten() {
        writeln!(out, "{}", sentence.as_str().unwrap_or_default())?;
    }
    writeln!(out)?;
    Ok(out.write_all(table(&answer).as_bytes())?)
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    if file == Path::new("-") {
        let mut body = Vec::new();
        io::stdin().lock().read_to_end(&mut body)?;
        return Ok(body);
    }
    fs::read(file).map_err(|error| Failure::Body { file: file.to_owned(), error })
}

/// What the configuration says with the loads that are given.
fn offline(arguments: &ExplainArgs, config: Config, body: &[u8]) -> Result<Value, Failure> {
    // Nothing is written and nobody is listened to.
    let live = Live::new(Config { access_log: None, admin: None, ..config })
        .map_err(|error| Failure::Config(error.to_string()))?;
    let loads: Vec<Lease> =
        arguments.loads.iter().map(|(server, tokens)| load(&live, server, *tokens)).collect::<Result<_, _>>()?;
    let answer = explain::explain(&live, arguments.path.as_deref(), body)?;
    drop(loads);
    Ok(serde_json::to_value(answer).expect("all keys are strings and no value can fail"))
}

/// Has a request run on a server: all others count as tried.
fn load(live: &Live, name: &str, tokens: u64) -> Result<Lease, Failure> {
    let in_force = live.get();
    let unknown = || Failure::UnknownServer {
        name: name.to_owned(),
        known: in_force.servers().map(|server| server.name()).collect::<Vec<_>>().join(", "),
    };
    let server = in_force.servers().find(|server| server.name() == name).ok_or_else(unknown)?;
    let mut tried = Tried::default();
    in_force.servers().filter(|other| other.number() != server.number()).for_each(|other| tried.insert(other.number()));
    let work = Work { prompt_tokens: tokens, is_streamed: true, ..Work::default() };
    let demand = Demand { work: Some(Arc::new(work)), ..Demand::of_bytes(tokens.saturating_mul(4)) };
    match live.balancer().ask(&demand, &tried) {
        Placed::Now(lease) if lease.server() == server.number() => Ok(lease),
        _ => Err(Failure::Full { name: name.to_owned() }),
    }
}

/// The servers, one a line.
fn table(answer: &Value) -> String {
    let mut rows = vec![["server", "group", "in flight", "load", "cost", "verdict"].map(str::to_owned).to_vec()];
    for server in answer["servers"].as_array().into_iter().flatten() {
        let text = |key: &str| server[key].as_str().unwrap_or_default().to_owned();
        let cost = server["cost"]["total"].as_f64().map_or_else(|| "-".to_owned(), |total| format!("{total:.3} s"));
        let lane = if server["is_lane"] == true { " (lane)" } else { "" };
        rows.push(vec![
            text("name"),
            text("group") + lane,
            server["in_flight"].to_string(),
            format!("{:.0}", server["load_tokens"].as_f64().unwrap_or_default()),
            cost,
            text("verdict"),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
