//! Explores many workloads on several threads, within a budget.
//!
//! Workloads take turns ([`Effort::turn`]): the second turns begin when every workload has had its
//! first, which looks at it where syncs have returned. So a budget that ends early has seen
//! something of each workload, and the report names those that never ran.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::case::Case;
use super::explore::{Findings, Wrong, explore};
use super::minimize::Minimizer;
use super::record::{Front, Record};
use super::report::{Counts, Reached, Report, Violation};
use super::states::{Effort, Look};
use super::subject::Subject;
use super::target::Target;
use super::turns::Order;
use super::workload::Workload;
use crate::media::contents::Contents;

/// Limits that end a campaign early. As text: a number of states, a time as `90s`, `10m` or `2h`,
/// or `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// At most this many states, nested ones included.
    pub states: Option<u64>,
    /// At most this long.
    pub time: Option<Duration>,
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no number of states and no time such as 90s, 10m or 2h");
        if text == "none" {
            return Ok(Self::default());
        }
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let seconds = match unit {
            "" => {
                return Ok(Self {
                    states: Some(number),
                    time: None,
                });
            }
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(wrong()),
        };
        let seconds = number.checked_mul(seconds).ok_or_else(wrong)?;
        Ok(Self {
            states: None,
            time: Some(Duration::from_secs(seconds)),
        })
    }
}

/// The finished part of a campaign, in whole turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The finished turns, by the workload's [key](Workload::key) and the number of the turn.
    pub turns: BTreeSet<(u64, usize)>,
    /// The numbers of these turns.
    pub counts: Counts,
    /// How often their recoveries reached each case.
    #[serde(default, rename = "met")]
    pub reached: Reached,
    /// The violations in these turns as they were found, with the workload's key.
    pub violations: Vec<(u64, Violation)>,
    /// Seconds so far, including those for unfinished turns.
    pub seconds: f64,
}

/// Keeps the finished part.
pub type Keeper<'a> = &'a (dyn Fn(&Done) -> Result<()> + Sync);

/// A campaign: its workloads, limits and listeners.
pub struct Campaign<'a> {
    /// The target that is judged.
    pub target: Target,
    /// The contents of the media before each workload: [`Target::contents`].
    pub fresh: Contents,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// How much is looked at.
    pub effort: Effort,
    /// When to stop.
    pub budget: Budget,
    /// True if the budget counts only from when each workload has run once.
    pub budget_behind_first: bool,
    /// True if workloads take turns. Otherwise each is explored as a whole.
    pub by_turns: bool,
    /// The number of threads.
    pub jobs: usize,
    /// When this many workloads have violations, nothing new is begun. With 1, a workload ends at
    /// its first moment with a violation.
    pub enough: usize,
    /// For this many violations, the smallest workload that shows them is looked for.
    pub minimized: usize,
    /// Something in front of the home device while workloads run.
    pub front: Option<Front<'a>>,
    /// Called with each violation as it is found, from several threads.
    pub listener: Option<&'a (dyn Fn(&Violation) + Sync)>,
    /// The part that was finished before and is not repeated.
    pub done: Done,
    /// Keeps the finished part, every [`KEEP_EVERY`] and at the end.
    pub keeper: Option<Keeper<'a>>,
    /// Set to true to end the campaign soon.
    pub stop: Option<&'a AtomicBool>,
}

impl Campaign<'_> {
    /// A campaign of all these workloads from start to end, whatever is found, on one thread.
    pub fn new(target: Target, fresh: Contents, workloads: Vec<Workload>) -> Self {
        Self {
            target,
            fresh,
            workloads,
            effort: Effort::default(),
            budget: Budget::default(),
            budget_behind_first: false,
            by_turns: false,
            jobs: 1,
            enough: usize::MAX,
            minimized: 0,
            front: None,
            listener: None,
            done: Done::default(),
            keeper: None,
            stop: None,
        }
    }
}

/// The progress of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The numbers so far.
    pub counts: Counts,
    /// Turns that are finished.
    pub done: usize,
    /// Turns in all.
    pub total: usize,
    /// Workloads that have not run yet.
    pub not_run: usize,
}

