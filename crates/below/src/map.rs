//! What each block of the volume is, as far as its layout says: groups, bitmaps, inode tables.
//!
//! From the bitmaps that a transaction changes follows which blocks it allocates and frees. The
//! kernel writes no revoke records in its mode `data=journal`, and says nowhere that a block is
//! new; yet a scheme that knows either writes less.

use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};
use stetfs_format::group::{GroupFlags, init_block_bitmap};
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_format::{BlockNo, Geometry, GroupDesc, GroupNo, Superblock};
use stetfs_media::Class;

/// The first two bytes of a node of an extent tree (`EXT4_EXT_MAGIC`), little-endian.
const EXTENT_MAGIC: [u8; 2] = [0x0a, 0xf3];
/// The first four bytes of a block of extended attributes (`EXT4_XATTR_MAGIC`), little-endian.
const XATTR_MAGIC: [u8; 4] = [0, 0, 0x02, 0xea];

/// The layout of the volume's groups.
pub(crate) struct Map {
    geometry: Geometry,
    block_bitmaps: HashMap<u64, GroupNo>,
    inode_bitmaps: HashSet<u64>,
    /// First blocks of inode tables.
    inode_tables: BTreeSet<u64>,
    descriptors: Vec<Option<GroupDesc>>,
}

/// Which blocks a transaction takes and gives back.
#[derive(Debug, Default)]
pub(crate) struct Allocated {
    /// They were free in what was committed before.
    pub(crate) taken: HashSet<u64>,
    /// They are free from now on.
    pub(crate) freed: Vec<u64>,
}

impl Map {
    /// The layout, from the superblock and the descriptors that `read` finds. A descriptor that
    /// cannot be read or decoded is left out: its group's blocks are told by their content.
    pub(crate) fn new(sb: &Superblock, mut read: impl FnMut(BlockNo) -> Option<Vec<u8>>) -> Self {
        let geometry: Geometry = **sb;
        let mut map = Self {
            geometry,
            block_bitmaps: HashMap::new(),
            inode_bitmaps: HashSet::new(),
            inode_tables: BTreeSet::new(),
            descriptors: Vec::new(),
        };
        let mut last: Option<(BlockNo, Option<Vec<u8>>)> = None;
        for g in (0..geometry.groups_count).map(GroupNo) {
            let (block, at) = geometry.desc_position(g);
            if last.as_ref().is_none_or(|(read, _)| *read != block) {
                last = Some((block, read(block)));
            }
            let raw = last.as_ref().and_then(|(_, raw)| raw.as_deref());
            let raw = raw.map(|raw| &raw[at..at + geometry.desc_size()]);
            let desc = raw.and_then(|raw| GroupDesc::decode_torn(raw, g, &geometry).ok());
            map.descriptors.push(None);
            if let Some(desc) = desc {
                map.learn(g, desc);
            }
        }
        map
    }

    fn learn(&mut self, g: GroupNo, desc: GroupDesc) {
        self.block_bitmaps.insert(desc.block_bitmap.0, g);
        self.inode_bitmaps.insert(desc.inode_bitmap.0);
        self.inode_tables.insert(desc.inode_table.0);
        self.descriptors[u32_as_usize(g.0)] = Some(desc);
    }

    /// Groups that it knows.
    pub(crate) fn groups(&self) -> u32 {
        self.geometry.groups_count
    }

    /// What kind of block it is: by its place, and where that says nothing, by its content. A
    /// wrong answer costs bytes or a line in the statistics, nothing else.
    pub(crate) fn class(&self, block: BlockNo, content: &[u8]) -> Class {
        if self.block_bitmaps.contains_key(&block.0) {
            return Class::BlockBitmap;
        }
        if self.inode_bitmaps.contains(&block.0) {
            return Class::InodeBitmap;
        }
        let table = self.inode_tables.range(..=block.0).next_back();
        let len = u64::from(self.geometry.inode_table_blocks());
        if table.is_some_and(|start| block.0 < start + len) {
            return Class::InodeTable;
        }
        if block < self.geometry.first_data_block() {
            return Class::Data;
        }
        let (g, index) = self.geometry.group_of_block(block);
        if index < self.geometry.base_meta_blocks(g) {
            return match (index, self.geometry.has_super(g)) {
                (0, true) => Class::Superblock,
                _ => Class::GroupDesc,
            };
        }
        class_by_content(content)
    }

