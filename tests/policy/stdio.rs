//! The protocol: one reply for each line, at once, whatever the line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::run;

const ARRIVALS: &str = "\
{\"t\": 0, \"ev\": \"arrive\", \"id\": \"a\", \"prompt_tokens\": 100000, \"body_bytes\": 400000, \"max_tokens\": null, \"ignore_eos\": false, \"stream\": true}
{\"t\": 0.1, \"ev\": \"arrive\", \"id\": \"b\", \"prompt_tokens\": 100000, \"body_bytes\": 400000, \"max_tokens\": 5, \"ignore_eos\": true, \"stream\": false}
{\"t\": 0.2, \"ev\": \"arrive\", \"id\": \"c\", \"prompt_tokens\": 40, \"body_bytes\": 160, \"max_tokens\": 16, \"stream\": true}
";

const CONFIGURATION: &str = "\
listen: 127.0.0.1:8000
groups:
  - name: quick
    up_to_tokens: 32768
    servers: [10.0.0.1:8100, 10.0.0.2:8100, 10.0.0.3:8100]
  - name: slow
    up_to_tokens: 131072
    servers: [10.0.0.4:8100, { address: 10.0.0.5:8100, drain: true }]
";

fn with_file(arguments: &[&str], text: &str, input: &str) -> super::Ended {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let conf = file.path().display().to_string();
    let ended = run(&[&["policy", "--stdio", "--conf", &conf], arguments].concat(), input);
    super::Ended { stderr: ended.stderr.replace(&conf, "FILE"), ..ended }
}

#[test]
fn each_line_is_answered_before_the_next_is_read() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["policy", "--stdio", "--servers", "2"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut answer = |line: &str| {
        writeln!(input, "{line}").unwrap();
        let mut answer = String::new();
        output.read_line(&mut answer).unwrap();
        answer
    };
    let assigned =
        "{\"assign\":[{\"id\":\"a\",\"server\":1,\"group\":\"long\",\"reason\":\"lane\"}],\"held\":0,\"lanes\":[1]}\n";
    let mut arrivals = ARRIVALS.lines();
    assert_eq!(answer(arrivals.next().unwrap()), assigned);
    assert_eq!(answer(arrivals.next().unwrap()), "{\"assign\":[],\"held\":1,\"lanes\":[1]}\n");
    assert!(answer("nonsense").starts_with("{\"error\":\""));
    assert!(answer(arrivals.next().unwrap()).contains("\"server\":0,\"group\":\"short\",\"reason\":\"short\""));
    assert!(answer("{\"t\":30,\"ev\":\"end\",\"id\":\"a\",\"ok\":true}").contains("\"id\":\"b\",\"server\":1"));
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn all_policies_and_profiles_can_be_named() {
    for policy in ["lanes", "least_work", "reference_bucket", "reference_plain"] {
        for profile in ["llama3-8b-a100", "llama3-70b-tp8"] {
            let arguments = ["policy", "--stdio", "--servers", "4", "--policy", policy, "--profile", profile];
            let ended = run(&arguments, ARRIVALS);
            assert_eq!((ended.code, ended.stdout.lines().count(), ended.stderr.as_str()), (Some(0), 3, ""), "{policy}");
            assert!(!ended.stdout.contains("error"), "{}", ended.stdout);
        }
    }
}

#[test]
fn pins_are_kept() {
    let arguments = ["policy", "--stdio", "--servers", "4", "--lanes", "2", "--long-from-tokens", "40"];
    let ended = run(&arguments, ARRIVALS);
    let servers: Vec<&str> = ended.stdout.lines().map(|line| line.split("\"lanes\":").nth(1).unwrap()).collect();
    assert_eq!(servers, ["[2,3]}"; 3]);
    assert!(ended.stdout.lines().nth(2).unwrap().starts_with("{\"assign\":[],\"held\":1"), "{}", ended.stdout);
}

#[test]
fn servers_groups_and_policy_come_from_the_configuration() {
    let buckets = format!("{CONFIGURATION}policy: {{ kind: reference_bucket }}\n");
    let ended = with_file(&[], &buckets, ARRIVALS);
    let expected = "\
{\"assign\":[{\"id\":\"a\",\"server\":3,\"group\":\"slow\",\"reason\":\"standard\"}],\"held\":0,\"lanes\":[]}
{\"assign\":[{\"id\":\"b\",\"server\":0,\"group\":\"quick\",\"reason\":\"redirected\"}],\"held\":0,\"lanes\":[]}
{\"assign\":[{\"id\":\"c\",\"server\":1,\"group\":\"quick\",\"reason\":\"standard\"}],\"held\":0,\"lanes\":[]}
";
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), expected, ""));
    // Pins, and what a server takes.
    let pinned = CONFIGURATION.replace("10.0.0.4:8100", "{ address: 10.0.0.4:8100, max_model_len: 50000 }");
    let pinned = format!("{pinned}policy: {{ lanes: 2, long_from_tokens: 40 }}\n");
    let ended = with_file(&[], &pinned, ARRIVALS);
    let replies: Vec<&str> = ended.stdout.lines().collect();
    // The smaller server is no lane, and the third prompt is long, too.
    assert!(
        replies[0].contains("\"id\":\"a\",\"server\":1,") && replies[0].ends_with("\"lanes\":[1,2]}"),
        "{replies:?}"
    );
    assert!(replies[2].starts_with("{\"assign\":[],\"held\":1,"), "{replies:?}");
    // The drained server is no lane.
    let ended = with_file(&["--policy", "lanes", "--lanes", "1"], CONFIGURATION, ARRIVALS);
    assert!(ended.stdout.starts_with("{\"assign\":[{\"id\":\"a\",\"server\":3,\"group\":\"long\""), "{}", ended.stdout);
}

#[test]
fn what_cannot_be_driven_is_refused() {
    let refused = |arguments: &[&str]| {
        let ended = run(&[&["policy", "--stdio"], arguments].concat(), "");
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(64), ""));
        ended.stderr
    };
    let expected =
        "error: there is no policy \"best\", expected one of lanes, least_work, reference_bucket, reference_plain\n";
    assert_eq!(refused(&["--policy", "best"]), expected);
    let expected = "error: there is no profile \"gpu\", expected llama3-8b-a100 or llama3-70b-tp8\n";
    assert_eq!(refused(&["--profile", "gpu"]), expected);
    assert_eq!(
        refused(&["--servers", "1", "--policy", "reference_bucket"]),
        "error: reference_bucket needs at least 2 servers, there are 1\n"
    );
    assert_eq!(run(&["policy"], "").code, Some(64));
    let discovered = "groups:\n  - name: a\n    up_to_tokens: 9\n    discover: { dns: 'gpus:1' }\n";
    let ended = with_file(&[], discovered, "");
    let expected = "error: group a discovers its servers, expected a file that lists them, or --servers N\n";
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(64), expected));
    assert_eq!(with_file(&[], "groups: []\n", "").code, Some(64));
}

/// The examples of the documentation: lines after `>` go in, lines after `<` come out.
#[test]
fn the_documented_conversation_is_what_happens() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policy.md");
    let document = std::fs::read_to_string(document).unwrap();
    let lines = |mark: &str| -> Vec<String> {
        document.lines().filter_map(|line| line.strip_prefix(mark)).map(str::to_owned).collect()
    };
    let (questions, answers) = (lines("> {"), lines("< {"));
    assert!(questions.len() >= 5 && questions.len() == answers.len());
    let input: String = questions.iter().map(|line| format!("{{{line}\n")).collect();
    let ended = run(&["policy", "--stdio", "--servers", "2"], &input);
    let expected: String = answers.iter().map(|line| format!("{{{line}\n")).collect();
    assert_eq!(ended.stdout, expected);
}
