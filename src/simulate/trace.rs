//! Traces: CSV files of requests with their lengths and arrival times.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::traffic::{Job, Traffic};
use crate::work::BLOCK_TOKENS;

/// The columns; the last two may be missing.
const COLUMNS: [&str; 5] = ["arrival_s", "input_tokens", "output_tokens", "prefix_group", "blocks"];

/// Why traffic cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{}: {error}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The first line does not name the columns.
    #[error(
        "{}:1: expected the head line {}[,{},{}]", file.display(), COLUMNS[..3].join(","), COLUMNS[3], COLUMNS[4]
    )]
    Head {
        /// The file.
        file: PathBuf,
    },
    /// A line is wrong.
    #[error("{}:{line}: {what}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Which column, what stands there, what was expected.
        what: String,
    },
    /// There is nothing in it.
    #[error("{}: holds no request", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The folder has no traces.
    #[error("{}: holds no .csv file", folder.display())]
    NoTraces {
        /// The folder.
        folder: PathBuf,
    },
}

/// Reads the first requests of a file.
///
/// # Errors
/// When the file cannot be read, or a line of it, or there is none.
pub(super) fn read(file: &Path, most: usize) -> Result<Traffic, TraceError> {
    let text = fs::read_to_string(file).map_err(|error| TraceError::Unreadable { file: file.to_owned(), error })?;
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    if head.len() < 3 || head.iter().ne(COLUMNS.iter().take(head.len())) {
        return Err(TraceError::Head { file: file.to_owned() });
    }
    let (mut jobs, mut has_times) = (Vec::new(), true);
    for (index, line) in lines.enumerate().filter(|(_, line)| !line.trim().is_empty()).take(most) {
        let (job, has_time) =
            job(line).map_err(|what| TraceError::Line { file: file.to_owned(), line: index + 2, what })?;
        has_times &= has_time;
        jobs.push(job);
    }
    if jobs.is_empty() {
        return Err(TraceError::Empty { file: file.to_owned() });
    }
    let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    Ok(Traffic::recorded(name, jobs, has_times))
}

/// All traces of a folder, in order of their names.
///
/// # Errors
/// When the folder or a trace cannot be read, or there is none.
pub(super) fn read_all(folder: &Path, most: usize) -> Result<Vec<Traffic>, TraceError> {
    let unreadable = |error| TraceError::Unreadable { file: folder.to_owned(), error };
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(unreadable)?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
    files.sort();
    if files.is_empty() {
        return Err(TraceError::NoTraces { folder: folder.to_owned() });
    }
    files.iter().map(|file| read(file, most)).collect()
}

/// A request, and whether the line says when it came.
fn job(line: &str) -> Result<(Job, bool), String> {
    let mut fields = line.split(',').map(str::trim);
    let mut field = |column: usize| {
        fields.next().ok_or_else(|| format!("{} is missing, expected {}", COLUMNS[column], COLUMNS[..3].join(",")))
    };
    let time = field(0)?;
    let arrival_s = if time.is_empty() { 0.0 } else { seconds(time)? };
    let job = Job::new(arrival_s, count(1, field(1)?)?, count(2, field(2)?)?);
    let prefix = fields.nth(1).map_or(Ok(Vec::new()), |text| blocks(text, job.prompt_tokens))?;
    Ok((Job { prefix, ..job }, !time.is_empty()))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| format!("arrival_s is {text:?}, expected seconds, or nothing when no time is known"))
}

fn count(column: usize, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{} is {text:?}, expected a whole number", COLUMNS[column]))
}

/// `0 59-72`: single blocks and ranges.
fn blocks(text: &str, prompt_tokens: u64) -> Result<Vec<u64>, String> {
    let wrong = || format!("blocks is {text:?}, expected numbers and ranges such as 0 59-72");
    // A range that was mistyped must not fill the memory.
    let most = prompt_tokens / BLOCK_TOKENS + 1;
    let mut blocks = Vec::new();
    for part in text.split_whitespace() {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u64, u64) = (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
        if to < from {
            return Err(wrong());
        }
        if (to - from).saturating_add(1 + blocks.len() as u64) > most {
            return Err(format!(
                "blocks has more than {most} of {BLOCK_TOKENS} tokens, input_tokens is {prompt_tokens}"
            ));
        }
        blocks.extend(from..=to);
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const HEAD: &str = "arrival_s,input_tokens,output_tokens";

    fn read_text(text: &str) -> Result<Vec<Job>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let name = file.path().display().to_string();
        let traffic = read(file.path(), 100).map_err(|error| error.to_string().replace(&name, "FILE"));
        traffic.map(|traffic| traffic.jobs(1))
    }

    #[test]
    fn lines_are_requests_with_or_without_blocks() {
        let jobs = read_text(&format!("{HEAD},prefix_group,blocks\n0.5,1600,0,7,0 59-61\n2,20,3\n"));
        let expected = [Job { prefix: vec![0, 59, 60, 61], ..Job::new(0.5, 1_600, 1) }, Job::new(2.0, 20, 3)];
        assert_eq!(jobs.unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (wrong, expected) in [
            ("x,1,1", "arrival_s is \"x\", expected seconds, or nothing when no time is known"),
            ("-1,1,1", "arrival_s is \"-1\", expected seconds, or nothing when no time is known"),
            ("nan,1,1", "arrival_s is \"nan\", expected seconds, or nothing when no time is known"),
            ("1,1", "output_tokens is missing, expected arrival_s,input_tokens,output_tokens"),
            ("1,1,-1", "output_tokens is \"-1\", expected a whole number"),
            ("1,1,1,0,5-x", "blocks is \"5-x\", expected numbers and ranges such as 0 59-72"),
            ("1,1,1,0,9-5", "blocks is \"9-5\", expected numbers and ranges such as 0 59-72"),
            ("1,1000,1,0,0-99999999999", "blocks has more than 2 of 512 tokens, input_tokens is 1000"),
        ] {
            let found = read_text(&format!("{HEAD}\n1,1,1\n{wrong}\n")).unwrap_err();
            assert_eq!(found, format!("FILE:3: {expected}"));
        }
        assert_eq!(read_text(&format!("{HEAD}\n")).unwrap_err(), "FILE: holds no request");
        let head = "FILE:1: expected the head line arrival_s,input_tokens,output_tokens[,prefix_group,blocks]";
        assert_eq!(read_text("0,1,1\n1,1,1\n").unwrap_err(), head);
        assert_eq!(read_text("").unwrap_err(), head);
        assert!(read(Path::new("/nowhere"), 1).unwrap_err().to_string().starts_with("/nowhere: "));
    }

    #[test]
    fn a_folder_is_read_in_order_of_names() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read_all(folder.path(), 9).unwrap_err().to_string().ends_with(": holds no .csv file"));
        for name in ["b.csv", "a.csv", "notes.md"] {
            fs::write(folder.path().join(name), format!("{HEAD}\n1,2,3\n")).unwrap();
        }
        let names: Vec<String> = read_all(folder.path(), 9).unwrap().into_iter().map(|traffic| traffic.name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
