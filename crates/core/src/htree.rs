//! Indexed directories: a tree by hash over blocks of entries
//! (`Documentation/filesystems/ext4/directory.rst`, "Hash Tree Directories"; the kernel's
//! `fs/ext4/namei.c`).
//!
//! Block 0 is the root. It begins with "." and "..", so that it looks like a block of entries to a
//! program that knows no index. Each index block holds pairs of a hash and a block, sorted. A
//! pair's block has the names with hashes from the pair's hash up to the next pair's. When names of
//! one hash fill several leaves, the later leaves' hashes have bit 0 set ([`CONTINUED`]), and a
//! search goes on to them.
//!
//! Neighbours: `dir.rs` decides whether a directory is indexed and reads its blocks;
//! `htree/split.rs` lets the tree grow; `readdir.rs` walks it in the order of hashes; the bytes are
//! `stetfs_format::htree`'s.

use smallvec::SmallVec;
use stetfs_format::{Corrupt, DirHash, DxBlock, DxInfo, Hasher, LBlock};

use crate::dir::block::{Dir, DirBlock, Found, Place, is_empty_block};
use crate::error::{Error, Inconsistent, Result};

pub(crate) mod split;

/// A leaf with this bit in its hash continues the names of the last hash in the leaf before.
pub(crate) const CONTINUED: u32 = 1;

/// An index block, and the index of the pair that was chosen in it.
struct Node {
    block: DirBlock,
    at: u16,
}

impl Node {
    fn pairs(&self, dir: Dir<'_>) -> Result<DxBlock<'_>> {
        let lblk = self.block.lblk;
        let pairs = match lblk {
            LBlock(0) => DxBlock::root(&self.block.bytes, &dir.vol.geo).map(|(root, _)| root),
            _ => DxBlock::node(&self.block.bytes, &dir.vol.geo),
        };
        pairs.map_err(|e| dir.corrupt(lblk, e))
    }
}

/// The path from the root to a leaf.
pub(crate) struct Path {
    nodes: SmallVec<[Node; 2]>,
    leaf: LBlock,
    /// How the names of this directory are hashed.
    pub(crate) hasher: Hasher,
}

impl Path {
    /// The hash at which the next leaf begins; `None` when this is the last leaf.
    fn next_hash(&self, dir: Dir<'_>) -> Result<Option<u32>> {
        for node in self.nodes.iter().rev() {
            let pairs = node.pairs(dir)?;
            if node.at + 1 < pairs.count() {
                return Ok(Some(pairs.entry(node.at + 1).hash));
            }
        }
        Ok(None)
    }

    /// Goes on to the next leaf. [`Path::next_hash`] has said that there is one.
    fn advance(&mut self, dir: Dir<'_>) -> Result<()> {
        let levels = self.nodes.len();
        while let Some(node) = self.nodes.last_mut() {
            if node.at + 1 < node.pairs(dir)?.count() {
                node.at += 1;
                self.leaf = node.pairs(dir)?.entry(node.at).block;
                break;
            }
            self.nodes.pop();
        }
        while self.nodes.len() < levels {
            let node = Node {
                block: read_node(dir, self.leaf)?,
                at: 0,
            };
            self.leaf = node.pairs(dir)?.entry(0).block;
            self.nodes.push(node);
        }
        Ok(())
    }
}

/// The leaves from one hash on, in order. Detects a tree that goes in circles.
pub(crate) struct Leaves<'a> {
    dir: Dir<'a>,
    path: Path,
    next: Option<u32>,
    /// The hash at which the present leaf begins, as far as known.
    from: u32,
    left: u32,
}

impl<'a> Leaves<'a> {
    /// Starts at the leaf of `path`.
    pub(crate) fn new(dir: Dir<'a>, path: Path) -> Result<Self> {
        let next = path.next_hash(dir)?;
        Ok(Self {
            dir,
            path,
            next,
            from: 0,
            left: dir.blocks,
        })
    }

    /// How the names of this directory are hashed.
    pub(crate) fn hasher(&self) -> Hasher {
        self.path.hasher
    }

    /// The present leaf.
    pub(crate) fn read(&self) -> Result<DirBlock> {
        self.dir.read_leaf(self.path.leaf)
    }

    /// The hash at which the next leaf begins; `None` at the end.
    pub(crate) fn next_hash(&self) -> Option<u32> {
        self.next
    }

