//! What the admin listener says: one stream of events, and answers to what is asked of it.
//!
//! The stream is read from a socket: it never ends, and [`Remote`]'s client knows limits for whole answers only, not for
//! silence within one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::remote::{Remote, RemoteError};

/// The status comes twice a second; after so much silence the connection counts as dead.
const SILENCE: Duration = Duration::from_secs(8);

/// How long a connection, and the header of an answer, may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pause before a connection is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// What the feed has to tell.
#[derive(Debug)]
pub(super) enum News {
    /// Something has happened: the event's name and its data.
    Event(String, String),
    /// The connection is lost, for this reason.
    Lost(String),
    /// What came of something that the user wanted.
    Said(String),
}

/// A stream of events that is open.
pub(super) type Events = BufReader<Chunked>;

/// The admin listener of a running instance.
#[derive(Debug, Clone)]
pub(super) struct Listener(Remote);

impl Listener {
    pub(super) fn new(remote: Remote) -> Self {
        Self(remote)
    }

    pub(super) fn admin(&self) -> &str {
        self.0.admin()
    }

    /// Begins to watch.
    pub(super) fn watch(&self) -> Result<Events, RemoteError> {
        let admin = || self.admin().to_owned();
        let no_answer = |error: io::Error| RemoteError::NoAnswer { admin: admin(), error: error.to_string() };
        let connection = self.ask().map_err(no_answer)?;
        let mut answer = BufReader::new(connection);
        match status(&mut answer).map_err(no_answer)? {
            200 => {}
            401 => return Err(RemoteError::Token { admin: admin() }),
            status => {
                let message = "to GET /events; is it of this version?".to_owned();
                return Err(RemoteError::Refused { admin: admin(), status, message });
            }
        }
        answer.get_ref().set_read_timeout(Some(SILENCE)).map_err(no_answer)?;
        Ok(BufReader::new(Chunked { inner: answer, left: 0, is_first: true }))
    }

    /// Tells all that happens, from a stream that is open and from those after it, while somebody listens.
    pub(super) fn follow(&self, mut events: Events, to: &Sender<News>) {
        loop {
            let mut lost = tell(&mut events, to);
            loop {
                if to.send(News::Lost(lost)).is_err() {
                    return;
                }
                thread::park_timeout(PAUSE);
                match self.watch() {
                    Ok(again) => {
                        events = again;
                        break;
                    }
                    Err(error) => lost = error.to_string(),
                }
            }
        }
    }

    /// Drains or undrains a server; returns what came of it.
    pub(super) fn change(&self, verb: &str, server: &str) -> String {
        let path = format!("/{verb}?server={}", utf8_percent_encode(server, NON_ALPHANUMERIC));
        match self.0.post(&path, &[]) {
            Ok(_) if verb == "drain" => format!("{server} gets nothing new"),
            Ok(_) => format!("{server} takes requests again"),
            Err(error) => error.to_string(),
        }
    }

    /// Asks for events, on a connection of its own.
    fn ask(&self) -> io::Result<TcpStream> {
        let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "this name has no address"));
        for address in self.admin().to_socket_addrs()? {
            outcome = TcpStream::connect_timeout(&address, PATIENCE);
            if outcome.is_ok() {
                break;
            }
        }
        let mut connection = outcome?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        let token = self.0.token().map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!("GET /events HTTP/1.1\r\nHost: {}\r\n{token}Connection: close\r\n\r\n", self.admin());
        connection.write_all(request.as_bytes())?;
        Ok(connection)
    }
}

/// Reads the header of an answer.
fn status(answer: &mut impl BufRead) -> io::Result<u16> {
    let mut line = String::new();
    answer.read_line(&mut line)?;
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is no HTTP/1.1"))?;
    loop {
        line.clear();
        if answer.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line.trim_end().is_empty() {
            return Ok(status);
        }
    }
}

/// Tells what a stream brings until it ends; returns why it did.
fn tell(events: &mut impl BufRead, to: &Sender<News>) -> String {
    let (mut name, mut line) = (String::new(), String::new());
    loop {
        line.clear();
        match events.read_line(&mut line) {
            Ok(0) => return "the connection was closed".to_owned(),
            Err(error) => return error.to_string(),
            Ok(_) => {}
        }
        let text = line.trim_end_matches('\n');
        if let Some(event) = text.strip_prefix("event: ") {
            event.clone_into(&mut name);
        } else if let Some(data) = text.strip_prefix("data: ")
            && to.send(News::Event(name.clone(), data.to_owned())).is_err()
        {
            return String::new();
        }
    }
}

