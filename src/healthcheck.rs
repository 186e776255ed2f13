//! Asks a running Tidegate whether it serves, for container health checks: images without a shell have no `curl`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest status line that is read, in bytes.
const MAX_STATUS_LINE: usize = 256;

/// Why a Tidegate does not count as healthy.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    /// The name does not resolve.
    #[error("{address}: cannot be resolved: {source}")]
    Resolve {
        /// What was asked for.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody listens, or nobody answers in time.
    #[error("{address}: no answer: {source}")]
    NoAnswer {
        /// The address that was tried.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The answer is another one than `200`.
    #[error("{address}: answered {status_line:?} instead of 200")]
    Status {
        /// The address that answered.
        address: SocketAddr,
        /// The first line of the answer.
        status_line: String,
    },
}

/// Runs the `healthcheck` command: exit code 0 when the Tidegate at `address` answers, else 1 with the reason on
/// standard error.
#[must_use]
pub fn run(address: &str, limit: Duration) -> ExitCode {
    match check(address, limit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(unhealthy) => {
            eprintln!("tidegate healthcheck: {unhealthy}");
            ExitCode::FAILURE
        }
    }
}

/// Sends one `GET /healthcheck` to `address` (`host:port`, IPv6 literals in brackets) and waits for a `200`, for at
/// most `limit` in all. A name with several addresses is healthy when one of them is.
///
/// # Errors
/// What the last address that was tried had to say.
pub fn check(address: &str, limit: Duration) -> Result<(), Unhealthy> {
    let deadline = Instant::now() + limit;
    let unresolved = |source| Unhealthy::Resolve { address: address.to_owned(), source };
    let mut outcome = Err(unresolved(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
    for socket_address in address.to_socket_addrs().map_err(unresolved)? {
        outcome = match ask(socket_address, address, deadline) {
            Ok(status_line) if is_200(&status_line) => return Ok(()),
            Ok(status_line) => Err(Unhealthy::Status { address: socket_address, status_line }),
            Err(source) => Err(Unhealthy::NoAnswer { address: socket_address, source }),
        };
    }
    outcome
}

/// The status line of the answer.
fn ask(address: SocketAddr, host: &str, deadline: Instant) -> io::Result<String> {
    let mut connection = TcpStream::connect_timeout(&address, left(deadline)?)?;
    connection.set_write_timeout(Some(left(deadline)?))?;
    let request = format!("GET /healthcheck HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; MAX_STATUS_LINE];
    while !answer.contains(&b'\n') && answer.len() < MAX_STATUS_LINE {
        // Set anew for each read, so that an answer in drops does not outlast the deadline.
        connection.set_read_timeout(Some(left(deadline)?))?;
        match connection.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
    }
    let line = answer.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).trim_end().to_owned())
}

fn is_200(status_line: &str) -> bool {
    let mut words = status_line.split(' ');
    words.next().is_some_and(|version| version.starts_with("HTTP/1.")) && words.next() == Some("200")
}

/// The time that is left, never zero.
fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Answers one connection with some pieces, then closes it; returns what was asked.
    fn answering(pieces: &'static [&'static str]) -> (String, thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let mut asked = [0; 1_024];
            let count = connection.read(&mut asked).unwrap();
            for piece in pieces {
                connection.write_all(piece.as_bytes()).unwrap();
            }
            String::from_utf8_lossy(&asked[..count]).into_owned()
        });
        (address, server)
    }

    #[test]
    fn a_200_is_healthy_and_the_request_is_the_one_that_tidegate_answers() {
        let (address, server) = answering(&["HTTP/1.1 2", "00 OK\r\nContent-Length: 0\r\n\r\n"]);
        check(&address, LIMIT).unwrap();
        let asked = server.join().unwrap();
        assert_eq!(asked, format!("GET /healthcheck HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"));
    }

    #[test]
    fn another_status_and_no_http_at_all_are_unhealthy() {
        let answers: [&[&str]; 4] = [
            &["HTTP/1.1 503 Service Unavailable\r\n\r\n"],
            &["SSH-2.0-OpenSSH_9.2\r\n"],
            &[],
            &["HTTP/1.1 2000 OK\r\n"],
        ];
        for pieces in answers {
            let (address, _server) = answering(pieces);
            let outcome = check(&address, LIMIT);
            assert!(matches!(outcome, Err(Unhealthy::Status { .. })), "{pieces:?}: {outcome:?}");
        }
    }

    #[test]
    fn a_closed_port_is_unhealthy() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        assert!(matches!(check(&address, LIMIT), Err(Unhealthy::NoAnswer { .. })));
    }

    #[test]
    fn a_server_that_says_nothing_is_unhealthy_when_the_time_is_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let outcome = check(&address, Duration::from_millis(50));
        let Err(Unhealthy::NoAnswer { source, .. }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn an_address_without_a_port_is_refused_with_its_text() {
        let message = check("localhost", LIMIT).unwrap_err().to_string();
        assert!(message.starts_with("localhost: cannot be resolved: "), "{message}");
    }

    #[test]
    fn the_exit_code_tells_healthy_from_unhealthy() {
        let (address, _server) = answering(&["HTTP/1.1 200 OK\r\n\r\n"]);
        assert_eq!(run(&address, LIMIT), ExitCode::SUCCESS);
        assert_eq!(run("localhost", LIMIT), ExitCode::FAILURE);
    }
}
