//! Recovery of UBJ: the cases of [`LEFT`].

use hashbrown::{HashMap, HashSet};
use stetfs_format::nvm_cache::{Change, ChangeLog, Entry, HEAD_OFFSET};
use stetfs_format::width::{u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt, Tid};
use stetfs_media::pmem::WORD;
use stetfs_media::{Cause, Class, Tag};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{Result, recovery_cases};

use crate::engine::cache::{CacheRegion, NvmCache};

const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

recovery_cases! {
    LEFT:
    COMMITTED "a frozen block of a transaction that the commit's word includes"
        => "it counts; of several of one block the newest",
        "its lines were durable before the word";
    UNCOMMITTED "a frozen block of a later one"
        => "it is dropped",
        "nobody was told that it is durable; what it was is at home, or in a frozen block of its \
            own";
    CLEAN "a clean block"
        => "it is dropped",
        "it may have been about to change; home has what it was";
    CLEAN_KEPT "a clean block, in a cache that an unmount kept"
        => "it counts", "nobody changed it since";
    CHANGES "a log of the transaction that the commit's word names"
        => "its bytes go into those of its blocks that are frozen",
        "they may not have been durable there; a block that is not frozen any more has them at \
            home";
    NO_CHANGES "a log of any other one"
        => "nothing",
        "it was durable in the blocks before the next transaction was, or is no transaction";
    BAD_CHANGES "a log of the transaction that the word names, damaged, or longer than its room"
        => "error", "it was durable before the word";
}

/// Returns the newest transaction in a region.
pub(super) fn newest(region: &CacheRegion) -> Result<Tid> {
    Ok(region.end(HEAD_OFFSET)?.sequence)
}

/// Drops blocks that are not committed, and replays the log of changed bytes. Returns the newest
/// transaction.
pub(super) fn recover(cache: &NvmCache, is_kept: bool) -> Result<Tid> {
    let region = &cache.region;
    let committed = region.end(HEAD_OFFSET)?.sequence;
    let mut newest: HashMap<BlockNo, (u32, Entry)> = HashMap::new();
    let mut dropped = Vec::new();
    cache.entries(|n, entry| {
        let tid = Tid(entry.state.high);
        let counts = if entry.state.is_dirty {
            !tid.is_after(committed) || is_planted(Bug::UncheckedReplay)
        } else {
            is_kept
        };
        match (entry.state.is_dirty, counts) {
            (true, true) => COMMITTED.reached(),
            (true, false) => UNCOMMITTED.reached(),
            (false, true) => CLEAN_KEPT.reached(),
            (false, false) => CLEAN.reached(),
        }
        if !counts {
            dropped.push(n);
            return Ok(());
        }
        let known = newest.entry(entry.home).or_insert((n, entry));
        if known.0 != n {
            let is_newer = !known.1.state.is_dirty
                || entry.state.is_dirty && tid.is_after(Tid(known.1.state.high));
            dropped.push(if is_newer { known.0 } else { n });
            if is_newer {
                *known = (n, entry);
            }
        }
        Ok(())
    })?;
    for n in dropped {
        region.store_state(n, None, RECOVERY)?;
    }
    let frozen = newest.values().map(|(_, entry)| entry.state);
    let frozen = frozen.filter(|state| state.is_dirty);
    let frozen: HashSet<u32> = frozen.map(|state| state.slot).collect();
    replay(cache, committed, &frozen)?;
    region.fence(Cause::Recovery)?;
    // A commit that was cut short may have left a log with the number that the next one will have.
    for tid in [committed, committed.next()] {
        // Number and length are in one word, so that a cut leaves no half header.
        region.store_word(region.geometry.changes_at(tid), 0, RECOVERY)?;
    }
    for (n, entry) in newest.into_values() {
        cache.adopt(n, entry)?;
    }
    Ok(committed)
}

/// Stores the logged bytes of a transaction in those of its blocks that are still frozen.
fn replay(cache: &NvmCache, tid: Tid, frozen: &HashSet<u32>) -> Result<()> {
    let region = &cache.region;
    let (pmem, geometry) = (&region.pmem, region.geometry);
    let at = geometry.changes_at(tid);
    let mut header = [0; ChangeLog::HEADER_SIZE];
    pmem.load(at, &mut header, RECOVERY)?;
    let size = match ChangeLog::length(&header, tid) {
        0 => {
            NO_CHANGES.reached();
            return Ok(());
        }
        bytes => header.len() + u32_as_usize(bytes),
    };
    if size > u32_as_usize(geometry.changes) {
        BAD_CHANGES.reached();
        return Err(Corrupt::NvmCache("the log of changed bytes is longer than its room").into());
    }
    let mut raw = vec![0; size];
    pmem.load(at, &mut raw, RECOVERY)?;
    let log = ChangeLog::decode(raw, region.seed).inspect_err(|_| BAD_CHANGES.reached())?;
    CHANGES.reached();
    for change in log.changes() {
        let Change {
            slot,
            offset,
            bytes,
        } = change.inspect_err(|_| BAD_CHANGES.reached())?;
        if offset + bytes.len() > cache.block_size.bytes()
            || !(offset | bytes.len()).is_multiple_of(u64_as_usize(WORD))
        {
            BAD_CHANGES.reached();
            return Err(Corrupt::NvmCache("a logged change is of no part of a block").into());
        }
        if frozen.contains(&slot) {
            let at = geometry.slot_at(slot) + usize_as_u64(offset);
            pmem.store_nt(at, bytes, RECOVERY)?;
        }
    }
    Ok(())
}
