//! The shape of a volume: what follows from the superblock and never changes
//! while it is mounted. Every codec takes a [`Geometry`]; a
//! [`Superblock`](crate::Superblock) dereferences to its own.
//!
//! Source: kernel `Documentation/filesystems/ext4/{blockgroup,group_descr}.rst`.

use crate::block_size::BlockSize;
use crate::num::{BlockNo, GroupNo, InodeNo};
use crate::width::{low32, u16_as_u32, u32_as_u64, u32_as_usize};

/// Bytes before the superblock, at any block size.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Bytes of the superblock.
pub const SUPERBLOCK_SIZE: usize = 1024;

/// The shape of a volume. Made by [`Superblock::decode`](crate::Superblock::decode),
/// which has checked that its numbers agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The size of a block: 1, 2 or 4 KiB.
    pub block: BlockSize,
    /// log2 of blocks in an allocation cluster: 0 without `bigalloc`.
    pub cluster_bits: u32,
    /// Blocks of the volume.
    pub blocks_count: u64,
    /// Inodes of the volume.
    pub inodes_count: u32,
    /// The first block of group 0: 1 with blocks of 1 KiB, otherwise 0.
    pub first_data_block: u32,
    /// Blocks of a group; the last one may have fewer.
    pub blocks_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Bytes of an inode.
    pub inode_size: u16,
    /// The first inode number that is not reserved.
    pub first_ino: u32,
    /// Bytes of a group descriptor: 32, or 64 and more with `64bit`.
    pub desc_size: u16,
    /// Groups of the volume.
    pub groups_count: u32,
    /// Groups whose bitmaps and inode tables lie together; 1 without `flex_bg`.
    pub groups_per_flex: u32,
    /// The first meta block group whose descriptors lie in that group (`meta_bg`).
    pub first_meta_bg: u32,
    /// Blocks behind the descriptors that are reserved for growth.
    pub reserved_gdt_blocks: u16,
    /// Groups with backups when `sparse_super2` is set; 0 means none.
    pub backup_bgs: [u32; 2],
    /// Seed of all metadata checksums: `s_checksum_seed`, or CRC-32C of the UUID.
    pub csum_seed: u32,
    /// The volume's UUID (seed of the `gdt_csum` checksum).
    pub uuid: [u8; 16],
    /// Inodes that mke2fs and the kernel make get this `i_extra_isize`.
    pub want_extra_isize: u16,
    /// `metadata_csum`: CRC-32C on all metadata.
    pub metadata_csum: bool,
    /// `gdt_csum` (`uninit_bg`) without `metadata_csum`: CRC-16 on descriptors.
    pub gdt_csum: bool,
    /// `64bit`.
    pub is_64bit: bool,
    /// `meta_bg`.
    pub meta_bg: bool,
    /// `flex_bg`.
    pub flex_bg: bool,
    /// `sparse_super`.
    pub sparse_super: bool,
    /// `sparse_super2`.
    pub sparse_super2: bool,
    /// `extents`: new files are mapped by extents.
    pub extents: bool,
    /// `huge_file`: `i_blocks` has 48 bits.
    pub huge_file: bool,
    /// `filetype`: directory entries hold the file type.
    pub filetype: bool,
    /// `dir_index`: directories may have hash trees.
    pub dir_index: bool,
    /// `dir_nlink`: a directory's link count of 1 means "too many to count".
    pub dir_nlink: bool,
    /// `large_dir`: hash trees of three levels.
    pub largedir: bool,
    /// `ea_inode`: values of attributes may lie in inodes of their own.
    pub ea_inode: bool,
}

impl Geometry {
    /// All zero, to be filled by the checks.
    pub(crate) const EMPTY: Self = Self {
        block: BlockSize::of_bits(0),
        cluster_bits: 0,
        blocks_count: 0,
        inodes_count: 0,
        first_data_block: 0,
        blocks_per_group: 0,
        inodes_per_group: 0,
        inode_size: 0,
        first_ino: 0,
        desc_size: 0,
        groups_count: 0,
        groups_per_flex: 1,
        first_meta_bg: 0,
        reserved_gdt_blocks: 0,
        backup_bgs: [0; 2],
        csum_seed: 0,
        uuid: [0; 16],
        want_extra_isize: 0,
        metadata_csum: false,
        gdt_csum: false,
        is_64bit: false,
        meta_bg: false,
        flex_bg: false,
        sparse_super: false,
        sparse_super2: false,
        extents: false,
        huge_file: false,
        filetype: false,
        dir_index: false,
        dir_nlink: false,
        largedir: false,
        ea_inode: false,
    };