/// A body that comes in chunks.
#[derive(Debug)]
pub(super) struct Chunked {
    inner: BufReader<TcpStream>,
    /// Bytes that are left of this chunk.
    left: u64,
    is_first: bool,
}

impl Read for Chunked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let mut line = String::new();
            if !self.is_first {
                self.inner.read_line(&mut line)?;
                line.clear();
            }
            self.is_first = false;
            self.inner.read_line(&mut line)?;
            let digits = line.trim_end();
            // The connection has ended where a chunk would begin.
            if digits.is_empty() {
                return Ok(0);
            }
            self.left = u64::from_str_radix(digits, 16)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the answer is not chunked"))?;
            if self.left == 0 {
                return Ok(0);
            }
        }
        let count = self.inner.by_ref().take(self.left).read(buffer)?;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    fn at(admin: &str) -> Listener {
        Listener::new(Remote::new(admin, None).unwrap())
    }

    /// Answers connections with these bytes, one after the other; returns what was asked.
    fn answering(answers: &'static [&'static str]) -> (Listener, thread::JoinHandle<Vec<String>>) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let listener = at(&socket.local_addr().unwrap().to_string());
        let server = thread::spawn(move || {
            let ask = |answer: &&str| {
                let (mut connection, _) = socket.accept().unwrap();
                let mut asked = [0; 1_024];
                let count = connection.read(&mut asked).unwrap();
                connection.write_all(answer.as_bytes()).unwrap();
                String::from_utf8_lossy(&asked[..count]).into_owned()
            };
            answers.iter().map(ask).collect()
        });
        (listener, server)
    }

    #[test]
    fn events_are_told_from_one_connection_and_the_next() {
        let (listener, server) = answering(&[
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n17\r\nevent: hello\ndata: {}\n\n\r\n\
             b\r\nevent: stat\r\n10\r\nus\ndata: {\"a\":1}\r\n2\r\n\n\n\r\n0\r\n\r\n",
            "HTTP/1.1 503 No\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n17\r\nevent: again\ndata: {}\n\n\r\n",
        ]);
        let (sender, news) = mpsc::channel();
        let events = listener.watch().unwrap();
        let feed = thread::spawn(move || listener.follow(events, &sender));
        let mut told = Vec::new();
        for news in &news {
            let line = match news {
                News::Event(name, data) => format!("{name} {data}"),
                News::Lost(why) | News::Said(why) => why,
            };
            told.push(line);
            if told.len() == 5 {
                break;
            }
        }
        assert_eq!(told[..3], ["hello {}", "status {\"a\":1}", "the connection was closed"]);
        assert!(told[3].contains("answers 503: to GET /events"), "{told:?}");
        assert_eq!(told[4], "again {}");
        let asked = server.join().unwrap();
        assert!(asked[0].starts_with("GET /events HTTP/1.1\r\n"), "{asked:?}");
        drop(news);
        feed.join().unwrap();
    }

    #[test]
    fn a_listener_that_refuses_is_told_from_one_that_is_none() {
        let (listener, _server) = answering(&["HTTP/1.1 401 No\r\n\r\n", "SSH-2.0\r\n"]);
        assert!(listener.watch().unwrap_err().to_string().contains("--token-env"));
        assert!(listener.watch().unwrap_err().to_string().contains("this is no HTTP/1.1"));
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert!(at(&closed).watch().unwrap_err().to_string().contains("--admin HOST:PORT"));
    }

    #[test]
    fn a_change_names_the_server_and_tells_what_came_of_it() {
        let (listener, server) = answering(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
            "HTTP/1.1 409 No\r\nConnection: close\r\n\r\n{\"error\":{\"message\":\"the configuration drains it\"}}",
        ]);
        assert_eq!(listener.change("drain", "[::1]:8000"), "[::1]:8000 gets nothing new");
        let refused = listener.change("undrain", "gpu");
        assert!(refused.ends_with("answers 409: the configuration drains it"), "{refused}");
        assert!(server.join().unwrap()[0].starts_with("POST /drain?server=%5B%3A%3A1%5D%3A8000 HTTP/1.1\r\n"));
    }
}
