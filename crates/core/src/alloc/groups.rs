//! The groups of the volume: descriptors and bitmaps.
//!
//! A descriptor is decoded once, at mount, and kept typed. The medium's copy follows when the
//! transaction closes ([`Alloc::store_descs`]), once for all changes of the transaction. Bitmaps
//! are not kept: they live in the journal's cache and are searched there.
//!
//! A bitmap and its descriptor change in one transaction.

use std::ops::Range;

use smallvec::SmallVec;
use stetfs_format::group::{GroupDesc, GroupFlags, init_inode_bitmap};
use stetfs_format::width::{must_fit, must_fit_u32, u32_as_usize};
use stetfs_format::{BlockNo, GroupNo, checksum};
use stetfs_journal::Handle;
use stetfs_media::{Block, BlockRef, Class};

use super::Alloc;
use super::bits::{self, View};
use super::damage::Damage;
use super::group::{Group, GroupState, Which};
use crate::changes::write_changed;
use crate::error::{Error, Result};

impl Alloc {
    /// Whether the descriptor has `flag`; never on volumes where these flags mean nothing.
    pub(super) fn has_flag(&self, state: &GroupState, flag: GroupFlags) -> bool {
        state.desc.flags(&self.geo).contains(flag)
    }

    /// Decodes the descriptors of the whole volume; reads each block once.
    pub(super) fn load_groups(&mut self) -> Result<()> {
        let geo = self.geo;
        let size = geo.desc_size();
        let mut block: Option<(BlockNo, BlockRef)> = None;
        for g in (0..geo.groups_count()).map(GroupNo) {
            let (at, offset) = geo.desc_position(g);
            if block.as_ref().is_none_or(|(b, _)| *b != at) {
                block = Some((at, self.journal.read(at, Class::GroupDesc)?));
            }
            let (_, bytes) = block.as_ref().expect("just read");
            let desc = GroupDesc::decode(&bytes[offset..offset + size], g, &geo)?;
            self.groups.push(Group::new(desc));
        }
        Ok(())
    }

    /// Notes that the descriptor in `state` changed, to be stored when the transaction closes.
    pub(super) fn note_desc(&self, h: &Handle, g: GroupNo, state: &mut GroupState) -> Result<()> {
        if !std::mem::replace(&mut state.is_changed, true) {
            let (block, _) = self.geo.desc_position(g);
            h.join(block, Class::GroupDesc)?;
            self.changed.lock().push(g);
        }
        Ok(())
    }

    /// Stores the descriptors that the transaction of `h` changed. No other handle may be open.
    pub(crate) fn store_descs(&self, h: &Handle) -> Result<()> {
        let mut changed = std::mem::take(&mut *self.changed.lock());
        for g in changed.drain(..) {
            let mut state = self.group(g).state.lock();
            state.is_changed = false;
            self.store_desc(h, g, &state.desc)?;
        }
        // Keep the vector's memory for the next transaction.
        *self.changed.lock() = changed;
        Ok(())
    }

    /// Writes the changed bytes of a descriptor, with its new checksum.
    fn store_desc(&self, h: &Handle, g: GroupNo, desc: &GroupDesc) -> Result<()> {
        let (block, offset) = self.geo.desc_position(g);
        let size = self.geo.desc_size();
        let content = self.journal.read(block, Class::GroupDesc)?;
        let old = &content[offset..offset + size];
        let mut new: SmallVec<[u8; 64]> = SmallVec::from_slice(old);
        desc.encode_into(&mut new, g, &self.geo);
        write_changed(h, (block, Class::GroupDesc), content, offset, &new)
    }

