//! How a thread waits for a commit, and for whom a commit waits.
//!
//! Threads that sync again and again share commits only if they come back together. Otherwise the
//! one that missed a commit has the next one for itself, and the others miss that. So whoever is
//! about to commit waits for those that were there when the last commit ended, and no longer than a
//! commit takes on average, from that end on. jbd2 does so too (`jbd2_journal_stop`,
//! `max_batch_time`), but always sleeps that long, unless one thread is all that syncs. Here those
//! who ask are counted: nobody waits for more than were there, a thread that stays away is missed
//! once, and after waits in vain it is waited more seldom. Of more threads than processors some
//! always come while a commit is under way, and nobody is waited for: but those who can run at once
//! go first.

use std::time::{Duration, Instant};

/// What commits are the work of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Of a medium: the running transaction collects until the one before is durable.
    Medium {
        /// The longest that a commit waits for those who are expected; zero: not at all, and who
        /// waits for a commit sleeps at once.
        batch: Duration,
        /// The shortest, where somebody is missing and `batch` is not shorter.
        least: Duration,
    },
    /// Of processors: a transaction is closed while another commits.
    Processors {
        /// It has at most so many blocks of memory.
        overlap: u32,
        /// How often a waiting thread looks, 15 ns each, before it lets the kernel wake it, which
        /// takes tens of microseconds.
        looks: u32,
    },
}

impl Pace {
    /// A transaction takes a few microseconds.
    pub(crate) const PROCESSORS: Self = Self::Processors {
        overlap: 64,
        looks: 1024,
    };

    /// Blocks of memory up to which a transaction is closed while another commits.
    pub(crate) fn overlap(self) -> u32 {
        match self {
            Self::Medium { .. } => 0,
            Self::Processors { overlap, .. } => overlap,
        }
    }
}

/// Where a commit takes longer than this, a thread that waits for it sleeps at once: to be woken
/// takes a small part of that.
const QUICK: Duration = Duration::from_micros(100);

/// Threads that come as they like are waited for in vain with one commit in 65 at most.
const MOST_IN_VAIN: u32 = 6;

/// Who waits for commits of a medium, and how long these take.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Who waits for the running transaction to be durable.
    asked: u32,
    /// Who waits for the one before.
    before: u32,
    /// How many waited when the last commit ended; none if that is more than can run at once.
    expected: u32,
    processors: u32,
    /// Waits in vain since the last one that was not, up to [`MOST_IN_VAIN`].
    in_vain: u32,
    /// How many commits will not wait for anybody because of that: 2 after one wait in vain, 4
    /// after the second.
    left_out: u32,
    /// How long a commit takes: the last one counts for a quarter (jbd2's
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

    /// Somebody waits for the running transaction, or for the one before.
    pub(crate) fn ask(&mut self, is_running: bool) {
        if is_running {
            self.asked += 1;
        } else {
            self.before += 1;
        }
    }

    /// The next transaction runs.
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

    /// As if so many had waited for a commit that has just ended, and commits took so long.
    #[cfg(test)]
    pub(crate) fn expect(&mut self, callers: u32, average: Duration) {
        (self.expected, self.average, self.ended) = (callers, average, Instant::now());
    }

    /// The next commit waits for nobody.
    pub(crate) fn expect_nobody(&mut self) {
        self.expected = 0;
    }

    /// A commit has waited until nobody was missing, or in vain.
    pub(crate) fn waited(&mut self) {
        if self.is_complete() {
            self.in_vain = 0;
        } else {
            self.in_vain = (self.in_vain + 1).min(MOST_IN_VAIN);
            self.left_out = 1 << self.in_vain;
        }
    }

    /// Nobody is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.asked >= self.expected
    }

    /// Until when those who are missing are waited for.
    pub(crate) fn deadline(&self, least: Duration, longest: Duration) -> Instant {
        self.ended + self.average.max(least).min(longest)
    }

    /// How long somebody who waits for a commit looks whether it has ended, before he sleeps.
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

    /// A commit by one who asked, while `beside` ask for the next one.
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
        // The other one stays away, and is missed this once.
        commit(&mut batch, &mut now, 0);
        batch.ask(true);
        assert!(batch.is_complete());
    }

    #[test]
    fn after_waits_in_vain_it_is_waited_more_seldom() {
        let mut now = Instant::now();
        let mut batch = Batch::new(2, now);
        // Two who never come together; commits between two waits.
        let mut until_next_wait = |batch: &mut Batch| {
            let mut n = 0;
            loop {
                batch.ask(true);
                let is_complete = batch.is_complete();
                if !is_complete {
                    batch.waited();
                }
                commit(batch, &mut now, 1);
                // Who asked meanwhile has the next one for itself.
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
        // At least so long (`min_batch_time=`), but never longer than the longest.
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
