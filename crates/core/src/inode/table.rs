//! Reading and storing inodes: slots of the inode table.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_format::{BlockNo, FeatureRoCompat, InodeNo, Tid};
use stetfs_journal::{FileData, Handle};
use stetfs_media::Class;
use stetfs_planted::{Bug, is_planted};
use stetfs_sync::RwLock;

use super::{Inode, InodeState, Slot};
use crate::atomic;
use crate::changes::write_changed;
use crate::error::{Error, Inconsistent, Result};
use crate::mapping;
use crate::types::mode;
use crate::volume::{Volume, VolumeState};

impl Inode {
    /// Makes an inode in this state, whose newest transaction is `tid`.
    fn new(vol: &Volume, ino: InodeNo, slot: Slot, state: InodeState, tid: Tid) -> Self {
        let is_atomic = atomic::is_atomic(vol, &state.raw);
        Self {
            ino,
            slot,
            lock: RwLock::new(()),
            state: RwLock::new(state),
            opens: AtomicU32::new(0),
            sync_tid: AtomicU32::new(tid.0),
            datasync_tid: AtomicU32::new(tid.0),
            data: OnceLock::new(),
            no_privileges: AtomicBool::new(false),
            is_atomic: AtomicBool::new(is_atomic),
            acls: AtomicU8::new(0),
            referenced: AtomicBool::new(true),
            places_on_close: AtomicBool::new(false),
            group_commits: AtomicU32::new(0),
            ring_at: AtomicU32::new(0),
        }
    }

    /// The file's data blocks in memory.
    pub(crate) fn data(&self, vol: &Volume) -> &Arc<FileData> {
        self.data.get_or_init(|| vol.journal.file(self.ino))
    }

    /// The file's data blocks, if any are in memory; these may be older than the loaded inode.
    pub(crate) fn data_if_any(&self, vol: &Volume) -> Option<Arc<FileData>> {
        match self.data.get() {
            Some(data) => Some(data.clone()),
            None => vol.journal.file_if_any(self.ino),
        }
    }

    /// Sets the size, as truncate and fallocate do.
    pub(crate) fn set_size(&self, vol: &Volume, st: &mut InodeState, size: u64) {
        st.set_size(size);
        let last = vol.block_of(size);
        let delayed = self
            .data_if_any(vol)
            .and_then(|data| data.first_delayed(last));
        st.set_size = Some(size).filter(|_| delayed != Some(last));
    }

    /// Sets the size to store: the file's size, or the start of its first delayed block. Every
    /// change of the size or of the set of delayed blocks calls this before it stores the inode.
    pub(crate) fn settle_size(&self, vol: &Volume, st: &mut InodeState) {
        let Some(stored) = st.disk_size else {
            return;
        };
        let delayed = self
            .data_if_any(vol)
            .and_then(|data| data.first_delayed(vol.block_of(stored)))
            .filter(|_| !is_planted(Bug::EarlySize));
        let size = delayed.map_or(st.raw.size, |lblk| {
            let set = st.set_size.filter(|size| vol.block_of(*size) == lblk);
            let placed = set.unwrap_or_else(|| vol.start_of(lblk));
            placed.clamp(stored, st.raw.size)
        });
        st.disk_size = Some(size).filter(|size| *size < st.raw.size);
    }
}

impl Volume {
    /// Returns the inode `ino`, which an entry or a caller names.
    ///
    /// # Errors
    /// `Inconsistent::InodeNumber` out of range; `Stale` when it is not in use; the errors of
    /// decoding.
    pub(crate) fn iget(&self, ino: InodeNo) -> Result<Arc<Inode>> {
        self.icache.get_or_load(ino, || self.load_inode(ino))
    }

    /// Returns an inode of which nothing but the number is known; `None` if it is free.
    pub(crate) fn iget_if_used(&self, ino: InodeNo) -> Result<Option<Arc<Inode>>> {
        if !self.geo.is_valid_inode(ino) || !self.alloc.is_inode_used(ino)? {
            return Ok(None);
        }
        match self.iget(ino) {
            Err(Error::Stale) => Ok(None),
            inode => inode.map(Some),
        }
    }

    /// Adds a new inode to the cache; it replaces any with the same number. The caller has
    /// allocated the number in `h`, and writes the slot.
    pub(crate) fn inode_created(
        &self,
        ino: InodeNo,
        raw: stetfs_format::Inode,
        h: &Handle,
    ) -> Result<Arc<Inode>> {
        let slot = self.inode_slot(ino)?;
        let inode = Arc::new(Inode::new(self, ino, slot, InodeState::new(raw), h.tid()));
        self.icache.insert(inode.clone());
        Ok(inode)
    }

