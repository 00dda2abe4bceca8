//! Nodes of extent trees: the root in the inode, and the blocks below it.
//!
//! A node is a header and entries of 12 bytes, sorted by logical block: extents in a
//! leaf (depth 0), indexes to lower nodes above. With `metadata_csum` a node that
//! is a block ends in a checksum behind its last possible entry.
//!
//! Two ways to read a node: [`ExtentNode::decode`] checks every entry and the checksum, for
//! a block that comes from outside; [`ExtentNode::view`] checks the header only, for
//! one that was checked before, and each entry is then checked when it is asked for.
//! [`ExtentNodeMut`] edits a scratch copy.
//!
//! Source: kernel `Documentation/filesystems/ext4/ifork.rst` ("Extent Tree").

use crate::checksum::{crc32c, crc32c_change};
use crate::error::Corrupt;
use crate::geometry::Geometry;
use crate::layout::{Le16, Le32, layout, record};
use crate::num::{BlockNo, LBlock};
use crate::width::must_fit_u16;

/// `eh_magic`.
pub const EXTENT_MAGIC: u16 = 0xf30a;
/// Levels above the leaves that a tree may have (`EXT4_MAX_EXTENT_DEPTH`).
pub const MAX_DEPTH: u16 = 5;
/// Most blocks of a written extent.
pub const MAX_WRITTEN_LEN: u16 = 32768;
/// Most blocks of an unwritten extent.
pub const MAX_UNWRITTEN_LEN: u16 = 32767;
/// The logical block behind the last that a file can have (`EXT_MAX_BLOCKS`).
pub const MAX_BLOCKS: u32 = u32::MAX;
/// Bytes of the root: the whole `i_block`.
pub const ROOT_SIZE: usize = 60;
/// Entries of the root.
pub const ROOT_ENTRIES: u16 = 4;

const HEADER_SIZE: usize = 12;
const ENTRY_SIZE: usize = 12;
const TAIL_SIZE: usize = 4;

layout! {
    /// The header of a node.
    pub EXTENT_HEADER_LAYOUT = "Extent header", HEADER_SIZE, {
        0x0 Le16, MAGIC = "eh_magic";
        0x2 Le16, ENTRIES = "eh_entries";
        0x4 Le16, MAX = "eh_max";
        0x6 Le16, DEPTH = "eh_depth";
        0x8 Le32, GENERATION = "eh_generation";
    }
}

record! {
    /// An entry of a leaf.
    pub EXTENT_LAYOUT = "Extent", ENTRY_SIZE, {
        0x4 Le16, EE_LEN = "ee_len";
    }

    /// A run of blocks of a file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Extent from (raw) {
        /// The first logical block.
        0x0 Le32, lblk: LBlock = "ee_block";
        /// The first block on the volume.
        0x8 Le32, 0x6 Le16, pblk: BlockNo = "ee_start_lo", "ee_start_hi";
    } {
        /// Blocks: 1 to [`MAX_WRITTEN_LEN`], or [`MAX_UNWRITTEN_LEN`] when unwritten.
        pub len: u16 = length(EE_LEN.get(raw));
        /// Allocated but never written: reads as zeros.
        pub unwritten: bool = EE_LEN.get(raw) > MAX_WRITTEN_LEN;
    }
}

/// Blocks of an extent, from `ee_len`. For an unwritten extent, `ee_len` is the length plus
/// [`MAX_WRITTEN_LEN`].
fn length(stored: u16) -> u16 {
    if stored > MAX_WRITTEN_LEN {
        stored - MAX_WRITTEN_LEN
    } else {
        stored
    }
}

impl Extent {
    /// The logical block behind the last.
    #[inline]
    pub fn end(&self) -> u32 {
        self.lblk.0 + u32::from(self.len)
    }

    /// Whether it holds logical block `lblk`.
    #[inline]
    pub fn contains(&self, lblk: LBlock) -> bool {
        lblk.0 >= self.lblk.0 && lblk.0 - self.lblk.0 < u32::from(self.len)
    }

    fn write(&self, raw: &mut [u8]) {
        let most = if self.unwritten {
            MAX_UNWRITTEN_LEN
        } else {
            MAX_WRITTEN_LEN
        };
        assert!(
            (1..=most).contains(&self.len),
            "extent of {} blocks",
            self.len
        );
        let above = if self.unwritten { MAX_WRITTEN_LEN } else { 0 };
        EE_LEN.put(raw, self.len + above);
        self.write_fields(raw);
    }

