//! Servers that do everything servers are known to do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tokio::time::sleep;

use super::book::{Book, Ongoing};
use super::clients::{Bodies, Wish};
use crate::support::*;

/// What a server does with a request.
#[derive(Debug, Clone, Copy)]
enum Mood {
    Good,
    Slow,
    Closes,
    Resets,
    /// With a status that is tried elsewhere.
    Refuses(u16),
    /// With an error that goes to the client.
    Fails(u16),
    /// It says that it is shutting down.
    Leaves,
    ClosesBehindTheHeader,
    ErrsInTheFirstEvent,
    BreaksOff,
    ResetsInTheBody,
    /// It falls silent in the middle of the body.
    Stalls,
    Hangs,
    HangsBehindTheHeader,
}

/// Good ones are more frequent, so that servers also come back.
const MOODS: [Mood; 21] = [
    Mood::Good,
    Mood::Good,
    Mood::Good,
    Mood::Good,
    Mood::Slow,
    Mood::Slow,
    Mood::Closes,
    Mood::Resets,
    Mood::Refuses(502),
    Mood::Refuses(503),
    Mood::Refuses(504),
    Mood::Fails(429),
    Mood::Fails(500),
    Mood::Leaves,
    Mood::ClosesBehindTheHeader,
    Mood::ErrsInTheFirstEvent,
    Mood::BreaksOff,
    Mood::ResetsInTheBody,
    Mood::Stalls,
    Mood::Hangs,
    Mood::HangsBehindTheHeader,
];

/// What a server answers to probes.
#[derive(Debug, Clone, Copy)]
enum Health {
    Good,
    Answers(u16),
    Resets,
    Silent,
}

const HEALTH: [Health; 8] = [
    Health::Good,
    Health::Good,
    Health::Good,
    Health::Good,
    Health::Answers(503),
    Health::Answers(500),
    Health::Resets,
    Health::Silent,
];

#[derive(Debug, Clone, Copy)]
struct Manner {
    mood: Mood,
    health: Health,
}

const GOOD: Manner = Manner { mood: Mood::Good, health: Health::Good };

/// A server at one address, which may be up or down.
pub(super) struct Server {
    pub(super) number: usize,
    pub(super) address: SocketAddr,
    book: Book,
    bodies: Arc<Bodies>,
    manner: Arc<Mutex<Manner>>,
    listening: Option<Backend>,
    /// Dropping it ends all connections of the server, as the end of a process does.
    life: watch::Sender<()>,
}

impl Server {
    pub(super) async fn start(number: usize, book: &Book, bodies: &Arc<Bodies>) -> Self {
        let [address] = Loopback::new().free_ports();
        let manner = Arc::new(Mutex::new(GOOD));
        let (book, bodies) = (book.clone(), Arc::clone(bodies));
        let mut server = Self { number, address, book, bodies, manner, listening: None, life: watch::Sender::new(()) };
        server.listen().await;
        server
    }

    async fn listen(&mut self) {
        let (number, book, bodies) = (self.number, self.book.clone(), Arc::clone(&self.bodies));
        let manner = Arc::clone(&self.manner);
        let life = self.life.subscribe();
        let script = move |conn: Conn| {
            let (book, bodies) = (book.clone(), Arc::clone(&bodies));
            let (manner, mut life) = (Arc::clone(&manner), life.clone());
            async move {
                tokio::select! {
                    () = serve(conn, number, &book, &bodies, &manner) => {}
                    _ = life.changed() => {}
                }
            }
        };
        self.listening = Some(Backend::start_forgetful(self.address, script).await);
    }

    /// New connections are refused; those that are there go on.
    async fn close(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.stop().await;
        }
    }

    /// New connections are refused, and those that are there end.
    async fn kill(&mut self) {
        self.close().await;
        self.life = watch::Sender::new(());
    }

    /// It is there, and good.
    pub(super) async fn recover(&mut self) {
        *self.manner.lock() = GOOD;
        if self.listening.is_none() {
            self.listen().await;
        }
    }

    pub(super) fn answer_probes(&self, is_good: bool) {
        self.manner.lock().health = if is_good { Health::Good } else { Health::Answers(503) };
    }

    /// Changes for the worse and the better until time is up.
    pub(super) async fn misbehave(&mut self, mut die: StdRng, until: Instant) {
        while Instant::now() < until {
            match die.random_range(0..12) {
                0 | 1 => {
                    self.book.count("servers killed");
                    self.kill().await;
                    sleep(Duration::from_millis(die.random_range(5..400))).await;
                    self.start_slowly(&mut die).await;
                }
                2 => {
                    self.book.count("listeners closed");
                    self.close().await;
                    sleep(Duration::from_millis(die.random_range(5..400))).await;
                    self.start_slowly(&mut die).await;
                }
                3 | 4 => {
                    self.book.count("health flaps");
                    for _ in 0..die.random_range(2..10) {
                        self.manner.lock().health = pick(&mut die, &HEALTH);
                        sleep(Duration::from_millis(die.random_range(5..100))).await;
                    }
                }
                _ => {
                    self.book.count("changes of mood");
                    *self.manner.lock() = Manner { mood: pick(&mut die, &MOODS), health: pick(&mut die, &HEALTH) };
                }
            }
            sleep(Duration::from_millis(die.random_range(10..400))).await;
        }
    }

    /// Accepts connections again before it can serve, as an engine does that loads its model.
    async fn start_slowly(&mut self, die: &mut StdRng) {
        self.book.count("slow starts");
        let mood = if die.random() { Mood::Refuses(503) } else { Mood::Slow };
        *self.manner.lock() = Manner { mood, health: Health::Answers(503) };
        self.listen().await;
        sleep(Duration::from_millis(die.random_range(5..400))).await;
        *self.manner.lock() = GOOD;
    }
}

