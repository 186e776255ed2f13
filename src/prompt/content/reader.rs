//! Walks over a body once, front to back, and hands the parts of the prompt over.
//!
//! Without a tree and without recursion: depth of nesting costs nothing. Lenient: what is wrong in a way that does not
//! hinder the walk is not looked at, and where it cannot go on it ends with what it has found so far.

use super::facts::Facts;
use super::field::{self, Field};
use super::sink::Sink;
use super::string::{self, Escapes, Gathered};
use crate::prompt::measure::SoundString;

/// Lists and objects of a prompt within each other that are read; what is deeper is skipped. What endpoints take is no
/// deeper than ten.
const MAX_DEPTH: usize = 64;

/// The longest name of a field that is read when it is written with escapes, in bytes.
const LONGEST_NAME: usize = 64;

/// A list or an object that the walk is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    TopLevel,
    Sampling,
    /// A message, a part of one, an item, a document.
    Part,
    List(Field),
}

/// Strings of a prompt from this length on are noted, in bytes: to read shorter ones again takes no time.
const NOTED: usize = 256;

/// Reads a body; `None` when it is no JSON object.
#[cfg(feature = "exact-tokens")]
pub(in crate::prompt) fn read(body: &[u8], sink: &mut impl Sink) -> Option<Facts> {
    let mut facts = Facts::default();
    read_into(body, sink, &mut facts).then_some(facts)
}

/// Reads a body, of which nothing is known yet; `false` when it is no JSON object.
pub(super) fn read_into(body: &[u8], sink: &mut impl Sink, facts: &mut Facts) -> bool {
    let json = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
    let Some(rest) = json.strip_prefix(b"{") else { return false };
    let mut reader = Reader {
        rest,
        length: body.len(),
        sink,
        facts,
        frames: [Frame::TopLevel; MAX_DEPTH],
        depth: 1,
        gathered: string::NOTHING_GATHERED,
    };
    while reader.depth > 0 && reader.step().is_some() {}
    true
}

struct Reader<'a, 's, S> {
    rest: &'a [u8],
    /// Bytes of the whole body.
    length: usize,
    sink: &'s mut S,
    facts: &'s mut Facts,
    frames: [Frame; MAX_DEPTH],
    depth: usize,
    gathered: Gathered,
}

