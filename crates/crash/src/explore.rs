//! Explores one workload: every moment, the states that it can leave, and their outcomes.

use anyhow::{Context, Result};
use hashbrown::{HashMap, HashSet};
use stetfs_media::sim::Keep;

use super::case::{Case, Cut};
use super::caught::Panicked;
use super::fold::{DiffTracker, Folds, Lookup, State, States};
use super::guide::{FlipHistory, Guide};
use super::moment::{Moment, Tapes};
use super::oracle::Allowed;
use super::record::Record;
use super::report::{Counts, Fault, Reached, Violation};
use super::states::{Effort, Part, possible};
use super::subject::{Outcome, Subject};
use super::turns::Order;
use super::workload::Workload;
use crate::media::contents::Contents;
use stetfs_testkit::rng::Rng;

/// A state whose outcome is not allowed.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// The kind of fault.
    pub fault: Fault,
    /// The reason, in words.
    pub why: String,
    /// The cut; `None` when the workload itself went wrong.
    pub cut: Option<Cut>,
    /// The second cut, in the recovery or in `then`.
    pub nested: Option<Cut>,
    /// The operations after the first cut; if there are any, the second cut falls into them.
    pub then: Option<Workload>,
}

impl Wrong {
    /// Reads a violation of a report back: the order of its workload, and the wrong state.
    ///
    /// # Errors
    /// The violation's case cannot be parsed.
    pub(super) fn as_found(violation: &Violation) -> Result<(Order, Self)> {
        let case: Case = violation.case.parse().context("a violation")?;
        let wrong = Self {
            fault: violation.fault,
            why: violation.why.clone(),
            cut: case.cut,
            nested: case.nested,
            then: case.then,
        };
        Ok((case.workload.order, wrong))
    }

    /// A workload that went wrong without a power cut.
    pub(super) fn without_cut(error: &anyhow::Error) -> Self {
        let panicked = error.downcast_ref::<Panicked>().is_some();
        Self {
            fault: if panicked {
                Fault::Panic
            } else {
                Fault::Answer
            },
            why: format!("{error:#}"),
            cut: None,
            nested: None,
            then: None,
        }
    }
}

/// What exploring a workload gave.
#[derive(Debug, Default)]
pub struct Findings {
    /// The numbers; the workload itself is not counted.
    pub counts: Counts,
    /// How often recoveries reached each case of the recovery table.
    pub reached: Reached,
    /// Wrong states, one for each kind of fault, in the order in which they were found.
    pub wrong: Vec<Wrong>,
    /// True if the budget ended before the workload.
    pub unfinished: bool,
}

/// At most so many moments of a chain are looked at.
const CHAINED_MOMENTS: usize = 40;

/// An outcome, with what is needed to use it for other states.
struct Known {
    outcome: Outcome,
    /// Where the cut was. A state of a recovery was not cut again.
    depth: Depth,
    /// The group of the folds that has it.
    group: usize,
    /// The disagreement of our checker and e2fsck, if there is one.
    disagreement: Option<String>,
    /// The differences between the volume whose journal e2fsck replayed and ours, if there are any.
    replay: Option<String>,
    /// The outcomes after a second cut, each once, with a cut that gives it.
    nested: Vec<(usize, Cut)>,
}

impl Known {
    /// Returns the reason why it is wrong, whatever the volume should hold.
    fn broken(&self) -> Option<(Fault, String)> {
        match &self.disagreement {
            Some(why) => Some((Fault::Disagreement, why.clone())),
            None => self.outcome.broken(),
        }
    }
}

/// Explores a part of a run. `go_on` is called at each moment, with the numbers so far; false ends
/// the exploration. Moments that belong to no part are counted as left out with part 0.
///
/// # Errors
/// e2fsck cannot be run.
pub fn explore(
    record: &Record,
    workload: &Workload,
    (effort, part): (Effort, Part),
    subject: &mut Subject,
    go_on: &mut dyn FnMut(&Counts) -> bool,
) -> Result<Findings> {
    // Each workload starts counting the "one in N" samples somewhere else, since a short workload
    // may never reach N.
    let mut rng = Rng::new(effort.seed ^ record.moments());
    let phase = rng.below(1 << 20);
    let mut explorer = Explorer {
        record,
        effort,
        part,
        subject,
        rng,
        phase,
        folds: Folds::default(),
        by_content: HashMap::new(),
        known: Vec::new(),
        right: HashSet::new(),
        go_on,
        stopped: false,
        folded: 0,
        foldable: 0,
        found: Findings::default(),
        sampled: Vec::new(),
        seen: 0,
    };
    explorer.run()?;
    if !explorer.stopped {
        explorer.go_on_from_sampled(workload)?;
    }
    Ok(explorer.found)
}

