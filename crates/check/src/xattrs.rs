//! Extended attributes, in inodes and in blocks.
//!
//! The decoder demands what the kernel demands. e2fsck also demands that nothing overlaps in an
//! area and that hashes match. Each block is checked once, when all inodes that refer to it are
//! known.

use stetfs_format::bytes::{read_u16le, read_u32le};
use stetfs_format::inode::GOOD_OLD_INODE_SIZE;
use stetfs_format::width::{must_fit, u32_as_usize};
use stetfs_format::xattr::{XATTR_MAGIC, Xattr, XattrArea, XattrBlock};
use stetfs_format::{BlockNo, Corrupt, Inode, InodeNo, Place};

use crate::finding::Fault;
use crate::groups::without_checksums;
use crate::state::Check;

const IBODY_HEADER: usize = 4;
const BLOCK_HEADER: usize = 32;
const ENTRY: usize = 16;
/// The largest attribute area in bytes: a block.
const MOST_BYTES: usize = 4096;

/// Offsets of fields in an entry (kernel `Documentation/filesystems/ext4/attributes.rst`).
mod offset {
    pub(super) const NAME_LEN: usize = 0;
    pub(super) const NAME_INDEX: usize = 1;
    pub(super) const VALUE_OFFS: usize = 2;
    pub(super) const VALUE_INUM: usize = 4;
    pub(super) const VALUE_SIZE: usize = 8;
    pub(super) const HASH: usize = 12;
}

const fn padded(size: usize) -> usize {
    (size + 3) & !3
}

/// The bytes of an area that belong to something.
struct Taken {
    bits: [u64; MOST_BYTES / 64],
    size: usize,
}

impl Taken {
    fn new(size: usize) -> Self {
        Self {
            bits: [0; MOST_BYTES / 64],
            size,
        }
    }

    /// Takes a range of bytes. Returns false if some are already taken or lie outside.
    fn take(&mut self, start: usize, len: usize) -> bool {
        let Some(end) = start.checked_add(len).filter(|&end| end <= self.size) else {
            return false;
        };
        let is_free = (start..end).all(|i| self.bits[i / 64] & 1 << (i % 64) == 0);
        (start..end).for_each(|i| self.bits[i / 64] |= 1 << (i % 64));
        is_free
    }
}

impl Check<'_> {
    pub(crate) fn check_inode_xattrs(&mut self, ino: InodeNo, inode: &Inode, raw: &[u8]) {
        let start = inode.xattr_offset();
        if start <= GOOD_OLD_INODE_SIZE || start + IBODY_HEADER >= raw.len() {
            return;
        }
        let area = &raw[start..];
        if read_u32le(area, 0) != XATTR_MAGIC {
            return;
        }
        let place = Place::Inode(ino);
        match XattrArea::in_inode(raw, inode, &self.g) {
            Ok(_) => self.check_entries(place, area, IBODY_HEADER, IBODY_HEADER),
            Err(corrupt) => self.push(place, corrupt),
        }
    }

    /// Checks every attribute block once, after all inodes have been seen.
    pub(crate) fn check_xattr_blocks(&mut self) {
        let mut blocks = std::mem::take(&mut self.s.xattr_blocks);
        blocks.sort_unstable();
        for users in blocks.chunk_by(|a, b| a.0 == b.0) {
            let (block, ino) = users[0];
            self.check_xattr_block(block, ino, must_fit(users.len()));
        }
        blocks.clear();
        self.s.xattr_blocks = blocks;
    }

    fn check_xattr_block(&mut self, block: BlockNo, ino: InodeNo, counted: u32) {
        let place = Place::InodeBlock(ino, block);
        if !self.claim(place, block, 1) {
            return;
        }
        let mut raw = std::mem::take(&mut self.s.block);
        if self.read(block, &mut raw) {
            let mut decoded = XattrBlock::decode(&raw, block, &self.g);
            if let Err(corrupt @ Corrupt::XattrChecksum { .. }) = decoded {
                self.push(place, corrupt);
                decoded = XattrBlock::decode(&raw, block, &without_checksums(&self.g));
            }
            match decoded {
                Ok(decoded) => {
                    let stored = decoded.refcount;
                    if stored != counted {
                        self.push(place, Fault::XattrRefcount { stored, counted });
                    }
                    self.check_entries(place, &raw, BLOCK_HEADER, 0);
                }
                Err(corrupt) => self.push(place, corrupt),
            }
        }
        self.s.block = raw;
    }

    /// Checks the entries of `area` from `first` on, which the decoder has accepted. Offsets of
    /// values count from `base`.
    fn check_entries(&mut self, place: Place, area: &[u8], first: usize, base: usize) {
        let in_block = base == 0;
        let mut taken = Taken::new(area.len());
        let _ = taken.take(0, first);
        let mut at = first;
        while at + ENTRY <= area.len() && read_u32le(area, at) != 0 {
            let entry = &area[at..];
            let name_len = usize::from(entry[offset::NAME_LEN]);
            let size = u32_as_usize(read_u32le(entry, offset::VALUE_SIZE));
            let value = base + usize::from(read_u16le(entry, offset::VALUE_OFFS));
            let has_value = size > 0 && read_u32le(entry, offset::VALUE_INUM) == 0;
            let is_apart = taken.take(at, padded(ENTRY + name_len))
                && (!has_value || taken.take(value, padded(size)))
                && (!in_block || value + size <= area.len());
            if !is_apart {
                self.push(place, Fault::XattrOverlap(at));
                return;
            }
            let index = entry[offset::NAME_INDEX];
            if in_block && index == 0 {
                self.push(place, Fault::XattrIndex(at));
            }
            let stored = read_u32le(entry, offset::HASH);
            // Older kernels stored no hash in inodes.
            if in_block || stored != 0 {
                let name = &entry[ENTRY..ENTRY + name_len];
                let value = if has_value {
                    &area[value..value + padded(size)]
                } else {
                    &[]
                };
                self.check_hash(place, at, stored, &Xattr { index, name, value });
            }
            at += padded(ENTRY + name_len);
        }
        if !taken.take(at, 4) {
            self.push(place, Fault::XattrOverlap(at));
        }
    }

    /// Checks the hash over the name and the padded value. It accepts two forms: characters of the
    /// name as unsigned, and as signed, as x86 once did.
    fn check_hash(&mut self, place: Place, offset: usize, stored: u32, xattr: &Xattr<'_>) {
        let hash = |character: fn(u8) -> u32| {
            let name = xattr
                .name
                .iter()
                .fold(0u32, |hash, &byte| hash.rotate_left(5) ^ character(byte));
            xattr.value.chunks_exact(4).fold(name, |hash, word| {
                hash.rotate_left(16) ^ read_u32le(word, 0)
            })
        };
        let computed = hash(u32::from);
        if stored != computed
            && stored != hash(|byte| i32::from(byte.cast_signed()).cast_unsigned())
        {
            self.push(
                place,
                Fault::XattrHash {
                    offset,
                    stored,
                    computed,
                },
            );
        }
    }
}
