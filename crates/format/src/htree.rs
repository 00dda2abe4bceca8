//! Interior blocks of hash trees: the root in a directory's block 0 and the nodes
//! below it. Leaves are ordinary [directory blocks](crate::dirent).
//!
//! To a program without hash trees every such block looks like a directory block: the root like "."
//! and a ".." that fills it, a node like one free entry. Behind that disguise lie pairs of hash and
//! logical block, sorted by hash. The hash of the first pair is not stored: it is 0, and its place
//! holds `limit` and `count`. An odd hash says that names of that hash begin in the block before.
//!
//! Source: kernel `Documentation/filesystems/ext4/directory.rst` ("Hash Tree Directories").

use std::ops::Range;

use crate::checksum::crc32c;
use crate::dirent::{self, rec_len};
use crate::dirhash::HashVersion;
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::layout::{Le16, Le32, U8, layout};
use crate::num::{InodeNo, LBlock};
use crate::width::{must_fit, must_fit_u16};

/// Bytes of the checksum behind the last possible pair.
const TAIL_SIZE: usize = 8;
const PAIR_SIZE: usize = 8;
/// Where the pairs of a root begin: behind ".", ".." and the info.
const ROOT_PAIRS: usize = 32;
/// Where the names of "." and ".." are in a root.
const DOT_NAME: usize = 8;
const DOTDOT_NAME: usize = 20;
/// Where the pairs of a node begin: behind the free entry.
const NODE_PAIRS: usize = 8;
const INFO_LENGTH: u8 = 8;
/// Bytes of "." and "..".
const DOTS_SIZE: usize = rec_len(1) + rec_len(2);

layout! {
    /// The root of a hash tree, up to the pairs.
    pub DX_ROOT_LAYOUT = "Hash tree root", ROOT_PAIRS + 8, {
        0x00 Le32, DOT_INODE = "dot.inode";
        0x04 Le16, DOT_REC_LEN = "dot.rec_len";
        0x06 U8, DOT_NAME_LEN = "dot.name_len";
        0x0c Le32, DOTDOT_INODE = "dotdot.inode";
        0x10 Le16, DOTDOT_REC_LEN = "dotdot.rec_len";
        0x12 U8, DOTDOT_NAME_LEN = "dotdot.name_len";
        0x18 Le32, RESERVED_ZERO = "info.reserved_zero";
        0x1c U8, HASH_VERSION = "info.hash_version";
        0x1d U8, INFO_LENGTH_FIELD = "info.info_length";
        0x1e U8, INDIRECT_LEVELS = "info.indirect_levels";
        0x1f U8, UNUSED_FLAGS = "info.unused_flags";
        0x20 Le16, ROOT_LIMIT = "limit";
        0x22 Le16, ROOT_COUNT = "count";
        0x24 Le32, ROOT_BLOCK = "block";
    }
}

layout! {
    /// A node of a hash tree, up to the first pair.
    pub DX_NODE_LAYOUT = "Hash tree node", NODE_PAIRS + 8, {
        0x00 Le32, FAKE_INODE = "fake.inode";
        0x04 Le16, FAKE_REC_LEN = "fake.rec_len";
        0x06 U8, FAKE_NAME_LEN = "fake.name_len";
        0x07 U8, FAKE_FILE_TYPE = "fake.file_type";
        0x08 Le16, NODE_LIMIT = "limit";
        0x0a Le16, NODE_COUNT = "count";
        0x0c Le32, NODE_BLOCK = "block";
    }
}

layout! {
    /// A pair. In the place of the first one's hash are `limit` and `count`.
    pub DX_ENTRY_LAYOUT = "Hash tree entry", PAIR_SIZE, {
        0x0 Le32, HASH = "hash";
        0x4 Le32, BLOCK = "block";
    }
}

layout! {
    /// The checksum, behind the last possible pair.
    pub DX_TAIL_LAYOUT = "Hash tree tail", TAIL_SIZE, {
        0x0 Le32, TAIL_RESERVED = "dt_reserved";
        0x4 Le32, TAIL_CHECKSUM = "dt_checksum";
    }
}

