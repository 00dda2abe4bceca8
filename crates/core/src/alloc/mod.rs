//! Allocation of blocks and inodes.
//!
//! | file | what it is |
//! |---|---|
//! | `group` | the state of one group |
//! | `groups` | descriptors and bitmaps of the groups |
//! | `balloc` | finding, taking and freeing blocks |
//! | `ialloc` | choosing, taking and freeing inodes |
//! | `space` | reservations, root's blocks, the pool: who may take how many |
//! | `pins` | freed blocks whose freeing transaction is not durable |
//! | `zone` | the volume's own structures |
//! | `trim` | telling the device what is free |
//! | `verified` | which metadata blocks passed their full check |
//! | `bits` | bitmaps, 64 bits at a time |
//!
//! Locks: each group has one mutex, taken inside a handle and inside `Inode::state`. A thread holds
//! at most one of them, and reads and writes the journal's cache under it. `Space` and the queue of
//! pins have locks of their own, taken last. Several threads allocate at once. Each begins in the
//! group of its own directory or inode, so they rarely meet.
//!
//! Memory: about 100 bytes a group, plus the overlays of groups with freshly freed blocks.

mod balloc;
mod bits;
pub(crate) mod damage;
mod group;
mod groups;
mod ialloc;
mod pins;
pub(crate) mod space;
#[cfg(test)]
pub(crate) mod test_image;
#[cfg(test)]
mod tests;
mod trim;
mod verified;
mod zone;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use stetfs_format::width::{must_fit_u32, u32_as_usize};
use stetfs_format::{BlockNo, FeatureIncompat, Geometry, GroupNo, InodeNo, Superblock, Tid};
use stetfs_journal::Journal;
use stetfs_media::BlockDev;
use stetfs_sync::Mutex;

use crate::error::{Error, Inconsistent, Result};
use crate::types::Caller;
use group::{Group, GroupState};
pub(crate) use space::Source;
use space::Space;
pub(crate) use verified::Verified;
use zone::SystemZone;

/// Freed runs to discard once their transaction is durable (mount option `discard`), oldest first.
type Freed = Mutex<VecDeque<(Tid, BlockNo, u32)>>;

/// How many more commits a request may force when it finds no space.
#[derive(Clone, Copy)]
pub(crate) struct Retries(u32);

impl Retries {
    /// As often as in the kernel (`ext4_should_retry_alloc`).
    pub(crate) const SOME: Self = Self(3);
    /// For callers that must not commit.
    pub(crate) const NONE: Self = Self(0);
}

/// The allocator of a volume.
pub(crate) struct Alloc {
    geo: Geometry,
    journal: Arc<Journal>,
    dev: Arc<dyn BlockDev>,
    groups: Vec<Group>,
    /// Free blocks of each group that are not pinned. Changed under the group's lock, read without
    /// it.
    free_blocks: Box<[AtomicU32]>,
    /// Free inodes of each group, likewise.
    free_inodes: Box<[AtomicU32]>,
    /// Directories of each group, likewise.
    used_dirs: Box<[AtomicU32]>,
    free_inodes_total: AtomicU64,
    used_dirs_total: AtomicU64,
    space: Space,
    zone: SystemZone,
    /// Groups whose descriptors the running transaction changed.
    changed: Mutex<Vec<GroupNo>>,
    /// Groups with pins, by the transaction that freed there.
    pinned: Mutex<VecDeque<(Tid, GroupNo)>>,
    /// Freed blocks to be discarded; `None` without the mount option `discard`.
    freed: Option<Freed>,
    /// The group where the last search through all groups found a block.
    far: AtomicU32,
    /// Where the next search for a top-level directory's group begins.
    spread: AtomicU32,
    verified: Verified,
    /// Damage found where no caller could be told.
    untold: Untold,
    /// The user who may also have root's blocks, and the group unless it is 0 (`s_def_resuid`,
    /// `s_def_resgid`, `resuid=`, `resgid=`).
    root_blocks_for: (u32, u32),
}

