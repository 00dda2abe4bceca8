//! The region of a cache in persistent memory that is also the journal, as in UBJ (Lee, Bahn, Noh,
//! "Unioning of the Buffer Cache and Journaling Layers with Non-volatile Memory", FAST 2013), Tinca
//! (Wei and others, SC 2017, as Spindle's paper tells it) and Spindle (Yan, Huang, Huang, "Spindle:
//! A Write-Optimized NVM Cache for Journaling File System", NPC 2019, figure 3).
//!
//! The region begins as every region beside a volume does ([`nvm_pair`](crate::nvm_pair)) and has,
//! at byte [`GEOMETRY_OFFSET`], a [`CacheGeometry`]. Two words that schemes change one at a time
//! have a cache line each: [`HEAD_OFFSET`], [`TAIL_OFFSET`]. Then, each at a multiple of 64:
//!
//! 1. the ring ([`RingSlot`]), as many slots as the largest transaction has blocks;
//! 2. the metadata log: its headers ([`SubBlock`]), then as many sub-blocks;
//! 3. the two halves of the log of changed bytes ([`ChangeLog`]);
//! 4. the [`Entry`]s, as many as there are blocks;
//! 5. at a multiple of 4,096, the blocks: those for data, then those for metadata.
//!
//! All integers are little-endian. A power cut never tears a word of 8 bytes. So what must change
//! at once lies in one word, and a record of two words names its transaction in both.

use crate::checksum::crc32c;
use crate::error::Corrupt;
use crate::layout::{Le16, Le32, Le64, layout, record};
use crate::num::{BlockNo, Tid};
use crate::width::{
    high16, high32, low8, low16, low32, must_fit, must_fit_u32, u64_as_usize, usize_as_u64,
};

layout! {
    /// A block of the cache: its home, and its state.
    pub CACHE_ENTRY_LAYOUT = "Cache entry", 16, {
        0x00 Le64, E_HOME = "e_home";
        0x08 Le64, E_STATE = "e_state";
    }
}

layout! {
    /// A block that a transaction changes, and what the cache had of it before.
    pub CACHE_RING_LAYOUT = "Cache ring slot", 16, {
        0x00 Le64, R_HOME = "r_home";
        0x08 Le64, R_STATE = "r_state";
    }
}

layout! {
    /// The bytes that a transaction changed in blocks of the cache.
    pub CACHE_CHANGES_LAYOUT = "Cache change log header", 16, {
        0x00 Le32, C_SEQUENCE = "c_sequence";
        0x04 Le32, C_BYTES = "c_bytes";
        0x08 Le32, C_CHECKSUM = "c_checksum";
    }
}

layout! {
    /// A run of changed bytes.
    pub CACHE_CHANGE_LAYOUT = "Cache change", 8, {
        0x00 Le32, H_SLOT = "h_slot";
        0x04 Le16, H_OFFSET = "h_offset";
        0x06 Le16, H_LENGTH = "h_length";
    }
}

/// Where the geometry lies.
pub const GEOMETRY_OFFSET: u64 = 128;
/// Where the word lies that marks the end behind the newest: see the scheme.
pub const HEAD_OFFSET: u64 = 256;
/// Where the word lies that marks the end behind the oldest: see the scheme.
pub const TAIL_OFFSET: u64 = 320;
/// Bytes of an entry.
pub const ENTRY_SIZE: u64 = usize_as_u64(CACHE_ENTRY_LAYOUT.size);
/// Bytes of a slot of the ring.
pub const RING_SLOT_SIZE: u64 = usize_as_u64(CACHE_RING_LAYOUT.size);
/// Bytes of a header in the metadata log.
pub const SUB_BLOCK_HEADER_SIZE: u64 = usize_as_u64(CACHE_SUB_BLOCK_LAYOUT.size);

const RING_OFFSET: u64 = 4096;
const BLOCKS_ALIGN: u64 = 4096;
const LINE: u64 = 64;
/// Bits of a block number in a ring slot's first word; a part of the sequence number is above.
const HOME_BITS: u32 = 48;
const HOME_MASK: u64 = (1 << HOME_BITS) - 1;
const SLOT_MASK: u32 = (1 << 24) - 1;
const CHECK_SHIFT: u32 = 24;
const DIRTY: u32 = 1 << 31;

