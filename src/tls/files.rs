//! Reading PEM files, once and again.

use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::watch::Refresh;

/// Far more than any bundle of certificates has, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Which setting a problem is with. Named as the key in the configuration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The certificates of the authorities that are trusted.
    Ca,
    /// Our certificate and its chain.
    Certificate,
    /// Our private key.
    Key,
    /// The name that a certificate must have.
    ServerName,
}

/// Why TLS files cannot be used. Says what would be accepted, and holds nothing of a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Unusable {
    /// The setting that is to blame.
    pub part: Part,
    /// What is wrong, as a clause for the operator.
    pub text: String,
}

impl Unusable {
    pub(super) fn new(part: Part, text: impl Into<String>) -> Self {
        Self { part, text: text.into() }
    }
}

/// All certificates of a file. At least one.
pub(super) fn certificates(part: Part, path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    let refused = |why: String| Unusable::new(part, format!("{} {why}, expected certificates in PEM", path.display()));
    let found = found.map_err(|error| refused(format!("is no PEM file ({error})")))?;
    if found.is_empty() { Err(refused("holds no certificate".to_owned())) } else { Ok(found) }
}

/// The first private key of a file.
pub(super) fn private_key(path: &Path, text: &[u8]) -> Result<PrivateKeyDer<'static>, Unusable> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| {
        let why = match error {
            pem::Error::NoItemsFound if text.windows(9).any(|word| word == b"ENCRYPTED") => "is encrypted".to_owned(),
            pem::Error::NoItemsFound => "holds no private key".to_owned(),
            error => format!("is no PEM file ({error})"),
        };
        Unusable::new(Part::Key, format!("{} {why}, expected a private key in PEM without a password", path.display()))
    })
}

fn read(part: Part, path: &Path) -> Result<Vec<u8>, Unusable> {
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut text)).map_err(|error| {
        Unusable::new(part, format!("{} cannot be read ({error}), expected a readable PEM file", path.display()))
    })?;
    Ok(text)
}

/// The contents of files, in the order of the paths.
pub(super) struct Contents {
    pub(super) texts: Vec<Vec<u8>>,
    /// Differs when the contents do.
    pub(super) fingerprint: u64,
}

type Make<T> = Box<dyn Fn(&Contents) -> Result<T, Unusable> + Send + Sync>;

/// Something that is made from files, and made anew when they have changed.
pub(super) struct Reloading<T> {
    paths: Vec<(Part, PathBuf)>,
    make: Make<T>,
    current: RwLock<Arc<T>>,
    /// Of the contents, or of the failure to read them, that were tried last.
    tried: Mutex<u64>,
    /// Whether those could not be used. Relaxed: nothing is published through it.
    is_refused: AtomicBool,
}

impl<T> fmt::Debug for Reloading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<T> Reloading<T> {
    /// Reads the files, which may block.
    pub(super) fn load(paths: Vec<(Part, PathBuf)>, make: Make<T>) -> Result<Self, Unusable> {
        let contents = contents(&paths)?;
        let current = RwLock::new(Arc::new(make(&contents)?));
        let tried = Mutex::new(contents.fingerprint);
        Ok(Self { paths, make, current, tried, is_refused: AtomicBool::new(false) })
    }

    pub(super) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read())
    }

    /// Whether the files were last found to be such that they cannot be used.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Reads the files again, which may block. What is broken is reported once and changes nothing.
    pub(super) fn refresh(&self) -> Refresh {
        let contents = contents(&self.paths);
        let fingerprint = match &contents {
            Ok(contents) => contents.fingerprint,
            Err(unusable) => fingerprint(&unusable.text),
        };
        // Held to the end, so that two refreshes do not overtake each other.
        let mut tried = self.tried.lock();
        if *tried == fingerprint {
            return Refresh::Unchanged;
        }
        *tried = fingerprint;
        let made = contents.and_then(|contents| (self.make)(&contents));
        self.is_refused.store(made.is_err(), Ordering::Relaxed);
        match made {
            Ok(made) => {
                *self.current.write() = Arc::new(made);
                Refresh::Renewed
            }
            Err(unusable) => Refresh::Refused(unusable),
        }
    }
}

fn contents(paths: &[(Part, PathBuf)]) -> Result<Contents, Unusable> {
    let texts = paths.iter().map(|(part, path)| read(*part, path)).collect::<Result<Vec<_>, _>>()?;
    let fingerprint = fingerprint(&texts);
    Ok(Contents { texts, fingerprint })
}

fn fingerprint(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