/// For each of the first violations, the smallest failing workload is looked for at most this long.
const MINIMIZE_FOR: Duration = Duration::from_secs(30);
/// The default of [`Campaign::minimized`].
pub const MINIMIZED: usize = 3;

/// How often the finished part is kept.
pub const KEEP_EVERY: Duration = Duration::from_secs(10);

/// A turn: the index of a workload, and the number of its turn.
type Turn = (usize, usize);

struct Shared<'a> {
    campaign: &'a Campaign<'a>,
    /// The key of each workload.
    keys: Vec<u64>,
    /// The turns that are not finished.
    todo: Vec<Turn>,
    next: AtomicUsize,
    done: AtomicUsize,
    /// Turns in all.
    total: usize,
    stop: AtomicBool,
    found: Mutex<Found>,
    started: Instant,
    /// When the budget began to count, and the numbers at that time.
    counted: OnceLock<(Instant, Counts)>,
    /// The sign of life of each worker.
    beats: Vec<Beat>,
}

/// A sign of life: a worker gives it at each moment of a workload, many times a second.
#[derive(Default)]
struct Beat {
    count: AtomicU64,
    /// The workload that the worker is at.
    workload: AtomicUsize,
}

/// How often the signs of life are checked.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Without a sign of life for this long, the code under test hangs. The time is counted in checks,
/// since the clock goes on while the process is stopped.
const HANGS_AFTER: Duration = Duration::from_secs(120);

struct Found {
    /// The numbers so far, including unfinished workloads.
    counts: Counts,
    /// How often recoveries reached each case, those of unfinished workloads included.
    reached: Reached,
    /// Turns that are finished.
    done: BTreeSet<(u64, usize)>,
    /// For each workload, the number of its unfinished turns.
    left: Vec<usize>,
    /// Workloads that have not had their first turn.
    not_run: usize,
    done_counts: Counts,
    done_reached: Reached,
    /// Wrong states, with the turn of the workload and its order.
    wrong: Vec<(Turn, Order, Wrong)>,
}

/// The result of exploring a workload in its orders.
#[derive(Default)]
struct Looked {
    counts: Counts,
    reached: Reached,
    wrong: Vec<(Order, Wrong)>,
    /// True if the budget ended before the workload.
    unfinished: bool,
}