struct Explorer<'a> {
    record: &'a Record,
    effort: Effort,
    part: Part,
    subject: &'a mut Subject,
    go_on: &'a mut dyn FnMut(&Counts) -> bool,
    /// `go_on` has returned false.
    stopped: bool,
    rng: Rng,
    /// Where the counting of "one in N" begins.
    phase: u64,
    folds: Folds<usize>,
    /// Outcomes, by the key of the state's whole content.
    by_content: HashMap<u64, usize>,
    known: Vec<Known>,
    /// Outcomes that are right, including those after a second cut, for these allowed states.
    right: HashSet<(usize, Allowed)>,
    /// States that were folded so far.
    folded: u64,
    /// States of the workload that could have been folded so far.
    foldable: u64,
    found: Findings,
    /// Random states from which the run may go on: the cut, the outcome, and the allowed states.
    sampled: Vec<(Cut, usize, Allowed)>,
    /// The number of states that these are sampled from.
    seen: u64,
}

/// Where the power is cut: in the workload, or again in a recovery.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    Workload,
    Recovery,
}

/// A moment, with what is needed to find the outcome of any of its states.
struct MomentLookup<'a> {
    moment: &'a Moment<'a>,
    depth: Depth,
    /// `None` when a state of this moment must be built to be looked up.
    prepared: Option<(&'a States, Lookup<'a>)>,
    tracker: &'a DiffTracker,
}

/// The guide may propose up to this many times as many states as are wanted, since some of them
/// repeat earlier states.
const TRIES: usize = 4;

