//! Background work beside a workload's calls, in virtual time: commits by age, delayed data that
//! has become old, checkpoints. On a real machine, others do that while the callers compute.
//!
//! One clock tells the time of media and processor alike, so each waits for the other. Where the
//! background [overlaps](Background::overlaps), the clock goes back by what its work took, and that
//! much is *owed*. Then:
//!
//! 1. A call goes first at the device. While the processor works for calls, or the program pauses,
//!    the device is idle, and that time pays off what is owed.
//! 2. A commit waits for what is owed of the commit before it; a checkpoint, or a collection by a
//!    flash layer, that falls due waits for all that is owed. The call that brings it about waits.
//! 3. Work that has come of age begins when nothing is owed: there is one thread for it.
//! 4. Work that had to be done at once, as where a cache is full, is charged to the call.
//!
//! One thing is simpler than in reality: owed work has already had its effect. The log is free when
//! its checkpoint begins, not when it ends.

use std::time::Duration;

use anyhow::Result;
use stetfs::Fs;
use stetfs_media::{Cause, Clock};

/// What the background does, and whether callers wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Background {
    /// Whether it works in the device's idle time, as above; otherwise callers wait for all of it.
    pub overlaps: bool,
    /// How long new data stays delayed, where no commit needs it. Each time this has passed, all
    /// delayed data joins the next commit. Zero: new data is part of the next commit.
    pub expire: Duration,
    /// The longest time without a checkpoint.
    pub checkpoint: Duration,
}

impl Background {
    /// No background: commits and the log ask for work, and callers wait.
    pub const NONE: Self = Self {
        overlaps: false,
        expire: Duration::ZERO,
        checkpoint: Duration::MAX,
    };
}

/// What the volume has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Done {
    commits: u64,
    checkpoints: u64,
    /// Time of the media for checkpoints, in nanoseconds.
    checkpoint_ns: u64,
    collect_ns: u64,
}

impl Done {
    fn since(self, before: Self) -> Self {
        Self {
            commits: self.commits - before.commits,
            checkpoints: self.checkpoints - before.checkpoints,
            checkpoint_ns: self.checkpoint_ns - before.checkpoint_ns,
            collect_ns: self.collect_ns - before.collect_ns,
        }
    }

    /// Returns the time of background work in it. Checkpoint time without a checkpoint is a cache
    /// that makes room, which is no background work.
    fn behind_ns(self) -> u64 {
        let checkpoint_ns = match self.checkpoints {
            0 => 0,
            _ => self.checkpoint_ns,
        };
        checkpoint_ns + self.collect_ns
    }
}

/// The background of a session.
pub(super) struct Beside<'a> {
    fs: &'a Fs,
    clock: Clock,
    how: Background,
    /// Time of checkpoints that the device's meter does not count, in nanoseconds.
    late_ns: &'a dyn Fn() -> u64,
    before: Done,
    owed: Owed,
    /// When the last commit, expiry and checkpoint were.
    committed_ns: u64,
    expired_ns: u64,
    checkpointed_ns: u64,
}

/// Device time that background work still owes.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    commit_ns: u64,
    other_ns: u64,
}

impl Owed {
    fn total_ns(self) -> u64 {
        self.commit_ns + self.other_ns
    }

    fn pay(&mut self, ns: u64) {
        let commit_ns = self.commit_ns.min(ns);
        self.commit_ns -= commit_ns;
        self.other_ns = self.other_ns.saturating_sub(ns - commit_ns);
    }
}

impl<'a> Beside<'a> {
    pub(super) fn new(
        fs: &'a Fs,
        clock: Clock,
        how: Background,
        late_ns: &'a dyn Fn() -> u64,
    ) -> Self {
        let now_ns = clock.now_ns();
        let mut beside = Self {
            fs,
            clock,
            how,
            late_ns,
            before: Done::default(),
            owed: Owed::default(),
            committed_ns: now_ns,
            expired_ns: now_ns,
            checkpointed_ns: now_ns,
        };
        beside.before = beside.done();
        beside
    }