    fn check(&self, index: u16, geometry: &Geometry) -> Result<(), Corrupt> {
        if self.len == 0 {
            return Err(Corrupt::ExtentLength { index });
        }
        if self.lblk.0.checked_add(self.len.into()).is_none() {
            return Err(Corrupt::ExtentEnd {
                index,
                lblk: self.lblk,
            });
        }
        if !geometry.is_valid_range(self.pblk, self.len.into()) {
            return Err(Corrupt::ExtentBlocks {
                index,
                block: self.pblk,
                count: self.len,
            });
        }
        Ok(())
    }
}

record! {
    /// An entry of a node above the leaves.
    pub EXTENT_INDEX_LAYOUT = "Extent index", ENTRY_SIZE, {}

    /// An entry above the leaves: the node that begins with logical block `lblk`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Index from (raw) {
        /// The first logical block of the node below.
        0x0 Le32, lblk: LBlock = "ei_block";
        /// Where that node is.
        0x4 Le32, 0x8 Le16, pblk: BlockNo = "ei_leaf_lo", "ei_leaf_hi";
    }
}

impl Index {
    fn write(&self, raw: &mut [u8]) {
        raw[..ENTRY_SIZE].fill(0);
        self.write_fields(raw);
    }

    fn check(&self, index: u16, geometry: &Geometry) -> Result<(), Corrupt> {
        if geometry.is_valid_range(self.pblk, 1) {
            return Ok(());
        }
        Err(Corrupt::ExtentBlocks {
            index,
            block: self.pblk,
            count: 1,
        })
    }
}

/// What a node's place in the tree demands of it.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Its depth: one less than that of the node above.
    pub depth: u16,
    /// Its first logical block: that of the index that leads to it.
    pub lblk: LBlock,
}

/// Most entries of a node that is a block.
pub const fn max_entries(geometry: &Geometry) -> u16 {
    must_fit_u16((geometry.block_size() - HEADER_SIZE) / ENTRY_SIZE)
}

/// What [`ExtentNode::replacement`] changes.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    at: usize,
    entry: [u8; ENTRY_SIZE],
    checksum: Option<(usize, [u8; TAIL_SIZE])>,
}

impl Replacement {
    /// The changed parts: offset in the node, and the new bytes.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let checksum = self.checksum.as_ref();
        let checksum = checksum.map(|(at, bytes)| (*at, &bytes[..]));
        std::iter::once((self.at, &self.entry[..])).chain(checksum)
    }
}

/// A node of an extent tree.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    raw: &'a [u8],
    entries: u16,
    max: u16,
    depth: u16,
    geometry: &'a Geometry,
}

impl<'a> ExtentNode<'a> {
    /// The root, in an inode with the flag `EXTENTS`: every entry is checked.
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Extent`.
    pub fn root(block: &'a [u8; ROOT_SIZE], geometry: &'a Geometry) -> Result<Self, Corrupt> {
        let node = Self::header(block, ROOT_ENTRIES, None, geometry)?;
        node.check_entries(None)?;
        Ok(node)
    }

    /// A node that is a block and comes from outside.
    ///
    /// It is valid if and only if: 1. the header has the magic, a `max` that fits the
    /// block, no more entries than that, and the depth that its place demands;
    /// 2. the checksum fits; 3. the entries rise and do not overlap, the first begins where its
    /// index says, each lies inside the volume. `seed` is the inode's
    /// [`csum_seed`](crate::Inode::csum_seed).
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Extent`.
    pub fn decode(
        raw: &'a [u8],
        expected: Expected,
        seed: u32,
        geometry: &'a Geometry,
    ) -> Result<Self, Corrupt> {
        let node = Self::view(raw, expected.depth, geometry)?;
        node.check_checksum(seed)?;
        node.check_entries(Some(expected.lblk))?;
        Ok(node)
    }

