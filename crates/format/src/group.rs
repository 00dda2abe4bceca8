//! Group descriptors, and the two bitmaps that each describes.
//!
//! Source: kernel `Documentation/filesystems/ext4/{group_descr,bitmaps,checksums}.rst`.

use bitflags::bitflags;

use crate::checksum::{crc16, crc32c};
use crate::error::Corrupt;
use crate::geometry::{Geometry, SUPERBLOCK_OFFSET};
use crate::layout::{Le16, Le32, flag_words, record};
use crate::num::{BlockNo, GroupNo};
use crate::width::{low16, must_fit, u32_as_usize};

bitflags! {
    /// `bg_flags`. They mean something only with descriptor checksums (`gdt_csum` or
    /// `metadata_csum`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap is not initialised: no inode of the group is in use.
        const INODE_UNINIT = 0x1;
        /// The block bitmap is not initialised: see [`init_block_bitmap`].
        const BLOCK_UNINIT = 0x2;
        /// The whole inode table has been zeroed.
        const INODE_ZEROED = 0x4;
    }
}

flag_words!(GroupFlags: u16);

record! {
    /// A group descriptor: 32 bytes, or 64 (and unused bytes behind) with `64bit`.
    pub GROUP_DESC_LAYOUT = "Group descriptor", 64, {
        0x14 Le32, EXCLUDE_BITMAP_LO = "bg_exclude_bitmap_lo";
        0x1e Le16, CHECKSUM = "bg_checksum";
        0x34 Le32, EXCLUDE_BITMAP_HI = "bg_exclude_bitmap_hi";
    }

    /// A group descriptor.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GroupDesc from (raw, wide: bool) {
        /// The block of the block bitmap.
        0x00 Le32, 0x20 Le32 where wide,
        block_bitmap: BlockNo = "bg_block_bitmap_lo", "bg_block_bitmap_hi";
        /// The block of the inode bitmap.
        0x04 Le32, 0x24 Le32 where wide,
        inode_bitmap: BlockNo = "bg_inode_bitmap_lo", "bg_inode_bitmap_hi";
        /// The first block of the inode table.
        0x08 Le32, 0x28 Le32 where wide,
        inode_table: BlockNo = "bg_inode_table_lo", "bg_inode_table_hi";
        /// Free blocks (clusters with `bigalloc`) of the group.
        0x0c Le16, 0x2c Le16 where wide,
        free_blocks_count: u32 = "bg_free_blocks_count_lo", "bg_free_blocks_count_hi";
        /// Free inodes of the group.
        0x0e Le16, 0x2e Le16 where wide,
        free_inodes_count: u32 = "bg_free_inodes_count_lo", "bg_free_inodes_count_hi";
        /// Directories among the group's inodes.
        0x10 Le16, 0x30 Le16 where wide,
        used_dirs_count: u32 = "bg_used_dirs_count_lo", "bg_used_dirs_count_hi";
        /// What is not initialised.
        0x12 Le16, flags: GroupFlags = "bg_flags";
        /// CRC-32C of the block bitmap; 16 bits of it in descriptors of 32 bytes.
        0x18 Le16, 0x38 Le16 where wide,
        block_bitmap_csum: u32 = "bg_block_bitmap_csum_lo", "bg_block_bitmap_csum_hi";
        /// CRC-32C of the inode bitmap; 16 bits of it in descriptors of 32 bytes.
        0x1a Le16, 0x3a Le16 where wide,
        inode_bitmap_csum: u32 = "bg_inode_bitmap_csum_lo", "bg_inode_bitmap_csum_hi";
        /// Inodes at the end of the table that were never used.
        0x1c Le16, 0x32 Le16 where wide,
        itable_unused: u32 = "bg_itable_unused_lo", "bg_itable_unused_hi";
    }
}

impl GroupDesc {
    /// Decodes the descriptor of group `g`.
    ///
    /// A descriptor is valid if and only if: 1. its checksum fits, where descriptors
    /// have one; 2. bitmaps and table lie inside the volume (inside the group
    /// without `flex_bg`); 3. no count is larger than the group.
    ///
    /// # Errors
    /// [`Corrupt::GroupChecksum`], [`Corrupt::GroupBlock`], [`Corrupt::GroupCount`].
    pub fn decode(raw: &[u8], g: GroupNo, geometry: &Geometry) -> Result<Self, Corrupt> {
        let raw = raw.get(..geometry.desc_size()).ok_or(Corrupt::TooShort {
            record: "group descriptor",
            needed: geometry.desc_size(),
            found: raw.len(),
        })?;
        if let Some(computed) = checksum_of(raw, g, geometry) {
            let stored = CHECKSUM.get(raw);
            if stored != computed {
                return Err(Corrupt::GroupChecksum {
                    group: g,
                    stored,
                    computed,
                });
            }
        }
        let desc = Self::read_fields(raw, geometry.is_64bit);
        desc.check_blocks(g, geometry)?;
        desc.check_counts(g, geometry)?;
        Ok(desc)
    }

