//! A planned volume: pure computation.

use stetfs_format::{FeatureCompat, Geometry, GroupDesc, GroupFlags, GroupNo, SUPERBLOCK_SIZE};

use crate::error::MkfsError;
use crate::files::Files;
use crate::groups::Groups;
use crate::params::{Content, Params};
use crate::shape::Shape;
use crate::superblock::Parts;

/// Where everything of a volume goes, and what it says.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) geometry: Geometry,
    pub(crate) groups: Groups,
    pub(crate) files: Files,
    pub(crate) superblock: [u8; SUPERBLOCK_SIZE],
    pub(crate) content: Content,
}

impl Plan {
    /// Plans the volume that `params` describe.
    ///
    /// # Errors
    /// What is wrong with the arguments, or that they leave no room.
    pub fn new(params: &Params) -> Result<Self, MkfsError> {
        let shape = Shape::new(params)?;
        let geometry = shape.geometry;
        let mut groups = Groups::place(params, &geometry)?;
        let first = u64::from(geometry.first_data_block);
        let metadata = groups.map.used_in(&(first..geometry.blocks_count));
        let has_resize = shape.compat.contains(FeatureCompat::RESIZE_INODE);
        let files = Files::place(params, &geometry, &mut groups, has_resize)?;
        let parts = Parts {
            params,
            shape: &shape,
            groups: &groups,
            files: &files,
            overhead: metadata + u64::from(files.journal_blocks) + first,
        };
        let superblock = parts.encode()?;
        let mut plan = Self {
            geometry,
            groups,
            files,
            superblock,
            content: params.content,
        };
        plan.set_bitmap_checksums();
        Ok(plan)
    }

    /// The volume's shape.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The descriptors of all groups.
    pub fn groups(&self) -> &[GroupDesc] {
        &self.groups.descs
    }

    /// Blocks that no metadata and no file uses.
    pub fn free_blocks(&self) -> u64 {
        self.groups.free_blocks
    }

    /// Blocks of the journal; 0 if there is none.
    pub fn journal_blocks(&self) -> u32 {
        self.files.journal_blocks
    }

    fn set_bitmap_checksums(&mut self) {
        for g in (0..self.geometry.groups_count).map(GroupNo) {
            if let Some(bitmap) = self.block_bitmap(g) {
                self.groups.descs[g.index()].set_block_bitmap_csum(&bitmap, &self.geometry);
            }
            if let Some(bitmap) = self.inode_bitmap(g) {
                self.groups.descs[g.index()].set_inode_bitmap_csum(&bitmap, &self.geometry);
            }
        }
    }

    /// The block bitmap of a group; `None` if it is not initialised.
    pub(crate) fn block_bitmap(&self, g: GroupNo) -> Option<Vec<u8>> {
        let desc = &self.groups.descs[g.index()];
        if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            return None;
        }
        let first = self.geometry.group_first_block(g).0;
        let blocks = u64::from(self.geometry.group_blocks(g));
        let mut bitmap = vec![0; self.geometry.block_size()];
        for run in self.groups.map.used_runs(first..first + blocks) {
            set_bits(&mut bitmap, run.start - first, run.end - first);
        }
        let bits = 8 * u64::from(self.geometry.block.bytes_u32());
        set_bits(&mut bitmap, blocks, bits);
        Some(bitmap)
    }

    /// The inode bitmap of a group; `None` if it is not initialised.
    pub(crate) fn inode_bitmap(&self, g: GroupNo) -> Option<Vec<u8>> {
        let desc = &self.groups.descs[g.index()];
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            return None;
        }
        // The inodes in use are the first of the volume.
        let inodes = self.geometry.inodes_per_group;
        let used = inodes - desc.free_inodes_count;
        let mut bitmap = vec![0; self.geometry.block_size()];
        set_bits(&mut bitmap, 0, used.into());
        let bits = 8 * u64::from(self.geometry.block.bytes_u32());
        set_bits(&mut bitmap, inodes.into(), bits);
        Some(bitmap)
    }
}

fn set_bits(bitmap: &mut [u8], start: u64, end: u64) {
    for bit in start..end {
        let byte = stetfs_format::width::u64_as_usize(bit / 8);
        if bit % 8 == 0 && end - bit >= 8 {
            bitmap[byte] = 0xff;
        } else {
            bitmap[byte] |= 1 << (bit % 8);
        }
    }
}
