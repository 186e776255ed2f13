//! `tidegate top`: the live page in a terminal, against a running instance.
//!
//! ```text
//! feed (a thread): /events of the admin listener -> channel -> known (what is known) -> view (what is drawn)
//! keys -> known, and through the feed: /drain, /undrain
//! ```

mod feed;
mod known;
mod view;

use std::io::{self, IsTerminal};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::cli::RemoteArgs;
use crate::remote::{Remote, RemoteError};
use feed::{Listener, News};
use known::{Known, Wish};

/// How often it is drawn when nothing happens: waves and clocks go on.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// Why `tidegate top` does not run.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The output goes elsewhere.
    #[error(
        "tidegate top draws on a terminal; for programs there are /status, /events and /metrics of the admin listener"
    )]
    NoTerminal,
    /// The listener cannot be watched.
    #[error(transparent)]
    Listener(#[from] RemoteError),
    /// The terminal fails.
    #[error("the terminal: {0}")]
    Terminal(#[from] io::Error),
}

/// Shows a running instance until the user has seen enough.
///
/// # Errors
/// When there is no terminal, or the admin listener cannot be reached at first or refuses. Later it is tried again.
pub fn run(arguments: &RemoteArgs) -> Result<(), TopError> {
    let listener = Listener::new(Remote::new(&arguments.admin, arguments.token_env.as_deref())?);
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    // Before the screen is taken over: what is wrong is told as any other command tells it.
    let first = listener.watch()?;
    let (sender, news) = mpsc::channel();
    let following = listener.clone();
    let to_feed = sender.clone();
    thread::Builder::new().name("feed".to_owned()).spawn(move || following.follow(first, &to_feed))?;
    let mut terminal = ratatui::try_init()?;
    let seen = watch(&mut terminal, &listener, &news, &sender);
    ratatui::restore();
    seen
}

fn watch(
    terminal: &mut DefaultTerminal,
    listener: &Listener,
    news: &mpsc::Receiver<News>,
    sender: &mpsc::Sender<News>,
) -> Result<(), TopError> {
    let mut known = Known::new(listener.admin().to_owned());
    loop {
        for news in news.try_iter() {
            known.take(news, Instant::now());
        }
        terminal.draw(|frame| view::draw(frame, &mut known, Instant::now()))?;
        if !event::poll(DRAW_EVERY)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        match pressed(key, &mut known) {
            Pressed::Quit => return Ok(()),
            Pressed::Change(wish) => {
                let (listener, sender) = (listener.clone(), sender.clone());
                // The answer is awaited elsewhere, the picture does not stand still for it.
                thread::Builder::new().name("change".to_owned()).spawn(move || {
                    // An error says that the user has gone.
                    sender.send(News::Said(listener.change(wish.verb(), &wish.server))).ok();
                })?;
            }
            Pressed::Nothing => {}
        }
    }
}

/// What a key has led to.
#[derive(Debug, PartialEq, Eq)]
enum Pressed {
    Nothing,
    Quit,
    Change(Wish),
}

fn pressed(key: KeyEvent, known: &mut Known) -> Pressed {
    if key.kind == KeyEventKind::Release {
        return Pressed::Nothing;
    }
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        return Pressed::Quit;
    }
    if known.asks() {
        return match key.code {
            KeyCode::Char('y') => known.confirmed().map_or(Pressed::Nothing, Pressed::Change),
            _ => {
                known.cancel();
                Pressed::Nothing
            }
        };
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Pressed::Quit,
        KeyCode::Down | KeyCode::Char('j') => known.select(1),
        KeyCode::Up | KeyCode::Char('k') => known.select(-1),
        KeyCode::Char('d') => known.ask(true),
        KeyCode::Char('u') => known.ask(false),
        _ => {}
    }
    Pressed::Nothing
}

#[cfg(test)]
mod tests;