/// CRC-7 (x^7 + x^3 + 1, as MMC has it). It finds every change of one or two bits in a word of 64
/// bits that includes the checksum.
fn crc7(start: u8, bytes: &[u8]) -> u8 {
    const TABLE: [u8; 256] = {
        let mut table = [0; 256];
        let mut n = 0;
        while n < 256 {
            let mut crc = low8(must_fit_u32(n));
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x80 != 0 {
                    crc << 1 ^ 0x12
                } else {
                    crc << 1
                };
                bit += 1;
            }
            table[n] = crc;
            n += 1;
        }
        table
    };
    // The seven bits are kept in the upper ones.
    let step = |crc: u8, byte: &u8| TABLE[usize::from(crc ^ byte)];
    bytes.iter().fold(start << 1, step) >> 1
}

/// A checksum of 16 bits.
fn check16(key: u32, bytes: &[u8]) -> u16 {
    let crc = crc32c(key, bytes);
    high16(crc) ^ low16(crc)
}

/// The seed of the checksums in the record with number `at`, or at place `at`. `seed` is the
/// region's.
pub fn key(seed: u32, at: u64) -> u32 {
    crc32c(seed, &at.to_le_bytes())
}

record! {
    /// How a region is divided.
    pub CACHE_GEOMETRY_LAYOUT = "Cache geometry", 40, {
        0x24 Le32, G_CHECKSUM = "g_checksum";
    }

    /// How a region is divided.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CacheGeometry from (raw) {
        /// Bytes of the region.
        0x00 Le64, size: u64 = "g_size";
        /// Bytes of a block.
        0x08 Le32, block_size: u32 = "g_block_size";
        /// Slots of the ring, a power of two; 0 without a ring.
        0x0c Le32, ring: u32 = "g_ring";
        /// Bytes of a sub-block.
        0x10 Le32, sub_block: u32 = "g_sub_block";
        /// Sub-blocks that the metadata log can take.
        0x14 Le32, sub_blocks: u32 = "g_sub_blocks";
        /// Blocks for data.
        0x18 Le32, data: u32 = "g_data";
        /// Blocks for metadata; with 0 of them, the others are for both.
        0x1c Le32, meta: u32 = "g_meta";
        /// Bytes of each half of the log of changed bytes, a multiple of 64; 0 without one.
        0x20 Le32, changes: u32 = "g_changes";
    }
}

/// What a scheme wants of its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// A ring.
    pub ring: bool,
    /// A cache for metadata and a log of sub-blocks: the bytes of a sub-block, and the thousandths
    /// of the region that both take.
    pub meta: Option<(u32, u32)>,
    /// A log of changed bytes.
    pub changes: bool,
}

impl CacheGeometry {
    /// The fewest blocks that there can be.
    pub const LEAST_BLOCKS: u32 = 256;
    /// The most blocks of a transaction, if the region has enough.
    pub const MOST_IN_TRANSACTION: u32 = 16 << 10;
    /// Each half of the log of changed bytes takes one part of the region in this many.
    const CHANGES_SHARE: u64 = 256;
    const MOST_CHANGES: u64 = 64 << 20;

