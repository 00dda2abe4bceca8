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

fn finish(result: io::Result<()>) -> Result<()> {
    match result.and_then(|()| io::stdout().lock().flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => process::exit(0),
        Err(e) => Err(Failure::from(e).context("standard output")),
    }
}
