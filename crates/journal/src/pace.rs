//! How a thread waits for a commit, and for which threads a commit waits.
//!
//! Threads that sync again and again share commits only if they come back together. Otherwise a
//! thread that missed a commit has the next one to itself, and the others miss that one. So the
//! thread that is about to commit waits for those that waited for the last commit, until the time
//! that a commit takes on average has passed since the last one ended. jbd2 does so too
//! (`jbd2_journal_stop`, `max_batch_time`), but always sleeps that long, unless only one thread
//! syncs. Here the threads are counted: the wait ends when as many have asked as waited the last
//! time; a thread that stays away costs one such wait; and after waits in vain, commits wait less
//! often. With more threads than processors, some always come while a commit is under way. Then a
//! commit waits for nobody, but yields the processor once to threads that can run.

use std::time::{Duration, Instant};

/// Whether commits take a medium's time or only processor time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// A medium's: the running transaction collects changes until the one before is durable.
    Medium {
        /// The longest time that a commit waits for expected threads. Zero: it does not wait, and
        /// threads that wait for a commit sleep at once.
        batch: Duration,
        /// The shortest such time while a thread is missing; `batch` is the upper bound.
        least: Duration,
    },
    /// Processors': a small transaction is closed while another one commits.
    Processors {
        /// The most cached blocks of such a small transaction.
        overlap: u32,
        /// How often a waiting thread spins, 15 ns each, before it sleeps. Being woken takes tens
        /// of microseconds.
        looks: u32,
    },
}

impl Pace {
    /// For commits of a few microseconds.
    pub(crate) const PROCESSORS: Self = Self::Processors {
        overlap: 64,
        looks: 1024,
    };

    /// Returns the most cached blocks of a transaction that is closed while another one commits.
    pub(crate) fn overlap(self) -> u32 {
        match self {
            Self::Medium { .. } => 0,
            Self::Processors { overlap, .. } => overlap,
        }
    }
}

/// A thread that waits for a commit longer than this sleeps at once: being woken takes a small part
/// of that time.
const QUICK: Duration = Duration::from_micros(100);

/// The bound of `Batch::in_vain`. With it, one commit in 65 waits in vain for threads that never
/// come together.
const MOST_IN_VAIN: u32 = 6;

/// The number of threads that wait for commits of a medium, and how long these take.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Threads that wait for the running transaction to be durable.
    asked: u32,
    /// Threads that wait for the transaction before it.
    before: u32,
    /// Threads that waited when the last commit ended; 0 if that is more than can run at once.
    expected: u32,
    processors: u32,
    /// Waits in vain since the last wait that was not, up to [`MOST_IN_VAIN`].
    in_vain: u32,
    /// The number of next commits that wait for nobody because of that: 2 after one wait in vain,
    /// 4 after the second.
    left_out: u32,
    /// The average time of a commit. The last one counts for a quarter (jbd2's
    /// `j_average_commit_time`).
    average: Duration,
    began: Instant,
    ended: Instant,
}

impl Batch {
    pub(crate) fn new(processors: u32, now: Instant) -> Self {
        Self {
            processors,
            in_vain: 0,
            left_out: 0,
            asked: 0,
            before: 0,
            expected: 0,
            average: Duration::ZERO,
            began: now,
            ended: now,
        }
    }

    /// Counts a thread that waits for the running transaction, or for the one before.
    pub(crate) fn ask(&mut self, is_running: bool) {
        if is_running {
            self.asked += 1;
        } else {
            self.before += 1;
        }
    }

    /// Notes that the next transaction runs.
    pub(crate) fn switch(&mut self) {
        self.before = std::mem::take(&mut self.asked);
    }

    pub(crate) fn begin(&mut self, now: Instant) {
        self.began = now;
    }

    pub(crate) fn end(&mut self, now: Instant) {
        self.expected = match self.before + self.asked {
            all if all > 1 && all <= self.processors => all,
            _ => 0,
        };
        if self.expected > 0 && self.left_out > 0 {
            self.left_out -= 1;
            self.expected = 0;
        }
        self.average = (self.average * 3 + now.duration_since(self.began)) / 4;
        self.ended = now;
    }

    /// Pretends that `callers` had waited for a commit that has just ended, and that commits take
    /// `average`.
    #[cfg(test)]
    pub(crate) fn expect(&mut self, callers: u32, average: Duration) {
        (self.expected, self.average, self.ended) = (callers, average, Instant::now());
    }

    /// Makes the next commit wait for nobody.
    pub(crate) fn expect_nobody(&mut self) {
        self.expected = 0;
    }

    /// Notes that a commit has waited, until no thread was missing or in vain.
    pub(crate) fn waited(&mut self) {
        if self.is_complete() {
            self.in_vain = 0;
        } else {
            self.in_vain = (self.in_vain + 1).min(MOST_IN_VAIN);
            self.left_out = 1 << self.in_vain;
        }
    }

