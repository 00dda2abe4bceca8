//! Group descriptors, and the blocks of the descriptors, of the superblock and of their copies.

use stetfs_format::width::u32_as_usize;
use stetfs_format::{
    BlockNo, Corrupt, FeatureIncompat, Geometry, GroupDesc, GroupFlags, GroupNo, Place,
};

use crate::finding::Fault;
use crate::state::Check;

impl Check<'_> {
    /// Reads the group descriptors. Returns false if the places of the groups' metadata remain
    /// unknown.
    pub(crate) fn read_groups(&mut self) -> bool {
        let mut raw = std::mem::take(&mut self.s.block);
        let per_block = self.g.desc_per_block();
        let mut all_good = true;
        for index in 0..self.g.desc_blocks() {
            let first = index * per_block;
            let last = self.g.groups_count.min(first + per_block);
            let block = self.g.desc_block(index);
            if block.0 >= self.g.blocks_count {
                // Only a wrong `s_first_meta_bg` leads here.
                let first = self.sb.first_meta_bg;
                let blocks = self.g.desc_blocks();
                self.push(
                    Place::Superblock,
                    Corrupt::SuperFirstMetaBg { first, blocks },
                );
                all_good = false;
                break;
            }
            if !self.read(block, &mut raw) {
                all_good = false;
                break;
            }
            for g in first..last {
                let start = u32_as_usize(g - first) * self.g.desc_size();
                all_good &= self.check_group(GroupNo(g), &raw[start..]);
            }
        }
        self.s.block = raw;
        all_good
    }

    fn check_group(&mut self, g: GroupNo, raw: &[u8]) -> bool {
        let place = Place::Group(g);
        let decoded = match GroupDesc::decode(raw, g, &self.g) {
            Err(corrupt @ Corrupt::GroupChecksum { .. }) => {
                self.push(place, corrupt);
                GroupDesc::decode(raw, g, &without_checksums(&self.g))
            }
            decoded => decoded,
        };
        let desc = match decoded {
            Ok(desc) => desc,
            Err(corrupt) => {
                self.push(place, corrupt);
                return false;
            }
        };
        let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
        if self.g.metadata_csum || self.g.gdt_csum {
            let (unused, free) = (desc.itable_unused, desc.free_inodes_count);
            if unused > free {
                self.push(place, Fault::ItableUnused { unused, free });
            }
            let is_last = g.0 == self.g.groups_count - 1;
            if is_last && desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                self.push(place, Fault::LastGroupUninit);
            }
        } else if desc.flags.intersects(uninit) || desc.itable_unused != 0 {
            self.push(place, Fault::GroupUninit);
        }
        self.s.groups.push(desc);
        true
    }

    /// Claims the metadata of the groups. Returns false if some overlap: then one structure would
    /// be read as another.
    pub(crate) fn claim_metadata(&mut self) -> bool {
        let mut apart = true;
        for g in (0..self.g.groups_count).map(GroupNo) {
            // Copies of superblock and descriptors.
            let count = self.g.base_meta_blocks(g).min(self.g.group_blocks(g));
            apart &= self.claim_of_group(
                g,
                "superblock or descriptors",
                self.g.group_first_block(g),
                count,
            );
        }
        for g in (0..self.g.groups_count).map(GroupNo) {
            let desc = self.s.groups[g.index()];
            let table = self.g.inode_table_blocks();
            apart &= self.claim_of_group(g, "inode table", desc.inode_table, table);
            apart &= self.claim_of_group(g, "block bitmap", desc.block_bitmap, 1);
            apart &= self.claim_of_group(g, "inode bitmap", desc.inode_bitmap, 1);
        }
        if self.sb.feature_incompat.contains(FeatureIncompat::MMP) {
            let block = BlockNo(self.sb.mmp_block);
            if self.g.is_valid_range(block, 1) {
                apart &= self.claim_of_group(GroupNo(0), "multiple-mount block", block, 1);
            } else {
                self.push(Place::Superblock, Corrupt::SuperMmpBlock(block.0))
            }
        }
        apart
    }

    fn claim_of_group(
        &mut self,
        g: GroupNo,
        what: &'static str,
        start: stetfs_format::BlockNo,
        count: u32,
    ) -> bool {
        if count == 0 {
            return true;
        }
        let Some(repeated) = self.s.claims.claim(start, count.into()) else {
            return true;
        };
        let block = repeated.first;
        self.push(Place::Group(g), Fault::MetadataOverlap { what, block });
        false
    }
}

/// Returns the geometry as it would be without checksums, to decode a record again whose checksum
/// is wrong.
pub(crate) fn without_checksums(geometry: &Geometry) -> Geometry {
    Geometry {
        metadata_csum: false,
        gdt_csum: false,
        ..*geometry
    }
}
