//! Limits on the size of a request's header.

use super::Denial;

/// How large a request's header may be. Pingora 0.9.1 has bounds of its own above these: 65,534 bytes of target,
/// 256 fields and 1 MiB in HTTP/1; 64 KiB in HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderLimits {
    /// The whole header, in bytes: request line and fields with their line ends.
    pub header_bytes: usize,
    /// Number of fields.
    pub fields: usize,
    /// The request target (path and query), in bytes.
    pub uri_bytes: usize,
}

impl Default for HeaderLimits {
    fn default() -> Self {
        Self { header_bytes: 128 << 10, fields: 128, uri_bytes: 16 << 10 }
    }
}

impl HeaderLimits {
    /// Judges a header by its measures.
    ///
    /// # Errors
    /// The first limit that is exceeded.
    pub fn judge(&self, header_bytes: usize, fields: usize, uri_bytes: usize) -> Result<(), Denial> {
        if uri_bytes > self.uri_bytes {
            return Err(Denial::UriTooLong { limit_bytes: self.uri_bytes });
        }
        if header_bytes > self.header_bytes {
            return Err(Denial::HeaderTooLarge { limit_bytes: self.header_bytes });
        }
        if fields > self.fields {
            return Err(Denial::TooManyFields { limit: self.fields });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_at_the_limits_is_accepted_and_one_beyond_any_of_them_is_not() {
        let limits = HeaderLimits { header_bytes: 100, fields: 10, uri_bytes: 50 };
        assert_eq!(limits.judge(100, 10, 50), Ok(()));
        assert_eq!(limits.judge(101, 10, 50), Err(Denial::HeaderTooLarge { limit_bytes: 100 }));
        assert_eq!(limits.judge(100, 11, 50), Err(Denial::TooManyFields { limit: 10 }));
        assert_eq!(limits.judge(101, 11, 51), Err(Denial::UriTooLong { limit_bytes: 50 }));
    }
}
