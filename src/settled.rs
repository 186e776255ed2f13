//! Reading files that others write.

use std::io;
use std::path::Path;
use std::time::Duration;

/// Reads a file until two readings are the same, so that a file which is just being written is not taken by half.
///
/// # Errors
/// When it cannot be read, or goes on changing.
pub(crate) async fn read_settled(path: &Path) -> io::Result<Vec<u8>> {
    const PAUSE: Duration = Duration::from_millis(50);
    const READINGS: usize = 20;
    let mut last = tokio::fs::read(path).await?;
    for _ in 0..READINGS {
        tokio::time::sleep(PAUSE).await;
        let now = tokio::fs::read(path).await?;
        if now == last {
            return Ok(now);
        }
        last = now;
    }
    Err(io::Error::other("it goes on changing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_rests_is_read_and_a_missing_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        assert_eq!(read_settled(&file).await.unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_settled(&file).await.unwrap(), b"text");
    }

    #[tokio::test]
    async fn a_file_that_grows_is_read_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "begun").unwrap();
        let reading = read_settled(&file);
        let writing = async {
            // The first reading is done by now or comes later; in both cases the whole is what is read twice.
            tokio::task::yield_now().await;
            std::fs::write(&file, "begun and ended").unwrap();
        };
        let (read, ()) = tokio::join!(reading, writing);
        assert_eq!(read.unwrap(), b"begun and ended");
    }
}