    /// A node that is a block and was checked by [`decode`](Self::decode) before:
    /// only the header is checked again.
    ///
    /// # Errors
    /// A variant of [`Corrupt`] that begins with `Extent`.
    #[inline]
    pub fn view(raw: &'a [u8], depth: u16, geometry: &'a Geometry) -> Result<Self, Corrupt> {
        if raw.len() != geometry.block_size() {
            let (needed, found) = (geometry.block_size(), raw.len());
            return Err(Corrupt::TooShort {
                record: "extent block",
                needed,
                found,
            });
        }
        Self::header(raw, max_entries(geometry), Some(depth), geometry)
    }

    #[inline]
    fn header(
        raw: &'a [u8],
        max_possible: u16,
        expected_depth: Option<u16>,
        geometry: &'a Geometry,
    ) -> Result<Self, Corrupt> {
        let (entries, max, depth) = (ENTRIES.get(raw), MAX.get(raw), DEPTH.get(raw));
        if MAGIC.get(raw) != EXTENT_MAGIC {
            return Err(Corrupt::ExtentMagic(MAGIC.get(raw)));
        }
        if depth > MAX_DEPTH || expected_depth.is_some_and(|expected| expected != depth) {
            return Err(Corrupt::ExtentDepth {
                found: depth,
                expected: expected_depth,
            });
        }
        if max == 0 || max > max_possible {
            return Err(Corrupt::ExtentMax {
                max,
                possible: max_possible,
            });
        }
        if entries > max || entries == 0 && depth > 0 {
            return Err(Corrupt::ExtentEntries { entries, max });
        }
        Ok(Self {
            raw,
            entries,
            max,
            depth,
            geometry,
        })
    }

    /// Returns the bytes that change when `extent` replaces extent `n` in this node, a leaf in a
    /// block, whose checksum is right.
    ///
    /// # Panics
    /// When there is no extent `n`.
    pub fn replacement(&self, n: u16, extent: Extent) -> Replacement {
        assert!(self.depth == 0 && n < self.entries, "extent {n}");
        let at = HEADER_SIZE + usize::from(n) * ENTRY_SIZE;
        let mut entry = [0; ENTRY_SIZE];
        extent.write(&mut entry);
        let tail = tail_offset(self.max);
        let checksum = self.geometry.metadata_csum.then(|| {
            let end = at + ENTRY_SIZE;
            let change = crc32c_change(&self.raw[at..end], &entry, tail - end);
            let checksum = Le32(tail).get(self.raw) ^ change;
            (tail, checksum.to_le_bytes())
        });
        Replacement {
            at,
            entry,
            checksum,
        }
    }

    fn check_checksum(&self, seed: u32) -> Result<(), Corrupt> {
        if !self.geometry.metadata_csum {
            return Ok(());
        }
        let tail = tail_offset(self.max);
        let stored = Le32(tail).get(self.raw);
        let computed = crc32c(seed, &self.raw[..tail]);
        if stored == computed {
            Ok(())
        } else {
            Err(Corrupt::ExtentChecksum { stored, computed })
        }
    }

    fn check_entries(&self, first: Option<LBlock>) -> Result<(), Corrupt> {
        if let Some(expected) = first
            && self.entries > 0
            && self.lblk(0) != expected
        {
            return Err(Corrupt::ExtentFirst {
                found: self.lblk(0),
                expected,
            });
        }
        let mut end = 0;
        for i in 0..self.entries {
            let lblk = self.lblk(i);
            if u64::from(lblk.0) < end {
                return Err(Corrupt::ExtentOrder { index: i, lblk });
            }
            let len = if self.is_leaf() {
                self.extent(i)?.len.into()
            } else {
                self.index(i)?;
                1
            };
            end = u64::from(lblk.0) + len;
        }
        Ok(())
    }

    /// Entries in use.
    #[inline]
    pub const fn entries(&self) -> u16 {
        self.entries
    }

    /// Entries that fit.
    #[inline]
    pub const fn max(&self) -> u16 {
        self.max
    }

    /// Levels below this node: 0 for a leaf.
    #[inline]
    pub const fn depth(&self) -> u16 {
        self.depth
    }

    /// Whether its entries are extents.
    #[inline]
    pub const fn is_leaf(&self) -> bool {
        self.depth == 0
    }

