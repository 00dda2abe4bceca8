//! Inodes in memory: reading and storing a slot of the inode table.
//!
//! Invariants:
//! 1. The slot on the volume, seen through the journal, is what `InodeState::raw` says (its size
//!    perhaps excepted, [`InodeState::disk_size`]) whenever nobody holds `state` for writing:
//!    whoever changes `raw` calls [`Volume::store_inode`] in the same handle before letting go.
//! 2. The same number is the same `Arc<Inode>` as long as anybody holds it (`icache.rs`).
//! 3. A freed inode has `gone` set, under its `lock`; who comes later answers `Stale`.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::{SmallVec, smallvec};
use stetfs_format::width::{must_fit, u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, FeatureRoCompat, InodeNo, Tid, Time};
use stetfs_journal::{FileData, Handle};
use stetfs_media::{BlockRef, Class};
use stetfs_planted::{Bug, is_planted};
use stetfs_sync::RwLock;

use crate::atomic;
use crate::error::{Error, Inconsistent, Result};
use crate::mapping;
use crate::types::mode;
use crate::volume::{Slot, Volume, VolumeState};

/// An inode in memory.
pub(crate) struct Inode {
    /// Its number.
    pub(crate) ino: InodeNo,
    /// Where its slot is.
    pub(crate) slot: Slot,
    /// Serialises operations on the file or directory (`i_rwsem`): readers share, changers exclude.
    pub(crate) lock: RwLock<()>,
    /// What the slot says. Taken inside a handle, for short.
    pub(crate) state: RwLock<InodeState>,
    /// How often the file is open. Changed under `lock`.
    pub(crate) opens: AtomicU32,
    /// The newest transaction that changed the inode, or data, in any way (`i_sync_tid`).
    sync_tid: AtomicU32,
    /// The newest transaction that `fdatasync` must wait for (`i_datasync_tid`).
    datasync_tid: AtomicU32,
    /// The file's data blocks; made at first use.
    data: OnceLock<Arc<FileData>>,
    /// Nothing for a write to strip: no set-user-ID, no set-group-ID, no file capabilities
    /// (`S_NOSEC`).
    pub(crate) no_privileges: AtomicBool,
    /// One write to it is one transaction (`atomic.rs`). Changed under `lock`.
    is_atomic: AtomicBool,
    /// Which ACLs the inode has, as far as somebody has looked (`acl.rs`).
    pub(crate) acls: AtomicU8,
    /// Used since the cache's hand last passed.
    pub(crate) referenced: AtomicBool,
    /// It was cut to nothing: what is written then gets its place when it is closed
    /// (`EXT4_STATE_DA_ALLOC_CLOSE`).
    pub(crate) places_on_close: AtomicBool,
    /// How many groups of writes have changed it (`group.rs`). Changed under `lock`.
    pub(crate) group_commits: AtomicU32,
    /// Its index in the ring of its shard of the cache; under the shard's lock.
    pub(crate) ring_at: AtomicU32,
}

/// The changing part of an [`Inode`].
#[derive(Debug, Clone)]
pub(crate) struct InodeState {
    /// The slot, typed. `raw.block` holds the extent root, the block pointers or a fast symlink's
    /// target.
    pub(crate) raw: stetfs_format::Inode,
    /// The size that is stored, when it is less than that in `raw`: data between the two waits for
    /// a place (`i_disksize`).
    disk_size: Option<u64>,
    /// Freed: nothing may be done with it any more.
    pub(crate) gone: bool,
    /// Reserved blocks: as many as blocks in holes wait for a place.
    pub(crate) reserved: u32,
    /// How often the map was changed: who has looked something up in it need not do it again when
    /// this is still the same.
    pub(crate) map_changes: u32,
    /// Made without a name, which `link` may give it (`I_LINKABLE`).
    pub(crate) nameable: bool,
}

