//! Choosing, taking and freeing inodes.
//!
//! A new directory at the top level goes where there are few directories and much room. Another
//! directory goes near its parent while that flex group is not crowded (Orlov, the kernel's
//! `find_group_orlov`). Everything else goes into its directory's group, or near it
//! (`find_group_other`). Within a group the lowest free inode is taken, which keeps the used part
//! of the inode table dense.
//!
//! mke2fs may have left the part of a table past `bg_itable_unused` unwritten. Inodes there are
//! taken in order. Taking the first inode of a table block creates that block as zeros (unless the
//! group is INODE_ZEROED).

use std::ops::Range;
use std::sync::atomic::Ordering;

use stetfs_format::group::GroupFlags;
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_format::{GroupNo, InodeNo};
use stetfs_journal::Handle;
use stetfs_media::{Block, BlockRef, Class};

use super::Alloc;
use super::bits::View;
use super::damage::Damage;
use super::group::{GroupState, Which};
use crate::error::{Error, Kind, Result};

/// How many flex groups are compared for a top-level directory.
const SPREAD_MAX: u32 = 128;

/// The counts of one flex group that Orlov's rule compares.
struct Crowd {
    free_inodes: u64,
    free_blocks: u64,
    used_dirs: u64,
}

impl Alloc {
    /// Takes an inode for a new file or directory under `parent`. `spread`: `parent` has the TOPDIR
    /// flag, so a new directory counts as a top-level one.
    ///
    /// The slot may still hold an old inode: the caller writes it. Needs three credits (bitmap,
    /// descriptor, a block of the table), and two more when the group was never used.
    ///
    /// # Errors
    /// `NoSpace`: no inode is free. Damage found in a bitmap.
    pub(crate) fn alloc_inode(
        &self,
        h: &Handle,
        parent: InodeNo,
        is_dir: bool,
        spread: bool,
    ) -> Result<InodeNo> {
        if self.free_inodes() == 0 {
            return Err(Error::NoSpace);
        }
        let (home, _) = self.geo.group_of_inode(parent);
        let first = if is_dir {
            self.group_for_directory(home, spread || parent == InodeNo(2))
        } else {
            self.group_for_file(home, parent)
        };
        for g in self.groups_from(first) {
            if self.free_inodes[g.index()].load(Ordering::Relaxed) == 0 {
                continue;
            }
            match self.take_inode(h, g, is_dir) {
                Ok(Some(ino)) => return Ok(ino),
                Ok(None) => {}
                Err(e) => {
                    // The next caller gets an inode of another group.
                    if e.kind() == Kind::Corrupted {
                        let lost = self.free_inodes[g.index()].swap(0, Ordering::Relaxed);
                        self.free_inodes_total
                            .fetch_sub(lost.into(), Ordering::Relaxed);
                    }
                    return Err(e);
                }
            }
        }
        Err(Error::NoSpace)
    }

    /// Takes this inode, which [`alloc_inode`](Self::alloc_inode) has taken before a crash. Needs
    /// as many credits, and one more for each of [`skipped_blocks`](Self::skipped_blocks).
    ///
    /// # Errors
    /// `Exists`: it is in use. `Stale`: it is none for files. Damage found in a bitmap.
    pub(crate) fn alloc_this_inode(
        &self,
        h: &Handle,
        ino: InodeNo,
        is_dir: bool,
    ) -> Result<InodeNo> {
        self.check_for_files(ino)?;
        let (g, index) = self.geo.group_of_inode(ino);
        let mut state = self.group(g).state.lock();
        let state = &mut *state;
        let bitmap = self.inode_bitmap(g, state)?;
        if View::plain(&bitmap, self.geo.inodes_per_group()).is_busy(index) {
            return Err(Error::Exists);
        }
        self.take_inode_at(h, (g, index), state, bitmap, is_dir)
    }

    /// Returns how many blocks of the inode table lie between its used part and this inode. They
    /// become used with it.
    pub(crate) fn skipped_blocks(&self, ino: InodeNo) -> Result<u32> {
        self.check_for_files(ino)?;
        let (g, index) = self.geo.group_of_inode(ino);
        let used = self.used_table(&self.group(g).state.lock());
        let block = |index| self.geo.inode_position(index).0;
        Ok(block(index).saturating_sub(block(used.min(index))))
    }

    fn check_for_files(&self, ino: InodeNo) -> Result<()> {
        self.geo.is_for_files(ino).then_some(()).ok_or(Error::Stale)
    }

