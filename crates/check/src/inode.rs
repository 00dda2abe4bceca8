//! An inode in use: its fields, its type, its blocks, its size.

use stetfs_format::bytes::{read_u16le, read_u32le};
use stetfs_format::features::FeatureRoCompat;
use stetfs_format::width::{low32, u64_as_usize, usize_as_u64};
use stetfs_format::{FileType, Inode, InodeFlags, InodeNo, Place};

use crate::extents;
use crate::finding::Fault;
use crate::indirect;
use crate::state::{Check, Dir, Keep, Mapped, Record};

/// Offsets of fields that no decoder needs, because they must be zero (kernel
/// `Documentation/filesystems/ext4/inodes.rst`).
mod offset {
    pub(super) const FADDR: usize = 0x70;
    pub(super) const SIZE_HI: usize = 0x6c;
    pub(super) const BLOCKS_HI: usize = 0x74;
    pub(super) const FILE_ACL_HI: usize = 0x76;
}

impl Check<'_> {
    /// Checks an inode in use. Returns the kind for its record.
    pub(crate) fn check_ordinary(&mut self, ino: InodeNo, inode: &Inode, raw: &[u8]) -> u8 {
        self.check_zero_fields(ino, inode, raw);
        self.check_flags(ino, inode);
        self.check_inode_xattrs(ino, inode, raw);
        let Some(file_type) = inode.file_type() else {
            self.push(Place::Inode(ino), Fault::Mode(inode.mode));
            return Record::BAD;
        };
        let mut kind = file_type.dirent_code();
        let mut keep = Keep::Nothing;
        match file_type {
            FileType::Regular => {}
            FileType::Directory => {
                keep = Keep::Directory;
                self.add_directory(ino, inode);
            }
            FileType::Symlink => {
                if !self.check_symlink(inode) {
                    self.push(Place::Inode(ino), Fault::Symlink(inode.size));
                    kind = Record::BAD;
                }
            }
            FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {
                if !self.check_special_file(ino, inode) {
                    kind = Record::BAD;
                }
            }
        }
        if ino.0 == self.sb.journal_inum {
            // The journal is a visible file.
            self.check_journal_inode(ino, inode);
        } else {
            self.check_blocks(ino, inode, keep);
        }
        kind
    }

    fn check_zero_fields(&mut self, ino: InodeNo, inode: &Inode, raw: &[u8]) {
        for (must_be_zero, field, value) in [
            (true, "i_faddr", read_u32le(raw, offset::FADDR)),
            (
                inode.is_dir() && !self.g.largedir,
                "i_size_high",
                read_u32le(raw, offset::SIZE_HI),
            ),
            (
                !self.g.is_64bit,
                "l_i_file_acl_high",
                read_u16le(raw, offset::FILE_ACL_HI).into(),
            ),
            (
                !self.g.huge_file,
                "l_i_blocks_high",
                read_u16le(raw, offset::BLOCKS_HI).into(),
            ),
        ] {
            if must_be_zero && value != 0 {
                self.push(Place::Inode(ino), Fault::FieldNotZero { field, value });
            }
        }
    }

    pub(crate) fn check_flags(&mut self, ino: InodeNo, inode: &Inode) {
        use stetfs_format::features::FeatureCompat;
        let imagic = self
            .sb
            .feature_compat
            .contains(FeatureCompat::IMAGIC_INODES);
        let is_special = !matches!(
            inode.file_type(),
            None | Some(FileType::Regular | FileType::Directory)
        );
        for (flag, name, is_allowed) in [
            (InodeFlags::IMAGIC, "imagic", imagic),
            (InodeFlags::CASEFOLD, "casefold", false),
            (InodeFlags::INLINE_DATA, "inline_data", false),
            (InodeFlags::ENCRYPT, "encrypt", false),
            (InodeFlags::EA_INODE, "ea_inode", false),
            (InodeFlags::EXTENTS, "extents", self.g.extents),
            (
                InodeFlags::INDEX,
                "index",
                inode.is_dir() && self.g.dir_index,
            ),
            (InodeFlags::IMMUTABLE, "immutable", !is_special),
            (InodeFlags::APPEND, "append", !is_special),
        ] {
            if inode.flags.contains(flag) && !is_allowed {
                self.push(Place::Inode(ino), Fault::Flag(name));
            }
        }
        let holds_extents = || {
            let header = stetfs_format::ExtentNode::root(&inode.block, &self.g);
            header.is_ok_and(|node| node.max() >= 2)
        };
        if self.g.extents
            && (inode.is_regular() || inode.is_dir())
            && !inode.flags.contains(InodeFlags::EXTENTS)
            && holds_extents()
        {
            self.push(Place::Inode(ino), Fault::ExtentsFlagMissing);
        }
    }

    fn add_directory(&mut self, ino: InodeNo, inode: &Inode) {
        self.s.dirs.push(Dir {
            ino,
            parent: InodeNo(0),
            dotdot: InodeNo(0),
            seed: inode.csum_seed(ino, &self.g),
            first_run: self.s.runs.len(),
            blocks: 0,
            indexed: inode.flags.contains(InodeFlags::INDEX),
        });
    }

    /// Checks a device, pipe or socket. Returns false if it cannot be one.
    fn check_special_file(&mut self, ino: InodeNo, inode: &Inode) -> bool {
        if inode.flags.contains(InodeFlags::EXTENTS) {
            self.push(Place::Inode(ino), Fault::Flag("extents"));
            return false;
        }
        if inode.size != 0 {
            self.push(Place::Inode(ino), Fault::SpecialSize(inode.size));
        }
        true
    }

    /// Whether the text is as long as the size says, in the inode or in one block.
    fn check_symlink(&mut self, inode: &Inode) -> bool {
        let extents = inode.flags.contains(InodeFlags::EXTENTS);
        if inode.size == 0 || extents && !self.maps_blocks(inode) {
            return false;
        }
        if inode.size < usize_as_u64(inode.block.len()) {
            // A text as short as this lies in the inode.
            return !extents && text_len(&inode.block) == Some(u64_as_usize(inode.size));
        }
        let block = if extents {
            extents::only_block(inode, &self.g)
        } else {
            indirect::only_block(inode, &self.g)
        };
        let Some(block) = block else {
            return false;
        };
        let mut text = std::mem::take(&mut self.s.block);
        let fits =
            self.read(block, &mut text) && text_len(&text) == usize::try_from(inode.size).ok();
        self.s.block = text;
        fits
    }

    /// Whether `i_block` maps blocks, by the rule with which e2fsck and the kernel recognise a
    /// short symbolic link.
    fn maps_blocks(&self, inode: &Inode) -> bool {
        match inode.file_type() {
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::Symlink) if inode.file_acl.0 == 0 => low32(inode.blocks) != 0,
            Some(FileType::Symlink) => {
                let second = read_u32le(&inode.block, 4);
                inode.size >= usize_as_u64(inode.block.len()) || inode.size > 4 && second == 0
            }
            _ => false,
        }
    }

    /// Follows the map, claims the blocks, and compares size and block count with them.
    pub(crate) fn check_blocks(&mut self, ino: InodeNo, inode: &Inode, keep: Keep) -> Mapped {
        let mut mapped = Mapped::default();
        if keep == Keep::BadBlocks || self.maps_blocks(inode) {
            mapped = if self.g.extents && inode.flags.contains(InodeFlags::EXTENTS) {
                self.walk_extents(ino, inode, keep)
            } else {
                self.walk_pointers(ino, inode, keep)
            };
        }
        let mut blocks = mapped.blocks;
        if inode.file_acl.0 != 0 {
            use stetfs_format::features::FeatureCompat;
            // The decoder has checked that the block lies inside the volume.
            if self.sb.feature_compat.contains(FeatureCompat::EXT_ATTR) {
                self.s.xattr_blocks.push((inode.file_acl, ino));
                blocks += 1;
            } else {
                self.push(Place::Inode(ino), Fault::XattrFeature(inode.file_acl));
            }
        }
        if keep == Keep::Directory {
            if blocks == 0 {
                self.push(Place::Inode(ino), Fault::EmptyDirectory);
            }
            if let Some(dir) = self.s.dirs.last_mut() {
                dir.blocks = mapped.end;
            }
        }
        self.check_size(ino, inode, &mapped);
        let counts_blocks = self.g.huge_file && inode.flags.contains(InodeFlags::HUGE_FILE);
        let unit = if counts_blocks {
            0
        } else {
            self.g.block.bits() - 9
        };
        let (stored, counted) = (inode.blocks, blocks << unit);
        if stored != counted {
            self.push(Place::Inode(ino), Fault::BlocksCount { stored, counted });
        }
        mapped
    }

    /// Checks the size by the rules of e2fsck. A directory is as long as its blocks. Another file
    /// has at most one written block beyond its end, and no more bytes than its map can reach.
    fn check_size(&mut self, ino: InodeNo, inode: &Inode, mapped: &Mapped) {
        let place = Place::Inode(ino);
        let bits = self.g.block.bits();
        let size = inode.size;
        if inode.is_dir() {
            let blocks = size >> bits;
            let spare = u64::from(self.sb.prealloc_dir_blocks);
            let is_whole = self.g.block.within(size) == 0;
            if !is_whole || blocks > mapped.end || mapped.end - blocks > spare {
                let mapped = mapped.end;
                self.push(place, Fault::Size { size, mapped });
            }
            return;
        }
        if size >= 1 << 31 && inode.is_regular() {
            let has_feature = self
                .sb
                .feature_ro_compat
                .contains(FeatureRoCompat::LARGE_FILE);
            if !has_feature {
                self.push(Place::Superblock, Fault::LargeFile(ino));
            }
        }
        if inode.is_symlink() {
            return;
        }
        let extents = self.g.extents && inode.flags.contains(InodeFlags::EXTENTS);
        let reach = if extents {
            // Logical blocks have 32 bits.
            1 << (32 + bits)
        } else {
            (stetfs_format::indirect::max_blocks(&self.g) << bits) + 1
        };
        if mapped.written_end > 0 && size < (mapped.written_end - 1) << bits {
            let mapped = mapped.written_end;
            self.push(place, Fault::Size { size, mapped });
        } else if size >= reach {
            self.push(place, Fault::SizeTooLarge(size));
        }
    }
}

/// The number of bytes before the first zero; `None` if there is no zero.
fn text_len(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == 0)
}
