//! Where the bitmaps and inode tables of the groups lie, and what each group has left.
//!
//! Without `flex_bg` each group holds its own. With it, the bitmaps of a flexible group's groups
//! lie side by side at its beginning, then its inode tables. Copies of the superblock may be in
//! the way, and a flexible group may overflow into the next; then these searches decide.

use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_format::{BlockNo, Geometry, GroupDesc, GroupFlags, GroupNo, InodeNo};

use crate::block_map::BlockMap;
use crate::error::MkfsError;
use crate::params::{Content, Params};
use crate::shape::FIRST_INO;

const NO_SPACE: MkfsError = MkfsError::NoSpace("inode tables and bitmaps");

/// The groups while the volume is planned.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    geometry: Geometry,
    /// log2 of the groups of a flexible group; 0: each group for itself.
    flex_bits: u32,
    stride: u32,
    /// The descriptors; checksums of bitmaps come last.
    pub descs: Vec<GroupDesc>,
    pub map: BlockMap,
    pub free_blocks: u64,
    pub free_inodes: u32,
}

impl Groups {
    /// Places the metadata of every group.
    pub(crate) fn place(params: &Params, geometry: &Geometry) -> Result<Self, MkfsError> {
        let first = u64::from(geometry.first_data_block);
        let mut groups = Self {
            geometry: *geometry,
            flex_bits: params.flex_bits(),
            stride: params.raid.0.into(),
            descs: Vec::with_capacity(u32_as_usize(geometry.groups_count)),
            map: BlockMap::new(first, geometry.blocks_count),
            free_blocks: 0,
            free_inodes: geometry.inodes_count,
        };
        let mut reserved = FIRST_INO;
        for g in (0..geometry.groups_count).map(GroupNo) {
            let unused = geometry.inodes_per_group.saturating_sub(reserved);
            reserved = reserved.saturating_sub(geometry.inodes_per_group);
            groups.begin(params, g, unused);
        }
        for g in (0..geometry.groups_count).map(GroupNo) {
            groups.place_group(g)?;
        }
        groups.set_tables_cleared(params);
        Ok(groups)
    }

    /// Begins a group: its copies of the superblock and of descriptors are in use.
    fn begin(&mut self, params: &Params, g: GroupNo, unused: u32) {
        let geometry = self.geometry;
        let has_checksums = params.has_group_checksums();
        let base = geometry.base_meta_blocks(g);
        let start = geometry.group_first_block(g).0;
        let room = geometry.group_blocks(g);
        self.map.mark(start, u64::from(base.min(room)));
        let mut taken = base;
        if self.flex_bits == 0 {
            taken += 2 + geometry.inode_table_blocks();
        }
        let is_last = g.0 + 1 == geometry.groups_count;
        let mut flags = GroupFlags::empty();
        // The last group's bitmap must be written: it says what lies behind the volume's end.
        flags.set(GroupFlags::BLOCK_UNINIT, has_checksums && !is_last);
        flags.set(GroupFlags::INODE_UNINIT, has_checksums);
        let free = room.saturating_sub(taken);
        self.free_blocks += u64::from(free);
        self.descs.push(GroupDesc {
            block_bitmap: BlockNo(0),
            inode_bitmap: BlockNo(0),
            inode_table: BlockNo(0),
            free_blocks_count: free,
            free_inodes_count: geometry.inodes_per_group,
            used_dirs_count: 0,
            flags,
            block_bitmap_csum: 0,
            inode_bitmap_csum: 0,
            itable_unused: if has_checksums { unused } else { 0 },
        });
    }

    fn set_tables_cleared(&mut self, params: &Params) {
        if params.content != Content::Lazy {
            for desc in &mut self.descs {
                desc.flags |= GroupFlags::INODE_ZEROED;
            }
        }
    }

    fn desc(&self, g: u32) -> &GroupDesc {
        &self.descs[u32_as_usize(g)]
    }

    /// The last block of a group.
    fn last_block(&self, g: u32) -> u64 {
        let g = GroupNo(g);
        self.geometry.group_first_block(g).0 + u64::from(self.geometry.group_blocks(g)) - 1
    }