    #[inline]
    fn entry(&self, index: u16) -> &'a [u8] {
        assert!(
            index < self.entries,
            "extent entry {index} of {}",
            self.entries
        );
        let offset = HEADER_SIZE + usize::from(index) * ENTRY_SIZE;
        &self.raw[offset..offset + ENTRY_SIZE]
    }

    /// The logical block that entry `index` begins with, in any node.
    ///
    /// # Panics
    /// When there is no such entry.
    #[inline]
    pub fn lblk(&self, index: u16) -> LBlock {
        Index::read_fields(self.entry(index)).lblk
    }

    /// The extent at `index` of a leaf.
    ///
    /// # Errors
    /// [`Corrupt::ExtentLength`], [`Corrupt::ExtentEnd`], [`Corrupt::ExtentBlocks`];
    /// never after [`decode`](Self::decode) or [`root`](Self::root).
    ///
    /// # Panics
    /// When there is no such entry, or the node is no leaf.
    #[inline]
    pub fn extent(&self, index: u16) -> Result<Extent, Corrupt> {
        assert!(self.is_leaf(), "not a leaf");
        let extent = Extent::read_fields(self.entry(index));
        extent.check(index, self.geometry)?;
        Ok(extent)
    }

    /// The index at `index` of a node above the leaves.
    ///
    /// # Errors
    /// [`Corrupt::ExtentBlocks`]; never after [`decode`](Self::decode) or [`root`](Self::root).
    ///
    /// # Panics
    /// When there is no such entry, or the node is a leaf.
    #[inline]
    pub fn index(&self, index: u16) -> Result<Index, Corrupt> {
        assert!(!self.is_leaf(), "a leaf");
        let entry = Index::read_fields(self.entry(index));
        entry.check(index, self.geometry)?;
        Ok(entry)
    }

    /// The last entry that begins at or before `lblk`; `None` when all begin later.
    #[inline]
    pub fn search(&self, lblk: LBlock) -> Option<u16> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.lblk(middle) <= lblk {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1)
    }

    /// The extents of a leaf. Errors as [`extent`](Self::extent).
    pub fn extents(&self) -> impl Iterator<Item = Result<Extent, Corrupt>> + use<'a> {
        let node = *self;
        (0..self.entries).map(move |index| node.extent(index))
    }

    /// The indexes of a node above the leaves. Errors as [`index`](Self::index).
    pub fn indexes(&self) -> impl Iterator<Item = Result<Index, Corrupt>> + use<'a> {
        let node = *self;
        (0..self.entries).map(move |index| node.index(index))
    }
}

/// Where the checksum of a block with room for `max` entries lies.
fn tail_offset(max: u16) -> usize {
    HEADER_SIZE + usize::from(max) * ENTRY_SIZE
}

// There is always room for the checksum between the last possible entry and the block's end.
const _: () = assert!(
    (1024 - HEADER_SIZE) % ENTRY_SIZE >= TAIL_SIZE
        && (2048 - HEADER_SIZE) % ENTRY_SIZE >= TAIL_SIZE
        && (4096 - HEADER_SIZE) % ENTRY_SIZE >= TAIL_SIZE
);

/// Edits a scratch copy of a node: either `i_block` or a whole block.
///
/// The caller keeps the entries sorted. A block's checksum is stale until
/// [`write_checksum`](Self::write_checksum).
#[derive(Debug)]
pub struct ExtentNodeMut<'a> {
    raw: &'a mut [u8],
}

impl<'a> ExtentNodeMut<'a> {
    /// Begins an empty node of `depth` in `i_block`.
    pub fn init_root(raw: &'a mut [u8; ROOT_SIZE], depth: u16) -> Self {
        Self::init(raw, depth, ROOT_ENTRIES)
    }

    /// Begins an empty node of `depth` in a block, whatever that held.
    ///
    /// # Panics
    /// When `raw` is not of the block size.
    pub fn init_block(raw: &'a mut [u8], depth: u16, geometry: &Geometry) -> Self {
        assert_eq!(raw.len(), geometry.block_size());
        Self::init(raw, depth, max_entries(geometry))
    }

    fn init(raw: &'a mut [u8], depth: u16, max: u16) -> Self {
        raw.fill(0);
        MAGIC.put(raw, EXTENT_MAGIC);
        MAX.put(raw, max);
        DEPTH.put(raw, depth);
        Self { raw }
    }

