//! Telling the outside that this process serves: systemd, and whoever started it as a successor.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// What a successor prints on standard output when it serves.
pub(crate) const SERVES: &str = "serves";

/// Says that this process listens. `took_over`: it is the successor of another process.
pub(super) fn announce(took_over: bool) {
    let mut message = "READY=1".to_owned();
    if took_over {
        message = format!("MAINPID={}\n{message}", std::process::id());
        // Nobody may listen; the message is for `--replace`.
        writeln!(io::stdout(), "{SERVES}").ok();
    }
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = notify(&socket, &message)
    {
        log::warn!("systemd could not be told that Tidegate serves, at {}: {error}", socket.display());
    }
}

/// Sends a message of systemd's notification protocol (`sd_notify(3)`).
fn notify(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn messages_reach_a_socket_with_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        notify(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");
    }

    #[test]
    fn messages_reach_an_abstract_socket() {
        let name = format!("tidegate-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        notify(OsStr::new(&format!("@{name}")), "READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");
    }

    #[test]
    fn a_socket_that_is_not_there_is_an_error() {
        assert_eq!(notify(OsStr::new("/nowhere/notify"), "READY=1").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
