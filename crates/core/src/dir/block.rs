//! The blocks of a directory, linear or indexed: reads each, checks it as a whole the first time,
//! and puts names into its records.

use stetfs_format::checksum::crc32c;
use stetfs_format::dirent::{body_size, rec_len};
use stetfs_format::{
    BlockNo, Corrupt, DirBlock as Leaf, FileType, InodeFlags, InodeNo, LBlock, Place as Where,
};
use stetfs_journal::Handle;
use stetfs_media::{BlockRef, Class};

use super::dirs::CheckedAs;
use super::leaf::{self, Broken, Changes, Hit};
use crate::alloc::Source;
use crate::error::{Error, Inconsistent, Result};
use crate::inline;
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState};
use crate::volume::Volume;

/// Where the checksum is in the 12 bytes behind the records (`det_checksum`).
const TAIL_CHECKSUM: usize = 8;

/// Stands for the block of a directory whose entries lie in its inode.
const IN_INODE: BlockNo = BlockNo(u64::MAX);

/// A directory that an operation looks at.
#[derive(Clone, Copy)]
pub(crate) struct Dir<'a> {
    pub(crate) vol: &'a Volume,
    pub(crate) inode: &'a Inode,
    pub(crate) st: &'a InodeState,
    /// Its length in blocks.
    pub(crate) blocks: u32,
}

/// A block of a directory, as it is now.
pub(crate) struct DirBlock {
    pub(crate) lblk: LBlock,
    pub(crate) pblk: BlockNo,
    pub(crate) bytes: BlockRef,
    /// Where the chain of records ends, in bytes.
    pub(crate) end: usize,
}

/// An entry that was found, and where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// Its inode.
    pub(crate) ino: InodeNo,
    pub(super) lblk: LBlock,
    pub(super) pblk: BlockNo,
    pub(super) hit: Hit,
}

/// Where a new name goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// The spare bytes of a record.
    Room {
        /// The block.
        pblk: BlockNo,
        /// The record.
        offset: usize,
    },
    /// A new block: no record has room.
    Grow,
}

/// A name to add.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewEntry<'a> {
    /// The name.
    pub(crate) name: &'a [u8],
    /// Its inode.
    pub(crate) ino: InodeNo,
    /// The mode of the inode.
    pub(crate) mode: u16,
    /// Where a block comes from if the directory must grow.
    pub(crate) source: Source,
}

impl<'a> Dir<'a> {
    /// The directory `inode`, whose state is `st`.
    pub(crate) fn open(vol: &'a Volume, inode: &'a Inode, st: &'a InodeState) -> Result<Self> {
        if !st.is_dir() {
            return Err(Error::NotDirectory);
        }
        let size = st.raw.size;
        if size == 0 && st.raw.links_count == 0 {
            return Err(Error::NotFound);
        }
        if st.raw.is_inline() {
            return Ok(Self {
                vol,
                inode,
                st,
                blocks: 1,
            });
        }
        let blocks = u32::try_from(vol.geo.block.block_of(size)).ok();
        match blocks.filter(|&n| n > 0) {
            // No directory has more blocks than the volume. A map that says so would lead to the
            // same blocks again and again.
            Some(blocks)
                if vol.start_of(LBlock(blocks)) == size
                    && u64::from(blocks) <= vol.geo.blocks_count =>
            {
                Ok(Self {
                    vol,
                    inode,
                    st,
                    blocks,
                })
            }
            _ => Err(Inconsistent::DirectorySize {
                ino: inode.ino,
                size,
            }
            .into()),
        }
    }

    /// Whether names are found through a hash tree.
    #[inline]
    pub(crate) fn is_indexed(&self) -> bool {
        is_indexed(self.vol, self.st)
    }

    /// The seed of the checksums of this directory's blocks.
    pub(crate) fn seed(&self) -> u32 {
        self.st.raw.csum_seed(self.inode.ino, &self.vol.geo)
    }

    /// Makes the error of a failed check, with the directory and the block.
    #[cold]
    pub(crate) fn corrupt(&self, lblk: LBlock, what: Corrupt) -> Error {
        what.at(Where::FileBlock(self.inode.ino, lblk)).into()
    }

