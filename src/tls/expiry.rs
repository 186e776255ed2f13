//! Until when a certificate is valid.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// The end of a certificate's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiry(ASN1Time);

impl Expiry {
    /// # Errors
    /// What is wrong with the certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
        Ok(Self(parsed.validity().not_after))
    }

    /// Since 1970.
    pub(super) fn seconds(self) -> i64 {
        self.0.timestamp()
    }

    pub(super) fn is_over(self) -> bool {
        self.0 < ASN1Time::now()
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
