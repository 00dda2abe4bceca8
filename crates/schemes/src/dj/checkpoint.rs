//! Checkpoints: versions go home in batches, and no cut destroys a version of one (`dj.rs`).

use stetfs_format::delta_log::{InFlightEntry, content_checksum};
use stetfs_media::Cause;

use super::Dj;
use super::region::Flight;
use crate::engine::log::DueOf;
use crate::parts::home::{Write, write_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::Result;

impl Dj {
    /// Writes blocks home in batches, durable when it returns. A batch has as many blocks that rest
    /// on home as the NVRAM can keep, and any number of others, which it need not keep.
    pub(super) fn land_in_batches(&self, due: &[DueOf<Self>]) -> Result<()> {
        let most = self.region.geometry.in_flight;
        let (mut rest, mut is_first) = (due, true);
        while !rest.is_empty() {
            let mut resting = 0;
            let goes_along = |due: &&DueOf<Self>| {
                resting += u32::from(due.version.rests_on_home);
                resting <= most
            };
            let (batch, later) = rest.split_at(rest.iter().take_while(goes_along).count());
            self.land_batch(batch, is_first)?;
            (rest, is_first) = (later, false);
        }
        self.pair.note_in_memory(Cause::Checkpoint)
    }

    /// Writes one batch home, durably, and notes this in the blocks' tags. A cut at any moment
    /// leaves each block with a version from which a replay can start. Only the first batch of a
    /// checkpoint writes the checkpoint's number: a sector for each of many small batches would be
    /// most of their cost.
    fn land_batch(&self, due: &[DueOf<Self>], is_first: bool) -> Result<()> {
        let resting = due.iter().filter(|due| due.version.rests_on_home);
        let flights: Vec<Flight<'_>> = resting
            .map(|due| Flight {
                entry: InFlightEntry {
                    home: due.home,
                    sequence: due.version.sequence,
                    checksum: content_checksum(&due.version.content),
                },
                content: &due.version.content,
            })
            .collect();
        if !flights.is_empty() && !is_planted(Bug::UnkeptBase) {
            self.region.keep(&flights)?;
        }
        let writes = due.iter().map(|due| Write {
            home: due.home,
            class: due.version.class,
            content: &due.version.content,
        });
        let (dev, size) = (&*self.area.dev, self.area.block_size);
        write_home(dev, size, Cause::Checkpoint, writes.collect())?;
        if is_first {
            self.pair.note_in_volume(Cause::Checkpoint)?;
        }
        dev.flush(Cause::Checkpoint)?;
        if !is_planted(Bug::DeltaTwice) {
            self.region
                .note_home(due.iter().map(|due| due.version.tag))?;
        }
        // Before the index drops these versions: from then on, freeing one of the blocks leaves no
        // trace in the log.
        self.region.forget_kept()
    }
}
