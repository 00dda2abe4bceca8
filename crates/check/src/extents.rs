//! The walk over an extent tree.
//!
//! Besides what the decoder demands of each node, it checks the rules of e2fsck between nodes. An
//! extent lies inside the range of the index above it; the last index's range ends with the file,
//! and only unwritten extents may go beyond. A directory has neither holes nor unwritten blocks.

use stetfs_format::extent::{Expected, ExtentNode, max_entries};
use stetfs_format::width::{low32, usize_as_u64};
use stetfs_format::{
    BlockNo, Corrupt, Extent, Geometry, Inode, InodeFlags, InodeNo, LBlock, Place,
};

use crate::finding::Fault;
use crate::groups::without_checksums;
use crate::state::{Check, Keep, Mapped, Run};

/// How many entries `eh_max` may fall short by in e2fsck: room for a checksum.
const SPARE_ENTRIES: u16 = 2;

/// A walk under way.
struct Walk {
    ino: InodeNo,
    keep: Keep,
    seed: u32,
    mapped: Mapped,
    /// The last logical block of the file by its size; all ones for an empty file.
    eof_block: u64,
    /// The first logical block beyond the limit of a directory of bounded size; `None` if there is
    /// no limit.
    too_large: Option<u64>,
}

/// What the levels above tell of a node.
struct Bounds {
    /// The last logical block that the node may map; `None` for the root.
    last: Option<u64>,
    /// The logical block after the node in the tree, for the node's last entry.
    next: u64,
}

