//! The mounted volume, which every operation uses.
//!
//! Lock order:
//! 1. the share of `world` that each operation holds
//! 2. `rename_lock`
//! 3. `Inode::lock`: a parent before its child, two of a kind by ascending number
//! 4. a handle
//! 5. `Inode::state`
//! 6. the locks inside `Alloc` and the journal
//!
//! Nobody holds `Inode::state` across the start of a handle or a commit. Nobody takes an
//! `Inode::lock` while a handle is open, with two exceptions: an inode that nobody else can know
//! yet, and a span, whose holder has `world` alone.
//!
//! The superblock changes in two ways. While the journal runs, it changes through a handle
//! ([`Volume::update_super`]). At mount, at unmount and after the journal has failed, it is written
//! directly to the device (`mount.rs`), when no block of it is in flight.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use stetfs_format::geometry::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use stetfs_format::inode::GOOD_OLD_INODE_SIZE;
use stetfs_format::width::must_fit_u32;
use stetfs_format::{BlockNo, BlockSize, Geometry, InodeNo, LBlock, Superblock, Time};
use stetfs_journal::{Handle, Journal, Placer, Span};
use stetfs_media::{BlockDev, Class, Pmem};
use stetfs_sync::RwLock;

use crate::changes::write_changed;
use crate::clock::Clock;
use crate::error::{Error, Inconsistent, Result};
use crate::icache::InodeCache;
use crate::inode::Slot;
use crate::options::{MountOptions, OnError};

/// A mounted volume.
pub(crate) struct Volume {
    /// The superblock in memory. Its free counts are stale: `alloc` has the true ones.
    pub(crate) sb: RwLock<Superblock>,
    /// The parts of the superblock that never change while mounted.
    pub(crate) geo: Geometry,
    /// The journal: blocks and transactions.
    pub(crate) journal: Arc<Journal>,
    /// The device below the journal; for discards, and for the superblock when no journal runs.
    pub(crate) dev: Arc<dyn BlockDev>,
    /// The scheme's persistent memory beside the volume, if any; for its counts.
    pub(crate) nvm: Option<Arc<dyn Pmem>>,
    /// Block and inode allocation.
    pub(crate) alloc: crate::alloc::Alloc,
    /// What all directories share.
    pub(crate) dirs: crate::dir::dirs::Dirs,
    /// Inodes in memory.
    pub(crate) icache: InodeCache,
    /// Removed inodes that a cache above still knows.
    pub(crate) held: crate::held::Held,
    /// The operation that is done once more.
    pub(crate) redo: crate::redo::during::Redo,
    /// The options of the mount.
    pub(crate) opts: MountOptions,
    /// The clock.
    pub(crate) clock: Clock,
    /// Inodes without names that are still to be freed, and truncates in progress.
    pub(crate) orphans: crate::orphan::list::Orphans,
    /// Shared by all operations; held alone by a group that changes names (`group/names.rs`).
    pub(crate) world: crate::world::World,
    /// Taken by renames from one directory to another (`s_vfs_rename_mutex`): alone when they
    /// change a directory's parent, shared when they do not.
    pub(crate) rename_lock: RwLock<()>,
    /// Attribute blocks that several inodes can share.
    pub(crate) shared_xattrs: crate::xattr::shared::SharedBlocks,
    /// The number of journal blocks inside the volume.
    pub(crate) journal_blocks: u64,
    /// [`VolumeState`] bits.
    pub(crate) state: AtomicU32,
    /// Bytes that callers have read from files.
    pub(crate) bytes_read: AtomicU64,
    /// Bytes that callers have written to files.
    pub(crate) bytes_written: AtomicU64,
    /// Gives data places at a commit.
    pub(crate) placement: OnceLock<Arc<dyn Placer>>,
    /// Tells other users of the device that the volume is in use.
    pub(crate) protection: OnceLock<crate::mount::mmp::Protection>,
}

/// Bits of `Volume::state`.
pub(crate) struct VolumeState;

impl VolumeState {
    /// Mounted read-only, or read-only since an error.
    pub(crate) const READ_ONLY: u32 = 1;
    /// Damage was found; `s_state` says so.
    pub(crate) const ERROR: u32 = 2;
    /// Shut down or unmounted: every operation fails.
    pub(crate) const SHUT_DOWN: u32 = 4;
    /// Orphans are being processed at mount: inodes without links are expected.
    pub(crate) const ORPHANS: u32 = 8;
    /// Being unmounted: running operations finish, and no new ones begin.
    pub(crate) const CLOSING: u32 = 16;
}

/// The root directory.
pub(crate) const ROOT_INO: InodeNo = InodeNo(2);

