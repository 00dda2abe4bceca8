//! The result of an exploration, for scripts: as JSON, and as JUnit's XML.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stetfs_crash::sharing::{Shard, Shards, check_same, listed};
use stetfs_testkit::world::tree::hash;

use crate::call::Recording;
use crate::explore::{Counts, Early, Explored, Noticed};
use crate::finding::Reported;
use crate::judge::Check;
use crate::record::Saved;

/// What was asked. Where that is the same, shards add up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The program that explored.
    pub version: String,
    /// The program that was recorded, and its arguments.
    pub program: Vec<String>,
    /// The check.
    pub check: String,
    /// Seconds after which a check has failed.
    pub check_timeout: f64,
    /// A checksum of the recording.
    pub checksum: String,
    /// Where choices of states are drawn from.
    pub seed: u64,
    /// Whether syncs were left out in turn.
    pub mutate: bool,
}

impl Asked {
    /// This check, about a recording.
    pub fn new(saved: &Saved, check: &Check, seed: u64, mutate: bool) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: saved.program.clone(),
            check: check.command.clone(),
            check_timeout: check.timeout.as_secs_f64(),
            checksum: checksum(&saved.recording),
            seed,
            mutate,
        }
    }
}

/// Everything.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was asked.
    #[serde(flatten)]
    pub asked: Asked,
    /// Of which parts of the states it is.
    pub shards: Shards,
    /// How the program ended while it was recorded.
    pub ended: String,
    /// The end of what it said.
    pub output: String,
    /// Calls that were recorded.
    pub calls: usize,
    /// Promises that were recorded.
    pub marks: usize,
    /// States with different trees or promises that were judged, under all models.
    pub judged: usize,
    /// Seconds that judging took; of several shards, all together.
    pub seconds: f64,
    /// Processes that the program had not started, and what they asked for in vain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<String>,
    /// Where the recording is kept.
    pub recording: Option<String>,
    /// By model.
    pub models: Vec<OfModel>,
}

/// What was found under a model.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct OfModel {
    /// Its name.
    pub model: String,
    /// Why not everything was looked at that was to be; nothing, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early: Option<Early>,
    /// What was looked at.
    pub counts: Counts,
    /// One of each cause.
    pub findings: Vec<Reported>,
    /// Syncs that were left out in turn, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutants: Option<Vec<Mutant>>,
}

/// A sync that was left out.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Mutant {
    /// The call.
    pub call: String,
    /// Whether the check notices.
    pub noticed: Noticed,
}

impl OfModel {
    /// Of an exploration.
    pub fn new(
        recording: &Recording,
        found: Explored,
        mutants: Option<&[(usize, Noticed)]>,
    ) -> Self {
        let mutant = |(number, noticed): &(usize, Noticed)| Mutant {
            call: recording.line(*number),
            noticed: *noticed,
        };
        Self {
            model: found.model,
            early: found.early,
            counts: found.counts,
            findings: found.findings,
            mutants: mutants.map(|mutants| mutants.iter().map(mutant).collect()),
        }
    }
}

impl OfModel {
    /// Adds what another shard gave under the same model.
    fn add(&mut self, other: Self) {
        let (ours, theirs) = (&mut self.counts, other.counts);
        // Each shard goes through all moments.
        ours.moments = ours.moments.min(theirs.moments);
        ours.moments_sampled = ours.moments_sampled.max(theirs.moments_sampled);
        ours.states += theirs.states;
        ours.folded += theirs.folded;
        ours.failing += theirs.failing;
        self.early = self.early.or(other.early);
        for finding in other.findings {
            match self.findings.iter_mut().find(|f| f.cause == finding.cause) {
                Some(known) => known.add(finding),
                None => self.findings.push(finding),
            }
        }
        self.findings.sort_by_key(|finding| finding.number);
        let mutants = self.mutants.iter_mut().flatten();
        for (ours, theirs) in mutants.zip(other.mutants.into_iter().flatten()) {
            ours.noticed = ours.noticed.or(theirs.noticed);
        }
    }
}

