//! What exploring a program gave, for people and for CI.

use std::fs;
use std::path::Path;

use stetfs_crash::exploration::grouped;
use stetfs_crash::sharing::listed;
use stetfs_powercut::finding::Reported;
use stetfs_powercut::report::Report;

use super::indented;
use crate::failure::{Explain, Result};
use crate::output;

/// Writes the files that were asked for, and shows a report unless it went to standard output.
pub(super) fn show(report: &Report, json: Option<&Path>, junit: Option<&Path>) -> Result<()> {
    if let Some(file) = junit {
        fs::write(file, report.junit()).during(|| file.display().to_string())?;
    }
    if let Some(file) = json {
        output::json_to(file, report)?;
        if file.as_os_str() == "-" {
            return Ok(());
        }
    }
    if report.shards.of > 1 {
        output::line(shards(report))?;
    }
    for model in &report.models {
        let counts = &model.counts;
        let mut of = match counts.moments < counts.moments_all || !model.finished {
            true => format!("{} of {} moments", counts.moments, counts.moments_all),
            false => format!("{} moments", counts.moments),
        };
        of += &match (model.finished, counts.moments_sampled) {
            (false, _) => String::new(),
            (true, 0) => ", all states".to_owned(),
            (true, n) => format!(", a choice of states at {n} of them"),
        };
        output::line(format_args!(
            "{}: {of}: {} states, {} of them judged, {} fail, for {}",
            model.model,
            grouped(counts.states),
            grouped(counts.states - counts.folded),
            grouped(counts.failing),
            match model.findings.len() {
                1 => "1 cause".to_owned(),
                n => format!("{n} causes"),
            }
        ))?;
        for (n, finding) in model.findings.iter().enumerate() {
            output::line(shown(n + 1, finding, report.recording.as_deref()))?;
        }
        for mutant in model.mutants.iter().flatten() {
            let noticed = match mutant.noticed {
                true => "noticed",
                false => "NOT NOTICED",
            };
            output::line(format_args!("without {}: {noticed}", mutant.call))?;
        }
    }
    Ok(())
}

/// A finding, for people.
fn shown(number: usize, finding: &Reported, recording: Option<&str>) -> String {
    let told = &finding.told;
    let mut text = format!(
        "\nfinding {number}, {} states: {}\n\n{}\n",
        finding.states,
        told.headline,
        indented(&told.calls.join("\n"))
    );
    text += &match told.output.is_empty() {
        true => format!("\n  the check {}, and said nothing\n", told.check),
        false => format!(
            "\n  the check {}:\n{}\n",
            told.check,
            indented(&told.output)
        ),
    };
    if !told.differences.is_empty() {
        text += &format!("  against {}:\n", told.against);
        text += &format!("{}\n", indented(&told.differences.join("\n")));
    }
    for remedy in &finding.remedy {
        text += &format!("  what would help: {remedy}\n");
    }
    if let Some(recording) = recording {
        text += &format!(
            "  stetfs crash --replay '{recording}#{}' --shell\n",
            finding.case
        );
    }
    text
}

/// Which shards a report is of, and which are missing.
fn shards(report: &Report) -> String {
    let shards = &report.shards;
    match shards.missing() {
        missing if missing.is_empty() => format!("all {} shards", shards.of),
        missing => format!(
            "shard {shards}; MISSING: {} of {}",
            listed(missing.iter()),
            shards.of
        ),
    }
}
