//! Explores what a system that runs leaves of a program: one of our schemes, or the kernel's ext4.
//! The power is cut between any two changes of the media, and each state is recovered
//! (`docs/EXPLORER.md` says how states are chosen). The recovered trees are judged as all other
//! states are.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use stetfs_crash::fold::{DiffTracker, Folds, States};
use stetfs_crash::moment::Moment;
use stetfs_crash::states::Effort;
use stetfs_media::Image;
use stetfs_media::sim::Keep;
use stetfs_testkit::rng::Rng;

use crate::call::Recording;
use crate::explore::{Counts, Court, Early, Explored, State, Way};
use crate::finding::{Cause, Reported, Told, few, last_calls};
use crate::judge::{Error, Judge, Key};
use crate::model::Had;
use crate::numbers::without_numbers;
use crate::player::Pace;
use crate::remedy::{Helpless, Place, made_durable_by, with_all, with_place};
use crate::system::{Played, System};
use crate::tree::Tree;

/// Moments that are looked at, at most, for each pace.
const MOMENTS: usize = 2048;

/// Of this many states that were recovered, others judge one.
const SECOND_EVERY: usize = 32;

/// How often a system that does not do the same twice is asked for a state.
const TRIES: usize = 24;

/// A power cut on blocks.
#[derive(Clone, Debug)]
struct Cut {
    pace: Pace,
    /// Changes of the media that were made.
    changes: u64,
    /// Which of those that were not flushed are there.
    keep: Keep,
    /// Calls that had returned.
    calls: usize,
}

/// An exploration on a system.
pub struct Explorer<'a> {
    /// What the program did.
    pub recording: &'a Recording,
    /// The system.
    pub system: &'a dyn System,
    /// An empty volume.
    pub fresh: &'a Image,
    /// Who judges.
    pub court: &'a Court<'a>,
    /// Where choices are drawn from.
    pub seed: u64,
}

/// What is found so far.
struct Found {
    counts: Counts,
    findings: Vec<Finding>,
    number: u64,
    way: Way,
    /// Trees that were left after so many marks.
    seen: HashSet<Key>,
}

/// Failures of one cause.
struct Finding {
    reported: Reported,
    /// The last call that is lost of the first of them; the last one, where what is lost is of no
    /// one time; none, where nothing is.
    lost: Option<usize>,
}