// The first pair of root and node: `limit` and `count` instead of a hash.
const LIMIT: Le16 = Le16(0);
const COUNT: Le16 = Le16(2);
const _: () = assert!(ROOT_LIMIT.0 == ROOT_PAIRS + LIMIT.0 && ROOT_COUNT.0 == ROOT_PAIRS + COUNT.0);
const _: () = assert!(NODE_LIMIT.0 == NODE_PAIRS + LIMIT.0 && NODE_COUNT.0 == NODE_PAIRS + COUNT.0);
const _: () = assert!(ROOT_BLOCK.0 == ROOT_PAIRS + BLOCK.0 && NODE_BLOCK.0 == NODE_PAIRS + BLOCK.0);

/// A pair: the block of the names whose hash is `hash` or above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxEntry {
    /// The lowest hash of the block; 0 for the first pair. The lowest bit says that names
    /// of this hash begin in the block before.
    pub hash: u32,
    /// The block of the directory.
    pub block: LBlock,
}

/// What the root says of the whole tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxInfo {
    /// The hash function.
    pub hash_version: HashVersion,
    /// Levels of nodes between root and leaves: 0 or 1, with `large_dir` 2.
    pub indirect_levels: u8,
}

/// Levels of nodes that a tree may have between root and leaves.
pub const fn max_indirect_levels(geometry: &Geometry) -> u8 {
    if geometry.largedir { 2 } else { 1 }
}

/// Pairs that a root holds.
pub const fn root_limit(geometry: &Geometry) -> u16 {
    limit(ROOT_PAIRS, geometry)
}

/// Pairs that a node holds.
pub const fn node_limit(geometry: &Geometry) -> u16 {
    limit(NODE_PAIRS, geometry)
}

const fn limit(pairs: usize, geometry: &Geometry) -> u16 {
    let tail = if geometry.metadata_csum { TAIL_SIZE } else { 0 };
    must_fit_u16((geometry.block_size() - pairs - tail) / PAIR_SIZE)
}

/// Whether a block of an indexed directory, other than its first, is a node: it looks like one free
/// entry over the whole block, checksum included.
pub fn looks_like_node(raw: &[u8]) -> bool {
    FAKE_INODE.get(raw) == 0
        && usize::from(FAKE_REC_LEN.get(raw)) == raw.len()
        && FAKE_NAME_LEN.get(raw) == 0
}

/// A root or a node.
#[derive(Clone, Copy, Debug)]
pub struct DxBlock<'a> {
    raw: &'a [u8],
    pairs: usize,
    count: u16,
    limit: u16,
}

impl<'a> DxBlock<'a> {
    /// The root, in block 0 of an indexed directory.
    ///
    /// It is valid if and only if: 1. "." and ".." stand where they must; 2. hash function
    /// and info length are known, no flag is set, and the tree is not too high; 3. `limit`
    /// is what the block has room for and `count` at least 1 and not above it. The checksum
    /// is checked by [`check_checksum`](Self::check_checksum), the order by
    /// [`check_order`](Self::check_order).
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Dx`.
    pub fn root(raw: &'a [u8], geometry: &Geometry) -> Result<(Self, DxInfo), Corrupt> {
        check_length(raw, geometry)?;
        if usize::from(DOT_REC_LEN.get(raw)) != rec_len(1)
            || usize::from(DOTDOT_REC_LEN.get(raw)) != raw.len() - rec_len(1)
            || DOT_NAME_LEN.get(raw) != 1
            || DOTDOT_NAME_LEN.get(raw) != 2
            || raw[DOT_NAME] != b'.'
            || raw[DOTDOT_NAME..][..2] != *b".."
        {
            return Err(Corrupt::DxDots);
        }
        if INFO_LENGTH_FIELD.get(raw) != INFO_LENGTH || RESERVED_ZERO.get(raw) != 0 {
            return Err(Corrupt::DxInfoLength(INFO_LENGTH_FIELD.get(raw)));
        }
        let code = HASH_VERSION.get(raw);
        let hash_version = HashVersion::of_code(code).ok_or(Corrupt::DxHashVersion(code))?;
        if UNUSED_FLAGS.get(raw) & 1 != 0 {
            return Err(Corrupt::DxFlags(UNUSED_FLAGS.get(raw)));
        }
        let indirect_levels = INDIRECT_LEVELS.get(raw);
        if indirect_levels > max_indirect_levels(geometry) {
            return Err(Corrupt::DxLevels(indirect_levels));
        }
        let block = Self::pairs(raw, ROOT_PAIRS, root_limit(geometry))?;
        Ok((
            block,
            DxInfo {
                hash_version,
                indirect_levels,
            },
        ))
    }

    /// A node.
    ///
    /// It is valid if and only if it [looks like one](looks_like_node) and its `limit` and
    /// `count` are as in a [root](Self::root).
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Dx`.
    pub fn node(raw: &'a [u8], geometry: &Geometry) -> Result<Self, Corrupt> {
        check_length(raw, geometry)?;
        if !looks_like_node(raw) {
            return Err(Corrupt::DxNode);
        }
        Self::pairs(raw, NODE_PAIRS, node_limit(geometry))
    }