    /// Bytes of a block: 1024, 2048 or 4096.
    #[inline]
    pub const fn block_size(&self) -> usize {
        self.block.bytes()
    }

    /// Bytes of the volume.
    #[inline]
    pub const fn volume_bytes(&self) -> u64 {
        self.block.offset_of(self.blocks_count)
    }

    /// Groups of the volume.
    #[inline]
    pub const fn groups_count(&self) -> u32 {
        self.groups_count
    }

    /// Blocks of every group but perhaps the last.
    #[inline]
    pub const fn blocks_per_group(&self) -> u32 {
        self.blocks_per_group
    }

    /// Bits of a block bitmap that stand for something in a full group:
    /// blocks, or clusters with `bigalloc`.
    #[inline]
    pub const fn clusters_per_group(&self) -> u32 {
        self.blocks_per_group >> self.cluster_bits
    }

    /// Inodes of a group.
    #[inline]
    pub const fn inodes_per_group(&self) -> u32 {
        self.inodes_per_group
    }

    /// Bytes of an inode.
    #[inline]
    pub const fn inode_size(&self) -> usize {
        u32_as_usize(u16_as_u32(self.inode_size))
    }

    /// Inodes in a block of the inode table.
    #[inline]
    pub const fn inodes_per_block(&self) -> u32 {
        self.block.bytes_u32() / u16_as_u32(self.inode_size)
    }

