//! Output of the command: lines, JSON, files.

use std::fmt::Display;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stetfs_lab::experiment::report;

/// What is run beside the kernel, and where its numbers go.
#[derive(Debug, Args)]
pub(super) struct Measured {
    /// A workload of your own instead (stetfs lab run --list): calls, files, servers, sqlite
    #[arg(long, value_name = "WORKLOAD")]
    pub(super) workload: Option<String>,
    /// Seed of contents, orders and choices
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Write every number as CSV, to a file or to - (in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    csv: Option<PathBuf>,
    /// Write everything as JSON, to a file or to - (in place of the table)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Take the numbers from a file that --json wrote, and run nothing
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    from: Option<PathBuf>,
    /// Write the document
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    document: Option<PathBuf>,
}

impl Measured {
    /// The numbers of `measure`, or those of the file that was named.
    pub(super) fn sheet<S: DeserializeOwned>(
        &self,
        measure: impl FnOnce(&dyn Fn(&str)) -> Result<S>,
    ) -> Result<S> {
        if let Some(path) = &self.from {
            let text = fs::read(path).with_context(|| path.display().to_string())?;
            return serde_json::from_slice(&text).with_context(|| path.display().to_string());
        }
        let bar = bar();
        let sheet = measure(&|what| bar.set_message(what.to_owned()));
        bar.finish_and_clear();
        sheet
    }

    /// Writes the numbers where they were asked for. True if a table is wanted too.
    pub(super) fn write(
        &self,
        json: impl FnOnce() -> Result<String>,
        csv: impl FnOnce() -> String,
    ) -> Result<bool> {
        if let Some(path) = &self.json {
            write(path, &json()?)?;
        }
        if let Some(path) = &self.csv {
            write(path, &csv())?;
        }
        Ok(!is_stdout(self.csv.as_ref()) && !is_stdout(self.json.as_ref()))
    }

    /// Writes the document, if one was asked for.
    pub(super) fn write_document(&self, document: impl FnOnce() -> Result<String>) -> Result<()> {
        match &self.document {
            Some(path) => write(path, &document()?),
            None => Ok(()),
        }
    }
}

/// Writes text to standard output and ends the line.
pub(super) fn line(text: impl Display) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Whether JSON goes to standard output, in place of tables.
pub(super) fn is_stdout(json: Option<&PathBuf>) -> bool {
    json.is_some_and(|path| path.as_os_str() == "-")
}

/// Writes a value as indented JSON to a file, or to standard output where that is `-`.
pub(super) fn json_to(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    if path.as_os_str() == "-" {
        return line(text);
    }
    fs::write(path, text + "\n").with_context(|| path.display().to_string())
}

pub(super) fn bar() -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    if let Ok(style) = ProgressStyle::with_template("{bar:20} {percent:>3}% {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

pub(super) fn numbers(table: &report::Table) -> Table {
    let mut shown = Table::new();
    shown.load_preset(presets::NOTHING);
    shown.set_header(&table.head);
    for row in &table.rows {
        shown.add_row(row);
    }
    for column in 1..table.head.len() {
        let is_text = |row: &Vec<String>| {
            row.get(column)
                .is_some_and(|c| c.starts_with(char::is_alphabetic))
        };
        if let Some(shown) = shown.column_mut(column)
            && !table.rows.iter().any(is_text)
        {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    shown
}

/// Writes text to a file, or to standard output where that is `-`.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    let text = text.trim_end();
    if path.as_os_str() == "-" {
        return line(text);
    }
    fs::write(path, format!("{text}\n")).with_context(|| path.display().to_string())
}
