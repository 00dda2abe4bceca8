//! `sb=`: a volume whose first superblock is damaged, mounted by one of its copies.
//!
//! The copies are never written in operation. What they do not know of the volume's state is taken
//! from the journal: whether there is something to recover, and whose log it is. The volume's
//! users find the copy in the place of the first superblock, which is written anew by the first
//! write to it: at a mount that writes, when the volume is marked in use. A first superblock that
//! is whole, and of the same volume, is newer than the copy, and taken.
//!
//! Group descriptors are the first ones all the same, since their copies are not kept up to date
//! either; where those are damaged, e2fsck has to make new ones (`e2fsck -b`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stetfs_format::features::{FeatureCompat, FeatureIncompat};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::{BlockDev, Class, Layer, MediaError, Tag};

use super::error::MountError;
use super::{journal_area, superblock};
use crate::error::Result;

/// Bytes of the units of `sb=` (ext4(5)).
const UNIT: u64 = 1024;

const END: u64 = SUPERBLOCK_OFFSET + usize_as_u64(SUPERBLOCK_SIZE);

/// The device as a mount with `sb=at` is to see it; a warning if the first superblock is not used.
///
/// # Errors
/// There is no superblock at that place, with the number of the block; reading.
pub(super) fn behind(
    dev: Arc<dyn BlockDev>,
    at: u32,
) -> Result<(Arc<dyn BlockDev>, Option<String>)> {
    let offset = u64::from(at) * UNIT;
    let missing = || MountError::NoCopy { at };
    if offset + usize_as_u64(SUPERBLOCK_SIZE) > dev.size() {
        return Err(missing().into());
    }
    let mut raw = [0; SUPERBLOCK_SIZE];
    dev.read_bytes_at(offset, &mut raw, Tag::read(Class::Superblock))?;
    let mut sb = Superblock::decode(&raw).map_err(|_| missing())?;
    if superblock::load(&*dev).is_ok_and(|first| superblock::is_same_volume(&first, &sb)) {
        return Ok((dev, None));
    }
    sb.block_group_nr = 0;
    if sb.feature_compat.contains(FeatureCompat::HAS_JOURNAL) {
        let log = journal_area::journal_extents(&*dev, &sb)?;
        if journal_area::private_log_owner(&*dev, &sb, &log)?.is_some() {
            sb.feature_incompat |= FeatureIncompat::PRIVATE_LOG;
        } else if journal_area::holds_leftovers(&*dev, &sb, &log)? {
            sb.feature_incompat |= FeatureIncompat::RECOVER;
        }
    }
    sb.encode_into(&mut raw);
    let warning = format!("the first superblock is not used, but its copy at block {at} of 1 KiB");
    let restored = Restored {
        below: dev,
        raw,
        is_written: AtomicBool::new(false),
    };
    Ok((Arc::new(restored), Some(warning)))
}

/// Has other bytes where the first superblock is, until that is written.
struct Restored {
    below: Arc<dyn BlockDev>,
    raw: [u8; SUPERBLOCK_SIZE],
    is_written: AtomicBool,
}

impl Layer for Restored {
    fn below(&self) -> &dyn BlockDev {
        &*self.below
    }

    fn read_at(&self, offset: u64, out: &mut [u8], tag: Tag) -> Result<(), MediaError> {
        self.below.read_at(offset, out, tag)?;
        let end = offset + usize_as_u64(out.len());
        let (from, to) = (offset.max(SUPERBLOCK_OFFSET), end.min(END));
        if from < to && !self.is_written.load(Ordering::Acquire) {
            let source = &self.raw[in_superblock(from)..in_superblock(to)];
            out[u64_as_usize(from - offset)..u64_as_usize(to - offset)].copy_from_slice(source);
        }
        Ok(())
    }

    /// Every writer writes all of the superblock: its block, or the sectors that it lies in.
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        self.below.write_vectored_at(offset, parts, tag)?;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if offset <= SUPERBLOCK_OFFSET && offset + usize_as_u64(len) >= END {
            self.is_written.store(true, Ordering::Release);
        }
        Ok(())
    }
}

fn in_superblock(offset: u64) -> usize {
    u64_as_usize(offset - SUPERBLOCK_OFFSET)
}