    fn pairs(raw: &'a [u8], pairs: usize, expected: u16) -> Result<Self, Corrupt> {
        let (limit, count) = (LIMIT.get(&raw[pairs..]), COUNT.get(&raw[pairs..]));
        if limit != expected {
            return Err(Corrupt::DxLimit { limit, expected });
        }
        if count == 0 || count > limit {
            return Err(Corrupt::DxCount { count, limit });
        }
        Ok(Self {
            raw,
            pairs,
            count,
            limit,
        })
    }

    /// The parent that a root's ".." names.
    ///
    /// # Panics
    /// When this is not a root.
    pub fn dotdot(&self) -> InodeNo {
        assert_eq!(self.pairs, ROOT_PAIRS, "not a root");
        InodeNo(DOTDOT_INODE.get(self.raw))
    }

    /// Checks the checksum; `seed` is the directory's [`csum_seed`](crate::Inode::csum_seed).
    ///
    /// # Errors
    /// [`Corrupt::DxChecksum`].
    pub fn check_checksum(&self, seed: u32, geometry: &Geometry) -> Result<(), Corrupt> {
        if !geometry.metadata_csum {
            return Ok(());
        }
        let tail = self.pairs + usize::from(self.limit) * PAIR_SIZE;
        let stored = TAIL_CHECKSUM.get(&self.raw[tail..]);
        let computed = checksum_of(self.raw, self.pairs, self.count, self.limit, seed);
        if stored == computed {
            Ok(())
        } else {
            Err(Corrupt::DxChecksum { stored, computed })
        }
    }

    /// Checks that the hashes rise.
    ///
    /// # Errors
    /// [`Corrupt::DxOrder`].
    pub fn check_order(&self) -> Result<(), Corrupt> {
        for index in 1..self.count {
            if self.entry(index).hash < self.entry(index - 1).hash {
                return Err(Corrupt::DxOrder { index });
            }
        }
        Ok(())
    }

    /// Pairs in use: at least 1.
    #[inline]
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// Pairs that fit.
    #[inline]
    pub const fn limit(&self) -> u16 {
        self.limit
    }

    /// Whether no further pair fits.
    #[inline]
    pub const fn is_full(&self) -> bool {
        self.count == self.limit
    }

    /// The pair at `index`.
    ///
    /// # Panics
    /// When there is no such pair.
    #[inline]
    pub fn entry(&self, index: u16) -> DxEntry {
        assert!(
            index < self.count,
            "hash tree entry {index} of {}",
            self.count
        );
        let raw = &self.raw[self.pairs + usize::from(index) * PAIR_SIZE..];
        DxEntry {
            hash: if index == 0 { 0 } else { HASH.get(raw) },
            // The upper bits are reserved, as in the kernel's dx_get_block().
            block: LBlock(BLOCK.get(raw) & 0x0fff_ffff),
        }
    }

    /// Returns the index of the last pair whose hash is `hash` or below: names of that hash belong
    /// there.
    #[inline]
    pub fn search(&self, hash: u32) -> u16 {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle).hash <= hash {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low - 1
    }

