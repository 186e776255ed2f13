//! The live page: one HTML document with its style and its script inside, which asks for nothing but `/events` and what
//! changes something.
//!
//! `index.html`, `style.css` and `script.js` are put together here. There is nothing to build: what stands in the files
//! is what a browser gets.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response};
use sha2::{Digest, Sha256};

const INDEX: &str = include_str!("index.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Where they belong in the document.
const STYLE_HERE: &str = "/* style.css */";
const SCRIPT_HERE: &str = "/* script.js */";

struct Page {
    html: String,
    policy: HeaderValue,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| Page {
    html: INDEX.replacen(STYLE_HERE, STYLE, 1).replacen(SCRIPT_HERE, SCRIPT, 1),
    policy: policy(),
});

/// Nothing runs and nothing is loaded but what stands in the page itself; it talks to this listener alone and in no
/// frame of another page.
fn policy() -> HeaderValue {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    HeaderValue::try_from(policy).expect("base64 and words are visible ASCII")
}

/// Whether HTML is asked for, which browsers do and programs do not.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .any(|types| types.split(',').any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == "text/html")))
}

/// The page.
pub(super) fn response() -> Response<Vec<u8>> {
    let mut response = Response::new(PAGE.html.clone().into_bytes());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, PAGE.policy.clone());
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a page that works offline may weigh.
    const MAX_BYTES: usize = 100_000;

    #[test]
    fn the_page_is_one_small_document_that_names_no_other_place() {
        let html = &PAGE.html;
        assert!(html.len() < MAX_BYTES, "{} bytes", html.len());
        assert!(html.contains(STYLE) && html.contains(SCRIPT));
        for elsewhere in ["http:", "https:", "src=\"/", "@import", "url(h", "import("] {
            // The name of SVG's namespace is a name; nothing is loaded from there.
            let own = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!own.contains(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn the_policy_lets_the_pages_own_style_and_script_run_and_nothing_else() {
        let policy = PAGE.policy.to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"),
            "{policy}"
        );
        for part in [(STYLE, "style"), (SCRIPT, "script")] {
            assert!(!part.0.contains(&format!("</{}", part.1)), "it would end there");
        }
        // Attributes would need 'unsafe-inline'.
        assert!(!INDEX.contains("style=\"") && !INDEX.contains(" onclick") && !INDEX.contains(" onload"));
    }

    #[test]
    fn browsers_get_it_and_programs_do_not() {
        let wanted =
            |accept: &'static str| is_wanted(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]));
        assert!(wanted("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(wanted("application/xml, text/html;q=0.9"));
        assert!(!wanted("*/*") && !wanted("text/plain") && !wanted("text/html5") && !is_wanted(&HeaderMap::new()));
    }
}