/// An error that the next caller is told, once.
#[derive(Default)]
struct Untold {
    is_any: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Untold {
    fn put(&self, error: Error) {
        tracing::error!("{error}");
        *self.error.lock() = Some(error);
        self.is_any.store(true, Ordering::Release);
    }

    #[inline]
    fn tell(&self) -> Result<()> {
        if !self.is_any.load(Ordering::Acquire) {
            return Ok(());
        }
        self.is_any.store(false, Ordering::Relaxed);
        self.error.lock().take().map_or(Ok(()), Err)
    }
}

impl Alloc {
    /// Returns the allocator of the volume that `sb` describes. Reads every descriptor (64 bytes
    /// for 128 MiB) and no bitmap.
    ///
    /// # Errors
    /// A descriptor fails one of its checks, or cannot be read.
    pub(crate) fn new(
        sb: &Superblock,
        journal: Arc<Journal>,
        dev: Arc<dyn BlockDev>,
    ) -> Result<Self> {
        let geo = *sb.geometry();
        let zeros = || {
            (0..geo.groups_count())
                .map(|_| AtomicU32::new(0))
                .collect::<Box<[_]>>()
        };
        let mut alloc = Self {
            geo,
            journal,
            dev,
            groups: Vec::with_capacity(u32_as_usize(geo.groups_count())),
            free_blocks: zeros(),
            free_inodes: zeros(),
            used_dirs: zeros(),
            free_inodes_total: AtomicU64::new(0),
            used_dirs_total: AtomicU64::new(0),
            space: Space::new(0, 0, 0, true),
            zone: SystemZone::default(),
            changed: Mutex::default(),
            pinned: Mutex::default(),
            freed: None,
            far: AtomicU32::new(0),
            spread: AtomicU32::new(0),
            verified: Verified::new(),
            untold: Untold::default(),
            root_blocks_for: (sb.def_resuid.into(), sb.def_resgid.into()),
        };
        alloc.load_groups()?;
        alloc.count(sb);
        Ok(alloc)
    }

    /// Derives the counts and the system zone from the descriptors. The superblock's counts may be
    /// stale after a crash and are not used.
    fn count(&mut self, sb: &Superblock) {
        let (mut free, mut inodes, mut dirs) = (0, 0, 0);
        let mut located = Vec::with_capacity(self.groups.len());
        for (n, group) in self.groups.iter_mut().enumerate() {
            let desc = &group.state.get_mut().desc;
            free += u64::from(desc.free_blocks_count);
            inodes += u64::from(desc.free_inodes_count);
            dirs += u64::from(desc.used_dirs_count);
            *self.free_blocks[n].get_mut() = desc.free_blocks_count;
            *self.free_inodes[n].get_mut() = desc.free_inodes_count;
            *self.used_dirs[n].get_mut() = desc.used_dirs_count;
            located.push([desc.block_bitmap, desc.inode_bitmap, desc.inode_table]);
        }
        *self.free_inodes_total.get_mut() = inodes;
        *self.used_dirs_total.get_mut() = dirs;
        self.space = Space::new(
            self.geo.blocks_count,
            free,
            sb.r_blocks_count,
            self.geo.extents,
        );
        let located = located
            .into_iter()
            .enumerate()
            .map(|(n, at)| (GroupNo(must_fit_u32(n)), at));
        let has_mmp = sb.feature_incompat.contains(FeatureIncompat::MMP);
        let mmp = has_mmp.then_some(BlockNo(sb.mmp_block));
        self.zone = SystemZone::new(&self.geo, located, mmp);
    }

    fn group(&self, g: GroupNo) -> &Group {
        &self.groups[g.index()]
    }

    /// Returns where the inode table of group `g` begins; `g` is below the group count.
    #[inline]
    pub(crate) fn inode_table(&self, g: GroupNo) -> BlockNo {
        self.group(g).inode_table
    }

    /// Returns the blocks that passed their full check.
    #[inline]
    pub(crate) fn verified(&self) -> &Verified {
        &self.verified
    }

    /// Returns the journal that blocks are read and written through.
    #[inline]
    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Returns the volume's geometry.
    #[inline]
    pub(crate) fn geo(&self) -> &Geometry {
        &self.geo
    }

    /// Returns the free blocks for `statfs`: all, and those for an ordinary user. Reserved blocks
    /// count as used.
    pub(crate) fn free_blocks(&self) -> (u64, u64) {
        self.space.free()
    }

    /// Returns how many blocks can still be promised to writers, at most: pinned blocks count as
    /// free.
    pub(crate) fn room(&self, privileged: bool) -> u64 {
        self.space.room(privileged)
    }

    /// Returns how many blocks are free in the bitmaps: the superblock's `s_free_blocks_count`.
    pub(crate) fn free_blocks_in_bitmaps(&self) -> u64 {
        self.space.free_in_bitmaps()
    }

    /// Returns the free inodes of the volume.
    pub(crate) fn free_inodes(&self) -> u64 {
        self.free_inodes_total.load(Ordering::Relaxed)
    }

    /// Returns how many blocks the volume's own structures take, without the journal. `statfs`
    /// takes them off the total.
    pub(crate) fn overhead(&self) -> u64 {
        self.zone.blocks()
    }

