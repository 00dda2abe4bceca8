//! Describes a failure in the program's own words: what was lost, what persisted, and which sync
//! would have kept the lost part.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::call::{Call, Recording, What};
use crate::effect::{Arrangement, Change, Number, Set};
use crate::judge::Verdict;
use crate::model::Model;
use crate::numbers::without_numbers;
use crate::remedy::{self, Helpless, path_of};
use crate::run::End;
use crate::states::Cut;
use crate::tree::Object;

/// What the failures of one finding have in common: the kinds of lost changes, their calls and
/// files. Numbers in names count as equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cause(BTreeSet<(String, String)>);

impl Cause {
    /// A cause of these kinds of losses, each with the thing that is lost.
    pub fn new(what: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(what.into_iter().collect())
    }

    /// The cause of a failure that was made small.
    pub fn of(recording: &Recording, arrangement: &Arrangement, cut: &Cut) -> Self {
        let lost = cut.lost_first(arrangement).into_iter().map(|n| {
            let effect = &arrangement.effects[n];
            let call = &recording.calls[effect.call];
            let verb = call.text();
            let verb = verb.split(['(', ' ']).next().unwrap_or_default();
            let mut what = format!("{verb} {}", call.path);
            if let What::Rename { to_path, .. } = &call.what {
                what = format!("{what} {to_path}");
            }
            // A length and the data under it are lost for the same reason.
            let kind = match effect.change.kind() {
                "data" | "length" => "contents",
                other => other,
            };
            (kind.to_owned(), without_numbers(&what))
        });
        Self(lost.collect())
    }
}

/// A failure, made small, and the others with the same cause.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The number of the first failing state, in the order of enumeration.
    pub number: u64,
    /// What it has in common with the others.
    pub cause: Cause,
    /// The power cut, with as few losses as possible.
    pub cut: Cut,
    /// The lost effects.
    pub lost: Vec<Number>,
    /// Its description.
    pub told: Told,
    /// Failing states with this cause.
    pub states: u64,
    /// Some of these states.
    pub some: Vec<Cut>,
}

/// A finding, as reports have it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Reported {
    /// The number of the first failing state, in the order of enumeration.
    pub number: u64,
    /// The common cause of its failures.
    pub cause: Cause,
    /// The name of the case.
    pub case: String,
    /// Failing states with this cause.
    pub states: u64,
    /// Its description.
    #[serde(flatten)]
    pub told: Told,
    /// Syncs that together would have prevented the failing states.
    pub remedy: Vec<String>,
    /// Why no syncs would; `None` if this was not found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helpless: Option<Helpless>,
}

/// The description of a finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The failure in one or two sentences.
    pub headline: String,
    /// The last calls, each with its fate.
    pub calls: Vec<String>,
    /// The name of the tree that is compared with.
    pub against: String,
    /// The differences from that tree.
    pub differences: Vec<String>,
    /// How the check ended.
    pub check: String,
    /// The end of the check's output.
    pub output: String,
}

impl Reported {
    /// Adds failing states of the same cause. The description is that of the first one.
    pub fn add(&mut self, mut other: Self) {
        if other.number < self.number {
            std::mem::swap(self, &mut other);
        }
        self.states += other.states;
        // Both remedies together help against both, unless nothing helps against one.
        if other.remedy.is_empty() {
            self.remedy.clear();
        }
        self.helpless = match (self.helpless, other.helpless) {
            (Some(Helpless::NoSync), _) | (_, Some(Helpless::NoSync)) => Some(Helpless::NoSync),
            (one, other) => one.or(other),
        };
        if !self.remedy.is_empty() {
            let more = other.remedy.into_iter();
            let more: Vec<_> = more.filter(|one| !self.remedy.contains(one)).collect();
            self.remedy.extend(more);
        }
    }

