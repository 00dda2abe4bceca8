//! Recovery of Delta Journaling, from the region, the device's journal and home: the cases of
//! [`LEFT`], and of [`owner::LEFT`](crate::parts::owner::LEFT), whose the region is.
//!
//! An ordinary checkpoint brings the result home (`replay.rs`). A second cut before its end finds
//! the same, or less of it to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use stetfs_format::delta_log::{
    COMMIT_SIZE, DELTA_HEADER, DESCRIPTOR_SIZE, InFlightEntry, Record, TAG_SIZE, Tag as BlockTag,
    TagFlags, body_end, descriptor_tags, is_committed, is_content,
};
use stetfs_format::jbd2::unescape;
use stetfs_format::nvm_pair::{RegionHeader, RegionState};
use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, BlockSize, Tid};
use stetfs_media::pmem::LINE;
use stetfs_media::{Block, BlockRef, Cause, Class, Pmem, Tag};

use super::region::{DeltaRegion, TagWord};
use crate::delta::compressor;
use crate::parts::area::JournalArea;
use crate::parts::owner::Look;
use crate::parts::scan::{Ends, Seen, scan};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{Result, SchemeError, recovery_cases};

recovery_cases! {
    LEFT:
    WHOLE "a transaction with the expected number and a commit record with the right checksum"
        => "it counts",
        "its blocks on the device were durable before the commit record was stored";
    IN_FLIGHT "one that is not, and no intact one behind it"
        => "the log ends before it",
        "it was in flight: nobody was told that it is durable";
    CONFIRMED "one that is not, and a word that says that it was durable"
        => "error, nothing is written", "it was damaged later";
    DAMAGED "one that is not, and an intact one behind it"
        => "error, nothing is written",
        "one is begun when the one before is durable, so this one was damaged later";
    KEPT "a block in flight"
        => "it is written home, then its tag says so, and it is not in flight any more",
        "home may be torn; the deltas up to its version must not be applied again";
    KEPT_FREED "a block in flight that a later transaction freed"
        => "nothing", "its new owner's content may be home already";
    KEPT_DAMAGED "a block in flight that does not fit its checksum"
        => "error, nothing is written", "it was whole before home was written";
    NOT_HOME "a tag that says that home has its version, in a transaction of which no word says \
        that it was durable"
        => "it counts as any tag",
        "the flag is what an earlier record left in a word that was lost, since no checksum is \
            over it: nothing is brought home before that word is stored";
    IS_HOME "a tag that says that home has its version"
        => "it and earlier ones of the block are done with", "it was set when home was durable";
    FREED "a freed block"
        => "what was logged of it before is not replayed",
        "its new owner's content may be home already";
    WHOLE_BLOCK "a whole block in the device's journal"
        => "it is the base of the deltas behind it", "home may be torn";
    DELTAS "deltas without one"
        => "home is their base",
        "only a block in flight can be torn, and that has been written again";
    WRONG_BASE "a delta that leads to a block with another checksum"
        => "error, nothing of it is written", "the base is not what it was";
    BAD_HOME "a tag of a block outside the volume or inside the journal"
        => "error, nothing is written", "no file system wrote that";
}

const ENDS: Ends = Ends {
    whole: &WHOLE,
    nothing: &IN_FLIGHT,
    in_flight: &IN_FLIGHT,
    damaged: &DAMAGED,
};

/// A transaction in the region.
pub(super) struct DeltaTransaction {
    pub(super) sequence: Tid,
    /// The position where it begins.
    at: u64,
    pub(super) end: u64,
    tags: Vec<BlockTag>,
    /// Its bytes, the commit record included.
    record: Vec<u8>,
}

impl DeltaTransaction {
    fn tag(&self, n: usize) -> TagWord {
        TagWord {
            at: self.at + usize_as_u64(Record::tag_at(n)),
            word: self.tags[n].word(),
        }
    }
}

/// The steps to the content of a block that is to be brought home.
pub(super) struct Pending {
    /// The transactions whose tags count.
    pub(super) transactions: Vec<Tid>,
    /// The last of them that has all of the block.
    pub(super) whole: Option<Tid>,
    /// Its newest tag.
    pub(super) tag: TagWord,
    steps: Vec<(usize, usize)>,
}

/// The state that a recovery found.
pub(super) struct Left {
    pub(super) transactions: Vec<DeltaTransaction>,
    /// By home, because that is the order in which homes are read.
    pub(super) pending: BTreeMap<BlockNo, Pending>,
    /// Blocks in flight that no transaction freed, each with the tag of its version.
    pub(super) kept: Vec<(InFlightEntry, BlockRef, Option<TagWord>)>,
    pub(super) revoked: u64,
    /// Tags whose flag says that home has their version, although it does not count.
    pub(super) not_home: Vec<TagWord>,
}

