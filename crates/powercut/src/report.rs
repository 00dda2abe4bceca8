//! What is left of an exploration, for scripts: as JSON, and as JUnit's XML.

use serde::Serialize;

use crate::call::Recording;
use crate::explore::{Counts, Explored};
use crate::finding::Told;
use crate::run::Ran;

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Of this program.
    pub version: &'static str,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// The check.
    pub check: String,
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
    /// Seconds that judging took.
    pub seconds: f64,
    /// Where the recording is kept, if there are findings.
    pub recording: Option<String>,
    /// By model.
    pub models: Vec<OfModel>,
}

/// What was found under a model.
#[derive(Debug, Serialize)]
pub struct OfModel {
    /// Its name.
    pub model: &'static str,
    /// Whether everything was looked at that was to be.
    pub finished: bool,
    /// What was looked at.
    pub counts: Counts,
    /// One of each cause.
    pub findings: Vec<OfFinding>,
    /// Syncs that were left out in turn, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutants: Option<Vec<Mutant>>,
}

/// A finding.
#[derive(Debug, Serialize)]
pub struct OfFinding {
    /// The name of the case.
    pub case: String,
    /// Failing states with this cause.
    pub states: u64,
    /// The story.
    #[serde(flatten)]
    pub told: Told,
    /// What would have kept the failing states away.
    pub remedy: Vec<String>,
}

/// A sync that was left out.
#[derive(Debug, Serialize)]
pub struct Mutant {
    /// The call.
    pub call: String,
    /// Whether the check notices.
    pub noticed: bool,
}

impl OfModel {
    /// Of an exploration.
    pub fn new(recording: &Recording, found: &Explored, mutants: Option<&[(usize, bool)]>) -> Self {
        let findings = found.findings.iter().map(|finding| {
            let remedy = finding.remedy(recording, found.model).unwrap_or_default();
            let remedy = remedy.into_iter().map(|(path, after)| {
                let after = format!("call {}, {}", after + 1, recording.calls[after].text());
                format!("fsync of {path} after {after}")
            });
            OfFinding {
                case: finding.case(found.model),
                states: finding.states,
                told: finding.told.clone(),
                remedy: remedy.collect(),
            }
        });
        let mutant = |(number, noticed): &(usize, bool)| Mutant {
            call: recording.line(*number),
            noticed: *noticed,
        };
        Self {
            model: found.model.name,
            finished: found.finished,
            counts: found.counts.clone(),
            findings: findings.collect(),
            mutants: mutants.map(|mutants| mutants.iter().map(mutant).collect()),
        }
    }
}

impl Report {
    /// Of a recording, before it is explored.
    pub fn new(program: Vec<String>, check: &str, recording: &Recording, ran: &Ran) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            program,
            check: check.to_owned(),
            ended: ran.end.text(),
            output: ran.output.clone(),
            calls: recording.calls.len(),
            marks: recording.marks(recording.calls.len()).count(),
            judged: 0,
            seconds: 0.0,
            recording: None,
            models: Vec::new(),
        }
    }

    /// Whether anything was found.
    pub fn has_findings(&self) -> bool {
        self.models.iter().any(|model| !model.findings.is_empty())
    }

    /// As JUnit's XML: a test suite for each model, with a failing test for each finding, or one
    /// test that passes.
    pub fn junit(&self) -> String {
        let program = escaped(&self.program.join(" "));
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
        for model in &self.models {
            let (name, failures) = (model.model, model.findings.len());
            let tests = failures.max(1);
            out += &format!(
                "  <testsuite name=\"power cut, {name}\" tests=\"{tests}\" \
                    failures=\"{failures}\">\n"
            );
            if model.findings.is_empty() {
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
        out + "</testsuites>\n"
    }
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