    /// Divides a region of `size` bytes. A transaction has at most a quarter of the blocks, so that
    /// there are always others that can make room. The metadata log takes an eighth of what is for
    /// metadata.
    /// is for metadata.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: it is too small, or too large.
    pub fn of(size: u64, block_size: u32, plan: CachePlan) -> Result<Self, Corrupt> {
        let block = u64::from(block_size);
        let whole = size / (block + ENTRY_SIZE);
        let ring = if plan.ring {
            u64::from(Self::MOST_IN_TRANSACTION).min((whole / 4).next_power_of_two())
        } else {
            0
        };
        let (sub_block, meta_bytes) = plan.meta.map_or((0, 0), |(bytes, share)| {
            (bytes, size / 1000 * u64::from(share))
        });
        let sub_blocks = match sub_block {
            0 => 0,
            bytes => meta_bytes / 8 / (u64::from(bytes) + SUB_BLOCK_HEADER_SIZE),
        };
        let meta = (meta_bytes - meta_bytes / 8) / (block + ENTRY_SIZE);
        let mut geometry = Self {
            size,
            block_size,
            ring: must_fit(ring),
            sub_block,
            sub_blocks: u32::try_from(sub_blocks).unwrap_or(u32::MAX),
            data: 0,
            meta: u32::try_from(meta).unwrap_or(u32::MAX),
            changes: if plan.changes {
                let share = (size / Self::CHANGES_SHARE).min(Self::MOST_CHANGES);
                must_fit(share / LINE * LINE)
            } else {
                0
            },
        };
        // The entries before the blocks grow with their number, and the first block is aligned.
        let fixed = geometry.entries_at() + BLOCKS_ALIGN + LINE;
        let blocks = size.saturating_sub(fixed) / (block + ENTRY_SIZE);
        let data = blocks.saturating_sub(meta);
        if blocks < u64::from(Self::LEAST_BLOCKS) || data < blocks / 4 {
            return Err(Corrupt::NvmCache("the region is too small"));
        }
        if blocks >= u64::from(SLOT_MASK) {
            return Err(Corrupt::NvmCache("the region is too large"));
        }
        geometry.data = must_fit(data);
        Ok(geometry)
    }

    /// Whether the region has the parts that a scheme wants.
    pub fn is_for(&self, plan: CachePlan) -> bool {
        (self.ring > 0) == plan.ring
            && (self.sub_block > 0) == plan.meta.is_some()
            && (self.changes > 0) == plan.changes
    }

    /// Blocks of the cache.
    pub fn blocks(&self) -> u32 {
        self.data + self.meta
    }

    /// Where the ring begins.
    pub fn ring_start(&self) -> u64 {
        RING_OFFSET
    }

    /// Where slot `at` of the ring lies; positions count without end.
    pub fn ring_at(&self, at: u16) -> u64 {
        RING_OFFSET + u64::from(u32::from(at) % self.ring) * RING_SLOT_SIZE
    }

    /// Where the `n`th header of the metadata log lies.
    pub fn sub_block_header_at(&self, n: u32) -> u64 {
        self.sub_block_headers() + u64::from(n) * SUB_BLOCK_HEADER_SIZE
    }

    /// Where the `n`th sub-block of the metadata log lies.
    pub fn sub_block_at(&self, n: u32) -> u64 {
        let headers = u64::from(self.sub_blocks) * SUB_BLOCK_HEADER_SIZE;
        let first = self.sub_block_headers() + headers.next_multiple_of(LINE);
        first + u64::from(n) * u64::from(self.sub_block)
    }

    fn sub_block_headers(&self) -> u64 {
        RING_OFFSET + u64::from(self.ring) * RING_SLOT_SIZE
    }

    /// Where the half of the log of changed bytes begins that transaction `sequence` uses:
    /// transactions take turns.
    pub fn changes_at(&self, sequence: Tid) -> u64 {
        self.change_log() + u64::from(sequence.0 % 2) * u64::from(self.changes)
    }

    fn change_log(&self) -> u64 {
        self.sub_block_at(self.sub_blocks).next_multiple_of(LINE)
    }

    /// Where the entries begin.
    pub fn entries_at(&self) -> u64 {
        self.change_log() + 2 * u64::from(self.changes)
    }

    /// Where an entry lies.
    pub fn entry_at(&self, entry: u32) -> u64 {
        self.entries_at() + u64::from(entry) * ENTRY_SIZE
    }

    /// Where block `slot` of the cache lies.
    pub fn slot_at(&self, slot: u32) -> u64 {
        let first = self.entry_at(self.blocks()).next_multiple_of(BLOCKS_ALIGN);
        first + u64::from(slot) * u64::from(self.block_size)
    }