impl Volume {
    /// Fails unless the volume is up (mounted and not shut down).
    pub(crate) fn check_up(&self) -> Result<()> {
        const DOWN: u32 = VolumeState::SHUT_DOWN | VolumeState::CLOSING;
        if self.state.load(Ordering::Relaxed) & DOWN != 0 {
            return Err(Error::ShutDown);
        }
        Ok(())
    }

    /// Fails unless the volume can be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let state = self.state.load(Ordering::Relaxed);
        if state & VolumeState::SHUT_DOWN != 0 {
            return Err(Error::ShutDown);
        }
        if state & VolumeState::READ_ONLY != 0 {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }

    /// The present time, in the precision and range of this volume's inodes.
    pub(crate) fn now(&self) -> Time {
        self.kept(self.redo.time().unwrap_or_else(|| self.clock.now()))
    }

    /// The time nearest to `time` that an inode of this volume can hold (`timestamp_truncate`).
    pub(crate) fn kept(&self, time: Time) -> Time {
        time.kept(self.has_birth_times())
    }

    /// Whether inodes have a time of creation.
    pub(crate) fn has_birth_times(&self) -> bool {
        self.geo.inode_size() > GOOD_OLD_INODE_SIZE
    }

    /// Whether the volume is read-only at present.
    pub(crate) fn is_read_only(&self) -> bool {
        self.state.load(Ordering::Relaxed) & VolumeState::READ_ONLY != 0
    }

    /// Holds one transaction open for several operations ([`Journal::span`]). Fails unless the
    /// volume can be changed.
    pub(crate) fn span(&self, credits: u32) -> Result<Span> {
        self.check_writable()?;
        Ok(self.journal.span(credits)?)
    }

    /// Fails with `GroupTooBig` when one transaction cannot hold `wanted` blocks.
    pub(crate) fn fits_transaction(&self, wanted: u32) -> Result<()> {
        match self.journal.max_credits() {
            limit if wanted > limit => Err(Error::GroupTooBig { wanted, limit }),
            _ => Ok(()),
        }
    }

    /// Where the slot of `ino` is.
    pub(crate) fn inode_slot(&self, ino: InodeNo) -> Result<Slot> {
        if !self.geo.is_valid_inode(ino) {
            return Err(Inconsistent::InodeNumber(ino).into());
        }
        let (group, index) = self.geo.group_of_inode(ino);
        let table = self.alloc.inode_table(group);
        let (block, offset) = self.geo.inode_position(index);
        Ok(Slot {
            block: table.plus(block.into()),
            offset: must_fit_u32(offset),
        })
    }

    /// Changes the superblock in memory and, through `h`, on the volume.
    pub(crate) fn update_super(
        &self,
        h: &Handle,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let mut sb = self.sb.write();
        change(&mut sb);
        let (block, offset) = super_place(self.geo.block);
        let content = self.journal.read(block, Class::Superblock)?;
        let old = &content[offset..offset + SUPERBLOCK_SIZE];
        let mut new = [0; SUPERBLOCK_SIZE];
        new.copy_from_slice(old);
        sb.encode_into(&mut new);
        write_changed(h, (block, Class::Superblock), content, offset, &new)
    }

    /// The number of blocks that hold `bytes` bytes, rounded up.
    pub(crate) fn blocks_for(&self, bytes: u64) -> u64 {
        self.geo.block.blocks_for(bytes)
    }

    /// The first block of a file that lies beyond its first `bytes` bytes; `u32::MAX` beyond the
    /// largest file.
    pub(crate) fn end_block(&self, bytes: u64) -> LBlock {
        LBlock(u32::try_from(self.blocks_for(bytes)).unwrap_or(u32::MAX))
    }

    /// The block of a file that holds byte `at`; `u32::MAX` beyond the largest file.
    pub(crate) fn block_of(&self, at: u64) -> LBlock {
        LBlock(u32::try_from(self.geo.block.block_of(at)).unwrap_or(u32::MAX))
    }

    /// The block of a file that holds byte `at`, and the byte's offset in it.
    pub(crate) fn split(&self, at: u64) -> (LBlock, usize) {
        (self.block_of(at), self.geo.block.within(at))
    }

    /// The first byte of a block of a file.
    pub(crate) fn start_of(&self, lblk: LBlock) -> u64 {
        self.geo.block.offset_of(lblk.0.into())
    }

    /// What to do on an error: the option `errors=`, or else what the superblock says.
    pub(crate) fn on_error(&self) -> OnError {
        self.opts.errors.unwrap_or(match self.sb.read().errors {
            // 3 asks the kernel to panic. Only the owner of this process may ask for that, not an
            // image.
            2 | 3 => OnError::RemountReadOnly,
            _ => OnError::Continue,
        })
    }
}

/// The block that holds the primary superblock and its byte offset there.
pub(crate) fn super_place(size: BlockSize) -> (BlockNo, usize) {
    let (block, at) = size.split(SUPERBLOCK_OFFSET);
    (BlockNo(block), at)
}
