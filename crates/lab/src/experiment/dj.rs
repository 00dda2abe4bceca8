//! What the figures of the Delta Journaling paper have in common: the device that it was measured
//! on, and what is counted.

use stetfs_media::sim::PmemTiming;
use stetfs_media::{Cause, MeterSnapshot};

use super::ground::Machine;
use crate::system::{Measured, Medium};

/// A telephone with a volume of so many bytes.
pub(super) const fn telephone(volume: u64) -> Machine {
    Machine {
        device: Medium::card,
        volume,
        // The paper names none. This is mke2fs's for a card of 16 GB at that time, and it fits
        // Table I: with a threshold of 100 % about three times a quarter of it was written to it
        // more than with less.
        journal: 128 << 20,
        // Half of it is for contents: the 2 GB that the paper's device had.
        memory: 4 << 30,
        least_memory: 64 << 20,
        nvm: 16 << 20,
        least_nvm: 256 << 10,
        timing: PmemTiming::Dram,
        note: "the paper names no size of the journal; commit every 5 s or when a transaction \
            takes a quarter of it",
    }
}

/// The same with as much memory as stet needs for transactions, at least.
pub(super) const fn telephone_for_stet(volume: u64) -> Machine {
    Machine {
        least_nvm: 2 << 20,
        ..telephone(volume)
    }
}

/// Blocks written to the journal on the device, records included.
pub(super) fn journal_blocks(run: &Measured) -> u64 {
    let bytes = |cause| run.device.by_cause(cause).write_bytes;
    (bytes(Cause::Log) + bytes(Cause::CommitRecord)) / 4096
}

/// Bytes that commits stored in the NVRAM.
pub(super) fn nvram_log_bytes(run: &Measured) -> u64 {
    let of = |nvm: &MeterSnapshot| nvm.by_cause(Cause::Log).write_bytes;
    run.nvm.as_ref().map_or(0, of)
}
