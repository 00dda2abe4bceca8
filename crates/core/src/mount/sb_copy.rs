//! `sb=`: mounts a volume by a copy of its superblock, because the first one is damaged.
//!
//! The copies are never written in operation. The journal says what they do not know: whether the
//! volume needs recovery, and whose log it has. Readers of the first superblock see the copy
//! instead. The first write to the superblock writes the real one anew: at a mount that writes,
//! when the volume is marked in use. An undamaged first superblock of the same volume is newer than
//! the copy and is used.
//!
//! The group descriptors are the first ones all the same, since their copies are not kept up to
//! date either. If they are damaged, e2fsck has to make new ones (`e2fsck -b`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stetfs_format::features::{FeatureCompat, FeatureIncompat};
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::{BlockDev, Class, Layer, MediaError, Tag};

use super::error::MountError;
use super::{journal_area, superblock};
use crate::error::Result;

/// The unit of `sb=`, in bytes (ext4(5)).
const UNIT: u64 = 1024;

const END: u64 = SUPERBLOCK_OFFSET + usize_as_u64(SUPERBLOCK_SIZE);

/// Returns the device as a mount with `sb=at` sees it, with a warning if the first superblock is
/// not used.
///
/// # Errors
/// There is no superblock at block `at`; an error of reading.
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

/// Shows `raw` in place of the first superblock, until that is written.
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
