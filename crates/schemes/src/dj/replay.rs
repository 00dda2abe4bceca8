//! What recovery found becomes the state of the log, and is brought home as by any checkpoint.

use stetfs_format::width::usize_as_u64;
use stetfs_media::{Cause, Class};

use super::recovery::{Left, read};
use super::{DeltaVersion, Dj, Logged};
use crate::parts::home::{Write, write_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{OpenArgs, RecoveryReport, Result};

impl Dj {
    /// Brings home what a crash left.
    pub(super) fn recover(&self, args: &OpenArgs) -> Result<RecoveryReport> {
        let (at, sequence) = {
            let log = self.log.lock();
            (log.head, log.sequence)
        };
        let left = read(&self.region, &self.area, args.blocks, at, sequence)?;
        let mut report = RecoveryReport {
            was_needed: true,
            transactions: u32::try_from(left.transactions.len()).unwrap_or(u32::MAX),
            blocks: usize_as_u64(left.pending.len()),
            revoked: left.revoked,
            ..RecoveryReport::default()
        };
        if let (Some(first), Some(last)) = (left.transactions.first(), left.transactions.last()) {
            report.sequences = Some((first.sequence.0, last.sequence.0));
            let mut log = self.log.lock();
            log.head = last.end;
            // The next one skips a number, so that remains of an incomplete one are never taken for
            // it.
            if !is_planted(Bug::ReusedSequence) {
                log.sequence = last.sequence.next();
            }
        }
        // All of it is found whole before anything is written.
        self.take_over(&left)?;
        if let Some(last) = left.transactions.last() {
            // From now on what its tags say of home counts.
            self.region.forget_home(&left.not_home)?;
            self.region.note_committed(last.sequence)?;
        }
        self.pair.resume()?;
        self.land_kept(&left)?;
        self.bring_home()?;
        let mut log = self.log.lock();
        if !is_planted(Bug::ReusedSequence) {
            log.sequence = log.sequence.next();
        }
        (log.next, log.free) = (self.area.first, self.area.capacity());
        let (head, sequence) = (log.head, log.sequence);
        log.tail = head;
        drop(log);
        self.pair
            .move_tail(self.region.tail(head, sequence), Cause::Recovery)?;
        Ok(report)
    }

    /// Writes home what was on its way.
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

    /// Makes what was found the state of the log.
    fn take_over(&self, left: &Left) -> Result<()> {
        let mut log = self.log.lock();
        let mut index = self.index.write();
        for found in &left.transactions {
            log.transactions.push_back(Logged {
                sequence: found.sequence,
                end: found.end,
                blocks: 0,
                needed: 0,
            });
        }
        for (home, pending) in &left.pending {
            for tid in &pending.transactions {
                log.transaction(*tid).needed += 1;
            }
            let version = DeltaVersion {
                class: Class::Data,
                content: left.content(*home, pending, &self.area)?,
                tag: pending.tag,
                transactions: pending.transactions.iter().copied().collect(),
                whole: pending.whole,
            };
            index.insert(*home, version);
        }
        Ok(())
    }
}