    /// Fails unless a file may map `count` blocks from `start` on: they must lie in the volume,
    /// outside its own structures.
    pub(crate) fn check_mappable(&self, ino: InodeNo, start: BlockNo, count: u64) -> Result<()> {
        if self.geo.is_valid_range(start, count) && !self.zone.overlaps(start, count) {
            return Ok(());
        }
        Err(Inconsistent::SystemBlock { ino, block: start }.into())
    }

    /// Sets who else may have root's blocks; `None` keeps what the volume says (`resuid=`,
    /// `resgid=`).
    pub(crate) fn reserve_for(&mut self, (uid, gid): (Option<u32>, Option<u32>)) {
        let (of_volume, group) = self.root_blocks_for;
        self.root_blocks_for = (uid.unwrap_or(of_volume), gid.unwrap_or(group));
    }

    /// Whether `c` may have root's blocks (the kernel's `ext4_has_free_clusters`). Requests for
    /// space take this as `privileged`.
    pub(crate) fn may_use_root_blocks(&self, c: &Caller) -> bool {
        let (uid, gid) = self.root_blocks_for;
        c.privileged || c.uid == uid || (gid != 0 && c.in_group(gid))
    }

    /// Promises `n` blocks, to be taken later by [`Source::Reserved`]. May force commits, which
    /// release freed blocks and place what others reserved: call it without an open handle, or with
    /// [`Retries::NONE`].
    ///
    /// # Errors
    /// `NoSpace`; an error of the commit; damage that an earlier commit found, once.
    pub(crate) fn reserve(&self, n: u64, privileged: bool, mut retries: Retries) -> Result<()> {
        self.untold.tell()?;
        while !self.space.reserve(n, privileged) {
            if !self.retry_after_commit(&mut retries)? {
                return Err(Error::NoSpace);
            }
        }
        Ok(())
    }

    /// Makes sure that maps can grow; call it before writing to unwritten blocks, whose map may
    /// grow when the commit converts them. Call it without an open handle, as [`Alloc::reserve`].
    ///
    /// # Errors
    /// `NoSpace`; an error of the commit.
    pub(crate) fn check_room_for_maps(&self, mut retries: Retries) -> Result<()> {
        while !self.space.has_room_for_maps() {
            if !self.retry_after_commit(&mut retries)? {
                return Err(Error::NoSpace);
            }
        }
        Ok(())
    }

    /// Marks `n` promised blocks as staged: only the commit of their group takes them.
    pub(crate) fn stage(&self, n: u64) {
        self.space.stage(n);
    }

    /// Undoes [`Alloc::stage`] for `n` blocks.
    pub(crate) fn unstage(&self, n: u64) {
        self.space.unstage(n);
    }

    /// Takes back a promise of `n` blocks.
    pub(crate) fn release(&self, n: u64) {
        if n > 0 {
            self.space.release(n);
        }
    }

    /// Tells after `NoSpace` whether to try again: freed blocks were released, if need be by a
    /// commit. No handle may be open.
    pub(crate) fn retry_after_commit(&self, retries: &mut Retries) -> Result<bool> {
        let Some(left) = retries.0.checked_sub(1) else {
            return Ok(false);
        };
        retries.0 = left;
        if self.release_pins() > 0 {
            return Ok(true);
        }
        if !self.space.commit_would_help() {
            return Ok(false);
        }
        self.journal.sync()?;
        self.release_pins();
        Ok(true)
    }

    /// Releases all blocks whose freeing transaction is durable; returns their number.
    fn release_pins(&self) -> u64 {
        let committed = self.journal.committed();
        let mut released = 0;
        loop {
            let g = {
                let mut queue = self.pinned.lock();
                match queue.front() {
                    Some((tid, _)) if committed.is_at_or_after(*tid) => {
                        queue.pop_front().expect("looked at").1
                    }
                    _ => return released,
                }
            };
            released += self.release_pins_of(g, &mut self.group(g).state.lock(), committed);
        }
    }

    /// Releases the durable pins of one group, whose state the caller has locked.
    fn release_pins_of(&self, g: GroupNo, state: &mut GroupState, committed: Tid) -> u64 {
        let Some(pins) = &mut state.pins else {
            return 0;
        };
        let released = pins.release(committed);
        if pins.is_empty() {
            state.pins = None;
        }
        if state.set_aside {
            self.space.unpin(released.into());
            self.space.set_aside(released.into());
        } else if released > 0 {
            state.longest = u32::MAX;
            self.free_blocks[g.index()].fetch_add(released, Ordering::Relaxed);
            self.space.unpin(released.into());
        }
        released.into()
    }
}
