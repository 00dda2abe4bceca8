//! What lives at a block of the volume, as far as the superblock and the descriptors say.

use std::collections::HashMap;

use stetfs_format::bytes::{read_u16le, read_u32le};
use stetfs_format::{BlockNo, GroupDesc, GroupNo, SUPERBLOCK_OFFSET, Superblock};
use stetfs_media::{Block, Class, Tag};

use crate::disk::Disk;

/// `eh_magic` of an extent tree block (kernel ext4_extents.h).
const EXTENT_MAGIC: u16 = 0xf30a;
/// `h_magic` of a block of extended attributes (kernel xattr.h).
const XATTR_MAGIC: u32 = 0xea02_0000;

/// The places of the volume's own structures.
pub(crate) struct HomeMap<'a> {
    superblock: &'a Superblock,
    /// Bitmaps by block: what kind, and of which group.
    bitmaps: HashMap<u64, (&'static str, u32)>,
    /// First block and group of each inode table, sorted.
    tables: Vec<(u64, u32)>,
    /// Blocks of the descriptor table, and the first group of each.
    descriptors: HashMap<u64, u32>,
}

impl<'a> HomeMap<'a> {
    /// Reads all descriptors; groups whose descriptor is damaged are left out.
    pub(crate) fn new(disk: &'a Disk) -> Self {
        let sb = &disk.superblock;
        let mut map = Self {
            superblock: sb,
            bitmaps: HashMap::new(),
            tables: Vec::new(),
            descriptors: HashMap::new(),
        };
        let mut block = Block::zeroed(sb.block_size());
        let mut loaded = None;
        for group in 0..sb.groups_count() {
            let (at, offset) = sb.desc_position(GroupNo(group));
            map.descriptors.entry(at.0).or_insert(group);
            if loaded != Some(at) {
                let read = disk.dev.read_at(
                    sb.block.start_of(at),
                    block.bytes_mut(),
                    Tag::read(Class::GroupDesc),
                );
                loaded = read.is_ok().then_some(at);
            }
            let raw = &block.bytes()[offset..offset + sb.desc_size()];
            let Some(desc) = loaded.and_then(|_| GroupDesc::decode(raw, GroupNo(group), sb).ok())
            else {
                continue;
            };
            map.bitmaps
                .insert(desc.block_bitmap.0, ("block bitmap", group));
            map.bitmaps
                .insert(desc.inode_bitmap.0, ("inode bitmap", group));
            map.tables.push((desc.inode_table.0, group));
        }
        map.tables.sort_unstable();
        map
    }

    /// Returns the number of blocks of the volume.
    pub(crate) fn blocks_count(&self) -> u64 {
        self.superblock.blocks_count
    }

    /// Describes `block`, which has this content, in words.
    pub(crate) fn describe(&self, block: BlockNo, content: &[u8]) -> String {
        let sb = self.superblock;
        if block.0 == sb.block.block_of(SUPERBLOCK_OFFSET) {
            return "superblock".to_owned();
        }
        if let Some(first) = self.descriptors.get(&block.0) {
            let last = (first + sb.desc_per_block() - 1).min(sb.groups_count() - 1);
            return format!("descriptors of groups {first}-{last}");
        }
        if let Some((what, group)) = self.bitmaps.get(&block.0) {
            return format!("{what} of group {group}");
        }
        if let Some(text) = self.inode_table(block.0) {
            return text;
        }
        if content.len() >= 4 && read_u16le(content, 0) == EXTENT_MAGIC {
            return "extent tree".to_owned();
        }
        if content.len() >= 4 && read_u32le(content, 0) == XATTR_MAGIC {
            return "extended attributes".to_owned();
        }
        "directory, data or other".to_owned()
    }

    fn inode_table(&self, block: u64) -> Option<String> {
        let sb = self.superblock;
        let after = self.tables.partition_point(|(start, _)| *start <= block);
        let (start, group) = *self.tables.get(after.checked_sub(1)?)?;
        let index = u32::try_from(block - start)
            .ok()
            .filter(|i| *i < sb.inode_table_blocks())?;
        let first = sb.inode_at(GroupNo(group), index * sb.inodes_per_block());
        let last = first.0 + (sb.inodes_per_block() - 1).min(sb.inodes_per_group() - 1);
        Some(format!(
            "inode table of group {group}: inodes {first}-{last}"
        ))
    }
}