    /// Blocks of a group's inode table.
    #[inline]
    pub const fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group / self.inodes_per_block()
    }

    /// Bytes of a group descriptor.
    #[inline]
    pub const fn desc_size(&self) -> usize {
        u32_as_usize(u16_as_u32(self.desc_size))
    }

    /// Group descriptors in a block.
    #[inline]
    pub const fn desc_per_block(&self) -> u32 {
        self.block.bytes_u32() / u16_as_u32(self.desc_size)
    }

    /// Blocks of the whole descriptor table.
    pub const fn desc_blocks(&self) -> u32 {
        self.groups_count.div_ceil(self.desc_per_block())
    }

    /// The first block of group 0.
    #[inline]
    pub const fn first_data_block(&self) -> BlockNo {
        BlockNo(u32_as_u64(self.first_data_block))
    }

    /// Seed of all metadata checksums.
    #[inline]
    pub const fn csum_seed(&self) -> u32 {
        self.csum_seed
    }

    /// Whether `start .. start + count` lies inside the volume and holds neither the boot block nor
    /// the superblock. Every range that a file maps must be valid.
    #[inline]
    pub const fn is_valid_range(&self, start: BlockNo, count: u64) -> bool {
        start.0 > u32_as_u64(self.first_data_block)
            && start.0 < self.blocks_count
            && count <= self.blocks_count - start.0
    }

    /// Whether `ino` is the number of an inode of this volume.
    #[inline]
    pub const fn is_valid_inode(&self, ino: InodeNo) -> bool {
        ino.0 >= 1 && ino.0 <= self.inodes_count
    }

    /// Whether `ino` is the number of an inode that files may have. That of the root is not.
    #[inline]
    pub const fn is_for_files(&self, ino: InodeNo) -> bool {
        self.is_valid_inode(ino) && ino.0 >= self.first_ino
    }

    /// The first block of group `g`.
    #[inline]
    pub const fn group_first_block(&self, g: GroupNo) -> BlockNo {
        BlockNo(
            u32_as_u64(self.first_data_block) + u32_as_u64(g.0) * u32_as_u64(self.blocks_per_group),
        )
    }

    /// Blocks of group `g`: fewer than `blocks_per_group` only in the last.
    #[inline]
    pub const fn group_blocks(&self, g: GroupNo) -> u32 {
        let left = self.blocks_count - self.group_first_block(g).0;
        if left < u32_as_u64(self.blocks_per_group) {
            low32(left)
        } else {
            self.blocks_per_group
        }
    }

    /// The group that `block` lies in and its index there.
    #[inline]
    pub const fn group_of_block(&self, block: BlockNo) -> (GroupNo, u32) {
        let relative = block.0 - u32_as_u64(self.first_data_block);
        let per_group = u32_as_u64(self.blocks_per_group);
        (
            GroupNo(low32(relative / per_group)),
            low32(relative % per_group),
        )
    }

    /// The group that `ino` (not 0) belongs to and its index there.
    #[inline]
    pub const fn group_of_inode(&self, ino: InodeNo) -> (GroupNo, u32) {
        let index = ino.0 - 1;
        (
            GroupNo(index / self.inodes_per_group),
            index % self.inodes_per_group,
        )
    }

    /// The number of the inode at `index` in group `g`.
    #[inline]
    pub const fn inode_at(&self, g: GroupNo, index: u32) -> InodeNo {
        InodeNo(g.0 * self.inodes_per_group + index + 1)
    }

    /// Where the inode at `index` in a group lies: the block of that group's
    /// inode table, counted from the table's start, and the byte in it.
    #[inline]
    pub const fn inode_position(&self, index: u32) -> (u32, usize) {
        let per_block = self.inodes_per_block();
        (
            index / per_block,
            u32_as_usize(index % per_block) * u32_as_usize(u16_as_u32(self.inode_size)),
        )
    }

    /// Whether group `g` begins with a copy of the superblock (the primary
    /// one in group 0).
    pub const fn has_super(&self, g: GroupNo) -> bool {
        let g = g.0;
        if g == 0 {
            return true;
        }
        if self.sparse_super2 {
            return g == self.backup_bgs[0] || g == self.backup_bgs[1];
        }
        if g == 1 || !self.sparse_super {
            return true;
        }
        g & 1 == 1 && (is_power_of(g, 3) || is_power_of(g, 5) || is_power_of(g, 7))
    }

    /// Whether the block `index` of the descriptor table lies in its meta
    /// block group rather than behind the superblock.
    const fn is_meta(&self, index: u32) -> bool {
        self.meta_bg && index >= self.first_meta_bg
    }

    /// The block that holds block `index` of the descriptor table (the primary copy).
    pub const fn desc_block(&self, index: u32) -> BlockNo {
        if !self.is_meta(index) {
            let superblock = self.block.block_of(SUPERBLOCK_OFFSET);
            return BlockNo(superblock + 1 + u32_as_u64(index));
        }
        let first_group = GroupNo(index * self.desc_per_block());
        let mut behind_super = if self.has_super(first_group) { 1 } else { 0 };
        if self.block.bits() == 10 && index == 0 && self.first_data_block == 0 {
            // bigalloc with blocks of 1 KiB: the boot block is in group 0 too.
            behind_super += 1;
        }
        BlockNo(self.group_first_block(first_group).0 + behind_super)
    }

    /// Where the primary descriptor of group `g` lies: its block and the byte in it.
    pub const fn desc_position(&self, g: GroupNo) -> (BlockNo, usize) {
        let per_block = self.desc_per_block();
        let block = self.desc_block(g.0 / per_block);
        (
            block,
            u32_as_usize(g.0 % per_block) * u32_as_usize(u16_as_u32(self.desc_size)),
        )
    }

    /// Blocks at the start of group `g` that hold copies of the superblock and of
    /// the descriptor table, and the blocks reserved for its growth.
    pub fn base_meta_blocks(&self, g: GroupNo) -> u32 {
        let has_super = self.has_super(g);
        let meta_index = g.0 / self.desc_per_block();
        if self.is_meta(meta_index) {
            // The first, second and last group of a meta block group have a
            // copy of its one descriptor block.
            let at = g.0 % self.desc_per_block();
            let copy = at == 0 || at == 1 || at == self.desc_per_block() - 1;
            return u32::from(has_super) + u32::from(copy);
        }
        if !has_super {
            return 0;
        }
        let table = if self.meta_bg && self.first_meta_bg < self.desc_blocks() {
            self.first_meta_bg
        } else {
            self.desc_blocks()
        };
        1 + table + u32::from(self.reserved_gdt_blocks)
    }

    /// Groups whose metadata lie together with those of group `g`: the first
    /// and the number of them.
    pub const fn flex_group(&self, g: GroupNo) -> (GroupNo, u32) {
        let first = g.0 - g.0 % self.groups_per_flex;
        let left = self.groups_count - first;
        (
            GroupNo(first),
            if left < self.groups_per_flex {
                left
            } else {
                self.groups_per_flex
            },
        )
    }
}

const fn is_power_of(n: u32, base: u32) -> bool {
    let mut power = u32_as_u64(base);
    while power < u32_as_u64(n) {
        power *= u32_as_u64(base);
    }
    power == u32_as_u64(n)
}