    /// Makes the error of a broken chain of records, with the directory, the block and the failed
    /// check.
    #[cold]
    pub(crate) fn broken(&self, block: &DirBlock, at: Broken) -> Error {
        if self.st.raw.is_inline() {
            return self.corrupt(block.lblk, Corrupt::DirentOverrun { offset: at.0 });
        }
        match check_leaf(*self, block.lblk, &block.bytes) {
            Err(what) => self.corrupt(block.lblk, what),
            Ok(()) => self.corrupt(block.lblk, Corrupt::DirentOverrun { offset: at.0 }),
        }
    }

    fn map(&self, lblk: LBlock) -> Result<BlockNo> {
        if lblk.0 < self.blocks {
            let run = mapping::lookup(self.vol, self.inode, self.st, lblk, 1)?;
            if run.state == MapState::Written {
                return Ok(run.pblk);
            }
        }
        Err(Inconsistent::DirectoryHole {
            ino: self.inode.ino,
            lblk,
        }
        .into())
    }

    /// Reads a block of entries. Checks it as a whole the first time.
    #[inline]
    pub(crate) fn read_leaf(&self, lblk: LBlock) -> Result<DirBlock> {
        if self.st.raw.is_inline() {
            let (bytes, end) = inline::block(self.vol, self.inode, self.st)?;
            return Ok(DirBlock {
                lblk,
                pblk: IN_INODE,
                bytes,
                end,
            });
        }
        let checked_as = match lblk {
            LBlock(0) => CheckedAs::First,
            _ => CheckedAs::Leaf,
        };
        self.read(lblk, checked_as, |bytes| check_leaf(*self, lblk, bytes))
    }

    /// Reads a block of the index. Checks it as a whole by `check` the first time.
    #[inline]
    pub(crate) fn read_index(
        &self,
        lblk: LBlock,
        check: impl FnOnce(&[u8]) -> Result<(), Corrupt>,
    ) -> Result<DirBlock> {
        self.read(lblk, CheckedAs::Index, check)
    }

    #[inline]
    fn read(
        &self,
        lblk: LBlock,
        checked_as: CheckedAs,
        check: impl FnOnce(&[u8]) -> Result<(), Corrupt>,
    ) -> Result<DirBlock> {
        let pblk = self.map(lblk)?;
        let bytes = self.vol.journal.read(pblk, Class::Directory)?;
        let checked = &self.vol.dirs.checked;
        let key = checked.key(self.inode.ino, pblk, checked_as);
        if !checked.contains(key) {
            check(&bytes).map_err(|e| self.corrupt(lblk, e))?;
            checked.insert(key);
        }
        Ok(DirBlock {
            lblk,
            pblk,
            bytes,
            end: body_size(&self.vol.geo),
        })
    }

    /// Looks for a name in one block.
    #[inline]
    pub(crate) fn find_in(&self, block: &DirBlock, name: &[u8]) -> Result<Option<Found>> {
        let hit = leaf::find(&block.bytes, block.end, name).map_err(|b| self.broken(block, b))?;
        Ok(hit.map(|hit| found(block, hit)))
    }

    /// Looks for a name in one block, and for room for it.
    pub(crate) fn find_or_room_in(
        &self,
        block: &DirBlock,
        name: &[u8],
    ) -> Result<(Option<Found>, Option<usize>)> {
        let (hit, room) = leaf::find_or_room(&block.bytes, block.end, name, rec_len(name.len()))
            .map_err(|b| self.broken(block, b))?;
        Ok((hit.map(|hit| found(block, hit)), room))
    }

    /// Looks for room for a name in one block.
    pub(crate) fn room_in(&self, block: &DirBlock, name: &[u8]) -> Result<Option<usize>> {
        leaf::room(&block.bytes, block.end, rec_len(name.len())).map_err(|b| self.broken(block, b))
    }
}

pub(super) fn found(block: &DirBlock, hit: Hit) -> Found {
    Found {
        ino: hit.ino,
        lblk: block.lblk,
        pblk: block.pblk,
        hit,
    }
}

/// Checks a whole block of entries: its checksum, and every entry.
fn check_leaf(dir: Dir<'_>, lblk: LBlock, bytes: &[u8]) -> Result<(), Corrupt> {
    let leaf = Leaf::decode(bytes, &dir.vol.geo)?;
    leaf.check_checksum(dir.seed())?;
    leaf.check_entries(lblk == LBlock(0))
}

