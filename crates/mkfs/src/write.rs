//! Writes a planned volume.
//!
//! The order: 1. the old superblock is cleared, and nothing that is found on the device is a volume
//! any more; 2. all else, then a flush; 3. the superblock, then a flush. So a cut leaves the new
//! volume, or none.

use std::collections::BTreeMap;

use stetfs_format::width::u32_as_usize;
use stetfs_format::{
    Geometry, GroupNo, Inode, InodeFlags, InodeNo, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE,
};
use stetfs_media::{BlockDev, Cause, Class, Tag};

use crate::error::MkfsError;
use crate::params::Content;
use crate::plan::Plan;
use crate::shape::FIRST_INO;
use crate::superblock::make_copy;

/// Bytes at both ends of a volume in which others look for their marks: the boot block, other file
/// systems' superblocks, RAID.
const START: u64 = 4096;
const END: u64 = 64 << 10;

impl Plan {
    /// Writes the volume, and flushes it.
    ///
    /// # Errors
    /// [`MkfsError::DeviceTooSmall`] and [`MkfsError::SectorSize`] before anything is written, else
    /// the device's.
    pub fn write(&self, dev: &dyn BlockDev) -> Result<(), MkfsError> {
        let geometry = &self.geometry;
        let needed = geometry.volume_bytes();
        if needed > dev.size() {
            return Err(MkfsError::DeviceTooSmall {
                needed,
                device: dev.size(),
            });
        }
        if u32_as_usize(dev.sector_size()) > geometry.block_size() {
            return Err(MkfsError::SectorSize {
                block: geometry.block_size(),
                sector: dev.sector_size(),
            });
        }
        let out = Out { dev, geometry };
        self.clear(&out)?;
        self.write_groups(&out)?;
        self.write_inodes(&out)?;
        for filled in &self.files.blocks {
            out.write(filled.block, &filled.bytes, filled.class)?;
        }
        self.write_descriptors(&out)?;
        dev.flush(Cause::Home)?;
        self.write_superblock(&out)?;
        dev.flush(Cause::Control)?;
        Ok(())
    }

    /// Clears what must read as zeros.
    fn clear(&self, out: &Out<'_>) -> Result<(), MkfsError> {
        let geometry = &self.geometry;
        let block = u64::from(geometry.block.bytes_u32());
        out.zero(0..START / block, Class::Superblock)?;
        if self.content == Content::Zero {
            return Ok(());
        }
        out.dev.flush(Cause::Control)?;
        // As mke2fs: whole units of 64 KiB, the last and the one before.
        let unit = END / block;
        let end = geometry.blocks_count;
        let start = end - end % unit;
        let start = if start > unit { start - unit } else { start };
        if start > 0 {
            out.zero(start..end, Class::Data)?;
        }
        for desc in &self.groups.descs {
            let inodes = if self.content == Content::Lazy {
                geometry.inodes_per_group - desc.itable_unused
            } else {
                geometry.inodes_per_group
            };
            let table = desc.inode_table.0;
            let blocks = inodes.div_ceil(geometry.inodes_per_block());
            out.zero(table..table + u64::from(blocks), Class::InodeTable)?;
        }
        for run in &self.files.zeros {
            out.zero(run.clone(), Class::Journal)?;
        }
        Ok(())
    }

    fn write_groups(&self, out: &Out<'_>) -> Result<(), MkfsError> {
        for g in (0..self.geometry.groups_count).map(GroupNo) {
            let desc = &self.groups.descs[g.index()];
            if let Some(bitmap) = self.block_bitmap(g) {
                out.write(desc.block_bitmap.0, &bitmap, Class::BlockBitmap)?;
            }
            if let Some(bitmap) = self.inode_bitmap(g) {
                out.write(desc.inode_bitmap.0, &bitmap, Class::InodeBitmap)?;
            }
        }
        Ok(())
    }