impl<'a, S: Sink> Reader<'a, '_, S> {
    /// Reads the next entry of the list or object that the walk is in, or its end; `None` where the walk cannot go on.
    fn step(&mut self) -> Option<()> {
        match self.next_byte()? {
            b'}' | b']' => {
                self.depth -= 1;
                self.rest = &self.rest[1..];
                return Some(());
            }
            b',' => {
                self.rest = &self.rest[1..];
                return Some(());
            }
            _ => {}
        }
        let field = match self.frames[self.depth - 1] {
            Frame::TopLevel => {
                let field = self.name(field::top_level)?;
                self.sink.query(field == Field::Query);
                if let Field::MaxTokens | Field::IgnoreEos = field {
                    return self.measured(field);
                }
                field
            }
            Frame::Sampling => self.name(field::sampling)?,
            Frame::Part => self.name(field::within_prompt)?,
            Frame::List(field) => {
                self.next_byte()?;
                field
            }
        };
        self.value(field)
    }

    /// Reads the value of a field that is measured as well.
    fn measured(&mut self, field: Field) -> Option<()> {
        // To the end, if the value has none.
        self.facts.measured_until = self.length;
        self.value(field)?;
        self.facts.measured_until = self.length - self.rest.len();
        Some(())
    }

    /// The next byte that is not white space, which stays where it is.
    fn next_byte(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_ascii_start();
        self.rest.first().copied()
    }

    /// Reads the name of a field and the colon behind it.
    fn name(&mut self, field: fn(&[u8]) -> Field) -> Option<Field> {
        let from = self.rest.strip_prefix(b"\"")?;
        let rest = string::skip(from)?;
        let name = &from[..from.len() - rest.len() - 1];
        let field = if name.contains(&b'\\') { field(&decoded_name(from)?) } else { field(name) };
        self.rest = rest;
        if self.next_byte()? != b':' {
            return None;
        }
        self.rest = &self.rest[1..];
        self.next_byte()?;
        Some(field)
    }

    /// Reads a value, or its beginning if it is a list or object of which parts are of interest.
    fn value(&mut self, field: Field) -> Option<()> {
        let (first, rest) = self.rest.split_first()?;
        self.count_sequence(*first);
        match first {
            b'"' => self.string(field, rest),
            b'{' | b'[' => match (first, field) {
                (b'{', Field::Prompt | Field::Query | Field::Documents) => self.enter(Frame::Part),
                (b'{', Field::Sampling) => self.enter(Frame::Sampling),
                (b'[', Field::Prompt | Field::Query | Field::Documents | Field::Medium(_) | Field::Embeddings) => {
                    self.enter(Frame::List(field))
                }
                (_, Field::Json | Field::Arguments) => self.json(),
                (_, Field::Tools) => {
                    self.facts.has_tools |= !rest.trim_ascii_start().starts_with(b"]");
                    self.json()
                }
                (_, Field::Medium(medium)) => {
                    let source = self.skipped_container()?;
                    self.sink.medium(medium, source);
                    Some(())
                }
                _ => self.skipped_container().map(drop),
            },
            _ => self.literal(field),
        }?;
        if field == Field::Arguments {
            self.facts.messages += 1;
        }
        Some(())
    }

    /// Counts what stands directly in the list that is a field of the body, by the first byte of it.
    fn count_sequence(&mut self, first: u8) {
        let count = match self.frames[self.depth - 1] {
            Frame::List(Field::Prompt) if self.depth == 2 => &mut self.facts.sequences,
            Frame::List(Field::Query) if self.depth == 2 => &mut self.facts.queries,
            Frame::List(Field::Documents) if self.depth == 2 => &mut self.facts.documents,
            _ => return,
        };
        // The messages of one conversation and the ids of one prompt belong together.
        if first == b'"' || first == b'[' || (first == b'{' && self.frames[1] == Frame::List(Field::Documents)) {
            *count += 1;
        }
    }

    fn enter(&mut self, frame: Frame) -> Option<()> {
        if self.depth == MAX_DEPTH {
            return self.skipped_container().map(drop);
        }
        self.frames[self.depth] = frame;
        self.depth += 1;
        self.rest = &self.rest[1..];
        Some(())
    }

    fn string(&mut self, field: Field, from: &'a [u8]) -> Option<()> {
        if let Field::Prompt | Field::Query | Field::Documents | Field::Arguments | Field::Json = field {
            let sink = &mut *self.sink;
            let end = string::read(from, Escapes::Decoded, &mut self.gathered, |piece| sink.text(piece));
            self.sink.end_text();
            let string::End { rest, is_sound } = end?;
            if is_sound && from.len() - rest.len() >= NOTED {
                let (from, until) = (self.length - from.len(), self.length - rest.len());
                self.facts.sound_strings.push(SoundString { from, until });
            }
            self.rest = rest;
            return Some(());
        }
        let rest = string::skip(from)?;
        let raw = &from[..from.len() - rest.len() - 1];
        self.rest = rest;
        match field {
            Field::Role => {
                self.facts.messages += 1;
                self.sink.role(raw);
            }
            Field::Medium(medium) => self.sink.medium(medium, raw),
            Field::Embeddings => self.facts.embeddings_bytes += raw.len() as u64 / 4 * 3,
            _ => self.facts.set_text(field, raw),
        }
        Some(())
    }

    /// Reads a number, `true`, `false` or `null`; in a prompt also the numbers that follow.
    fn literal(&mut self, field: Field) -> Option<()> {
        if let Field::Prompt | Field::Query | Field::Documents = field
            && let [b'0'..=b'9', ..] = self.rest
        {
            self.token_ids();
            return Some(());
        }
        let end = self.rest.iter().position(|byte| is_delimiter(*byte)).unwrap_or(self.rest.len());
        let (literal, rest) = self.rest.split_at(end);
        if literal.is_empty() {
            return None;
        }
        self.rest = rest;
        self.facts.set_literal(field, literal);
        Some(())
    }

    /// Reads numbers with commas between them.
    fn token_ids(&mut self) {
        let mut rest = self.rest;
        while let [b'0'..=b'9', ..] = rest {
            let mut id = 0_u32;
            while let [digit @ b'0'..=b'9', after @ ..] = rest {
                id = id.wrapping_mul(10).wrapping_add(u32::from(digit - b'0'));
                rest = after;
            }
            self.sink.token_id(id);
            // A fraction or an exponent: vLLM refuses it.
            while let [first, after @ ..] = rest
                && !is_delimiter(*first)
            {
                rest = after;
            }
            while let [b',' | b' ' | b'\n' | b'\r' | b'\t', after @ ..] = rest {
                rest = after;
            }
        }
        self.rest = rest;
    }

    /// Skips a list or object, and returns it.
    fn skipped_container(&mut self) -> Option<&'a [u8]> {
        let container = self.rest;
        let mut depth = 0_usize;
        loop {
            let place = self.rest.iter().position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']'))?;
            let rest = &self.rest[place + 1..];
            match self.rest[place] {
                b'"' => {
                    self.rest = string::skip(rest)?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                _ => depth -= 1,
            }
            self.rest = rest;
            if depth == 0 {
                return Some(&container[..container.len() - rest.len()]);
            }
        }
    }

    /// Hands a list or object over as the text that Python's `json.dumps` makes of it, which is what chat templates
    /// write: a blank behind commas and colons, and no escapes of characters beyond ASCII.
    fn json(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            let byte = self.next_byte()?;
            let rest = &self.rest[1..];
            match byte {
                b'"' => {
                    let sink = &mut *self.sink;
                    sink.text(b"\"");
                    let rest = string::read(rest, Escapes::Kept, &mut self.gathered, |piece| sink.text(piece))?.rest;
                    sink.text(b"\"");
                    self.rest = rest;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            match byte {
                b',' => self.sink.text(b", "),
                b':' => self.sink.text(b": "),
                _ => self.sink.text(&self.rest[..1]),
            }
            self.rest = rest;
            if depth == 0 {
                self.sink.end_text();
                return Some(());
            }
        }
    }
}

/// What a name says that is written with escapes. `from` begins behind its opening quote.
fn decoded_name(from: &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(LONGEST_NAME);
    string::read(from, Escapes::Decoded, &mut string::NOTHING_GATHERED.clone(), |piece| {
        let room = LONGEST_NAME - name.len();
        name.extend_from_slice(&piece[..room.min(piece.len())]);
    })?;
    Some(name)
}

fn is_delimiter(byte: u8) -> bool {
    byte.is_ascii_whitespace() || matches!(byte, b',' | b':' | b'"' | b'{' | b'}' | b'[' | b']')
}
