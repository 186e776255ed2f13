//! A request body in chunks, as strictly as RFC 9112 (section 7.1) has it.
//!
//! Pingora 0.9.1 reads over two faults: a chunk without a size counts as the last one, and a chunk extension may hold a
//! lone line feed. A proxy in front that is strict, or lenient in another way, would see other requests behind such a body.

/// Where in a chunked body the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Within the digits of a size.
    Size {
        digits: u8,
    },
    /// Blanks behind a size.
    BehindSize,
    Extension,
    /// Behind the carriage return that ends a size's line.
    SizeEnd,
    Data,
    /// Behind the data, or behind the carriage return there.
    DataEnd {
        has_return: bool,
    },
    /// Within a trailer, which has begun or not.
    Trailer {
        is_empty: bool,
    },
    /// Behind the carriage return that ends a trailer, or the whole when it is empty.
    TrailerEnd {
        is_empty: bool,
    },
    End,
}

/// What was found in a piece of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The body goes on.
    More,
    /// The body ends behind this many bytes of the piece.
    End(usize),
    /// What came is no chunked body.
    Fault,
}

/// A chunked body that is being read.
#[derive(Debug)]
pub(super) struct Chunks {
    at: At,
    /// Of the present chunk, in bytes: its size as far as it is known, then what is still to come.
    left: u64,
}

/// More hexadecimal digits do not fit into 64 bits.
const MAX_SIZE_DIGITS: u8 = 16;

impl Chunks {
    pub(super) fn new() -> Self {
        Self { at: At::Size { digits: 0 }, left: 0 }
    }

    /// Reads on.
    pub(super) fn read(&mut self, piece: &[u8]) -> Found {
        let mut position = 0;
        while position < piece.len() {
            if self.at == At::Data {
                let here = piece.len() - position;
                let data = usize::try_from(self.left).map_or(here, |left| left.min(here));
                position += data;
                self.left -= data as u64;
                if self.left == 0 {
                    self.at = At::DataEnd { has_return: false };
                }
                continue;
            }
            let Some(next) = self.step(piece[position]) else { return Found::Fault };
            position += 1;
            self.at = next;
            if next == At::End {
                return Found::End(position);
            }
        }
        Found::More
    }

    /// Where the byte leads; `None` when it must not be here.
    fn step(&mut self, byte: u8) -> Option<At> {
        match (self.at, byte) {
            (At::Size { digits }, _) if byte.is_ascii_hexdigit() => {
                // Zeros in front are no matter.
                let digits = if self.left == 0 { 1 } else { digits + 1 };
                let digit = u64::from(char::from(byte).to_digit(16)?);
                self.left = (self.left << 4) | digit;
                (digits <= MAX_SIZE_DIGITS).then_some(At::Size { digits })
            }
            (At::Size { digits: 0 }, _) => None,
            (At::Size { .. } | At::BehindSize, b' ' | b'\t') => Some(At::BehindSize),
            (At::Size { .. } | At::BehindSize, b';') => Some(At::Extension),
            (At::Size { .. } | At::BehindSize | At::Extension, b'\r') => Some(At::SizeEnd),
            (At::Extension, _) if is_text(byte) => Some(At::Extension),
            (At::SizeEnd, b'\n') if self.left == 0 => Some(At::Trailer { is_empty: true }),
            (At::SizeEnd, b'\n') => Some(At::Data),
            (At::DataEnd { has_return: false }, b'\r') => Some(At::DataEnd { has_return: true }),
            (At::DataEnd { has_return: true }, b'\n') => Some(At::Size { digits: 0 }),
            (At::Trailer { is_empty }, b'\r') => Some(At::TrailerEnd { is_empty }),
            (At::Trailer { .. }, _) if is_text(byte) => Some(At::Trailer { is_empty: false }),
            (At::TrailerEnd { is_empty: true }, b'\n') => Some(At::End),
            (At::TrailerEnd { is_empty: false }, b'\n') => Some(At::Trailer { is_empty: true }),
            _ => None,
        }
    }
}

/// Whether a byte may stand in a line: everything but control characters, tabs excepted.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(body: &[u8]) -> Found {
        Chunks::new().read(body)
    }

    #[test]
    fn a_body_ends_behind_its_last_line() {
        let bodies = [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "000000000000000000005\r\nhello\r\n0000\r\n\r\n",
            "a;x=\"y z\";q\r\n0123456789\r\n0;x\r\n\r\n",
            "2 \t;x\r\n\r\n\r\n0 \r\n\r\n",
            "2\r\nab\r\n0\r\nx: y\r\nz:\tu\r\n\r\n",
        ];
        for body in bodies {
            assert_eq!(read(format!("{body}GET /").as_bytes()), Found::End(body.len()), "{body:?}");
            assert_eq!(read(&body.as_bytes()[..body.len() - 1]), Found::More, "{body:?}");
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_a_fault() {
        let bodies = [
            "\r\n\r\n",
            ";x\r\n\r\n",
            " 5\r\nhello\r\n",
            "5\nhello\r\n",
            "5\rhello",
            "5;\nhello",
            "5;a\rb\r\n",
            "5;\0\r\n",
            "+5\r\n",
            "0x5\r\n",
            "5 5\r\n",
            "g\r\n",
            "10000000000000000\r\n",
            "2\r\nabc",
            "2\r\nab\n",
            "2\r\nab\r\r",
            "2\r\nab\r\n\r\n",
            "0\r\n\n",
            "0\r\n\r\r",
            "0\r\nx: y\n",
            "0\r\nx: \0y\r\n",
            "0\n\r\n",
        ];
        for body in bodies {
            assert_eq!(read(body.as_bytes()), Found::Fault, "{body:?}");
        }
    }

    #[test]
    fn the_largest_size_is_read() {
        assert_eq!(read(b"ffffffffffffffff\r\nxyz"), Found::More);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(body in "[0-3;x \t\r\n]{0,40}", cut in 0..40_usize) {
            let body = body.as_bytes();
            let (first, second) = body.split_at(cut.min(body.len()));
            let mut chunks = Chunks::new();
            let in_pieces = match chunks.read(first) {
                Found::More => match chunks.read(second) {
                    Found::End(length) => Found::End(first.len() + length),
                    found => found,
                },
                found => found,
            };
            prop_assert_eq!(in_pieces, read(body));
        }

        #[test]
        fn what_was_put_into_chunks_ends_where_it_ends(chunks in prop::collection::vec("[^\0]{1,20}", 0..5), rest in ".{0,9}") {
            let mut body: String = chunks.iter().map(|chunk| format!("{:X}\r\n{chunk}\r\n", chunk.len())).collect();
            body += "0\r\n\r\n";
            let length = body.len();
            prop_assert_eq!(read((body + &rest).as_bytes()), Found::End(length));
        }
    }
}
