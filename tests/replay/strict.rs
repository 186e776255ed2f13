//! HTTP/1.1 requests read to the letter (RFC 9112): what can be read in two ways is not read at all.

/// A request, as every party must understand it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: Vec<u8>,
    pub(crate) target: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// Reads the request that `bytes` begin with; with its length. `None` when it is not whole or not to the letter.
pub(crate) fn request(bytes: &[u8]) -> Option<(Request, usize)> {
    // Empty lines in front of a request are passed over (section 2.2).
    let start = bytes.chunks_exact(2).take_while(|pair| pair == b"\r\n").count() * 2;
    let length = find(&bytes[start..], b"\r\n\r\n")?;
    let head = &bytes[start..start + length];
    let body_at = start + length + 4;
    let mut lines = lines(head)?.into_iter();

    let line = lines.next()?;
    let first = line.iter().position(|byte| *byte == b' ')?;
    let last = line.iter().rposition(|byte| *byte == b' ').filter(|last| *last > first)?;
    let (method, target, version) = (&line[..first], &line[first + 1..last], &line[last + 1..]);
    let is_http_1_1 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return None,
    };
    // What is in the target does not bear on where the request ends.
    (is_token(method) && !target.is_empty()).then_some(())?;

    let fields = lines.map(field).collect::<Option<Vec<_>>>()?;
    let all = |name: &str| {
        let named = fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes()));
        named.map(|(_, value)| *value).collect::<Vec<_>>()
    };
    let hosts = all("host").len();
    (hosts == 1 || hosts == 0 && !is_http_1_1).then_some(())?;
    let rest = &bytes[body_at..];
    let (body, body_length) = match (&all("transfer-encoding")[..], &all("content-length")[..]) {
        ([], []) => (Vec::new(), 0),
        ([], [length]) => {
            let length = number(length, 10)?;
            (rest.get(..length)?.to_vec(), length)
        }
        ([coding], []) if is_http_1_1 && coding.eq_ignore_ascii_case(b"chunked") => chunked(rest)?,
        _ => return None,
    };
    let request = Request { method: method.to_vec(), target: target.to_vec(), body };
    Some((request, body_at + body_length))
}

/// The body that chunks make up, and how long the chunks are with all around them.
fn chunked(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let length = find(&bytes[at..], b"\r\n")?;
        let line = &bytes[at..at + length];
        at += length + 2;
        let (size, extension) = line.split_at(line.iter().position(|byte| *byte == b';').unwrap_or(line.len()));
        // Neither sizes nor extensions are passed on.
        (!extension.contains(&b'\r') && !extension.contains(&b'\n')).then_some(())?;
        let size = number(size.trim_ascii_end(), 16)?;
        if size == 0 {
            break;
        }
        body.extend(bytes.get(at..at.checked_add(size)?)?);
        at += size;
        (bytes.get(at..at + 2)? == b"\r\n").then_some(())?;
        at += 2;
    }
    loop {
        let length = find(&bytes[at..], b"\r\n")?;
        let line = &bytes[at..at + length];
        at += length + 2;
        if line.is_empty() {
            return Some((body, at));
        }
        // Trailers are not passed on: what matters is where they end.
        (!line.contains(&b'\n')).then_some(())?;
    }
}

/// The lines of a header; `None` when one holds half a line end. In the first one a lone CR may stand: it is escaped
/// like everything else that is illegal in a target.
fn lines(head: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut lines, mut rest) = (Vec::new(), head);
    while let Some(length) = find(rest, b"\r\n") {
        lines.push(&rest[..length]);
        rest = &rest[length + 2..];
    }
    lines.push(rest);
    let is_whole = |(at, line): (usize, &&[u8])| !line.contains(&b'\n') && (at == 0 || !line.contains(&b'\r'));
    lines.iter().enumerate().all(is_whole).then_some(lines)
}

/// Name and value of a field line.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    (is_token(name) && value.iter().all(|byte| is_text(*byte))).then_some((name, value.trim_ascii()))
}

fn number(digits: &[u8], radix: u32) -> Option<usize> {
    let is_number = !digits.is_empty() && digits.iter().all(|digit| char::from(*digit).is_digit(radix));
    usize::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| is_number)?, radix).ok()
}

/// Section 5.6.2 of RFC 9110.
fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}
