//! A header on its way from one side to the other: most of its lines go on as they came.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue, Method};
use pingora::http::ResponseHeader;

use super::outbound::ResponseHead;

/// What is changed in a header: fields that are left out, fields with another value, and more fields.
#[derive(Debug)]
pub(crate) struct Changes<'a> {
    /// Names of fields that are always left out, in lower case.
    dropped: &'static [&'static str],
    /// By name, in lower case. Of several changes the last one counts.
    fields: Vec<(Cow<'a, str>, Change<'a>)>,
    /// The lengths of the names, as bits: most fields have a name of another length than all of these.
    lengths: u128,
}

#[derive(Debug)]
enum Change<'a> {
    Remove,
    /// In place of what is there, if anything is.
    Set(Cow<'a, [u8]>),
    /// Beside what is there.
    Add(Cow<'a, [u8]>),
}

impl<'a> Changes<'a> {
    /// These fields are left out, unless they are set. Their names are in lower case.
    pub(crate) fn dropping(dropped: &'static [&'static str]) -> Self {
        let lengths = dropped.iter().fold(0, |lengths, name| lengths | length_bit(name.len()));
        Self { dropped, fields: Vec::with_capacity(12), lengths }
    }

    /// The field of this name, which is in lower case, has this value alone, whether it was there or not.
    pub(crate) fn set(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, [u8]>>) {
        self.change(name.into(), Change::Set(value.into()));
    }

    /// Fields of this name, which is in lower case, are left out.
    pub(crate) fn remove(&mut self, name: impl Into<Cow<'a, str>>) {
        self.change(name.into(), Change::Remove);
    }

    /// There is one more field of this name, which is in lower case.
    pub(crate) fn add(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, [u8]>>) {
        self.fields.push((name.into(), Change::Add(value.into())));
    }

    fn change(&mut self, name: Cow<'a, str>, change: Change<'a>) {
        self.lengths |= length_bit(name.len());
        match self.fields.iter_mut().find(|(changed, _)| *changed == name) {
            Some((_, changed)) => *changed = change,
            None => self.fields.push((name, change)),
        }
    }

    /// Whether this field does not go on as it is, in whatever case its name is.
    fn concern(&self, name: &[u8]) -> bool {
        let is_it = |changed: &str| changed.as_bytes().eq_ignore_ascii_case(name);
        let is_changed =
            |(changed, change): &(Cow<'_, str>, Change<'_>)| !matches!(change, Change::Add(_)) && is_it(changed);
        self.lengths & length_bit(name.len()) != 0
            && (self.fields.iter().any(is_changed) || self.dropped.iter().any(|name| is_it(name)))
    }

    /// Makes the changes in a header that is not written as text.
    pub(crate) fn apply(&self, header: &mut ResponseHeader) {
        for name in self.dropped {
            header.remove_header(*name);
        }
        for (name, change) in &self.fields {
            let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else { continue };
            let changed = match change {
                Change::Remove => {
                    header.remove_header(&name);
                    Ok(())
                }
                Change::Set(value) => header.insert_header(name, &value[..]),
                Change::Add(value) => header.append_header(name, &value[..]).map(drop),
            };
            if let Err(error) = changed {
                // Values are legal where they are made.
                log::debug!("a field is left out: {error}");
            }
        }
    }
}

/// Names beyond all measure share a bit.
fn length_bit(length: usize) -> u128 {
    1 << length.min(127)
}

/// Writes a request header: this line, then the fields with their changes, and what is new behind them; and leaves room for
/// so many bytes.
pub(super) fn write_request<'f>(
    method: &Method,
    target: &[u8],
    fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
    changes: &Changes<'_>,
    room_bytes: usize,
) -> Vec<u8> {
    let mut wire = Vec::with_capacity(768 + room_bytes);
    put(&mut wire, &[method.as_str().as_bytes(), b" ", target, b" HTTP/1.1\r\n"]);
    lines(&mut wire, fields, changes);
    wire.extend_from_slice(b"\r\n");
    wire
}

/// Writes a response header with these changes, this date, if any, and this as its last line.
pub(super) fn write_response(
    head: &ResponseHead,
    changes: &Changes<'_>,
    date: Option<&HeaderValue>,
    last: &[u8],
) -> Vec<u8> {
    let header = &head.header;
    let mut wire = Vec::with_capacity(512);
    let reason = header.get_reason_phrase().unwrap_or_default();
    put(&mut wire, &[b"HTTP/1.1 ", header.status.as_str().as_bytes(), b" ", reason.as_bytes(), b"\r\n"]);
    if !head.raw.is_empty() {
        lines(&mut wire, fields(&head.raw), changes);
    } else if header.has_case() {
        lines(&mut wire, header.case_header_iter().map(|(name, value)| (name.as_slice(), value.as_bytes())), changes);
    } else {
        let fields = header.headers.iter();
        lines(&mut wire, fields.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())), changes);
    }
    if let Some(date) = date {
        put(&mut wire, &[b"Date: ", date.as_bytes(), b"\r\n"]);
    }
    put(&mut wire, &[last, b"\r\n"]);
    wire
}