pub(super) fn pick<T: Copy>(die: &mut StdRng, from: &[T]) -> T {
    from[die.random_range(0..from.len())]
}

async fn serve(mut conn: Conn, number: usize, book: &Book, bodies: &Bodies, manner: &Mutex<Manner>) {
    while let Some(request) = conn.request().await {
        let Manner { mood, health } = *manner.lock();
        if request.head.line.starts_with("GET /health ") {
            book.count("probes");
            let status = match health {
                Health::Good => 200,
                Health::Answers(status) => status,
                Health::Resets => return conn.reset(),
                Health::Silent => return conn.closed().await,
            };
            if !conn.send(json_response(status, "{}")).await {
                return;
            }
            continue;
        }
        let id = request.head.get("x-request-id").expect("each request has an id").to_owned();
        let ongoing = book.begin(&id, number, conn.line());
        let wish = Wish::of(&request.head);
        if !wish.is_body(&request.body, bodies) {
            ongoing.is_altered();
        }
        match mood {
            Mood::Good => {}
            Mood::Slow => {
                if conn.unless_closed(sleep(Duration::from_millis(100))).await.is_none() {
                    return;
                }
            }
            Mood::Closes => {
                drop(ongoing);
                return conn.finish().await;
            }
            Mood::Resets => {
                drop(ongoing);
                return conn.reset();
            }
            Mood::Refuses(status) => {
                drop(ongoing);
                if !conn.send(json_response(status, "{}")).await {
                    return;
                }
                continue;
            }
            Mood::Fails(status) => {
                if !ongoing.answers(&mut conn, json_response(status, "{}")).await {
                    return;
                }
                continue;
            }
            Mood::Leaves => {
                drop(ongoing);
                let error = r#"{"error": {"message": "cannot schedule new futures after shutdown", "code": 500}}"#;
                if !conn.send(json_response(500, error)).await {
                    return;
                }
                continue;
            }
            Mood::ClosesBehindTheHeader => {
                conn.send(wish.head()).await;
                drop(ongoing);
                return conn.finish().await;
            }
            Mood::ErrsInTheFirstEvent if wish.is_stream() => {
                conn.send(wish.head()).await;
                conn.send(chunk("data: {\"error\": {\"message\": \"EngineCore died\", \"code\": 500}}\n\n")).await;
                return conn.closed().await;
            }
            Mood::ErrsInTheFirstEvent => {
                drop(ongoing);
                return conn.reset();
            }
            Mood::BreaksOff => {
                ongoing.body_begins();
                conn.send([wish.head(), chunk(&wish.first(&id))].concat()).await;
                drop(ongoing);
                return conn.finish().await;
            }
            Mood::ResetsInTheBody => {
                ongoing.body_begins();
                conn.send([wish.head(), chunk(&wish.first(&id))].concat()).await;
                drop(ongoing);
                return conn.reset();
            }
            Mood::Stalls => {
                ongoing.body_begins();
                conn.send([wish.head(), chunk(&wish.first(&id))].concat()).await;
                return conn.closed().await;
            }
            Mood::Hangs => {
                ongoing.hangs();
                return conn.closed().await;
            }
            Mood::HangsBehindTheHeader => {
                ongoing.hangs();
                conn.send(wish.head()).await;
                return conn.closed().await;
            }
        }
        if !answer(&mut conn, ongoing, &wish, &id).await {
            return;
        }
    }
}

/// Gives a request what it wishes; false when the client left.
async fn answer(conn: &mut Conn, ongoing: Ongoing, wish: &Wish, id: &str) -> bool {
    if !conn.send(wish.head()).await {
        return false;
    }
    for number in 0..wish.events {
        if conn.unless_closed(sleep(wish.pause)).await.is_none() {
            return false;
        }
        ongoing.body_begins();
        if !conn.send(chunk(&sse_event(number))).await {
            return false;
        }
    }
    ongoing.answers(conn, [chunk(&wish.last(id)), "0\r\n\r\n".to_owned()].concat()).await
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}
