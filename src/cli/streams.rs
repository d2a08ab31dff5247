//! The program's two streams: what a command computes goes to the output stream, everything else to the error stream.
//!
//! Invariants: what the error stream does not take fails nothing; an error of the output stream says of what it is, and a
//! reader of it that has gone is known from every other broken pipe. Does not know: commands.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::time::Duration;

use parking_lot::Mutex;

/// True while a line of the output stream that a terminal shows has no end yet; held while either stream is written to it.
static IS_LINE_OPEN: Mutex<bool> = Mutex::new(false);

/// How long a line of the error stream waits for a terminal that takes no output.
const PATIENCE: Duration = Duration::from_millis(100);

/// Says `text` and an end of line on the error stream, where somebody listens.
pub(super) fn tell(text: impl Display) {
    let _ = lines().write_all(format!("{text}\n").as_bytes());
}

/// The error stream, of which each write is a line or several.
pub(super) fn lines() -> Lines {
    Lines(io::stderr())
}

/// The error stream; where one terminal shows both streams, its lines are not glued to the output's text.
#[derive(Debug)]
pub(super) struct Lines(io::Stderr);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_terminal()
            && let Some(mut is_open) = IS_LINE_OPEN.try_lock_for(PATIENCE)
        {
            if std::mem::take(&mut *is_open) {
                self.0.write_all(b"\n")?;
            }
            return self.0.write(bytes);
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The output stream.
pub(super) fn output() -> Output {
    Output(io::stdout())
}

/// The output stream, whose errors are told from others.
#[derive(Debug)]
pub(super) struct Output(io::Stdout);

/// What the output stream refused.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}; free space there, or send it elsewhere")]
struct OutputError(io::Error);

/// An error of the output stream, as [`Output`] gives it.
pub(super) fn told(error: io::Error) -> io::Error {
    match error.kind() {
        // The writer tries again.
        ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, OutputError(error)),
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.0.is_terminal() {
            return self.0.write(bytes).map_err(told);
        }
        let mut is_open = IS_LINE_OPEN.lock();
        let count = self.0.write(bytes).map_err(told)?;
        if let Some(last) = bytes[..count].last() {
            *is_open = *last != b'\n';
        }
        // Nothing waits in a buffer that the terminal would show behind a later line.
        self.0.flush().map_err(told)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(told)
    }
}

/// True where the reader of the output stream has gone (`tandem ... | head`): it has seen enough.
pub(super) fn is_reader_gone(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|error| {
        error.kind() == ErrorKind::BrokenPipe
            && error.get_ref().is_some_and(|inner| inner.is::<OutputError>())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reader_of_the_output_may_go() {
        let broken = || io::Error::from(ErrorKind::BrokenPipe);
        assert!(is_reader_gone(&told(broken()).into()));
        assert!(is_reader_gone(&anyhow::Error::from(told(broken())).context("a command")));
        for other in [broken(), told(io::Error::from(ErrorKind::StorageFull))] {
            assert!(!is_reader_gone(&other.into()));
        }
        let full = told(io::Error::from(ErrorKind::StorageFull)).to_string();
        assert!(full.starts_with("standard output cannot be written: "), "{full}");
    }
}