impl Report {
    /// Of a recording, before it is explored.
    pub fn new(saved: &Saved, asked: Asked, shard: Shard) -> Self {
        let recording = &saved.recording;
        Self {
            asked,
            shards: shard.into(),
            ended: saved.ended.clone(),
            output: saved.output.clone(),
            calls: recording.calls.len(),
            marks: recording.marks(recording.calls.len()).count(),
            strangers: saved.strangers.clone(),
            judged: 0,
            seconds: 0.0,
            recording: None,
            models: Vec::new(),
        }
    }

    /// From a file's text.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let report: Self = serde_json::from_slice(text).context("it is no report on a program")?;
        report.shards.check()?;
        Ok(report)
    }

    /// Adds what other shards gave.
    ///
    /// # Errors
    /// Something else was asked there; a shard is in both.
    pub fn add(&mut self, other: Self) -> Result<()> {
        let first = ["version", "program", "checksum", "check"];
        check_same(&first, &self.asked, &other.asked)?;
        let (ours, theirs) = (self.names(), other.names());
        ensure!(ours == theirs, "its models are {theirs}, and not {ours}");
        self.shards.add(other.shards)?;
        self.judged += other.judged;
        self.seconds += other.seconds;
        for (ours, theirs) in self.models.iter_mut().zip(other.models) {
            ours.add(theirs);
        }
        Ok(())
    }

    /// The names of its models.
    fn names(&self) -> String {
        let names = self.models.iter().map(|model| model.model.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// Why it is not of everything that was to be looked at, if it is not.
    pub fn early(&self) -> Option<Early> {
        self.models.iter().find_map(|model| model.early)
    }

    /// Whether anything was found.
    pub fn has_findings(&self) -> bool {
        self.models.iter().any(|model| !model.findings.is_empty())
    }

    /// As JUnit's XML: a test suite for each model, with a failing test for each finding, or one
    /// test that passes; shards that are missing are a test that was skipped.
    pub fn junit(&self) -> String {
        let program = escaped(&self.asked.program.join(" "));
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
        for model in &self.models {
            let (name, failures) = (&model.model, model.findings.len());
            let tests = (failures + usize::from(model.early.is_some())).max(1);
            let skipped = match model.early {
                None => "",
                Some(_) => " skipped=\"1\"",
            };
            out += &format!(
                "  <testsuite name=\"power cut, {name}\" tests=\"{tests}\" \
                    failures=\"{failures}\"{skipped}>\n"
            );
            if let Some(early) = model.early {
                let early = early.text();
                out += &format!(
                    "    <testcase classname=\"{name}\" name=\"{program}: the rest\">\n      \
                        <skipped message=\"INCOMPLETE: {early}\"/>\n    </testcase>\n"
                );
            } else if model.findings.is_empty() {
                out += &format!("    <testcase classname=\"{name}\" name=\"{program}\"/>\n");
            }
            for finding in &model.findings {
                let (case, text) = (escaped(&finding.case), escaped(&finding.told.headline));
                let all = [&finding.told.calls[..], &finding.told.differences[..]].concat();
                let all = escaped(&all.join("\n"));
                out += &format!(
                    "    <testcase classname=\"{name}\" name=\"{program}: {case}\">\n      \
                        <failure message=\"{text}\">{all}</failure>\n    </testcase>\n"
                );
            }
            out += "  </testsuite>\n";
        }
        let missing = self.shards.missing();
        if !missing.is_empty() {
            let missing = listed(missing.iter());
            out += &format!(
                "  <testsuite name=\"shards\" tests=\"1\" skipped=\"1\">\n    \
                    <testcase classname=\"shards\" name=\"{missing} of {}\">\n      \
                        <skipped message=\"not in the report\"/>\n    </testcase>\n  \
                    </testsuite>\n",
                self.shards.of
            );
        }
        out + "</testsuites>\n"
    }
}

/// A checksum of a recording, the same on all machines that have it.
fn checksum(recording: &Recording) -> String {
    let text = serde_json::to_vec(recording).expect("maps of a recording have keys that are text");
    format!("{:016x}", hash(&text))
}

/// Text within XML, also within quotes. Characters that XML cannot have are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_in_xml_ends_it() {
        assert_eq!(
            super::escaped("<\"a\"&\u{1}>"),
            "&lt;&quot;a&quot;&amp;\u{fffd}&gt;"
        );
    }
}