    /// Reads the geometry.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`].
    pub fn decode(raw: &[u8; CACHE_GEOMETRY_LAYOUT.size]) -> Result<Self, Corrupt> {
        let raw = &raw[..];
        if G_CHECKSUM.get(raw) != crc32c(!0, &raw[..G_CHECKSUM.0]) {
            return Err(Corrupt::NvmCache("the geometry's checksum is wrong"));
        }
        let found = Self::read_fields(raw);
        // The numbers are bounded first, so that nothing that is computed from them overflows.
        let is_bounded = matches!(found.block_size, 1024 | 2048 | 4096)
            && found.ring <= Self::MOST_IN_TRANSACTION
            && (found.ring == 0 || found.ring.is_power_of_two())
            && (found.sub_block == 0 || found.block_size.is_multiple_of(found.sub_block))
            && (found.sub_block > 0) == (found.sub_blocks > 0)
            && u64::from(found.changes).is_multiple_of(LINE);
        let fits = found.data.checked_add(found.meta).is_some_and(|blocks| {
            (Self::LEAST_BLOCKS..SLOT_MASK).contains(&blocks) && found.slot_at(blocks) <= found.size
        });
        if is_bounded && fits {
            Ok(found)
        } else {
            Err(Corrupt::NvmCache("the geometry cannot be"))
        }
    }

    /// The geometry as bytes.
    pub fn encode(&self) -> [u8; CACHE_GEOMETRY_LAYOUT.size] {
        let mut raw = [0; CACHE_GEOMETRY_LAYOUT.size];
        self.write_fields(&mut raw);
        let crc = crc32c(!0, &raw[..G_CHECKSUM.0]);
        G_CHECKSUM.put(&mut raw, crc);
        raw
    }
}

/// The word of an entry that changes alone: which block of the cache it is, whether home has other
/// content, and what the scheme adds.
///
/// | bits | what |
/// |---|---|
/// | 0-23 | the block of the cache, plus 1; 0: the entry is free |
/// | 24-30 | CRC-7 of the word with zeros here, begun with the region's and the entry's own |
/// | 31 | home has other content (Tinca's *modified*, UBJ's *frozen*) |
/// | 32-63 | UBJ: the transaction that froze it. Tinca: the block before this one, as bits 0-30, and in bit 63 the role *log*. Spindle: 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryState {
    /// The block of the cache.
    pub slot: u32,
    /// Home has other content.
    pub is_dirty: bool,
    /// The scheme's own.
    pub high: u32,
}

impl EntryState {
    /// The state of a clean block in `slot`.
    pub fn clean(slot: u32) -> Self {
        Self {
            slot,
            is_dirty: false,
            high: 0,
        }
    }

    /// The word, which is stored in one piece; `None` makes a free entry. `key` is the entry's
    /// ([`key`]).
    pub fn to_word(state: Option<Self>, key: u32) -> u64 {
        let word = state.map_or(0, |state| {
            u64::from(state.low()) | u64::from(state.high) << 32
        });
        word | u64::from(crc7(low8(key) & 0x7f, &word.to_le_bytes())) << CHECK_SHIFT
    }

    /// Reads that word; `None` when the entry is free.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: it is not what was stored.
    pub fn from_word(word: u64, key: u32) -> Result<Option<Self>, Corrupt> {
        let found = Self::from_low(low32(word)).map(|state| Self {
            high: high32(word),
            ..state
        });
        if Self::to_word(found, key) == word {
            Ok(found)
        } else {
            Err(Corrupt::NvmCache("an entry has a wrong checksum"))
        }
    }

    /// The lower half of the word, without the checksum: what the ring keeps of it.
    fn low(self) -> u32 {
        (self.slot + 1) | if self.is_dirty { DIRTY } else { 0 }
    }

    /// Reads the lower half.
    fn from_low(low: u32) -> Option<Self> {
        Some(Self {
            slot: (low & SLOT_MASK).checked_sub(1)?,
            is_dirty: low & DIRTY != 0,
            high: 0,
        })
    }
}

/// An entry: which block of the volume it is for, and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The block of the volume.
    pub home: BlockNo,
    /// Its state.
    pub state: EntryState,
}