    fn take_inode(&self, h: &Handle, g: GroupNo, is_dir: bool) -> Result<Option<InodeNo>> {
        let mut state = self.group(g).state.lock();
        let state = &mut *state;
        if state.desc.free_inodes_count == 0 {
            return Ok(None);
        }
        let bitmap = self.inode_bitmap(g, state)?;
        let count = self.geo.inodes_per_group();
        let view = View::plain(&bitmap, count);
        let Some(index) = view.next_free(state.first_free_inode..count) else {
            // The count and invariant 4 of `group.rs` say that an inode is free here.
            return Err(Damage::FreeInodes {
                group: g,
                bitmap: 0,
                descriptor: state.desc.free_inodes_count,
            }
            .into());
        };
        let ino = self.geo.inode_at(g, index);
        if !self.geo.is_for_files(ino) {
            return Err(Damage::InodeBit { group: g, ino }.into());
        }
        let used = self.used_table(state);
        if index > used {
            // An inode past the used part has its bit set: the lowest free one does not follow that
            // part.
            let ino = self.geo.inode_at(g, used);
            return Err(Damage::InodeBit { group: g, ino }.into());
        }
        let taken = self.take_inode_at(h, (g, index), state, bitmap, is_dir)?;
        state.first_free_inode = index + 1;
        Ok(Some(taken))
    }

    fn take_inode_at(
        &self,
        h: &Handle,
        (g, index): (GroupNo, u32),
        state: &mut GroupState,
        bitmap: BlockRef,
        is_dir: bool,
    ) -> Result<InodeNo> {
        self.init_inode_bitmap(h, g, state)?;
        self.extend_used_table(h, state, index)?;
        self.set_bits(h, state, Which::Inodes, bitmap, index..index + 1, true)?;
        state.desc.free_inodes_count -= 1;
        state.desc.used_dirs_count += u32::from(is_dir);
        self.note_desc(h, g, state)?;
        self.free_inodes[g.index()].fetch_sub(1, Ordering::Relaxed);
        self.free_inodes_total.fetch_sub(1, Ordering::Relaxed);
        if is_dir {
            self.used_dirs[g.index()].fetch_add(1, Ordering::Relaxed);
            self.used_dirs_total.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.geo.inode_at(g, index))
    }

    /// Returns how many inodes the used part of a group's table has.
    fn used_table(&self, state: &GroupState) -> u32 {
        let all = self.geo.inodes_per_group();
        if self.geo.metadata_csum || self.geo.gdt_csum {
            all.saturating_sub(state.desc.itable_unused)
        } else {
            all
        }
    }

    /// Counts the inode at `index` as used part of the table, and creates each table block whose
    /// first inode becomes part of it.
    fn extend_used_table(&self, h: &Handle, state: &mut GroupState, index: u32) -> Result<()> {
        let used = self.used_table(state);
        if index < used {
            return Ok(());
        }
        if !self.has_flag(state, GroupFlags::INODE_ZEROED) {
            let position = |index| self.geo.inode_position(index);
            let all = (used..=index).map(position);
            for (block, _) in all.filter(|(_, offset)| *offset == 0) {
                let zeros = Block::zeroed(self.geo.block_size());
                let block = state.desc.inode_table.plus(block.into());
                h.create(block, Class::InodeTable, zeros.bytes())?;
            }
        }
        state.desc.itable_unused = self.geo.inodes_per_group() - index - 1;
        Ok(())
    }