impl Campaign<'_> {
    /// Explores. `watch` is called now and then, from several threads.
    ///
    /// # Errors
    /// The volume cannot be made, or e2fsck cannot be run.
    pub fn run(&self, watch: &(dyn Fn(Progress) + Sync)) -> Result<Report> {
        let shared = Shared::new(self)?;
        let ran = std::thread::scope(|scope| {
            let shared = &shared;
            let spawn = |beat| scope.spawn(move || shared.work(beat, watch));
            let workers: Vec<_> = shared.beats.iter().map(spawn).collect();
            let mut seen: Vec<_> = workers.iter().map(|_| (0, 0)).collect();
            let mut kept = Instant::now();
            while !workers.iter().all(|worker| worker.is_finished()) {
                std::thread::sleep(LOOK_EVERY);
                let running = workers.iter().zip(&shared.beats).zip(&mut seen);
                for ((_, beat), seen) in running.filter(|((worker, _), _)| !worker.is_finished()) {
                    self.check_life(beat, seen);
                }
                if kept.elapsed() >= KEEP_EVERY {
                    shared.keep()?;
                    kept = Instant::now();
                }
            }
            workers.into_iter().try_for_each(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        });
        shared.keep().and(ran)?;
        let seconds = shared.seconds();
        let Found {
            mut counts,
            reached,
            mut wrong,
            done,
            ..
        } = shared.found.into_inner();
        counts.workloads_unfinished = self.workloads.len() as u64 - counts.workloads;
        let workloads = self.workloads.iter().zip(&shared.keys);
        let never_ran = workloads.filter(|(_, key)| !done.contains(&(**key, 0)));
        let never_ran = never_ran.map(|(workload, _)| workload.title()).collect();
        // In the order of the workloads, not of the threads.
        wrong.sort_by_key(|(n, ..)| *n);
        let end = self.budget.time.map(|most| shared.started + most);
        let violations = self.violations(wrong, end)?;
        Ok(Report {
            counts,
            reached,
            never_ran: Some(never_ran),
            seconds,
            jobs: self.jobs,
            violations,
        })
    }

    /// Ends the process with the exit code of violations when a worker has given no sign of life
    /// for too long: a hanging thread cannot be stopped.
    fn check_life(&self, beat: &Beat, (count, looks): &mut (u64, u32)) {
        let now = beat.count.load(Ordering::Relaxed);
        if now != *count {
            (*count, *looks) = (now, 0);
            return;
        }
        *looks += 1;
        if LOOK_EVERY * *looks > HANGS_AFTER {
            let workload = &self.workloads[beat.workload.load(Ordering::Relaxed)];
            eprintln!(
                "a hang of more than {} s on {} in {}: {workload}",
                HANGS_AFTER.as_secs(),
                self.target,
                workload.title()
            );
            std::process::exit(1);
        }
    }

    /// Looks for small cases of the first violations, at most until `end`.
    fn violations(
        &self,
        wrong: Vec<(Turn, Order, Wrong)>,
        end: Option<Instant>,
    ) -> Result<Vec<Violation>> {
        let mut violations = Vec::new();
        for (n, ((index, _), order, wrong)) in wrong.into_iter().enumerate() {
            let workload = &self.workloads[index].clone().in_order(order);
            let mut case = self.case(workload, &wrong);
            let (mut why, mut minimized) = (wrong.why, None);
            if n < self.minimized && !self.is_stopped() && case.then.is_none() {
                let due = Instant::now() + MINIMIZE_FOR;
                let minimizer = Minimizer {
                    target: &self.target,
                    fresh: &self.fresh,
                    front: self.front,
                    effort: self.effort,
                    deadline: end.map_or(due, |end| end.min(due)),
                };
                if let Some((smaller, wrong)) = minimizer.minimize(workload, wrong.fault)? {
                    minimized = Some(smaller.workload.text());
                    (case, why) = (smaller, wrong.why);
                }
            }
            violations.push(Violation {
                fault: wrong.fault,
                why,
                left: self.left(&case),
                case: case.to_string(),
                workload: workload.title(),
                minimized,
            });
        }
        Ok(violations)
    }

    fn case(&self, workload: &Workload, wrong: &Wrong) -> Case {
        Case {
            target: self.target.clone(),
            workload: workload.clone(),
            cut: wrong.cut.clone(),
            nested: wrong.nested.clone(),
            then: wrong.then.clone(),
        }
    }

    /// Returns a violation as it was found.
    fn as_found(&self, workload: &Workload, wrong: &Wrong) -> Violation {
        Violation {
            fault: wrong.fault,
            why: wrong.why.clone(),
            case: self.case(workload, wrong).to_string(),
            left: String::new(),
            workload: workload.title(),
            minimized: None,
        }
    }

    /// Returns the number of turns of a workload.
    fn turns(&self, workload: &Workload) -> usize {
        if self.by_turns {
            Effort::turns(workload)
        } else {
            1
        }
    }

    /// Returns what is looked at in a turn.
    fn looks(&self, workload: &Workload, nth: usize) -> Vec<Look> {
        if self.by_turns {
            self.effort.turn(workload, &self.target, nth)
        } else {
            self.effort.looks(workload, &self.target)
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Describes the pieces that were there after a case's cut.
    fn left(&self, case: &Case) -> String {
        let record = Record::make_behind(&self.target, &self.fresh, &case.workload, self.front);
        let (Ok(record), Some(cut)) = (record, &case.cut) else {
            return String::new();
        };
        match record.tapes.moment(cut.at) {
            Some(moment) => moment.describe(&cut.keep),
            None => String::new(),
        }
    }
}

impl<'a> Shared<'a> {
    fn new(campaign: &'a Campaign<'a>) -> Result<Self> {
        let Done {
            turns: done,
            counts,
            reached,
            violations,
            ..
        } = campaign.done.clone();
        let keys: Vec<_> = campaign.workloads.iter().map(Workload::key).collect();
        let mut wrong = Vec::new();
        for (key, violation) in &violations {
            if let Some(index) = keys.iter().position(|k| k == key) {
                let (order, found) = Wrong::as_found(violation)?;
                // The turn was finished, whichever it was; every keeper has turn 0.
                wrong.push(((index, 0), order, found));
            }
        }
        let turns: Vec<_> = campaign
            .workloads
            .iter()
            .map(|w| campaign.turns(w))
            .collect();
        let most = turns.iter().max().copied().unwrap_or(0);
        // The first turn of all of them, then the second.
        let all = (0..most).flat_map(|nth| (0..keys.len()).map(move |index| (index, nth)));
        let is_todo =
            |(index, nth): &Turn| *nth < turns[*index] && !done.contains(&(keys[*index], *nth));
        let todo: Vec<_> = all.filter(is_todo).collect();
        let mut left = vec![0; keys.len()];
        todo.iter().for_each(|(index, _)| left[*index] += 1);
        let total = turns.iter().sum();
        Ok(Self {
            campaign,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(total - todo.len()),
            total,
            stop: AtomicBool::new(wrong.len() >= campaign.enough),
            found: Mutex::new(Found {
                counts,
                reached: reached.clone(),
                done,
                not_run: todo.iter().filter(|(_, nth)| *nth == 0).count(),
                left,
                done_counts: counts,
                done_reached: reached,
                wrong,
            }),
            keys,
            todo,
            started: Instant::now(),
            counted: OnceLock::new(),
            beats: (0..campaign.jobs.max(1)).map(|_| Beat::default()).collect(),
        })
    }

    /// Returns the seconds since the start, and those of earlier runs.
    fn seconds(&self) -> f64 {
        self.campaign.done.seconds + self.started.elapsed().as_secs_f64()
    }

    /// Gives the finished part to the keeper.
    fn keep(&self) -> Result<()> {
        let campaign = self.campaign;
        let Some(keeper) = campaign.keeper else {
            return Ok(());
        };
        let found = self.found.lock();
        let violations = found
            .wrong
            .iter()
            .filter_map(|((index, nth), order, wrong)| {
                let (workload, key) = (&campaign.workloads[*index], self.keys[*index]);
                let workload = workload.clone().in_order(*order);
                // An unfinished turn will find it again.
                let is_kept = found.done.contains(&(key, *nth));
                is_kept.then(|| (key, campaign.as_found(&workload, wrong)))
            });
        let done = Done {
            violations: violations.collect(),
            turns: found.done.clone(),
            counts: found.done_counts,
            reached: found.done_reached.clone(),
            seconds: self.seconds(),
        };
        drop(found);
        keeper(&done).inspect_err(|_| self.stop.store(true, Ordering::Relaxed))
    }

    fn work(&self, beat: &Beat, watch: &(dyn Fn(Progress) + Sync)) -> Result<()> {
        let campaign = self.campaign;
        let mut subject = Subject::new(&campaign.target);
        while !self.stop.load(Ordering::Relaxed) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((index, nth)) = self.todo.get(next).copied() else {
                break;
            };
            let workload = &campaign.workloads[index];
            beat.workload.store(index, Ordering::Relaxed);
            let mut go_on = || {
                beat.count.fetch_add(1, Ordering::Relaxed);
                self.tell(watch);
                self.is_within_budget()
            };
            let has_failed = self
                .found
                .lock()
                .wrong
                .iter()
                .any(|((n, _), ..)| *n == index);
            let looks = if has_failed {
                // It is known to be wrong.
                Vec::new()
            } else {
                campaign.looks(workload, nth)
            };
            let looked = self.look_at(workload, &looks, &mut subject, &mut go_on);
            let looked = looked.inspect_err(|_| self.stop.store(true, Ordering::Relaxed))?;
            self.note((index, nth), looked);
            self.tell(watch);
        }
        Ok(())
    }

    /// Adds the result of a turn.
    fn note(&self, (index, nth): Turn, looked: Looked) {
        let mut found = self.found.lock();
        found.reached += &looked.reached;
        if !looked.unfinished {
            self.done.fetch_add(1, Ordering::Relaxed);
            found.done.insert((self.keys[index], nth));
            found.done_counts += looked.counts;
            found.done_reached += &looked.reached;
            found.left[index] -= 1;
            found.not_run -= usize::from(nth == 0);
            let done = Counts {
                workloads: u64::from(found.left[index] == 0),
                ..Counts::default()
            };
            found.counts += done;
            found.done_counts += done;
        }
        let wrong = looked.wrong.into_iter();
        found.wrong.extend(wrong.map(|(o, w)| ((index, nth), o, w)));
        if found.wrong.len() >= self.campaign.enough {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Explores a workload in each of its orders, until one shows a violation.
    fn look_at(
        &self,
        workload: &Workload,
        looks: &[Look],
        subject: &mut Subject,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Looked> {
        let campaign = self.campaign;
        let mut looked = Looked::default();
        for look in looks {
            let findings = self.explore(look, subject, go_on)?;
            let besides = Counts {
                orders: u64::from(look.workload.order != workload.order),
                ..Counts::default()
            };
            self.found.lock().counts += besides;
            looked.counts += findings.counts;
            looked.reached += &findings.reached;
            looked.counts += besides;
            for wrong in findings.wrong {
                if let Some(listener) = campaign.listener {
                    listener(&campaign.as_found(&look.workload, &wrong));
                }
                looked.wrong.push((look.workload.order, wrong));
            }
            looked.unfinished = findings.unfinished;
            if looked.unfinished || !looked.wrong.is_empty() {
                break;
            }
        }
        Ok(looked)
    }

    fn explore(
        &self,
        look: &Look,
        subject: &mut Subject,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Findings> {
        let campaign = self.campaign;
        let workload = &look.workload;
        let made = Record::make_behind(&campaign.target, &campaign.fresh, workload, campaign.front);
        let record = match made {
            Ok(record) => record,
            Err(error) => {
                let counts = Counts {
                    violations: 1,
                    ..Counts::default()
                };
                self.found.lock().counts += counts;
                return Ok(Findings {
                    counts,
                    wrong: vec![Wrong::without_cut(&error)],
                    ..Findings::default()
                });
            }
        };
        let mut told = Counts::default();
        let mut count = |counts: &Counts| {
            self.found.lock().counts += counts.since(&told);
            told = *counts;
            go_on() && (campaign.enough > 1 || counts.violations == 0)
        };
        let part = (look.effort, look.part);
        let findings = explore(&record, workload, part, subject, &mut count)?;
        self.found.lock().counts += findings.counts.since(&told);
        Ok(findings)
    }

    fn tell(&self, watch: &(dyn Fn(Progress) + Sync)) {
        let found = self.found.lock();
        let (counts, not_run) = (found.counts, found.not_run);
        drop(found);
        watch(Progress {
            counts,
            done: self.done.load(Ordering::Relaxed),
            total: self.total,
            not_run,
        });
    }

    fn is_within_budget(&self) -> bool {
        let Budget { states, time } = self.campaign.budget;
        let found = self.found.lock();
        let (now, not_run) = (found.counts, found.not_run);
        drop(found);
        let counts = if !self.campaign.budget_behind_first {
            Some((self.started, self.campaign.done.counts))
        } else if not_run > 0 {
            None
        } else {
            Some(*self.counted.get_or_init(|| (Instant::now(), now)))
        };
        let within = !self.campaign.is_stopped()
            && counts.is_none_or(|(since, before)| {
                let counts = now.since(&before);
                states.is_none_or(|most| counts.states + counts.nested < most)
                    && time.is_none_or(|most| since.elapsed() < most)
            });
        if !within {
            self.stop.store(true, Ordering::Relaxed);
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_states_or_times() {
        let states = |n| Budget {
            states: Some(n),
            time: None,
        };
        let time = |seconds| Budget {
            states: None,
            time: Some(Duration::from_secs(seconds)),
        };
        assert_eq!("1000".parse(), Ok(states(1000)));
        assert_eq!("10m".parse(), Ok(time(600)));
        assert_eq!("none".parse(), Ok(Budget::default()));
        for wrong in [
            "",
            "m",
            "-1",
            "10d",
            "99999999999999999999",
            "9999999999999999999h",
        ] {
            assert!(wrong.parse::<Budget>().is_err(), "{wrong}");
        }
    }
}
