//! Reading extent trees.
//!
//! A node is trusted after one full check, noted in [`Verified`](crate::alloc::Verified). Later
//! visits check the header and the entry that is used. A search allocates no memory: the root is in
//! the inode, and nodes below are borrowed from the journal's cache.
//!
//! A tree is valid if and only if each node passes [`ExtentNode::decode`] and
//! 1. a node's depth is its parent's minus one;
//! 2. its entries lie in the range that the parent's entries give it;
//! 3. no block number lies in the volume's own structures.

use smallvec::SmallVec;
use stetfs_format::extent::{Expected, ExtentNode, Index, MAX_BLOCKS};
use stetfs_format::{BlockNo, Corrupt, Inode, InodeNo, LBlock, Place};
use stetfs_media::{BlockRef, Class};

use super::damage::Damage;
use super::node::{Node, part, state_of};
use super::run::{MapState, Run};
use crate::alloc::Alloc;
use crate::error::{Error, Result};

/// An extent tree, for reading.
#[derive(Clone, Copy)]
pub(super) struct Tree<'a> {
    pub(super) alloc: &'a Alloc,
    pub(super) ino: InodeNo,
    pub(super) raw: &'a Inode,
}

/// A node on the way to a block, and the index of the entry taken there.
pub(super) struct Level {
    pub(super) node: Node,
    pub(super) at: u16,
}

/// The way from the root to a leaf.
pub(super) struct Path {
    pub(super) levels: SmallVec<[Level; 4]>,
    /// The first logical block of the leaf's range, and the one after its last.
    pub(super) low: u32,
    pub(super) until: u32,
}

/// A leaf, for reading.
pub(super) struct Leaf {
    /// Where it lies; `None` for the root.
    pub(super) block: Option<BlockNo>,
    bytes: Option<BlockRef>,
    /// The end of its range: the first logical block behind it.
    until: u32,
}

impl Leaf {
    /// Returns the leaf's entries; `tree` is the tree that it was found in.
    pub(super) fn view<'a>(&'a self, tree: &Tree<'a>) -> Result<ExtentNode<'a>> {
        match &self.bytes {
            None => tree.root(),
            Some(bytes) => {
                ExtentNode::view(bytes, 0, tree.alloc.geo()).map_err(tree.at(self.block))
            }
        }
    }
}

impl Path {
    pub(super) fn leaf(&self) -> &Node {
        &self.levels[self.levels.len() - 1].node
    }
}

impl<'a> Tree<'a> {
    /// Adds to an error which node failed a check: `block`, or the root in the inode (`None`).
    pub(super) fn at(&self, block: Option<BlockNo>) -> impl Fn(Corrupt) -> Error {
        let ino = self.ino;
        move |what| {
            what.at(block.map_or(Place::Inode(ino), |b| Place::InodeBlock(ino, b)))
                .into()
        }
    }

