//! The region of a cache on the medium: its words, entries and blocks.

use std::sync::Arc;

use stetfs_format::nvm_cache::{
    CACHE_GEOMETRY_LAYOUT, CacheGeometry, CachePlan, ENTRY_SIZE, Entry, EntryState,
    GEOMETRY_OFFSET, HEAD_OFFSET, RingEnd, TAIL_OFFSET, key,
};
use stetfs_format::nvm_pair::RegionHeader;
use stetfs_format::width::{must_fit, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, BlockSize, Corrupt};
use stetfs_media::pmem::{Dirty, Durable};
use stetfs_media::{Cause, Class, Pmem, Tag};
use stetfs_scheme::{Result, SchemeError, recovery_cases};

recovery_cases! {
    LEFT:
    DAMAGED "a word of an entry, or an end of the ring, with a wrong checksum"
        => "error, nothing is written", "a word is stored at once, so it was damaged later";
    BEYOND "an entry of a block beyond the volume, or one that names a slot beyond the cache"
        => "error", "no mount wrote that";
}

const CONTROL: Tag = Tag::new(Class::Journal, Cause::Control);
const RECOVERY: Tag = Tag::new(Class::Journal, Cause::Recovery);

/// Bytes that are zeroed or read at a time.
const PIECE: u64 = 1 << 20;

pub(crate) struct CacheRegion {
    pub(crate) pmem: Arc<dyn Pmem>,
    pub(crate) geometry: CacheGeometry,
    /// The seed of all checksums in it.
    pub(crate) seed: u32,
}

impl CacheRegion {
    pub(super) fn new(pmem: Arc<dyn Pmem>, geometry: CacheGeometry, header: &RegionHeader) -> Self {
        Self {
            pmem,
            geometry,
            seed: header.seed(),
        }
    }

    /// Returns the geometry of a new region in this memory.
    pub(super) fn plan(
        pmem: &dyn Pmem,
        block_size: BlockSize,
        plan: CachePlan,
    ) -> Result<CacheGeometry> {
        CacheGeometry::of(pmem.size(), block_size.bytes_u32(), plan)
            .map_err(|e| SchemeError::Nvm(format!("{}: {e}", pmem.describe())))
    }

    /// Returns the geometry of the region in this memory, if it fits the scheme and the volume.
    pub(super) fn divided(
        pmem: &dyn Pmem,
        block_size: BlockSize,
        plan: CachePlan,
    ) -> Result<CacheGeometry> {
        let mut raw = [0; CACHE_GEOMETRY_LAYOUT.size];
        if pmem.size() >= GEOMETRY_OFFSET + usize_as_u64(raw.len()) {
            pmem.load(GEOMETRY_OFFSET, &mut raw, RECOVERY)?;
        }
        let geometry = CacheGeometry::decode(&raw)?;
        if geometry.size != pmem.size() || geometry.block_size != block_size.bytes_u32() {
            return Err(SchemeError::Nvm(format!(
                "{} has {} bytes, but the region in it {} with blocks of {}",
                pmem.describe(),
                pmem.size(),
                geometry.size,
                geometry.block_size
            )));
        }
        if geometry.is_for(plan) {
            Ok(geometry)
        } else {
            Err(Corrupt::NvmCache("the region is divided for another scheme").into())
        }
    }

    /// Stores the geometry and an empty cache. Durable after a fence.
    pub(super) fn prepare(&self) -> Result<()> {
        self.pmem
            .store_nt(GEOMETRY_OFFSET, &self.geometry.encode(), CONTROL)?;
        self.clear()
    }

    /// Stores an empty cache. Durable after a fence.
    pub(super) fn clear(&self) -> Result<()> {
        for word in [HEAD_OFFSET, TAIL_OFFSET] {
            self.store_end(word, RingEnd::FIRST, CONTROL)?;
        }
        // The ring and the metadata log too, because their old contents have numbers of
        // transactions, and numbers begin anew.
        let (mut at, end) = (self.geometry.ring_start(), self.geometry.entry_at(0));
        let zeros = vec![0; u64_as_usize(PIECE)];
        while at < end {
            let n = PIECE.min(end - at);
            self.pmem.store_nt(at, &zeros[..u64_as_usize(n)], CONTROL)?;
            at += n;
        }
        let mut free = Vec::with_capacity(u64_as_usize(PIECE));
        for entry in 0..self.geometry.blocks() {
            free.extend(Entry::free(self.key(entry)));
            if free.len() == u64_as_usize(PIECE) || entry + 1 == self.geometry.blocks() {
                self.pmem.store_nt(at, &free, CONTROL)?;
                at += usize_as_u64(free.len());
                free.clear();
            }
        }
        Ok(())
    }

    /// Returns the seed of the checksums in an entry.
    fn key(&self, entry: u32) -> u32 {
        key(self.seed, entry.into())
    }

