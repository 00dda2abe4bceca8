//! The result of an exploration, for scripts: as JSON, and as JUnit's XML.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stetfs_crash::sharing::{Shard, Shards, check_same, listed};
use stetfs_testkit::world::tree::hash;

use crate::call::Recording;
use crate::explore::{Counts, Early, Explored, Noticed};
use crate::finding::Reported;
use crate::judge::{Check, Rule};
use crate::record::Saved;

/// The request. Shards with the same request add up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The version of the program that explored.
    pub version: String,
    /// The program that was recorded, and its arguments.
    pub program: Vec<String>,
    /// The check.
    pub check: String,
    /// What makes a state right.
    #[serde(default)]
    pub rule: Rule,
    /// Seconds after which a check counts as failed.
    pub check_timeout: f64,
    /// A checksum of the recording.
    pub checksum: String,
    /// The seed of the choice of states.
    pub seed: u64,
    /// True if each sync was left out in turn.
    pub mutate: bool,
}

impl Asked {
    /// The request to explore a recording with this check.
    pub fn new(saved: &Saved, check: &Check, seed: u64, mutate: bool) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program: saved.program.clone(),
            check: check.command.clone(),
            rule: check.rule,
            check_timeout: check.timeout.as_secs_f64(),
            checksum: checksum(&saved.recording),
            seed,
            mutate,
        }
    }
}

/// The report of an exploration.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The request.
    #[serde(flatten)]
    pub asked: Asked,
    /// The shards that it covers.
    pub shards: Shards,
    /// How the program ended while it was recorded.
    pub ended: String,
    /// The end of the program's output.
    pub output: String,
    /// Calls that were recorded.
    pub calls: usize,
    /// Promises that were recorded.
    pub marks: usize,
    /// States with different trees or promises that were judged, under all models.
    pub judged: usize,
    /// Seconds of judging; for several shards, the sum.
    pub seconds: f64,
    /// The strangers, with their refused requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<String>,
    /// The file of the recording.
    pub recording: Option<String>,
    /// The results, one for each model.
    pub models: Vec<OfModel>,
}

/// The result under a model.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct OfModel {
    /// Its name.
    pub model: String,
    /// Why the exploration ended early, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early: Option<Early>,
    /// How much was looked at.
    pub counts: Counts,
    /// A finding for each cause.
    pub findings: Vec<Reported>,
    /// The syncs that were left out in turn, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutants: Option<Vec<Mutant>>,
}

/// A sync that was left out.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Mutant {
    /// The call.
    pub call: String,
    /// Whether the check notices that it is missing.
    pub noticed: Noticed,
}

impl OfModel {
    /// The result of an exploration.
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
    /// Adds the result of another shard under the same model.
    fn add(&mut self, other: Self) {
        let (ours, theirs) = (&mut self.counts, other.counts);
        // Each shard goes through all moments.
        ours.moments = ours.moments.min(theirs.moments);
        ours.moments_sampled = ours.moments_sampled.max(theirs.moments_sampled);
        ours.states += theirs.states;
        ours.folded += theirs.folded;
        ours.failing += theirs.failing;
        ours.seconded += theirs.seconded;
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
    /// The report of a recording that is not explored yet.
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

    /// Parses a report file.
    ///
    /// # Errors
    /// It is no report.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let report: Self =
            serde_json::from_slice(text).context("it is not a report on a program")?;
        report.shards.check()?;
        Ok(report)
    }

    /// Adds the results of other shards.
    ///
    /// # Errors
    /// The requests differ, or a shard is in both.
    pub fn add(&mut self, other: Self) -> Result<()> {
        let first = ["version", "program", "checksum", "check"];
        check_same(&first, &self.asked, &other.asked)?;
        let (ours, theirs) = (self.names(), other.names());
        ensure!(ours == theirs, "its models are {theirs}, not {ours}");
        self.shards.add(other.shards)?;
        self.judged += other.judged;
        self.seconds += other.seconds;
        for (ours, theirs) in self.models.iter_mut().zip(other.models) {
            ours.add(theirs);
        }
        Ok(())
    }

    /// Returns the names of its models.
    fn names(&self) -> String {
        let names = self.models.iter().map(|model| model.model.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// Returns why the exploration ended early, if it did.
    pub fn early(&self) -> Option<Early> {
        self.models.iter().find_map(|model| model.early)
    }

    /// True if there are findings.
    pub fn has_findings(&self) -> bool {
        self.models.iter().any(|model| !model.findings.is_empty())
    }

    /// Writes the report as JUnit's XML: a test suite for each model, with a failing test for each
    /// finding, or one test that passes. Missing shards are a skipped test.
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

/// Returns a checksum of a recording, the same on all machines.
pub fn checksum(recording: &Recording) -> String {
    let text = serde_json::to_vec(recording).expect("maps of a recording have keys that are text");
    format!("{:016x}", hash(&text))
}

/// Escapes text for XML, also within quotes. Replaces characters that XML cannot have.
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