    /// True when no thread is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.asked >= self.expected
    }

    /// Returns the time until which a commit waits for missing threads.
    pub(crate) fn deadline(&self, least: Duration, longest: Duration) -> Instant {
        self.ended + self.average.max(least).min(longest)
    }

    /// Returns how long a thread that waits for a commit spins before it sleeps.
    pub(crate) fn patience(&self, longest: Duration) -> Duration {
        if self.average <= QUICK {
            (self.average * 2).min(longest)
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: Duration = Duration::from_micros(40);
    const LONGEST: Duration = Duration::from_micros(30);

    /// Makes a commit for one thread that asked, while `beside` threads ask for the next one.
    fn commit(batch: &mut Batch, now: &mut Instant, beside: u32) {
        batch.switch();
        batch.begin(*now);
        (0..beside).for_each(|_| batch.ask(true));
        *now += COMMIT;
        batch.end(*now);
    }

    #[test]
    fn one_who_is_alone_waits_for_nobody() {
        let mut now = Instant::now();
        let mut batch = Batch::new(2, now);
        for _ in 0..3 {
            batch.ask(true);
            assert!(batch.is_complete());
            commit(&mut batch, &mut now, 0);
        }
    }

    #[test]
    fn two_who_missed_each_other_come_together() {
        let mut now = Instant::now();
        let mut batch = Batch::new(2, now);
        batch.ask(true);
        commit(&mut batch, &mut now, 1);
        assert!(!batch.is_complete(), "who committed comes back");
        batch.ask(true);
        assert!(batch.is_complete());
        commit(&mut batch, &mut now, 0);
        batch.ask(true);
        assert!(!batch.is_complete(), "there were two");
        // The other one stays away; one commit waits for it.
        commit(&mut batch, &mut now, 0);
        batch.ask(true);
        assert!(batch.is_complete());
    }

    #[test]
    fn after_waits_in_vain_it_is_waited_more_seldom() {
        let mut now = Instant::now();
        let mut batch = Batch::new(2, now);
        // Two threads that never come together; counts the commits between two waits.
        let mut until_next_wait = |batch: &mut Batch| {
            let mut n = 0;
            loop {
                batch.ask(true);
                let is_complete = batch.is_complete();
                if !is_complete {
                    batch.waited();
                }
                commit(batch, &mut now, 1);
                // The thread that asked meanwhile has the next one to itself.
                batch.asked = 0;
                if !is_complete {
                    return n;
                }
                n += 1;
            }
        };
        let mut waits: Vec<u32> = (0..8).map(|_| until_next_wait(&mut batch)).collect();
        assert_eq!(waits.remove(0), 1, "after the first commit");
        assert_eq!(waits, [2, 4, 8, 16, 32, 64, 64]);
        batch.ask(true);
        batch.ask(true);
        batch.waited();
        assert_eq!(batch.in_vain, 0, "nobody was missing");
    }

    #[test]
    fn who_comes_while_it_commits_is_counted() {
        let mut now = Instant::now();
        let mut batch = Batch::new(2, now);
        batch.ask(true);
        batch.switch();
        batch.begin(now);
        batch.ask(false);
        now += COMMIT;
        batch.end(now);
        batch.ask(true);
        assert!(!batch.is_complete());
        batch.expect_nobody();
        assert!(batch.is_complete());
    }

    #[test]
    fn more_than_can_run_at_once_are_not_waited_for() {
        let mut now = Instant::now();
        let mut batch = Batch::new(2, now);
        batch.ask(true);
        commit(&mut batch, &mut now, 2);
        assert!(batch.is_complete(), "two of three can run");
    }

    #[test]
    fn nobody_is_waited_for_longer_than_a_commit_takes_or_than_is_allowed() {
        let mut now = Instant::now();
        let mut batch = Batch::new(2, now);
        commit(&mut batch, &mut now, 0);
        assert_eq!(
            batch.deadline(Duration::ZERO, COMMIT),
            now + COMMIT / 4,
            "the first counts for a quarter"
        );
        for _ in 0..100 {
            commit(&mut batch, &mut now, 0);
        }
        let deadline = batch.deadline(Duration::ZERO, COMMIT);
        assert!(now + COMMIT * 9 / 10 < deadline && deadline <= now + COMMIT);
        assert_eq!(batch.deadline(Duration::ZERO, LONGEST), now + LONGEST);
        // At least `min_batch_time=`, but never longer than the longest.
        assert_eq!(batch.deadline(COMMIT * 2, COMMIT * 3), now + COMMIT * 2);
        assert_eq!(batch.deadline(COMMIT * 2, LONGEST), now + LONGEST);
    }

    #[test]
    fn on_a_slow_medium_nobody_looks() {
        let mut now = Instant::now();
        let mut batch = Batch::new(2, now);
        commit(&mut batch, &mut now, 0);
        assert!(batch.patience(LONGEST) > Duration::ZERO);
        now += QUICK * 5;
        batch.end(now);
        assert_eq!(batch.patience(LONGEST), Duration::ZERO);
    }
}
