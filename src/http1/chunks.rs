//! A body in chunks, as strictly as RFC 9112 (section 7.1) has it.
//!
//! A proxy in front that is strict where this is lenient, or lenient in another way, would see other requests behind such a
//! body; and a chunk without a size, read as the last one, would make a whole answer of a broken one.

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
pub(crate) enum Found {
    /// The body goes on.
    More,
    /// The body ends behind this many bytes of the piece.
    End(usize),
    /// What came is no chunked body; this many bytes of the piece may be one.
    Fault(usize),
}

/// A chunked body that is being read.
#[derive(Debug)]
pub(crate) struct Chunks {
    at: At,
    /// Of the present chunk, in bytes: its size as far as it is known, then what is still to come.
    left: u64,
    /// What has come behind the last chunk, when it is kept.
    trailers: Option<Vec<u8>>,
}

/// No more than this may stand behind the last chunk, in bytes.
const MAX_TRAILERS_BYTES: usize = 64 << 10;

/// More hexadecimal digits do not fit into 64 bits.
const MAX_SIZE_DIGITS: u8 = 16;

impl Chunks {
    pub(crate) fn new() -> Self {
        Self { at: At::Size { digits: 0 }, left: 0, trailers: None }
    }

    /// Keeps what comes behind the last chunk.
    pub(crate) fn keeping_trailers() -> Self {
        Self { trailers: Some(Vec::new()), ..Self::new() }
    }

    /// What has come behind the last chunk, the final empty line included; `None` when there was nothing, or it is not kept.
    pub(crate) fn trailers(&self) -> Option<&[u8]> {
        self.trailers.as_deref().filter(|trailers| !trailers.is_empty())
    }

    /// Reads on, and takes the framing out: what was data of the body stands in front then, in so many bytes.
    pub(crate) fn decode(&mut self, piece: &mut [u8]) -> (usize, Found) {
        let (mut position, mut data_bytes) = (0, 0);
        while position < piece.len() {
            if self.at == At::Data {
                let here = piece.len() - position;
                let data = usize::try_from(self.left).map_or(here, |left| left.min(here));
                piece.copy_within(position..position + data, data_bytes);
                data_bytes += data;
                position += data;
                self.left -= data as u64;
                if self.left == 0 {
                    self.at = At::DataEnd { has_return: false };
                }
                continue;
            }
            let byte = piece[position];
            let Some(next) = self.step(byte) else { return (data_bytes, Found::Fault(position)) };
            if !self.keep(byte) {
                return (data_bytes, Found::Fault(position));
            }
            position += 1;
            self.at = next;
            if next == At::End {
                return (data_bytes, Found::End(position));
            }
        }
        (data_bytes, Found::More)
    }

    /// Keeps a byte that stands behind the last chunk; false when that are too many.
    fn keep(&mut self, byte: u8) -> bool {
        let Some(trailers) = &mut self.trailers else { return true };
        match self.at {
            // The empty line that ends everything is no trailer: nothing is kept where there is nothing else.
            At::Trailer { is_empty: true } if byte == b'\r' && trailers.is_empty() => true,
            At::TrailerEnd { is_empty: true } if trailers.is_empty() => true,
            At::Trailer { .. } | At::TrailerEnd { .. } => {
                let fits = trailers.len() < MAX_TRAILERS_BYTES;
                if fits {
                    trailers.push(byte);
                }
                fits
            }
            _ => true,
        }
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

    impl Chunks {
        fn read(&mut self, piece: &[u8]) -> Found {
            self.decode(&mut piece.to_vec()).1
        }
    }

    fn read(body: &[u8]) -> Found {
        Chunks::new().read(body)
    }

    /// The data of a whole body that comes in two pieces.
    fn data(body: &[u8], cut: usize) -> Vec<u8> {
        let (first, second) = body.split_at(cut.min(body.len()));
        let (mut chunks, mut data) = (Chunks::new(), Vec::new());
        for piece in [first, second] {
            let mut piece = piece.to_vec();
            let (length, _) = chunks.decode(&mut piece);
            data.extend_from_slice(&piece[..length]);
        }
        data
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
            assert!(matches!(read(body.as_bytes()), Found::Fault(_)), "{body:?}");
        }
    }

    #[test]
    fn a_fault_is_at_the_first_byte_that_must_not_be_there() {
        for (body, at) in [("\r\n\r\n", 0), ("2\r\nabc", 5), ("0\r\n\n", 3), ("5;\nhello", 2), ("0\r\nx: \0", 6)] {
            assert_eq!(read(body.as_bytes()), Found::Fault(at), "{body:?}");
        }
    }

    #[test]
    fn trailers_are_kept_when_that_is_asked_for() {
        for (body, trailers) in
            [("1\r\n\r\r\n0\r\n\r\n", None), ("0;q\r\nx: y\r\nz:\tu\r\n\r\n", Some("x: y\r\nz:\tu\r\n\r\n"))]
        {
            let mut chunks = Chunks::keeping_trailers();
            assert_eq!(chunks.read(format!("{body}x: y").as_bytes()), Found::End(body.len()));
            assert_eq!(chunks.trailers(), trailers.map(str::as_bytes));
            let mut chunks = Chunks::new();
            assert_eq!(chunks.read(body.as_bytes()), Found::End(body.len()));
            assert_eq!(chunks.trailers(), None);
        }
    }

    #[test]
    fn trailers_beyond_the_bound_are_a_fault() {
        let body = |length: usize| format!("0\r\nx: {}\r\n\r\n", "y".repeat(length - "x: \r\n\r\n".len()));
        let read = |body: String| Chunks::keeping_trailers().read(body.as_bytes());
        assert_eq!(read(body(MAX_TRAILERS_BYTES)), Found::End(3 + MAX_TRAILERS_BYTES));
        assert_eq!(read(body(MAX_TRAILERS_BYTES + 1)), Found::Fault(3 + MAX_TRAILERS_BYTES));
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
                    Found::Fault(at) => Found::Fault(first.len() + at),
                    Found::More => Found::More,
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
            let sent = chunks.concat().into_bytes();
            for cut in [0, 1, length / 2, length] {
                prop_assert_eq!(&data(body.as_bytes(), cut), &sent);
            }
            prop_assert_eq!(read((body + &rest).as_bytes()), Found::End(length));
        }
    }
}
