//! Hash trees. Exactly one pair names each block of an indexed directory, at the depth that the
//! root says, and the hashes of its names lie in the range that the pairs above give it.

use stetfs_format::bytes::read_u16le;
use stetfs_format::width::u32_as_usize;
use stetfs_format::{Corrupt, DxBlock, Hasher, LBlock, Place, SuperFlags, htree};

use crate::finding::Fault;
use crate::state::{BlockKind, Check, Dir, HashRange, HtreeBlock};

/// The value beyond all hashes.
const LAST_HASH: u32 = 0xffff_fffe;
/// More levels than any tree has.
const MAX_DEPTH: u32 = 4;
/// The lowest bit of a stored hash: names with that hash begin in the block before.
const CONTINUED: u32 = 1;

/// Offset of the file type in the free entry that a node looks like.
const FILE_TYPE: usize = 7;

const UNKNOWN: HtreeBlock = HtreeBlock {
    kind: BlockKind::Leaf,
    references: 0,
    is_first: false,
    is_last: false,
    goes_on: false,
    parent: 0,
    held: HashRange { min: !0, max: 0 },
    allowed: HashRange { min: 0, max: 0 },
};

impl Check<'_> {
    pub(crate) fn begin_htree(&mut self, blocks: usize) {
        self.s.htree.clear();
        self.s.htree.resize(blocks, UNKNOWN);
    }

    /// Returns how the directory's names are hashed; `None`, with a finding, if its root does not
    /// say.
    pub(crate) fn htree_root(&mut self, dir: &Dir, raw: &[u8]) -> Option<Hasher> {
        match DxBlock::root(raw, &self.g) {
            Ok((_, info)) => {
                self.s.htree_depth = u32::from(info.indirect_levels) + 1;
                Some(Hasher {
                    version: info.hash_version,
                    // As in the kernel and e2fsck, even if both flags are set.
                    unsigned: self.sb.flags.contains(SuperFlags::UNSIGNED_HASH),
                    seed: self.sb.hash_seed,
                })
            }
            Err(corrupt) => {
                self.push(Place::FileBlock(dir.ino, LBlock(0)), corrupt);
                None
            }
        }
    }

    /// Returns the kind of a block. A node looks like one free entry and has the limit of a node.
    pub(crate) fn kind_of(&self, lblk: u32, raw: &[u8], has_tree: bool) -> BlockKind {
        if !has_tree {
            return BlockKind::Leaf;
        }
        if lblk == 0 {
            return BlockKind::Root;
        }
        if htree::looks_like_node(raw) && read_u16le(raw, 8) == htree::node_limit(&self.g) {
            return BlockKind::Node;
        }
        BlockKind::Leaf
    }

    pub(crate) fn htree_block(
        &mut self,
        dir: &Dir,
        lblk: u32,
        kind: BlockKind,
        raw: &[u8],
        names: HashRange,
    ) {
        let block = &mut self.s.htree[u32_as_usize(lblk)];
        block.kind = kind;
        block.held = names;
        if kind == BlockKind::Leaf {
            return;
        }
        let place = Place::FileBlock(dir.ino, LBlock(lblk));
        let decoded = match kind {
            BlockKind::Root => DxBlock::root(raw, &self.g).map(|(root, _)| root),
            _ => DxBlock::node(raw, &self.g),
        };
        if kind == BlockKind::Node && self.g.metadata_csum && raw[FILE_TYPE] != 0 {
            // e2fsck takes the file type for a part of the name's length, and then does not find
            // the checksum.
            self.push(place, Corrupt::DxNode);
        }
        match decoded {
            Ok(pairs) => self.htree_pairs(dir, place, lblk, &pairs),
            Err(corrupt) => self.push(place, corrupt),
        }
    }

    fn htree_pairs(&mut self, dir: &Dir, place: Place, lblk: u32, pairs: &DxBlock<'_>) {
        let checks = [pairs.check_checksum(dir.seed, &self.g), pairs.check_order()];
        for corrupt in checks.into_iter().filter_map(Result::err) {
            self.push(place, corrupt);
        }
        let mut held = HashRange { min: !0, max: 0 };
        for i in 0..pairs.count() {
            let pair = pairs.entry(i);
            let hash = pair.hash & !CONTINUED;
            held.min = held.min.min(hash);
            held.max = held.max.max(hash);
            let is_last = i + 1 == pairs.count();
            let next = if is_last {
                LAST_HASH
            } else {
                pairs.entry(i + 1).hash
            };
            let Some(below) = self.s.htree.get_mut(u32_as_usize(pair.block.0)) else {
                self.push(place, Fault::HtreeBlock(pair.block));
                continue;
            };
            if below.references == 0 {
                below.parent = lblk;
            }
            below.references = below.references.saturating_add(1);
            below.is_first |= i == 0;
            below.is_last |= is_last;
            below.goes_on = next & CONTINUED != 0;
            below.allowed = HashRange {
                min: hash,
                max: next & !CONTINUED,
            };
        }
        self.s.htree[u32_as_usize(lblk)].held = held;
    }

    /// Checks the tree, once all blocks of the directory have been seen.
    pub(crate) fn end_htree(&mut self, dir: &Dir) {
        let mut blocks = std::mem::take(&mut self.s.htree);
        let root = &mut blocks[0];
        root.references = root.references.saturating_add(1);
        (root.is_first, root.is_last) = (true, true);
        // A node's range is that of its first and last block. The deepest trees have nodes of
        // nodes.
        for kind in [BlockKind::Leaf, BlockKind::Node] {
            for i in 0..blocks.len() {
                let block = blocks[i];
                if block.kind != kind {
                    continue;
                }
                let parent = &mut blocks[u32_as_usize(block.parent)];
                if block.is_first {
                    parent.held.min = block.held.min;
                }
                if block.is_last {
                    parent.held.max = block.held.max;
                }
            }
        }
        for (lblk, block) in blocks.iter().enumerate() {
            let place = Place::FileBlock(dir.ino, LBlock(u32::try_from(lblk).unwrap_or(u32::MAX)));
            self.check_htree_block(place, block, &blocks);
        }
        self.s.htree = blocks;
    }

    fn check_htree_block(&mut self, place: Place, block: &HtreeBlock, blocks: &[HtreeBlock]) {
        if block.references == 0 {
            self.push(place, Fault::HtreeUnreferenced);
            return;
        }
        if block.references > 1 {
            self.push(place, Fault::HtreeReferencedTwice);
        }
        let (held, allowed) = (block.held, block.allowed);
        if !block.is_first && held.min < allowed.min {
            let (found, limit) = (held.min, allowed.min);
            self.push(place, Fault::HtreeMinHash { found, limit });
        }
        let is_root = block.kind == BlockKind::Root;
        if !is_root && held.max > allowed.max {
            let (found, limit) = (held.max, allowed.max);
            self.push(place, Fault::HtreeMaxHash { found, limit });
        }
        let has_names = held.min <= held.max;
        if !is_root && !block.is_last && has_names && held.max == allowed.max && !block.goes_on {
            self.push(place, Fault::HtreeContinuation(held.max));
        }
        if block.kind == BlockKind::Leaf {
            let mut depth = 0;
            let mut at = block;
            while at.kind != BlockKind::Root && depth < MAX_DEPTH {
                at = &blocks[u32_as_usize(at.parent)];
                depth += 1;
            }
            let expected = self.s.htree_depth;
            if depth != expected {
                let found = depth;
                self.push(place, Fault::HtreeDepth { found, expected });
            }
        }
    }
}