impl Explorer<'_> {
    /// Explores, and looks for what would help.
    ///
    /// # Errors
    /// The check cannot be run; the system does not take the program's calls, or does not recover.
    pub fn run(&self) -> Result<Explored, Error> {
        let (mut found, early) = self.found()?;
        if early.is_none() {
            for finding in &mut found.findings {
                self.remedy(finding)?;
            }
        }
        let findings = found.findings.into_iter();
        Ok(Explored {
            model: self.system.to_string(),
            counts: found.counts,
            findings: findings.map(|finding| finding.reported).collect(),
            early,
        })
    }

    /// Whether a sync behind what is lost last would help, or one behind each call like it: then
    /// nothing fails for that cause in an exploration of the same program with that sync.
    fn remedy(&self, finding: &mut Finding) -> Result<(), Error> {
        let of = |call: usize| made_durable_by(&self.recording.calls[call].what);
        let lost = finding.lost.and_then(|call| Some((call, of(call).pop()?)));
        let cause = &finding.reported.cause;
        if let Some(point) = lost {
            for place in [Place::one(point), Place::alike(self.recording, point)] {
                if self.helps(&with_place(self.recording, &place), cause)? == Some(true) {
                    finding.reported.remedy = vec![place.text(self.recording)];
                    return Ok(());
                }
            }
        }
        let by_many = match lost {
            None => Some(false),
            Some(_) => self.helps(&with_all(self.recording), cause)?,
        };
        finding.reported.helpless = by_many.map(|helps| {
            if helps {
                Helpless::ManySyncs
            } else {
                Helpless::NoSync
            }
        });
        Ok(())
    }

    /// Whether nothing fails for that cause in another recording; nothing, if that was not found
    /// out.
    fn helps(&self, recording: &Recording, cause: &Cause) -> Result<Option<bool>, Error> {
        let with = Explorer {
            recording,
            court: &Court {
                // They are no states of the recording.
                looked: &Mutex::default(),
                ..*self.court
            },
            ..*self
        };
        let (found, early) = with.found()?;
        let mut findings = found.findings.iter();
        Ok(if findings.any(|other| other.reported.cause == *cause) {
            Some(false)
        } else {
            early.is_none().then_some(true)
        })
    }

    /// Explores; why it did not come to the end, if it did not.
    fn found(&self) -> Result<(Found, Option<Early>), Error> {
        let mut found = Found {
            counts: Counts::default(),
            findings: Vec::new(),
            number: 0,
            way: Way::begin(),
            seen: HashSet::new(),
        };
        let story = Story::new(self.recording);
        let mut early = None;
        for pace in self.system.paces() {
            if early.is_none() {
                early = self.at_pace(*pace, &story, &mut found)?;
            }
        }
        Ok((found, early))
    }

    fn failed(&self, why: anyhow::Error) -> Error {
        if self.court.judges.iter().any(Judge::is_stopped) {
            return Error::Stopped;
        }
        Error::System(why.context(format!("model {}", self.system)))
    }

    /// Why it did not come to the end, if it did not.
    fn at_pace(
        &self,
        pace: Pace,
        story: &Story<'_>,
        found: &mut Found,
    ) -> Result<Option<Early>, Error> {
        let played = self.system.play(self.fresh, self.recording, pace);
        let played = played.map_err(|why| self.failed(why))?;
        let effort = effort(self.seed);
        let mut rng = Rng::new(self.seed);
        let wanted = moments(&played, &mut rng);
        found.counts.moments_all += all_moments(&played).count();
        let mut recovered = Recovered::new(&played);
        let seconded = found.counts.seconded;
        let last = wanted
            .last()
            .copied()
            .filter(|_| Some(&pace) == self.system.paces().last());
        for moment in played.tapes.moments(wanted) {
            let keeps = effort.choices(&moment.relevant(), &mut rng);
            let possible = stetfs_crash::states::possible(&moment.relevant());
            found.counts.moments += 1;
            found.counts.moments_sampled += usize::from(possible > keeps.len() as u64);
            let left = recovered.at(self.system, &moment, keeps).map_err(|why| {
                self.failed(why.context(format!("{pace}, after {} changes", moment.at())))
            })?;
            found.counts.seconded = seconded + recovered.seconded;
            for calls in played.calls(moment.at(), self.recording) {
                let missed = self.judge(story, (pace, moment.at(), calls), &left, found)?;
                if missed.is_some() {
                    return Ok(missed);
                }
            }
            let Found {
                counts,
                findings,
                way,
                ..
            } = &found;
            let over = self.court.is_over(counts, findings.len(), way);
            // Nothing is left out by an end that comes with the last moment.
            if over.is_some() && Some(moment.at()) != last {
                return Ok(over);
            }
        }
        Ok(None)
    }

    /// Judges what was left at a moment, if so many calls had returned by then; why some of it was
    /// not judged.
    fn judge(
        &self,
        story: &Story<'_>,
        (pace, changes, calls): (Pace, u64, usize),
        left: &[(Arc<Tree>, Keep)],
        found: &mut Found,
    ) -> Result<Option<Early>, Error> {
        let marks: Vec<&str> = self.recording.marks(calls).collect();
        let mut states = Vec::new();
        for (tree, keep) in left {
            let key = Key::of(tree, &marks);
            found.number += 1;
            if found.seen.insert(key) {
                let keep = keep.clone();
                states.push(State {
                    number: found.number,
                    cut: Cut {
                        pace,
                        changes,
                        keep,
                        calls,
                    },
                    tree: (**tree).clone(),
                    key,
                });
            }
        }
        let (court, counts) = (self.court, &mut found.counts);
        let (failing, missed) = court.failing(&states, &marks, counts, &mut found.way)?;
        for state in failing {
            let verdict = court.verdict(&state.tree, &marks)?;
            let (cause, told, lost) = story.of(calls, &state.tree);
            let told = Told {
                check: verdict.end.text(),
                output: verdict.output.trim_end().to_owned(),
                ..told
            };
            self.add(&mut found.findings, state, (cause, told, lost));
        }
        Ok(missed)
    }

    fn add(
        &self,
        findings: &mut Vec<Finding>,
        state: &State<Cut>,
        (cause, told, lost): (Cause, Told, Option<usize>),
    ) {
        let Cut {
            pace,
            changes,
            calls,
            keep,
        } = &state.cut;
        let reported = Reported {
            number: state.number,
            cause,
            case: if self.system.is_repeatable() {
                format!("{}:{pace}:{changes}:{calls}:{keep}", self.system)
            } else {
                let digest = state.tree.digest();
                format!("{}:{pace}:{calls}:{digest:032x}", self.system)
            },
            states: 1,
            told,
            remedy: Vec::new(),
            helpless: None,
        };
        match findings
            .iter_mut()
            .find(|known| known.reported.cause == reported.cause)
        {
            Some(known) => known.reported.add(reported),
            None => findings.push(Finding { reported, lost }),
        }
    }
}

