//! The simulator's command line.

use std::path::Path;

use super::run;

const HEAD: &str = "arrival_s,input_tokens,output_tokens\n";

/// A file with a text in it.
fn file(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let name = file.path().display().to_string();
    (file, name)
}

/// Fifty requests, short and long ones.
fn requests() -> Vec<(u64, u64)> {
    (0..50).map(|number| (number, 100 + number * 997 % 40_000)).collect()
}

fn trace() -> String {
    let lines = requests().into_iter().map(|(second, tokens)| format!("{second},{tokens},20\n"));
    lines.fold(HEAD.to_owned(), |text, line| text + &line)
}

/// The same requests as an access log.
fn log() -> String {
    let line = |(second, tokens): (u64, u64)| {
        let time = format!("2026-01-31T12:{:02}:{:02}.000Z", second / 60, second % 60);
        let record = serde_json::json!({
            "version": 1, "time": time, "request_id": second.to_string(), "endpoint": "/v1/chat/completions", "stream": true,
            "prompt_tokens": tokens, "output_tokens": 20, "server": format!("gpu{}", second % 2), "duration_s": 2.5, "end": "complete",
        });
        format!("{record}\n")
    };
    requests().into_iter().map(line).collect()
}

/// The lines of the tables, without what stands above them.
fn tables(stdout: &str) -> Vec<&str> {
    stdout.lines().filter(|line| line.starts_with('|')).collect()
}

#[test]
fn a_trace_is_replayed_and_tables_printed() {
    let (_file, trace) = file(&trace());
    let arguments =
        ["simulate", "--trace", &trace, "--policy", "lanes,round_robin", "--servers", "2", "--load", "0.5,0.9"];
    let ended = run(&arguments, "");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.starts_with("50 requests ("), "{}", ended.stdout);
    let table = tables(&ended.stdout);
    let rows = ["|  0.5 | lanes       |", "|  0.5 | round_robin |", "|  0.9 | lanes       |", "|  0.9 | round_robin |"];
    assert_eq!(table.len(), 12, "{table:?}");
    for part in [&table[2..6], &table[8..12]] {
        assert!(rows.iter().zip(part).all(|(row, line)| line.starts_with(row)), "{table:?}");
    }
    let heads = table[0].to_owned() + table[6];
    for head in
        ["short mean", "p50", "p90", "p99", "long mean", "tpot mean", "met targets", "goodput req/s", "output tokens/s"]
    {
        assert!(heads.contains(head), "{head}: {heads}");
    }
}

#[test]
fn an_access_log_says_the_same_as_a_trace_from_a_file_and_from_standard_input() {
    let ((_trace, trace), (_log, log_file)) = (file(&trace()), file(&log()));
    let more = ["--policy", "all", "--servers", "4", "--load", "0.8"];
    let by_trace = run(&[&["simulate", "--trace", &trace], &more[..]].concat(), "");
    let by_file = run(&[&["simulate", "--log", &log_file], &more[..]].concat(), "");
    let by_input = run(&[&["simulate", "--log", "-"], &more[..]].concat(), &log());
    assert_eq!((by_file.code, by_file.stderr.as_str()), (Some(0), ""));
    assert_eq!(tables(&by_file.stdout), tables(&by_trace.stdout));
    assert_eq!(by_input, by_file);
    assert_eq!(tables(&by_file.stdout).len(), 2 * (2 + 7));
}

#[test]
fn lines_of_a_log_that_are_no_records_are_counted_and_named() {
    let ended =
        run(&["simulate", "--log", "-", "--policy", "lanes"], &format!("starting\n{}{{\"version\":9}}\n", log()));
    assert_eq!(ended.code, Some(0));
    let expected = "warning: 2 lines are no access records and are left out, the first is line 1: expected value\n";
    assert_eq!(ended.stderr, expected);
    assert!(
        ended.stdout.starts_with("50 requests (access log)") && ended.stdout.contains("| own ("),
        "{}",
        ended.stdout
    );
}

#[test]
fn the_same_seed_gives_the_same_tables_on_any_number_of_cores() {
    let table = |seed: &str, threads: &str| {
        run(&["simulate", "--mix", "synthetic", "--requests", "300", "--seed", seed, "--threads", threads], "").stdout
    };
    assert_eq!(table("3", "1"), table("3", "7"));
    assert_ne!(table("3", "1"), table("4", "1"));
}