impl Explorer<'_> {
    fn run(&mut self) -> Result<()> {
        let record = self.record;
        let all = record.begin..record.tapes.changes() + 1;
        let most = self.effort.moments;
        let mut wanted =
            Effort::spread(all, &record.tapes.pre_flush_moments(), most, &mut self.rng);
        // At these moments little is pending, and everything that was promised must be there.
        wanted.extend(record.acknowledged());
        wanted.sort_unstable();
        wanted.dedup();
        let left_out = if self.part.counts() && self.part.has(0) {
            record.moments() as usize - wanted.len()
        } else {
            0
        };
        let of_part = wanted.into_iter().enumerate();
        let of_part = of_part.filter(|(nth, _)| self.part.has(*nth));
        let wanted: Vec<_> = of_part.map(|(_, at)| at).collect();
        let chosen = wanted.len();
        let (mut tracker, mut history) = (
            DiffTracker::new(record.start.clone()),
            FlipHistory::default(),
        );
        let mut looked_at = 0;
        for moment in record.tapes.moments(wanted) {
            let allowed = record.allowed(moment.at());
            for (outcome, keep) in
                self.look_at(&moment, Depth::Workload, &mut tracker, &mut history)?
            {
                self.sample(outcome, &allowed, moment.at(), &keep);
                self.judge(outcome, &allowed, moment.at(), keep);
            }
            looked_at += 1;
            self.found.counts.moments += 1;
            if self.stopped || !(self.go_on)(&self.found.counts) {
                self.found.unfinished = self.stopped || looked_at < chosen;
                break;
            }
        }
        self.found.counts.moments_left_out += (left_out + chosen - looked_at) as u64;
        Ok(())
    }

    /// Finds the outcome of each state that is chosen at a moment.
    fn look_at(
        &mut self,
        moment: &Moment<'_>,
        depth: Depth,
        tracker: &mut DiffTracker,
        history: &mut FlipHistory,
    ) -> Result<Vec<(usize, Keep)>> {
        let relevant = moment.relevant();
        let states = States::of(moment, &relevant, tracker);
        let mut lookup = MomentLookup {
            moment,
            depth,
            prepared: states
                .as_ref()
                .map(|states| (states, self.folds.lookup(states))),
            tracker,
        };
        let mut outcomes = Vec::new();
        for keep in self.effort.choices(&relevant, &mut self.rng) {
            outcomes.push((self.outcome_of(&mut lookup, &keep)?, keep));
        }
        let guided = self.effort.guided(&relevant);
        if guided > 0 {
            let read_of = |nth: usize| self.folds.read(self.known[outcomes[nth].0].group).clone();
            let [of_none, of_all] = [read_of(1), read_of(0)];
            let reads = [&of_none, &of_all];
            let mut guide = Guide::new(moment, &relevant, reads, history, &mut self.rng);
            let most = outcomes.len() + guided;
            for _ in 0..guided * TRIES {
                let Some(step) = guide.choose().filter(|_| outcomes.len() < most) else {
                    break;
                };
                let keep = guide.keep(&step);
                let distinct = self.distinct(depth);
                let outcome = self.outcome_of(&mut lookup, &keep)?;
                guide.learn(step, self.folds.read(self.known[outcome].group));
                if self.distinct(depth) > distinct {
                    outcomes.push((outcome, keep));
                }
            }
        }
        let counts = &mut self.found.counts;
        let (states, left_out) = match depth {
            Depth::Workload => (&mut counts.states, &mut counts.states_left_out),
            Depth::Recovery => (&mut counts.nested, &mut counts.nested_left_out),
        };
        let chosen = outcomes.len() as u64;
        *states += chosen;
        if self.part.counts() {
            *left_out = left_out.saturating_add(possible(&relevant).saturating_sub(chosen));
        }
        Ok(outcomes)
    }

    /// Returns the number of states so far that no earlier state equalled.
    fn distinct(&self, depth: Depth) -> u64 {
        match depth {
            Depth::Workload => self.found.counts.states_distinct,
            Depth::Recovery => self.found.counts.nested_distinct,
        }
    }

    /// Returns the outcome of the state that `keep` leaves at a moment.
    fn outcome_of(&mut self, lookup: &mut MomentLookup<'_>, keep: &Keep) -> Result<usize> {
        let (moment, depth) = (lookup.moment, lookup.depth);
        if let Some((states, lookup)) = &mut lookup.prepared {
            let left = || moment.contents(keep);
            return self.outcome(lookup, &states.state(keep), depth, left);
        }
        let left = moment.contents(keep);
        let states = States::single(lookup.tracker.clone().go_to(&left));
        let mut lookup = self.folds.lookup(&states);
        self.outcome(&mut lookup, &states.state(keep), depth, || left)
    }

    /// Returns the outcome of a state. Recovers the state if no known outcome applies to it.
    fn outcome(
        &mut self,
        lookup: &mut Lookup<'_>,
        state: &State,
        depth: Depth,
        left: impl FnOnce() -> Contents,
    ) -> Result<usize> {
        // A second cut needs no third, so it may use any outcome. A first cut needs an outcome
        // whose recovery could be cut.
        let will_do = |known: &Known| depth == Depth::Recovery || known.depth == Depth::Workload;
        if let Some(outcome) = self.by_content.get(&state.key())
            && will_do(&self.known[*outcome])
        {
            return Ok(*outcome);
        }
        match depth {
            Depth::Workload => self.found.counts.states_distinct += 1,
            Depth::Recovery => self.found.counts.nested_distinct += 1,
        }
        let found = self.folds.find(lookup, state);
        let outcome = match found.filter(|outcome| will_do(&self.known[*outcome])) {
            Some(outcome) if !self.goes_its_own_way(depth) => {
                self.folded += 1;
                if is_due(self.phase + self.folded, self.effort.audit_every) {
                    self.audit(outcome, &left());
                }
                outcome
            }
            _ => self.recover(lookup, state, depth, &left())?,
        };
        self.by_content.insert(state.key(), outcome);
        Ok(outcome)
    }

    /// True if a state that could be folded is recovered and cut again all the same. Bytes that the
    /// first recovery did not read, such as old blocks of a log, may matter to the second recovery.
    fn goes_its_own_way(&mut self, depth: Depth) -> bool {
        self.foldable += u64::from(depth == Depth::Workload);
        depth == Depth::Workload && is_due(self.phase + self.foldable, self.effort.nest_folded)
    }

    /// Recovers a folded state and compares its outcome with the predicted one.
    fn audit(&mut self, predicted: usize, left: &Contents) {
        self.found.counts.audits += 1;
        let outcome = self.subject.recover(left).outcome;
        let known = &mut self.known[predicted];
        let same = known.outcome.seen == outcome.seen
            && known.outcome.structure == outcome.structure
            && known.outcome.broken == outcome.broken;
        if !same && known.outcome.broken.is_none() {
            let why = "a state that holds the same wherever it was read had another outcome";
            known.outcome.broken = Some((Fault::Nondeterminism, why.to_owned()));
            // Verdicts that rest on this outcome must be found again.
            self.right.clear();
        }
    }

    fn recover(
        &mut self,
        lookup: &mut Lookup<'_>,
        state: &State,
        depth: Depth,
        left: &Contents,
    ) -> Result<usize> {
        let recovery = self.subject.recover(left);
        self.found.reached.add(&recovery.reached);
        let counts = &mut self.found.counts;
        counts.recoveries += 1;
        let is_asked = is_due(self.phase + counts.recoveries, self.effort.e2fsck_every);
        let (mut disagreement, mut replay) = (None, None);
        if let (Some(recovered), Some(ours)) = (&recovery.recovered, &recovery.outcome.structure)
            && (ours.is_err() || is_asked)
        {
            let opinion = self.subject.second().opinion(recovered, ours);
            let opinion = opinion.context("e2fsck's opinion")?;
            counts.e2fsck += 1;
            counts.e2fsck_agreed += u64::from(opinion.is_ok());
            disagreement = opinion.err();
        }
        if let (None, Some(seen)) = (&recovery.outcome.broken, &recovery.outcome.seen)
            && is_asked
            && let Some(same) = (self.subject.second())
                .replay(&self.record.target, left, seen)
                .context("e2fsck's replay")?
        {
            counts.replayed += 1;
            counts.replayed_alike += u64::from(same.is_ok());
            replay = same.err();
        }
        let id = self.known.len();
        let group = self.folds.add(lookup, state, &recovery.watched.read, id);
        self.known.push(Known {
            outcome: recovery.outcome,
            depth,
            group,
            disagreement,
            replay,
            nested: Vec::new(),
        });
        let is_sound = self.known[id].broken().is_none();
        if depth == Depth::Workload
            && is_sound
            && is_due(self.phase + id as u64 + 1, self.effort.nest_every)
        {
            self.found.counts.recoveries_cut += 1;
            self.cut_again(id, left, &recovery.tapes)?;
        }
        Ok(id)
    }

    /// Cuts the power again at moments of a recovery.
    fn cut_again(&mut self, id: usize, left: &Contents, tapes: &Tapes) -> Result<()> {
        let (mut tracker, mut history) = (
            DiffTracker::new(self.record.start.clone()),
            FlipHistory::default(),
        );
        tracker.go_to(left);
        let mut nested: Vec<(usize, Cut)> = Vec::new();
        let mut listed = HashSet::new();
        let moments = tapes.changes() + 1;
        let most = self.effort.nest_moments;
        let wanted = Effort::spread(0..moments, &tapes.pre_flush_moments(), most, &mut self.rng);
        let mut looked_at = 0;
        for moment in tapes.moments(wanted) {
            if !(self.go_on)(&self.found.counts) {
                self.stopped = true;
                break;
            }
            looked_at += 1;
            let at = moment.at();
            for (outcome, keep) in
                self.look_at(&moment, Depth::Recovery, &mut tracker, &mut history)?
            {
                if listed.insert(outcome) {
                    nested.push((outcome, Cut { at, keep }));
                }
            }
        }
        self.found.counts.nested_moments += looked_at;
        self.found.counts.nested_moments_left_out += moments - looked_at;
        self.known[id].nested = nested;
        Ok(())
    }

    /// Adds a state to the sample of states to go on from; each state has the same chance.
    fn sample(&mut self, outcome: usize, allowed: &Allowed, at: u64, keep: &Keep) {
        self.seen += 1;
        let most = self.effort.chains;
        let place = if self.sampled.len() < most {
            self.sampled.len()
        } else {
            self.rng.below(self.seen) as usize
        };
        if place < most {
            let cut = Cut {
                at,
                keep: keep.clone(),
            };
            match self.sampled.get_mut(place) {
                Some(sampled) => *sampled = (cut, outcome, allowed.clone()),
                None => self.sampled.push((cut, outcome, allowed.clone())),
            }
        }
    }

    /// Goes on from the sampled states, and cuts the power in the operations that follow.
    fn go_on_from_sampled(&mut self, workload: &Workload) -> Result<()> {
        self.found.counts.chains_sampled = self.sampled.len() as u64;
        for (cut, outcome, allowed) in std::mem::take(&mut self.sampled) {
            let (outcome, oracle) = (&self.known[outcome].outcome, &self.record.oracle);
            let (Ok(state), Some(moment)) = (
                outcome.judge(oracle, &allowed),
                self.record.tapes.moment(cut.at),
            ) else {
                continue;
            };
            // The model can go on only from exactly this state.
            let is_exact = |seen| oracle.is_exactly(seen, state);
            if !outcome.seen.as_ref().is_some_and(is_exact) {
                continue;
            }
            let then = workload.continued(state);
            if then.ops.is_empty() {
                continue;
            }
            let (left, target) = (moment.contents(&cut.keep), &self.record.target);
            let model = &self.record.oracle.states()[state];
            self.found.counts.chains += 1;
            let record = match Record::go_on(target, &left, model, &then) {
                Ok(record) => record,
                Err(error) => {
                    self.found.counts.violations += 1;
                    self.found.wrong.push(Wrong {
                        cut: Some(cut),
                        then: Some(then),
                        ..Wrong::without_cut(&error)
                    });
                    continue;
                }
            };
            let effort = Effort {
                moments: self.effort.moments.min(CHAINED_MOMENTS),
                nest_every: 0,
                chains: 0,
                ..self.effort
            };
            let (told, go_on) = (self.found.counts, &mut *self.go_on);
            let mut count = |_: &Counts| go_on(&told);
            let found = explore(
                &record,
                &then,
                (effort, Part::WHOLE),
                self.subject,
                &mut count,
            )?;
            self.found.counts += found.counts.of_chain();
            self.found.reached += &found.reached;
            for wrong in found.wrong {
                self.found.wrong.push(Wrong {
                    nested: wrong.cut,
                    cut: Some(cut.clone()),
                    then: Some(then.clone()),
                    ..wrong
                });
            }
            if found.unfinished {
                self.stopped = true;
                self.found.unfinished = true;
                break;
            }
        }
        Ok(())
    }

    /// Judges an outcome, and those after a second cut, where these states are allowed.
    fn judge(&mut self, id: usize, allowed: &Allowed, at: u64, keep: Keep) {
        let key = (id, allowed.clone());
        if self.right.contains(&key) {
            return;
        }
        let cut = Cut { at, keep };
        let mut is_right = true;
        let nested = std::mem::take(&mut self.known[id].nested);
        let all = [(id, None)].into_iter();
        for (outcome, nested) in all.chain(nested.iter().map(|(n, cut)| (*n, Some(cut)))) {
            if let Some((fault, why)) = self.verdict(outcome, allowed) {
                is_right = false;
                self.note(fault, why, &cut, nested);
            }
        }
        self.known[id].nested = nested;
        if is_right {
            self.right.insert(key);
        }
    }

    /// Returns the reason why an outcome is wrong where these states are allowed.
    fn verdict(&self, id: usize, allowed: &Allowed) -> Option<(Fault, String)> {
        let known = &self.known[id];
        let judged = || known.outcome.judge(&self.record.oracle, allowed).err();
        // The replay comes last, as in `Subject::judge`: a broken promise is the same fault whether
        // or not e2fsck was asked.
        let replayed = || known.replay.clone().map(|why| (Fault::Replay, why));
        known.broken().or_else(judged).or_else(replayed)
    }

    fn note(&mut self, fault: Fault, why: String, cut: &Cut, nested: Option<&Cut>) {
        self.found.counts.violations += 1;
        if self.found.wrong.iter().all(|wrong| wrong.fault != fault) {
            self.found.wrong.push(Wrong {
                fault,
                why,
                cut: Some(cut.clone()),
                nested: nested.cloned(),
                then: None,
            });
        }
    }
}

/// True for every `every`-th item; never when `every` is 0.
fn is_due(nth: u64, every: usize) -> bool {
    every > 0 && nth.is_multiple_of(every as u64)
}