/// Trees that were recovered, for states that are the same where recovery reads.
struct Recovered {
    tracker: DiffTracker,
    folds: Folds<usize>,
    trees: Vec<Arc<Tree>>,
    /// States that others have judged.
    seconded: u64,
}

impl Recovered {
    fn new(played: &Played) -> Self {
        Self {
            tracker: DiffTracker::new(played.start.clone()),
            folds: Folds::default(),
            trees: Vec::new(),
            seconded: 0,
        }
    }

    /// What is recovered of each choice.
    fn at(
        &mut self,
        system: &dyn System,
        moment: &Moment<'_>,
        keeps: Vec<Keep>,
    ) -> Result<Vec<(Arc<Tree>, Keep)>> {
        let relevant = moment.relevant();
        let of_moment = States::of(moment, &relevant, &mut self.tracker);
        let trees = keeps.into_iter().map(|keep| {
            let left = moment.contents(&keep);
            let single;
            let states = match &of_moment {
                Some(states) => states,
                None => {
                    single = States::single(self.tracker.go_to(&left));
                    &single
                }
            };
            let mut lookup = self.folds.lookup(states);
            let state = states.state(&keep);
            let known = self.folds.find(&mut lookup, &state);
            let known = match known {
                Some(known) => known,
                None => {
                    let (media, mut tree) =
                        system.recover(&left).with_context(|| keep.to_string())?;
                    if let Some(before) = self.trees.last() {
                        tree.share(before);
                    }
                    let id = self.trees.len();
                    if id.is_multiple_of(SECOND_EVERY) {
                        let second = system.second_opinion(&left, &tree);
                        let is_judged = second.with_context(|| keep.to_string())?;
                        self.seconded += u64::from(is_judged);
                    }
                    self.folds.add(&lookup, &state, &media.watched().read, id);
                    self.trees.push(Arc::new(tree));
                    id
                }
            };
            Ok((self.trees[known].clone(), keep))
        });
        trees.collect()
    }
}

/// What the program had at each time, to tell what is there of it.
struct Story<'a> {
    recording: &'a Recording,
    had: Had<'a>,
    /// The tree after so many calls.
    digests: Vec<u128>,
}

impl<'a> Story<'a> {
    fn new(recording: &'a Recording) -> Self {
        let had = Had::new(recording);
        let digests = (0..=recording.calls.len()).map(|calls| had.after(calls).digest());
        Self {
            recording,
            digests: digests.collect(),
            had,
        }
    }

    /// What is there of it when the power goes after so many calls, what makes such states one
    /// finding, and the last call that is lost.
    fn of(&self, calls: usize, tree: &Tree) -> (Cause, Told, Option<usize>) {
        let differences = tree.differences(&self.had.after(calls));
        let digest = tree.digest();
        // The call that is under way may be there.
        let most = self.recording.calls.len().min(calls + 1);
        let there = (0..=most)
            .rev()
            .find(|calls| self.digests[*calls] == digest);
        let changes = |call: usize| self.had.changes(call);
        let lost = there.and_then(|there| (there..calls).find(|call| changes(*call)));
        let cause: Vec<(&str, &str)> = match (there, lost) {
            (Some(_), Some(lost)) => vec![("lost", &*self.recording.calls[lost].path)],
            (Some(_), None) => vec![("nothing lost", "")],
            (None, _) => differences.iter().map(|d| ("differs", &**d)).collect(),
        };
        let cause = cause.into_iter();
        let cause = cause.map(|(kind, what)| (kind.to_owned(), without_numbers(what)));
        let cause = Cause::new(cause);
        let became = |call: usize| match (lost, changes(call)) {
            (Some(lost), true) if call >= lost => "LOST",
            (_, true) if there.is_some() => "on the disk",
            _ => "",
        };
        let told = Told {
            headline: self.headline(calls, there, lost),
            calls: last_calls(self.recording, calls, lost.into_iter().collect(), &became),
            against: "what the program had".to_owned(),
            differences: few(differences),
            check: String::new(),
            output: String::new(),
        };
        let first = match there {
            Some(_) => lost,
            None => Some(0),
        };
        let last = first.and_then(|first| (first..calls).rev().find(|call| changes(*call)));
        (cause, told, last)
    }

