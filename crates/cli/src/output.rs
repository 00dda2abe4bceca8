//! Standard output: text and JSON. If the reader goes away (`| head`), the command ends without a
//! message.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process;

use serde::Serialize;

use crate::failure::{Explain, Failure, Result};

/// Writes bytes.
pub(crate) fn write_all(bytes: &[u8]) -> Result<()> {
    finish(io::stdout().lock().write_all(bytes))
}

/// Writes text and ends the line.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<()> {
    finish(writeln!(io::stdout().lock(), "{text}"))
}

/// Writes a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// Writes a value as indented JSON to a file, or to standard output if the path is `-`.
pub(crate) fn json_to(path: &Path, value: &impl Serialize) -> Result<()> {
    if path.as_os_str() == "-" {
        return json(value);
    }
    let text = serde_json::to_string_pretty(value)?;
    fs::write(path, text + "\n").during(|| path.display().to_string())
}

/// Writes a value as JSON on one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string(value)?)
}

/// A list of values, written as indented JSON, each as it comes.
pub(crate) struct JsonList {
    is_empty: bool,
}

impl JsonList {
    pub(crate) fn new() -> Self {
        Self { is_empty: true }
    }

    /// Writes one more value.
    pub(crate) fn put(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)?.replace('\n', "\n  ");
        let before = if self.is_empty { "[\n" } else { ",\n" };
        self.is_empty = false;
        write_all(format!("{before}  {text}").as_bytes())
    }

    /// Writes the end.
    pub(crate) fn end(&self) -> Result<()> {
        line(if self.is_empty { "[]" } else { "\n]" })
    }
}

/// Standard output as a stream.
pub(crate) struct Stream;

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        end_if_closed(io::stdout().lock().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        end_if_closed(io::stdout().lock().flush())
    }
}

fn finish(result: io::Result<()>) -> Result<()> {
    let flushed = result.and_then(|()| io::stdout().lock().flush());
    end_if_closed(flushed).map_err(|e| Failure::from(e).context("standard output"))
}

/// Ends the process if nobody reads what it writes.
fn end_if_closed<T>(result: io::Result<T>) -> io::Result<T> {
    if let Err(e) = &result
        && e.kind() == io::ErrorKind::BrokenPipe
    {
        process::exit(0);
    }
    result
}