    /// Formats the finding for people. `recording`: the file with which it can be replayed.
    pub fn text(&self, number: usize, recording: Option<&str>) -> String {
        let told = &self.told;
        let mut text = format!(
            "\nfinding {number}, {} states: {}\n\n{}\n",
            self.states,
            told.headline,
            indented(&told.calls.join("\n"))
        );
        text += &if told.output.is_empty() {
            format!("\n  the check {}, and printed nothing\n", told.check)
        } else {
            format!(
                "\n  the check {}:\n{}\n",
                told.check,
                indented(&told.output)
            )
        };
        if !told.differences.is_empty() {
            text += &format!("  against {}:\n", told.against);
            text += &format!("{}\n", indented(&told.differences.join("\n")));
        }
        for (n, remedy) in self.remedy.iter().enumerate() {
            text += &match n {
                0 => format!("  what would help: {remedy}\n"),
                _ => format!("    together with: {remedy}\n"),
            };
        }
        text += match self.helpless {
            None => "",
            Some(Helpless::NoSync) => {
                "  no fsync would help: the power may fail before any fsync ends. Other calls \
                    would, or another order of calls\n"
            }
            Some(Helpless::ManySyncs) => {
                "  no three fsyncs that were tried would help; an fsync after each call would\n"
            }
        };
        if told.check == End::TimedOut.text() {
            text += "  if the check is only slow, give it more time: --check-timeout SECONDS\n";
        }
        if let Some(recording) = recording {
            text += &format!(
                "  stetfs crash --replay '{recording}#{}' --shell\n",
                self.case
            );
        }
        text
    }
}

/// Indents each line.
pub fn indented(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("    {line}")).collect();
    lines.join("\n")
}

/// At most this many calls are shown.
const SHOWN: usize = 16;

/// At most this many failing states of a moment are kept in any case.
const OF_MOMENT: usize = 4;

/// At most this many differences are shown.
const DIFFERENCES: usize = 8;

impl Finding {
    /// A failure of the state with this number, made small; `passing`: the nearest state that
    /// passes.
    pub fn new(
        recording: &Recording,
        arrangement: &Arrangement,
        (number, cut): (u64, Cut),
        passing: Option<Cut>,
        verdict: &Verdict,
    ) -> Self {
        let lost = cut.lost(arrangement);
        let differences = passing.map(|passing| {
            let tree =
                |cut: &Cut| arrangement.tree(recording, &cut.there, arrangement.ends[cut.calls]);
            tree(&cut).differences(&tree(&passing))
        });
        let told = Told {
            headline: headline(recording, arrangement, &cut),
            calls: calls(recording, arrangement, &cut, &lost),
            against: "the nearest state that passes".to_owned(),
            differences: few(differences.unwrap_or_default()),
            check: verdict.end.text(),
            output: verdict.output.trim_end().to_owned(),
        };
        Self {
            number,
            cause: Cause::of(recording, arrangement, &cut),
            cut,
            lost,
            told,
            states: 0,
            some: Vec::new(),
        }
    }

    /// One more state fails with this cause. At most so many are kept, and some of each moment, as
    /// long as that are not too many.
    pub fn again(&mut self, cut: &Cut, most: usize) {
        self.states += 1;
        let of_moment = self
            .some
            .iter()
            .rev()
            .take_while(|kept| kept.calls == cut.calls);
        let is_first = of_moment.count() < OF_MOMENT && self.some.len() < most * OF_MOMENT * 4;
        if self.some.len() < most || is_first {
            self.some.push(cut.clone());
        }
    }

    /// Returns the name of the case, which replays it: the model, the calls, and the lost effects.
    pub fn case(&self, model: Model) -> String {
        format!("{model}:{}:{}", self.cut.calls, ranges(&self.lost))
    }

