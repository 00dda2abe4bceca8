//! Indexed directories: a tree by hash over blocks of entries (`Documentation/filesystems/ext4/directory.rst`, "Hash Tree
//! Directories"; the kernel's `fs/ext4/namei.c`).
//!
//! Block 0 is the root: it begins with "." and ".." so that it looks like a block of entries to who knows no index. Each
//! index block holds pairs of a hash and a block, sorted; a pair's block has the names whose hashes lie from the pair's hash up
//! to the next pair's. When names of one hash are spread over several leaves, the later leaves' hashes have
//! bit 0 set (*continuation*), and a search goes on while that is so. At most [`Dirs::levels_max`] levels of index
//! blocks lie above the leaves.
//!
//! [`Dirs::levels_max`]: crate::dir::Dirs
//!
//! Neighbours: `dir.rs` decides whether a directory is indexed and reads its blocks; `htree/split.rs` lets the tree grow;
//! `readdir.rs` walks it in the order of hashes.

use smallvec::SmallVec;
use stetfs_format::LBlock;
use stetfs_format::bytes::{read_u16le, read_u32le};

use crate::dir::{self, Dir, DirBlock, Found, Place, leaf};
use crate::error::{Error, Inconsistent, Result};
use crate::volume::Volume;

mod split;

pub(crate) use split::{apply, insert, make_indexed};

/// Where the pairs begin in the root: behind "." and ".." and 8 bytes of `dx_root_info`.
const ROOT_ENTRIES: usize = 32;
/// Where the pairs begin in every other index block: behind a free record.
const NODE_ENTRIES: usize = 8;
/// Bytes of a pair, and of the count and limit that stand in place of the first pair's hash.
const PAIR: usize = 8;
/// Where `dx_root_info` has the hash version and the number of levels below the root.
const INFO_VERSION: usize = 28;
const INFO_LEVELS: usize = 30;
/// The bits of a pair's block that are its number.
const BLOCK_MASK: u32 = 0x0fff_ffff;
/// A leaf that begins with this bit in its hash continues the hash of the leaf before.
pub(crate) const CONTINUED: u32 = 1;

/// A name's place in the order of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hash {
    /// Even; what the index is sorted by.
    pub(crate) major: u32,
    /// Tells apart names of one major hash in the order of `readdir`.
    pub(crate) minor: u32,
}

/// The hash of `name` by an index's hash version (0, 1 or 2).
#[inline]
pub(crate) fn hash(vol: &Volume, version: u8, name: &[u8]) -> Hash {
    let hash = vol.dirs.hasher(version).hash(name);
    Hash {
        major: hash.major,
        minor: hash.minor,
    }
}

/// An index block, and the pair that was chosen in it.
pub(crate) struct Node {
    pub(crate) block: DirBlock,
    entries: usize,
    count: usize,
    at: usize,
}

impl Node {
    /// The fields of a block that [`read_node`] has checked, or cheap checks let through.
    fn new(dir: Dir<'_>, block: DirBlock, entries: usize) -> Result<Self> {
        let count = usize::from(read_u16le(&block.bytes, entries + 2));
        if count == 0 || count > limit(dir.vol, entries) {
            return Err(check::count(dir, block.lblk, entries, &block.bytes));
        }
        Ok(Self {
            block,
            entries,
            count,
            at: 0,
        })
    }

    /// The hash of pair `i`; the first has none of its own and begins where its parent says.
    #[inline]
    fn hash(&self, i: usize) -> u32 {
        if i == 0 {
            0
        } else {
            read_u32le(&self.block.bytes, self.entries + i * PAIR)
        }
    }

    /// The block of the chosen pair.
    #[inline]
    fn child(&self) -> LBlock {
        self.child_at(self.at)
    }

    /// The block of pair `i`.
    #[inline]
    fn child_at(&self, i: usize) -> LBlock {
        LBlock(read_u32le(&self.block.bytes, self.entries + i * PAIR + 4) & BLOCK_MASK)
    }

    /// Chooses the last pair whose hash is not above `hash`.
    #[inline]
    fn choose(&mut self, hash: u32) {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.hash(middle) > hash {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.at = low - 1;
    }

    fn is_full(&self, vol: &Volume) -> bool {
        self.count >= limit(vol, self.entries)
    }
}

/// The number of pairs that an index block holds whose pairs begin at `entries`.
fn limit(vol: &Volume, entries: usize) -> usize {
    let tail = if vol.geo.metadata_csum { PAIR } else { 0 };
    (vol.geo.block_size() - entries - tail) / PAIR
}

/// The way from the root to a leaf.
pub(crate) struct Path {
    nodes: SmallVec<[Node; 2]>,
    /// The hash version of the index.
    pub(crate) version: u8,
}

impl Path {
    /// The leaf.
    pub(crate) fn leaf(&self) -> LBlock {
        self.nodes[self.nodes.len() - 1].child()
    }

    /// The hash from which on the leaf after this one has names; none when this is the last.
    pub(crate) fn next_hash(&self) -> Option<u32> {
        let node = self.nodes.iter().rev().find(|n| n.at + 1 < n.count)?;
        Some(node.hash(node.at + 1))
    }

