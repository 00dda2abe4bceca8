//! The superblock read and written directly on the device: before the journal runs, after it has
//! closed, and when it has failed. In between it changes through handles (`Volume::update_super`).
//!
//! The superblock has 1,024 bytes, so a power cut can tear it on a device with sectors of 512
//! bytes. The fields that change while a volume is used lie in the first 512 bytes, which become
//! new all at once; in the other half only the checksum changes. So a torn superblock is a good one
//! with a wrong checksum. [`decode`] accepts it as such when the parts that never change agree with
//! a backup. Recovery and the mount write it anew. The same holds in memory, which tears at words
//! of 8 bytes: the mark of a mounted volume is one word, and recovery counts anew everything else
//! that changes.

use stetfs_format::features::{FeatureIncompat, FeatureRoCompat};
use stetfs_format::superblock::reseal;
use stetfs_format::width::{u64_as_usize, usize_as_u64};
use stetfs_format::{Corrupt, Geometry, GroupNo, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::{Block, BlockDev, Cause, Class, Tag};

use crate::error::Result;

/// Reads and decodes the superblock.
pub(crate) fn load(dev: &dyn BlockDev) -> Result<Superblock> {
    let mut raw = [0; SUPERBLOCK_SIZE];
    dev.read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, Tag::read(Class::Superblock))?;
    decode(dev, &raw)
}

/// Decodes the superblock of the volume on `dev`, even if a power cut tore it.
///
/// # Errors
/// Damage in the superblock.
pub(crate) fn decode(dev: &dyn BlockDev, raw: &[u8]) -> Result<Superblock> {
    match Superblock::decode(raw) {
        Err(e @ Corrupt::SuperChecksum { .. }) => mend(dev, raw).ok_or_else(|| e.into()),
        result => Ok(result?),
    }
}

/// Decodes a torn superblock, if it can be believed: all checks pass but that of the checksum, and
/// one of the first backups agrees in what never changes. A volume of one group has no backup.
fn mend(dev: &dyn BlockDev, raw: &[u8]) -> Option<Superblock> {
    const BACKUPS: usize = 3;
    let mut copy: [u8; SUPERBLOCK_SIZE] = raw.get(..SUPERBLOCK_SIZE)?.try_into().ok()?;
    reseal(&mut copy);
    let sb = Superblock::decode(&copy).ok()?;
    if sb.groups_count == 1 {
        return Some(sb);
    }
    let groups = (1..sb.groups_count).map(GroupNo);
    let mut backups = groups.filter(|g| sb.has_super(*g)).take(BACKUPS);
    let agrees = |g| {
        let at = sb.block.start_of(sb.group_first_block(g));
        let mut backup = [0; SUPERBLOCK_SIZE];
        dev.read_bytes_at(at, &mut backup, Tag::read(Class::Superblock))
            .is_ok()
            && Superblock::decode(&backup).is_ok_and(|backup| is_same_volume(&sb, &backup))
    };
    backups.any(agrees).then_some(sb)
}

/// Whether two superblocks agree in what does not change while a volume is used.
pub(super) fn is_same_volume(a: &Superblock, b: &Superblock) -> bool {
    let changing = FeatureRoCompat::LARGE_FILE | FeatureRoCompat::ORPHAN_PRESENT;
    let marks = FeatureIncompat::RECOVER | FeatureIncompat::PRIVATE_LOG;
    let (a_geo, b_geo): (&Geometry, &Geometry) = (a, b);
    a_geo == b_geo
        && a.journal_inum == b.journal_inum
        && a.feature_compat == b.feature_compat
        && a.feature_incompat - marks == b.feature_incompat - marks
        && a.feature_ro_compat - changing == b.feature_ro_compat - changing
}

/// Reads the superblock, changes it, writes it and flushes. Bytes outside of known fields are kept,
/// and so are the rest of the sectors around it.
pub(crate) fn store(
    dev: &dyn BlockDev,
    change: impl FnOnce(&mut Superblock),
) -> Result<Superblock> {
    let sector = u64::from(dev.sector_size());
    let first = SUPERBLOCK_OFFSET - SUPERBLOCK_OFFSET % sector;
    let end = (SUPERBLOCK_OFFSET + usize_as_u64(SUPERBLOCK_SIZE)).next_multiple_of(sector);
    let mut sectors = Block::zeroed(u64_as_usize(end - first));
    dev.read_at(first, sectors.bytes_mut(), Tag::read(Class::Superblock))?;
    let skip = u64_as_usize(SUPERBLOCK_OFFSET - first);
    let raw = &mut sectors.bytes_mut()[skip..skip + SUPERBLOCK_SIZE];
    let mut sb = decode(dev, raw)?;
    change(&mut sb);
    sb.encode_into(raw);
    dev.write_at(
        first,
        sectors.bytes(),
        Tag::new(Class::Superblock, Cause::Control),
    )?;
    dev.flush(Cause::Control)?;
    Ok(sb)
}
