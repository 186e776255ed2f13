//! Reader functions for single values: from a node to a checked value, or to what would be accepted.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::ByteSize;
use http::HeaderName;

use super::section::Parsed;
use super::yaml::Node;

/// No time limit is longer: far more than any request takes, and a mistaken unit (`10M` is ten months) is noticed.
const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);

/// No body limit is larger: bodies are kept in memory.
const MAX_SIZE: u64 = 16 << 30;

/// Token counts stay where `f64` is exact and sums cannot overflow.
pub(crate) const TOKENS: RangeInclusive<u64> = 1..=1_000_000_000_000;

/// TCP ports that can be connected to.
pub(crate) const PORTS: RangeInclusive<u64> = 1..=65_535;

/// Attempts in all.
pub(crate) const ATTEMPTS: RangeInclusive<u64> = 1..=MAX_ATTEMPTS as u64;

/// No request is tried more often.
const MAX_ATTEMPTS: usize = 100;

/// A whole number in a range, from text; else what would be accepted.
pub(crate) fn parse_whole(text: &str, range: &RangeInclusive<u64>) -> Parsed<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && range.contains(number));
    number.ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
}

/// A pause in seconds with a fraction (`0.001`), as the flag `--retry-delay` has it; else what would be accepted.
pub(crate) fn parse_delay_seconds(text: &str) -> Parsed<Duration> {
    let delay = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let delay = delay.filter(|delay| *delay <= MAX_DELAY);
    delay.ok_or_else(|| format!("seconds from 0 to {}", MAX_DELAY.as_secs()))
}

/// No pause between attempts is longer.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// A whole number without quotes.
pub(super) fn whole(range: RangeInclusive<u64>) -> impl Fn(&Node) -> Parsed<u64> {
    move |node| parse_whole(node.plain().unwrap_or_default(), &range)
}

/// A whole number that counts things in memory.
pub(super) fn count(range: RangeInclusive<u64>) -> impl Fn(&Node) -> Parsed<usize> {
    let whole = whole(range);
    move |node| whole(node).and_then(|number| usize::try_from(number).map_err(|_| "a smaller whole number".to_owned()))
}

/// A finite number of at least 0.
pub(super) fn not_negative(node: &Node) -> Parsed<f64> {
    finite(node).filter(|number| *number >= 0.0).ok_or_else(|| "a number of at least 0, such as 0.1".to_owned())
}

/// A finite number above 0.
pub(super) fn positive(node: &Node) -> Parsed<f64> {
    finite(node).filter(|number| *number > 0.0).ok_or_else(|| "a number above 0, such as 1.0".to_owned())
}

/// A part of a whole.
pub(super) fn share(node: &Node) -> Parsed<f64> {
    finite(node)
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "a number from 0 to 1, such as 0.1".to_owned())
}

/// How fast a server is beside others.
pub(super) fn weight(node: &Node) -> Parsed<f64> {
    let weight = finite(node).filter(|weight| (0.01..=100.0).contains(weight));
    weight.ok_or_else(|| "a number from 0.01 to 100, such as 1.0".to_owned())
}

fn finite(node: &Node) -> Option<f64> {
    let number: f64 = node.plain()?.parse().ok()?;
    number.is_finite().then_some(number)
}

/// `true` or `false`.
pub(super) fn switch(node: &Node) -> Parsed<bool> {
    choice(&[("true", true), ("false", false)])(node)
}

/// One of some words.
pub(super) fn choice<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(&Node) -> Parsed<T> {
    move |node| {
        let found = words.iter().find(|(word, _)| node.plain() == Some(word));
        let names = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        found.map(|(_, value)| *value).ok_or_else(names)
    }
}

/// A time limit: above zero, with its unit.
pub(super) fn duration(node: &Node) -> Parsed<Duration> {
    parse_duration(node)
        .filter(|duration| (Duration::from_millis(1)..=MAX_DURATION).contains(duration))
        .ok_or_else(|| "a duration from 1ms to 7days, such as 250ms, 5s or 10m".to_owned())
}

