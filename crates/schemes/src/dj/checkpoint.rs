//! Checkpoints: the newest version of every block goes home, in batches none of which a cut can
//! tear; see `dj.rs`.

use std::time::Instant;

use smallvec::SmallVec;
use stetfs_format::delta_log::{InFlightEntry, content_checksum};
use stetfs_format::{BlockNo, Tid};
use stetfs_media::{BlockRef, Cause, Class};

use super::region::{Flight, TagWord};
use super::{DeltaVersion, Dj};
use crate::parts::home::{Write, write_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::Result;

/// A block that a checkpoint writes home.
struct DueTagged {
    home: BlockNo,
    class: Class,
    content: BlockRef,
    sequence: Tid,
    tag: TagWord,
    rests_on_home: bool,
}

impl DueTagged {
    fn of(home: BlockNo, version: &DeltaVersion) -> Self {
        Self {
            home,
            class: version.class,
            content: version.content.clone(),
            sequence: version.sequence(),
            tag: version.tag,
            rests_on_home: version.whole.is_none(),
        }
    }
}

impl Dj {
    /// Brings everything home that was committed when this was called, and takes it out of the log.
    pub(super) fn bring_home(&self) -> Result<()> {
        let _one_at_a_time = self.checkpointing.lock();
        let (mut homes, started): (Vec<BlockNo>, Instant) = {
            let index = self.index.read();
            (index.keys().copied().collect(), Instant::now())
        };
        homes.sort_unstable();
        let mut rest = &homes[..];
        let mut has_begun = false;
        while !rest.is_empty() {
            rest = &rest[self.bring_batch_home(rest, &mut has_begun)?..];
        }
        if has_begun {
            self.pair.note_in_memory(Cause::Checkpoint)?;
        }
        self.drop_oldest()?;
        let is_all_home = self.index.held() == 0;
        self.period
            .note_checkpoint((!is_all_home).then_some(started));
        Ok(())
    }

    /// Brings the first of these blocks home, as many as can be in flight at once; how many they
    /// are. Those that do not rest on home do not count: nothing of them is kept.
    fn bring_batch_home(&self, homes: &[BlockNo], has_begun: &mut bool) -> Result<usize> {
        let mut taken = 0;
        let find = || {
            let index = self.index.read();
            let (mut due, mut resting) = (Vec::new(), 0);
            for home in homes {
                let found = index.get(home).map(|version| DueTagged::of(*home, version));
                resting += u32::from(found.as_ref().is_some_and(|due| due.rests_on_home));
                if resting > self.region.geometry.in_flight {
                    break;
                }
                due.extend(found);
                taken += 1;
            }
            due
        };
        let due: Vec<DueTagged> = self.busy_homes.occupy(find, |due| due.home);
        let landed = self.land(&due, has_begun);
        self.busy_homes.release();
        landed?;
        self.are_home(&due);
        Ok(taken)
    }

    /// Writes blocks home, durably, and says so in their tags. A cut at any moment leaves each with
    /// a version that a replay can start from. The first batch of a checkpoint has its number with
    /// it: a sector for each of many small batches would be most of what they cost.
    fn land(&self, due: &[DueTagged], has_begun: &mut bool) -> Result<()> {
        if due.is_empty() {
            return Ok(());
        }
        let resting = due.iter().filter(|due| due.rests_on_home);
        let flights: Vec<Flight<'_>> = resting
            .map(|due| Flight {
                entry: InFlightEntry {
                    home: due.home,
                    sequence: due.sequence,
                    checksum: content_checksum(&due.content),
                },
                content: &due.content,
            })
            .collect();
        if !flights.is_empty() && !is_planted(Bug::UnkeptBase) {
            self.region.keep(&flights)?;
        }
        let writes = due.iter().map(|due| Write {
            home: due.home,
            class: due.class,
            content: &due.content,
        });
        let (dev, size) = (&*self.area.dev, self.area.block_size);
        write_home(dev, size, Cause::Checkpoint, writes.collect())?;
        if !std::mem::replace(has_begun, true) {
            self.pair.note_in_volume(Cause::Checkpoint)?;
        }
        if !is_planted(Bug::MissingCheckpointFlush) {
            dev.flush(Cause::Checkpoint)?;
        }
        if !is_planted(Bug::DeltaTwice) {
            self.region.note_home(due.iter().map(|due| due.tag))?;
        }
        // Before the index forgets them: whoever frees one of them from then on leaves no trace in
        // the log.
        self.region.forget_kept()
    }

    /// These versions are home.
    fn are_home(&self, due: &[DueTagged]) {
        let mut log = self.log.lock();
        let mut index = self.index.write();
        for due in due {
            let is_later = |tid: &Tid| tid.is_after(due.sequence);
            let mut rests_on_none = false;
            index.change(&due.home, |version| {
                let (later, done): (SmallVec<[Tid; 2]>, SmallVec<[Tid; 2]>) =
                    version.transactions.iter().copied().partition(is_later);
                log.need_no_more(&done);
                rests_on_none = later.is_empty();
                version.transactions = later;
                version.whole = version.whole.filter(is_later);
            });
            if rests_on_none {
                index.remove(&due.home);
            }
        }
    }

    /// Takes transactions out of the log that no block needs.
    fn drop_oldest(&self) -> Result<()> {
        let (n, tail, sequence) = {
            let log = self.log.lock();
            let unneeded = log.transactions.iter().take_while(|t| t.needed == 0);
            let n = unneeded.count();
            let Some(last) = n.checked_sub(1) else {
                return Ok(());
            };
            let last = &log.transactions[last];
            (n, last.end, last.sequence.next())
        };
        self.pair
            .move_tail(self.region.tail(tail, sequence), Cause::Checkpoint)?;
        let mut log = self.log.lock();
        let blocks: u32 = log
            .transactions
            .drain(..n)
            .map(|logged| logged.blocks)
            .sum();
        log.free += blocks;
        log.tail = tail;
        self.note_use(&log);
        Ok(())
    }
}