    /// All pairs.
    pub fn entries(&self) -> impl Iterator<Item = DxEntry> + use<'a> {
        let block = *self;
        (0..self.count).map(move |index| block.entry(index))
    }
}

fn check_length(raw: &[u8], geometry: &Geometry) -> Result<(), Corrupt> {
    let (needed, found) = (geometry.block_size(), raw.len());
    if needed == found {
        return Ok(());
    }
    Err(Corrupt::TooShort {
        record: "hash tree block",
        needed,
        found,
    })
}

fn checksum_of(raw: &[u8], pairs: usize, count: u16, limit: u16, seed: u32) -> u32 {
    let tail = pairs + usize::from(limit) * PAIR_SIZE;
    let mut crc = crc32c(seed, &raw[..pairs + usize::from(count) * PAIR_SIZE]);
    crc = crc32c(
        crc,
        &raw[tail + TAIL_RESERVED.0..tail + TAIL_RESERVED.end()],
    );
    crc32c(crc, &[0; 4])
}

/// Edits a scratch copy of a root or node. The checksum is stale until
/// [`write_checksum`](Self::write_checksum).
#[derive(Debug)]
pub struct DxBlockMut<'a> {
    raw: &'a mut [u8],
    pairs: usize,
}

impl<'a> DxBlockMut<'a> {
    /// Begins a root over "." and "..", with one pair.
    ///
    /// # Panics
    /// When `raw` is not of the block size.
    pub fn init_root(
        raw: &'a mut [u8],
        ino: InodeNo,
        parent: InodeNo,
        hash_version: HashVersion,
        first: LBlock,
        geometry: &Geometry,
    ) -> Self {
        dirent::init_dot_dotdot(raw, ino, parent, geometry);
        // A root has no checksum of the kind that leaves have.
        raw[DOTS_SIZE..].fill(0);
        DOTDOT_REC_LEN.put(raw, must_fit(geometry.block_size() - rec_len(1)));
        HASH_VERSION.put(raw, hash_version.code());
        INFO_LENGTH_FIELD.put(raw, INFO_LENGTH);
        Self::init_pairs(raw, ROOT_PAIRS, root_limit(geometry), first)
    }

    /// Begins a node with one pair, whatever the block held.
    ///
    /// # Panics
    /// When `raw` is not of the block size.
    pub fn init_node(raw: &'a mut [u8], first: LBlock, geometry: &Geometry) -> Self {
        assert_eq!(raw.len(), geometry.block_size());
        raw.fill(0);
        FAKE_REC_LEN.put(raw, must_fit(geometry.block_size()));
        Self::init_pairs(raw, NODE_PAIRS, node_limit(geometry), first)
    }

    fn init_pairs(raw: &'a mut [u8], pairs: usize, limit: u16, first: LBlock) -> Self {
        LIMIT.put(&mut raw[pairs..], limit);
        COUNT.put(&mut raw[pairs..], 1);
        BLOCK.put(&mut raw[pairs..], first.0);
        Self { raw, pairs }
    }

    /// Edits a root that was checked by [`DxBlock::root`].
    pub fn edit_root(raw: &'a mut [u8]) -> Self {
        Self {
            raw,
            pairs: ROOT_PAIRS,
        }
    }

    /// Edits a node that was checked by [`DxBlock::node`].
    pub fn edit_node(raw: &'a mut [u8]) -> Self {
        Self {
            raw,
            pairs: NODE_PAIRS,
        }
    }

    /// Pairs in use.
    pub fn count(&self) -> u16 {
        COUNT.get(&self.raw[self.pairs..])
    }

    /// Pairs that fit.
    pub fn limit(&self) -> u16 {
        LIMIT.get(&self.raw[self.pairs..])
    }

    /// Stores the levels of nodes between root and leaves.
    ///
    /// # Panics
    /// When this is not a root.
    pub fn set_indirect_levels(&mut self, levels: u8) {
        assert_eq!(self.pairs, ROOT_PAIRS, "not a root");
        INDIRECT_LEVELS.put(self.raw, levels);
    }

