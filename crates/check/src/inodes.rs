//! The scan of the inode tables: which inodes are in use, and which rules apply to those with
//! special numbers.
//!
//! It reads only the part of a table that was ever used. An inode is in use if its link count is
//! not zero; reserved inodes always are. An unused inode must still have a right checksum and a
//! deletion time.

use stetfs_format::bytes::{read_u16le, read_u32le};
use stetfs_format::features::{FeatureCompat, FeatureRoCompat};
use stetfs_format::inode::ROOT_INO;
use stetfs_format::width::{low16, must_fit, u32_as_usize};
use stetfs_format::{Corrupt, FileType, GroupFlags, GroupNo, Inode, InodeNo, Place};

use crate::finding::Fault;
use crate::groups::without_checksums;
use crate::state::{Check, Keep, Record};

pub(crate) const BAD_BLOCKS_INO: InodeNo = InodeNo(1);
const BOOT_LOADER_INO: InodeNo = InodeNo(5);
pub(crate) const RESIZE_INO: InodeNo = InodeNo(7);
pub(crate) const JOURNAL_INO: InodeNo = InodeNo(8);
/// Inodes of user and group quota.
const QUOTA_INOS: [InodeNo; 2] = [InodeNo(3), InodeNo(4)];

/// Most bytes of a table that are read at once.
const CHUNK: usize = 64 << 10;

/// Offsets of fields that no decoder needs (kernel `Documentation/filesystems/ext4/inodes.rst`).
mod offset {
    pub(super) const MODE: usize = 0x00;
    pub(super) const DTIME: usize = 0x14;
    pub(super) const LINKS_COUNT: usize = 0x1a;
    pub(super) const BLOCKS_LO: usize = 0x1c;
    pub(super) const BLOCK: usize = 0x28;
    pub(super) const SIZE_HI: usize = 0x6c;
}

