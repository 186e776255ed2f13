//! Who gets to see what.

use super::*;

fn record(id: &str, status: u16, duration_s: f64) -> Record {
    let json = format!(
        r#"{{"version":1,"time":"2026-01-31T12:00:00Z","request_id":"{id}","endpoint":"/v1/models","status":{status},
            "duration_s":{duration_s},"end":"complete"}}"#
    );
    Record::parse(json.as_bytes()).unwrap()
}

fn settings(path: PathBuf) -> AccessLog {
    AccessLog { format: LogFormat::Json, path: Some(path), sample: 1.0, slower_than: Duration::ZERO }
}

fn ids(path: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| Record::parse(line.as_bytes()).unwrap().request_id).collect()
}

fn ended(event: &Event) -> &str {
    match event {
        Event::Ended(record) => &record.request_id,
        Event::Placed(placed) => panic!("{placed:?} is no end"),
    }
}

#[test]
fn nobody_wants_anything_of_a_journal_that_nobody_reads() {
    let journal = Journal::new(false, Counts::default());
    assert!(!journal.wants_ends() && !journal.wants_places());
    let follower = journal.follow();
    assert!(journal.wants_ends() && journal.wants_places());
    drop(follower);
    assert!(!journal.wants_ends() && !journal.wants_places());
    assert!(Journal::new(true, Counts::default()).wants_ends());
}

#[test]
fn prompts_are_read_for_those_who_look_and_not_for_those_who_may() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::new(true, Counts::default());
    assert!(journal.wants_ends() && !journal.wants_prompts() && !journal.wants_words());
    let follower = journal.follow();
    assert!(journal.wants_prompts() && journal.wants_words());
    drop(follower);
    assert!(!journal.wants_prompts() && !journal.wants_words());
    journal.configure(Some(&settings(folder.path().join("access.log")))).unwrap();
    assert!(journal.wants_prompts() && !journal.wants_words());
}

#[test]
fn so_many_are_explained_in_a_second_however_many_come() {
    let journal = Journal::new(false, Counts::default());
    let (_follower, start) = (journal.follow(), Instant::now());
    let explained: u64 = (0..100_000).map(|_| u64::from(journal.wants_words())).sum();
    let most = u64::from(MOST_EXPLAINED) * (start.elapsed().as_secs() + 1);
    assert!((u64::from(MOST_EXPLAINED)..=most).contains(&explained), "{explained} of at most {most}");
}

#[test]
fn the_latest_records_are_kept_and_no_more() {
    let journal = Journal::new(true, Counts::default());
    (0..MOST_RECENT + 3).for_each(|number| journal.ended(record(&number.to_string(), 200, 0.5)));
    let recent = journal.recent();
    assert_eq!((recent.len(), ended(&recent[0])), (MOST_RECENT, "3"));
    assert_eq!(ended(recent.last().unwrap()), (MOST_RECENT + 2).to_string());
}

#[test]
fn a_slow_follower_is_told_what_it_missed_and_holds_up_nobody() {
    use broadcast::error::TryRecvError;
    let journal = Journal::new(false, Counts::default());
    let mut follower = journal.follow();
    (0..MOST_BEHIND + 5).for_each(|number| journal.ended(record(&number.to_string(), 200, 0.5)));
    assert_eq!(follower.try_recv().unwrap_err(), TryRecvError::Lagged(5));
    assert_eq!(ended(&follower.try_recv().unwrap()), "5");
}

#[test]
fn slow_ones_and_those_that_went_wrong_get_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let journal = Journal::new(false, Counts::default());
    let log = AccessLog { slower_than: Duration::from_secs(1), ..settings(path.clone()) };
    journal.configure(Some(&log)).unwrap();
    let end_all = || {
        journal.ended(record("quick", 200, 0.5));
        journal.ended(record("slow", 200, 1.0));
        journal.ended(record("wrong", 500, 0.5));
        let gone = Record { end: End::ClientGone, ..record("gone", 200, 0.5) };
        journal.ended(gone);
        journal.flush();
    };
    end_all();
    assert_eq!(ids(&path), ["slow", "wrong", "gone"]);
    journal.configure(Some(&AccessLog { sample: 0.0, ..log })).unwrap();
    end_all();
    assert_eq!(ids(&path)[3..], ["wrong", "gone"]);
}

#[test]
fn a_sample_is_about_the_share_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let journal = Journal::new(false, Counts::default());
    journal.configure(Some(&AccessLog { sample: 0.25, ..settings(path.clone()) })).unwrap();
    (0..4_000).for_each(|_| journal.ended(record("a", 200, 0.5)));
    journal.flush();
    // 27 is one standard deviation.
    let count = ids(&path).len();
    assert!((800..=1_200).contains(&count), "{count}");
}

#[test]
fn a_log_that_was_moved_away_gets_a_new_file_and_one_that_cannot_be_opened_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [path, moved] = ["access.log", "access.log.1"].map(|name| folder.path().join(name));
    let journal = Journal::new(false, Counts::default());
    journal.configure(Some(&settings(path.clone()))).unwrap();
    journal.ended(record("a", 200, 0.5));
    journal.flush();
    std::fs::rename(&path, &moved).unwrap();
    journal.configure(Some(&settings(path.clone()))).unwrap();
    let error = journal.configure(Some(&settings(folder.path().to_owned()))).unwrap_err().to_string();
    assert!(error.starts_with("access_log.path /"), "{error}");
    journal.ended(record("b", 200, 0.5));
    journal.flush();
    assert_eq!((ids(&moved), ids(&path)), (vec!["a".to_owned()], vec!["b".to_owned()]));
    journal.configure(None).unwrap();
    journal.ended(record("c", 200, 0.5));
    assert_eq!(ids(&path), ["b"]);
}