    fn place_group(&mut self, g: GroupNo) -> Result<(), MkfsError> {
        let index = g.index();
        if self.flex_bits > 0 {
            let flex = Flex::of(self, g.0);
            let block_bitmap = self.flex_bitmap(&flex, flex.block_bitmap_goal(self))?;
            self.descs[index].block_bitmap = BlockNo(block_bitmap);
            let inode_bitmap = self.flex_bitmap(&flex, flex.inode_bitmap_goal(self))?;
            self.descs[index].inode_bitmap = BlockNo(inode_bitmap);
            let inode_table = self.flex_table(&flex, flex.inode_table_goal(self))?;
            self.descs[index].inode_table = BlockNo(inode_table);
            return Ok(());
        }
        let (first, last) = (self.geometry.group_first_block(g).0, self.last_block(g.0));
        let goal = self.striped(g, first, last)?;
        let table = u64::from(self.geometry.inode_table_blocks());
        let bitmap = |map: &BlockMap| {
            map.free_run(goal, last, 1)
                .or_else(|| map.free_run(first, last, 1))
                .ok_or(NO_SPACE)
        };
        let block_bitmap = bitmap(&self.map)?;
        self.map.mark(block_bitmap, 1);
        let inode_bitmap = bitmap(&self.map)?;
        self.map.mark(inode_bitmap, 1);
        let inode_table = self.map.free_run(first, last, table).ok_or(NO_SPACE)?;
        self.map.mark(inode_table, table);
        let desc = &mut self.descs[index];
        desc.block_bitmap = BlockNo(block_bitmap);
        desc.inode_bitmap = BlockNo(inode_bitmap);
        desc.inode_table = BlockNo(inode_table);
        Ok(())
    }

    /// Where a group's bitmaps go without `flex_bg`: its beginning, or with a RAID a place that
    /// differs from group to group, so that the bitmaps are not all on one disk.
    fn striped(&self, g: GroupNo, first: u64, last: u64) -> Result<u64, MkfsError> {
        if self.stride == 0 {
            return Ok(first);
        }
        let free = self.map.free_run(first, last, 1).ok_or(NO_SPACE)?;
        let start = free + u64::from(self.geometry.inode_table_blocks());
        let room = (last + 1).saturating_sub(start).max(1);
        let start = start + u64::from(self.stride.wrapping_mul(g.0)) % room;
        Ok(if start >= last { first } else { start })
    }

    /// Places a bitmap of a flexible group.
    fn flex_bitmap(&mut self, flex: &Flex, goal: u64) -> Result<u64, MkfsError> {
        let start = self.flex_offset(flex, goal, 1);
        let block = self
            .map
            .free_run(start, flex.last_block, 1)
            .or_else(|| self.map.free_run(flex.group_first, flex.last_block, 1))
            .ok_or(NO_SPACE)?;
        self.take(block, 1);
        Ok(block)
    }

    /// Places an inode table of a flexible group.
    fn flex_table(&mut self, flex: &Flex, goal: u64) -> Result<u64, MkfsError> {
        let len = u64::from(self.geometry.inode_table_blocks());
        let start = self.flex_offset(flex, goal, len);
        let found = self.map.free_run(start, flex.last_block, len);
        let block = found.ok_or(NO_SPACE)?;
        self.take(block, len);
        Ok(block)
    }

    /// Where to look for room for an element of `len` blocks: at the goal if it is free or soon
    /// behind it, else where those of all further groups fit, else where one fits.
    fn flex_offset(&self, flex: &Flex, goal: u64, len: u64) -> u64 {
        let all =
            (u64::from(flex.groups_left) * len).min(u64::from(self.geometry.blocks_per_group / 4));
        if goal > 0
            && goal < self.geometry.blocks_count
            && let Some(found) = self.map.free_run(goal, goal + all, len)
        {
            return found;
        }
        let (first, last) = (flex.first_block, flex.last_block);
        self.map
            .free_run(first, last, all.max(1))
            .or_else(|| self.map.free_run(first, last, len))
            .or_else(|| self.map.free_run(0, last, len))
            .unwrap_or(0)
    }

    /// Marks blocks as in use, and takes them from what their groups have free.
    pub(crate) fn take(&mut self, block: u64, len: u64) {
        self.map.mark(block, len);
        self.free_blocks -= len;
        let (mut block, mut left) = (block, len);
        while left > 0 {
            let (g, _) = self.geometry.group_of_block(BlockNo(block));
            let here = left.min(self.last_block(g.0) + 1 - block);
            let desc = &mut self.descs[g.index()];
            desc.free_blocks_count -= must_fit::<_, u32>(here);
            desc.flags -= GroupFlags::BLOCK_UNINIT;
            block += here;
            left -= here;
        }
    }

