//! What the figures of the papers on caches in NVM have in common: a hard disk and a cache before
//! it, and what is counted.

use stetfs_media::sim::PmemTiming;
use stetfs_media::{Cause, MeterSnapshot};

use super::ground::Machine;

use crate::system::{Measured, Medium};

/// A server with a volume, NVM and memory of so many bytes. UBJ has its data in NVM alone.
pub(super) const fn server(volume: u64, nvm: u64, memory: u64, timing: PmemTiming) -> Machine {
    Machine {
        device: Medium::hard_disk,
        volume,
        // mke2fs's for the disks of the papers.
        journal: 1 << 30,
        memory,
        least_memory: 16 << 20,
        nvm,
        least_nvm: 8 << 20,
        timing,
        note: "UBJ does not use that for data; commit every 5 s unless said otherwise",
    }
}

/// A second, until everything was durable: a cache in NVM is there so that what is durable need not
/// go home.
pub(super) fn a_second(count: u64, run: &Measured) -> f64 {
    count as f64 * 1e9 / run.durable_ns() as f64
}

/// Cache lines that commits write back or store past the cache, for each of `count`.
pub(super) fn lines_each(count: u64, run: &Measured) -> f64 {
    let nvm = run.durable_nvm.as_ref();
    let lines = |nvm: &MeterSnapshot| {
        nvm.by_cause(Cause::Log).lines + nvm.by_cause(Cause::CommitRecord).lines
    };
    nvm.map_or(0.0, |nvm| lines(nvm) as f64 / count as f64)
}

/// Microseconds of the NVM's time until everything was durable, for each of `count`.
pub(super) fn nvm_us_each(count: u64, run: &Measured) -> f64 {
    let nvm = run.durable_nvm.as_ref();
    nvm.map_or(0.0, |nvm| nvm.total_busy_ns() as f64 / 1e3 / count as f64)
}

/// Blocks that the cache has written home.
pub(super) fn written_home(run: &Measured) -> String {
    let home = run.cache.map(|cache| cache.written_home.to_string());
    home.unwrap_or("-".to_owned())
}

/// Why gains over Tinca are not the paper's.
pub(super) const DISK: &str = "virtual time is that of disk and NVM alone, and the disk takes \
    nearly all of it: who has more blocks for data goes home less often, \
                               and Spindle, of whose cache metadata has an eighth whether it needs \
                               that or not, has fewer than Tinca. What the schemes differ \
                               in is the NVM's time. In the paper the processor's time counts too";

/// Fences of commits, for each of `count`.
pub(super) fn fences_each(count: u64, run: &Measured) -> f64 {
    let nvm = run.durable_nvm.as_ref();
    let fences = |nvm: &MeterSnapshot| nvm.fences(Cause::Log) + nvm.fences(Cause::CommitRecord);
    nvm.map_or(0.0, |nvm| fences(nvm) as f64 / count as f64)
}
