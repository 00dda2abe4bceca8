//! Inodes in memory. `inode/table.rs` reads and stores their slots of the inode table.
//!
//! Invariants:
//! 1. While nobody holds `state` for writing, the slot on the volume, seen through the journal,
//!    says the same as `InodeState::raw`; only its size may be smaller ([`InodeState::disk_size`]).
//!    So code that changes `raw` calls `Volume::store_inode` in the same handle before it lets go.
//! 2. The same number is the same `Arc<Inode>` as long as anybody holds it (`icache.rs`).
//! 3. A freed inode has `gone` set, under its `lock`. Later operations on it fail with `Stale`.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use stetfs_format::width::usize_as_u64;
use stetfs_format::{BlockNo, InodeNo, Tid, Time};
use stetfs_journal::{FileData, Handle};
use stetfs_sync::RwLock;

use crate::error::{Error, Result};
use crate::types::mode;

mod table;

/// Where an inode's slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The block of the inode table.
    pub(crate) block: BlockNo,
    /// Byte offset in that block.
    pub(crate) offset: u32,
}

/// An inode in memory.
pub(crate) struct Inode {
    /// Its number.
    pub(crate) ino: InodeNo,
    /// Where its slot is.
    pub(crate) slot: Slot,
    /// Serialises operations on the file or directory (`i_rwsem`): readers share it, writers
    /// exclude all others.
    pub(crate) lock: RwLock<()>,
    /// The content of the slot. Locked inside a handle, for a short time.
    pub(crate) state: RwLock<InodeState>,
    /// How many times the file is open. Changed under `lock`.
    pub(crate) opens: AtomicU32,
    /// The newest transaction that changed the inode or its data in any way (`i_sync_tid`).
    sync_tid: AtomicU32,
    /// The newest transaction that `fdatasync` must wait for (`i_datasync_tid`).
    datasync_tid: AtomicU32,
    /// The file's data blocks; created at first use.
    data: OnceLock<Arc<FileData>>,
    /// A write has nothing to strip: no set-user-ID, no set-group-ID, no file capabilities
    /// (`S_NOSEC`).
    pub(crate) no_privileges: AtomicBool,
    /// The file is marked: one write to it is one transaction (`atomic.rs`). Changed under `lock`.
    is_atomic: AtomicBool,
    /// Which ACLs the inode has, as far as known (`acl.rs`).
    pub(crate) acls: AtomicU8,
    /// Used since the cache's hand last passed.
    pub(crate) referenced: AtomicBool,
    /// The file was truncated to nothing, so its new data gets a place when the file is closed
    /// (`EXT4_STATE_DA_ALLOC_CLOSE`).
    pub(crate) places_on_close: AtomicBool,
    /// How many groups have written to the file (`group.rs`). Changed under `lock`.
    pub(crate) group_commits: AtomicU32,
    /// The inode's index in the ring of its shard of the cache. Guarded by the shard's lock.
    pub(crate) ring_at: AtomicU32,
}

/// The changing part of an [`Inode`].
#[derive(Debug, Clone)]
pub(crate) struct InodeState {
    /// The decoded slot. `raw.block` holds the extent root, the block pointers or a fast symlink's
    /// target.
    pub(crate) raw: stetfs_format::Inode,
    /// The stored size in bytes, when it is less than that in `raw`: data between the two is
    /// delayed (`i_disksize`).
    disk_size: Option<u64>,
    /// The size that was set last, if the block in which it ends was not delayed then: data that
    /// is delayed in that block since leaves this size stored.
    set_size: Option<u64>,
    /// The inode was freed: every operation on it fails.
    pub(crate) gone: bool,
    /// The number of reserved blocks: one for each delayed block in a hole.
    pub(crate) reserved: u32,
    /// How often the map was changed. A looked-up mapping is good while this number stays the same.
    pub(crate) map_changes: u32,
    /// The inode was made without a name, and `link` may give it one (`I_LINKABLE`).
    pub(crate) nameable: bool,
}

impl InodeState {
    /// A state with this slot.
    pub(crate) fn new(raw: stetfs_format::Inode) -> Self {
        Self {
            raw,
            disk_size: None,
            set_size: None,
            gone: false,
            reserved: 0,
            map_changes: 0,
            nameable: false,
        }
    }

    /// Whether this is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        mode::is_dir(self.raw.mode)
    }

    /// Whether this is a regular file.
    pub(crate) fn is_reg(&self) -> bool {
        mode::is_reg(self.raw.mode)
    }

    /// Whether this is a symbolic link.
    pub(crate) fn is_lnk(&self) -> bool {
        mode::is_lnk(self.raw.mode)
    }

    /// Whether the target of a symbolic link is in the inode itself
    /// (`ext4_inode_is_fast_symlink`).
    pub(crate) fn is_fast_symlink(&self) -> bool {
        self.is_lnk() && self.raw.size < usize_as_u64(self.raw.block.len())
    }

    /// Fails when the inode was freed.
    pub(crate) fn check_live(&self) -> Result<()> {
        if self.gone { Err(Error::Stale) } else { Ok(()) }
    }

    /// The stored size, in bytes.
    pub(crate) fn disk_size(&self) -> u64 {
        self.disk_size.unwrap_or(self.raw.size)
    }

    /// Whether memory has more than the slot says: blocks are reserved, or the size is stored only
    /// when data has a place.
    pub(crate) fn is_ahead(&self) -> bool {
        self.reserved > 0 || self.disk_size.is_some()
    }

    /// Sets the size. The stored size does not grow until [`Inode::settle_size`] lets it.
    pub(crate) fn set_size(&mut self, size: u64) {
        self.disk_size = Some(self.disk_size().min(size)).filter(|stored| *stored < size);
        self.raw.size = size;
    }

    /// Sets `ctime`.
    pub(crate) fn touch(&mut self, now: Time) {
        self.raw.ctime = now;
    }
}

impl Inode {
    /// Whether the file is marked: one write to it survives as a whole.
    pub(crate) fn is_atomic(&self) -> bool {
        self.is_atomic.load(Ordering::Relaxed)
    }

    /// Marks or unmarks the file. Returns true if that is a change. The caller holds `lock` for
    /// writing.
    pub(crate) fn set_atomic(&self, is_atomic: bool) -> bool {
        self.is_atomic.swap(is_atomic, Ordering::Relaxed) != is_atomic
    }

    /// Notes that `h` changed the inode. `data`: `fdatasync` must wait for it too (size, mapping,
    /// content).
    pub(crate) fn note_change(&self, h: &Handle, data: bool) {
        let tid = h.tid().0;
        self.sync_tid.store(tid, Ordering::Relaxed);
        if data {
            self.datasync_tid.store(tid, Ordering::Relaxed);
        }
    }

    /// Forgets which ACLs the inode has: they may have changed.
    pub(crate) fn forget_acls(&self) {
        self.acls.store(0, Ordering::Relaxed);
    }

    /// Sets the transaction that `fsync` (or `fdatasync`) waits for back to `tid`, after a change
    /// that it need not wait for.
    pub(crate) fn restore_tid(&self, tid: Tid, datasync: bool) {
        let noted = if datasync {
            &self.datasync_tid
        } else {
            &self.sync_tid
        };
        noted.store(tid.0, Ordering::Relaxed);
    }

    /// The transaction that `fsync` (or `fdatasync`) waits for.
    pub(crate) fn wanted_tid(&self, datasync: bool) -> Tid {
        Tid(if datasync {
            &self.datasync_tid
        } else {
            &self.sync_tid
        }
        .load(Ordering::Relaxed))
    }
}