    /// Takes one block for a file: the first free one from `goal` on.
    pub(crate) fn take_block(&mut self, goal: u64, what: &'static str) -> Result<u64, MkfsError> {
        let block = self.map.new_block(goal).ok_or(MkfsError::NoSpace(what))?;
        self.take(block, 1);
        Ok(block)
    }

    /// Initialises the group of an inode that is chosen there, its block bitmap too.
    pub(crate) fn begin_inodes(&mut self, ino: InodeNo) {
        let (g, _) = self.geometry.group_of_inode(ino);
        let desc = &mut self.descs[g.index()];
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            desc.flags -= GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
        }
    }

    /// Marks an inode as in use.
    pub(crate) fn take_inode(&mut self, ino: InodeNo, is_dir: bool) {
        let (g, _) = self.geometry.group_of_inode(ino);
        let desc = &mut self.descs[g.index()];
        desc.free_inodes_count -= 1;
        desc.used_dirs_count += u32::from(is_dir);
        desc.flags -= GroupFlags::INODE_UNINIT;
        self.free_inodes -= 1;
    }

    /// Where the blocks of an inode are looked for first: the beginning of its group, or of its
    /// flexible group.
    pub(crate) fn inode_goal(&self, ino: InodeNo) -> u64 {
        let (g, _) = self.geometry.group_of_inode(ino);
        let first = g.0 >> self.flex_bits << self.flex_bits;
        self.geometry.group_first_block(GroupNo(first)).0
    }

    /// Where the journal is looked for first: the middle of the volume, there the group with the
    /// most free blocks among neighbours.
    pub(crate) fn journal_goal(&self) -> u64 {
        let geometry = &self.geometry;
        let middle = (geometry.blocks_count - u64::from(geometry.first_data_block)) / 2;
        let middle = middle.max(geometry.first_data_block.into());
        let (GroupNo(mut group), _) = geometry.group_of_block(BlockNo(middle));
        let free = |g: u32| self.desc(g).free_blocks_count;
        let last = geometry.groups_count - 1;
        let start = if self.flex_bits > 0 && group > 1 << self.flex_bits {
            group = group >> self.flex_bits << self.flex_bits;
            group = (group..=last).find(|&g| free(g) > 0).unwrap_or(0);
            group
        } else {
            group.saturating_sub(1)
        };
        let end = last.min(group + 1);
        let most = (start..=end).rev().max_by_key(|&g| free(g));
        geometry.group_first_block(GroupNo(most.unwrap_or(start))).0
    }
}

/// A group among those of its flexible group.
struct Flex {
    group: u32,
    /// Groups of a whole flexible group.
    size: u32,
    /// Groups from this one on.
    groups_left: u32,
    /// How far behind the first block bitmap the inode bitmaps begin, and behind the first of these
    /// the inode tables: room for each group. A last flexible group of one group keeps the room of
    /// a whole one; larger ones lie tight.
    table_offset: u64,
    first_block: u64,
    last_block: u64,
    group_first: u64,
}

impl Flex {
    fn of(groups: &Groups, group: u32) -> Self {
        let geometry = &groups.geometry;
        let size = 1 << groups.flex_bits;
        let first = group >> groups.flex_bits << groups.flex_bits;
        let last = (group | (size - 1)).min(geometry.groups_count - 1);
        let is_last = last == geometry.groups_count - 1;
        Self {
            group,
            size,
            groups_left: last - group + 1,
            table_offset: u64::from(if is_last && last > first {
                last - first + 1
            } else {
                size
            }),
            first_block: geometry.group_first_block(GroupNo(first)).0,
            last_block: groups.last_block(last),
            group_first: geometry.group_first_block(GroupNo(group)).0,
        }
    }

    fn is_first(&self) -> bool {
        self.group.is_multiple_of(self.size)
    }

    fn block_bitmap_goal(&self, groups: &Groups) -> u64 {
        if self.is_first() {
            0
        } else {
            groups.desc(self.group - 1).block_bitmap.0 + 1
        }
    }

    fn inode_bitmap_goal(&self, groups: &Groups) -> u64 {
        if self.is_first() {
            groups.desc(self.group).block_bitmap.0 + self.table_offset
        } else {
            groups.desc(self.group - 1).inode_bitmap.0 + 1
        }
    }

    fn inode_table_goal(&self, groups: &Groups) -> u64 {
        if self.is_first() {
            groups.desc(self.group).inode_bitmap.0 + self.table_offset
        } else {
            groups.desc(self.group - 1).inode_table.0
                + u64::from(groups.geometry.inode_table_blocks())
        }
    }
}
