//! The files of a new volume: the root, `lost+found`, the inodes of bad blocks and of growth, and
//! the journal.
//!
//! Sources: kernel `Documentation/filesystems/ext4/{special_inodes,directory,journal}.rst`.

use std::ops::Range;

use stetfs_format::bytes::write_u32le;
use stetfs_format::extent::{ExtentNodeMut, MAX_WRITTEN_LEN, ROOT_ENTRIES, ROOT_SIZE};
use stetfs_format::indirect::{self, ROOT_POINTERS};
use stetfs_format::inode::ROOT_INO;
use stetfs_format::jbd2::{BlockType, JBD2_MAGIC};
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_format::{
    BlockNo, Extent, FileType, Geometry, GroupNo, Index, Inode, InodeFlags, InodeNo, LBlock, Time,
    dirent, inode,
};
use stetfs_media::Class;

use crate::error::MkfsError;
use crate::fields::Fields;
use crate::groups::Groups;
use crate::params::{JournalSize, Params, default_journal_blocks};
use crate::shape::FIRST_INO;

const BAD_INO: InodeNo = InodeNo(1);
const RESIZE_INO: InodeNo = InodeNo(7);
/// The journal's inode.
pub(crate) const JOURNAL_INO: InodeNo = InodeNo(8);
const LOST_FOUND_INO: InodeNo = InodeNo(FIRST_INO);
const LOST_FOUND: &[u8] = b"lost+found";
/// Bytes that `lost+found` has from the start, so that e2fsck need not look for room; at most as
/// many blocks as an inode maps itself.
const LOST_FOUND_SIZE: u32 = 16 << 10;

/// Bounds of the journal in blocks: the kernel's lower one, and mke2fs's upper one.
const JOURNAL_BLOCKS: std::ops::RangeInclusive<u32> = 1024..=10_240_000;

/// A block with content.
#[derive(Clone, Debug)]
pub(crate) struct Filled {
    pub block: u64,
    pub class: Class,
    pub bytes: Vec<u8>,
}

/// What the files need on the volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    pub inodes: Vec<(InodeNo, Inode)>,
    pub blocks: Vec<Filled>,
    /// Blocks that must read as zeros.
    pub zeros: Vec<Range<u64>>,
    /// Blocks of the journal's content; 0 if there is none.
    pub journal_blocks: u32,
}

impl Files {
    /// Places all files.
    pub(crate) fn place(
        params: &Params,
        geometry: &Geometry,
        groups: &mut Groups,
        has_resize: bool,
    ) -> Result<Self, MkfsError> {
        let mut files = Self {
            journal_blocks: journal_blocks(params, geometry, groups)?,
            ..Self::default()
        };
        let mut placer = Placer {
            params,
            geometry,
            groups,
            files: &mut files,
        };
        placer.directories()?;
        placer.reserved_inodes();
        if has_resize {
            placer.resize_inode()?;
        }
        if placer.files.journal_blocks > 0 {
            placer.journal()?;
        }
        Ok(files)
    }

    /// Whether a file has 2 GiB or more, which the superblock must say.
    pub(crate) fn has_large_file(&self) -> bool {
        self.inodes.iter().any(|(_, inode)| inode.size >= 1 << 31)
    }

    /// The journal's inode, if there is one.
    pub(crate) fn journal_inode(&self) -> Option<&Inode> {
        let found = self.inodes.iter().find(|(ino, _)| *ino == JOURNAL_INO);
        found.map(|(_, inode)| inode)
    }
}

/// Blocks of the journal. Those that were asked for must leave room for files.
fn journal_blocks(params: &Params, geometry: &Geometry, groups: &Groups) -> Result<u32, MkfsError> {
    if !params.wants_journal(geometry.blocks_count) {
        return Ok(0);
    }
    let JournalSize::Blocks(journal) = params.journal else {
        return Ok(default_journal_blocks(geometry.blocks_count));
    };
    if !JOURNAL_BLOCKS.contains(&journal) {
        return Err(MkfsError::JournalBlocks(journal.into()));
    }
    // Bitmaps and inode tables of flexible groups count as free: mke2fs asks before it places them.
    let mut free = groups.free_blocks;
    if params.flex_bits() > 0 {
        let tables = 2 + u64::from(geometry.inode_table_blocks());
        free += tables * u64::from(geometry.groups_count);
    }
    if u64::from(journal) > free / 2 {
        return Err(MkfsError::JournalTooLarge { journal, free });
    }
    Ok(journal)
}