    /// Makes a root's ".." name another parent.
    ///
    /// # Panics
    /// When this is not a root.
    pub fn set_dotdot(&mut self, parent: InodeNo) {
        assert_eq!(self.pairs, ROOT_PAIRS, "not a root");
        DOTDOT_INODE.put(self.raw, parent.0);
    }

    /// Inserts a pair before `index`, which is at least 1: the first pair has no hash.
    ///
    /// # Panics
    /// When the block is full or `index` is 0 or beyond the end.
    pub fn insert(&mut self, index: u16, entry: DxEntry) {
        let count = self.count();
        assert!(count < self.limit(), "hash tree block is full");
        assert!(
            (1..=count).contains(&index),
            "hash tree entry {index} of {count}"
        );
        let at = |i: u16| self.pairs + usize::from(i) * PAIR_SIZE;
        self.raw.copy_within(at(index)..at(count), at(index + 1));
        let start = at(index);
        HASH.put(&mut self.raw[start..], entry.hash);
        BLOCK.put(&mut self.raw[start..], entry.block.0);
        COUNT.put(&mut self.raw[self.pairs..], count + 1);
    }

    /// Moves the pairs from `index` (at least 1) on into `to`, a fresh node whose one pair they
    /// replace. Returns the hash of the first of them, which `to` does not store: it belongs to the
    /// pair above that will name `to`.
    ///
    /// # Panics
    /// When `index` is 0 or beyond the last pair.
    pub fn split_off(&mut self, index: u16, to: &mut DxBlockMut<'_>) -> u32 {
        let count = self.count();
        assert!(
            (1..count).contains(&index),
            "hash tree entry {index} of {count}"
        );
        let at = |pairs: usize, i: u16| pairs + usize::from(i) * PAIR_SIZE;
        let first = at(self.pairs, index);
        let hash = HASH.get(&self.raw[first..]);
        let block = BLOCK.get(&self.raw[first..]);
        let rest = &self.raw[at(self.pairs, index + 1)..at(self.pairs, count)];
        let start = at(to.pairs, 1);
        to.raw[start..start + rest.len()].copy_from_slice(rest);
        BLOCK.put(&mut to.raw[to.pairs..], block);
        COUNT.put(&mut to.raw[to.pairs..], count - index);
        COUNT.put(&mut self.raw[self.pairs..], index);
        hash
    }

    /// Moves all pairs of a root into `to`, a fresh node, and leaves the root with one
    /// pair that names `node`: the tree grows by a level.
    ///
    /// # Panics
    /// When this is not a root, or `to` has too little room.
    pub fn push_down(&mut self, to: &mut DxBlockMut<'_>, node: LBlock) {
        assert_eq!(self.pairs, ROOT_PAIRS, "not a root");
        let count = self.count();
        assert!(count <= to.limit(), "pairs do not fit the node");
        let size = usize::from(count) * PAIR_SIZE;
        let limit = to.limit();
        to.raw[to.pairs..to.pairs + size].copy_from_slice(&self.raw[self.pairs..self.pairs + size]);
        LIMIT.put(&mut to.raw[to.pairs..], limit);
        COUNT.put(&mut to.raw[to.pairs..], count);
        COUNT.put(&mut self.raw[self.pairs..], 1);
        BLOCK.put(&mut self.raw[self.pairs..], node.0);
        let levels = INDIRECT_LEVELS.get(self.raw) + 1;
        self.set_indirect_levels(levels);
    }

    /// Makes the checksum; `seed` is the directory's [`csum_seed`](crate::Inode::csum_seed).
    /// Does nothing without `metadata_csum`. Returns the bytes that changed.
    pub fn write_checksum(&mut self, seed: u32, geometry: &Geometry) -> Option<Range<usize>> {
        if !geometry.metadata_csum {
            return None;
        }
        let (count, limit) = (self.count(), self.limit());
        let tail = self.pairs + usize::from(limit) * PAIR_SIZE;
        let checksum = checksum_of(self.raw, self.pairs, count, limit, seed);
        TAIL_CHECKSUM.put(&mut self.raw[tail..], checksum);
        Some(tail + TAIL_CHECKSUM.0..tail + TAIL_CHECKSUM.end())
    }
}