    fn headline(&self, calls: usize, there: Option<usize>, lost: Option<usize>) -> String {
        let text =
            |call: usize| format!("call {}, {}", call + 1, self.recording.calls[call].text());
        let after = match calls {
            0 => "before the first call returns".to_owned(),
            calls => format!("after {}", text(calls - 1)),
        };
        let what = match (there, lost) {
            (Some(_), None) => {
                "everything until then is on the disk, and the check fails".to_owned()
            }
            (_, Some(lost)) => format!(
                "not on the disk: {}, and everything after it. On the disk: everything before it",
                text(lost)
            ),
            (None, _) => "the disk holds a state that the program never had".to_owned(),
        };
        format!("power cut {after}: {what}.")
    }
}

fn effort(seed: u64) -> Effort {
    Effort {
        guided: 0,
        seed,
        ..Effort::default()
    }
}

/// All moments of a run.
fn all_moments(played: &Played) -> Range<u64> {
    played.returned[0]..played.tapes.changes() + 1
}

/// The moments that are looked at.
fn moments(played: &Played, rng: &mut Rng) -> Vec<u64> {
    let pre_flush = played.tapes.pre_flush_moments();
    let mut wanted = Effort::spread(all_moments(played), &pre_flush, MOMENTS, rng);
    // What was promised by then must be there.
    wanted.extend(&played.returned);
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

/// The state of a case, `MODEL:PACE:CHANGES:CALLS:KEEP`, or `MODEL:PACE:CALLS:STATE` where a run is
/// not the same twice: its tree, and how many calls had returned.
///
/// # Errors
/// It is none; the system leaves no such state.
pub fn replay(
    system: &dyn System,
    case: &str,
    (recording, fresh): (&Recording, &Image),
    seed: u64,
) -> Result<(Tree, usize)> {
    let parts: Vec<&str> = case.splitn(5, ':').collect();
    match (system.is_repeatable(), &parts[..]) {
        (true, [_, pace, changes, calls, keep]) => {
            let played = system.play(fresh, recording, pace.parse()?)?;
            let (changes, calls) = (changes.parse()?, calls.parse()?);
            again(system, &played, recording, (changes, calls, keep.parse()?))
        }
        (false, [_, pace, calls, state]) => {
            let (pace, state) = (pace.parse()?, u128::from_str_radix(state, 16)?);
            let wanted = (calls.parse()?, state, seed);
            for _ in 0..TRIES {
                let played = system.play(fresh, recording, pace)?;
                if let Some(found) = find(system, &played, recording, wanted)? {
                    return Ok(found);
                }
            }
            bail!(
                "{system} has left no such state in {TRIES} runs: it does not do the same twice; \
                    explore again with --recording"
            )
        }
        (true, _) => {
            bail!("\"{case}\" is not MODEL:PACE:CHANGES:CALLS:KEEP, as a finding prints it")
        }
        (false, _) => bail!("\"{case}\" is not MODEL:PACE:CALLS:STATE, as a finding prints it"),
    }
}

/// What is left at a moment.
fn again(
    system: &dyn System,
    played: &Played,
    recording: &Recording,
    (changes, calls, keep): (u64, usize, Keep),
) -> Result<(Tree, usize)> {
    let moment = played.tapes.moment(changes);
    let moment = moment.with_context(|| format!("there are {} changes", played.tapes.changes()))?;
    let can_be = played.calls(changes, recording).contains(&calls);
    ensure!(
        can_be,
        "{calls} calls have not returned after {changes} changes"
    );
    let (_, tree) = system.recover(&moment.contents(&keep))?;
    Ok((tree, calls))
}

/// Looks for a state of this digest after so many calls, as an exploration would.
fn find(
    system: &dyn System,
    played: &Played,
    recording: &Recording,
    (calls, state, seed): (usize, u128, u64),
) -> Result<Option<(Tree, usize)>> {
    let (mut rng, effort) = (Rng::new(seed), effort(seed));
    let wanted = moments(played, &mut rng);
    let mut recovered = Recovered::new(played);
    for moment in played.tapes.moments(wanted) {
        let keeps = effort.choices(&moment.relevant(), &mut rng);
        if !played.calls(moment.at(), recording).contains(&calls) {
            continue;
        }
        let left = recovered.at(system, &moment, keeps)?;
        let found = left.into_iter().find(|(tree, _)| tree.digest() == state);
        if let Some((tree, _)) = found {
            return Ok(Some(((*tree).clone(), calls)));
        }
    }
    Ok(None)
}