    /// Returns the block bitmap of a group; checks it the first time. If it was never written,
    /// returns what it would be.
    pub(super) fn block_bitmap(&self, g: GroupNo, state: &mut GroupState) -> Result<BlockRef> {
        if self.has_flag(state, GroupFlags::BLOCK_UNINIT) {
            let fresh = self.fresh_block_bitmap(g);
            self.check_free_blocks(g, state, fresh.bytes())?;
            return Ok(fresh.into());
        }
        let bitmap = self
            .journal
            .read(state.desc.block_bitmap, Class::BlockBitmap)?;
        if !state.blocks_checked {
            state.desc.check_block_bitmap(&bitmap, g, &self.geo)?;
            self.check_system_bits(g, &bitmap)?;
            self.check_free_blocks(g, state, &bitmap)?;
            state.blocks_checked = true;
        }
        Ok(bitmap)
    }

    fn check_system_bits(&self, g: GroupNo, bitmap: &[u8]) -> Result<()> {
        let view = View::plain(bitmap, self.geo.group_blocks(g));
        for part in self.system_bits(g) {
            if let Some(n) = view.next_free(part) {
                let block = self.geo.group_first_block(g).plus(n.into());
                return Err(Damage::SystemBlockFree { group: g, block }.into());
            }
        }
        Ok(())
    }

    fn check_free_blocks(&self, g: GroupNo, state: &GroupState, bitmap: &[u8]) -> Result<()> {
        let free = View::plain(bitmap, self.geo.group_blocks(g)).count_free();
        if free != state.desc.free_blocks_count {
            return Err(self.free_blocks_damage(g, state, bitmap));
        }
        Ok(())
    }

    /// Returns the damage that bitmap and descriptor disagree.
    pub(super) fn free_blocks_damage(
        &self,
        g: GroupNo,
        state: &GroupState,
        bitmap: &[u8],
    ) -> Error {
        let bitmap = View::plain(bitmap, self.geo.group_blocks(g)).count_free();
        let descriptor = state.desc.free_blocks_count;
        Damage::FreeBlocks {
            group: g,
            bitmap,
            descriptor,
        }
        .into()
    }

    /// Returns the bits of group `g` that stand for the volume's own structures.
    fn system_bits(&self, g: GroupNo) -> impl Iterator<Item = Range<u32>> {
        let first = self.geo.group_first_block(g).0;
        let end = first + u64::from(self.geo.group_blocks(g));
        self.zone
            .parts(first..end)
            .map(move |r| must_fit(r.start - first)..must_fit(r.end - first))
    }

    /// Returns the bitmap of a group without allocations: only the volume's own structures and the
    /// bits past the end are set.
    fn fresh_block_bitmap(&self, g: GroupNo) -> Block {
        let mut block = Block::zeroed(self.geo.block_size());
        let bytes = block.bytes_mut();
        for part in self.system_bits(g) {
            bits::fill(bytes, 0, part, true);
        }
        let end = must_fit_u32(bytes.len()) * 8;
        bits::fill(bytes, 0, self.geo.group_blocks(g)..end, true);
        block
    }

    /// Creates the block bitmap of a group if it was never written (`ext4_init_block_bitmap`).
    pub(super) fn init_block_bitmap(
        &self,
        h: &Handle,
        g: GroupNo,
        state: &mut GroupState,
    ) -> Result<()> {
        if !self.has_flag(state, GroupFlags::BLOCK_UNINIT) {
            return Ok(());
        }
        let fresh = self.fresh_block_bitmap(g);
        self.check_free_blocks(g, state, fresh.bytes())?;
        h.create(state.desc.block_bitmap, Class::BlockBitmap, fresh.bytes())?;
        state.desc.flags.remove(GroupFlags::BLOCK_UNINIT);
        state.desc.block_bitmap_csum = self.bitmap_csum(Which::Blocks, fresh.bytes());
        state.blocks_checked = true;
        self.note_desc(h, g, state)
    }

    /// Returns the inode bitmap of a group; checks it the first time. If it was never written, it
    /// is empty.
    pub(super) fn inode_bitmap(&self, g: GroupNo, state: &mut GroupState) -> Result<BlockRef> {
        if self.has_flag(state, GroupFlags::INODE_UNINIT) {
            return Ok(self.fresh_inode_bitmap().into());
        }
        let bitmap = self
            .journal
            .read(state.desc.inode_bitmap, Class::InodeBitmap)?;
        if !state.inodes_checked {
            state.desc.check_inode_bitmap(&bitmap, g, &self.geo)?;
            let found = View::plain(&bitmap, self.geo.inodes_per_group()).count_free();
            let descriptor = state.desc.free_inodes_count;
            if found != descriptor {
                return Err(Damage::FreeInodes {
                    group: g,
                    bitmap: found,
                    descriptor,
                }
                .into());
            }
            state.inodes_checked = true;
        }
        Ok(bitmap)
    }

