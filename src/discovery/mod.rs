//! Servers that come and go are found here and handed to [`Live`].
//!
//! Every source is a `ServiceDiscovery` of `pingora-load-balancing`; a new kind is one more implementation and one more
//! [`Source`]. The servers that stand in the configuration do not come this way: they have an order, names and keys,
//! which that interface does not carry.
//!
//! | source | what keeps the last good set | what empties it |
//! |---|---|---|
//! | a DNS name ([`Dns`]) | no answer, an error, an answer without addresses | nothing |
//! | a file ([`AddressFile`]) | a file that is missing, cannot be read or has a bad line | a file without addresses |
//!
//! A name without addresses is more often a fault of the resolver than a wish; an empty file was written by somebody.

mod dns;
mod file;
mod service;

use std::net::SocketAddr;
use std::time::Duration;

use pingora::lb::discovery::ServiceDiscovery;

pub use dns::{Dns, Resolve, SystemResolver};
pub use file::AddressFile;
pub use service::{Discovery, service};

use crate::config::Source;
use crate::upstream::{Found, Live};

/// No look at a source takes longer.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

/// A source as something that can be asked.
fn asked(source: &Source) -> Box<dyn ServiceDiscovery + Send + Sync> {
    match source {
        Source::Dns { host, port } => Box::new(Dns::new(SystemResolver, host, *port)),
        Source::File(path) => Box::new(AddressFile::new(path)),
    }
}

/// Looks at a source once.
async fn look(source: &(dyn ServiceDiscovery + Send + Sync)) -> Result<Vec<SocketAddr>, String> {
    let found = match tokio::time::timeout(LOOK_WITHIN, source.discover()).await {
        Ok(Ok((found, _all_enabled))) => found,
        Ok(Err(error)) => {
            return Err(error.context.map_or_else(|| "no reason given".to_owned(), |why| why.as_str().to_owned()));
        }
        Err(_) => return Err(format!("no answer within {LOOK_WITHIN:?}")),
    };
    Ok(found.iter().filter_map(|backend| backend.addr.as_inet().copied()).collect())
}

/// Looks at sources of which nothing is known yet, so that a configuration comes into force with its servers.
///
/// # Errors
/// What is wrong with those that have no answer, one line each.
pub async fn first_look(sources: Vec<Source>) -> Result<Found, Vec<String>> {
    let looked = futures_util::future::join_all(sources.into_iter().map(async |source| {
        let found = look(&*asked(&source)).await;
        (source, found)
    }));
    let mut found = Found::new();
    let mut problems = Vec::new();
    for (source, addresses) in looked.await {
        match addresses {
            Ok(addresses) => {
                found.insert(source, addresses);
            }
            Err(reason) => problems.push(format!("{source}: {reason}")),
        }
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

/// Looks at all sources before anything listens, so that the first request finds their servers. What has no answer is
/// logged, and asked for again while Tidegate runs.
pub fn look_before_start(live: &Live) {
    let sources: Vec<Source> = live.get().config.sources().map(|discover| discover.source.clone()).collect();
    if sources.is_empty() {
        return;
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return log::warn!("servers are discovered only after the start: {error}"),
    };
    runtime.block_on(async {
        let looks = sources.iter().map(async |source| match look(&*asked(source)).await {
            Ok(addresses) => take_over(live, source, &addresses),
            Err(fault) => log::warn!("{source}: {fault}; starting without servers from there"),
        });
        futures_util::future::join_all(looks).await;
    });
    // A lookup that still hangs is not waited for.
    runtime.shutdown_background();
}

/// Hands over what was found, and says so in the log when it is new.
fn take_over(live: &Live, source: &Source, addresses: &[SocketAddr]) {
    let before = live.discovered().remove(source).unwrap_or_default();
    let names = |addresses: &[SocketAddr], others: &[SocketAddr]| {
        let new = addresses.iter().filter(|address| !others.contains(address)).map(ToString::to_string);
        new.collect::<Vec<_>>().join(", ")
    };
    match live.replace_discovered(source, addresses.to_vec()) {
        Ok(false) => {}
        Ok(true) => log::info!(
            "{source}: {} servers; new: [{}], gone: [{}]",
            addresses.len(),
            names(addresses, &before),
            names(&before, addresses)
        ),
        Err(error) => log::error!("{source}: what was found cannot be put in force: {error}"),
    }
}
