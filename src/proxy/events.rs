//! What an event stream (SSE) says while it is relayed: whether a piece carries more than comments, whether it
//! reports an error, and how many tokens it carries. Lines are followed however the stream is cut.
//!
//! vLLM sends one event for each token, as a rule: under load, or when it guesses ahead, an event may carry more.

/// As much of a line as tells what it is.
const PREFIX: usize = 28;

/// Events that `/v1/responses` sends before it has a first token.
const PREAMBLES: [&[u8]; 3] = [b"event: response.created", b"event: response.in_progress", b"event: response.queued"];

/// How events of vLLM begin, and go on with anything but the `e` of `error`.
const USUAL: &[u8] = b"data: {\"";

/// Ends a stream of the OpenAI kind; no token.
const DONE: &[u8] = b"data: [DONE]";

/// How vLLM begins an event that reports an error, in its two JSON spacings, and how the Anthropic API names it.
const ERRORS: [&[u8]; 3] = [b"data: {\"error\":", b"data:{\"error\":", b"event: error"];

/// The place in an event stream.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The beginning of the present line.
    prefix: [u8; PREFIX],
    filled: usize,
    /// A line that is no comment has ended.
    has_begun: bool,
    /// The present event says only that the request has come.
    is_preamble: bool,
}

/// What a piece of an event stream carries.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// More than comments (`: keep-alive`) and empty lines.
    pub(super) has_content: bool,
    /// An error of the server's; one with a 4xx code is the client's own.
    pub(super) has_error: bool,
    /// Nothing but comments was before the error.
    is_error_first: bool,
    /// Events with a token, about: those that have data.
    pub(super) tokens: u64,
}

impl Seen {
    /// Whether the stream begins with an error of the server's.
    pub(super) fn begins_with_error(self) -> bool {
        self.has_error && self.is_error_first
    }
}

impl Events {
    /// Looks at the next piece.
    pub(super) fn look(&mut self, piece: &[u8]) -> Seen {
        let (mut seen, mut rest) = (Seen::default(), piece);
        while !rest.is_empty() {
            let part;
            (part, rest) = rest.split_at(memchr::memchr(b'\n', rest).map_or(rest.len(), |line_end| line_end + 1));
            // Nearly every line of a stream: a whole one with data that is no error, and the empty one behind it.
            if self.filled == 0 && part == b"\n" {
                self.is_preamble = false;
                continue;
            }
            let is_usual = || part.starts_with(USUAL) && part.get(USUAL.len()) != Some(&b'e') && part.ends_with(b"\n");
            if self.filled == 0 && is_usual() {
                (seen.has_content, self.has_begun) = (true, true);
                seen.tokens += u64::from(!self.is_preamble);
                continue;
            }
            let before = self.filled;
            let taken = part.len().min(PREFIX - before);
            self.prefix[before..before + taken].copy_from_slice(&part[..taken]);
            self.filled += taken;
            let is_content = !matches!(self.prefix[0], b':' | b'\r' | b'\n');
            seen.has_content |= is_content;
            let line = &self.prefix[..self.filled];
            if ERRORS.iter().any(|error| before < error.len() && line.starts_with(error)) {
                seen.has_error |= !is_of_client(part);
                seen.is_error_first = !self.has_begun;
            }
            if part.ends_with(b"\n") {
                seen.tokens += u64::from(line.starts_with(b"data:") && !line.starts_with(DONE) && !self.is_preamble);
                self.is_preamble |= PREAMBLES.iter().any(|preamble| line.starts_with(preamble));
                // An empty line ends an event.
                self.is_preamble &= !matches!(self.prefix[0], b'\r' | b'\n');
                self.filled = 0;
                self.has_begun |= is_content;
            }
        }
        seen
    }
}

