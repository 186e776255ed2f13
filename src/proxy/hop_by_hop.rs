//! Takes out of a request what concerns the client's connection and not the server's (RFC 9110, section 7.6.1).

use http::header::CONNECTION;
use http::{HeaderMap, HeaderName};
use pingora::{Error, ErrorType, Result};

use crate::http1::Changes;

/// A `Connection` that names as many fields serves no good purpose.
const MAX_NAMED: usize = 32;

/// What may be named there no more than left out: who does that wants a server to see another request.
const PROTECTED: [&str; 4] = ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];

/// Fields of a connection, whether named or not. And `Expect`, because the body is here, whole: nobody needs to be asked
/// whether to send it.
const OF_CONNECTIONS: [&str; 11] = [
    "connection",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Leaves out what concerns the client's connection, `named` fields among it.
pub(super) fn without<'a>(named: &'a [HeaderName]) -> Changes<'a> {
    let mut changes = Changes::dropping(&OF_CONNECTIONS);
    for name in named {
        changes.remove(name.as_str());
    }
    changes
}

/// The fields that `Connection` names.
///
/// # Errors
/// When it names what it may not.
pub(super) fn named(headers: &HeaderMap) -> Result<Vec<HeaderName>> {
    let values = headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = values.map(<[u8]>::trim_ascii).filter(|name| !name.is_empty());
    let mut named = Vec::new();
    for name in names {
        let name = HeaderName::from_bytes(name).ok().filter(is_good);
        let name = name.filter(|_| named.len() + 1 < MAX_NAMED);
        let name = name.ok_or_else(|| {
            Error::explain(ErrorType::InvalidHTTPHeader, "Connection names what it may not").into_down()
        })?;
        named.push(name);
    }
    Ok(named)
}

fn is_good(name: &HeaderName) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !PROTECTED.contains(&name.as_str()) && name.as_str().bytes().all(is_token)
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Method};

    use super::*;
    use crate::http1::Asked;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in fields.iter().map(field) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn what_is_named_and_what_is_always_of_a_connection_stays_behind() {
        let fields = [
            ("host", "a"),
            ("connection", "close, X-Private"),
            ("connection", "te"),
            ("x-private", "1"),
            ("x-public", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("expect", "100-continue"),
            ("trailer", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("proxy-authorization", "x"),
        ];
        let named = named(&headers(&fields)).unwrap();
        let changes = without(&named);
        let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let asked = Asked::new(&Method::GET, b"/", fields, &changes, bytes::Bytes::new());
        assert_eq!(asked.header(), b"GET / HTTP/1.1\r\nhost: a\r\nx-public: 2\r\n\r\n");
    }

    #[test]
    fn what_may_not_be_named_is_refused() {
        let many = ["x"; MAX_NAMED].join(",");
        for name in ["Host", "x-forwarded-for", "x-a, X-Forwarded-Proto", ":authority", "\"x\"", "a b", &many] {
            let error = named(&headers(&[("connection", name)])).unwrap_err();
            assert_eq!(
                (error.etype(), error.esource().as_str()),
                (&ErrorType::InvalidHTTPHeader, "Downstream"),
                "{name}"
            );
        }
        let most = ["x"; MAX_NAMED - 1].join(", ");
        assert_eq!(named(&headers(&[("connection", &most)])).unwrap().len(), MAX_NAMED - 1);
    }
}