    /// Frees inode `ino`, whose slot the caller has cleared. Needs two credits.
    ///
    /// # Errors
    /// Damage: `ino` is free already or reserved.
    pub(crate) fn free_inode(&self, h: &Handle, ino: InodeNo, was_dir: bool) -> Result<()> {
        if !self.geo.is_for_files(ino) {
            return Err(Damage::InodeFreeTwice(ino).into());
        }
        let (g, index) = self.geo.group_of_inode(ino);
        let mut state = self.group(g).state.lock();
        let state = &mut *state;
        let bitmap = self.inode_bitmap(g, state)?;
        if !View::plain(&bitmap, self.geo.inodes_per_group()).is_busy(index) {
            return Err(Damage::InodeFreeTwice(ino).into());
        }
        if was_dir && state.desc.used_dirs_count == 0 {
            return Err(Damage::UsedDirs(g).into());
        }
        self.set_bits(h, state, Which::Inodes, bitmap, index..index + 1, false)?;
        state.desc.free_inodes_count += 1;
        state.desc.used_dirs_count -= u32::from(was_dir);
        self.note_desc(h, g, state)?;
        state.first_free_inode = state.first_free_inode.min(index);
        self.free_inodes[g.index()].fetch_add(1, Ordering::Relaxed);
        self.free_inodes_total.fetch_add(1, Ordering::Relaxed);
        if was_dir {
            self.used_dirs[g.index()].fetch_sub(1, Ordering::Relaxed);
            self.used_dirs_total.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the bitmap has `ino` (a valid number) in use. Asked when only the number is known:
    /// orphans, file handles.
    pub(crate) fn is_inode_used(&self, ino: InodeNo) -> Result<bool> {
        let (g, index) = self.geo.group_of_inode(ino);
        let mut state = self.group(g).state.lock();
        let bitmap = self.inode_bitmap(g, &mut state)?;
        Ok(View::plain(&bitmap, self.geo.inodes_per_group()).is_busy(index))
    }

    /// Chooses the parent's flex group while it has a free inode, else a group by a hash of the
    /// parent. So the files of one directory stay together, and those of different directories do
    /// not all go to the next group.
    fn group_for_file(&self, home: GroupNo, parent: InodeNo) -> GroupNo {
        let free = |g: &GroupNo| self.free_inodes[g.index()].load(Ordering::Relaxed) > 0;
        let room = |g: &GroupNo| self.free_blocks[g.index()].load(Ordering::Relaxed) > 0;
        let (first, count) = self.geo.flex_group(home);
        let flex = first.0..first.0 + count;
        if let Some(g) = (home.0..flex.end)
            .chain(flex.start..home.0)
            .map(GroupNo)
            .find(free)
            && (count > 1 || room(&g))
        {
            return g;
        }
        let groups = u64::from(self.geo.groups_count());
        let mut at = (u64::from(home.0) + u64::from(parent.0)) % groups;
        let mut step = 1;
        while step < groups {
            at = (at + step) % groups;
            let g = GroupNo(must_fit(at));
            if free(&g) && room(&g) {
                return g;
            }
            step *= 2;
        }
        home
    }

    fn group_for_directory(&self, home: GroupNo, top_level: bool) -> GroupNo {
        let flexes = self.geo.groups_count().div_ceil(self.geo.groups_per_flex);
        let average = |total: u64| total / u64::from(flexes);
        let free_inodes = average(self.free_inodes());
        let free_blocks = average(self.space.free().0);
        let home_flex = home.0 / self.geo.groups_per_flex;
        if top_level {
            let start = self
                .spread
                .fetch_add(1, Ordering::Relaxed)
                .wrapping_mul(0x9E37_79B9)
                % flexes;
            let least_crowded = (0..flexes.min(SPREAD_MAX))
                .map(|n| (start + n) % flexes)
                .map(|flex| (flex, self.crowd(flex)))
                .filter(|(_, c)| {
                    c.free_inodes > 0
                        && c.free_inodes >= free_inodes
                        && c.free_blocks >= free_blocks
                })
                .min_by_key(|(_, c)| c.used_dirs);
            if let Some((flex, _)) = least_crowded {
                return self.first_free_inode_group(flex);
            }
        }
        let per_flex = u64::from(self.geo.groups_per_flex);
        let dirs_max = average(self.used_dirs_total.load(Ordering::Relaxed))
            + u64::from(self.geo.inodes_per_group()) * per_flex / 16;
        let inodes_min = free_inodes
            .saturating_sub(u64::from(self.geo.inodes_per_group()) * per_flex / 4)
            .max(1);
        let blocks_min =
            free_blocks.saturating_sub(u64::from(self.geo.blocks_per_group()) * per_flex / 4);
        let around = || (home_flex..flexes).chain(0..home_flex);
        let fits = |flex: &u32| {
            let c = self.crowd(*flex);
            c.used_dirs < dirs_max && c.free_inodes >= inodes_min && c.free_blocks >= blocks_min
        };
        let roomy = |flex: &u32| self.crowd(*flex).free_inodes >= free_inodes.max(1);
        let flex = around()
            .find(fits)
            .or_else(|| around().find(roomy))
            .unwrap_or(home_flex);
        self.first_free_inode_group(flex)
    }

    fn flex_groups(&self, flex: u32) -> Range<u32> {
        let (first, count) = self
            .geo
            .flex_group(GroupNo(flex * self.geo.groups_per_flex));
        first.0..first.0 + count
    }

    fn first_free_inode_group(&self, flex: u32) -> GroupNo {
        let mut groups = self.flex_groups(flex);
        let first = groups.start;
        let free = groups.find(|g| self.free_inodes[u32_as_usize(*g)].load(Ordering::Relaxed) > 0);
        GroupNo(free.unwrap_or(first))
    }

    fn crowd(&self, flex: u32) -> Crowd {
        let groups = self.flex_groups(flex);
        let sum = |counts: &[std::sync::atomic::AtomicU32]| {
            counts[u32_as_usize(groups.start)..u32_as_usize(groups.end)]
                .iter()
                .map(|n| u64::from(n.load(Ordering::Relaxed)))
                .sum()
        };
        Crowd {
            free_inodes: sum(&self.free_inodes),
            free_blocks: sum(&self.free_blocks),
            used_dirs: sum(&self.used_dirs),
        }
    }
}