/// Places files one after the other.
struct Placer<'a> {
    params: &'a Params,
    geometry: &'a Geometry,
    groups: &'a mut Groups,
    files: &'a mut Files,
}

impl Placer<'_> {
    fn block_size(&self) -> usize {
        self.geometry.block_size()
    }

    fn zeroed(&self) -> Vec<u8> {
        vec![0; self.block_size()]
    }

    fn fill(&mut self, block: u64, class: Class, bytes: Vec<u8>) {
        self.files.blocks.push(Filled {
            block,
            class,
            bytes,
        });
    }

    /// A new inode that was made and changed when the volume was made.
    fn inode(&self, kind: FileType, permissions: u16, blocks: u64, size: u64) -> Inode {
        let extents = self.geometry.extents && kind == FileType::Directory;
        let flags = if extents {
            InodeFlags::EXTENTS
        } else {
            InodeFlags::empty()
        };
        let mode = kind.mode_bits() | permissions;
        let now = self.now();
        Inode {
            size,
            blocks: self.geometry.block.sectors_of(blocks),
            atime: now,
            ctime: now,
            mtime: now,
            crtime: now,
            links_count: 1,
            ..Inode::new(mode, flags, 0, self.geometry)
        }
    }

    fn now(&self) -> Time {
        Time {
            sec: must_fit(self.params.time),
            nsec: 0,
        }
    }

    /// The root with one entry, and `lost+found`.
    fn directories(&mut self) -> Result<(), MkfsError> {
        let geometry = self.geometry;
        let size = self.block_size();
        let root = self
            .groups
            .take_block(self.groups.inode_goal(ROOT_INO), "root directory")?;
        self.groups.take_inode(ROOT_INO, true);
        let mut content = self.zeroed();
        dirent::init_dot_dotdot(&mut content, ROOT_INO, ROOT_INO, geometry);
        let slot = dirent::Slot {
            offset: dirent::rec_len(1),
            used: dirent::rec_len(2),
            rec_len: dirent::body_size(geometry) - dirent::rec_len(1),
        };
        dirent::insert(
            &mut content,
            slot,
            LOST_FOUND_INO,
            FileType::Directory,
            LOST_FOUND,
            geometry,
        );
        self.directory_block(root, content, ROOT_INO);
        let mut inode = self.inode(FileType::Directory, 0o755, 1, must_fit(size));
        (inode.uid, inode.gid) = self.params.root_owner;
        inode.links_count = 3;
        inode.block = self.map(&[root], "root directory")?;
        self.files.inodes.push((ROOT_INO, inode));
        self.lost_found()
    }

    fn lost_found(&mut self) -> Result<(), MkfsError> {
        const WHAT: &str = "directory lost+found";
        let geometry = self.geometry;
        let most = indirect::DIRECT;
        let count = (LOST_FOUND_SIZE / geometry.block.bytes_u32()).clamp(2, most);
        let mut blocks = Vec::new();
        self.groups.begin_inodes(LOST_FOUND_INO);
        let mut goal = self.groups.inode_goal(LOST_FOUND_INO);
        for _ in 0..count {
            goal = self.groups.take_block(goal, WHAT)?;
            blocks.push(goal);
        }
        self.groups.take_inode(LOST_FOUND_INO, true);
        for (i, &block) in blocks.iter().enumerate() {
            let mut content = self.zeroed();
            if i == 0 {
                dirent::init_dot_dotdot(&mut content, LOST_FOUND_INO, ROOT_INO, geometry);
            } else {
                dirent::init_empty(&mut content, geometry);
            }
            self.directory_block(block, content, LOST_FOUND_INO);
        }
        let size = geometry.block.offset_of(count.into());
        let mut inode = self.inode(FileType::Directory, 0o700, count.into(), size);
        inode.links_count = 2;
        inode.block = self.map(&blocks, WHAT)?;
        self.files.inodes.push((LOST_FOUND_INO, inode));
        Ok(())
    }

    fn directory_block(&mut self, block: u64, mut content: Vec<u8>, ino: InodeNo) {
        let seed = inode::inode_csum_seed(ino, 0, self.geometry);
        dirent::write_checksum(&mut content, seed, self.geometry);
        self.fill(block, Class::Directory, content);
    }

    /// `i_block` of a file of a few blocks.
    fn map(&self, blocks: &[u64], what: &'static str) -> Result<[u8; ROOT_SIZE], MkfsError> {
        let mut root = [0; ROOT_SIZE];
        if self.geometry.extents {
            let mut extents: Vec<Extent> = Vec::new();
            for (lblk, &block) in (0..).zip(blocks) {
                match extents.last_mut() {
                    Some(last) if last.pblk.0 + u64::from(last.len) == block => last.len += 1,
                    _ => extents.push(extent(lblk, block, 1)),
                }
            }
            if extents.len() > usize::from(ROOT_ENTRIES) {
                return Err(MkfsError::TooManyPieces(what));
            }
            write_root(&mut root, &extents);
        } else {
            for (i, &block) in (0..).zip(blocks) {
                indirect::set_pointer(&mut root, i, Some(BlockNo(block)));
            }
        }
        Ok(root)
    }

    /// Inodes that are in use from the start; most of them are empty. That of the bad blocks has
    /// times and nothing else.
    fn reserved_inodes(&mut self) {
        for ino in (1..FIRST_INO).map(InodeNo).filter(|ino| *ino != ROOT_INO) {
            self.groups.take_inode(ino, false);
        }
        let now = self.now();
        let bad = Inode {
            atime: now,
            ctime: now,
            mtime: now,
            extra_isize: 0,
            ..Inode::new(0, InodeFlags::empty(), 0, self.geometry)
        };
        self.files.inodes.push((BAD_INO, bad));
    }

    /// The inode that owns the blocks behind the descriptors, which are reserved for more of them.
    ///
    /// Its double-indirect block names each of them, at the place that the block will have in the
    /// table. Each of them names its copies in the groups that have copies of the table.
    fn resize_inode(&mut self) -> Result<(), MkfsError> {
        let geometry = self.geometry;
        let pointers = indirect::pointers_per_block(geometry);
        let superblock = geometry.block.block_of(stetfs_format::SUPERBLOCK_OFFSET);
        let reserved = u32::from(geometry.reserved_gdt_blocks);
        let table = geometry.desc_blocks();
        let goal =
            superblock + u64::from(table + reserved) + 2 + u64::from(geometry.inode_table_blocks());
        let double = self.groups.take_block(goal, "resize inode")?;
        let copies: Vec<u64> = (1..geometry.groups_count)
            .filter(|&g| geometry.has_super(GroupNo(g)))
            .map(|g| u64::from(g) * u64::from(geometry.blocks_per_group))
            .collect();
        let mut content = self.zeroed();
        for i in 0..reserved {
            let block = superblock + 1 + u64::from(table + i);
            let at = (table + i) % pointers;
            indirect::set_pointer(&mut content, at, Some(BlockNo(block)));
            let mut names = self.zeroed();
            for (i, copy) in (0..).zip(&copies) {
                indirect::set_pointer(&mut names, i, Some(BlockNo(block + copy)));
            }
            self.fill(block, Class::Mapping, names);
        }
        self.fill(double, Class::Mapping, content);
        let blocks = 1 + u64::from(reserved) * (1 + u64::try_from(copies.len()).unwrap_or(0));
        let pointers = u64::from(pointers);
        let size = pointers * pointers + pointers + u64::from(indirect::DIRECT);
        let size = geometry.block.offset_of(size);
        let mut inode = self.inode(FileType::Regular, 0o600, blocks, size);
        let double = Some(BlockNo(double));
        indirect::set_pointer(&mut inode.block, indirect::DOUBLE_INDIRECT, double);
        self.files.inodes.push((RESIZE_INO, inode));
        Ok(())
    }

    fn journal(&mut self) -> Result<(), MkfsError> {
        let blocks = self.files.journal_blocks;
        let size = self.geometry.block.offset_of(blocks.into());
        let mut inode = self.inode(FileType::Regular, 0o600, 0, size);
        let (first, taken) = if self.geometry.extents {
            inode.flags |= InodeFlags::EXTENTS;
            self.journal_extents(&mut inode)?
        } else {
            Pointers::of_journal(self).place(blocks, &mut inode)?
        };
        inode.blocks = self.geometry.block.sectors_of(taken);
        let superblock = self.journal_superblock();
        self.fill(first, Class::Journal, superblock);
        self.files.inodes.push((JOURNAL_INO, inode));
        Ok(())
    }

    /// An empty journal. It gets its features from the first mount.
    fn journal_superblock(&self) -> Vec<u8> {
        let mut raw = self.zeroed();
        Fields::of(&stetfs_format::jbd2::JOURNAL_SUPERBLOCK_LAYOUT, &mut raw)
            .big("h_magic", JBD2_MAGIC.into())
            .big("h_blocktype", BlockType::SuperblockV2.number().into())
            .big("s_blocksize", self.geometry.block.bytes_u32().into())
            .big("s_maxlen", self.files.journal_blocks.into())
            .big("s_first", 1)
            .big("s_sequence", 1)
            .big("s_nr_users", 1)
            .bytes("s_uuid", &self.params.uuid);
        raw
    }

    /// Places the journal in as few extents as there are runs of free blocks. Returns its first
    /// block, and how many it takes with its mapping.
    fn journal_extents(&mut self, inode: &mut Inode) -> Result<(u64, u64), MkfsError> {
        const WHAT: &str = "journal";
        let goal = self.groups.journal_goal();
        let mut goal = self
            .groups
            .map
            .first_free(goal, self.geometry.blocks_count)
            .unwrap_or(goal);
        let mut extents: Vec<Extent> = Vec::new();
        let mut node = None;
        let mut lblk = 0;
        while lblk < self.files.journal_blocks {
            let most = (self.files.journal_blocks - lblk).min(MAX_WRITTEN_LEN.into());
            let run = self.groups.map.new_range(goal, most.into());
            let run = run.ok_or(MkfsError::NoSpace(WHAT))?;
            let len = run.end - run.start;
            self.groups.take(run.start, len);
            extents.push(extent(lblk, run.start, must_fit(len)));
            if extents.len() == usize::from(ROOT_ENTRIES) + 1 {
                // They no longer fit the inode.
                let goal = extents[0].pblk.0 - 1;
                node = Some(self.groups.take_block(goal, WHAT)?);
            }
            lblk += must_fit::<_, u32>(len);
            goal = run.end;
            self.files.zeros.push(run);
        }
        write_root(
            &mut inode.block,
            &extents[..extents.len().min(ROOT_ENTRIES.into())],
        );
        if let Some(node) = node {
            self.extent_node(node, &extents, inode)?;
        }
        let mapping = u64::from(node.is_some());
        Ok((extents[0].pblk.0, u64::from(lblk) + mapping))
    }

    /// Moves the extents of a file from its inode to a node.
    fn extent_node(
        &mut self,
        block: u64,
        extents: &[Extent],
        inode: &mut Inode,
    ) -> Result<(), MkfsError> {
        let mut raw = self.zeroed();
        let mut node = ExtentNodeMut::init_block(&mut raw, 0, self.geometry);
        for (i, extent) in (0..).zip(extents) {
            if i == node.max() {
                return Err(MkfsError::TooManyPieces("journal"));
            }
            node.insert_extent(i, *extent);
        }
        let seed = inode::inode_csum_seed(JOURNAL_INO, 0, self.geometry);
        node.write_checksum(seed, self.geometry);
        self.fill(block, Class::Mapping, raw);
        let mut root = [0; ROOT_SIZE];
        let index = Index {
            lblk: LBlock(0),
            pblk: BlockNo(block),
        };
        ExtentNodeMut::init_root(&mut root, 1).insert_index(0, index);
        // Nobody reads the entries behind the first. mke2fs leaves the old ones there.
        let read = root.len() / 5 * 2;
        inode.block[..read].copy_from_slice(&root[..read]);
        Ok(())
    }
}

