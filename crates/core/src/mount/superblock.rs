//! The superblock read and written directly on the device: before the journal runs, after it has closed, and
//! when it has failed. In between it changes through handles (`Volume::update_super`).

use stetfs_format::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::{Block, BlockDev, Cause, Class, Tag};

use crate::error::Result;

/// Reads and decodes the superblock.
pub(crate) fn load(dev: &dyn BlockDev) -> Result<Superblock> {
    let mut raw = [0; SUPERBLOCK_SIZE];
    dev.read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, Tag::read(Class::Superblock))?;
    Ok(Superblock::decode(&raw)?)
}

/// Reads the superblock, changes it, writes it and flushes. Bytes that are no known field stay; the whole sectors
/// around it are rewritten as they are.
pub(crate) fn store(
    dev: &dyn BlockDev,
    change: impl FnOnce(&mut Superblock),
) -> Result<Superblock> {
    let sector = u64::from(dev.sector_size());
    let first = SUPERBLOCK_OFFSET - SUPERBLOCK_OFFSET % sector;
    let end = (SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64).next_multiple_of(sector);
    let mut sectors = Block::zeroed((end - first) as usize);
    dev.read_at(first, sectors.bytes_mut(), Tag::read(Class::Superblock))?;
    let skip = (SUPERBLOCK_OFFSET - first) as usize;
    let raw = &mut sectors.bytes_mut()[skip..skip + SUPERBLOCK_SIZE];
    let mut sb = Superblock::decode(raw)?;
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
