//! The simulator's command line.

use super::run;

#[test]
fn a_trace_is_replayed_and_a_table_printed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: String = (0..50).map(|number| format!("{number},{},20\n", 100 + number * 997 % 40_000)).collect();
    std::fs::write(file.path(), format!("arrival_s,input_tokens,output_tokens\n{lines}")).unwrap();
    let trace = file.path().display().to_string();
    let arguments =
        ["simulate", "--trace", &trace, "--policy", "lanes,round_robin", "--servers", "2", "--load", "0.5,0.9"];
    let ended = run(&arguments, "");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.starts_with("50 requests, "), "{}", ended.stdout);
    let rows = ["| 0.5 | lanes |", "| 0.5 | round_robin |", "| 0.9 | lanes |", "| 0.9 | round_robin |"];
    let table: Vec<&str> = ended.stdout.lines().skip(5).collect();
    assert!(table.len() == 4 && rows.iter().zip(&table).all(|(row, line)| line.starts_with(row)), "{table:?}");
}

#[test]
fn the_same_seed_gives_the_same_table() {
    let table = |seed: &str| run(&["simulate", "--mix", "synthetic", "--requests", "300", "--seed", seed], "").stdout;
    assert_eq!(table("3"), table("3"));
    assert_ne!(table("3"), table("4"));
}

#[test]
fn what_cannot_be_simulated_is_refused() {
    for (arguments, expected) in [
        (&["--mix", "real"][..], "error: there is no mix \"real\""),
        (&["--mix", "synthetic", "--policy", "best"], "error: there is no policy \"best\""),
        (&["--mix", "synthetic", "--load", "80"], "error: a load is 80, expected a number above 0"),
        (&["--mix", "synthetic", "--profile", "gpu"], "error: there is no profile \"gpu\""),
        (&["--trace", "/nowhere.csv"], "error: /nowhere.csv: No such file"),
        (&[], "error: the following required arguments were not provided"),
    ] {
        let ended = run(&[&["simulate"], arguments].concat(), "");
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(64), ""), "{arguments:?}");
        assert!(ended.stderr.starts_with(expected), "{}", ended.stderr);
    }
}
