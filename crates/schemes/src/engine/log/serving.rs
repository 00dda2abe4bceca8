//! The verbs of a scheme on a log: the steps of its commits and checkpoints.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use stetfs_format::BlockNo;
use stetfs_media::BlockRef;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{
    ActionCount, Backlog, DirtyBlock, Goal, Held, Placement, Result, Scheme, SchemeError, Snapshot,
};

use super::{Goes, Head, OnLog, Sorted, Until, Which};
use crate::parts::home::Write;
use crate::parts::index::Indexed;
use crate::parts::period::Period;

/// A scheme on a log.
pub(crate) struct Serving<S>(pub(crate) S);

impl<S: OnLog> Scheme for Serving<S> {
    fn read(&self, block: BlockNo) -> Result<Held> {
        let content = |version: &S::Version| Some(self.0.content(block, version));
        let held = self.0.log().index.find(block, content).transpose()?;
        Ok(held.map_or(Held::Home, Held::Here))
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.0.log().index.holds_any(start, count)
    }

    fn wants_changes(&self, home: BlockNo, content: &[u8]) -> Result<bool> {
        self.0.wants_changes(home, content)
    }

    fn place(&self, block: &DirtyBlock<'_>) -> Placement {
        self.0.place(block)
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let (scheme, log) = (&self.0, self.0.log());
        let _alone = S::ONE_AT_A_TIME.then(|| log.checkpointing.lock());
        let sorted = self.sort(txn);
        if !S::VOUCHES_FOR_DATA && !sorted.has_record() {
            return if sorted.home.is_empty() && sorted.late.is_empty() {
                Ok(())
            } else {
                log.write_data_alone(sorted.home.into_iter().chain(sorted.late))
            };
        }
        let Some((head, draft, len)) = self.write(&sorted, txn.time)? else {
            return Ok(());
        };
        self.note(&head, &sorted, draft, len, &txn.revoked);
        if scheme.lands_at_once() {
            self.checkpoint_within(Until::Goal(Goal::All))?;
        }
        if sorted.late.is_empty() {
            return Ok(());
        }
        log.write_data_alone(sorted.late.into_iter())
    }

    fn overwrite(&self, blocks: &[(BlockNo, BlockRef)]) -> Result<bool> {
        let log = self.0.log();
        let is_logged = {
            let index = log.index.read();
            blocks.iter().any(|(home, _)| index.contains_key(home))
        };
        if !S::OVERWRITES || is_logged {
            // A replay would write the logged copy over the new data.
            return Ok(false);
        }
        log.write_data_alone(blocks.iter().map(Write::data))?;
        Ok(true)
    }

    fn backlog(&self) -> Backlog {
        let log = self.0.log();
        let period = log.limits.period.as_ref();
        Backlog {
            is_due: log.used() > log.limits.most_used
                || log.is_short_of_memory()
                || self.0.is_due()
                || period.is_some_and(Period::is_over),
            forced: log.forced.load(Relaxed),
        }
    }

    fn checkpoint(&self, goal: Goal) -> Result<()> {
        let _one = self.0.log().checkpointing.lock();
        self.bring_home(Until::Goal(goal))
    }

    fn close(&self) -> Result<()> {
        self.checkpoint(Goal::All)?;
        self.0.close()
    }

    fn actions(&self) -> Vec<ActionCount> {
        self.0.actions()
    }
}