/// Reads the region, from the position `at` and the number `sequence` on.
pub(super) fn read(
    region: &DeltaRegion,
    area: &JournalArea,
    blocks: u64,
    at: u64,
    sequence: Tid,
) -> Result<Left> {
    let transactions = transactions(region, at, sequence)?;
    let committed = region.committed()?;
    let mut left = Left {
        pending: BTreeMap::new(),
        kept: Vec::new(),
        revoked: 0,
        not_home: Vec::new(),
        transactions,
    };
    for (n, found) in left.transactions.iter().enumerate() {
        for (t, tag) in found.tags.iter().enumerate() {
            if tag.home.0 >= blocks || area.contains(tag.home) {
                BAD_HOME.reached();
                let why = format!("its region names block {} as a home", tag.home);
                return Err(SchemeError::Unusable(why));
            }
            let is_revoke = tag.flags.contains(TagFlags::REVOKE);
            // The checksum leaves out this flag, which is set later, when the transaction is known
            // to be durable. Of a transaction that is not, the word may be missing, and the flag is
            // that of an older record in its place.
            let says_home = tag.is_home()?;
            let is_durable = committed.is_at_or_after(found.sequence);
            let is_home = says_home && (is_durable || is_revoke);
            match (is_revoke, says_home, is_home) {
                (true, ..) => FREED.reached(),
                (_, true, true) => IS_HOME.reached(),
                (_, true, false) => {
                    NOT_HOME.reached();
                    left.not_home.push(found.tag(t));
                }
                _ => {}
            }
            if is_revoke || is_home {
                let had = left.pending.remove(&tag.home).is_some();
                left.revoked += u64::from(had && is_revoke);
                continue;
            }
            let word = found.tag(t);
            let is_whole = tag.flags.contains(TagFlags::NON_DELTA);
            if !is_whole {
                // An unknown compressor is an error before anything is written.
                compressor(tag.compressor())?;
            }
            let pending = left.pending.entry(tag.home).or_insert_with(|| Pending {
                transactions: Vec::new(),
                whole: None,
                tag: word,
                steps: Vec::new(),
            });
            if is_whole {
                pending.transactions.clear();
                pending.steps.clear();
                pending.whole = Some(found.sequence);
            }
            pending.transactions.push(found.sequence);
            pending.steps.push((n, t));
            pending.tag = word;
        }
    }
    keep_what_counts(region, &mut left)?;
    Ok(left)
}

/// A region of this scheme, as `owner` looks at it.
pub(super) struct Contents {
    pub(super) pmem: Arc<dyn Pmem>,
    pub(super) block_size: BlockSize,
}

impl Look for Contents {
    fn newest(&self, header: &RegionHeader, state: &RegionState) -> Result<Tid> {
        let region = DeltaRegion::new(self.pmem.clone(), self.block_size, header)?;
        let (at, first) = (region.checked_position(state.tail)?, state.tail.sequence);
        let found = transactions(&region, at, first)?;
        let before = Tid(first.0.wrapping_sub(1));
        Ok(found.last().map_or(before, |last| last.sequence))
    }

    fn holds_any(&self, header: &RegionHeader, state: &RegionState) -> Result<bool> {
        let newest = self.newest(header, state)?;
        Ok(newest.is_at_or_after(state.tail.sequence))
    }
}

/// Takes the blocks in flight, and removes from `pending` the steps that they include.
fn keep_what_counts(region: &DeltaRegion, left: &mut Left) -> Result<()> {
    for (entry, content) in region.kept()? {
        if !is_content(&content, entry.checksum) {
            KEPT_DAMAGED.reached();
            let why = format!("block {} in flight in its region is damaged", entry.home);
            return Err(SchemeError::Unusable(why));
        }
        let later = left
            .transactions
            .iter()
            .filter(|found| found.sequence.is_after(entry.sequence));
        let is_freed = |found: &DeltaTransaction| {
            let revokes =
                |tag: &BlockTag| tag.home == entry.home && tag.flags.contains(TagFlags::REVOKE);
            found.tags.iter().any(revokes)
        };
        if { later }.any(is_freed) {
            KEPT_FREED.reached();
            continue;
        }
        KEPT.reached();
        let mut tag = None;
        if let Some(found) = left
            .transactions
            .iter()
            .find(|found| found.sequence == entry.sequence)
            && let Some(t) = found.tags.iter().position(|tag| tag.home == entry.home)
        {
            tag = Some(found.tag(t));
        }
        if let Some(pending) = left.pending.get_mut(&entry.home) {
            let transactions = &left.transactions;
            pending
                .steps
                .retain(|(n, _)| transactions[*n].sequence.is_after(entry.sequence));
            pending
                .transactions
                .retain(|tid| tid.is_after(entry.sequence));
            pending.whole = pending.whole.filter(|tid| tid.is_after(entry.sequence));
            if pending.steps.is_empty() {
                left.pending.remove(&entry.home);
            }
        }
        left.kept
            .push((entry, Block::copy_of(&content).into(), tag));
    }
    Ok(())
}