/// The fields with their changes, and what is new behind them: what stands where is no matter between different names.
fn lines<'f>(wire: &mut Vec<u8>, fields: impl Iterator<Item = (&'f [u8], &'f [u8])>, changes: &Changes<'_>) {
    for (name, value) in fields {
        if !changes.concern(name) {
            put(wire, &[name, b": ", value, b"\r\n"]);
        }
    }
    for (name, change) in &changes.fields {
        if let Change::Set(value) | Change::Add(value) = change {
            put(wire, &[name.as_bytes(), b": ", value, b"\r\n"]);
        }
    }
}

fn put(wire: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        wire.extend_from_slice(part);
    }
}

/// The fields of a header that has been read from these bytes, each in one line.
pub(crate) fn fields(raw: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let first = raw.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(raw.len());
    let mut rest = raw[first..].split_inclusive(|byte| *byte == b'\n');
    // The request line, or the status line.
    rest.next();
    rest.map_while(|line| {
        let colon = memchr::memchr(b':', line)?;
        Some((line[..colon].trim_ascii_end(), line[colon + 1..].trim_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: &[u8] =
        b"\r\nPOST /x?a:b HTTP/1.1\r\nHost: a\r\nX-Own:  1 2 \r\ncontent-TYPE:text\r\nempty:\r\nx-own: 3\r\n\r\n";

    fn written(changes: &Changes<'_>) -> String {
        String::from_utf8(write_request(&Method::POST, b"/y", fields(RAW), changes, 0)).unwrap()
    }

    #[test]
    fn lines_go_on_as_they_came() {
        let expected = "POST /y HTTP/1.1\r\nHost: a\r\nX-Own: 1 2\r\ncontent-TYPE: text\r\nempty: \r\nx-own: 3\r\n\r\n";
        assert_eq!(written(&Changes::dropping(&[])), expected);
    }

    #[test]
    fn the_last_change_of_a_field_counts() {
        let mut changes = Changes::dropping(&[]);
        changes.set("host", &b"b"[..]);
        changes.remove("x-own");
        changes.remove("content-type");
        changes.set("x-new", b"new".to_vec());
        changes.set("content-type", &b"json"[..]);
        changes.set("empty", &b"x"[..]);
        changes.remove("empty");
        changes.remove("not-there");
        assert_eq!(written(&changes), "POST /y HTTP/1.1\r\nhost: b\r\ncontent-type: json\r\nx-new: new\r\n\r\n");
    }

    #[test]
    fn a_response_is_changed_the_same_as_text_and_as_fields() {
        let raw = "HTTP/1.1 299 Fine\r\nVary: a\r\nX-Own : 1\r\nkeep-alive: x\r\nx-own: 2\r\nDate: d\r\n\r\n";
        let raw = bytes::Bytes::from(raw);
        let mut head = ResponseHead { header: super::super::head::response(&raw).unwrap(), raw };
        let mut changes = Changes::dropping(&["keep-alive"]);
        changes.add("vary", &b"b"[..]);
        changes.set("x-own", &b"3"[..]);
        let wire = write_response(&head, &changes, None, b"Connection: close\r\n");
        let expected = "HTTP/1.1 299 Fine\r\nVary: a\r\nDate: d\r\nvary: b\r\nx-own: 3\r\nConnection: close\r\n\r\n";
        assert_eq!(String::from_utf8(wire).unwrap(), expected);
        changes.apply(&mut head.header);
        let left: Vec<_> =
            head.header.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(left, [("vary", "a"), ("vary", "b"), ("x-own", "3"), ("date", "d")]);
    }

    #[test]
    fn a_header_that_never_was_text_is_written_with_all_its_fields() {
        for build in [ResponseHeader::build, ResponseHeader::build_no_case] {
            let mut header = build(200, None).unwrap();
            header.insert_header("x-own", "1").unwrap();
            header.append_header("x-own", "2").unwrap();
            let wire = write_response(&header.into(), &Changes::dropping(&[]), None, b"last: 3\r\n");
            let expected = "HTTP/1.1 200 OK\r\nx-own: 1\r\nx-own: 2\r\nlast: 3\r\n\r\n";
            assert_eq!(String::from_utf8(wire).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_always_dropped_may_be_set_anew() {
        let mut changes = Changes::dropping(&["x-own", "host", "not-there"]);
        changes.set("host", &b"b"[..]);
        assert_eq!(written(&changes), "POST /y HTTP/1.1\r\ncontent-TYPE: text\r\nempty: \r\nhost: b\r\n\r\n");
    }

    #[test]
    fn names_of_any_length_are_told_apart() {
        let (long, longer) = ("x".repeat(127), "x".repeat(300));
        let raw = format!("GET / HTTP/1.1\r\n{long}: 1\r\n{longer}: 2\r\n\r\n");
        let mut changes = Changes::dropping(&[]);
        changes.remove(&*long);
        let wire = write_request(&Method::GET, b"/", fields(raw.as_bytes()), &changes, 0);
        assert_eq!(wire, format!("GET / HTTP/1.1\r\n{longer}: 2\r\n\r\n").as_bytes());
    }
}