impl Entry {
    /// Reads an entry; `None` when it is free. `key` is the entry's ([`key`]).
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: it is not what was stored.
    pub fn decode(raw: &[u8], key: u32) -> Result<Option<Self>, Corrupt> {
        let Some(state) = EntryState::from_word(E_STATE.get(raw), key)? else {
            return Ok(None);
        };
        let home = BlockNo(E_HOME.get(raw) & HOME_MASK);
        if Self::home_word(home, key) == E_HOME.get(raw) {
            Ok(Some(Self { home, state }))
        } else {
            Err(Corrupt::NvmCache(
                "the block of an entry has a wrong checksum",
            ))
        }
    }

    /// A free entry. Each of its words is valid by itself, because the words that replace them may
    /// not become durable together.
    pub fn free(key: u32) -> [u8; u64_as_usize(ENTRY_SIZE)] {
        let mut raw = [0; u64_as_usize(ENTRY_SIZE)];
        E_HOME.put(&mut raw, Self::home_word(BlockNo(0), key));
        E_STATE.put(&mut raw, EntryState::to_word(None, key));
        raw
    }

    /// The word that names the block of the volume.
    ///
    /// # Panics
    /// The block number has more than 48 bits.
    pub fn home_word(home: BlockNo, key: u32) -> u64 {
        assert_eq!(home.0 >> HOME_BITS, 0, "ext4 has 48 bits");
        home.0 | u64::from(check16(key, &home.0.to_le_bytes())) << HOME_BITS
    }

    /// Offset in an entry of the word that changes alone.
    pub const STATE_OFFSET: u64 = usize_as_u64(E_STATE.0);
}

/// A block that a transaction changes, and what its entry was before. Both words name their
/// transaction, so that a slot of an earlier transaction, or half a slot, is not taken for one of
/// this transaction. The second word has a CRC-7, as an entry's has, but over both words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSlot {
    /// The block of the volume.
    pub home: BlockNo,
    /// What the cache had of it; `None` when it was not in the cache.
    pub before: Option<EntryState>,
}

impl RingSlot {
    /// The slot as bytes; `seed` is the region's.
    ///
    /// # Panics
    /// The block number has more than 48 bits.
    pub fn encode(&self, sequence: Tid, seed: u32) -> [u8; u64_as_usize(RING_SLOT_SIZE)] {
        assert_eq!(self.home.0 >> HOME_BITS, 0, "ext4 has 48 bits");
        let mut raw = [0; u64_as_usize(RING_SLOT_SIZE)];
        let before = self.before.map_or(0, EntryState::low);
        R_HOME.put(&mut raw, self.home.0 | u64::from(sequence.0) << HOME_BITS);
        let state = u64::from(before) | u64::from(sequence.0) << 32;
        R_STATE.put(&mut raw, state);
        let check = u64::from(crc7(low8(seed) & 0x7f, &raw)) << CHECK_SHIFT;
        R_STATE.put(&mut raw, state | check);
        raw
    }

    /// Reads a slot; `None` when it does not belong to transaction `sequence`.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: it belongs to it, but is not what was stored.
    pub fn decode(raw: &[u8], sequence: Tid, seed: u32) -> Result<Option<Self>, Corrupt> {
        let (home, state) = (R_HOME.get(raw), R_STATE.get(raw));
        if home >> HOME_BITS != u64::from(low16(sequence.0)) || state >> 32 != u64::from(sequence.0)
        {
            return Ok(None);
        }
        let found = Self {
            home: BlockNo(home & HOME_MASK),
            before: EntryState::from_low(low32(state)),
        };
        if found.encode(sequence, seed) == raw {
            Ok(Some(found))
        } else {
            Err(Corrupt::NvmCache("a slot of the ring has a wrong checksum"))
        }
    }
}

/// Where a ring begins or ends, and the last transaction that is done. Both are stored in one word,
/// with a checksum of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingEnd {
    /// The position, counted without end.
    pub at: u16,
    /// The transaction.
    pub sequence: Tid,
}

impl RingEnd {
    /// Where an unused ring begins.
    pub const FIRST: Self = Self {
        at: 0,
        sequence: Tid(0),
    };

