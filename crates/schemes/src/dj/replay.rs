//! The end of a recovery: the log takes over what was found, and a checkpoint brings it home.

use stetfs_format::width::usize_as_u64;
use stetfs_media::{Cause, Class};

use super::recovery::{Left, read};
use super::{DeltaVersion, Dj};
use crate::parts::home::{Write, write_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{OpenArgs, RecoveryReport, Result};

impl Dj {
    /// Makes the state that recovery found the state of the log.
    pub(super) fn take_over(&self, args: &OpenArgs) -> Result<RecoveryReport> {
        let (at, sequence) = {
            let span = self.log.span.lock();
            (span.head, span.sequence)
        };
        let left = read(&self.region, &self.area, args.blocks, at, sequence)?;
        let mut report = RecoveryReport {
            was_needed: true,
            transactions: u32::try_from(left.transactions.len()).unwrap_or(u32::MAX),
            blocks: usize_as_u64(left.pending.len()),
            revoked: left.revoked,
            ..RecoveryReport::default()
        };
        // `list` checks everything before anything is written.
        self.list(&left)?;
        if let (Some(first), Some(last)) = (left.transactions.first(), left.transactions.last()) {
            report.sequences = Some((first.sequence.0, last.sequence.0));
            // From now on the flags in the last transaction's tags count.
            self.region.forget_home(&left.not_home)?;
            self.region.note_committed(last.sequence)?;
        }
        self.pair.resume()?;
        self.land_kept(&left)?;
        Ok(report)
    }

    /// Lists the transactions and versions, as their commits had done.
    fn list(&self, left: &Left) -> Result<()> {
        let mut span = self.log.span.lock();
        for found in &left.transactions {
            let at = span.head;
            span.transactions.push_back((found.sequence, at));
            span.head = found.end;
            if !is_planted(Bug::ReusedSequence) {
                span.sequence = found.sequence.next();
            }
        }
        // They count as taking no journal blocks: the journal begins anew when they are home.
        let taken = left.transactions.iter().map(|_| 0);
        self.journal.lock().taken.extend(taken);
        let mut index = self.log.index.write();
        for (home, pending) in &left.pending {
            let transactions = pending.transactions.iter().copied();
            let version = DeltaVersion {
                class: Class::Data,
                content: left.content(*home, pending, &self.area)?,
                tag: pending.tag,
                newest: *pending.transactions.last().expect("its own"),
                transactions: transactions.collect(),
                whole: pending.whole,
            };
            index.insert(*home, version);
        }
        Ok(())
    }

    /// Writes the blocks in flight home.
    fn land_kept(&self, left: &Left) -> Result<()> {
        let writes = left.kept.iter().map(|(entry, content, _)| Write {
            home: entry.home,
            class: Class::Data,
            content,
        });
        if !left.kept.is_empty() {
            let (dev, size) = (&*self.area.dev, self.area.block_size);
            write_home(dev, size, Cause::Recovery, writes.collect())?;
            dev.flush(Cause::Recovery)?;
            let tags = left.kept.iter().filter_map(|(.., tag)| *tag);
            self.region.note_home(tags)?;
        }
        self.region.forget_kept()
    }

    /// Begins the log anew, when everything is home. The next transaction skips one number, so that
    /// remains of an incomplete one are never taken for it.
    pub(super) fn begin_anew(&self) -> Result<()> {
        let mut span = self.log.span.lock();
        if !is_planted(Bug::ReusedSequence) {
            span.sequence = span.sequence.next();
        }
        let tail = self.region.tail(span.head, span.sequence);
        self.pair.move_tail(tail, Cause::Recovery)
    }
}