    /// Reads a descriptor of which a power cut may have left some words older than others, as in
    /// memory before a log is replayed. Bitmaps and inode table never move, so their places are
    /// checked and right. All other fields may be wrong.
    ///
    /// # Errors
    /// [`Corrupt::TooShort`], and what [`decode`](Self::decode) says of these blocks.
    pub fn decode_torn(raw: &[u8], g: GroupNo, geometry: &Geometry) -> Result<Self, Corrupt> {
        let raw = raw.get(..geometry.desc_size()).ok_or(Corrupt::TooShort {
            record: "group descriptor",
            needed: geometry.desc_size(),
            found: raw.len(),
        })?;
        let desc = Self::read_fields(raw, geometry.is_64bit);
        desc.check_blocks(g, geometry)?;
        Ok(desc)
    }

    fn check_blocks(&self, g: GroupNo, geometry: &Geometry) -> Result<(), Corrupt> {
        let (first, last) = if geometry.flex_bg {
            (geometry.first_data_block().0, geometry.blocks_count - 1)
        } else {
            let first = geometry.group_first_block(g).0;
            (first, first + u64::from(geometry.group_blocks(g)) - 1)
        };
        let superblock = geometry.block.block_of(SUPERBLOCK_OFFSET);
        let fits = |start: BlockNo, count: u32| {
            start.0 >= first
                && start.0 > superblock
                && start
                    .0
                    .checked_add(u64::from(count) - 1)
                    .is_some_and(|end| end <= last)
        };
        for (what, block, count) in [
            ("block bitmap", self.block_bitmap, 1),
            ("inode bitmap", self.inode_bitmap, 1),
            (
                "inode table",
                self.inode_table,
                geometry.inode_table_blocks(),
            ),
        ] {
            if !fits(block, count) {
                return Err(Corrupt::GroupBlock {
                    group: g,
                    what,
                    block,
                });
            }
        }
        Ok(())
    }

    fn check_counts(&self, g: GroupNo, geometry: &Geometry) -> Result<(), Corrupt> {
        let clusters = geometry
            .group_blocks(g)
            .div_ceil(1 << geometry.cluster_bits);
        let inodes = geometry.inodes_per_group;
        for (what, value, limit) in [
            ("free blocks", self.free_blocks_count, clusters),
            ("free inodes", self.free_inodes_count, inodes),
            ("directories", self.used_dirs_count, inodes),
            ("unused inodes", self.itable_unused, inodes),
        ] {
            if value > limit {
                return Err(Corrupt::GroupCount {
                    group: g,
                    what,
                    value,
                    limit,
                });
            }
        }
        Ok(())
    }

    /// Writes every field into `raw`, an older version of this descriptor (or
    /// zeros), and makes its checksum anew.
    ///
    /// # Panics
    /// When `raw` is shorter than a descriptor.
    pub fn encode_into(&self, raw: &mut [u8], g: GroupNo, geometry: &Geometry) {
        let raw = &mut raw[..geometry.desc_size()];
        self.write_fields(raw, geometry.is_64bit);
        if let Some(checksum) = checksum_of(raw, g, geometry) {
            CHECKSUM.put(raw, checksum);
        }
    }

    /// Flags that have a meaning on this volume.
    #[inline]
    pub fn flags(&self, geometry: &Geometry) -> GroupFlags {
        if geometry.metadata_csum || geometry.gdt_csum {
            self.flags
        } else {
            GroupFlags::empty()
        }
    }

    /// Checks the bitmap's checksum, where bitmaps have one. `bitmap` is the whole block.
    /// The group must not be `BLOCK_UNINIT`.
    ///
    /// # Errors
    /// [`Corrupt::BlockBitmapChecksum`].
    pub fn check_block_bitmap(
        &self,
        bitmap: &[u8],
        g: GroupNo,
        geometry: &Geometry,
    ) -> Result<(), Corrupt> {
        if !geometry.metadata_csum {
            return Ok(());
        }
        let (stored, computed) = (self.block_bitmap_csum, block_bitmap_csum(bitmap, geometry));
        if stored == computed {
            return Ok(());
        }
        Err(Corrupt::BlockBitmapChecksum {
            group: g,
            stored,
            computed,
        })
    }

