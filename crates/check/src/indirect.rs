//! The walk over a block map: pointers in the inode and in pointer blocks.

use stetfs_format::bytes::read_u32le;
use stetfs_format::indirect::{DIRECT, blocks_below};
use stetfs_format::width::{must_fit, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, Corrupt, Geometry, Inode, InodeNo, LBlock, Place};

use crate::finding::Fault;
use crate::inodes::RESIZE_INO;
use crate::state::{Check, Keep, Mapped};

/// Levels of pointer blocks.
const LEVELS: u32 = 3;

/// A walk under way.
struct Walk {
    ino: InodeNo,
    keep: Keep,
    mapped: Mapped,
    too_large: Option<u64>,
    /// Whether only the first logical block may be mapped.
    is_symlink: bool,
}

impl Check<'_> {
    pub(crate) fn walk_pointers(&mut self, ino: InodeNo, inode: &Inode, keep: Keep) -> Mapped {
        let mut walk = Walk {
            ino,
            keep,
            mapped: Mapped::default(),
            too_large: self.too_large(inode),
            is_symlink: inode.is_symlink(),
        };
        let direct = &inode.block[..u32_as_usize(DIRECT) * 4];
        if ino != RESIZE_INO {
            self.walk_level(&mut walk, Place::Inode(ino), direct, 0, 0);
        }
        let mut lblk = u64::from(DIRECT);
        for level in 1..=LEVELS {
            let start = u32_as_usize(DIRECT + level - 1) * 4;
            let pointer = &inode.block[start..start + 4];
            // Another check makes sure that the resize inode has only a double indirect block.
            if ino != RESIZE_INO || level == 2 {
                self.walk_level(&mut walk, Place::Inode(ino), pointer, level, lblk);
            }
            lblk += blocks_below(level, &self.g);
        }
        walk.mapped.written_end = walk.mapped.end;
        walk.mapped
    }

    /// Walks pointers with `level` levels of pointer blocks below each; the first pointer is for
    /// logical block `lblk`.
    fn walk_level(
        &mut self,
        walk: &mut Walk,
        place: Place,
        pointers: &[u8],
        level: u32,
        lblk: u64,
    ) {
        let count = pointers.len() / 4;
        let mut i = 0;
        while i < count {
            // Most pointers of most blocks are zero.
            let rest = &pointers.as_chunks::<4>().0[i..];
            let Some(unused) = rest.iter().position(|pointer| *pointer != [0; 4]) else {
                break;
            };
            i += unused;
            let block = BlockNo(read_u32le(pointers, i * 4).into());
            let lblk = lblk + usize_as_u64(i) * blocks_below(level, &self.g);
            if !self.g.is_valid_range(block, 1) {
                let index = must_fit(i);
                self.push(place, Corrupt::IndirectBlock { index, block });
                i += 1;
                continue;
            }
            if level > 0 {
                self.walk_pointer_block(walk, block, level, lblk);
                i += 1;
                continue;
            }
            // Consecutive blocks are claimed at once.
            let most = u64_as_usize((self.g.blocks_count - block.0).min(usize_as_u64(count - i)));
            let len = (1..most)
                .take_while(|&k| {
                    u64::from(read_u32le(pointers, (i + k) * 4)) == block.0 + usize_as_u64(k)
                })
                .count()
                + 1;
            self.walk_run(walk, block, must_fit(len), lblk);
            i += len;
        }
    }

    fn walk_pointer_block(&mut self, walk: &mut Walk, block: BlockNo, level: u32, lblk: u64) {
        let place = Place::InodeBlock(walk.ino, block);
        walk.mapped.blocks += 1;
        // The resize inode's lower pointer blocks are the reserved descriptor blocks, which are
        // already claimed.
        let is_claimed = walk.ino == RESIZE_INO && level == 1;
        if !is_claimed && !self.claim(place, block, 1) {
            return;
        }
        let mut raw = std::mem::take(&mut self.s.nodes[u32_as_usize(level)]);
        if self.read(block, &mut raw) {
            self.walk_level(walk, place, &raw, level - 1, lblk);
        }
        self.s.nodes[u32_as_usize(level)] = raw;
    }

    fn walk_run(&mut self, walk: &mut Walk, block: BlockNo, len: u32, lblk: u64) {
        let place = Place::Inode(walk.ino);
        let last = lblk + u64::from(len) - 1;
        // Three levels of pointers in blocks of 4 KiB reach a little beyond 32 bits.
        let first = LBlock(u32::try_from(lblk).unwrap_or(u32::MAX));
        if walk.is_symlink && last > 0 {
            self.push(place, Fault::SymlinkTooLarge(first));
        }
        if walk.ino == RESIZE_INO {
            walk.mapped.blocks += u64::from(len);
            walk.mapped.end = last + 1;
            return;
        }
        if walk.keep == Keep::Directory {
            // e2fsck allows one block more here than in an extent tree.
            if walk.too_large.is_some_and(|limit| last > limit) {
                self.push(place, Fault::DirectoryTooLarge(first));
                return;
            }
            if lblk > walk.mapped.end {
                self.push(place, Fault::DirectoryHole(first));
            }
        }
        self.take_run(walk.ino, walk.keep, &mut walk.mapped, first, block, len);
        walk.mapped.end = last + 1;
    }
}

/// Returns the block of a symbolic link that maps only its first block.
pub(crate) fn only_block(inode: &Inode, g: &Geometry) -> Option<BlockNo> {
    let block = BlockNo(read_u32le(&inode.block, 0).into());
    let is_only = inode.block[4..].iter().all(|&byte| byte == 0);
    (is_only && g.is_valid_range(block, 1)).then_some(block)
}