    /// Goes on to the next leaf, which [`Path::next_hash`] has promised.
    pub(crate) fn advance(&mut self, dir: Dir<'_>) -> Result<()> {
        let levels = self.nodes.len();
        while let Some(node) = self.nodes.last_mut() {
            if node.at + 1 < node.count {
                node.at += 1;
                break;
            }
            self.nodes.pop();
        }
        while self.nodes.len() < levels {
            let Some(parent) = self.nodes.last() else {
                return Err(Inconsistent::IndexAstray {
                    ino: dir.inode.ino,
                    hash: u32::MAX,
                }
                .into());
            };
            let node = read_node(dir, parent.child())?;
            self.nodes.push(node);
        }
        Ok(())
    }
}

/// Walks from the leaf of a hash to the leaves after it, and notices when the tree goes in circles.
pub(crate) struct Leaves<'a> {
    dir: Dir<'a>,
    pub(crate) path: Path,
    /// The hash that the present leaf begins with, as far as known.
    from: u32,
    left: u32,
}

impl<'a> Leaves<'a> {
    /// Starts at the leaf of `path`.
    pub(crate) fn new(dir: Dir<'a>, path: Path) -> Self {
        Self {
            dir,
            path,
            from: 0,
            left: dir.blocks,
        }
    }

    /// The present leaf.
    pub(crate) fn read(&self) -> Result<DirBlock> {
        self.dir.read_leaf(self.path.leaf())
    }

    /// The hash that the next leaf begins with; none at the end.
    pub(crate) fn next_hash(&self) -> Option<u32> {
        self.path.next_hash()
    }

    /// Goes on to the next leaf; false at the end.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        let Some(hash) = self.path.next_hash() else {
            return Ok(false);
        };
        if self.left == 0 || hash < self.from {
            return Err(Inconsistent::IndexAstray {
                ino: self.dir.inode.ino,
                hash,
            }
            .into());
        }
        self.left -= 1;
        self.from = hash;
        self.path.advance(self.dir)?;
        Ok(true)
    }

    /// Goes on to the next leaf if it continues the names of hash `major`.
    fn advance_within(&mut self, major: u32) -> Result<bool> {
        match self.next_hash() {
            Some(next) if next & !CONTINUED == major => self.advance(),
            _ => Ok(false),
        }
    }
}

/// The way to the leaf for `hash`, which is computed once the root has told the hash version.
#[inline]
pub(crate) fn probe(dir: Dir<'_>, major: impl FnOnce(u8) -> u32) -> Result<Path> {
    let root = read_root(dir)?;
    let version = root.block.bytes[INFO_VERSION];
    let levels = usize::from(root.block.bytes[INFO_LEVELS]);
    let major = major(version);
    let mut path = Path {
        nodes: SmallVec::new(),
        version,
    };
    let mut node = root;
    loop {
        node.choose(major);
        let child = node.child();
        path.nodes.push(node);
        if path.nodes.len() > levels {
            return Ok(path);
        }
        node = read_node(dir, child)?;
    }
}

fn read_root(dir: Dir<'_>) -> Result<Node> {
    let block = read_root_block(dir)?;
    let bytes = &block.bytes;
    if bytes[INFO_VERSION] > 2 || usize::from(bytes[INFO_LEVELS]) >= dir.vol.dirs.levels_max {
        return Err(check::root_error(dir, bytes));
    }
    Node::new(dir, block, ROOT_ENTRIES)
}

/// Block 0 of an indexed directory.
pub(crate) fn read_root_block(dir: Dir<'_>) -> Result<DirBlock> {
    dir.read_index(LBlock(0), |bytes| check::root(dir, bytes))
}

fn read_node(dir: Dir<'_>, lblk: LBlock) -> Result<Node> {
    let block = dir.read_index(lblk, |bytes| check::node(dir, lblk, bytes))?;
    Node::new(dir, block, NODE_ENTRIES)
}

/// The entry `name`, if there is one.
pub(crate) fn find(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    let mut major = 0;
    let path = probe(dir, |version| {
        major = hash(dir.vol, version, name).major;
        major
    })?;
    let mut leaves = Leaves::new(dir, path);
    loop {
        if let Some(found) = dir.find_in(&leaves.read()?, name)? {
            return Ok(Some(found));
        }
        if !leaves.advance_within(major)? {
            return Ok(None);
        }
    }
}

/// Where `name`, which must not exist, can be put: into the first leaf for its hash, if there is room.
pub(crate) fn place(dir: Dir<'_>, name: &[u8]) -> Result<Place> {
    let mut major = 0;
    let path = probe(dir, |version| {
        major = hash(dir.vol, version, name).major;
        major
    })?;
    let mut leaves = Leaves::new(dir, path);
    let block = leaves.read()?;
    let (found, room) = dir.find_or_room_in(&block, name, leaf::rec_len(name.len()))?;
    if found.is_some() {
        return Err(Error::Exists);
    }
    while leaves.advance_within(major)? {
        if dir.find_in(&leaves.read()?, name)?.is_some() {
            return Err(Error::Exists);
        }
    }
    Ok(match room {
        Some(offset) => Place::Room {
            pblk: block.pblk,
            offset,
        },
        None => Place::Grow,
    })
}

/// Whether no leaf has an entry.
pub(crate) fn is_empty(dir: Dir<'_>) -> Result<bool> {
    let mut leaves = Leaves::new(dir, probe(dir, |_| 0)?);
    loop {
        if !dir::is_empty_block(dir, &leaves.read()?)? {
            return Ok(false);
        }
        if !leaves.advance()? {
            return Ok(true);
        }
    }
}