/// Whether a directory in this state has a hash tree to find names by.
#[inline]
pub(crate) fn is_indexed(vol: &Volume, st: &InodeState) -> bool {
    vol.geo.dir_index && st.raw.flags.contains(InodeFlags::INDEX)
}

/// The file type that an entry of this volume holds for an inode of mode `mode`: 0 without
/// `filetype`.
pub(crate) fn file_type(vol: &Volume, mode: u16) -> u8 {
    if !vol.geo.filetype {
        return 0;
    }
    FileType::of_mode(mode).map_or(0, FileType::dirent_code)
}

/// Whether a block of entries has only "." and "..".
pub(crate) fn is_empty_block(dir: Dir<'_>, block: &DirBlock) -> Result<bool> {
    if dir.st.raw.is_inline() {
        // The chains were checked when the block was made.
        let mut names = leaf::records(&block.bytes, block.end).skip(2).flatten();
        return Ok(names.all(|record| record.ino == 0));
    }
    Leaf::decode(&block.bytes, &dir.vol.geo)
        .and_then(|leaf| leaf.is_empty())
        .map_err(|e| dir.corrupt(block.lblk, e))
}

/// Adds a block with this content at the directory's end. When there is no space, changes nothing.
pub(crate) fn append(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    content: &[u8],
    source: Source,
) -> Result<(LBlock, BlockNo)> {
    let blocks = vol.geo.block.block_of(st.raw.size);
    let lblk = LBlock(u32::try_from(blocks).map_err(|_| Error::NoSpace)?);
    let size = vol.geo.block.offset_of(blocks + 1);
    if size > u64::from(u32::MAX) && !vol.geo.largedir {
        return Err(Error::NoSpace);
    }
    let pblk = mapping::allocate_block(vol, h, inode, st, lblk, source)?;
    h.create(pblk, Class::Directory, content)?;
    st.raw.size = size;
    Ok((lblk, pblk))
}

/// Puts a name into the spare bytes of the record at `offset` of a block of entries.
pub(crate) fn put(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    (pblk, offset): (BlockNo, usize),
    entry: NewEntry<'_>,
) -> Result<()> {
    let block = read_again(vol, inode, st, pblk)?;
    let file_type = file_type(vol, entry.mode);
    let changes = leaf::insert(&block, offset, entry.name, entry.ino, file_type);
    apply(vol, h, inode, st, (pblk, block), &changes)
}

/// Reads a block of entries in which a search has found something.
pub(super) fn read_again(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    pblk: BlockNo,
) -> Result<BlockRef> {
    if st.raw.is_inline() {
        return Ok(inline::block(vol, inode, st)?.0);
    }
    Ok(vol.journal.read(pblk, Class::Directory)?)
}

/// Makes changes in a block of entries, and updates its checksum. The caller stores the inode.
pub(super) fn apply(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    (pblk, block): (BlockNo, BlockRef),
    changes: &Changes,
) -> Result<()> {
    if st.raw.is_inline() {
        return inline::change(vol, h, inode, st, changes);
    }
    let checksum = vol.geo.metadata_csum.then(|| {
        let (end, seed) = (body_size(&vol.geo), st.raw.csum_seed(inode.ino, &vol.geo));
        (
            end + TAIL_CHECKSUM,
            changed_checksum(seed, &block[..end], changes),
        )
    });
    drop(block);
    let checksum = checksum.map(|(offset, sum)| (offset, sum.to_le_bytes()));
    let checksum = checksum.iter().map(|(offset, sum)| (*offset, &sum[..]));
    let parts = changes.iter().map(|(offset, bytes)| (*offset, &bytes[..]));
    Ok(h.write_parts(pblk, Class::Directory, parts.chain(checksum))?)
}

/// The checksum of `old` after `changes`, which are in ascending order and do not overlap.
fn changed_checksum(seed: u32, old: &[u8], changes: &Changes) -> u32 {
    let mut sum = seed;
    let mut done = 0;
    for (offset, bytes) in changes {
        sum = crc32c(sum, &old[done..*offset]);
        sum = crc32c(sum, bytes);
        done = offset + bytes.len();
    }
    crc32c(sum, &old[done..])
}
