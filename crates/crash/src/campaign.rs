//! Explores many workloads on several threads, within a budget.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::case::Case;
use super::explore::{Findings, Wrong, explore};
use super::media::Contents;
use super::minimize::Minimizer;
use super::record::{Front, Record};
use super::report::{Counts, Met, Report, Violation};
use super::states::Effort;
use super::subject::Subject;
use super::target::Target;
use super::turns::Order;
use super::workload::Workload;

/// When to stop, whatever is left. As text: a number of states, a time as `90s`, `10m` or `2h`, or
/// `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// After so many states, nested ones included.
    pub states: Option<u64>,
    /// After so long.
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

/// What of a campaign is done: workloads as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// By their [keys](Workload::key).
    pub workloads: BTreeSet<u64>,
    /// The numbers of these.
    pub counts: Counts,
    /// What their recoveries came to.
    #[serde(default)]
    pub met: Met,
    /// Their violations as they were found, with the workload's key.
    pub violations: Vec<(u64, Violation)>,
    /// Seconds that it took, with those for what was not done.
    pub seconds: f64,
}

/// Who keeps what is done.
pub type Keeper<'a> = &'a (dyn Fn(&Done) -> Result<()> + Sync);

/// What is to be explored.
pub struct Campaign<'a> {
    /// What is judged.
    pub target: Target,
    /// What the media hold before each workload: [`Target::contents`].
    pub fresh: Contents,
    /// What is run on it.
    pub workloads: Vec<Workload>,
    /// How much is looked at.
    pub effort: Effort,
    /// When to stop.
    pub budget: Budget,
    /// Threads.
    pub jobs: usize,
    /// Workloads with violations after which nothing new is begun. With 1, a workload ends at its
    /// first moment that shows one.
    pub enough: usize,
    /// Violations for which the smallest workload that shows them is looked for.
    pub minimized: usize,
    /// Something in front of the home device while workloads run.
    pub front: Option<Front<'a>>,
    /// Who hears of each violation when it is found, as it was found; from several threads.
    pub listener: Option<&'a (dyn Fn(&Violation) + Sync)>,
    /// What was done before, and is not done again.
    pub done: Done,
    /// Who keeps what is done, every [`KEEP_EVERY`] and at the end.
    pub keeper: Option<Keeper<'a>>,
    /// Says that it is to end soon.
    pub stop: Option<&'a AtomicBool>,
}

impl Campaign<'_> {
    /// All of these workloads from the start to the end, whatever is found, on one thread.
    pub fn new(target: Target, fresh: Contents, workloads: Vec<Workload>) -> Self {
        Self {
            target,
            fresh,
            workloads,
            effort: Effort::default(),
            budget: Budget::default(),
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

/// How far a campaign is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The numbers so far.
    pub counts: Counts,
    /// Workloads done.
    pub done: usize,
    /// Workloads in all.
    pub total: usize,
}

/// How long the smallest failing workload is looked for, for each of the first violations.
const MINIMIZE_FOR: Duration = Duration::from_secs(30);
/// [`Campaign::minimized`] where nobody says otherwise.
pub const MINIMIZED: usize = 3;

/// How often what is done is kept.
pub const KEEP_EVERY: Duration = Duration::from_secs(10);

struct Shared<'a> {
    campaign: &'a Campaign<'a>,
    /// The workloads that are not done.
    todo: Vec<usize>,
    next: AtomicUsize,
    done: AtomicUsize,
    stop: AtomicBool,
    found: Mutex<Found>,
    started: Instant,
    /// Of each worker.
    beats: Vec<Beat>,
}

/// A sign of life: a worker gives it at each moment of a workload, many times a second.
#[derive(Default)]
struct Beat {
    count: AtomicU64,
    /// The workload it is at.
    workload: AtomicUsize,
}

/// How often signs of life are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// After so long without one the code under test hangs. It is counted in looks, not by the clock,
/// which goes on while the process is stopped.
const HANGS_AFTER: Duration = Duration::from_secs(120);

struct Found {
    /// The numbers so far, those of workloads that are under way too.
    counts: Counts,
    /// What recoveries came to, those of workloads that were begun too.
    met: Met,
    /// Workloads that are done, and their numbers.
    done: BTreeSet<u64>,
    done_counts: Counts,
    done_met: Met,
    /// With the number of the workload, and in which order it was carried out.
    wrong: Vec<(usize, Order, Wrong)>,
}

/// What exploring a workload in its orders gave.
#[derive(Default)]
struct Looked {
    counts: Counts,
    met: Met,
    wrong: Vec<(Order, Wrong)>,
    /// The budget ended before.
    unfinished: bool,
}

