//! A file with one `address:port` a line. Empty lines and what follows a `#` do not count.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use pingora::lb::Backend;
use pingora::lb::discovery::ServiceDiscovery;
use pingora::{Error, ErrorType, Result};

use crate::settled::read_settled;

/// The addresses in a file.
#[derive(Debug)]
pub struct AddressFile {
    path: PathBuf,
}

impl AddressFile {
    /// The addresses in the file at a path, which need not be there yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

#[async_trait]
impl ServiceDiscovery for AddressFile {
    /// A file without addresses is good: there are no servers.
    async fn discover(&self) -> Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
        let read = read_settled(&self.path).await;
        let text =
            read.map_err(|error| Error::explain(ErrorType::FileReadError, format!("cannot be read ({error})")))?;
        backends(addresses(&String::from_utf8_lossy(&text))?)
    }
}

/// The addresses in a text.
fn addresses(text: &str) -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        match line.parse::<SocketAddr>() {
            Ok(address) if address.port() > 0 => addresses.push(address),
            _ => {
                let line: String = line.chars().filter(|c| !c.is_control()).take(60).collect();
                let text = format!(
                    "line {}: found {line}, expected an IP address and a port such as 10.0.0.5:8100 or [fd00::5]:8100",
                    index + 1
                );
                return Error::e_explain(ErrorType::FileReadError, text);
            }
        }
    }
    Ok(addresses)
}

/// Addresses in the form of `pingora-load-balancing`: a set, sorted by address, all of them enabled.
pub(super) fn backends(addresses: Vec<SocketAddr>) -> Result<(BTreeSet<Backend>, HashMap<u64, bool>)> {
    let backends: Result<BTreeSet<Backend>> =
        addresses.into_iter().map(|address| Backend::new(&address.to_string())).collect();
    Ok((backends?, HashMap::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_lines_are_no_addresses() {
        let text = "# servers\n10.0.0.2:8000 # the big one\n\n  [fd00::5]:8000\n10.0.0.1:8000\r\n";
        let found = addresses(text).unwrap();
        assert_eq!(found, ["10.0.0.2:8000", "[fd00::5]:8000", "10.0.0.1:8000"].map(|text| text.parse().unwrap()));
        assert_eq!(addresses("").unwrap(), []);
    }

    #[test]
    fn a_bad_line_is_named_and_none_of_the_file_is_taken() {
        for line in ["gpu-1:8000", "10.0.0.1", "10.0.0.1:0", "10.0.0.256:80", "10.0.0.1:80 10.0.0.2:80"] {
            let error = addresses(&format!("10.0.0.1:8000\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains(&format!("line 2: found {line}, expected an IP address")), "{error}");
        }
    }
}
