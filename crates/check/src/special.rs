//! The volume's own files: resize inode, journal, orphan file.

use stetfs_format::bytes::read_u32le;
use stetfs_format::features::{FeatureCompat, FeatureIncompat, FeatureRoCompat};
use stetfs_format::indirect::{DOUBLE_INDIRECT, ROOT_POINTERS};
use stetfs_format::jbd2::{JournalSuperblock, MIN_JOURNAL_BLOCKS};
use stetfs_format::orphan::OrphanBlock;
use stetfs_format::width::{u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt, GroupNo, Inode, InodeNo, Place};

use crate::finding::Fault;
use crate::inodes::RESIZE_INO;
use crate::state::{Check, JournalFile, Keep};

/// Bytes of the table of reserved descriptor blocks that are read at once.
const GDT_CHUNK: usize = 64 << 10;

impl Check<'_> {
    pub(crate) fn check_special_files(&mut self) {
        self.check_resize_inode();
        self.check_journal();
        self.check_orphan_file();
    }

    /// Checks the inode that the superblock names as the journal; the scan of the inodes calls it.
    pub(crate) fn check_journal_inode(&mut self, ino: InodeNo, inode: &Inode) {
        let mapped = self.check_blocks(ino, inode, Keep::Journal);
        self.s.journal = Some(JournalFile {
            ino,
            first: mapped.first,
            size: inode.size,
            contiguous: mapped.contiguous,
            is_in_use: inode.links_count > 0 && inode.is_regular(),
        });
    }

    fn check_journal(&mut self) {
        let has_journal = self.sb.feature_compat.contains(FeatureCompat::HAS_JOURNAL);
        let needs_recovery = self.sb.feature_incompat.contains(FeatureIncompat::RECOVER);
        let is_external = self.sb.journal_uuid != [0; 16];
        let names_one = self.sb.journal_inum != 0 || self.sb.journal_dev != 0 || is_external;
        if !has_journal && !needs_recovery && !names_one {
            return;
        }
        if !has_journal {
            let why = "a journal is named without feature has_journal";
            self.push(Place::Superblock, Fault::Features(why));
        }
        if is_external {
            self.push(Place::Superblock, Fault::Unsupported("an external journal"));
            return;
        }
        let inum = InodeNo(self.sb.journal_inum);
        let Some(file) = self.s.journal.filter(|file| file.ino == inum) else {
            self.push(Place::Inode(inum), Fault::JournalInode("not in use"));
            return;
        };
        let place = Place::Inode(file.ino);
        if !file.is_in_use {
            self.push(place, Fault::JournalInode("not a file in use"));
        }
        let blocks = self.g.block.block_of(file.size);
        if blocks < MIN_JOURNAL_BLOCKS.into() {
            self.push(place, Fault::JournalInode("too short"));
        }
        if self.g.block.offset_of(file.contiguous) < file.size {
            self.push(place, Fault::JournalInode("blocks are missing"));
        }
        if let Some(first) = file.first {
            self.check_journal_superblock(file, first, needs_recovery);
        }
    }

    fn check_journal_superblock(
        &mut self,
        file: JournalFile,
        first: BlockNo,
        needs_recovery: bool,
    ) {
        let mut raw = std::mem::take(&mut self.s.block);
        let is_read = self.read(first, &mut raw);
        let decoded = JournalSuperblock::decode(&raw, self.g.block);
        self.s.block = raw;
        if !is_read {
            return;
        }
        let sb = match decoded {
            Ok(sb) => sb,
            Err(corrupt) => {
                self.push(Place::Journal(0), corrupt);
                return;
            }
        };
        let place = Place::Journal(0);
        let blocks = self.g.block.block_of(file.size);
        if u64::from(sb.maxlen) > blocks {
            let length = sb.maxlen;
            self.push(place, Fault::JournalTooLong { length, blocks });
        }
        let log = sb.log_end();
        if log < sb.maxlen && log < MIN_JOURNAL_BLOCKS {
            let (fast, length) = (sb.maxlen - log, sb.maxlen);
            self.push(place, Corrupt::JournalFastCommit { fast, length });
        }
        if sb.nr_users > 1 {
            self.push(place, Fault::Unsupported("a journal of several volumes"));
        }
        if sb.start != 0 && !needs_recovery {
            self.push(place, Fault::JournalNotEmpty(sb.start));
        }
        if sb.errno != 0 {
            self.push(place, Fault::JournalAborted(sb.errno));
        }
    }

    /// Checks the resize inode. Its double indirect block maps every reserved descriptor block.
    /// Each of these, as a pointer block, maps its own copies in the groups with a superblock
    /// (kernel `fs/ext4/resize.c`, `verify_reserved_gdb`).
    fn check_resize_inode(&mut self) {
        let place = Place::Inode(RESIZE_INO);
        let Some(inode) = self.read_inode(RESIZE_INO) else {
            return;
        };
        let pointer = |i: u32| read_u32le(&inode.block, u32_as_usize(i) * 4);
        if !self.sb.feature_compat.contains(FeatureCompat::RESIZE_INODE) {
            if inode.block.iter().any(|&byte| byte != 0) {
                self.push(place, Fault::ResizeInode("in use without its feature"));
            }
            return;
        }
        if self.g.meta_bg {
            // Already reported: the two features exclude each other.
            return;
        }
        let double = BlockNo(pointer(DOUBLE_INDIRECT).into());
        if (0..ROOT_POINTERS).any(|i| i != DOUBLE_INDIRECT && pointer(i) != 0) {
            self.push(
                place,
                Fault::ResizeInode("more than a double indirect block"),
            );
            return;
        }
        if inode.links_count == 0 || !inode.is_regular() {
            self.push(place, Fault::ResizeInode("not a file in use"));
            return;
        }
        if !self.g.is_valid_range(double, 1) {
            self.push(place, Fault::ResizeInode("no double indirect block"));
            return;
        }
        let mut raw = std::mem::take(&mut self.s.block);
        if self.read(double, &mut raw) {
            self.check_reserved_blocks(&raw);
        }
        self.s.block = raw;
    }

    fn check_reserved_blocks(&mut self, double: &[u8]) {
        let place = Place::Inode(RESIZE_INO);
        let size = self.g.block_size();
        let per_block = size / 4;
        let reserved = usize::from(self.sb.reserved_gdt_blocks);
        let desc_blocks = u32_as_usize(self.g.desc_blocks());
        let first = self.g.first_data_block().0 + 1 + usize_as_u64(desc_blocks);
        let with_copies = (1..self.g.groups_count).filter(|&g| self.g.has_super(GroupNo(g)));
        let distances: Vec<u64> = with_copies
            .map(|g| u64::from(g) * u64::from(self.g.blocks_per_group))
            .take(per_block)
            .collect();
        let mut table = std::mem::take(&mut self.s.table);
        let per_chunk = GDT_CHUNK / size;
        for start in (0..reserved).step_by(per_chunk) {
            let count = per_chunk.min(reserved - start);
            table.resize(count * size, 0);
            if !self.read(BlockNo(first + usize_as_u64(start)), &mut table) {
                break;
            }
            // A reserved descriptor block names its copies in the other groups, in the order of the
            // groups.
            let is_right = (start..).zip(table.chunks_exact(size)).all(|(i, copies)| {
                let block = first + usize_as_u64(i);
                let slot = (desc_blocks + i) % per_block;
                let mut pointers = copies.chunks_exact(4).map(|pointer| read_u32le(pointer, 0));
                let is_copy = |distance| pointers.next().map(u64::from) == Some(block + distance);
                u64::from(read_u32le(double, slot * 4)) == block
                    && distances.iter().copied().all(is_copy)
            });
            if !is_right {
                self.push(
                    place,
                    Fault::ResizeInode("does not map the reserved descriptor blocks"),
                );
                break;
            }
        }
        self.s.table = table;
    }

    fn check_orphan_file(&mut self) {
        if !self.sb.feature_compat.contains(FeatureCompat::ORPHAN_FILE) {
            return;
        }
        let ino = InodeNo(self.sb.orphan_file_inum);
        let place = Place::Inode(ino);
        let present = FeatureRoCompat::ORPHAN_PRESENT;
        if self.sb.feature_ro_compat.contains(present) {
            let why = "feature orphan_present is set";
            self.push(Place::Superblock, Fault::Features(why));
        }
        let is_used = self.record(ino).is_some_and(|record| record.is_used());
        let Some(inode) = self.read_inode(ino).filter(|_| is_used) else {
            self.push(place, Fault::OrphanFile("not in use"));
            return;
        };
        let size = usize_as_u64(self.g.block_size());
        if inode.size % size != 0 {
            self.push(place, Fault::OrphanFile("size is not in blocks"));
        }
        let runs = std::mem::take(&mut self.s.orphan_runs);
        let mut raw = std::mem::take(&mut self.s.block);
        let seed = inode.csum_seed(ino, &self.g);
        let mut next = 0;
        for run in &runs {
            if run.lblk != next {
                break;
            }
            next = run.lblk + run.len;
            for i in 0..u64::from(run.len) {
                let block = run.pblk.plus(i);
                if self.read(block, &mut raw) {
                    self.check_orphan_block(ino, block, &raw, seed);
                }
            }
        }
        if u64::from(next) < inode.size / size {
            self.push(place, Fault::OrphanFile("blocks are missing"));
        }
        self.s.block = raw;
        self.s.orphan_runs = runs;
    }

    fn check_orphan_block(&mut self, ino: InodeNo, block: BlockNo, raw: &[u8], seed: u32) {
        let place = Place::InodeBlock(ino, block);
        if let Err(corrupt) = OrphanBlock::decode(raw, block, seed, &self.g) {
            self.push(place, corrupt);
        }
        // Magic and checksum follow the entries.
        let entries = &raw[..raw.len() - 8];
        let orphan = entries
            .chunks_exact(4)
            .map(|entry| read_u32le(entry, 0))
            .find(|&entry| entry != 0);
        if let Some(orphan) = orphan {
            self.push(place, Fault::OrphanFileEntry(orphan));
        }
    }

    /// Reads an inode from its table whatever its checksum; the scan has reported what is wrong.
    /// `None` if that part of the table was never used.
    fn read_inode(&mut self, ino: InodeNo) -> Option<Inode> {
        self.record(ino)?;
        let (group, index) = self.g.group_of_inode(ino);
        let (block, start) = self.g.inode_position(index);
        let block = self.s.groups[group.index()].inode_table.plus(block.into());
        let mut raw = std::mem::take(&mut self.s.block);
        let is_read = self.read(block, &mut raw);
        let geometry = crate::groups::without_checksums(&self.g);
        let inode = Inode::decode(&raw[start..], ino, &geometry).ok();
        self.s.block = raw;
        inode.filter(|_| is_read)
    }
}