#[test]
fn a_report_is_one_page_with_every_figure_and_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html").display().to_string();
    let arguments = [
        "simulate",
        "--mix",
        "synthetic",
        "--requests",
        "1500",
        "--servers",
        "4",
        "--load",
        "0.6,0.8",
        "--seeds",
        "2",
        "--policy",
        "reference_bucket,least_requests,lanes",
        "--report",
        &report,
    ];
    let ended = run(&arguments, "");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(
        page.len() < 2_000_000 && page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"),
        "{}",
        page.len()
    );
    for expected in [
        "<h3>Short requests, p99</h3>",
        "<h3>Long requests, mean</h3>",
        "<h3>All requests, mean</h3>",
        "<h2>What the servers do</h2>",
        "<h3>reference_bucket: ",
        "<h3>lanes: ",
        ">server 3</text>",
        "class=\"lane\"",
        "class=\"waiting\"",
        "class=\"long\"",
        "<h3>Short requests, at 80 % load</h3>",
        "<title>lanes at 60 %: ",
        "<td>0.8</td><td>least_requests</td>",
        "tidegate simulate --mix synthetic --requests 1500",
        "(90 % interval ",
    ] {
        assert!(page.contains(expected), "{expected} is missing");
    }
    // Six figures over the load, each with a line for each of three policies; two distributions.
    assert_eq!(page.matches("class=\"line c").count(), (6 + 2) * 3);
    // Nothing is fetched from anywhere, nothing is run.
    for foreign in ["http:", "https:", "<script", "@import", "url(", "<link", "src="] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

#[test]
fn a_report_of_one_load_has_a_dot_for_each_policy() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.html").display().to_string();
    let (_file, trace) = file(&trace());
    let ended = run(
        &["simulate", "--trace", &trace, "--servers", "2", "--policy", "lanes,least_work", "--report", &report],
        "",
    );
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.contains("<title>lanes: ") && page.contains("<title>least_work: "));
}

#[test]
fn a_folder_of_traces_gives_an_overview_against_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.csv", "a.csv"] {
        std::fs::write(folder.path().join(name), trace()).unwrap();
    }
    std::fs::write(folder.path().join("README.md"), "no trace").unwrap();
    let traces = folder.path().display().to_string();
    let arguments = [
        "simulate",
        "--traces",
        &traces,
        "--servers",
        "2,4",
        "--load",
        "0.6,0.8",
        "--policy",
        "reference_bucket,least_work,lanes",
    ];
    let ended = run(&arguments, "");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.starts_with("### reference_bucket -> lanes\n"), "{}", ended.stdout);
    // Two traces, two numbers of servers, two loads: in one table of pairs and four of all policies.
    assert_eq!(tables(&ended.stdout).len(), 5 * (2 + 8), "{}", ended.stdout);
    assert!(ended.stdout.contains("\nTTFT mean of all: in "), "{}", ended.stdout);
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().display().to_string();
    let (_file, wrong) = file(&format!("{HEAD}0,1,1\n0,many,1\n"));
    let (_file, headless) = file("0,1,1\n0,1,1\n");
    let (_file, foreign) = file("[info] hello\n");
    for (arguments, expected) in [
        (&["--mix", "real"][..], "error: there is no mix \"real\", expected synthetic or synthetic-burst\n"),
        (&["--mix", "synthetic", "--policy", "best"], "error: there is no policy \"best\", expected some of "),
        (
            &["--mix", "synthetic", "--load", "80"],
            "error: invalid value '80' for '--load <SHARES>': expected a number above 0",
        ),
        (&["--mix", "synthetic", "--profile", "gpu"], "error: there is no profile \"gpu\""),
        (&["--mix", "synthetic", "--servers", "2,4"], "error: --servers with several numbers needs --traces\n"),
        (
            &["--mix", "synthetic", "--slo", "p99=1s"],
            "error: invalid value 'p99=1s' for '--slo <TARGETS>': \"p99=1s\" is no target",
        ),
        (&["--trace", "/nowhere.csv"], "error: /nowhere.csv: No such file"),
        (&["--trace", &wrong], &format!("error: {wrong}:3: input_tokens is \"many\", expected a whole number\n")),
        (
            &["--trace", &headless],
            &format!("error: {headless}:1: expected the head line arrival_s,input_tokens,output_tokens"),
        ),
        (&["--traces", &empty], &format!("error: {empty}: holds no .csv file\n")),
        (&["--log", &foreign], &format!("error: {foreign}:1: no line is an access record that can be replayed")),
        (&["--log", "-"], "error: -: holds no request\n"),
        (&[], "error: the following required arguments were not provided"),
    ] {
        let ended = run(&[&["simulate"], arguments].concat(), "");
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(64), ""), "{arguments:?}");
        assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
    }
}

#[test]
fn a_report_that_cannot_be_written_fails_before_anything_is_simulated() {
    let ended = run(&["simulate", "--mix", "synthetic", "--report", "/nowhere/report.html"], "");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.starts_with("error: /nowhere/report.html: No such file"), "{}", ended.stderr);
    assert!(!Path::new("/nowhere").exists());
}