    fn fresh_inode_bitmap(&self) -> Block {
        let mut block = Block::zeroed(self.geo.block_size());
        init_inode_bitmap(block.bytes_mut(), &self.geo);
        block
    }

    /// Creates the inode bitmap of a group if it was never written, and the block bitmap with it,
    /// so that the inode table counts as used (the kernel's `ext4_new_inode`).
    pub(super) fn init_inode_bitmap(
        &self,
        h: &Handle,
        g: GroupNo,
        state: &mut GroupState,
    ) -> Result<()> {
        if !self.has_flag(state, GroupFlags::INODE_UNINIT) {
            return Ok(());
        }
        self.init_block_bitmap(h, g, state)?;
        let fresh = self.fresh_inode_bitmap();
        h.create(state.desc.inode_bitmap, Class::InodeBitmap, fresh.bytes())?;
        state.desc.flags.remove(GroupFlags::INODE_UNINIT);
        state.desc.itable_unused = self.geo.inodes_per_group();
        state.desc.inode_bitmap_csum = self.bitmap_csum(Which::Inodes, fresh.bytes());
        state.inodes_checked = true;
        self.note_desc(h, g, state)
    }

    /// Sets the bits `range` of `bitmap` (its newest content) to `value`, and updates the checksum
    /// of the descriptor in memory.
    pub(super) fn set_bits(
        &self,
        h: &Handle,
        state: &mut GroupState,
        which: Which,
        bitmap: BlockRef,
        range: Range<u32>,
        value: bool,
    ) -> Result<()> {
        let (start, end) = (
            u32_as_usize(range.start) / 8,
            u32_as_usize(range.end).div_ceil(8),
        );
        let mut changed: SmallVec<[u8; 64]> = SmallVec::from_slice(&bitmap[start..end]);
        bits::fill(&mut changed, range.start / 8 * 8, range, value);
        let (block, class) = match which {
            Which::Blocks => (state.desc.block_bitmap, Class::BlockBitmap),
            Which::Inodes => (state.desc.inode_bitmap, Class::InodeBitmap),
        };
        let behind = self.covered(which) - end;
        let change =
            self.csum_of(|| checksum::crc32c_change(&bitmap[start..end], &changed, behind));
        match which {
            Which::Blocks => state.desc.block_bitmap_csum ^= change,
            Which::Inodes => state.desc.inode_bitmap_csum ^= change,
        }
        // A block that is still borrowed would have to be copied before the change.
        drop(bitmap);
        h.write(block, class, start, &changed)?;
        Ok(())
    }

    /// Returns how many bytes of a bitmap its checksum covers.
    fn covered(&self, which: Which) -> usize {
        let bits = match which {
            Which::Blocks => self.geo.clusters_per_group(),
            Which::Inodes => self.geo.inodes_per_group(),
        };
        u32_as_usize(bits) / 8
    }

    fn bitmap_csum(&self, which: Which, bitmap: &[u8]) -> u32 {
        let len = bitmap.len().min(self.covered(which));
        self.csum_of(|| checksum::crc32c(self.geo.csum_seed(), &bitmap[..len]))
    }

    /// Returns a checksum, or a change of one, as the descriptor stores it: 0 without
    /// `metadata_csum`.
    fn csum_of(&self, crc: impl FnOnce() -> u32) -> u32 {
        if !self.geo.metadata_csum {
            0
        } else if self.geo.desc_size() > 32 {
            crc()
        } else {
            // Descriptors of 32 bytes hold the lower half.
            crc() & 0xFFFF
        }
    }
}
