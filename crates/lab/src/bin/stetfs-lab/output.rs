//! Output of the command: lines, JSON, files.

use std::fmt::Display;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use stetfs_lab::experiment::report;

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