    /// Edits a node that was checked as an [`ExtentNode`].
    pub fn edit(raw: &'a mut [u8]) -> Self {
        Self { raw }
    }

    /// Entries in use.
    pub fn entries(&self) -> u16 {
        ENTRIES.get(self.raw)
    }

    /// Entries that fit.
    pub fn max(&self) -> u16 {
        MAX.get(self.raw)
    }

    /// Levels below this node.
    pub fn depth(&self) -> u16 {
        DEPTH.get(self.raw)
    }

    /// Changes the levels below this node (the root, when the tree grows or shrinks).
    pub fn set_depth(&mut self, depth: u16) {
        DEPTH.put(self.raw, depth);
    }

    fn entry(&mut self, index: u16) -> &mut [u8] {
        assert!(
            index < self.entries(),
            "extent entry {index} of {}",
            self.entries()
        );
        let offset = HEADER_SIZE + usize::from(index) * ENTRY_SIZE;
        &mut self.raw[offset..offset + ENTRY_SIZE]
    }

    /// Replaces the extent at `index`.
    ///
    /// # Panics
    /// When there is no such entry, or the length cannot be stored.
    pub fn set_extent(&mut self, index: u16, extent: Extent) {
        extent.write(self.entry(index));
    }

    /// Replaces the index at `index`.
    ///
    /// # Panics
    /// When there is no such entry.
    pub fn set_index(&mut self, index: u16, entry: Index) {
        entry.write(self.entry(index));
    }

    /// Inserts an extent before `index`.
    ///
    /// # Panics
    /// When the node is full, or `index` is beyond the end.
    pub fn insert_extent(&mut self, index: u16, extent: Extent) {
        self.open_gap(index);
        self.set_extent(index, extent);
    }

    /// Inserts an index before `index`.
    ///
    /// # Panics
    /// When the node is full, or `index` is beyond the end.
    pub fn insert_index(&mut self, index: u16, entry: Index) {
        self.open_gap(index);
        self.set_index(index, entry);
    }

    fn open_gap(&mut self, index: u16) {
        let entries = self.entries();
        assert!(entries < self.max(), "extent node is full");
        assert!(index <= entries, "extent entry {index} of {entries}");
        let from = HEADER_SIZE + usize::from(index) * ENTRY_SIZE;
        let end = HEADER_SIZE + usize::from(entries) * ENTRY_SIZE;
        self.raw.copy_within(from..end, from + ENTRY_SIZE);
        ENTRIES.put(self.raw, entries + 1);
    }

    /// Removes the entries `index .. index + count`.
    ///
    /// # Panics
    /// When they do not all exist.
    pub fn remove(&mut self, index: u16, count: u16) {
        let entries = self.entries();
        assert!(
            index <= entries && count <= entries - index,
            "no such extent entries"
        );
        let at = |i: u16| HEADER_SIZE + usize::from(i) * ENTRY_SIZE;
        self.raw
            .copy_within(at(index + count)..at(entries), at(index));
        self.raw[at(entries - count)..at(entries)].fill(0);
        ENTRIES.put(self.raw, entries - count);
    }

    /// Moves the entries from `index` on to the end of `to`, for a split.
    ///
    /// # Panics
    /// When they do not exist or do not fit.
    pub fn move_tail(&mut self, index: u16, to: &mut ExtentNodeMut<'_>) {
        let moved = self.entries() - index;
        let (have, room) = (to.entries(), to.max());
        assert!(moved <= room - have, "extent entries do not fit");
        let at = |i: u16| HEADER_SIZE + usize::from(i) * ENTRY_SIZE;
        to.raw[at(have)..at(have + moved)].copy_from_slice(&self.raw[at(index)..at(index + moved)]);
        ENTRIES.put(to.raw, have + moved);
        self.remove(index, moved);
    }

    /// Makes the checksum of a node that is a block; `seed` is the inode's
    /// [`csum_seed`](crate::Inode::csum_seed). Does nothing without `metadata_csum`.
    pub fn write_checksum(&mut self, seed: u32, geometry: &Geometry) {
        if geometry.metadata_csum {
            let tail = tail_offset(self.max());
            let checksum = crc32c(seed, &self.raw[..tail]);
            Le32(tail).put(self.raw, checksum);
        }
    }
}