    /// The word; `key` is that of the place where it lies ([`key`]).
    pub fn to_word(self, key: u32) -> u64 {
        let word = u64::from(self.at) | u64::from(self.sequence.0) << 32;
        word | u64::from(check16(key, &word.to_le_bytes())) << 16
    }

    /// Reads that word.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: it is not what was stored.
    pub fn from_word(word: u64, key: u32) -> Result<Self, Corrupt> {
        let found = Self {
            at: low16(low32(word)),
            sequence: Tid(high32(word)),
        };
        if found.to_word(key) == word {
            Ok(found)
        } else {
            Err(Corrupt::NvmCache("head or tail has a wrong checksum"))
        }
    }
}

record! {
    /// A part of a metadata block as it was before a transaction.
    pub CACHE_SUB_BLOCK_LAYOUT = "Cache metadata log header", 16, {
        0x0c Le32, S_CHECKSUM = "s_checksum";
    }

    /// The header of a part of a metadata block as it was before a transaction.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SubBlock from (raw) {
        /// The block of the cache.
        0x00 Le32, slot: u32 = "s_slot";
        /// Which part of it.
        0x04 Le16, index: u16 = "s_index";
        /// The transaction.
        0x08 Le32, sequence: Tid = "s_sequence";
    }
}

impl SubBlock {
    /// The header as bytes, with a checksum over it and `content` that begins with `seed`.
    pub fn encode(&self, seed: u32, content: &[u8]) -> [u8; u64_as_usize(SUB_BLOCK_HEADER_SIZE)] {
        let mut raw = [0; u64_as_usize(SUB_BLOCK_HEADER_SIZE)];
        self.write_fields(&mut raw);
        let crc = crc32c(crc32c(seed, &raw[..S_CHECKSUM.0]), content);
        S_CHECKSUM.put(&mut raw, crc);
        raw
    }

    /// Reads a header; `None` when header and content do not belong together.
    pub fn decode(raw: &[u8], seed: u32, content: &[u8]) -> Option<Self> {
        let crc = crc32c(crc32c(seed, &raw[..S_CHECKSUM.0]), content);
        (S_CHECKSUM.get(raw) == crc).then(|| Self::read_fields(raw))
    }
}

/// The log of changed bytes of a transaction, while it is being written or read: a header, then
/// changes, each with a header of its own and filled up to a multiple of 8 bytes.
///
/// A transaction's log is complete before the word is stored that says that the transaction is
/// durable. The transaction after the next one uses its half again.
#[derive(Clone, Debug, Default)]
pub struct ChangeLog {
    raw: Vec<u8>,
}

/// Changed bytes of a block of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The block.
    pub slot: u32,
    /// Where in it they begin.
    pub offset: usize,
    /// Their new content.
    pub bytes: &'a [u8],
}

impl ChangeLog {
    /// Bytes of the log's header.
    pub const HEADER_SIZE: usize = CACHE_CHANGES_LAYOUT.size;

    /// Bytes that a change of `bytes` bytes takes in the log.
    pub fn size_of(bytes: usize) -> usize {
        CACHE_CHANGE_LAYOUT.size + bytes.next_multiple_of(8)
    }

    /// Makes a log without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Bytes of the log, with the header.
    pub fn size(&self) -> usize {
        self.raw.len().max(Self::HEADER_SIZE)
    }

    /// Adds a change.
    pub fn add(&mut self, change: Change<'_>) {
        self.raw.resize(self.size(), 0);
        let mut header = [0; CACHE_CHANGE_LAYOUT.size];
        H_SLOT.put(&mut header, change.slot);
        H_OFFSET.put(&mut header, must_fit(change.offset));
        H_LENGTH.put(&mut header, must_fit(change.bytes.len()));
        self.raw.extend_from_slice(&header);
        self.raw.extend_from_slice(change.bytes);
        self.raw.resize(self.raw.len().next_multiple_of(8), 0);
    }

    /// The log as bytes, with a checksum that begins with `seed`.
    pub fn encode(&mut self, seed: u32, sequence: Tid) -> &[u8] {
        self.raw.resize(self.size(), 0);
        let (header, changes) = self.raw.split_at_mut(Self::HEADER_SIZE);
        C_SEQUENCE.put(header, sequence.0);
        C_BYTES.put(header, must_fit(changes.len()));
        let crc = crc32c(crc32c(seed, &header[..C_CHECKSUM.0]), changes);
        C_CHECKSUM.put(header, crc);
        &self.raw
    }

