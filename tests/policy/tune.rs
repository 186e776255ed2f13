//! Recommendations, on three kinds of traffic.

use super::{Ended, run};

fn tune(arguments: &[&str], input: &str) -> Ended {
    let ended = run(&[&["tune"], arguments].concat(), input);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended
}

/// An access log of short chats, one every 50 ms, on two servers, the second of which is `slowness` times as slow.
fn chats(slowness: f64) -> String {
    let line = |number: u64| {
        let (server, tokens) = (number % 2, 900 + number * 7_919 % 3_000);
        let ttft_s = tokens as f64 * 70e-6 * if server == 1 { slowness } else { 1.0 };
        let record = serde_json::json!({
            "version": 1, "time": format!("2026-01-31T12:{:02}:{:02}.{:03}Z", number / 1_200, number / 20 % 60, number % 20 * 50),
            "request_id": number.to_string(), "endpoint": "/v1/chat/completions", "stream": true, "prompt_tokens": tokens,
            "output_tokens": 40 + number % 60, "server": format!("gpu{server}"), "attempts": 1, "ttft_s": ttft_s, "duration_s": 2.5,
            "end": "complete",
        });
        format!("{record}\n")
    };
    (0..600).map(line).collect()
}

#[test]
fn mixed_traffic_gets_lanes_with_what_they_gain() {
    let ended = tune(&["--mix", "synthetic", "--requests", "1200", "--servers", "3", "--load", "0.8"], "");
    assert!(ended.stdout.contains("\nRecommended: lanes ("), "{}", ended.stdout);
    assert!(
        ended.stdout.contains("Against reference_bucket at its defaults (time to first token):\n  short p99    "),
        "{}",
        ended.stdout
    );
    assert!(ended.stdout.contains("\npolicy:\n  kind: lanes\n  lanes: "), "{}", ended.stdout);
    assert_eq!(ended.stderr, "");
}

#[test]
fn chats_alone_need_no_lanes_and_a_log_says_how_many_servers_there_are() {
    let ended = tune(&["--log", "-", "--load", "0.8"], &chats(1.0));
    assert!(
        ended.stdout.starts_with("600 requests (access log), 0 of them long (32k tokens and more); 2 servers "),
        "{}",
        ended.stdout
    );
    assert!(!ended.stdout.contains("  lanes: 1\n") && !ended.stdout.contains("reference_bucket ("), "{}", ended.stdout);
    assert!(!ended.stdout.contains("not equally fast"), "{}", ended.stdout);
}

#[test]
fn idle_servers_are_left_alone() {
    let ended = tune(&["--log", "-", "--servers", "8", "--load", "0.05"], &chats(1.0));
    assert!(ended.stdout.contains("The servers are mostly idle"), "{}", ended.stdout);
    assert!(
        ended.stdout.contains("No significant gain over reference_bucket at its defaults: leave it."),
        "{}",
        ended.stdout
    );
    assert!(!ended.stdout.contains("To be pasted"), "{}", ended.stdout);
}

#[test]
fn servers_of_unequal_speed_are_found_in_the_log() {
    let ended = tune(&["--log", "-", "--load", "0.5"], &chats(2.0));
    assert!(ended.stdout.contains("The servers are not equally fast"), "{}", ended.stdout);
    assert!(
        ended.stdout.contains("\n  weight: 1.33  # gpu0, ") && ended.stdout.contains("\n  weight: 0.67  # gpu1, "),
        "{}",
        ended.stdout
    );
}

#[test]
fn the_gain_over_the_present_configuration_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "policy: { kind: reference_plain }\ngroups:\n  - name: all\n    servers: [10.0.0.1:80, 10.0.0.2:80, 10.0.0.3:80]\n";
    std::fs::write(file.path(), text).unwrap();
    let conf = file.path().display().to_string();
    let ended = tune(&["--mix", "synthetic", "--requests", "600", "--load", "0.8", "--conf", &conf], "");
    assert!(ended.stdout.contains("; 3 servers "), "{}", ended.stdout);
    assert!(ended.stdout.contains("\nAgainst the present configuration (time to first token):\n"), "{}", ended.stdout);
}

#[test]
fn what_cannot_be_answered_is_refused() {
    for (arguments, expected) in [
        (&[][..], "error: the following required arguments were not provided"),
        (&["--mix", "real"], "error: there is no mix \"real\""),
        (&["--trace", "/nowhere.csv"], "error: /nowhere.csv: No such file"),
        (&["--mix", "synthetic", "--profile", "gpu"], "error: there is no profile \"gpu\""),
        (&["--mix", "synthetic", "--conf", "/nowhere.yaml"], "error: /nowhere.yaml: "),
    ] {
        let ended = run(&[&["tune"], arguments].concat(), "");
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(64), ""), "{arguments:?}");
        assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
    }
}