/// Whether the error has a 4xx code, as far as the piece shows: vLLM finds some faults of a request only when the
/// stream has begun.
fn is_of_client(line: &[u8]) -> bool {
    const CODE: &[u8] = b"\"code\":";
    let code = line.windows(CODE.len()).rposition(|window| window == CODE).map(|at| &line[at + CODE.len()..]);
    code.is_some_and(|code| code.trim_ascii_start().first() == Some(&b'4'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: (bool, bool) = (false, false);
    const CONTENT: (bool, bool) = (true, false);
    const ERROR: (bool, bool) = (true, true);

    /// Whether there is content, and an error.
    fn look_at(stream: &str) -> (bool, bool) {
        let seen = Events::default().look(stream.as_bytes());
        (seen.has_content, seen.has_error)
    }

    #[test]
    fn comments_and_empty_lines_are_no_content() {
        for stream in [": keep-alive\n\n", "\n", "\r\n", ":\r\n\r\n: data: x\n"] {
            assert_eq!(look_at(stream), NOTHING, "{stream:?}");
        }
        for stream in ["data: {\"id\":1}\n\n", ": keep-alive\n\ndata: x\n\n", "event: message_start\n"] {
            assert_eq!(look_at(stream), CONTENT, "{stream:?}");
        }
    }

    #[test]
    fn errors_are_seen_in_every_spelling() {
        for stream in [
            "data: {\"error\": {\"message\": \"EngineCore died\", \"code\": 500}}\n\n",
            "data: {\"error\":{\"code\":503}}\n\n",
            "data:{\"error\":{}}\n\n",
            "event: error\ndata: {\"type\":\"error\"}\n\n",
            "data: {\"id\":1}\n\n: keep-alive\n\ndata: {\"error\": {}}\n\ndata: [DONE]\n\n",
        ] {
            assert_eq!(look_at(stream), ERROR, "{stream:?}");
        }
        for stream in ["data: {\"id\":\"error\"}\n\n", "data: {\"error\": {\"message\": \"bad\", \"code\": 400}}\n\n"] {
            assert_eq!(look_at(stream), CONTENT, "{stream:?}");
        }
    }

    #[test]
    fn an_error_is_the_first_thing_when_only_comments_came_before() {
        for (stream, is_first) in [
            ("data: {\"error\": {}}\n\ndata: [DONE]\n\n", true),
            (": keep-alive\n\ndata: {\"error\": {}}\n\n", true),
            ("data: {\"id\":1}\n\ndata: {\"error\": {}}\n\n", false),
            ("data: {\"id\":1}\n\n", false),
        ] {
            assert_eq!(Events::default().look(stream.as_bytes()).begins_with_error(), is_first, "{stream:?}");
        }
    }

    #[test]
    fn tokens_are_events_with_data_that_are_no_preamble() {
        for (stream, tokens) in [
            ("data: {\"id\":1}\n\ndata: {\"id\":1}\n\ndata: [DONE]\n\n", 2),
            (": keep-alive\n\ndata: {}\r\n\r\n", 1),
            ("event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n", 0),
            ("event: response.created\ndata: {}\n\n\nevent: response.output_text.delta\ndata: {}\n\n", 1),
            ("event: message_start\ndata: {}\n\n", 1),
            ("data: {\"half of a line\"", 0),
        ] {
            assert_eq!(Events::default().look(stream.as_bytes()).tokens, tokens, "{stream:?}");
            for cut in 1..stream.len() {
                let mut events = Events::default();
                let parts = [&stream.as_bytes()[..cut], &stream.as_bytes()[cut..]];
                assert_eq!(parts.map(|part| events.look(part).tokens).iter().sum::<u64>(), tokens, "{stream:?}, {cut}");
            }
        }
    }

    #[test]
    fn it_does_not_matter_where_a_stream_is_cut() {
        let stream = b": keep-alive\n\ndata: {\"id\":1}\n\ndata: {\"error\": {\"code\": 500}}\n\ndata: [DONE]\n\n";
        for cut in 1..stream.len() {
            let mut events = Events::default();
            let seen = [&stream[..cut], &stream[cut..]].map(|piece| events.look(piece));
            assert_eq!(seen.iter().filter(|seen| seen.has_error).count(), 1, "cut at {cut}");
            assert_eq!(seen[0].has_content, cut > 14, "cut at {cut}");
            assert_eq!(seen[1].has_content, cut < stream.len() - 1, "the last line is empty");
        }
    }
}
