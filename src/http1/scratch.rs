//! Memory that is read into, one for each thread.
//!
//! Who waits for bytes holds none of it: with thousands of streams that is most of what a proxy would need. What has come is
//! dealt with before anything else is read on this thread, or copied.

use std::cell::RefCell;

/// As much as is read at once, in bytes.
pub(super) const BYTES: usize = 64 << 10;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; BYTES].into_boxed_slice());
}

/// Has something read into the thread's memory, and dealt with.
pub(super) fn with<R>(use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => use_it(&mut scratch),
        // Somebody further up deals with what has come there.
        Err(_) => use_it(&mut [0; 4096]),
    })
}
