//! One node of an extent tree, copied to be changed, and operations on single extents.

use stetfs_format::extent::{
    Extent, ExtentNode, ExtentNodeMut, MAX_UNWRITTEN_LEN, MAX_WRITTEN_LEN, ROOT_SIZE,
};
use stetfs_format::width::{must_fit, u16_as_u32};
use stetfs_format::{BlockNo, Corrupt, Geometry, LBlock};

use super::run::MapState;

/// Returns the length of the longest extent of a state, in blocks.
pub(super) const fn len_max(unwritten: bool) -> u32 {
    if unwritten {
        u16_as_u32(MAX_UNWRITTEN_LEN)
    } else {
        u16_as_u32(MAX_WRITTEN_LEN)
    }
}

/// Returns the state of an extent's blocks.
pub(super) const fn state_of(extent: &Extent) -> MapState {
    if extent.unwritten {
        MapState::Unwritten
    } else {
        MapState::Written
    }
}

/// Returns the part of `extent` in `[from, to)`, which must overlap it.
pub(super) fn part(extent: &Extent, from: u32, to: u32) -> Extent {
    let from = from.max(extent.lblk.0);
    let to = to.min(extent.end());
    Extent {
        lblk: LBlock(from),
        len: must_fit(to - from),
        pblk: extent.pblk.plus((from - extent.lblk.0).into()),
        unwritten: extent.unwritten,
    }
}

/// Returns both as one extent if `next` follows `extent` in the file and on the volume, has the
/// same state, and the sum is not too long.
pub(super) fn joined(extent: &Extent, next: &Extent) -> Option<Extent> {
    let len = u32::from(extent.len) + u32::from(next.len);
    let follows = extent.end() == next.lblk.0
        && extent.pblk.plus(extent.len.into()) == next.pblk
        && extent.unwritten == next.unwritten
        && len <= len_max(extent.unwritten);
    follows.then(|| Extent {
        len: must_fit(len),
        ..*extent
    })
}

/// A node that is being changed.
pub(super) struct Node {
    /// Where it lies; `None` for the root.
    pub(super) block: Option<BlockNo>,
    pub(super) bytes: Vec<u8>,
}

impl Node {
    /// Copies a node that was checked.
    pub(super) fn of(block: Option<BlockNo>, bytes: &[u8]) -> Self {
        Self {
            block,
            bytes: bytes.to_vec(),
        }
    }

    /// Returns an empty node for `block`.
    pub(super) fn fresh(block: BlockNo, depth: u16, geo: &Geometry) -> Self {
        let mut bytes = vec![0; geo.block_size()];
        ExtentNodeMut::init_block(&mut bytes, depth, geo);
        Self {
            block: Some(block),
            bytes,
        }
    }

    /// Returns an empty root.
    pub(super) fn empty_root(depth: u16) -> Self {
        let mut bytes = [0; ROOT_SIZE];
        ExtentNodeMut::init_root(&mut bytes, depth);
        Self {
            block: None,
            bytes: bytes.to_vec(),
        }
    }

    /// Returns the node for reading.
    pub(super) fn view<'a>(&'a self, geo: &'a Geometry) -> Result<ExtentNode<'a>, Corrupt> {
        match self.block {
            None => ExtentNode::root(self.root_bytes(), geo),
            Some(_) => ExtentNode::view(&self.bytes, depth_of(&self.bytes), geo),
        }
    }

    /// Returns the node for changing.
    pub(super) fn edit(&mut self) -> ExtentNodeMut<'_> {
        ExtentNodeMut::edit(&mut self.bytes)
    }

    pub(super) fn is_full(&mut self) -> bool {
        let node = self.edit();
        node.entries() >= node.max()
    }

    /// Returns the bytes of the root, for `i_block`.
    pub(super) fn root_bytes(&self) -> &[u8; ROOT_SIZE] {
        self.bytes[..].try_into().expect("a root")
    }
}

/// Returns the depth in a node's header.
pub(super) fn depth_of(bytes: &[u8]) -> u16 {
    stetfs_format::bytes::read_u16le(bytes, 6)
}