    /// Returns the finding for a report.
    pub fn reported(&self, recording: &Recording, model: Model) -> Reported {
        let mut states = vec![self.cut.clone()];
        states.extend_from_slice(&self.some);
        let remedy = remedy::remedy(recording, model, &states);
        let (remedy, helpless) = match remedy {
            Ok(syncs) => (syncs, None),
            Err(helpless) => (Vec::new(), Some(helpless)),
        };
        let remedy = remedy.iter().map(|place| place.text(recording));
        Reported {
            number: self.number,
            cause: self.cause.clone(),
            case: self.case(model),
            states: self.states,
            told: self.told.clone(),
            remedy: remedy.collect(),
            helpless,
        }
    }
}

/// Writes numbers as text: `1,3-5`.
fn ranges(numbers: &[Number]) -> String {
    let mut out: Vec<(Number, Number)> = Vec::new();
    for n in numbers {
        match out.last_mut() {
            Some((_, last)) if *last + 1 == *n => *last = *n,
            _ => out.push((*n, *n)),
        }
    }
    let one = |(a, b): &(Number, Number)| {
        if a == b {
            a.to_string()
        } else {
            format!("{a}-{b}")
        }
    };
    out.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Parses a case: the model, and the power cut.
///
/// # Errors
/// It is no case, or its cut is impossible.
pub fn parse_case(case: &str, recording: &Recording) -> Result<(Model, Cut), String> {
    let wrong = || format!("\"{case}\" is not MODEL:CALLS:LOST, as a finding prints it");
    let mut parts = case.split(':');
    let (Some(model), Some(calls), Some(lost), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(wrong());
    };
    let model: Model = model.parse()?;
    let arrangement = model.arrange(recording);
    let calls: usize = calls.parse().map_err(|_| wrong())?;
    let Some(end) = arrangement.ends.get(calls).copied() else {
        return Err(format!("the recording has {} calls", recording.calls.len()));
    };
    let mut there = Set::first(end);
    for range in lost.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<Number>().map_err(|_| wrong());
        for n in number(first)?..=number(last)?.min(end) {
            there.remove(n);
        }
    }
    let mut closed = there.clone();
    arrangement.close(&mut closed, end);
    if closed != there || !arrangement.must(calls).is_in(&there) {
        return Err(format!("{model} does not leave the state of {case}"));
    }
    Ok((model, Cut { calls, there }))
}

/// Says what was lost, and what persisted nevertheless.
fn headline(recording: &Recording, arrangement: &Arrangement, cut: &Cut) -> String {
    let lost = cut.lost_first(arrangement);
    let after = match cut.calls {
        0 => "before the first call".to_owned(),
        calls => format!("after call {calls}, {}", recording.calls[calls - 1].text()),
    };
    if lost.is_empty() {
        return format!(
            "power cut {after}: everything until then is on the disk, and the check fails."
        );
    }
    let mut text = format!("power cut {after}: ");
    let first = lost.iter().map(|n| arrangement.effects[*n].call).min();
    let mut parts: Vec<String> = Vec::new();
    for n in lost.iter().take(3) {
        let effect = &arrangement.effects[*n];
        let call = &recording.calls[effect.call];
        let number = effect.call + 1;
        parts.push(match &effect.change {
            Change::Names(_) => format!("{} (call {number})", call.text()),
            change => format!("{} of {} (call {number})", change.text(), call.text()),
        });
    }
    if lost.len() > 3 {
        parts.push(format!("{} more", lost.len() - 3));
    }
    text += &format!("not on the disk: {}", parts.join("; "));
    let later = (0..arrangement.ends[cut.calls])
        .filter(|n| cut.there.has(*n) && Some(arrangement.effects[*n].call) > first)
        .map(|n| arrangement.effects[n].call);
    let later: BTreeSet<usize> = later.collect();
    if let Some(last) = later.last() {
        let call = &recording.calls[*last];
        text += &format!(". On the disk: {} (call {})", call.text(), last + 1);
    }
    let objects: BTreeSet<Object> = lost
        .iter()
        .flat_map(|n| arrangement.effects[*n].change.objects())
        .collect();
    for object in objects {
        let from = lost.iter().filter_map(|n| {
            let effect = &arrangement.effects[*n];
            effect
                .change
                .objects()
                .contains(&object)
                .then_some(effect.call)
        });
        let Some(from) = from.max() else { continue };
        let of = path_of(recording, from, object);
        let is_sync = |call: &Call| match call.what {
            What::Fsync { object: synced, .. } => synced == object,
            What::Sync => true,
            _ => false,
        };
        let mut later = recording.calls.iter().enumerate().skip(from);
        text += &match later.find(|(_, call)| is_sync(call)) {
            None => format!(". No fsync of {of} comes after call {}", from + 1),
            Some((at, _)) => format!(". The fsync of {of} comes only with call {}", at + 1),
        };
    }
    text + "."
}

