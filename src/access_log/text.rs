//! A record as names and values, for people and for grep.

use std::io::{self, Write};

use serde_json::Value;

use super::record::Record;

/// Writes `name=value` for each field that is known, in the order of [`Record`], and ends the line. A value that is no
/// word stands in quotes, as it would in JSON.
pub(super) fn write(record: &Record, out: &mut impl Write) -> io::Result<()> {
    let Value::Object(fields) = serde_json::to_value(record)? else { return Ok(()) };
    let mut separator = "";
    // The version is for programs.
    for (name, value) in fields.iter().filter(|(name, _)| *name != "version") {
        write!(out, "{separator}{name}=")?;
        match value {
            Value::String(text) if is_word(text) => out.write_all(text.as_bytes())?,
            // The wall clock says no more.
            Value::Number(number) if number.is_f64() => write!(out, "{:.6}", number.as_f64().unwrap_or_default())?,
            value => write!(out, "{value}")?,
        }
        separator = " ";
    }
    out.write_all(b"\n")
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=' | b'\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_word_stands_in_quotes_on_one_line() {
        let json = r#"{"version":1,"time":"2026-01-31T12:00:00Z","request_id":"a b\n=\"c","model":"qwen",
            "endpoint":"/v1/models","duration_s":0.125,"end":"complete","status":200}"#;
        let mut line = Vec::new();
        write(&Record::parse(json.as_bytes()).unwrap(), &mut line).unwrap();
        let line = String::from_utf8(line).unwrap();
        let expected = "time=2026-01-31T12:00:00.000000Z request_id=\"a b\\n=\\\"c\" model=qwen endpoint=/v1/models \
                        body_bytes=0 stream=false ignore_eos=false attempts=0 status=200 waited_s=0.000000 \
                        duration_s=0.125000 sent_bytes=0 end=complete\n";
        assert_eq!(line, expected);
    }
}
