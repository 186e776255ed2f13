//! What browsers are told about pages of other origins (CORS, in the Fetch standard).

use std::time::Duration;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, CONTENT_LENGTH, ORIGIN, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::Denial;

/// The fields in which a server says something about origins.
const ANSWER_FIELDS: [HeaderName; 6] = [
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_ALLOW_CREDENTIALS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
];

/// Everything, or a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed<T> {
    /// Whatever is asked for.
    Any,
    /// These.
    These(Vec<T>),
}

/// Which pages may use Tidegate from a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// Origins of pages, as browsers write them: `https://chat.example.org`.
    pub origins: Allowed<String>,
    /// Methods that may be used.
    pub methods: Vec<Method>,
    /// Request headers that may be set.
    pub headers: Allowed<HeaderName>,
    /// Response headers that pages may read.
    pub expose: Vec<HeaderName>,
    /// Whether cookies and the like may be sent. Not with [`Allowed::Any`] origins.
    pub allows_credentials: bool,
    /// How long a browser may remember the answer to its question.
    pub max_age: Duration,
}

impl Cors {
    /// The fields of the answer to a browser's question.
    ///
    /// # Errors
    /// When the origin is not allowed.
    pub fn preflight(&self, asked: &HeaderMap) -> Result<Vec<(HeaderName, HeaderValue)>, Denial> {
        let mut fields = self.granted(asked).ok_or(Denial::Origin)?;
        let methods: Vec<_> = self.methods.iter().map(Method::as_str).collect();
        fields.extend(field(ACCESS_CONTROL_ALLOW_METHODS, &methods));
        match &self.headers {
            // The word `*` would not cover Authorization.
            Allowed::Any => {
                let headers = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
                fields.extend(headers.map(|headers| (ACCESS_CONTROL_ALLOW_HEADERS, headers)));
            }
            Allowed::These(names) => {
                let names: Vec<_> = names.iter().map(HeaderName::as_str).collect();
                fields.extend(field(ACCESS_CONTROL_ALLOW_HEADERS, &names));
            }
        }
        fields.push((ACCESS_CONTROL_MAX_AGE, HeaderValue::from(self.max_age.as_secs())));
        Ok(fields)
    }

    /// The fields of any other answer. Empty when the request is not from a page, or not from an allowed one.
    #[must_use]
    pub fn answer(&self, asked: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        let Some(mut fields) = self.granted(asked) else { return Vec::new() };
        let expose: Vec<_> = self.expose.iter().map(HeaderName::as_str).collect();
        fields.extend(field(ACCESS_CONTROL_EXPOSE_HEADERS, &expose));
        fields
    }

    /// Whether answers differ from origin to origin, which caches must know.
    #[must_use]
    pub fn varies(&self) -> bool {
        self.origins != Allowed::Any
    }

    /// The fields that are Tidegate's to set, whatever a server says.
    #[must_use]
    pub fn own_fields() -> &'static [HeaderName] {
        &ANSWER_FIELDS
    }

    fn granted(&self, asked: &HeaderMap) -> Option<Vec<(HeaderName, HeaderValue)>> {
        let origin = asked.get(ORIGIN)?;
        let granted = match &self.origins {
            Allowed::Any => HeaderValue::from_static("*"),
            Allowed::These(origins) if origins.iter().any(|known| known.as_bytes() == origin.as_bytes()) => {
                origin.clone()
            }
            Allowed::These(_) => return None,
        };
        let mut fields = vec![(ACCESS_CONTROL_ALLOW_ORIGIN, granted)];
        if self.allows_credentials {
            fields.push((ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true")));
        }
        Some(fields)
    }
}

/// Whether a browser asks what it may do, before it does it.
#[must_use]
pub fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(ORIGIN) && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// The same, and nothing comes behind the header: browsers send no body with it.
pub(super) fn is_bare_preflight(method: &Method, headers: &HeaderMap) -> bool {
    is_preflight(method, headers)
        && !headers.contains_key(TRANSFER_ENCODING)
        && headers.get(CONTENT_LENGTH).is_none_or(|length| length == "0")
}

fn field(name: HeaderName, list: &[&str]) -> Option<(HeaderName, HeaderValue)> {
    let value = HeaderValue::try_from(list.join(", ")).ok().filter(|_| !list.is_empty())?;
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cors(origins: Allowed<String>) -> Cors {
        Cors {
            origins,
            methods: vec![Method::GET, Method::POST],
            headers: Allowed::Any,
            expose: vec![HeaderName::from_static("x-request-id")],
            allows_credentials: false,
            max_age: Duration::from_secs(600),
        }
    }

    fn asked(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn listed() -> Allowed<String> {
        Allowed::These(vec!["https://a.test".into()])
    }

    fn text(fields: &[(HeaderName, HeaderValue)]) -> Vec<String> {
        fields.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn an_allowed_origin_is_told_what_it_may_do() {
        let asked = asked(&[("origin", "https://a.test"), ("access-control-request-headers", "authorization,x-b")]);
        let expected = [
            "access-control-allow-origin: https://a.test",
            "access-control-allow-methods: GET, POST",
            "access-control-allow-headers: authorization,x-b",
            "access-control-max-age: 600",
        ];
        assert_eq!(text(&cors(listed()).preflight(&asked).unwrap()), expected);
        let expected = ["access-control-allow-origin: *", "access-control-expose-headers: x-request-id"];
        assert_eq!(text(&cors(Allowed::Any).answer(&asked)), expected);
    }

    #[test]
    fn another_origin_is_told_nothing() {
        for origin in ["https://b.test", "https://a.test.evil", "https://a.test/", "HTTPS://A.TEST", "null", ""] {
            let mut asked = HeaderMap::new();
            asked.insert(ORIGIN, HeaderValue::from_static(origin));
            assert_eq!(cors(listed()).preflight(&asked), Err(Denial::Origin), "{origin}");
            assert_eq!(cors(listed()).answer(&asked), [], "{origin}");
        }
        assert_eq!(cors(Allowed::Any).answer(&HeaderMap::new()), []);
    }

    #[test]
    fn headers_and_credentials_are_as_configured() {
        let mut cors = cors(listed());
        cors.headers = Allowed::These(vec![HeaderName::from_static("content-type")]);
        cors.allows_credentials = true;
        let told = text(&cors.preflight(&asked(&[("origin", "https://a.test")])).unwrap());
        assert_eq!(told[1], "access-control-allow-credentials: true");
        assert_eq!(told[3], "access-control-allow-headers: content-type");
    }

    #[test]
    fn only_a_browsers_question_is_one() {
        let question = asked(&[("origin", "https://a.test"), ("access-control-request-method", "POST")]);
        assert!(is_preflight(&Method::OPTIONS, &question) && is_bare_preflight(&Method::OPTIONS, &question));
        assert!(!is_preflight(&Method::POST, &question));
        assert!(!is_preflight(&Method::OPTIONS, &asked(&[("origin", "https://a.test")])));
        for (name, value) in [("content-length", "5"), ("transfer-encoding", "chunked")] {
            let mut question = question.clone();
            question.insert(name, HeaderValue::from_static(value));
            assert!(!is_bare_preflight(&Method::OPTIONS, &question), "{name}");
        }
    }
}