    /// Reads the table blocks of those inodes that are not in memory, with few requests: blocks of
    /// one group's table that lie near each other are one request. A block that cannot be read
    /// gives its error when it is asked for.
    pub(crate) fn read_ahead(&self, inos: &[InodeNo]) {
        let missing = inos.iter().filter(|ino| !self.icache.has(**ino));
        let place = |ino: &InodeNo| {
            let slot = self.inode_slot(*ino).ok()?;
            Some((self.geo.group_of_inode(*ino).0, slot.block))
        };
        let mut blocks: SmallVec<[_; 64]> = missing.filter_map(place).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let gap = self.geo.block.block_of(AHEAD_GAP);
        let is_near = |a: &(_, BlockNo), b: &(_, BlockNo)| a.0 == b.0 && b.1.0 - a.1.0 <= gap;
        for run in blocks.chunk_by(is_near) {
            let (first, last) = (run[0].1, run[run.len() - 1].1);
            let blocks = must_fit(last.0 - first.0 + 1);
            self.journal.read_ahead(first, blocks, Class::InodeTable);
        }
    }

    fn load_inode(&self, ino: InodeNo) -> Result<Inode> {
        let slot = self.inode_slot(ino)?;
        let block = self.journal.read(slot.block, Class::InodeTable)?;
        let at = u32_as_usize(slot.offset);
        let bytes = &block[at..at + self.geo.inode_size()];
        let raw = stetfs_format::Inode::decode(bytes, ino, &self.geo)?;
        let orphans = self.state.load(Ordering::Relaxed) & VolumeState::ORPHANS != 0;
        if raw.links_count == 0 && (raw.mode == 0 || !orphans) {
            return Err(Error::Stale);
        }
        if raw.mode & mode::S_IFMT == 0 {
            return Err(Inconsistent::UnusedInode(ino).into());
        }
        if mapping::has_map(&raw, &self.geo) {
            mapping::check(self, ino, &raw)?;
        }
        Ok(Inode::new(
            self,
            ino,
            slot,
            InodeState::new(raw),
            self.icache.newest_dropped(),
        ))
    }

    /// Writes the changes of `state` to the inode table, and notes the transaction. Every change of
    /// an inode ends here.
    pub(crate) fn store_inode(&self, h: &Handle, inode: &Inode, state: &InodeState) -> Result<()> {
        if state.raw.size > LARGE_FILE_MIN {
            self.need_large_file(h)?;
        }
        self.write_state(h, inode, state)?;
        inode.note_change(h, true);
        Ok(())
    }

    /// Does [`store_inode`](Self::store_inode) after a change of times only, for which `fdatasync`
    /// need not wait.
    pub(crate) fn store_times(&self, h: &Handle, inode: &Inode, state: &InodeState) -> Result<()> {
        self.write_state(h, inode, state)?;
        inode.note_change(h, false);
        Ok(())
    }

    fn write_state(&self, h: &Handle, inode: &Inode, state: &InodeState) -> Result<()> {
        self.write_slot(h, inode, |slot| match state.disk_size {
            None => state.raw.encode_into(slot, inode.ino, &self.geo),
            Some(size) => stetfs_format::Inode {
                size,
                ..state.raw.clone()
            }
            .encode_into(slot, inode.ino, &self.geo),
        })
    }

    /// Reads the bytes of the inode's slot.
    pub(crate) fn read_slot(&self, inode: &Inode) -> Result<SmallVec<[u8; 256]>> {
        let block = self.journal.read(inode.slot.block, Class::InodeTable)?;
        let at = u32_as_usize(inode.slot.offset);
        Ok(SmallVec::from_slice(&block[at..at + self.geo.inode_size()]))
    }

    /// Lets `change` edit a copy of the inode's slot, and writes what differs. The caller notes the
    /// transaction.
    pub(crate) fn write_slot(
        &self,
        h: &Handle,
        inode: &Inode,
        change: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let block = self.journal.read(inode.slot.block, Class::InodeTable)?;
        let at = u32_as_usize(inode.slot.offset);
        let old = &block[at..at + self.geo.inode_size()];
        let mut new: SmallVec<[u8; 256]> = SmallVec::from_slice(old);
        change(&mut new);
        let place = (inode.slot.block, Class::InodeTable);
        write_changed(h, place, block, at, &new)
    }

    /// Sets the feature `large_file`, which a file of 2 GiB or more needs.
    fn need_large_file(&self, h: &Handle) -> Result<()> {
        if self
            .sb
            .read()
            .feature_ro_compat
            .contains(FeatureRoCompat::LARGE_FILE)
        {
            return Ok(());
        }
        self.update_super(h, |sb| sb.feature_ro_compat |= FeatureRoCompat::LARGE_FILE)
    }
}

/// Unneeded bytes between two blocks up to which one request for both is better than two.
const AHEAD_GAP: u64 = 64 << 10;

/// The largest size without the feature `large_file`, in bytes.
const LARGE_FILE_MIN: u64 = 0x7fff_ffff;