/// A pause between attempts: may be zero.
pub(super) fn delay(node: &Node) -> Parsed<Duration> {
    parse_duration(node)
        .filter(|delay| *delay <= MAX_DELAY)
        .ok_or_else(|| format!("a duration from 0s to {}s, such as 50ms", MAX_DELAY.as_secs()))
}

/// A wait that may be zero, up to a longest one.
pub(super) fn at_most(max: Duration) -> impl Fn(&Node) -> Parsed<Duration> {
    move |node| {
        let max_text = humantime::format_duration(max);
        let wait = parse_duration(node).filter(|wait| *wait <= max);
        wait.ok_or_else(|| format!("a duration from 0s to {max_text}, such as 500ms, 5s or 10m"))
    }
}

/// Whole seconds in a range, written as a duration, where Pingora knows nothing finer.
pub(super) fn seconds(range: RangeInclusive<u64>) -> impl Fn(&Node) -> Parsed<u64> {
    move |node| {
        parse_duration(node)
            .filter(|duration| duration.subsec_nanos() == 0 && range.contains(&duration.as_secs()))
            .map(|duration| duration.as_secs())
            .ok_or_else(|| format!("whole seconds from {}s to {}s", range.start(), range.end()))
    }
}

fn parse_duration(node: &Node) -> Option<Duration> {
    // humantime takes a bare 0, which has no unit.
    let text = node.plain().filter(|text| text.ends_with(char::is_alphabetic))?;
    humantime::parse_duration(text).ok()
}

/// A size in bytes, such as `64MiB`; a bare number is bytes.
pub(super) fn size(node: &Node) -> Parsed<usize> {
    let bytes = node.plain().and_then(|text| text.parse::<ByteSize>().ok()).map(|size| size.as_u64());
    bytes
        .filter(|bytes| (1..=MAX_SIZE).contains(bytes))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| "a size from 1B to 16GiB, such as 512KiB or 64MiB".to_owned())
}

/// A name for metrics, headers and logs.
pub(super) fn name(node: &Node) -> Parsed<String> {
    let name = node.text().filter(|text| is_name(text)).map(str::to_owned);
    name.ok_or_else(|| format!("a name of 1 to {MAX_NAME_BYTES} letters, digits and any of . _ : [ ] -"))
}

const MAX_NAME_BYTES: usize = 128;

/// Whether a text is safe as a name in metrics, headers and logs.
pub(super) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:[]-".contains(c);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.chars().all(allowed)
}

/// A path or another text for the operating system.
pub(super) fn text(node: &Node) -> Parsed<String> {
    match node.text() {
        // A path with a zero byte cannot be passed to the operating system.
        Some(text) if !text.is_empty() && !text.contains('\0') => Ok(text.to_owned()),
        _ => Err("a text".to_owned()),
    }
}

/// The name of a header.
pub(super) fn header_name(node: &Node) -> Parsed<HeaderName> {
    let name = node.text().and_then(|text| HeaderName::from_bytes(text.as_bytes()).ok());
    name.ok_or_else(|| "a header name, such as x-session-id".to_owned())
}