    fn done(&self) -> Done {
        let stats = self.fs.stats();
        let nvm_ns = stats
            .nvm
            .map_or(0, |nvm| nvm.traffic.busy_ns(Cause::Checkpoint));
        let device_ns = stats.device.busy_ns(Cause::Checkpoint);
        Done {
            commits: stats.journal.commits,
            checkpoints: stats.journal.checkpoints,
            checkpoint_ns: device_ns + nvm_ns + (self.late_ns)(),
            collect_ns: stats.device.busy_ns(Cause::Gc),
        }
    }

    /// Returns what was done since the last call.
    fn news(&mut self) -> Done {
        let done = self.done();
        let news = done.since(self.before);
        self.before = done;
        news
    }

    /// Notes that this was done now.
    fn note(&mut self, news: Done) {
        let now_ns = self.clock.now_ns();
        if news.commits > 0 {
            self.committed_ns = now_ns;
        }
        if news.checkpoints > 0 {
            self.checkpointed_ns = now_ns;
        }
    }

    fn go_back(&self, ns: u64) {
        self.clock.advance(ns.wrapping_neg());
    }

    /// Pays what is owed with idle time of the device.
    pub(super) fn idle(&mut self, ns: u64) {
        self.owed.pay(ns);
    }

    /// Waits for the commit that is under way: nothing is durable before it ends.
    pub(super) fn wait_for_commit(&mut self) {
        self.clock.advance(self.owed.commit_ns);
        self.owed.commit_ns = 0;
    }

    /// Ends a call. It does not wait for the background work that it has caused, but for what was
    /// owed before that. Returns whether it committed.
    pub(super) fn called(&mut self) -> bool {
        let news = self.news();
        if news.commits > 0 {
            self.wait_for_commit();
        }
        let behind_ns = news.behind_ns();
        if self.how.overlaps && behind_ns > 0 {
            self.clock.advance(self.owed.total_ns());
            self.go_back(behind_ns);
            self.owed = Owed {
                commit_ns: 0,
                other_ns: behind_ns,
            };
        }
        self.note(news);
        news.commits > 0
    }

    /// Does the work that has come of age, with a commit as often as `period` says. Returns whether
    /// it did something.
    ///
    /// # Errors
    /// Those of the volume.
    pub(super) fn look(&mut self, period: Option<Duration>) -> Result<bool> {
        let start_ns = self.clock.now_ns();
        let is_over = |since_ns: u64, period: Duration| {
            u128::from(start_ns.saturating_sub(since_ns)) >= period.as_nanos()
        };
        let commits = period.is_some_and(|period| is_over(self.committed_ns, period));
        let checkpoints = is_over(self.checkpointed_ns, self.how.checkpoint);
        if self.owed.total_ns() > 0 || !(commits || checkpoints) {
            return Ok(false);
        }
        if commits {
            if is_over(self.expired_ns, self.how.expire) {
                self.fs.expire()?;
                self.expired_ns = start_ns;
            }
            self.fs.commit()?;
        }
        let by_commit = self.news();
        let commit_ns = self.clock.now_ns() - start_ns - by_commit.behind_ns();
        if checkpoints {
            let mut left = u64::MAX;
            while let now_left = self.fs.drain_some()?
                && (1..left).contains(&now_left)
            {
                left = now_left;
            }
        }
        let by_checkpoint = self.news();
        if self.how.overlaps {
            let all_ns = self.clock.now_ns() - start_ns;
            self.go_back(all_ns);
            self.owed = Owed {
                commit_ns,
                other_ns: all_ns - commit_ns,
            };
        }
        self.note(by_commit);
        self.note(by_checkpoint);
        if commits {
            self.committed_ns = self.clock.now_ns();
        }
        Ok(true)
    }

    /// Whether background work overlaps with calls.
    pub(super) fn overlaps(&self) -> bool {
        self.how.overlaps
    }

    /// Returns what is still owed, in nanoseconds.
    pub(super) fn owed_ns(&self) -> u64 {
        self.owed.total_ns()
    }
}