    /// Whether it is a group's block bitmap.
    pub(crate) fn is_block_bitmap(&self, block: BlockNo) -> bool {
        self.block_bitmaps.contains_key(&block.0)
    }

    /// What a changed block bitmap says, added to `found`. `before` is its committed content.
    /// Nothing where the block is no block bitmap, and nothing with `bigalloc`, whose bits are
    /// clusters.
    pub(crate) fn compare(
        &self,
        block: BlockNo,
        before: &[u8],
        after: &[u8],
        found: &mut Allocated,
    ) {
        let Some(&g) = self.block_bitmaps.get(&block.0) else {
            return;
        };
        let Some(Some(desc)) = self.descriptors.get(u32_as_usize(g.0)) else {
            return;
        };
        if self.geometry.cluster_bits != 0 {
            return;
        }
        let mut initial = Vec::new();
        let before = if desc
            .flags(&self.geometry)
            .contains(GroupFlags::BLOCK_UNINIT)
        {
            initial.resize(before.len(), 0);
            init_block_bitmap(&mut initial, g, desc, &self.geometry);
            &initial[..]
        } else {
            before
        };
        let first = self.geometry.group_first_block(g).0;
        let blocks = u32_as_usize(self.geometry.group_blocks(g));
        for (at, (old, new)) in before.iter().zip(after).enumerate() {
            let mut changed = old ^ new;
            while changed != 0 {
                let bit = changed.trailing_zeros();
                changed &= changed - 1;
                let index = at * 8 + u32_as_usize(bit);
                if index >= blocks {
                    continue;
                }
                let block = first + must_fit::<_, u64>(index);
                if new >> bit & 1 == 1 {
                    found.taken.insert(block);
                } else {
                    found.freed.push(block);
                }
            }
        }
    }

    /// Takes over the descriptors of a block of them that was committed.
    pub(crate) fn described(&mut self, block: BlockNo, content: &[u8]) {
        let per_block = self.geometry.desc_per_block();
        let index =
            (0..self.geometry.desc_blocks()).find(|n| self.geometry.desc_block(*n) == block);
        let Some(index) = index else {
            return;
        };
        let first = index * per_block;
        let end = self
            .geometry
            .groups_count
            .min(first.saturating_add(per_block));
        for g in first..end {
            let g = GroupNo(g);
            let at = self.geometry.desc_position(g).1;
            let raw = &content[at..at + self.geometry.desc_size()];
            if let Ok(desc) = GroupDesc::decode_torn(raw, g, &self.geometry) {
                self.learn(g, desc);
            }
        }
    }
}

fn class_by_content(content: &[u8]) -> Class {
    if content.starts_with(&EXTENT_MAGIC) {
        Class::Mapping
    } else if content.starts_with(&XATTR_MAGIC) {
        Class::Xattr
    } else if is_directory(content) {
        Class::Directory
    } else {
        Class::Data
    }
}

/// Whether the block holds directory entries from its beginning to its end, each with a length in
/// whole words and a name that fits.
fn is_directory(content: &[u8]) -> bool {
    const HEADER: usize = 8;
    let mut at = 0;
    while at + HEADER <= content.len() {
        let len = usize::from(u16::from_le_bytes([content[at + 4], content[at + 5]]));
        let name = usize::from(content[at + 6]);
        if len < HEADER || !len.is_multiple_of(4) || at + len > content.len() || name + HEADER > len
        {
            return false;
        }
        at += len;
    }
    at == content.len()
}