/// A file that is mapped by pointers, while it is placed: each block goes behind the one before,
/// and a block of pointers before the first block that it names.
struct Pointers<'a, 'b> {
    placer: &'a mut Placer<'b>,
    /// The blocks of pointers, by number.
    content: std::collections::BTreeMap<u64, Vec<u8>>,
    taken: u64,
}

impl<'a, 'b> Pointers<'a, 'b> {
    const WHAT: &'static str = "journal";

    fn of_journal(placer: &'a mut Placer<'b>) -> Self {
        Self {
            placer,
            content: std::collections::BTreeMap::new(),
            taken: 0,
        }
    }

    fn place(mut self, blocks: u32, inode: &mut Inode) -> Result<(u64, u64), MkfsError> {
        let mut first = 0;
        let mut run = 0..0;
        for lblk in 0..blocks {
            let block = self.append(LBlock(lblk), &mut inode.block)?;
            if lblk == 0 {
                first = block;
            }
            if run.end != block {
                self.placer
                    .files
                    .zeros
                    .push(std::mem::replace(&mut run, block..block));
            }
            run.end += 1;
        }
        self.placer.files.zeros.push(run);
        for (block, bytes) in std::mem::take(&mut self.content) {
            self.placer.fill(block, Class::Mapping, bytes);
        }
        Ok((first, self.taken))
    }

