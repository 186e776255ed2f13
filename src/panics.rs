//! Panics: each is one line of the log and is counted.
//!
//! A panic ends the request, or the background task, in which it happens, and nothing else. Nobody should have to find
//! it by chance.

use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};

/// Of the whole process. Relaxed: nothing is published through it.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts and logs panics from now on.
pub fn watch() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        note(panic);
        // It also says where from, when RUST_BACKTRACE asks for that.
        before(panic);
    }));
}

/// How many there have been.
#[must_use]
pub fn count() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

fn note(panic: &PanicHookInfo<'_>) {
    PANICS.fetch_add(1, Ordering::Relaxed);
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    log::error!("a fault of Tidegate's, please report it: panic at {place}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_panic_is_counted() {
        watch();
        let before = count();
        let ended = std::thread::spawn(|| panic!("as expected")).join();
        assert!(ended.is_err());
        assert!(count() > before);
    }
}
