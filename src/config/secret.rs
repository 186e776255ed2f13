//! API keys: from the file or an environment variable to an `Authorization` header. Their text is in no message.

use http::{HeaderName, HeaderValue};

use super::Environment;
use super::problem::{Located, Problems, Spot};
use super::section::{Parsed, Section, or_none};
use super::value;
use super::yaml::{Node, Value};

/// Reads `api_key` and `api_key_env` of a section: one of them, or neither.
pub(super) fn authorization(section: &mut Section<'_>, environment: Environment<'_>) -> Option<HeaderValue> {
    bearer_token(section, ["api_key", "api_key_env"], environment)
}

/// Reads a key that is given either itself, under the first name, or as an environment variable, under the second.
pub(super) fn bearer_token(
    section: &mut Section<'_>,
    [key, key_env]: [&'static str; 2],
    environment: Environment<'_>,
) -> Option<HeaderValue> {
    let value = section.secret(key, or_none(api_key));
    let variable = section.value(key_env, or_none(value::text));
    let value = value.and_then(given);
    let Located { value: variable, spot } = match variable.and_then(given) {
        None => return value.map(|key| key.value),
        Some(variable) => variable,
    };
    if value.is_some() {
        section.error(&spot, format!("given beside {key}, expected one of the two"));
        return None;
    }
    match environment(&variable).map(|key| bearer(&key)) {
        Some(Ok(key)) => Some(key),
        Some(Err(expected)) => {
            section
                .error(&spot, format!("the environment variable {variable} holds no usable key, expected {expected}"));
            None
        }
        None => {
            section
                .error(&spot, format!("the environment variable {variable} is not set, expected it to hold {A_KEY}"));
            None
        }
    }
}

/// `Authorization` from the environment variable that the example reads: used when it is set and not empty.
pub(super) fn authorization_of_example(environment: Environment<'_>, problems: &Problems) -> Option<HeaderValue> {
    const VARIABLE: &str = "OPENAI_API_KEY";
    let key = environment(VARIABLE).filter(|key| !key.trim().is_empty())?;
    let key = bearer(&key).map_err(|expected| {
        let text = format!("the environment variable holds no usable key, expected {expected}, or to unset it");
        problems.error(&Spot::named(VARIABLE), text);
    });
    key.ok()
}

const A_KEY: &str = "a key of visible ASCII characters, alone and without the word Bearer";

/// What was given and is not `none`.
pub(super) fn given<T>(located: Located<Option<T>>) -> Option<Located<T>> {
    let Located { value, spot } = located;
    value.map(|value| Located::new(value, spot))
}

fn api_key(node: &Node) -> Parsed<HeaderValue> {
    bearer(node.text().unwrap_or_default())
}

/// Further header fields of requests that Tidegate makes itself. To be read as a secret: such a field may be a key.
pub(super) fn header_fields(example: &str) -> impl Fn(&Node) -> Parsed<Vec<(HeaderName, HeaderValue)>> {
    let field = |item: &Node| {
        let (name, value) = item.text()?.split_once(':')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        let mut value = HeaderValue::from_str(value.trim()).ok()?;
        value.set_sensitive(true);
        let is_ours = ["host", "content-length", "transfer-encoding", "connection"].contains(&name.as_str());
        (!is_ours).then_some((name, value))
    };
    move |node| {
        let fields = match &node.value {
            Value::List(items) => items.iter().map(field).collect(),
            _ => None,
        };
        fields.ok_or_else(|| format!("a list of header fields, such as [\"{example}\"]"))
    }
}

/// White space around the key is dropped: files that hold secrets often end with a line break.
pub(super) fn usable_key(key: &str) -> Parsed<&str> {
    let key = key.trim();
    let is_usable = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_usable { Ok(key) } else { Err(A_KEY.to_owned()) }
}

fn bearer(key: &str) -> Parsed<HeaderValue> {
    let key = usable_key(key)?;
    let value = HeaderValue::try_from(format!("Bearer {key}"));
    let mut value = value.map_err(|_| A_KEY.to_owned())?;
    // Keeps it out of debug output.
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::super::yaml::parse;
    use super::*;

    fn environment(name: &str) -> Option<String> {
        let value = match name {
            "GOOD" => " sk-good\n",
            "BAD" => "sk secret",
            "EMPTY" => "",
            _ => return None,
        };
        Some(value.to_owned())
    }

    fn read(yaml: &str) -> Result<Option<HeaderValue>, String> {
        let root = parse(yaml).unwrap();
        let problems = Problems::default();
        let key =
            Section::read(root.as_ref(), Spot::file("f"), &problems, |section| authorization(section, &environment));
        problems.finish(Some(key)).map(|(key, _)| key).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_key_becomes_a_bearer_header_that_debug_output_does_not_show() {
        let key = read("api_key: sk-1\n").unwrap().unwrap();
        assert_eq!((key.to_str().unwrap(), format!("{key:?}")), ("Bearer sk-1", "Sensitive".to_owned()));
    }

    #[test]
    fn a_key_may_come_from_the_environment_or_be_off() {
        assert_eq!(read("api_key_env: GOOD\n").unwrap().unwrap(), "Bearer sk-good");
        for yaml in ["", "api_key: none\napi_key_env: none\n"] {
            assert_eq!(read(yaml), Ok(None), "{yaml}");
        }
    }

    #[test]
    fn a_variable_that_is_missing_empty_or_unusable_is_refused_without_its_text() {
        for (name, reason) in [("BAD", "holds no usable key"), ("EMPTY", "holds no usable key"), ("NO", "is not set")] {
            let error = read(&format!("api_key_env: {name}\n")).unwrap_err();
            assert!(error.starts_with("error: f:1: api_key_env: the environment variable"), "{error}");
            assert!(error.contains(reason) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn both_ways_at_once_are_refused() {
        let error = read("api_key: a\napi_key_env: GOOD\n").unwrap_err();
        assert_eq!(error, "error: f:2: api_key_env: given beside api_key, expected one of the two");
    }

    #[test]
    fn a_refused_key_is_not_repeated_in_the_message() {
        for yaml in ["api_key: sk secret\n", "api_key: Bearer secret\n", "api_key: \"secret\\u0007\"\n"] {
            let error = read(yaml).unwrap_err();
            assert!(error.contains("api_key: ") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_variable_of_the_example_counts_only_when_it_is_not_empty() {
        let read = |value: Option<&str>| {
            let problems = Problems::default();
            let value = value.map(str::to_owned);
            let key = authorization_of_example(&|name| value.clone().filter(|_| name == "OPENAI_API_KEY"), &problems);
            problems.finish(Some(key)).map(|(key, _)| key).map_err(|refusal| refusal.to_string())
        };
        assert_eq!(read(Some("sk-1")).unwrap().unwrap(), "Bearer sk-1");
        assert_eq!((read(None), read(Some("")), read(Some(" "))), (Ok(None), Ok(None), Ok(None)));
        assert!(read(Some("sk\u{e9}")).unwrap_err().starts_with("error: OPENAI_API_KEY: "));
    }
}