    /// How many bytes of changes follow the header; 0 when it is not of transaction `sequence`.
    pub fn length(header: &[u8; Self::HEADER_SIZE], sequence: Tid) -> u32 {
        if C_SEQUENCE.get(header) == sequence.0 {
            C_BYTES.get(header)
        } else {
            0
        }
    }

    /// Reads a log: the header and the changes behind it.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: header and changes do not belong together.
    pub fn decode(raw: Vec<u8>, seed: u32) -> Result<Self, Corrupt> {
        let (header, changes) = raw
            .split_at_checked(Self::HEADER_SIZE)
            .ok_or(Corrupt::NvmCache("the log of changed bytes is too short"))?;
        let crc = crc32c(crc32c(seed, &header[..C_CHECKSUM.0]), changes);
        if C_CHECKSUM.get(header) == crc {
            Ok(Self { raw })
        } else {
            Err(Corrupt::NvmCache(
                "the log of changed bytes has a wrong checksum",
            ))
        }
    }

    /// Iterates over the changes.
    ///
    /// # Errors
    /// [`Corrupt::NvmCache`]: a change is longer than what is left.
    pub fn changes(&self) -> impl Iterator<Item = Result<Change<'_>, Corrupt>> {
        let mut left = self.raw.get(Self::HEADER_SIZE..).unwrap_or_default();
        std::iter::from_fn(move || {
            if left.is_empty() {
                return None;
            }
            let change = Change::decode(&mut left);
            if change.is_err() {
                left = &[];
            }
            Some(change)
        })
    }
}

