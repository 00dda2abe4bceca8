//! Changing extent trees: one primitive, [`TreeMut::splice`], and what it needs to split and shrink
//! nodes.
//!
//! Invariants after each call:
//! 1. every key in an index equals the first key of its child (e2fsck demands it);
//! 2. no node but the root is empty;
//! 3. a new extent is merged with its neighbours in the leaf where they fit.
//!
//! All blocks that a change can need are allocated before anything is changed, so running out of
//! space leaves the tree as it was. Nodes are edited in copies and stored child first, parent last,
//! all in one transaction.

use smallvec::SmallVec;
use stetfs_format::extent::{Extent, ExtentNodeMut, Index};
use stetfs_format::{BlockNo, Inode, InodeNo};
use stetfs_journal::Handle;
use stetfs_media::Class;

use super::extent::{Level, Path, Tree};
use super::node::{Node, joined};
use super::run::charge;
use crate::alloc::{Alloc, Source};
use crate::changes::write_changed;
use crate::error::Result;

/// An extent tree, for changing. The caller stores the inode, whose `block` and `blocks` change.
pub(super) struct TreeMut<'a> {
    pub(super) alloc: &'a Alloc,
    pub(super) h: &'a Handle,
    pub(super) ino: InodeNo,
    pub(super) raw: &'a mut Inode,
    /// Blocks allocated for the new nodes of the current change.
    spares: SmallVec<[BlockNo; 6]>,
}

/// The extents that replace one extent, or are inserted.
pub(super) type Pieces = SmallVec<[Extent; 3]>;

/// An entry of a leaf, or of a node above the leaves.
#[derive(Clone, Copy)]
enum Entry {
    Extent(Extent),
    Index(Index),
}

impl Entry {
    fn insert(self, mut node: ExtentNodeMut<'_>, at: u16) {
        match self {
            Self::Extent(e) => node.insert_extent(at, e),
            Self::Index(i) => node.insert_index(at, i),
        }
    }
}

impl<'a> TreeMut<'a> {
    pub(super) fn new(alloc: &'a Alloc, h: &'a Handle, ino: InodeNo, raw: &'a mut Inode) -> Self {
        Self {
            alloc,
            h,
            ino,
            raw,
            spares: SmallVec::new(),
        }
    }