/// Returns the last calls, each with its fate.
fn calls(
    recording: &Recording,
    arrangement: &Arrangement,
    cut: &Cut,
    lost: &[Number],
) -> Vec<String> {
    let lost = lost.iter().map(|n| arrangement.effects[*n].call);
    let became = |call| became(arrangement, cut, call);
    last_calls(recording, cut.calls, lost.collect(), &became)
}

/// Shortens a list of differences to as many as people read.
pub fn few(mut differences: Vec<String>) -> Vec<String> {
    if differences.len() > DIFFERENCES {
        let more = differences.len() - DIFFERENCES;
        differences.truncate(DIFFERENCES);
        differences.push(format!("and {more} more"));
    }
    differences
}

/// Returns the last of these calls, and those that are lost, each with its fate.
pub(crate) fn last_calls(
    recording: &Recording,
    calls: usize,
    lost: BTreeSet<usize>,
    became: &dyn Fn(usize) -> &'static str,
) -> Vec<String> {
    let mut shown: BTreeSet<usize> = (calls.saturating_sub(SHOWN / 2)..calls).collect();
    for call in lost.iter().take(SHOWN / 2) {
        shown.extend(call.saturating_sub(1)..=*call);
    }
    let mut lines = Vec::new();
    let mut next = None;
    for number in shown {
        if next.is_some_and(|next| next < number) {
            lines.push("...".to_owned());
        }
        next = Some(number + 1);
        if let What::Close { .. } = recording.calls[number].what {
            continue;
        }
        lines.push(format!("{:12} {}", became(number), recording.line(number)));
    }
    lines.push(format!("{:12} power cut", ""));
    lines
}

/// Returns the fate of a call.
fn became(arrangement: &Arrangement, cut: &Cut, call: usize) -> &'static str {
    let of_call = arrangement.ends[call]..arrangement.ends[call + 1];
    let there = of_call.clone().filter(|n| cut.there.has(*n)).count();
    let data = of_call.clone().filter(|n| {
        let change = &arrangement.effects[*n].change;
        matches!(change, Change::Data { .. }) && cut.there.has(*n)
    });
    match (there, of_call.len(), data.count()) {
        (_, 0, _) => "",
        (there, all, _) if there == all => "on the disk",
        (0, _, _) => "LOST",
        (_, _, 0) => "data LOST",
        _ => "partly LOST",
    }
}

#[cfg(test)]
mod tests {
    use crate::numbers::without_numbers;

    #[test]
    fn names_that_differ_by_chance_are_one() {
        for (name, same) in [
            ("rename tmp config", "rename tmp config"),
            ("write db/000003.log", "write db/#.log"),
            ("write data17", "write data#"),
            ("link objects/d0/0491fd7e5b", "link objects/#/#"),
            (
                "write objects/0c/tmp_obj_m9KslF",
                "write objects/#/tmp_obj_#",
            ),
            ("write tmp_obj_dkfFwG", "write tmp_obj_#"),
            ("write face", "write face"),
        ] {
            assert_eq!(without_numbers(name), same);
        }
    }
}