impl Check<'_> {
    pub(crate) fn check_inodes(&mut self) {
        self.lay_out_records();
        let low_dtimes = self.low_dtimes_are_orphans();
        let mut table = std::mem::take(&mut self.s.table);
        for g in (0..self.g.groups_count).map(GroupNo) {
            self.scan_table(g, &mut table, low_dtimes);
        }
        self.s.table = table;
    }

    /// Makes a record for each inode of each group that was ever used.
    fn lay_out_records(&mut self) {
        let csum = self.g.metadata_csum || self.g.gdt_csum;
        let mut total = 0;
        for desc in &self.s.groups {
            self.s.bases.push(total);
            if !desc.flags(&self.g).contains(GroupFlags::INODE_UNINIT) {
                let unused = if csum { desc.itable_unused } else { 0 };
                total += self.g.inodes_per_group - unused;
            }
        }
        self.s.bases.push(total);
        self.s
            .records
            .resize(u32_as_usize(total), Record::default());
    }

    /// Whether a deletion time below the number of inodes means the next inode of an orphan list.
    /// It does not if the volume's own times are as low: then its clock was wrong (as in e2fsck).
    fn low_dtimes_are_orphans(&self) -> bool {
        let inodes = u64::from(self.g.inodes_count);
        [self.sb.wtime, self.sb.mtime, self.sb.mkfs_time]
            .into_iter()
            .map(|time| time & 0xffff_ffff)
            .all(|time| time == 0 || time >= inodes)
    }

    fn scan_table(&mut self, g: GroupNo, table: &mut Vec<u8>, low_dtimes: bool) {
        let at = g.index();
        let (start, end) = (self.s.bases[at], self.s.bases[at + 1]);
        let size = self.g.inode_size();
        let per_chunk: u32 = must_fit(CHUNK / size);
        let mut index = 0;
        while index < end - start {
            let count = per_chunk.min(end - start - index);
            let (block, _) = self.g.inode_position(index);
            let bytes = (u32_as_usize(count) * size).next_multiple_of(self.g.block_size());
            table.resize(bytes, 0);
            let first = self.s.groups[at].inode_table.plus(block.into());
            if self.read(first, table) {
                for (i, raw) in (0..count).zip(table.chunks_exact(size)) {
                    let ino = self.g.inode_at(g, index + i);
                    let kept = self.check_raw(ino, raw, low_dtimes);
                    self.s.records[u32_as_usize(start + index + i)] = kept;
                }
            }
            index += count;
        }
    }

    fn is_reserved(&self, ino: InodeNo) -> bool {
        ino.0 < self.g.first_ino
    }

    fn is_orphan_file(&self, ino: InodeNo) -> bool {
        ino.0 == self.sb.orphan_file_inum
    }

    fn check_raw(&mut self, ino: InodeNo, raw: &[u8], low_dtimes: bool) -> Record {
        let links = read_u16le(raw, offset::LINKS_COUNT);
        let mode = read_u16le(raw, offset::MODE);
        let dtime = read_u32le(raw, offset::DTIME);
        let place = Place::Inode(ino);
        if dtime != 0 && low_dtimes && dtime < self.g.inodes_count {
            self.push(place, Fault::OrphanRefugee(dtime));
        }
        if links == 0 && !self.is_reserved(ino) {
            if dtime == 0 && mode != 0 && !self.is_quota(ino) {
                self.push(place, Fault::ZeroDtime);
            }
            self.check_unused(ino, raw);
            return Record::default();
        }
        let Some(inode) = self.decode(ino, raw) else {
            let kind = if links == 0 { 0 } else { Record::BAD };
            return Record {
                links,
                kind: if self.is_reserved(ino) {
                    Record::RESERVED
                } else {
                    kind
                },
                ..Record::default()
            };
        };
        if let Some(record) = self.check_special(ino, &inode, raw) {
            return record;
        }
        if links == 0 {
            return Record::default();
        }
        if dtime != 0 {
            self.push(place, Fault::Dtime(dtime));
        }
        let kind = self.check_ordinary(ino, &inode, raw);
        Record {
            links,
            kind,
            indexed: inode.flags.contains(stetfs_format::InodeFlags::INDEX),
            counted: 0,
        }
    }

    fn is_quota(&self, ino: InodeNo) -> bool {
        QUOTA_INOS.contains(&ino) || ino.0 == self.sb.prj_quota_inum
    }

    fn is_quota_in_use(&self, ino: InodeNo) -> bool {
        let inums = [
            self.sb.usr_quota_inum,
            self.sb.grp_quota_inum,
            self.sb.prj_quota_inum,
        ];
        inums.contains(&ino.0) && self.sb.feature_ro_compat.contains(FeatureRoCompat::QUOTA)
    }

    /// Checks an unused inode: all zero, or what a deletion left.
    fn check_unused(&mut self, ino: InodeNo, raw: &[u8]) {
        if self.g.metadata_csum
            && raw.iter().any(|&byte| byte != 0)
            && let Err(corrupt @ Corrupt::InodeChecksum { .. }) = Inode::decode(raw, ino, &self.g)
        {
            self.push(Place::Inode(ino), corrupt);
        }
    }

    /// Decodes an inode and reports what is wrong with it; `None` if nothing can be read from it.
    fn decode(&mut self, ino: InodeNo, raw: &[u8]) -> Option<Inode> {
        let mut decoded = Inode::decode(raw, ino, &self.g);
        if let Err(corrupt @ Corrupt::InodeChecksum { .. }) = decoded {
            // The kernel and e2fsck accept zeros as an inode that was never written.
            if raw.iter().any(|&byte| byte != 0) {
                self.push(Place::Inode(ino), corrupt);
            }
            decoded = Inode::decode(raw, ino, &without_checksums(&self.g));
        }
        match decoded {
            Ok(mut inode) => {
                // The decoder ignores the upper half of the size where that has no meaning and must
                // be zero.
                inode.size =
                    inode.size & 0xffff_ffff | u64::from(read_u32le(raw, offset::SIZE_HI)) << 32;
                Some(inode)
            }
            Err(corrupt) => {
                self.push(Place::Inode(ino), corrupt);
                None
            }
        }
    }

    /// Checks an inode with a special number. `None` for the root and for all ordinary numbers.
    fn check_special(&mut self, ino: InodeNo, inode: &Inode, raw: &[u8]) -> Option<Record> {
        let place = Place::Inode(ino);
        let reserved = Record {
            links: inode.links_count,
            kind: Record::RESERVED,
            ..Record::default()
        };
        let is_clear = inode.links_count == 0
            && read_u32le(raw, offset::BLOCKS_LO) == 0
            && read_u32le(raw, offset::BLOCK) == 0;
        if ino != ROOT_INO && self.is_reserved(ino) {
            self.check_flags(ino, inode);
        }
        if ino == ROOT_INO {
            if !inode.is_dir() && inode.links_count > 0 {
                self.push(place, Fault::RootNotDirectory);
            }
            return None;
        }
        if ino == BAD_BLOCKS_INO {
            self.check_bad_blocks(inode);
            return Some(reserved);
        }
        if ino.0 == self.sb.journal_inum && ino == JOURNAL_INO {
            self.check_regular_special(ino, inode);
            self.check_journal_inode(ino, inode);
            return Some(reserved);
        }
        if self.is_orphan_file(ino) {
            if self.sb.feature_compat.contains(FeatureCompat::ORPHAN_FILE) {
                self.check_flags(ino, inode);
                self.check_regular_special(ino, inode);
                self.check_blocks(ino, inode, Keep::OrphanFile);
                return Some(reserved);
            }
            if !is_clear {
                self.push(place, Fault::ReservedNotClear);
            }
        }
        if ino == JOURNAL_INO || self.is_quota(ino) {
            if self.is_quota_in_use(ino) {
                self.check_regular_special(ino, inode);
                self.check_blocks(ino, inode, Keep::Nothing);
            } else if !is_clear {
                self.push(place, Fault::ReservedNotClear);
            }
            return Some(reserved);
        }
        if !self.is_reserved(ino) {
            return None;
        }
        let allowed = match ino {
            BOOT_LOADER_INO => !inode.is_dir(),
            RESIZE_INO => inode.mode == 0 || inode.is_regular(),
            _ => inode.mode == 0,
        };
        if !allowed {
            self.push(place, Fault::ReservedMode(inode.mode));
        }
        self.check_blocks(ino, inode, Keep::Nothing);
        Some(reserved)
    }

    fn check_regular_special(&mut self, ino: InodeNo, inode: &Inode) {
        if inode.file_type() != Some(FileType::Regular) {
            self.push(Place::Inode(ino), Fault::ReservedMode(inode.mode));
        }
    }

    /// Checks the list of bad blocks: volumes that this checker can judge have none.
    fn check_bad_blocks(&mut self, inode: &Inode) {
        let place = Place::Inode(BAD_BLOCKS_INO);
        if inode.mode != 0
            || low16(inode.uid) != 0
            || low16(inode.gid) != 0
            || inode.links_count != 0
            || inode.file_acl.0 != 0
        {
            self.push(place, Fault::ReservedNotClear);
        }
        if inode.block.iter().any(|&byte| byte != 0) {
            self.push(place, Fault::Unsupported("a list of bad blocks"));
            self.check_blocks(BAD_BLOCKS_INO, inode, Keep::BadBlocks);
        }
    }
}