impl Campaign<'_> {
    /// Explores; `watch` is called now and then from several threads.
    ///
    /// # Errors
    /// The volume cannot be made, or e2fsck not be run.
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
            met,
            mut wrong,
            ..
        } = shared.found.into_inner();
        counts.workloads_unfinished += (self.workloads.len() as u64)
            .saturating_sub(counts.workloads + counts.workloads_unfinished);
        // In the order of the workloads, whichever thread was faster.
        wrong.sort_by_key(|(n, ..)| *n);
        let end = self.budget.time.map(|most| shared.started + most);
        let violations = self.violations(wrong, end)?;
        Ok(Report {
            counts,
            met,
            seconds,
            jobs: self.jobs,
            violations,
        })
    }

    /// Ends the process, with the exit code of violations, when a worker has given no sign of life
    /// for too long: a thread that hangs cannot be stopped.
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

    /// Looks for small cases that show the first violations, until `end` at most.
    fn violations(
        &self,
        wrong: Vec<(usize, Order, Wrong)>,
        end: Option<Instant>,
    ) -> Result<Vec<Violation>> {
        let dir = stetfs_testkit::host::scratch()?;
        let scratch = dir.path().join("recovered");
        let mut violations = Vec::new();
        for (n, (index, order, wrong)) in wrong.into_iter().enumerate() {
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
                    scratch: &scratch,
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

    /// A violation as it was found.
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

    fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// What was there at a case's cut, in words.
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
            workloads: done,
            counts,
            met,
            violations,
            ..
        } = campaign.done.clone();
        let keys: Vec<_> = campaign.workloads.iter().map(Workload::key).collect();
        let mut wrong = Vec::new();
        for (key, violation) in &violations {
            if let Some(index) = keys.iter().position(|k| k == key) {
                let (order, found) = Wrong::as_found(violation)?;
                wrong.push((index, order, found));
            }
        }
        let todo = (0..keys.len()).filter(|index| !done.contains(&keys[*index]));
        Ok(Self {
            campaign,
            todo: todo.collect(),
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(done.len()),
            stop: AtomicBool::new(wrong.len() >= campaign.enough),
            found: Mutex::new(Found {
                counts,
                met: met.clone(),
                done,
                done_counts: counts,
                done_met: met,
                wrong,
            }),
            started: Instant::now(),
            beats: (0..campaign.jobs.max(1)).map(|_| Beat::default()).collect(),
        })
    }

    /// Since the start, with those before.
    fn seconds(&self) -> f64 {
        self.campaign.done.seconds + self.started.elapsed().as_secs_f64()
    }

    /// Lets what is done be kept.
    fn keep(&self) -> Result<()> {
        let campaign = self.campaign;
        let Some(keeper) = campaign.keeper else {
            return Ok(());
        };
        let found = self.found.lock();
        let violations = found.wrong.iter().filter_map(|(index, order, wrong)| {
            let workload = &campaign.workloads[*index];
            let key = workload.key();
            let is_done = found.done.contains(&key);
            let workload = workload.clone().in_order(*order);
            is_done.then(|| (key, campaign.as_found(&workload, wrong)))
        });
        let done = Done {
            violations: violations.collect(),
            workloads: found.done.clone(),
            counts: found.done_counts,
            met: found.done_met.clone(),
            seconds: self.seconds(),
        };
        drop(found);
        keeper(&done).inspect_err(|_| self.stop.store(true, Ordering::Relaxed))
    }

    fn work(&self, beat: &Beat, watch: &(dyn Fn(Progress) + Sync)) -> Result<()> {
        let campaign = self.campaign;
        let dir = stetfs_testkit::host::scratch()?;
        let scratch = dir.path().join("recovered");
        let mut subject = Subject::new(&campaign.target);
        while !self.stop.load(Ordering::Relaxed) {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(index) = self.todo.get(next).copied() else {
                break;
            };
            let workload = &campaign.workloads[index];
            beat.workload.store(index, Ordering::Relaxed);
            let mut go_on = || {
                beat.count.fetch_add(1, Ordering::Relaxed);
                self.tell(watch);
                self.is_within_budget()
            };
            let looked = self.look_at(workload, &mut subject, &scratch, &mut go_on);
            let looked = looked.inspect_err(|_| self.stop.store(true, Ordering::Relaxed))?;
            self.done.fetch_add(1, Ordering::Relaxed);
            let mut found = self.found.lock();
            found.met += &looked.met;
            if looked.unfinished {
                found.counts.workloads_unfinished += 1;
            } else {
                found.counts.workloads += 1;
                found.done_counts += looked.counts;
                found.done_met += &looked.met;
                found.done_counts.workloads += 1;
                found.done.insert(workload.key());
            }
            let wrong = looked.wrong.into_iter();
            found.wrong.extend(wrong.map(|(o, w)| (index, o, w)));
            if found.wrong.len() >= campaign.enough {
                self.stop.store(true, Ordering::Relaxed);
            }
            drop(found);
            self.tell(watch);
        }
        Ok(())
    }

    /// Explores a workload in each order in which it is carried out, until one shows something.
    fn look_at(
        &self,
        workload: &Workload,
        subject: &mut Subject,
        scratch: &std::path::Path,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Looked> {
        let campaign = self.campaign;
        let mut looked = Looked::default();
        let looks = campaign.effort.looks(workload, &campaign.target);
        for (n, (workload, effort)) in looks.into_iter().enumerate() {
            let findings = self.explore(&workload, effort, subject, scratch, go_on)?;
            let besides = Counts {
                orders: u64::from(n > 0),
                ..Counts::default()
            };
            self.found.lock().counts += besides;
            looked.counts += findings.counts;
            looked.met += &findings.met;
            looked.counts += besides;
            for wrong in findings.wrong {
                if let Some(listener) = campaign.listener {
                    listener(&campaign.as_found(&workload, &wrong));
                }
                looked.wrong.push((workload.order, wrong));
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
        workload: &Workload,
        effort: Effort,
        subject: &mut Subject,
        scratch: &std::path::Path,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Findings> {
        let campaign = self.campaign;
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
        let findings = explore(&record, workload, effort, subject, scratch, &mut count)?;
        self.found.lock().counts += findings.counts.since(&told);
        Ok(findings)
    }

    fn tell(&self, watch: &(dyn Fn(Progress) + Sync)) {
        let counts = self.found.lock().counts;
        watch(Progress {
            counts,
            done: self.done.load(Ordering::Relaxed),
            total: self.campaign.workloads.len(),
        });
    }

    fn is_within_budget(&self) -> bool {
        let Budget { states, time } = self.campaign.budget;
        let counts = self.found.lock().counts;
        let counts = counts.since(&self.campaign.done.counts);
        let within = !self.campaign.is_stopped()
            && states.is_none_or(|most| counts.states + counts.nested < most)
            && time.is_none_or(|most| self.started.elapsed() < most);
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
