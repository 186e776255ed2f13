//! Servers with the simulator's engine model behind them: their answers come when a vLLM engine's would, on a clock that
//! runs faster than real time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::simulate::{Engine, Job, Progress};
use tidegate::work::Profile;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::{Backend, Conn, sse_event};

/// A clock that runs so many times as fast as real time. Its seconds are those of the engines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FastClock {
    began: Instant,
    speed: f64,
}

impl FastClock {
    /// Starts at 0.
    pub(crate) fn start(speed: f64) -> Self {
        Self { began: Instant::now(), speed }
    }

    pub(crate) fn now_s(self) -> f64 {
        self.began.elapsed().as_secs_f64() * self.speed
    }

    pub(crate) async fn sleep_until(self, at_s: f64) {
        sleep_until(self.instant(at_s)).await;
    }

    fn instant(self, at_s: f64) -> Instant {
        self.began + Duration::from_secs_f64(at_s / self.speed)
    }
}

/// How long an engine's steps may go on unseen, in real time. Many steps are shorter; what they bring comes together.
const GLANCE: Duration = Duration::from_millis(2);

/// After the first token so many are sent together: a write for each would be most of what a test does.
const TOKENS_PER_WRITE: u64 = 32;

/// What of an answer is to be sent.
#[derive(Debug, Clone, Copy, Default)]
struct Written {
    tokens: u64,
    is_whole: bool,
}

/// An engine that is where the clock is, whenever somebody looks.
struct Driven {
    engine: Engine,
    clock: FastClock,
    /// When the step that runs ends; `None` while it is idle.
    step_ends_s: Option<f64>,
    answers: HashMap<usize, watch::Sender<Written>>,
    progress: Vec<Progress>,
}

impl Driven {
    fn new(profile: Profile, clock: FastClock) -> Self {
        let (answers, progress) = (HashMap::new(), Vec::new());
        Self { engine: Engine::new(profile), clock, step_ends_s: None, answers, progress }
    }

    /// Ends all steps that should have ended by now; says when to look again.
    fn advance(&mut self) -> Option<Instant> {
        let now_s = self.clock.now_s();
        while let Some(ends_s) = self.step_ends_s.filter(|ends_s| *ends_s <= now_s) {
            self.engine.end_step(&mut self.progress);
            for event in self.progress.drain(..) {
                match event {
                    Progress::Token { job, generated: tokens } if tokens == 1 || tokens % TOKENS_PER_WRITE == 0 => {
                        self.answers[&job].send_replace(Written { tokens, is_whole: false });
                    }
                    Progress::Token { .. } => {}
                    Progress::Done { job, generated: tokens } => {
                        let answer = self.answers.remove(&job).expect("an answer ends once");
                        answer.send_replace(Written { tokens, is_whole: true });
                    }
                }
            }
            // From the end of the last one, not from now: that nobody looked costs the engine no time.
            self.step_ends_s = self.engine.begin_step().map(|step_s| ends_s + step_s);
        }
        self.step_ends_s.map(|ends_s| self.clock.instant(ends_s).max(Instant::now() + GLANCE))
    }

    fn submit(&mut self, number: usize, job: &Job) -> watch::Receiver<Written> {
        self.advance();
        let (answer, written) = watch::channel(Written::default());
        assert!(self.answers.insert(number, answer).is_none(), "request {number} came twice");
        self.engine.submit(number, &job.request(number as u64), job.output_tokens);
        if self.step_ends_s.is_none() {
            self.step_ends_s = self.engine.begin_step().map(|step_s| self.clock.now_s() + step_s);
        }
        written
    }
}

/// A server that streams chats. A request is a job, known by its number, which is its `x-request-id`. What a client leaves
/// is computed all the same.
pub(crate) struct Modelled {
    pub(crate) backend: Backend,
    driving: JoinHandle<()>,
}

impl Modelled {
    pub(crate) async fn start(jobs: &Arc<[Job]>, profile: Profile, clock: FastClock) -> Self {
        let engine = Arc::new(Mutex::new(Driven::new(profile, clock)));
        let comes = Arc::new(Notify::new());
        let driving = tokio::spawn(drive(Arc::clone(&engine), Arc::clone(&comes)));
        let jobs = Arc::clone(jobs);
        let address = (super::Loopback::new().ip(), 0).into();
        let backend = Backend::start_forgetful(address, move |mut conn| {
            let (engine, comes, jobs) = (Arc::clone(&engine), Arc::clone(&comes), Arc::clone(&jobs));
            async move {
                while let Some(request) = conn.request().await {
                    let number = request.head.get("x-request-id").and_then(|id| id.parse::<usize>().ok());
                    let number = number.expect("its id is the number of a job");
                    let written = engine.lock().submit(number, &jobs[number]);
                    comes.notify_one();
                    if !answer(&mut conn, &jobs[number], written).await {
                        return;
                    }
                }
            }
        })
        .await;
        Self { backend, driving }
    }
}

impl Drop for Modelled {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

async fn drive(engine: Arc<Mutex<Driven>>, comes: Arc<Notify>) {
    loop {
        let next = engine.lock().advance();
        match next {
            Some(next) => sleep_until(next).await,
            None => comes.notified().await,
        }
    }
}

/// Streams one answer as vLLM does, with the usage at its end; false when the peer left.
async fn answer(conn: &mut Conn, job: &Job, mut written: watch::Receiver<Written>) -> bool {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                transfer-encoding: chunked\r\n\r\n";
    if !conn.send(head).await {
        return false;
    }
    let mut sent = 0;
    loop {
        if conn.unless_closed(written.changed()).await.is_none() {
            return false;
        }
        let Written { tokens, is_whole } = *written.borrow_and_update();
        let mut events: String = (sent..tokens).map(|number| sse_event(usize::try_from(number).unwrap())).collect();
        sent = tokens;
        if is_whole {
            let (prompt, all) = (job.prompt_tokens, job.prompt_tokens + tokens);
            events += &format!(
                "data: {{\"id\":\"cmpl-1\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\
                 \"total_tokens\":{all},\"completion_tokens\":{tokens}}}}}\n\ndata: [DONE]\n\n"
            );
        }
        let end = if is_whole { "0\r\n\r\n" } else { "" };
        if !conn.send(format!("{:x}\r\n{events}\r\n{end}", events.len())).await {
            return false;
        }
        if is_whole {
            return true;
        }
    }
}