/// A request header that may be taken away without changing where a message ends or whom it is for.
pub(super) fn strippable_header(node: &Node) -> Parsed<HeaderName> {
    const KEPT: [&str; 4] = ["host", "content-length", "transfer-encoding", "connection"];
    header_name(node)
        .ok()
        .filter(|name| !KEPT.contains(&name.as_str()))
        .ok_or_else(|| format!("a header name other than {}", KEPT.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::yaml::{Value, parse};
    use super::*;

    /// The value of `a: TEXT`.
    fn node(text: &str) -> Node {
        match parse(&format!("a: {text}")).unwrap().unwrap().value {
            Value::Mapping(mut entries) => entries.remove(0).value,
            other => panic!("no mapping: {other:?}"),
        }
    }

    #[test]
    fn whole_numbers_are_digits_in_their_range() {
        let read = |text| whole(1..=10)(&node(text));
        assert_eq!((read("1"), read("10")), (Ok(1), Ok(10)));
        for text in
            ["0", "11", "-1", "+1", "1.0", "1e1", "0x1", "1_0", "\"1\"", "true", "[1]", "", "99999999999999999999"]
        {
            assert_eq!(read(text), Err("a whole number from 1 to 10".into()), "{text}");
        }
    }

    #[test]
    fn real_numbers_are_finite_and_have_their_sign() {
        assert_eq!((positive(&node("0.5")), not_negative(&node("0"))), (Ok(0.5), Ok(0.0)));
        for text in ["0", "-1", ".inf", "inf", "nan", ".nan", "x", "1e999", "\"1\""] {
            assert!(positive(&node(text)).is_err(), "{text}");
        }
        assert!(not_negative(&node("-0.1")).is_err());
    }

    #[test]
    fn durations_need_a_unit_and_are_above_zero() {
        for (text, millis) in [("5s", 5_000), ("1ms", 1), ("1m 30s", 90_000), ("0.5s", 500), ("7days", 604_800_000)] {
            assert_eq!(duration(&node(text)), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["5", "0", "0s", "-1s", "1M", "8days", "soon", "none", "1ns", "\"5s\"", "[]"] {
            assert!(duration(&node(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn delays_may_be_zero_and_seconds_are_whole() {
        assert_eq!((delay(&node("0s")), delay(&node("61s")).is_err()), (Ok(Duration::ZERO), true));
        assert_eq!((seconds(0..=60)(&node("1m")), seconds(0..=60)(&node("0s"))), (Ok(60), Ok(0)));
        for text in ["1500ms", "61s", "1"] {
            assert_eq!(seconds(0..=60)(&node(text)), Err("whole seconds from 0s to 60s".into()), "{text}");
        }
    }

    #[test]
    fn delays_on_the_command_line_are_seconds_with_a_fraction() {
        assert_eq!(parse_delay_seconds("0.001"), Ok(Duration::from_millis(1)));
        assert_eq!(parse_delay_seconds("0"), Ok(Duration::ZERO));
        for text in ["nan", "inf", "-inf", "-1", "-0.001", "1e30", "60.1", "", "x", "1s"] {
            assert_eq!(parse_delay_seconds(text), Err("seconds from 0 to 60".into()), "{text}");
        }
    }

    #[test]
    fn sizes_are_bytes_with_or_without_a_unit() {
        for (text, bytes) in [("64MiB", 64 << 20), ("1000", 1000), ("1kB", 1000), ("1.5KiB", 1536), ("16GiB", 16 << 30)]
        {
            assert_eq!(size(&node(text)), Ok(bytes), "{text}");
        }
        for text in ["0", "-1", "17GiB", "64 apples", "MiB", "99999999999999999999EiB", "none", "\"1MiB\""] {
            assert!(size(&node(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_safe_in_metrics_and_headers() {
        for text in ["short", "gpu-1.rack_2", "\"[::1]:80\"", "7"] {
            assert!(name(&node(text)).is_ok(), "{text}");
        }
        for text in ["a b", "\"\"", "ä", "\"a\\nb\"", "{a: b}"] {
            assert!(name(&node(text)).is_err(), "{text}");
        }
        assert!(name(&node(&"x".repeat(129))).is_err());
    }

    #[test]
    fn headers_that_frame_a_message_cannot_be_stripped() {
        assert_eq!(strippable_header(&node("X-Vllm-Priority")).unwrap(), "x-vllm-priority");
        for text in ["Content-Length", "host", "\"a b\"", "\"\"", "[a]"] {
            assert!(strippable_header(&node(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn words_are_chosen_from_a_list() {
        assert_eq!((switch(&node("true")), switch(&node("false"))), (Ok(true), Ok(false)));
        for text in ["yes", "True", "1", "\"true\""] {
            assert_eq!(switch(&node(text)), Err("true or false".into()), "{text}");
        }
    }
}