impl InodeState {
    /// A state with this slot.
    pub(crate) fn new(raw: stetfs_format::Inode) -> Self {
        Self {
            raw,
            disk_size: None,
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

    /// Fails when the inode was freed.
    pub(crate) fn check_live(&self) -> Result<()> {
        if self.gone { Err(Error::Stale) } else { Ok(()) }
    }

    /// The size that is stored.
    pub(crate) fn disk_size(&self) -> u64 {
        self.disk_size.unwrap_or(self.raw.size)
    }

    /// Whether it is more than what is stored says: blocks are reserved for it, or its size is
    /// stored when data has a place.
    pub(crate) fn is_ahead(&self) -> bool {
        self.reserved > 0 || self.disk_size.is_some()
    }

    /// Sets the size. What is stored is never more than the smaller of the two, until
    /// [`Inode::settle_size`] lets it be.
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
    /// An inode of this volume with this state whose newest transaction is `tid`.
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
        self.data.get_or_init(|| {
            let data = vol.journal.file(self.ino);
            data.set_whole(self.is_atomic());
            data
        })
    }

    /// Whether one write to it is one transaction or nothing of it.
    pub(crate) fn is_atomic(&self) -> bool {
        self.is_atomic.load(Ordering::Relaxed)
    }

    /// Makes it so or not; whether that is a change. The caller holds `lock` for writing.
    pub(crate) fn set_atomic(&self, is_atomic: bool) -> bool {
        if let Some(data) = self.data.get() {
            data.set_whole(is_atomic);
        }
        self.is_atomic.swap(is_atomic, Ordering::Relaxed) != is_atomic
    }

    /// The file's data blocks, if any can be in memory: also from before the inode was loaded.
    pub(crate) fn data_if_any(&self, vol: &Volume) -> Option<Arc<FileData>> {
        match self.data.get() {
            Some(data) => Some(data.clone()),
            None => vol.journal.file_if_any(self.ino),
        }
    }

    /// Lets the size that is stored follow the file's, as far as no block waits for a place past
    /// commits. To be called by whoever changes the size or which blocks wait, before the inode is
    /// stored.
    pub(crate) fn settle_size(&self, vol: &Volume, st: &mut InodeState) {
        let Some(stored) = st.disk_size else {
            return;
        };
        let waits = self
            .data_if_any(vol)
            .and_then(|data| data.first_waiting(vol.block_of(stored)))
            .filter(|_| !is_planted(Bug::EarlySize));
        let size = waits.map_or(st.raw.size, |lblk| {
            let placed = u64::from(lblk.0) << vol.geo.block_bits;
            placed.clamp(stored, st.raw.size)
        });
        st.disk_size = Some(size).filter(|size| *size < st.raw.size);
    }

    /// Notes that `h` changed the inode; `data` when `fdatasync` must wait for it too (size,
    /// mapping, content).
    pub(crate) fn note_change(&self, h: &Handle, data: bool) {
        let tid = h.tid().0;
        self.sync_tid.store(tid, Ordering::Relaxed);
        if data {
            self.datasync_tid.store(tid, Ordering::Relaxed);
        }
    }

    /// The ACLs may have changed.
    pub(crate) fn forget_acls(&self) {
        self.acls.store(0, Ordering::Relaxed);
    }

    /// Takes back what a change has noted that `fsync` (or `fdatasync`) need not wait for.
    pub(crate) fn restore_tid(&self, tid: Tid, datasync: bool) {
        let noted = match datasync {
            true => &self.datasync_tid,
            false => &self.sync_tid,
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

impl Volume {
    /// The inode `ino`, which an entry or a caller names.
    ///
    /// # Errors
    /// `Inconsistent::InodeNumber` out of range; `Stale` when it is not in use; what decoding
    /// finds.
    pub(crate) fn iget(&self, ino: InodeNo) -> Result<Arc<Inode>> {
        self.icache.get_or_load(ino, || self.load_inode(ino))
    }

    /// A new inode in memory, in place of whatever the cache held for the number. The caller, which
    /// has allocated the number in `h`, writes its slot.
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

    /// Brings into memory what the inodes of these that are not there will be read from, with few
    /// requests: blocks of a group's table that lie near each other in one. What cannot be read is
    /// told when it is asked for.
    pub(crate) fn read_ahead(&self, inos: &[InodeNo]) {
        let missing = inos.iter().filter(|ino| !self.icache.has(**ino));
        let place = |ino: &InodeNo| {
            let slot = self.inode_slot(*ino).ok()?;
            Some((self.geo.group_of_inode(*ino).0, slot.block))
        };
        let mut blocks: SmallVec<[_; 64]> = missing.filter_map(place).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let gap = usize_as_u64(AHEAD_GAP / self.geo.block_size());
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

    /// Writes what changed of `state` into the inode table and notes the transaction. Every change
    /// of an inode ends here.
    pub(crate) fn store_inode(&self, h: &Handle, inode: &Inode, state: &InodeState) -> Result<()> {
        if state.raw.size > LARGE_FILE_MIN {
            self.need_large_file(h)?;
        }
        self.write_state(h, inode, state)?;
        inode.note_change(h, true);
        Ok(())
    }

    /// [`store_inode`](Self::store_inode) where only times have changed, which `fdatasync` need not
    /// wait for.
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

    /// The bytes of the inode's slot.
    pub(crate) fn read_slot(&self, inode: &Inode) -> Result<SmallVec<[u8; 256]>> {
        let block = self.journal.read(inode.slot.block, Class::InodeTable)?;
        let at = u32_as_usize(inode.slot.offset);
        Ok(SmallVec::from_slice(&block[at..at + self.geo.inode_size()]))
    }

    /// Lets `change` edit a copy of the inode's slot and writes what differs. The caller notes it.
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

    /// A file of 2 GiB or more sets a feature of the volume.
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

/// How many bytes that nobody has asked for are read so that one request takes the place of two.
const AHEAD_GAP: usize = 64 << 10;

/// The largest size without the feature `large_file`.
const LARGE_FILE_MIN: u64 = 0x7fff_ffff;

/// Writes what differs between `new` and what the block at `place` has from byte `at` on, which
/// `old` is: all at once, so that nobody reads one part without the others.
pub(crate) fn write_changed(
    h: &Handle,
    (block, class): (BlockNo, Class),
    old: BlockRef,
    at: usize,
    new: &[u8],
) -> Result<()> {
    let changed = changed_ranges(&old[at..at + new.len()], new);
    // Otherwise the journal would have to copy the block before it changes it.
    drop(old);
    let parts = changed.into_iter().map(|r| (at + r.start, &new[r]));
    Ok(h.write_parts(block, class, parts)?)
}

/// The ranges in which two byte strings of one length differ; differences less than 32 bytes apart
/// are one range, because a range costs more than the bytes between.
pub(crate) fn changed_ranges(old: &[u8], new: &[u8]) -> SmallVec<[Range<usize>; 4]> {
    const GAP: usize = 32;
    debug_assert_eq!(old.len(), new.len());
    let mut ranges: SmallVec<[Range<usize>; 4]> = smallvec![];
    let (old_words, old_rest) = old.as_chunks::<8>();
    let (new_words, _) = new.as_chunks::<8>();
    let mut note = |start: usize, end: usize| match ranges.last_mut() {
        Some(last) if start < last.end + GAP => last.end = end,
        _ => ranges.push(start..end),
    };
    for (i, (o, n)) in old_words.iter().zip(new_words).enumerate() {
        let diff = u64::from_le_bytes(*o) ^ u64::from_le_bytes(*n);
        if diff != 0 {
            let first = u32_as_usize(diff.trailing_zeros()) / 8;
            let last = 7 - u32_as_usize(diff.leading_zeros()) / 8;
            note(i * 8 + first, i * 8 + last + 1);
        }
    }
    for i in old.len() - old_rest.len()..old.len() {
        if old[i] != new[i] {
            note(i, i + 1);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_ranges_cover_exactly_what_differs() {
        let old = [0u8; 260];
        let mut new = old;
        assert!(changed_ranges(&old, &new).is_empty());
        new[3] = 1;
        new[20] = 1;
        new[100] = 1;
        new[259] = 1;
        let ranges = changed_ranges(&old, &new);
        assert_eq!(ranges.as_slice(), &[3..21, 100..101, 259..260]);
    }
}
