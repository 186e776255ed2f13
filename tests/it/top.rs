//! `tidegate top` on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::pty::{OpenptyResult, Winsize, openpty};
use parking_lot::Mutex;

use crate::support::*;

/// The program on a terminal of its own.
struct Top {
    child: Child,
    keys: File,
    /// Everything that was drawn.
    screen: Arc<Mutex<String>>,
}

impl Top {
    fn start(arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
        let terminal = |slave: &OwnedFd| Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("top").args(arguments).env("TERM", "xterm-256color").env("TOKEN_OF_THE_TEST", "right");
        let child = command.stdin(terminal(&slave)).stdout(terminal(&slave)).stderr(terminal(&slave)).spawn().unwrap();
        drop((command, slave));
        let mut drawn = File::from(master.try_clone().unwrap());
        let screen = Arc::new(Mutex::new(String::new()));
        let seen = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut piece = [0; 4_096];
            // An error says that the program has left its terminal.
            while let Ok(count @ 1..) = drawn.read(&mut piece) {
                seen.lock().push_str(&String::from_utf8_lossy(&piece[..count]));
            }
        });
        Self { child, keys: File::from(master), screen }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    async fn shows(&self, text: &str) {
        until(&format!("{text:?} is drawn"), async || self.screen.lock().contains(text)).await;
    }

    async fn ends(&mut self) -> Option<i32> {
        let mut status = None;
        until("it ends", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.and_then(|status| status.code())
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test]
async fn top_shows_a_running_instance_and_drains_a_server_of_it() {
    let server = Backend::start(reply(json_response(200, "{}"))).await;
    let tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut top = Top::start(&["--admin", &tidegate.admin.to_string()]);
    top.shows("live").await;
    top.shows(&server.name()).await;
    assert_eq!(tidegate.exchange(&post("/v1/completions", &body_of(4_000))).await.status(), 200);
    top.shows("1.0k").await;

    top.press("d");
    top.shows("y yes, any other key no").await;
    assert_eq!(tidegate.status().await["groups"][0]["servers"][0]["draining"], false);
    top.press("y");
    until("the server is drained", async || tidegate.status().await["groups"][0]["servers"][0]["drained"] == true)
        .await;
    // Of words only what differs from those before is drawn.
    top.shows("▽").await;
    top.press("q");
    assert_eq!(top.ends().await, Some(0));
    // The screen is given back.
    assert!(top.screen.lock().contains("\u{1b}[?1049l"));
}

#[tokio::test]
async fn top_says_what_it_needs() {
    let server = Backend::start(silent()).await;
    let setup = Setup::one_group([&server]);
    let tidegate = Tidegate::start(&setup).await;
    let text = std::fs::read_to_string(tidegate.configuration()).unwrap();
    tidegate.write_text(&text.replace("admin: { ", "admin: { token: right, protect_reads: true, "));
    assert_eq!(tidegate.admin_post("/reload", "").await.status(), 200);
    let admin = tidegate.admin.to_string();
    let mut top = Top::start(&["--admin", &admin]);
    top.shows("error: ").await;
    top.shows("--token-env NAME").await;
    assert_eq!(top.ends().await, Some(1));

    let mut top = Top::start(&["--admin", &admin, "--token-env", "TOKEN_OF_THE_TEST"]);
    top.shows("live").await;
    top.press("\u{3}");
    assert_eq!(top.ends().await, Some(0));

    let mut top = Top::start(&["--admin", &closed_address().to_string()]);
    top.shows("--admin HOST:PORT says where").await;
    assert_eq!(top.ends().await, Some(1));

    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(["top", "--admin", &admin]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("draws on a terminal"), "{output:?}");
}
