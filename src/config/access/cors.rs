//! The section `cors`.

use std::time::Duration;

use http::{HeaderName, Method, Uri};

use super::super::section::{Item, Parsed, Section};
use super::super::value;
use super::super::yaml::Node;
use super::values;
use crate::access::{Allowed, Cors};

/// Browsers remember no longer.
const MAX_AGE_SECONDS: u64 = 24 * 3_600;

/// The word that stands for everything.
const ANY: &str = "any";

/// `None` when no origin is allowed: then the servers answer for themselves.
pub(super) fn read(section: &mut Section<'_>) -> Option<Cors> {
    let origins = section.list("allow_origins", "origins").unwrap_or_default();
    let origins = allowed(&origins, origin);
    let methods = section.list("allow_methods", "methods").map(|items| values(&items, method));
    let headers = section.list("allow_headers", "header names").map(|items| allowed(&items, header));
    let expose = section.list("expose_headers", "header names").map(|items| values(&items, header));
    let mut max_age = 600;
    section.set("max_age", &mut max_age, value::seconds(0..=MAX_AGE_SECONDS));
    let credentials = section.value("allow_credentials", value::switch).filter(|credentials| credentials.value);
    if let Some(credentials) = &credentials
        && origins == Allowed::Any
    {
        let text = "given beside allow_origins: [any], expected a list of origins: any page could act for a user";
        section.error(&credentials.spot, text);
    }
    if origins == Allowed::These(Vec::new()) {
        return None;
    }
    let exposed = ["x-request-id", "x-tidegate-error", "retry-after"].map(HeaderName::from_static);
    Some(Cors {
        origins,
        methods: methods.unwrap_or_else(|| vec![Method::GET, Method::POST]),
        headers: headers.unwrap_or(Allowed::Any),
        expose: expose.unwrap_or_else(|| exposed.into()),
        allows_credentials: credentials.is_some(),
        max_age: Duration::from_secs(max_age),
    })
}

fn allowed<T>(items: &[Item<'_>], parse: impl Fn(&Node) -> Parsed<T>) -> Allowed<T> {
    let or_any = |node: &Node| match node.text() {
        Some(ANY | "*") => Ok(None),
        _ => parse(node).map(Some).map_err(|expected| format!("{expected}, or {ANY}")),
    };
    values(items, or_any).into_iter().collect::<Option<_>>().map_or(Allowed::Any, Allowed::These)
}

/// As browsers write it: no path, lower case, no default port.
fn origin(node: &Node) -> Parsed<String> {
    let text = node.text().unwrap_or_default();
    let is_origin = text.parse::<Uri>().is_ok_and(|uri| {
        uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
            && uri.scheme().is_some()
            && !text.ends_with('/')
            && uri.path_and_query().is_none_or(|path| path == "/")
            && !text.contains('#')
    });
    let is_as_written = text.chars().all(|c| !c.is_ascii_uppercase());
    if is_origin && is_as_written {
        Ok(text.to_owned())
    } else {
        Err("an origin such as https://chat.example.org, in lower case and without a path".to_owned())
    }
}

fn method(node: &Node) -> Parsed<Method> {
    let text = node.text().unwrap_or_default();
    let method =
        Method::from_bytes(text.as_bytes()).ok().filter(|method| !method.as_str().contains(char::is_lowercase));
    method.ok_or_else(|| "a method such as POST".to_owned())
}

fn header(node: &Node) -> Parsed<HeaderName> {
    let name = HeaderName::from_bytes(node.text().unwrap_or_default().as_bytes());
    name.map_err(|_| "a header name such as authorization".to_owned())
}