    /// Checks the bitmap's checksum, where bitmaps have one. `bitmap` is the whole block.
    /// The group must not be `INODE_UNINIT`.
    ///
    /// # Errors
    /// [`Corrupt::InodeBitmapChecksum`].
    pub fn check_inode_bitmap(
        &self,
        bitmap: &[u8],
        g: GroupNo,
        geometry: &Geometry,
    ) -> Result<(), Corrupt> {
        if !geometry.metadata_csum {
            return Ok(());
        }
        let (stored, computed) = (self.inode_bitmap_csum, inode_bitmap_csum(bitmap, geometry));
        if stored == computed {
            return Ok(());
        }
        Err(Corrupt::InodeBitmapChecksum {
            group: g,
            stored,
            computed,
        })
    }

    /// Stores the checksum of a changed block bitmap.
    pub fn set_block_bitmap_csum(&mut self, bitmap: &[u8], geometry: &Geometry) {
        if geometry.metadata_csum {
            self.block_bitmap_csum = block_bitmap_csum(bitmap, geometry);
        }
    }

    /// Stores the checksum of a changed inode bitmap.
    pub fn set_inode_bitmap_csum(&mut self, bitmap: &[u8], geometry: &Geometry) {
        if geometry.metadata_csum {
            self.inode_bitmap_csum = inode_bitmap_csum(bitmap, geometry);
        }
    }
}

/// The descriptor's checksum; `None` where descriptors have none.
fn checksum_of(raw: &[u8], g: GroupNo, geometry: &Geometry) -> Option<u16> {
    let (before, behind) = (&raw[..CHECKSUM.0], &raw[CHECKSUM.end()..]);
    let group = g.0.to_le_bytes();
    if geometry.metadata_csum {
        let mut crc = crc32c(crc32c(geometry.csum_seed, &group), before);
        crc = crc32c(crc, &[0, 0]);
        return Some(low16(crc32c(crc, behind)));
    }
    if geometry.gdt_csum {
        let crc = crc16(crc16(!0, &geometry.uuid), &group);
        return Some(crc16(crc16(crc, before), behind));
    }
    None
}

/// The checksum that the descriptor holds of a block bitmap: over the bits of a
/// full group, also in the last one.
pub fn block_bitmap_csum(bitmap: &[u8], geometry: &Geometry) -> u32 {
    bitmap_csum(
        &bitmap[..u32_as_usize(geometry.clusters_per_group()) / 8],
        geometry,
    )
}

/// The checksum that the descriptor holds of an inode bitmap.
pub fn inode_bitmap_csum(bitmap: &[u8], geometry: &Geometry) -> u32 {
    bitmap_csum(
        &bitmap[..u32_as_usize(geometry.inodes_per_group) / 8],
        geometry,
    )
}

fn bitmap_csum(bits: &[u8], geometry: &Geometry) -> u32 {
    let crc = crc32c(geometry.csum_seed, bits);
    // Only descriptors of 64 bytes have room for the upper half.
    if geometry.is_64bit { crc } else { crc & 0xffff }
}

/// Fills `bitmap` (a whole block) with the block bitmap of a group that is
/// `BLOCK_UNINIT`: in use are only its own metadata and what lies behind the
/// volume's end. Not for `bigalloc`.
pub fn init_block_bitmap(bitmap: &mut [u8], g: GroupNo, desc: &GroupDesc, geometry: &Geometry) {
    bitmap.fill(0);
    set_bits(
        bitmap,
        0,
        geometry.base_meta_blocks(g).min(geometry.blocks_per_group),
    );
    let first = geometry.group_first_block(g).0;
    let blocks = geometry.group_blocks(g);
    let mut claim = |start: BlockNo, count: u32| {
        // With `flex_bg` all or a part of it may lie in other groups.
        let from = start.0.max(first);
        let to = (start.0 + u64::from(count)).min(first + u64::from(blocks));
        if from < to {
            set_bits(bitmap, must_fit(from - first), must_fit(to - from));
        }
    };
    claim(desc.block_bitmap, 1);
    claim(desc.inode_bitmap, 1);
    claim(desc.inode_table, geometry.inode_table_blocks());
    set_bits(
        bitmap,
        blocks,
        must_fit::<_, u32>(bitmap.len() * 8) - blocks,
    );
}

/// Fills `bitmap` (a whole block) with the inode bitmap of a group that is
/// `INODE_UNINIT`: no inode is in use, and the bits behind the last are set.
pub fn init_inode_bitmap(bitmap: &mut [u8], geometry: &Geometry) {
    bitmap.fill(0);
    let inodes = geometry.inodes_per_group;
    set_bits(
        bitmap,
        inodes,
        must_fit::<_, u32>(bitmap.len() * 8) - inodes,
    );
}

fn set_bits(bitmap: &mut [u8], start: u32, count: u32) {
    for bit in start..start + count {
        if bit % 8 == 0 && start + count - bit >= 8 {
            bitmap[u32_as_usize(bit) / 8] = 0xff;
        } else {
            bitmap[u32_as_usize(bit) / 8] |= 1 << (bit % 8);
        }
    }
}