impl Left {
    /// Returns the newest content of a pending block, made from the region, the device's journal
    /// and home.
    pub(super) fn content(
        &self,
        home: BlockNo,
        pending: &Pending,
        area: &JournalArea,
    ) -> Result<BlockRef> {
        let size = area.block_size;
        let mut content = Block::zeroed(size.bytes());
        let bytes = content.bytes_mut();
        let kept = self.kept.iter().find(|(entry, ..)| entry.home == home);
        if let Some((_, kept, _)) = kept {
            // This content goes home first.
            bytes.copy_from_slice(kept);
        } else if pending.whole.is_none() {
            DELTAS.reached();
            let tag = Tag::new(Class::Data, Cause::Recovery);
            area.dev.read_at(size.start_of(home), bytes, tag)?;
        }
        let (mut delta_bytes, wrong) = (Vec::new(), |what: &str| {
            WRONG_BASE.reached();
            SchemeError::Unusable(format!(
                "{what} of block {home} is not what it was: a part of the newest content is lost"
            ))
        });
        for (n, t) in &pending.steps {
            let found = &self.transactions[*n];
            let tag = &found.tags[*t];
            if tag.flags.contains(TagFlags::NON_DELTA) {
                WHOLE_BLOCK.reached();
                area.read(tag.place, bytes)?;
                if tag.flags.contains(TagFlags::ESCAPE) {
                    unescape(bytes);
                }
                if !is_content(bytes, tag.length) {
                    return Err(wrong("the copy in the journal"));
                }
                continue;
            }
            let (from, len) = (u32_as_usize(tag.place), u32_as_usize(tag.length));
            let (checksum, delta) = found.record[from..from + len].split_at(DELTA_HEADER);
            delta_bytes.clear();
            if !compressor(tag.compressor())?.decompress(delta, size.bytes(), &mut delta_bytes) {
                return Err(wrong("a delta"));
            }
            bytes
                .iter_mut()
                .zip(&delta_bytes)
                .for_each(|(byte, delta)| *byte ^= delta);
            if !checksum
                .as_array()
                .is_some_and(|sum| is_content(bytes, u32::from_le_bytes(*sum)))
            {
                return Err(wrong("the base of a delta"));
            }
        }
        Ok(content.into())
    }
}

/// Returns all transactions that count.
fn transactions(region: &DeltaRegion, at: u64, sequence: Tid) -> Result<Vec<DeltaTransaction>> {
    let end = at + region.ring.capacity;
    let look = |at, sequence| look(region, at, sequence, end);
    let (found, _) = scan(at, sequence, &ENDS, look, |_, next, sequence| match next {
        Some(next) => Ok(matches!(look(next, sequence.next())?, Seen::Intact(..))),
        None => Ok(false),
    })?;
    let next = found.last().map_or(sequence, |last| last.sequence.next());
    if region.committed()?.is_at_or_after(next) {
        CONFIRMED.reached();
        let why = format!("transaction {next} in its region was durable, and is damaged");
        return Err(SchemeError::Unusable(why));
    }
    Ok(found)
}

/// Reads the transaction with that number at position `at` of a ring that wraps at `end`.
fn look(
    region: &DeltaRegion,
    at: u64,
    sequence: Tid,
    end: u64,
) -> Result<Seen<u64, DeltaTransaction>> {
    let left = end.saturating_sub(at);
    let mut descriptor = [0; DESCRIPTOR_SIZE];
    if left < usize_as_u64(DESCRIPTOR_SIZE + COMMIT_SIZE) {
        return Ok(Seen::Nothing);
    }
    region.ring.read(at, &mut descriptor)?;
    let Some(count) = descriptor_tags(&descriptor, sequence, left) else {
        return Ok(Seen::Nothing);
    };
    let mut raw = vec![0; count * TAG_SIZE];
    region
        .ring
        .read(at + usize_as_u64(DESCRIPTOR_SIZE), &mut raw)?;
    let tags: Vec<BlockTag> = raw.chunks_exact(TAG_SIZE).map(BlockTag::decode).collect();
    let Some(body) = body_end(&tags, left) else {
        return Ok(Seen::Nothing);
    };
    let mut record = vec![0; body + COMMIT_SIZE];
    region.ring.read(at, &mut record)?;
    let next = at + usize_as_u64(record.len()).next_multiple_of(LINE);
    let seed = region.seed(at, sequence);
    let is_intact = is_committed(&record, body, tags.len(), sequence, seed);
    if !is_intact && !is_planted(Bug::UncheckedReplay) {
        let why =
            format!("transaction {sequence} in its region is damaged, and there are later ones");
        return Ok(Seen::Damaged(SchemeError::Unusable(why), Some(next)));
    }
    let found = DeltaTransaction {
        sequence,
        at,
        end: next,
        tags,
        record,
    };
    Ok(Seen::Intact(found, next))
}