    fn take(&mut self, goal: u64) -> Result<u64, MkfsError> {
        self.taken += 1;
        self.placer.groups.take_block(goal, Self::WHAT)
    }

    /// Takes the next block of the file, and the blocks of pointers on the way to it.
    fn append(&mut self, lblk: LBlock, root: &mut [u8; ROOT_SIZE]) -> Result<u64, MkfsError> {
        let path = indirect::Path::to(lblk, self.placer.geometry);
        let path = path.ok_or(MkfsError::TooManyPieces(Self::WHAT))?;
        let indexes: Vec<u32> = path.indexes().to_vec();
        let mut at = pointer(root, indexes[0]);
        if at == 0 {
            let goal = match indexes[0] {
                0 => self.placer.groups.inode_goal(JOURNAL_INO),
                index => pointer(root, index - 1),
            };
            at = self.take(goal)?;
            indirect::set_pointer(root, indexes[0], Some(BlockNo(at)));
        }
        for &index in &indexes[1..] {
            let empty = self.placer.zeroed();
            let content = self.content.entry(at).or_insert(empty);
            let (found, before) = (
                pointer(content, index),
                index.checked_sub(1).map_or(at, |i| pointer(content, i)),
            );
            let next = if found == 0 {
                self.take(before)?
            } else {
                found
            };
            if let Some(content) = self.content.get_mut(&at) {
                indirect::set_pointer(content, index, Some(BlockNo(next)));
            }
            at = next;
        }
        Ok(at)
    }
}

fn pointer(raw: &[u8], index: u32) -> u64 {
    stetfs_format::bytes::read_u32le(raw, u32_as_usize(index) * 4).into()
}

fn extent(lblk: u32, block: u64, len: u16) -> Extent {
    Extent {
        lblk: LBlock(lblk),
        pblk: BlockNo(block),
        len,
        unwritten: false,
    }
}

fn write_root(root: &mut [u8; ROOT_SIZE], extents: &[Extent]) {
    let mut node = ExtentNodeMut::init_root(root, 0);
    for (i, extent) in (0..).zip(extents) {
        node.insert_extent(i, *extent);
    }
}

/// `s_jnl_blocks`: a copy of the journal's map and size, in case the inode is lost.
pub(crate) fn journal_backup(inode: &Inode) -> [u8; 68] {
    let mut backup = [0; 68];
    let pointers = u32_as_usize(ROOT_POINTERS) * 4;
    backup[..pointers].copy_from_slice(&inode.block);
    write_u32le(&mut backup, 60, stetfs_format::width::high32(inode.size));
    write_u32le(&mut backup, 64, stetfs_format::width::low32(inode.size));
    backup
}