impl<S: OnLog> Serving<S> {
    fn sort<'t>(&self, txn: &'t Snapshot) -> Sorted<'t> {
        let index = self.0.log().index.read();
        let mut sorted = Sorted {
            home: Vec::new(),
            late: Vec::new(),
            logged: Vec::with_capacity(txn.data.len() + txn.meta.len()),
            logged_data: 0,
            revoked: Vec::new(),
        };
        for block in &txn.data {
            let goes = if index.contains_key(&block.home) {
                Goes::Log
            } else {
                self.0.goes(block)
            };
            match goes {
                Goes::Home => sorted.home.push(block),
                Goes::HomeLate => sorted.late.push(block),
                Goes::Log => sorted.logged.push(block),
            }
        }
        if is_planted(Bug::LateData) {
            sorted.late.append(&mut sorted.home);
        }
        sorted.logged_data = sorted.logged.len();
        sorted.logged.extend(&txn.meta);
        if self.0.revokes() && !is_planted(Bug::ForgottenRevoke) {
            let is_needed = |block: &&BlockNo| {
                let found = index.get(*block);
                found.is_some_and(|v| v.is_held() || !is_planted(Bug::EarlyForget))
            };
            sorted.revoked.extend(txn.revoked.iter().filter(is_needed));
        }
        sorted
    }

    /// Runs draft, room and write; `None`: there was nothing to write.
    fn write<'t>(
        &self,
        sorted: &Sorted<'t>,
        time: (u64, u32),
    ) -> Result<Option<(Head, S::Draft<'t>, u64)>> {
        let (scheme, log) = (&self.0, self.0.log());
        let mut is_again = false;
        loop {
            let (mut draft, most) = scheme.draft(&log.head(), sorted, is_again);
            if most == 0 {
                return Ok(None);
            }
            self.make_room(most, sorted)?;
            let head = log.head();
            match scheme.write(&head, sorted, &mut draft, time) {
                Ok(len) => return Ok(Some((head, draft, len))),
                Err(error) if !is_again && scheme.tries_again(&error) => is_again = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs checkpoints until the transaction fits, and until not more than twice `most_here`
    /// contents are in memory.
    fn make_room(&self, most: u64, sorted: &Sorted<'_>) -> Result<()> {
        let log = self.0.log();
        let fits = || most <= log.head().room && self.0.fits(sorted);
        if most <= log.limits.room {
            for until in [Until::Room(most), Until::Goal(Goal::All)] {
                // Twice: the background, which is to keep `most_here`, may lag behind.
                if fits() && log.index.here() <= log.limits.most_here.saturating_mul(2) {
                    return Ok(());
                }
                log.forced.fetch_add(1, Relaxed);
                self.checkpoint_within(until)?;
            }
            if fits() {
                return Ok(());
            }
        }
        Err(SchemeError::Unusable(format!(
            "the log has no room for a transaction: it needs {most} {}, and the log has {}",
            S::UNITS,
            log.limits.room
        )))
    }

    /// Notes a durable transaction: the log has it, its versions are the newest, and the blocks
    /// that it freed are no longer listed.
    fn note<'t>(
        &self,
        head: &Head,
        sorted: &Sorted<'t>,
        draft: S::Draft<'t>,
        len: u64,
        freed: &[BlockNo],
    ) {
        let log = self.0.log();
        let mut span = log.span.lock();
        span.transactions.push_back((head.sequence, head.at));
        span.head += len;
        span.sequence = head.sequence.next();
        log.used.store(span.used(), Relaxed);
        // Span and index change together: a checkpoint takes a block that is not in the index for
        // home.
        let span = (!is_planted(Bug::LateListing)).then_some(span);
        let mut index = log.index.write();
        self.0.note(&mut index, head, sorted, draft);
        for block in freed {
            index.remove(block);
        }
        drop((index, span));
        if let Some(period) = &log.limits.period {
            period.note_commit();
        }
    }

    /// Runs a checkpoint within a commit.
    fn checkpoint_within(&self, until: Until) -> Result<()> {
        // With `ONE_AT_A_TIME` the commit holds this lock already.
        let _one = (!S::ONE_AT_A_TIME).then(|| self.0.log().checkpointing.lock());
        self.bring_home(until)
    }

    /// Runs the steps of a checkpoint. The caller holds `checkpointing`.
    fn bring_home(&self, until: Until) -> Result<()> {
        let (scheme, log) = (&self.0, self.0.log());
        let started = Instant::now();
        let Some(which) = scheme.due(until) else {
            return Ok(());
        };
        let mut due = log.take_due(which);
        let landed = if due.is_empty() {
            Ok(())
        } else {
            scheme.land(&mut due)
        };
        log.busy_homes.release();
        log.settle(&due, landed.is_ok());
        landed?;
        let goal = match which {
            Which::Before(first) if S::STOPS_AT_GOAL => Some(first),
            _ => None,
        };
        let (first, at) = log.first_needed(goal);
        if at != log.span.lock().tail {
            if !is_planted(Bug::LateTail) {
                scheme.write_tail(at, first)?;
            }
            scheme.leave(at, &due)?;
            log.cut(at);
            log.forget_before(first);
        }
        if let Some(period) = &log.limits.period {
            let is_all_home = log.index.held() == 0;
            period.note_checkpoint((!is_all_home).then_some(started));
        }
        Ok(())
    }
}
