//! Blocks of the orphan file (`orphan_file`): inode numbers of orphans, 0 where a
//! place is free, and a tail of magic and checksum.
//!
//! Source: kernel `Documentation/filesystems/ext4/orphan.rst`.

use crate::bytes::{read_u32le, write_u32le};
use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::layout::{Le32, layout};
use crate::num::{BlockNo, InodeNo};

/// `ob_magic`.
pub const ORPHAN_BLOCK_MAGIC: u32 = 0x0b10_ca04;
const TAIL_SIZE: usize = 8;

layout! {
    /// The tail of a block of the orphan file.
    pub ORPHAN_TAIL_LAYOUT = "Orphan file block tail", TAIL_SIZE, {
        0x0 Le32, MAGIC = "ob_magic";
        0x4 Le32, CHECKSUM = "ob_checksum";
    }
}

/// A block of the orphan file.
#[derive(Clone, Copy, Debug)]
pub struct OrphanBlock<'a> {
    entries: &'a [u8],
    geometry: &'a Geometry,
}

impl<'a> OrphanBlock<'a> {
    /// Checks magic and checksum. `block` is where it lies on the volume, `seed` the
    /// orphan file's [`csum_seed`](crate::Inode::csum_seed).
    ///
    /// # Errors
    /// [`Corrupt::OrphanMagic`], [`Corrupt::OrphanChecksum`].
    pub fn decode(
        raw: &'a [u8],
        block: BlockNo,
        seed: u32,
        geometry: &'a Geometry,
    ) -> Result<Self, Corrupt> {
        let (needed, found) = (geometry.block_size(), raw.len());
        if needed != found {
            return Err(Corrupt::TooShort {
                record: "orphan file block",
                needed,
                found,
            });
        }
        let (entries, tail) = raw.split_at(raw.len() - TAIL_SIZE);
        if MAGIC.get(tail) != ORPHAN_BLOCK_MAGIC {
            return Err(Corrupt::OrphanMagic(MAGIC.get(tail)));
        }
        if geometry.metadata_csum {
            let (stored, computed) = (CHECKSUM.get(tail), checksum_of(entries, block, seed));
            if stored != computed {
                return Err(Corrupt::OrphanChecksum { stored, computed });
            }
        }
        Ok(Self { entries, geometry })
    }

    /// The orphans and the index of each in the block.
    /// Iterates over the orphans, with the index of each in the block.
    /// An item is [`Corrupt::InodeNumber`] when the inode does not exist.
    pub fn orphans(&self) -> impl Iterator<Item = Result<(usize, InodeNo), Corrupt>> + use<'a> {
        let geometry = self.geometry;
        self.entries
            .chunks_exact(4)
            .map(|raw| InodeNo(read_u32le(raw, 0)))
            .enumerate()
            .filter(|(_, ino)| ino.0 != 0)
            .map(|(index, ino)| {
                if geometry.is_valid_inode(ino) {
                    Ok((index, ino))
                } else {
                    Err(Corrupt::InodeNumber(ino))
                }
            })
    }
}

/// How many inode numbers a block holds.
pub const fn entries_per_block(geometry: &Geometry) -> usize {
    (geometry.block_size() - TAIL_SIZE) / 4
}

/// Stores an orphan (or 0) at `index` of a scratch copy and makes the checksum anew.
///
/// # Panics
/// When there is no such place.
pub fn set_orphan(
    raw: &mut [u8],
    index: usize,
    ino: InodeNo,
    block: BlockNo,
    seed: u32,
    geometry: &Geometry,
) {
    let (entries, tail) = raw.split_at_mut(geometry.block_size() - TAIL_SIZE);
    write_u32le(entries, index * 4, ino.0);
    write_tail(entries, tail, block, seed, geometry);
}

/// Makes an empty block.
///
/// # Panics
/// When `raw` is not of the block size.
pub fn init_block(raw: &mut [u8], block: BlockNo, seed: u32, geometry: &Geometry) {
    raw.fill(0);
    let (entries, tail) = raw.split_at_mut(geometry.block_size() - TAIL_SIZE);
    write_tail(entries, tail, block, seed, geometry);
}

fn write_tail(entries: &[u8], tail: &mut [u8], block: BlockNo, seed: u32, geometry: &Geometry) {
    MAGIC.put(tail, ORPHAN_BLOCK_MAGIC);
    if geometry.metadata_csum {
        CHECKSUM.put(tail, checksum_of(entries, block, seed));
    }
}

fn checksum_of(entries: &[u8], block: BlockNo, seed: u32) -> u32 {
    crc32c(crc32c(seed, &block.0.to_le_bytes()), entries)
}
