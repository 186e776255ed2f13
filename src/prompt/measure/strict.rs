//! Reads JSON as strictly as JSON is defined, and no further than it is JSON.
//!
//! Text that is no UTF-8 and lone halves of surrogate pairs are let pass within values: what does not have to be decoded
//! is not looked at.

use std::borrow::Cow;

use super::{BYTE_ORDER_MARK, SoundString};
use crate::prompt::content::skip_sound;

/// A place in a text.
pub(super) struct Strict<'a, 'k> {
    rest: &'a [u8],
    /// Bytes of the whole text.
    length: usize,
    /// Strings that are known to be sound, from the next one on.
    known: &'k [SoundString],
}

impl<'a, 'k> Strict<'a, 'k> {
    /// The beginning of a text, behind a byte order mark.
    pub(super) fn new(text: &'a [u8], known: &'k [SoundString]) -> Self {
        Self { rest: text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text), length: text.len(), known }
    }

    /// Reads an object, and hands over the name of each field with what gives the text of its value; `None` where it
    /// breaks off, is no JSON or `field` says so.
    pub(super) fn read_object(
        &mut self,
        mut field: impl FnMut(&[u8], &dyn Fn() -> Option<&'a str>) -> Option<()>,
    ) -> Option<()> {
        self.expect(b'{')?;
        if self.next_byte()? == b'}' {
            return Some(());
        }
        loop {
            self.expect(b'"')?;
            let name = self.name()?;
            self.expect(b':')?;
            self.next_byte()?;
            let value = self.rest;
            self.skip_value()?;
            let value = &value[..value.len() - self.rest.len()];
            field(&name, &|| std::str::from_utf8(value).ok())?;
            match self.next_byte()? {
                b'}' => return Some(()),
                b',' => self.advance(),
                _ => return None,
            }
        }
    }

    /// The next byte that is not white space, which stays where it is.
    fn next_byte(&mut self) -> Option<u8> {
        while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
        self.rest.first().copied()
    }

    /// Goes past a byte that is there.
    fn advance(&mut self) {
        self.rest = &self.rest[1..];
    }

    /// Goes past white space and this byte.
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next_byte()? == byte).then(|| self.advance())
    }

    /// Reads the name of a field, behind its opening quote.
    fn name(&mut self) -> Option<Cow<'a, [u8]>> {
        let from = self.rest;
        self.rest = skip_sound(from)?;
        let name = &from[..from.len() - self.rest.len() - 1];
        if name.is_ascii() && !name.contains(&b'\\') {
            return Some(Cow::Borrowed(name));
        }
        let name = std::str::from_utf8(name).ok()?;
        if name.contains('\\') {
            // Not every escape can be part of a text.
            let decoded: String = serde_json::from_str(&format!("\"{name}\"")).ok()?;
            Some(Cow::Owned(decoded.into_bytes()))
        } else {
            Some(Cow::Borrowed(name.as_bytes()))
        }
    }

    /// Goes past a value.
    fn skip_value(&mut self) -> Option<()> {
        let mut within = Nesting::default();
        loop {
            let mut is_begun = false;
            match self.next_byte()? {
                b'"' => {
                    self.advance();
                    self.skip_string()?;
                }
                first @ (b'{' | b'[') => {
                    self.advance();
                    within.enter(first == b'{');
                    is_begun = true;
                }
                b't' => self.skip_word(b"true")?,
                b'f' => self.skip_word(b"false")?,
                b'n' => self.skip_word(b"null")?,
                _ => self.skip_number()?,
            }
            // What ends with this value, up to the next one.
            loop {
                let Some(is_object) = within.is_object() else { return Some(()) };
                match self.next_byte()? {
                    b',' if !is_begun => {
                        self.advance();
                        break;
                    }
                    b'}' if is_object => {}
                    b']' if !is_object => {}
                    _ if is_begun => break,
                    _ => return None,
                }
                self.advance();
                within.leave();
                is_begun = false;
            }
            if within.is_object() == Some(true) {
                self.expect(b'"')?;
                self.rest = skip_sound(self.rest)?;
                self.expect(b':')?;
            }
        }
    }

    /// Goes past a string, from behind its opening quote.
    fn skip_string(&mut self) -> Option<()> {
        let from = self.length - self.rest.len();
        while let [known, later @ ..] = self.known
            && known.from <= from
        {
            self.known = later;
            if known.from == from {
                self.rest = self.rest.get(known.until - from..)?;
                return Some(());
            }
        }
        self.rest = skip_sound(self.rest)?;
        Some(())
    }

    fn skip_word(&mut self, word: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    fn skip_number(&mut self) -> Option<()> {
        if self.rest.first() == Some(&b'-') {
            self.advance();
        }
        let from = self.rest;
        let digits = self.skip_digits()?;
        // There is no other digit behind a zero in front.
        if from[0] == b'0' && digits > 1 {
            return None;
        }
        if self.rest.first() == Some(&b'.') {
            self.advance();
            self.skip_digits()?;
        }
        if let Some(b'e' | b'E') = self.rest.first() {
            self.advance();
            if let Some(b'+' | b'-') = self.rest.first() {
                self.advance();
            }
            self.skip_digits()?;
        }
        Some(())
    }

    /// Goes past one digit or more: how many there were.
    fn skip_digits(&mut self) -> Option<usize> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.rest = &self.rest[digits..];
        (digits > 0).then_some(digits)
    }
}

/// What a value stands within: lists and objects, a bit for each.
#[derive(Default)]
struct Nesting {
    depth: usize,
    /// The innermost ones, the last of them lowest.
    innermost: u64,
    /// Those around, by 64.
    around: Vec<u64>,
}

impl Nesting {
    const BITS: usize = u64::BITS as usize;

    fn enter(&mut self, is_object: bool) {
        if self.depth > 0 && self.depth.is_multiple_of(Self::BITS) {
            self.around.push(self.innermost);
        }
        self.innermost = self.innermost << 1 | u64::from(is_object);
        self.depth += 1;
    }

    fn leave(&mut self) {
        self.depth -= 1;
        self.innermost >>= 1;
        if self.depth > 0 && self.depth.is_multiple_of(Self::BITS) {
            self.innermost = self.around.pop().unwrap_or_default();
        }
    }

    /// Whether the innermost one is an object; `None` when there is none.
    fn is_object(&self) -> Option<bool> {
        (self.depth > 0).then_some(self.innermost & 1 == 1)
    }
}