    pub(super) fn read(&self) -> Tree<'_> {
        Tree {
            alloc: self.alloc,
            ino: self.ino,
            raw: self.raw,
        }
    }

    /// Adds `blocks` to `i_blocks`; subtracts when negative.
    pub(super) fn charge(&mut self, blocks: i64) -> Result<()> {
        charge(self.alloc, self.ino, self.raw, blocks)
    }

    /// Replaces the extent at `pos` of the leaf at the end of `path` by `pieces` (`replace`), or
    /// inserts them before it. The first and the last piece are merged with the neighbours when
    /// they fit. With `replace` and no pieces, the extent is removed.
    pub(super) fn splice(
        &mut self,
        mut path: Path,
        mut pos: u16,
        replace: bool,
        mut pieces: Pieces,
    ) -> Result<()> {
        let level = path.levels.len() - 1;
        let leaf = &mut path.levels[level].node;
        if !pieces.is_empty() {
            self.merge(leaf, pos, replace, &mut pieces)?;
        }
        if replace && pieces.is_empty() {
            leaf.edit().remove(pos, 1);
        } else if replace {
            leaf.edit().set_extent(pos, pieces.remove(0));
            pos += 1;
        }
        let (count, max) = (leaf.edit().entries(), leaf.edit().max());
        if count == 0 && pieces.is_empty() {
            return self.drop_node(&mut path, level);
        }
        if usize::from(count) + pieces.len() <= usize::from(max) {
            for (at, piece) in (pos..).zip(&pieces) {
                leaf.edit().insert_extent(at, *piece);
            }
            self.store(leaf)?;
            return self.fix_keys(&mut path, level);
        }
        self.splice_full(path, pos, &pieces)
    }

    /// Does the rest of [`TreeMut::splice`] when the leaf cannot hold all pieces.
    fn splice_full(&mut self, mut path: Path, pos: u16, pieces: &[Extent]) -> Result<()> {
        self.get_spares(&mut path)?;
        let level = path.levels.len() - 1;
        if path.levels[level].node.edit().entries() > 0 {
            self.store(&mut path.levels[level].node)?;
            self.fix_keys(&mut path, level)?;
        }
        self.insert_at(&mut path, level, pos, Entry::Extent(pieces[0]))?;
        for piece in &pieces[1..] {
            let mut path = self.read().path(piece.lblk)?;
            let level = path.levels.len() - 1;
            let leaf = path.leaf();
            let view = leaf
                .view(self.alloc.geo())
                .map_err(self.read().at(leaf.block))?;
            let pos = view.search(piece.lblk).map_or(0, |n| n + 1);
            self.insert_at(&mut path, level, pos, Entry::Extent(*piece))?;
        }
        self.drop_spares()
    }

    /// Merges the first piece into the extent before `pos`, and the last into the one after. A
    /// single piece may join both into one extent.
    fn merge(&self, leaf: &mut Node, pos: u16, replace: bool, pieces: &mut Pieces) -> Result<()> {
        let next = pos + u16::from(replace);
        let view = leaf
            .view(self.alloc.geo())
            .map_err(self.read().at(leaf.block))?;
        let extent = |n| view.extent(n).map_err(self.read().at(leaf.block));
        let before = pos.checked_sub(1).map(extent).transpose()?;
        let after = if next < view.entries() {
            Some(extent(next)?)
        } else {
            None
        };
        let mut grown = None;
        if let Some(joined) = before.and_then(|b| joined(&b, &pieces[0])) {
            leaf.edit().set_extent(pos - 1, joined);
            pieces.remove(0);
            grown = Some(joined);
        }
        let Some(after) = after else {
            return Ok(());
        };
        if let Some(last) = pieces.last() {
            if let Some(joined) = joined(last, &after) {
                leaf.edit().set_extent(next, joined);
                pieces.pop();
            }
        } else if let Some(joined) = grown.and_then(|b| joined(&b, &after)) {
            leaf.edit().set_extent(pos - 1, joined);
            leaf.edit().remove(next, 1);
        }
        Ok(())
    }

    /// Allocates a block for each node that an insertion at the end of `path` splits, and one more
    /// if the root is full too.
    fn get_spares(&mut self, path: &mut Path) -> Result<()> {
        let leaf = path.levels.len() - 1;
        let mut wanted = 1;
        for level in path.levels[..leaf].iter_mut().rev() {
            if !level.node.is_full() {
                break;
            }
            wanted += 1;
        }
        while self.spares.len() < wanted {
            if let Err(e) = self.get_spare() {
                self.drop_spares()?;
                return Err(e);
            }
        }
        Ok(())
    }

    fn get_spare(&mut self) -> Result<()> {
        let goal = self.alloc.goal_of_inode(self.ino, false);
        let block = self.alloc.allocate_one(self.h, goal, Source::Pool)?;
        self.spares.push(block);
        self.charge(1)
    }

    fn drop_spares(&mut self) -> Result<()> {
        while let Some(block) = self.spares.pop() {
            self.free_node(block)?;
        }
        Ok(())
    }

    fn free_node(&mut self, block: BlockNo) -> Result<()> {
        self.alloc.free(self.h, block, 1, Class::Mapping)?;
        self.charge(-1)
    }

    /// Inserts `entry` at `pos` of the node at `level` and stores the node; splits it when it is
    /// full.
    fn insert_at(&mut self, path: &mut Path, level: usize, pos: u16, entry: Entry) -> Result<()> {
        let node = &mut path.levels[level].node;
        if !node.is_full() {
            entry.insert(node.edit(), pos);
            self.store(node)?;
            return self.fix_keys(path, level);
        }
        if level == 0 {
            self.grow(path)?;
            return self.insert_at(path, 1, pos, entry);
        }
        let mut edit = node.edit();
        let count = edit.entries();
        // At the end, leave the old node full: files written in order never come back to it.
        let middle = if pos == count {
            count
        } else {
            count.div_ceil(2)
        };
        let block = take_spare(&mut self.spares);
        let mut right = Node::fresh(block, edit.depth(), self.alloc.geo());
        edit.move_tail(middle, &mut right.edit());
        if pos > middle || middle == count {
            entry.insert(right.edit(), pos - middle);
        } else {
            entry.insert(edit, pos);
        }
        self.store(node)?;
        let lblk = self.store_fresh(right)?;
        self.fix_keys(path, level)?;
        let at = path.levels[level - 1].at + 1;
        self.insert_at(
            path,
            level - 1,
            at,
            Entry::Index(Index { lblk, pblk: block }),
        )
    }

    /// Moves the entries of a full root to a new block, to which the root then has the only index.
    fn grow(&mut self, path: &mut Path) -> Result<()> {
        let block = take_spare(&mut self.spares);
        let Level { node: root, at } = &mut path.levels[0];
        let depth = root.edit().depth();
        let mut child = Node::fresh(block, depth, self.alloc.geo());
        root.edit().move_tail(0, &mut child.edit());
        let copy = Node::of(child.block, &child.bytes);
        let lblk = self.store_fresh(child)?;
        let mut edit = root.edit();
        edit.set_depth(depth + 1);
        edit.insert_index(0, Index { lblk, pblk: block });
        self.raw.block = *root.root_bytes();
        let child_at = std::mem::replace(at, 0);
        path.levels.insert(
            1,
            Level {
                node: copy,
                at: child_at,
            },
        );
        Ok(())
    }

    /// Frees the node at `level`, which is empty, and removes its entry in the parent.
    fn drop_node(&mut self, path: &mut Path, level: usize) -> Result<()> {
        let Some(block) = path.levels[level].node.block else {
            self.raw.block = *Node::empty_root(0).root_bytes();
            return Ok(());
        };
        self.free_node(block)?;
        let Level { node: parent, at } = &mut path.levels[level - 1];
        parent.edit().remove(*at, 1);
        if parent.edit().entries() == 0 {
            return self.drop_node(path, level - 1);
        }
        self.store(parent)?;
        self.fix_keys(path, level - 1)
    }

    /// Makes the keys above the node at `level` equal to its first key.
    fn fix_keys(&mut self, path: &mut Path, level: usize) -> Result<()> {
        let geo = *self.alloc.geo();
        for level in (1..=level).rev() {
            let node = &path.levels[level].node;
            let lblk = node.view(&geo).map_err(self.read().at(node.block))?.lblk(0);
            let child = node.block.expect("only level 0 is the root");
            let Level { node: parent, at } = &mut path.levels[level - 1];
            if parent
                .view(&geo)
                .map_err(self.read().at(parent.block))?
                .lblk(*at)
                == lblk
            {
                return Ok(());
            }
            parent.edit().set_index(*at, Index { lblk, pblk: child });
            self.store(parent)?;
            if *at != 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Moves the entries of the root's only child into the root while they fit.
    pub(super) fn shrink(&mut self) -> Result<()> {
        let geo = *self.alloc.geo();
        loop {
            let root = Node::of(None, &self.raw.block);
            let view = root.view(&geo).map_err(self.read().at(None))?;
            if view.is_leaf() || view.entries() != 1 {
                return Ok(());
            }
            let index = view.index(0).map_err(self.read().at(None))?;
            let depth = view.depth() - 1;
            let bytes = self
                .read()
                .read_node(index, depth, stetfs_format::extent::MAX_BLOCKS)?;
            let mut child = Node::of(Some(index.pblk), &bytes);
            drop(bytes);
            let mut new_root = Node::empty_root(depth);
            if child.edit().entries() > new_root.edit().max() {
                return Ok(());
            }
            child.edit().move_tail(0, &mut new_root.edit());
            self.raw.block = *new_root.root_bytes();
            self.free_node(index.pblk)?;
        }
    }

    /// Writes the changed bytes of a node.
    fn store(&mut self, node: &mut Node) -> Result<()> {
        let Some(block) = node.block else {
            self.raw.block = *node.root_bytes();
            return Ok(());
        };
        let geo = self.alloc.geo();
        node.edit()
            .write_checksum(self.raw.csum_seed(self.ino, geo), geo);
        let content = self.alloc.journal().read(block, Class::Mapping)?;
        write_changed(self.h, (block, Class::Mapping), content, 0, &node.bytes)
    }

    /// Writes a node to a block that was just allocated; returns its first logical block.
    fn store_fresh(&mut self, mut node: Node) -> Result<stetfs_format::LBlock> {
        let block = node.block.expect("a root is not fresh");
        let geo = self.alloc.geo();
        node.edit()
            .write_checksum(self.raw.csum_seed(self.ino, geo), geo);
        self.h.create(block, Class::Mapping, &node.bytes)?;
        self.alloc.verified().note(block);
        Ok(node.view(geo).map_err(self.read().at(node.block))?.lblk(0))
    }
}

/// Takes one of the blocks that [`TreeMut::get_spares`] allocated, one for each split.
fn take_spare(spares: &mut SmallVec<[BlockNo; 6]>) -> BlockNo {
    spares.pop().expect("as many as nodes are full")
}
