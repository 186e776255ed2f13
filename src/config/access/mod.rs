//! The sections `access`, `forwarded` and `cors`, and what of `limits` concerns the header of a request.

mod cors;
mod keys;
mod summary;

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::Environment;
use super::section::{Item, Parsed, Section};
use super::value;
use super::yaml::Node;
use crate::access::{ADMIN_PATHS, ClosedPaths, Rules, TrustedProxies};

pub(super) use summary::AccessSummary;

/// No client needs more at once, and it fits into every counter.
const MAX_CONCURRENT: u64 = 1_000_000;

/// Reads the sections that are about nothing else.
pub(super) fn read(root: &mut Section<'_>, rules: &mut Rules, environment: Environment<'_>) {
    root.section("access", |section| {
        rules.keys = keys::read(section, environment);
        rules.closed = closed_paths(section);
    });
    rules.trusted_proxies = root.section("forwarded", |section| {
        let networks = section.list("trusted_proxies", "addresses and networks").unwrap_or_default();
        TrustedProxies::new(values(&networks, network))
    });
    rules.cors = root.section("cors", cors::read);
}

/// Reads the limits on a request's header and on clients.
pub(super) fn limits(section: &mut Section<'_>, rules: &mut Rules) {
    let limits = &mut rules.header_limits;
    // Pingora's own bounds.
    section.set("max_header_size", &mut limits.header_bytes, size_up_to(1 << 20, "1MiB"));
    section.set("max_headers", &mut limits.fields, value::count(1..=256));
    section.set("max_uri_size", &mut limits.uri_bytes, size_up_to(65_534, "65534B"));
    let concurrent = value::count(1..=MAX_CONCURRENT);
    section.set_or_none("max_concurrent_per_client", &mut rules.max_concurrent_per_client, concurrent);
}

fn size_up_to(most: usize, text: &'static str) -> impl Fn(&Node) -> Parsed<usize> {
    move |node| {
        let size = value::size(node).ok().filter(|size| *size <= most);
        size.ok_or_else(|| format!("a size from 1B to {text}, such as 16KiB"))
    }
}

fn values<T>(items: &[Item<'_>], parse: impl Fn(&Node) -> Parsed<T>) -> Vec<T> {
    items.iter().filter_map(|item| item.value(&parse)).map(|found| found.value).collect()
}

/// Which administrative paths are opened.
#[derive(Debug, PartialEq, Eq)]
enum Opened {
    None,
    All,
    Path(String),
}

fn closed_paths(section: &mut Section<'_>) -> ClosedPaths {
    let opened = section.one_or_more("open_admin_paths", opened).unwrap_or_default();
    let more = section.list("close_paths", "paths").unwrap_or_default();
    let more = values(&more, closable);
    let has_all = opened.iter().any(|opened| opened.value == Opened::All);
    let mut closed = ClosedPaths::new(if has_all { &[][..] } else { &ADMIN_PATHS[..] }.iter().copied());
    for opened in &opened {
        if let Opened::Path(path) = &opened.value
            && !has_all
            && !closed.open(path)
        {
            let text = format!("found {path}, expected one of {}, or all, or none", ADMIN_PATHS.join(", "));
            section.error(&opened.spot, text);
        }
    }
    let paths: Vec<_> = closed.iter().map(std::borrow::Cow::into_owned).chain(more).collect();
    ClosedPaths::new(paths.iter().map(String::as_str))
}

fn opened(node: &Node) -> Parsed<Opened> {
    match node.plain() {
        Some("none") => Ok(Opened::None),
        Some("all") => Ok(Opened::All),
        _ => path(node).map(Opened::Path).map_err(|expected| format!("{expected}, or a list of them, or all, or none")),
    }
}

/// A path that requests are compared with.
fn path(node: &Node) -> Parsed<String> {
    let is_path =
        |text: &&str| text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && !b"?#".contains(&b));
    let path = node.text().filter(is_path).map(str::to_owned);
    path.ok_or_else(|| "a path such as /health, without a query".to_owned())
}

/// A path that is not all paths.
fn closable(node: &Node) -> Parsed<String> {
    let expected = "a path such as /metrics, without a query and not / alone";
    let path = path(node).ok().filter(|path| ClosedPaths::new([path.as_str()]).iter().next().is_some());
    path.ok_or_else(|| expected.to_owned())
}

/// An address, or a network in the form ADDRESS/PREFIX.
fn network(node: &Node) -> Parsed<IpNet> {
    let text = node.text().unwrap_or_default();
    let network = match text.parse::<IpAddr>() {
        Ok(address) => Some(IpNet::from(address)),
        Err(_) => text.parse::<IpNet>().ok().filter(|network| network.addr() == network.network()),
    };
    let expected = || "an IP address, or a network such as 10.0.0.0/8 or fd00::/8".to_owned();
    network.map(without_mapping).ok_or_else(expected)
}

/// IPv4 written as IPv6 is IPv4, as for the addresses it is compared with.
fn without_mapping(network: IpNet) -> IpNet {
    let mapped = match network {
        IpNet::V6(network) if network.prefix_len() >= 96 => network.addr().to_ipv4_mapped(),
        _ => None,
    };
    let plain = mapped.and_then(|address| Ipv4Net::new(address, network.prefix_len() - 96).ok());
    plain.map_or(network, IpNet::V4)
}

#[cfg(test)]
mod tests;