    /// Writes the blocks of inode tables that hold reserved inodes and files. With checksums an
    /// empty inode has one too.
    fn write_inodes(&self, out: &Out<'_>) -> Result<(), MkfsError> {
        let geometry = &self.geometry;
        let empty = Inode {
            extra_isize: 0,
            ..Inode::new(0, InodeFlags::empty(), 0, geometry)
        };
        let mut inodes: BTreeMap<InodeNo, &Inode> = BTreeMap::new();
        if geometry.metadata_csum {
            inodes.extend((1..FIRST_INO).map(|ino| (InodeNo(ino), &empty)));
        }
        inodes.extend(self.files.inodes.iter().map(|(ino, inode)| (*ino, inode)));
        let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (ino, inode) in inodes {
            let (g, index) = geometry.group_of_inode(ino);
            let (block, at) = geometry.inode_position(index);
            let block = self.groups.descs[g.index()].inode_table.0 + u64::from(block);
            let zeros = || vec![0; geometry.block_size()];
            let bytes = blocks.entry(block).or_insert_with(zeros);
            inode.encode_fresh(&mut bytes[at..], ino, geometry);
        }
        for (block, bytes) in blocks {
            out.write(block, &bytes, Class::InodeTable)?;
        }
        Ok(())
    }

    fn write_descriptors(&self, out: &Out<'_>) -> Result<(), MkfsError> {
        let geometry = &self.geometry;
        let size = geometry.block_size();
        let desc_size = geometry.desc_size();
        let per_block = u32_as_usize(geometry.desc_per_block());
        let mut table = vec![0; u32_as_usize(geometry.desc_blocks()) * size];
        for (g, desc) in (0..).map(GroupNo).zip(&self.groups.descs) {
            let at = g.index() / per_block * size + g.index() % per_block * desc_size;
            desc.encode_into(&mut table[at..at + desc_size], g, geometry);
        }
        let mut copy = self.superblock;
        for g in (0..geometry.groups_count).map(GroupNo) {
            let first = geometry.group_first_block(g).0;
            let has_super = geometry.has_super(g);
            if has_super && g.0 > 0 {
                make_copy(&mut copy, g.0, geometry.metadata_csum);
                let mut block = vec![0; size];
                block[..SUPERBLOCK_SIZE].copy_from_slice(&copy);
                out.write(first, &block, Class::Superblock)?;
            }
            let behind = first + u64::from(has_super);
            if geometry.meta_bg {
                // The first, second and last group of those that a block describes have it.
                let at = g.index() % per_block;
                if at <= 1 || at == per_block - 1 {
                    let start = g.index() / per_block * size;
                    out.write(behind, &table[start..start + size], Class::GroupDesc)?;
                }
            } else if has_super {
                out.write(behind, &table, Class::GroupDesc)?;
            }
        }
        Ok(())
    }

    fn write_superblock(&self, out: &Out<'_>) -> Result<(), MkfsError> {
        let (block, at) = self.geometry.block.split(SUPERBLOCK_OFFSET);
        let mut bytes = vec![0; self.geometry.block_size()];
        bytes[at..at + SUPERBLOCK_SIZE].copy_from_slice(&self.superblock);
        out.write(block, &bytes, Class::Superblock)
    }
}

/// The device, by blocks.
struct Out<'a> {
    dev: &'a dyn BlockDev,
    geometry: &'a Geometry,
}

impl Out<'_> {
    fn write(&self, block: u64, bytes: &[u8], class: Class) -> Result<(), MkfsError> {
        let at = self.geometry.block.offset_of(block);
        Ok(self.dev.write_at(at, bytes, Tag::new(class, Cause::Home))?)
    }

    fn zero(&self, blocks: std::ops::Range<u64>, class: Class) -> Result<(), MkfsError> {
        let len = self.geometry.block.offset_of(blocks.end - blocks.start);
        if len == 0 {
            return Ok(());
        }
        let at = self.geometry.block.offset_of(blocks.start);
        let tag = Tag::new(class, Cause::Home);
        Ok(self.dev.write_zeros(at, len, tag)?)
    }
}
