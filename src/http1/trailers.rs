//! The trailers of a response: fields behind its body (RFC 9110, section 6.5).

use http::header::{
    AGE, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE,
    EXPECT, EXPIRES, HOST, LOCATION, MAX_FORWARDS, PRAGMA, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE, RETRY_AFTER,
    SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VARY, WARNING, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::head::MAX_FIELDS;

/// What may not stand behind a body (RFC 9110, section 6.5.1): whoever merges it into the header would read the message
/// in another way than who does not. Framing, routing, modifiers of requests, authentication, control data of
/// responses, how to read the content; and what concerns a connection (section 7.6.1).
const FORBIDDEN: [HeaderName; 27] = [
    AGE,
    AUTHORIZATION,
    CACHE_CONTROL,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    DATE,
    EXPECT,
    EXPIRES,
    HOST,
    LOCATION,
    MAX_FORWARDS,
    PRAGMA,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    RANGE,
    RETRY_AFTER,
    SET_COOKIE,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    VARY,
    WARNING,
    WWW_AUTHENTICATE,
];

/// The same, of names that `http` has no constants for.
const FORBIDDEN_TOO: [&str; 5] = ["cookie", "keep-alive", "proxy-connection", "http2-settings", "content-location"];

/// Fields that go behind a body; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trailers(Vec<Field>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    /// In the server's spelling.
    spelling: String,
    name: HeaderName,
    value: HeaderValue,
}

/// Not what a server may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Trailers {
    /// Reads what stands between the last chunk and the end of a body, the final empty line included. What may not be
    /// there is left out; `None` when nothing else is.
    ///
    /// # Errors
    /// When it is no list of fields, or too long a one.
    pub(crate) fn parse(section: &[u8]) -> Result<Option<Self>, Malformed> {
        if section == b"\r\n" {
            return Ok(None);
        }
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(section, &mut fields) else {
            return Err(Malformed);
        };
        let mut kept = Vec::new();
        for field in fields {
            let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Malformed)?;
            let value = HeaderValue::from_bytes(field.value).map_err(|_| Malformed)?;
            if !is_forbidden(&name) {
                kept.push(Field { spelling: field.name.to_owned(), name, value });
            }
        }
        Ok((!kept.is_empty()).then_some(Self(kept)))
    }

    /// As HTTP/1 has them: lines, without the empty one at the end.
    pub(crate) fn lines(&self) -> Vec<u8> {
        let fields = self.0.iter();
        fields
            .flat_map(|field| [field.spelling.as_bytes(), b": ", field.value.as_bytes(), b"\r\n"])
            .flatten()
            .copied()
            .collect()
    }

    /// As HTTP/2 has them.
    pub(crate) fn into_map(self) -> HeaderMap {
        self.0.into_iter().map(|field| (field.name, field.value)).collect()
    }
}

fn is_forbidden(name: &HeaderName) -> bool {
    FORBIDDEN.contains(name) || FORBIDDEN_TOO.contains(&name.as_str()) || name.as_str().starts_with("if-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(section: &str) -> Result<Option<String>, Malformed> {
        let trailers = Trailers::parse(section.as_bytes())?;
        Ok(trailers.map(|trailers| String::from_utf8(trailers.lines()).unwrap()))
    }

    #[test]
    fn fields_keep_their_order_and_their_spelling() {
        let section = "X-Sum: 7\r\nserver-timing:a;dur=1\r\nX-Sum:  8 \r\nx-odd: \u{e9}\r\nx-empty:\r\n\r\n";
        let kept = "X-Sum: 7\r\nserver-timing: a;dur=1\r\nX-Sum: 8\r\nx-odd: \u{e9}\r\nx-empty: \r\n";
        assert_eq!(lines(section), Ok(Some(kept.to_owned())));
        let map = Trailers::parse(section.as_bytes()).unwrap().unwrap().into_map();
        assert_eq!(map.get_all("x-sum").iter().collect::<Vec<_>>(), ["7", "8"]);
        assert_eq!(map.len(), 5);
    }

    #[test]
    fn what_would_change_the_message_is_left_out() {
        let names = [
            "Transfer-Encoding",
            "content-length",
            "Host",
            "Connection",
            "Keep-Alive",
            "TE",
            "Trailer",
            "Upgrade",
            "Authorization",
            "WWW-Authenticate",
            "Set-Cookie",
            "Content-Type",
            "Content-Encoding",
            "Content-Range",
            "Cache-Control",
            "Date",
            "Location",
            "If-None-Match",
            "Proxy-Connection",
        ];
        for name in names {
            assert_eq!(lines(&format!("{name}: 1\r\n\r\n")), Ok(None), "{name}");
            assert_eq!(
                lines(&format!("a: 1\r\n{name}: 1\r\nb: 2\r\n\r\n")),
                Ok(Some("a: 1\r\nb: 2\r\n".into())),
                "{name}"
            );
        }
        assert_eq!(lines("ETag: 1\r\nDigest: x\r\n\r\n"), Ok(Some("ETag: 1\r\nDigest: x\r\n".into())));
    }

    #[test]
    fn without_a_field_there_are_none() {
        assert_eq!(lines("\r\n"), Ok(None));
    }

    #[test]
    fn what_is_no_list_of_fields_is_malformed() {
        for section in [
            "x\r\n\r\n",
            ": y\r\n\r\n",
            "x y: z\r\n\r\n",
            "x : y\r\n\r\n",
            "x: y\r\n z\r\n\r\n",
            " x: y\r\n\r\n",
            "x: y\r\n",
        ] {
            assert_eq!(lines(section), Err(Malformed), "{section:?}");
        }
        let many = |count| format!("{}\r\n", "x: y\r\n".repeat(count));
        assert!(lines(&many(MAX_FIELDS)).unwrap().is_some());
        assert_eq!(lines(&many(MAX_FIELDS + 1)), Err(Malformed));
    }
}