    /// Reads Head or Tail, whichever is at `offset`.
    pub(crate) fn end(&self, offset: u64) -> Result<RingEnd> {
        let word = self.pmem.load_u64(offset, RECOVERY)?;
        Ok(RingEnd::from_word(word, self.end_key(offset)).inspect_err(|_| DAMAGED.reached())?)
    }

    /// Returns the word for Head or Tail.
    pub(crate) fn end_word(&self, offset: u64, end: RingEnd) -> u64 {
        end.to_word(self.end_key(offset))
    }

    /// Stores Head or Tail past the processor's cache, as part of `body`.
    pub(crate) fn store_end_in(
        &self,
        body: &mut Dirty<'_>,
        offset: u64,
        end: RingEnd,
        tag: Tag,
    ) -> Result<()> {
        let word = self.end_word(offset, end).to_le_bytes();
        Ok(body.store_nt(offset, &word, tag)?)
    }

    /// Stores Head or Tail past the processor's cache; durable after a fence.
    pub(crate) fn store_end(&self, offset: u64, end: RingEnd, tag: Tag) -> Result<()> {
        self.store_word(offset, self.end_word(offset, end), tag)
    }

    fn end_key(&self, offset: u64) -> u32 {
        // Beyond the keys of entries, whose numbers have 32 bits.
        key(self.seed, 1 << 32 | offset)
    }

    /// Stores a word past the processor's cache; durable after a fence.
    pub(crate) fn store_word(&self, offset: u64, word: u64, tag: Tag) -> Result<()> {
        Ok(self.pmem.store_nt(offset, &word.to_le_bytes(), tag)?)
    }

    pub(crate) fn fence(&self, cause: Cause) -> Result<()> {
        Ok(self.pmem.fence(cause)?)
    }

    /// Returns the offset of an entry's state word.
    pub(crate) fn state_at(&self, entry: u32) -> u64 {
        self.geometry.entry_at(entry) + Entry::STATE_OFFSET
    }

    /// Stores an entry's state word as part of `body`.
    pub(crate) fn store_state_in(
        &self,
        body: &mut Dirty<'_>,
        entry: u32,
        state: EntryState,
        tag: Tag,
    ) -> Result<()> {
        let word = self.state_word(entry, Some(state)).to_le_bytes();
        Ok(body.store_nt(self.state_at(entry), &word, tag)?)
    }

    /// Stores Head or Tail, which makes a durable body valid; durable when it returns.
    pub(crate) fn commit(&self, body: Durable<'_>, offset: u64, end: RingEnd) -> Result<()> {
        let tag = Tag::new(Class::Journal, Cause::CommitRecord);
        Ok(body.store_commit_word(offset, self.end_word(offset, end), tag)?)
    }

    /// Stores an entry's state word; durable after a fence.
    pub(crate) fn store_state(
        &self,
        entry: u32,
        state: Option<EntryState>,
        tag: Tag,
    ) -> Result<()> {
        self.store_word(self.state_at(entry), self.state_word(entry, state), tag)
    }

    /// Returns an entry's state word; with `None`, that of a free entry.
    pub(crate) fn state_word(&self, entry: u32, state: Option<EntryState>) -> u64 {
        EntryState::to_word(state, self.key(entry))
    }

    /// Stores the block number of an entry as part of `body`. It must be durable before the entry's
    /// state word names a block of the cache.
    pub(crate) fn store_home(
        &self,
        body: &mut Dirty<'_>,
        entry: u32,
        home: BlockNo,
        tag: Tag,
    ) -> Result<()> {
        let word = Entry::home_word(home, self.key(entry));
        Ok(body.store_u64(self.geometry.entry_at(entry), word, tag)?)
    }

    /// Reads a part of a block of the cache.
    pub(crate) fn read(&self, slot: u32, offset: usize, out: &mut [u8], tag: Tag) -> Result<()> {
        let at = self.geometry.slot_at(slot) + usize_as_u64(offset);
        Ok(self.pmem.load(at, out, tag)?)
    }

    /// Calls `each` for every entry that is not free.
    pub(super) fn entries(&self, mut each: impl FnMut(u32, Entry) -> Result<()>) -> Result<()> {
        let per_piece: u32 = must_fit(PIECE / ENTRY_SIZE);
        let mut raw = vec![0; u64_as_usize(PIECE)];
        let mut first = 0;
        while first < self.geometry.blocks() {
            let n = per_piece.min(self.geometry.blocks() - first);
            let raw = &mut raw[..u64_as_usize(u64::from(n) * ENTRY_SIZE)];
            self.pmem
                .load(self.geometry.entry_at(first), raw, RECOVERY)?;
            for (i, raw) in (first..).zip(raw.chunks_exact(u64_as_usize(ENTRY_SIZE))) {
                if let Some(entry) =
                    Entry::decode(raw, self.key(i)).inspect_err(|_| DAMAGED.reached())?
                {
                    each(i, entry)?;
                }
            }
            first += n;
        }
        Ok(())
    }
}