impl<'a> Change<'a> {
    /// Takes the first change off `left`.
    fn decode(left: &mut &'a [u8]) -> Result<Self, Corrupt> {
        const SHORT: Corrupt = Corrupt::NvmCache("a change in the log is cut short");
        let (header, behind) = left
            .split_at_checked(CACHE_CHANGE_LAYOUT.size)
            .ok_or(SHORT)?;
        let length = usize::from(H_LENGTH.get(header));
        let padded = length.next_multiple_of(8);
        let (bytes, behind) = behind.split_at_checked(padded).ok_or(SHORT)?;
        *left = behind;
        Ok(Self {
            slot: H_SLOT.get(header),
            offset: usize::from(H_OFFSET.get(header)),
            bytes: &bytes[..length],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPINDLE: CachePlan = CachePlan {
        ring: true,
        meta: Some((256, 125)),
        changes: false,
    };

    #[test]
    fn regions_of_all_sizes_hold_what_they_are_divided_into() {
        let ubj = CachePlan {
            ring: false,
            meta: None,
            changes: true,
        };
        for plan in [ubj, SPINDLE] {
            for size in (600 << 10..8 << 20)
                .step_by(64 << 10)
                .chain([8 << 30, 40 << 30])
            {
                for block_size in [1024, 4096] {
                    let Ok(geometry) = CacheGeometry::of(size, block_size, plan) else {
                        // Too small, or more blocks than an entry can name.
                        let blocks = size / u64::from(block_size);
                        assert!(size < 2 << 20 || blocks > u64::from(SLOT_MASK));
                        continue;
                    };
                    assert!(geometry.slot_at(geometry.blocks()) <= size);
                    assert!(geometry.slot_at(0) >= geometry.entry_at(geometry.blocks()));
                    assert_eq!(CacheGeometry::decode(&geometry.encode()), Ok(geometry));
                }
            }
        }
    }

    #[test]
    fn a_log_of_changes_is_read_as_it_was_written_and_never_when_damaged() {
        let (short, long) = ([1; 13], [2; 4096]);
        let change = |slot, offset, bytes| Change {
            slot,
            offset,
            bytes,
        };
        let all = [
            change(7, 4083, &short[..]),
            change(8, 0, &long),
            change(9, 5, &[]),
        ];
        let mut log = ChangeLog::new();
        let mut size = ChangeLog::HEADER_SIZE;
        for change in all {
            log.add(change);
            size += ChangeLog::size_of(change.bytes.len());
        }
        assert_eq!(log.size(), size);
        let raw = log.encode(5, Tid(3)).to_vec();
        let header = raw[..ChangeLog::HEADER_SIZE].try_into().expect("a header");
        let length = ChangeLog::length(header, Tid(3)) as usize;
        assert_eq!(ChangeLog::HEADER_SIZE + length, raw.len());
        assert_eq!(ChangeLog::length(header, Tid(4)), 0);
        let read = ChangeLog::decode(raw.clone(), 5).expect("it is whole");
        let read: Result<Vec<_>, _> = read.changes().collect();
        assert_eq!(read.expect("all are whole"), all);
        for at in [4, 20, raw.len() - 1] {
            let mut damaged = raw.clone();
            damaged[at] ^= 1;
            assert!(ChangeLog::decode(damaged, 5).is_err(), "byte {at}");
        }
        // A right checksum does not make a log right: an attacker can compute it.
        let mut cut = ChangeLog {
            raw: raw[..raw.len() - 16].to_vec(),
        };
        let cut =
            ChangeLog::decode(cut.encode(5, Tid(3)).to_vec(), 5).expect("it has its checksum");
        assert!(cut.changes().any(|change| change.is_err()));
    }

    #[test]
    fn half_a_ring_slot_is_none() {
        let slot = |home, slot| RingSlot {
            home: BlockNo(home),
            before: Some(EntryState::clean(slot)),
        };
        let (old, new) = (slot(5, 1).encode(Tid(7), 3), slot(6, 2).encode(Tid(8), 3));
        let mixed = |first: &[u8], second: &[u8]| [&first[..8], &second[8..]].concat();
        assert_eq!(RingSlot::decode(&new, Tid(8), 3), Ok(Some(slot(6, 2))));
        for torn in [mixed(&old, &new), mixed(&new, &old), old.to_vec()] {
            assert_eq!(RingSlot::decode(&torn, Tid(8), 3), Ok(None));
        }
    }

    /// The checksums are linear, so a flip that shows in one word shows in every word.
    #[test]
    fn every_flipped_bit_is_noticed() {
        let key = key(17, 4);
        let state = Some(EntryState {
            slot: 77,
            is_dirty: true,
            high: 1 << 31 | 5,
        });
        let mut entry = Entry::free(key);
        E_HOME.put(&mut entry, Entry::home_word(BlockNo(12345), key));
        E_STATE.put(&mut entry, EntryState::to_word(state, key));
        let found = Entry::decode(&entry, key).expect("it is whole");
        assert_eq!(found.map(|entry| entry.state), state);
        assert_eq!(Entry::decode(&Entry::free(key), key), Ok(None));
        let end = RingEnd {
            at: 65_535,
            sequence: Tid(9),
        };
        let word = end.to_word(key);
        assert_eq!(RingEnd::from_word(word, key), Ok(end));
        let slot = RingSlot {
            home: BlockNo(99),
            before: None,
        };
        let slot = slot.encode(Tid(1), 17);
        for a in 0..64 {
            assert!(RingEnd::from_word(word ^ 1 << a, key).is_err(), "bit {a}");
            for b in 0..64 {
                let flips = 1 << a | 1 << b;
                let state = EntryState::to_word(state, key) ^ flips;
                assert!(EntryState::from_word(state, key).is_err(), "{a} {b}");
                let free = EntryState::to_word(None, key) ^ flips;
                assert!(EntryState::from_word(free, key).is_err(), "{a} {b}");
            }
        }
        for bit in 0..128 {
            let (mut entry, mut slot) = (entry, slot);
            entry[bit / 8] ^= 1 << (bit % 8);
            assert!(Entry::decode(&entry, key).is_err(), "bit {bit}");
            slot[bit / 8] ^= 1 << (bit % 8);
            let found = RingSlot::decode(&slot, Tid(1), 17);
            assert!(!matches!(found, Ok(Some(_))), "bit {bit}");
        }
    }
}