    /// Goes on to the next leaf. Returns false at the end.
    pub(crate) fn advance(&mut self) -> Result<bool> {
        let Some(hash) = self.next else {
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
        self.next = self.path.next_hash(self.dir)?;
        Ok(true)
    }

    /// Goes on to the next leaf if it continues the names of hash `major`. Returns false otherwise.
    fn advance_within(&mut self, major: u32) -> Result<bool> {
        match self.next {
            Some(next) if next & !CONTINUED == major => self.advance(),
            _ => Ok(false),
        }
    }
}

/// Returns the path to the leaf of a hash. `major` computes it, by the hasher that the root names.
#[inline]
pub(crate) fn probe(dir: Dir<'_>, major: impl FnOnce(Hasher) -> u32) -> Result<Path> {
    let mut block = read_root(dir)?;
    let (mut pairs, info) = root_of(dir, &block)?;
    let hasher = dir.vol.dirs.hasher(info.hash_version);
    let major = major(hasher);
    let mut nodes = SmallVec::new();
    loop {
        let at = pairs.search(major);
        let child = pairs.entry(at).block;
        nodes.push(Node { block, at });
        if nodes.len() > usize::from(info.indirect_levels) {
            return Ok(Path {
                nodes,
                leaf: child,
                hasher,
            });
        }
        block = read_node(dir, child)?;
        pairs = DxBlock::node(&block.bytes, &dir.vol.geo).map_err(|e| dir.corrupt(child, e))?;
    }
}

fn root_of<'b>(dir: Dir<'_>, block: &'b DirBlock) -> Result<(DxBlock<'b>, DxInfo)> {
    DxBlock::root(&block.bytes, &dir.vol.geo).map_err(|e| dir.corrupt(LBlock(0), e))
}

/// Reads block 0 of an indexed directory.
pub(crate) fn read_root(dir: Dir<'_>) -> Result<DirBlock> {
    dir.read_index(LBlock(0), |bytes| {
        check(dir, DxBlock::root(bytes, &dir.vol.geo)?.0)
    })
}

fn read_node(dir: Dir<'_>, lblk: LBlock) -> Result<DirBlock> {
    dir.read_index(lblk, |bytes| {
        check(dir, DxBlock::node(bytes, &dir.vol.geo)?)
    })
}

/// Does the checks that are made once: checksum and order. Reading notices blocks beyond the
/// directory's end.
fn check(dir: Dir<'_>, pairs: DxBlock<'_>) -> Result<(), Corrupt> {
    pairs.check_checksum(dir.seed(), &dir.vol.geo)?;
    pairs.check_order()
}

/// The leaves that may hold `name`, and its hash.
#[inline]
fn leaves_for<'a>(dir: Dir<'a>, name: &[u8]) -> Result<(Leaves<'a>, DirHash)> {
    let mut hash = DirHash { major: 0, minor: 0 };
    let path = probe(dir, |hasher| {
        hash = hasher.hash(name);
        hash.major
    })?;
    Ok((Leaves::new(dir, path)?, hash))
}

/// Returns the entry `name`; `None` if there is none.
pub(crate) fn find(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    let (mut leaves, hash) = leaves_for(dir, name)?;
    loop {
        if let Some(found) = dir.find_in(&leaves.read()?, name)? {
            return Ok(Some(found));
        }
        if !leaves.advance_within(hash.major)? {
            return Ok(None);
        }
    }
}

/// The first leaf of a name's hash.
pub(crate) fn leaf_for(dir: Dir<'_>, name: &[u8]) -> Result<LBlock> {
    Ok(probe(dir, |hasher| hasher.hash(name).major)?.leaf)
}

/// Returns where `name`, which must not exist, can be put: the first leaf of its hash, if that has
/// room.
pub(crate) fn place(dir: Dir<'_>, name: &[u8]) -> Result<Place> {
    let (mut leaves, hash) = leaves_for(dir, name)?;
    let block = leaves.read()?;
    let (found, room) = dir.find_or_room_in(&block, name)?;
    if found.is_some() {
        return Err(Error::Exists);
    }
    while leaves.advance_within(hash.major)? {
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
    let mut leaves = Leaves::new(dir, probe(dir, |_| 0)?)?;
    loop {
        if !is_empty_block(dir, &leaves.read()?)? {
            return Ok(false);
        }
        if !leaves.advance()? {
            return Ok(true);
        }
    }
}
