//! Tidegate's policies driven by events from outside, one line of JSON each, with a virtual clock: `tidegate policy --stdio`.
//!
//! ```text
//! line -> Event -> Driver (names to numbers) -> work::Dispatcher -> outcomes -> line
//! ```
//!
//! `docs/policy.md` describes the protocol. The policies are the product's own; nothing here decides.

mod choice;
mod driver;
mod event;
mod reference;
mod reply;

#[cfg(test)]
mod tests;

use std::io::{self, BufRead, Write};

pub use choice::{POLICIES, Setup, SetupError};
pub use driver::Driver;
pub use event::{Arrival, Event, What};
pub use reference::{Groups, Reference};
pub use reply::Reply;

/// A line that is longer is not read to its end.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Answers events until the input ends: one line for each line, each flushed.
///
/// # Errors
/// When the input cannot be read or nobody reads the output.
pub fn run(driver: &mut Driver, mut input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let (mut line, mut text) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        text.clear();
        let read = io::Read::take(&mut input, MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(());
        }
        if read as u64 == MAX_LINE_BYTES && line.last() != Some(&b'\n') {
            input.skip_until(b'\n')?;
            reply::write_error(&mut text, &format!("the line is longer than {MAX_LINE_BYTES} bytes"));
        } else {
            match Event::parse(&line).and_then(|event| driver.apply(event)) {
                Ok(reply) => reply.write(&mut text),
                Err(error) => reply::write_error(&mut text, &error),
            }
        }
        output.write_all(&text)?;
        output.flush()?;
    }
}