    fn root(&self) -> Result<ExtentNode<'a>> {
        ExtentNode::root(&self.raw.block, self.alloc.geo()).map_err(self.at(None))
    }

    /// Checks the whole root; nodes below are checked when they are read.
    pub(super) fn check_root(&self) -> Result<()> {
        self.check_range(self.root()?, None, MAX_BLOCKS)
    }

    /// Returns the number of levels below the root.
    pub(super) fn depth(&self) -> Result<u16> {
        Ok(self.root()?.depth())
    }

    /// Returns the run at `lblk`, of at most `max` blocks.
    pub(super) fn lookup(&self, lblk: LBlock, max: u32) -> Result<Run> {
        let leaf = self.leaf(lblk)?;
        // The sum saturates at `MAX_BLOCKS`, the largest number.
        let until = lblk.0.saturating_add(max.max(1)).min(leaf.until);
        let view = leaf.view(self)?;
        let found = view.search(lblk);
        if let Some(n) = found {
            let extent = view.extent(n).map_err(self.at(leaf.block))?;
            if extent.contains(lblk) {
                let part = part(&extent, lblk.0, until);
                return Ok(Run {
                    lblk,
                    len: part.len.into(),
                    pblk: part.pblk,
                    state: state_of(&part),
                });
            }
        }
        let next = found.map_or(0, |n| n + 1);
        let until = if next < view.entries() {
            until.min(view.lblk(next).0)
        } else {
            until
        };
        Ok(hole(lblk, until))
    }

    /// Returns the leaf whose range has `lblk`, for reading; the first leaf if `lblk` lies before
    /// all of them.
    pub(super) fn leaf(&self, lblk: LBlock) -> Result<Leaf> {
        let mut leaf = Leaf {
            block: None,
            bytes: None,
            until: MAX_BLOCKS,
        };
        let mut node = self.root()?;
        loop {
            if node.is_leaf() {
                return Ok(leaf);
            }
            let n = node.search(lblk).unwrap_or(0);
            if n + 1 < node.entries() {
                leaf.until = leaf.until.min(node.lblk(n + 1).0);
            }
            let child = node.index(n).map_err(self.at(leaf.block))?;
            let depth = node.depth() - 1;
            leaf.block = Some(child.pblk);
            let bytes = leaf.bytes.insert(self.read_node(child, depth, leaf.until)?);
            node = ExtentNode::view(bytes, depth, self.alloc.geo()).map_err(self.at(leaf.block))?;
        }
    }

    /// Returns the way to the leaf whose range has `lblk`, for changing.
    pub(super) fn path(&self, lblk: LBlock) -> Result<Path> {
        let geo = self.alloc.geo();
        let root = self.root()?;
        let mut path = Path {
            levels: SmallVec::new(),
            low: 0,
            until: MAX_BLOCKS,
        };
        let at = root.search(lblk).unwrap_or(0);
        path.levels.push(Level {
            node: Node::of(None, &self.raw.block),
            at,
        });
        loop {
            let Level { node, at } = &path.levels[path.levels.len() - 1];
            let (block, at) = (node.block, *at);
            let view = node.view(geo).map_err(self.at(block))?;
            if view.is_leaf() {
                return Ok(path);
            }
            let child = view.index(at).map_err(self.at(block))?;
            let until = if at + 1 < view.entries() {
                view.lblk(at + 1).0
            } else {
                path.until
            };
            let depth = view.depth() - 1;
            let bytes = self.read_node(child, depth, until)?;
            let node = Node::of(Some(child.pblk), &bytes);
            let at = node
                .view(geo)
                .map_err(self.at(node.block))?
                .search(lblk)
                .unwrap_or(0);
            path.levels.push(Level { node, at });
            (path.low, path.until) = (child.lblk.0, until);
        }
    }

    /// Reads the node at `depth` that `index` leads to, whose range ends before `end`.
    pub(super) fn read_node(&self, index: Index, depth: u16, end: u32) -> Result<BlockRef> {
        let block = index.pblk;
        let bytes = self.alloc.journal().read(block, Class::Mapping)?;
        let geo = self.alloc.geo();
        if self.alloc.verified().is_noted(block) {
            // The check may have been under another parent. Comparing the depth keeps a damaged
            // tree from leading in circles.
            ExtentNode::view(&bytes, depth, geo).map_err(self.at(Some(block)))?;
            return Ok(bytes);
        }
        let expected = Expected {
            depth,
            lblk: index.lblk,
        };
        let node = ExtentNode::decode(&bytes, expected, self.raw.csum_seed(self.ino, geo), geo)
            .map_err(self.at(Some(block)))?;
        self.check_range(node, Some(block), end)?;
        self.alloc.verified().note(block);
        Ok(bytes)
    }

    /// Checks a node against the end of its range and the volume's own structures.
    fn check_range(&self, node: ExtentNode<'_>, block: Option<BlockNo>, end: u32) -> Result<()> {
        for n in 0..node.entries() {
            let (pblk, count, last) = if node.is_leaf() {
                let extent = node.extent(n).map_err(self.at(block))?;
                (extent.pblk, extent.len, extent.end())
            } else {
                let index = node.index(n).map_err(self.at(block))?;
                (index.pblk, 1, index.lblk.0.saturating_add(1))
            };
            if last > end {
                return Err(Damage::OutOfRange {
                    ino: self.ino,
                    lblk: node.lblk(n),
                }
                .into());
            }
            self.alloc.check_mappable(self.ino, pblk, count.into())?;
        }
        Ok(())
    }

    /// Returns where a new block at `lblk` should be: behind the preceding block of the file, at
    /// the distance that both have in the file.
    pub(super) fn goal(&self, lblk: LBlock) -> Result<BlockNo> {
        let path = self.path(lblk)?;
        let leaf = path.leaf();
        let view = leaf.view(self.alloc.geo()).map_err(self.at(leaf.block))?;
        if view.entries() == 0 {
            return Ok(self.alloc.goal_of_inode(self.ino, self.raw.is_regular()));
        }
        let near = view
            .extent(view.search(lblk).unwrap_or(0))
            .map_err(self.at(leaf.block))?;
        Ok(match lblk.0.checked_sub(near.lblk.0) {
            Some(behind) => near.pblk.plus(behind.into()),
            None => BlockNo(near.pblk.0.saturating_sub(u64::from(near.lblk.0 - lblk.0))),
        })
    }
}

fn hole(lblk: LBlock, until: u32) -> Run {
    Run {
        lblk,
        len: until.saturating_sub(lblk.0).max(1),
        pblk: BlockNo(0),
        state: MapState::Hole,
    }
}
