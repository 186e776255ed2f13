//! Requests and responses as bytes.

/// A request with `Content-Length` and a JSON content type. `fields` are whole header lines, each ended by CR LF.
pub(crate) fn request(method: &str, path: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: gateway.test\r\nContent-Type: application/json\r\n{fields}\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn post(path: &str, body: &[u8]) -> Vec<u8> {
    request("POST", path, "", body)
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: gateway.test\r\n\r\n").into_bytes()
}

/// A POST whose body is sent in chunks of `size` bytes.
pub(crate) fn chunked(path: &str, body: &[u8], size: usize) -> Vec<u8> {
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nHost: gateway.test\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for chunk in body.chunks(size) {
        bytes.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        bytes.extend(chunk);
        bytes.extend(b"\r\n");
    }
    bytes.extend(b"0\r\n\r\n");
    bytes
}

/// A chat request whose body has exactly `length` bytes.
pub(crate) fn body_of(length: usize) -> Vec<u8> {
    const START: &str = r#"{"model":"tiny","messages":[{"role":"user","content":""#;
    const END: &str = r#""}]}"#;
    let fill = length.checked_sub(START.len() + END.len()).expect("too short for a chat request");
    // Not all the same, so that a lost or doubled piece changes the hash.
    let text: String =
        (0..fill).map(|at| char::from(b'a' + u8::try_from((at / 7 + at / 1_000) % 26).unwrap())).collect();
    format!("{START}{text}{END}").into_bytes()
}

/// A response with `Content-Length` and a JSON body.
pub(crate) fn json_response(status: u16, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status} Reason\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