impl Check<'_> {
    pub(crate) fn walk_extents(&mut self, ino: InodeNo, inode: &Inode, keep: Keep) -> Mapped {
        let size_blocks = inode.size.div_ceil(usize_as_u64(self.g.block_size()));
        let mut walk = Walk {
            ino,
            keep,
            seed: inode.csum_seed(ino, &self.g),
            mapped: Mapped::default(),
            eof_block: size_blocks.wrapping_sub(1),
            too_large: self.too_large(inode),
        };
        let g = self.g;
        match ExtentNode::root(&inode.block, &g) {
            Ok(node) => {
                self.check_max(Place::Inode(ino), node.max(), 4);
                let bounds = Bounds {
                    last: None,
                    next: size_blocks,
                };
                self.walk_node(&mut walk, &node, &bounds);
            }
            Err(corrupt) => self.push(Place::Inode(ino), corrupt),
        }
        walk.mapped
    }

    /// Returns the logical block at 2 GiB, where a directory without `large_dir` must end; `None`
    /// if the inode has no such limit.
    pub(crate) fn too_large(&self, inode: &Inode) -> Option<u64> {
        let is_bounded = inode.is_dir() && !self.g.largedir && inode.size >> 32 == 0;
        is_bounded.then_some(1 << (31 - self.g.block.bits()))
    }

    fn check_max(&mut self, place: Place, max: u16, possible: u16) {
        if max + SPARE_ENTRIES < possible {
            self.push(place, Fault::ExtentMaxLow { max, possible });
        }
    }

    fn walk_node(&mut self, walk: &mut Walk, node: &ExtentNode<'_>, bounds: &Bounds) {
        for i in 0..node.entries() {
            if node.is_leaf() {
                // The decoder has checked the extents.
                if let Ok(extent) = node.extent(i) {
                    self.walk_extent(walk, extent, bounds);
                }
                continue;
            }
            let Ok(index) = node.index(i) else { continue };
            let is_last = i + 1 == node.entries();
            let next = if is_last {
                bounds.next
            } else {
                node.lblk(i + 1).0.into()
            };
            // In 32 and 64 bits, as e2fsck calculates: if a file ends before its last index, it
            // sets no bound.
            let len = low32(next.wrapping_sub(index.lblk.0.into()));
            let last = (u64::from(index.lblk.0) + u64::from(len)).wrapping_sub(1);
            if bounds.last.is_some_and(|limit| limit != 0 && last > limit) {
                let lblk = index.lblk;
                self.push(Place::Inode(walk.ino), Fault::ExtentBounds { lblk, len });
                continue;
            }
            let below = Bounds {
                last: Some(last),
                next,
            };
            let expected = Expected {
                depth: node.depth() - 1,
                lblk: index.lblk,
            };
            self.walk_block(walk, index.pblk, expected, &below);
        }
    }

    fn walk_block(&mut self, walk: &mut Walk, block: BlockNo, expected: Expected, bounds: &Bounds) {
        let place = Place::InodeBlock(walk.ino, block);
        walk.mapped.blocks += 1;
        // A block with a second owner may hold anything, and may even be its own ancestor.
        if !self.claim(place, block, 1) {
            return;
        }
        let level = usize::from(expected.depth);
        let mut raw = std::mem::take(&mut self.s.nodes[level]);
        if self.read(block, &mut raw) {
            let mut g = self.g;
            let mut decoded = ExtentNode::decode(&raw, expected, walk.seed, &g);
            if let Err(corrupt @ Corrupt::ExtentChecksum { .. }) = decoded {
                self.push(place, corrupt);
                g = without_checksums(&self.g);
                decoded = ExtentNode::decode(&raw, expected, walk.seed, &g);
            }
            match decoded {
                Ok(node) => {
                    self.check_max(place, node.max(), max_entries(&self.g));
                    self.walk_node(walk, &node, bounds);
                }
                Err(corrupt) => self.push(place, corrupt),
            }
        }
        self.s.nodes[level] = raw;
    }

    fn walk_extent(&mut self, walk: &mut Walk, extent: Extent, bounds: &Bounds) {
        let place = Place::Inode(walk.ino);
        let (lblk, len) = (extent.lblk, u32::from(extent.len));
        let last = u64::from(extent.end()) - 1;
        let is_beyond = bounds.last.is_some_and(|limit| limit != 0 && last > limit);
        let is_spare = extent.unwritten && last > walk.eof_block;
        if is_beyond && !is_spare {
            self.push(place, Fault::ExtentBounds { lblk, len });
            return;
        }
        if u64::from(lblk.0) < walk.mapped.end {
            self.push(place, Fault::ExtentCollision(lblk));
            return;
        }
        if walk.keep == Keep::Directory {
            if walk.too_large.is_some_and(|limit| last >= limit) {
                self.push(place, Fault::DirectoryTooLarge(lblk));
                return;
            }
            if extent.unwritten {
                self.push(place, Fault::DirectoryUnwritten(lblk));
            }
            if u64::from(lblk.0) > walk.mapped.end {
                self.push(place, Fault::DirectoryHole(lblk));
            }
        }
        self.take_run(
            walk.ino,
            walk.keep,
            &mut walk.mapped,
            lblk,
            extent.pblk,
            len,
        );
        if !extent.unwritten {
            walk.mapped.written_end = last + 1;
        }
    }

    /// Counts a run of a file's blocks and claims it. If nobody else has claimed any of them, notes
    /// them as `keep` says.
    pub(crate) fn take_run(
        &mut self,
        ino: InodeNo,
        keep: Keep,
        mapped: &mut Mapped,
        lblk: LBlock,
        pblk: BlockNo,
        len: u32,
    ) {
        if lblk.0 == 0 {
            mapped.first = Some(pblk);
        }
        if u64::from(lblk.0) == mapped.contiguous {
            mapped.contiguous += u64::from(len);
        }
        mapped.blocks += u64::from(len);
        mapped.end = u64::from(lblk.0) + u64::from(len);
        if !self.claim(Place::Inode(ino), pblk, len.into()) {
            return;
        }
        let run = Run {
            pblk,
            lblk: lblk.0,
            len,
        };
        match keep {
            Keep::Directory => self.s.runs.push(run),
            Keep::OrphanFile => self.s.orphan_runs.push(run),
            Keep::Nothing | Keep::Journal | Keep::BadBlocks => {}
        }
    }
}

/// Returns the block of a symbolic link that one extent of one block maps.
pub(crate) fn only_block(inode: &Inode, g: &Geometry) -> Option<BlockNo> {
    debug_assert!(inode.flags.contains(InodeFlags::EXTENTS));
    let node = ExtentNode::root(&inode.block, g).ok()?;
    if !node.is_leaf() || node.entries() != 1 {
        return None;
    }
    let extent = node.extent(0).ok()?;
    (extent.lblk.0 == 0 && extent.len == 1).then_some(extent.pblk)
}
