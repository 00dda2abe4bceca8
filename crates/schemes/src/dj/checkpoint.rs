//! Checkpoints: versions go home in batches none of which a cut can tear; see `dj.rs`.

use stetfs_format::delta_log::{InFlightEntry, content_checksum};
use stetfs_media::Cause;

use super::Dj;
use super::region::Flight;
use crate::engine::log::DueOf;
use crate::parts::home::{Write, write_home};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::Result;

impl Dj {
    /// Writes blocks home, as many at once as can be in flight; durable when it returns. Those that
    /// do not rest on home do not count: nothing of them is kept.
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

    /// Writes blocks home, durably, and says so in their tags. A cut at any moment leaves each with
    /// a version that a replay can start from. The first batch of a checkpoint has its number with
    /// it: a sector for each of many small batches would be most of what they cost.
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
        // Before the index forgets them: whoever frees one of them from then on leaves no trace in
        // the log.
        self.region.forget_kept()
    }
}
