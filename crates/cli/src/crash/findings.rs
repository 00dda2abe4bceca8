//! What the exploration of a program found, for people and for CI.

use std::fs;
use std::path::Path;

use stetfs_crash::exploration::grouped;
use stetfs_crash::sharing::listed;
use stetfs_powercut::explore::Noticed;
use stetfs_powercut::report::{OfModel, Report};

use crate::failure::{Explain, Result};
use crate::output;

/// Writes the files that were asked for, and shows a report unless it went to standard output. With
/// `is_sum`, all shards must be in the report.
pub(super) fn show(
    report: &Report,
    is_sum: bool,
    (json, junit): (Option<&Path>, Option<&Path>),
) -> Result<()> {
    if let Some(file) = junit {
        fs::write(file, report.junit()).during(|| file.display().to_string())?;
    }
    if let Some(file) = json {
        output::json_to(file, report)?;
        if file.as_os_str() == "-" {
            return Ok(());
        }
    }
    if let Some(early) = report.early() {
        let early = early.text();
        output::line(format_args!(
            "INCOMPLETE: {early} before everything was explored; this report covers only the \
                explored part"
        ))?;
    }
    if report.shards.of > 1 {
        let first = if is_sum && !report.shards.missing().is_empty() {
            "INCOMPLETE: "
        } else {
            ""
        };
        output::line(format_args!("{first}{}", shards(report)))?;
    }
    if report.ended != ENDED_WELL {
        output::line(format_args!(
            "the program {}: its calls until then were explored",
            report.ended
        ))?;
    }
    for model in &report.models {
        output::line(summary(model))?;
        for (n, finding) in model.findings.iter().enumerate() {
            output::line(finding.text(n + 1, report.recording.as_deref()))?;
        }
        for mutant in model.mutants.iter().flatten() {
            let noticed = match mutant.noticed {
                Noticed::Yes => "noticed",
                Noticed::No => "NOT NOTICED",
                Noticed::NotSoFar => "INCOMPLETE: not noticed in the explored part",
            };
            output::line(format_args!("without {}: {noticed}", mutant.call))?;
        }
    }
    Ok(())
}

/// The words for a program that ended as it should.
const ENDED_WELL: &str = "ended with exit code 0";

/// Summarises what was looked at under a model.
fn summary(model: &OfModel) -> String {
    let (name, counts) = (&model.model, &model.counts);
    if model.early.is_some() && counts.states == 0 {
        return format!("INCOMPLETE {name}: nothing was explored");
    }
    let looked_at = match model.early {
        None => "",
        Some(_) => " explored",
    };
    let first = match model.early {
        None => String::new(),
        Some(_) => "INCOMPLETE ".to_owned(),
    };
    let moments = if counts.moments < counts.moments_all || model.early.is_some() {
        format!("{} of {} moments", counts.moments, counts.moments_all)
    } else {
        format!("{} moments", counts.moments)
    };
    let which = match (model.early, counts.moments_sampled) {
        (Some(_), _) => String::new(),
        (None, 0) => ", all states".to_owned(),
        (None, n) => format!(", a selection of states at {n} of them"),
    };
    let causes = match model.findings.len() {
        1 => "1 cause".to_owned(),
        n => format!("{n} causes"),
    };
    let seconded = match counts.seconded {
        0 => String::new(),
        n => format!("; the kernel and e2fsck agree on {} recoveries", grouped(n)),
    };
    format!(
        "{first}{name}: {moments}{which}: {} states{looked_at}, {} of them judged, {} fail, for \
            {causes}{seconded}",
        grouped(counts.states),
        grouped(counts.states - counts.folded),
        grouped(counts.failing),
    )
}

/// Says which shards a report contains and which are missing.
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
