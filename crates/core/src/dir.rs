//! Directories: finding, adding, changing and removing a name, whichever way the directory is kept.
//!
//! A directory is *linear* (its blocks are searched one after the other) or *indexed* (block 0 holds the root of a tree
//! by hash, `htree.rs`); the blocks with entries look alike (`leaf.rs`). As in the kernel, a directory starts with one
//! linear block and is turned into an indexed one when that block is full, if the volume has `dir_index`.
//!
//! Invariants:
//! 1. Whoever calls holds the directory's `lock`: shared to search, alone to change. A [`Place`] is good as long as
//!    that lock is held and the directory is not changed otherwise.
//! 2. A name is at most once in a directory: [`place`] has looked before [`insert`] is called.
//! 3. Every change writes the bytes that differ and the block's checksum in one handle. A block that is read
//!    is let go before it is written, so that the write need not copy it.
//! 4. A new block is allocated before anything else is changed, so that "no space" changes nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use stetfs_format::checksum::crc32c;
use stetfs_format::inode::{FileType, InodeFlags};
use stetfs_format::{BlockNo, InodeNo, LBlock, Superblock, Time};
use stetfs_journal::Handle;
use stetfs_media::{BlockRef, Class};

use crate::alloc::Source;
use crate::error::{Error, Inconsistent, Result};
use crate::htree;
use crate::inode::{Inode, InodeState};
use crate::mapping;
use crate::volume::Volume;

pub(crate) mod leaf;

use leaf::{Broken, Changes, Hit};

/// Bytes of the record at a block's end that holds its checksum.
pub(crate) const TAIL: usize = 12;

/// The longest name.
pub(crate) const NAME_MAX: usize = 255;

/// What is the same for all directories of a volume.
pub(crate) struct Dirs {
    /// `s_hash_seed`; all zero means the hash's own.
    pub(crate) hash_seed: [u32; 4],
    /// Names are hashed as unsigned bytes.
    pub(crate) unsigned_hash: bool,
    /// `s_def_hash_version`, of new indexes.
    pub(crate) default_version: u8,
    /// `dir_index`: full directories become indexed.
    pub(crate) dir_index: bool,
    /// `filetype`: entries hold the file type.
    pub(crate) filetype: bool,
    /// `dir_nlink`: a directory may have more subdirectories than its link count can say.
    pub(crate) dir_nlink: bool,
    /// The most levels of index blocks: 2, or 3 with `large_dir`.
    pub(crate) levels_max: usize,
    checked: Checked,
    /// How many generations were given out.
    generations: AtomicU64,
}

impl Dirs {
    /// As the superblock says.
    pub(crate) fn new(sb: &Superblock) -> Self {
        Self {
            hash_seed: sb.hash_seed,
            unsigned_hash: sb.unsigned_hash(),
            default_version: sb.def_hash_version,
            dir_index: sb.geometry().dir_index,
            filetype: sb.geometry().filetype,
            dir_nlink: sb.geometry().dir_nlink,
            levels_max: if sb.geometry().largedir { 3 } else { 2 },
            checked: Checked::new(),
            generations: AtomicU64::new(0),
        }
    }

    /// A number that the next inode of some number will not have again soon: counted, stirred with the time (splitmix64).
    pub(crate) fn new_generation(&self, now: Time) -> u32 {
        let count = self.generations.fetch_add(1, Ordering::Relaxed);
        let time = (now.sec as u64) << 30 ^ u64::from(now.nsec);
        let mut x = count.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(time);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 32) as u32
    }
}

/// Which directory blocks have passed their whole check since the mount: a fixed table, where a collision costs another
/// check and nothing else. The searches stay inside a block without it.
struct Checked {
    slots: Box<[AtomicU64]>,
}

impl Checked {
    const SLOTS: usize = 1 << 14;

    fn new() -> Self {
        Self {
            slots: (0..Self::SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn key(ino: InodeNo, block: BlockNo, index: bool) -> (usize, u64) {
        let key = (block.0 ^ (u64::from(ino.0) << 32) ^ (u64::from(index) << 31))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (block.0 as usize % Self::SLOTS, key | 1)
    }

    #[inline]
    fn contains(&self, (slot, key): (usize, u64)) -> bool {
        self.slots[slot].load(Ordering::Relaxed) == key
    }

    fn insert(&self, (slot, key): (usize, u64)) {
        self.slots[slot].store(key, Ordering::Relaxed);
    }
}

/// A directory that is being looked at.
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
}

/// An entry that was found, and where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    /// Its inode.
    pub(crate) ino: InodeNo,
    pub(crate) lblk: LBlock,
    pub(crate) pblk: BlockNo,
    pub(crate) hit: Hit,
}

/// Where a new name can go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// Into the spare bytes of a record.
    Room {
        /// The block.
        pblk: BlockNo,
        /// The record.
        offset: usize,
    },
    /// Nowhere without another block.
    Grow,
}

impl<'a> Dir<'a> {
    /// The directory `inode`, whose state is `st`.
    pub(crate) fn open(vol: &'a Volume, inode: &'a Inode, st: &'a InodeState) -> Result<Self> {
        if !st.is_dir() {
            return Err(Error::NotDirectory);
        }
        let bits = vol.geo.block_bits;
        let size = st.raw.size;
        if size == 0 && st.raw.links_count == 0 {
            return Err(Error::NotFound);
        }
        let blocks = u32::try_from(size >> bits).ok().filter(|&n| n > 0);
        match blocks {
            Some(blocks) if u64::from(blocks) << bits == size => Ok(Self {
                vol,
                inode,
                st,
                blocks,
            }),
            _ => Err(Inconsistent::DirectorySize {
                ino: inode.ino,
                size,
            }
            .into()),
        }
    }

    /// Whether names are found through a hash tree.
    pub(crate) fn is_indexed(&self) -> bool {
        self.vol.dirs.dir_index && self.st.raw.flags.contains(InodeFlags::INDEX)
    }

    /// Where the chain of records ends in each block.
    pub(crate) fn end(&self) -> usize {
        chain_end(self.vol)
    }

    fn map(&self, lblk: LBlock) -> Result<BlockNo> {
        let run = mapping::lookup(self.vol, self.inode, self.st, lblk, 1)?;
        match run.state {
            mapping::MapState::Written if lblk.0 < self.blocks => Ok(run.pblk),
            _ => Err(Inconsistent::DirectoryHole {
                ino: self.inode.ino,
                lblk,
            }
            .into()),
        }
    }

    /// A block of entries; checked as a whole when it is met for the first time.
    pub(crate) fn read_leaf(&self, lblk: LBlock) -> Result<DirBlock> {
        self.read(lblk, false, |bytes| check_leaf(self, lblk, bytes))
    }

    /// A block of the index; checked as a whole by `check` when it is met for the first time.
    pub(crate) fn read_index(
        &self,
        lblk: LBlock,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<DirBlock> {
        self.read(lblk, true, check)
    }

    #[inline]
    fn read(
        &self,
        lblk: LBlock,
        index: bool,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<DirBlock> {
        let pblk = self.map(lblk)?;
        let bytes = self.vol.journal.read(pblk, Class::Directory)?;
        let key = Checked::key(self.inode.ino, pblk, index);
        if !self.vol.dirs.checked.contains(key) {
            check(&bytes)?;
            self.vol.dirs.checked.insert(key);
        }
        Ok(DirBlock { lblk, pblk, bytes })
    }

    /// Names the directory and the block of a broken chain.
    pub(crate) fn broken(&self, block: &DirBlock, at: Broken) -> Error {
        match check_leaf(self, block.lblk, &block.bytes) {
            Err(e) => e,
            Ok(()) => Inconsistent::DirectoryChain {
                ino: self.inode.ino,
                lblk: block.lblk,
                offset: at.0,
            }
            .into(),
        }
    }

    /// Looks for a name in one block.
    #[inline]
    pub(crate) fn find_in(&self, block: &DirBlock, name: &[u8]) -> Result<Option<Found>> {
        let hit = leaf::find(&block.bytes, self.end(), name).map_err(|b| self.broken(block, b))?;
        Ok(hit.map(|hit| self.found(block, hit)))
    }

    /// Looks for a name in one block, and for `need` spare bytes.
    pub(crate) fn find_or_room_in(
        &self,
        block: &DirBlock,
        name: &[u8],
        need: usize,
    ) -> Result<(Option<Found>, Option<usize>)> {
        let (hit, room) = leaf::find_or_room(&block.bytes, self.end(), name, need)
            .map_err(|b| self.broken(block, b))?;
        Ok((hit.map(|hit| self.found(block, hit)), room))
    }

    fn found(&self, block: &DirBlock, hit: Hit) -> Found {
        Found {
            ino: hit.ino,
            lblk: block.lblk,
            pblk: block.pblk,
            hit,
        }
    }
}

/// Where the chain of records ends in a directory block of this volume.
pub(crate) fn chain_end(vol: &Volume) -> usize {
    let size = vol.geo.block_size();
    if vol.geo.metadata_csum {
        size - TAIL
    } else {
        size
    }
}

/// The entry `name`, if there is one.
pub(crate) fn find(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    if is_dot_or_dotdot(name) {
        return dir.find_in(&dot_block(dir)?, name);
    }
    if dir.is_indexed() {
        return htree::find(dir, name);
    }
    for lblk in (0..dir.blocks).map(LBlock) {
        if let Some(found) = dir.find_in(&dir.read_leaf(lblk)?, name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Block 0, where "." and ".." are in every directory.
fn dot_block(dir: Dir<'_>) -> Result<DirBlock> {
    if dir.is_indexed() {
        htree::read_root_block(dir)
    } else {
        dir.read_leaf(LBlock(0))
    }
}

/// Whether `name` is "." or "..".
pub(crate) fn is_dot_or_dotdot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Where `name`, which must not exist, can be put.
///
/// # Errors
/// [`Error::Exists`] with the entry's inode unused here, or what reading finds.
pub(crate) fn place(dir: Dir<'_>, name: &[u8]) -> Result<Place> {
    if dir.is_indexed() {
        return htree::place(dir, name);
    }
    let need = leaf::rec_len(name.len());
    let mut place = Place::Grow;
    for lblk in (0..dir.blocks).map(LBlock) {
        let block = dir.read_leaf(lblk)?;
        let (found, room) = dir.find_or_room_in(&block, name, need)?;
        if found.is_some() {
            return Err(Error::Exists);
        }
        if let (Place::Grow, Some(offset)) = (place, room) {
            place = Place::Room {
                pblk: block.pblk,
                offset,
            };
        }
    }
    Ok(place)
}

/// Adds `name` at a place that [`place`] has found. The caller stores the inode of the directory, which may have grown.
pub(crate) fn insert(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    place: Place,
    entry: NewEntry<'_>,
) -> Result<()> {
    if !vol.dirs.dir_index {
        // An index that is not kept up would hide the new name from who trusts it (`ext4_update_dx_flag`).
        st.raw.flags.remove(InodeFlags::INDEX);
    }
    match place {
        Place::Room { pblk, offset } => {
            let block = vol.journal.read(pblk, Class::Directory)?;
            let changes = leaf::insert(&block, offset, entry.name, entry.ino, entry.file_type(vol));
            apply(vol, h, seed(vol, inode, st), pblk, block, &changes)
        }
        Place::Grow => grow(vol, h, inode, st, entry),
    }
}

/// A name to be added.
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

impl NewEntry<'_> {
    /// The file type as entries of this volume hold it.
    pub(crate) fn file_type(&self, vol: &Volume) -> u8 {
        file_type(vol, self.mode)
    }
}

/// The file type that an entry of this volume holds for an inode of mode `mode`: 0 without `filetype`.
pub(crate) fn file_type(vol: &Volume, mode: u16) -> u8 {
    if !vol.dirs.filetype {
        return 0;
    }
    FileType::of_mode(mode).map_or(0, FileType::dirent_code)
}

fn grow(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    entry: NewEntry<'_>,
) -> Result<()> {
    let dir = Dir::open(vol, inode, st)?;
    if dir.is_indexed() {
        return htree::insert(vol, h, inode, st, entry);
    }
    if dir.blocks == 1 && vol.dirs.dir_index {
        htree::make_indexed(vol, h, inode, st, entry.source)?;
        return htree::insert(vol, h, inode, st, entry);
    }
    let mut block = vec![0; vol.geo.block_size()];
    let end = chain_end(vol);
    let length = leaf::HEADER + entry.name.len();
    leaf::encode(
        &mut block[..length],
        entry.ino,
        end,
        entry.file_type(vol),
        entry.name,
    );
    finish_leaf(vol, seed(vol, inode, st), &mut block);
    append(vol, h, inode, st, &block, entry.source).map(|_| ())
}

/// Removes an entry that [`find`] has found.
pub(crate) fn remove(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &InodeState,
    found: &Found,
) -> Result<()> {
    let block = vol.journal.read(found.pblk, Class::Directory)?;
    let changes = leaf::remove(&block, &found.hit);
    apply(vol, h, seed(vol, inode, st), found.pblk, block, &changes)
}

/// Gives an entry that [`find`] has found another inode.
pub(crate) fn replace(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &InodeState,
    found: &Found,
    ino: InodeNo,
    mode: u16,
) -> Result<()> {
    let block = vol.journal.read(found.pblk, Class::Directory)?;
    let changes = leaf::replace(&block, found.hit.offset, ino, file_type(vol, mode));
    if found.lblk == LBlock(0) && st.raw.flags.contains(InodeFlags::INDEX) && vol.dirs.dir_index {
        // Only ".." of an indexed directory lies here: the block ends with an index, not with a dirent tail.
        return htree::apply(vol, h, seed(vol, inode, st), found.pblk, block, &changes);
    }
    apply(vol, h, seed(vol, inode, st), found.pblk, block, &changes)
}

/// The entry ".." of a directory.
pub(crate) fn dotdot(dir: Dir<'_>) -> Result<Found> {
    find(dir, b"..")?.ok_or_else(|| Inconsistent::NoDotDot(dir.inode.ino).into())
}

/// Whether nothing but "." and ".." is in the directory.
pub(crate) fn is_empty(dir: Dir<'_>) -> Result<bool> {
    if dir.is_indexed() {
        return htree::is_empty(dir);
    }
    for lblk in (0..dir.blocks).map(LBlock) {
        if !is_empty_block(dir, &dir.read_leaf(lblk)?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a block of entries has nothing but "." and "..".
pub(crate) fn is_empty_block(dir: Dir<'_>, block: &DirBlock) -> Result<bool> {
    for record in leaf::records(&block.bytes, dir.end()) {
        let record = record.map_err(|b| dir.broken(block, b))?;
        if record.ino != 0 && !is_dot_or_dotdot(record.name(&block.bytes)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes the first block of a new directory, with "." and "..".
pub(crate) fn init(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    parent: InodeNo,
    source: Source,
) -> Result<()> {
    let mut block = vec![0; vol.geo.block_size()];
    let kind = file_type(vol, crate::types::mode::S_IFDIR);
    let first = leaf::rec_len(1);
    leaf::encode(&mut block[..9], inode.ino, first, kind, b".");
    leaf::encode(
        &mut block[first..first + 10],
        parent,
        chain_end(vol) - first,
        kind,
        b"..",
    );
    finish_leaf(vol, seed(vol, inode, st), &mut block);
    append(vol, h, inode, st, &block, source).map(|_| ())
}

/// Adds a block with this content at the directory's end. Nothing is changed when there is no space.
pub(crate) fn append(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    content: &[u8],
    source: Source,
) -> Result<(LBlock, BlockNo)> {
    let lblk = u32::try_from(st.raw.size >> vol.geo.block_bits).map_err(|_| Error::NoSpace)?;
    let lblk = LBlock(lblk);
    let pblk = allocate_block(vol, h, inode, st, lblk, source)?;
    h.create(pblk, Class::Directory, content)?;
    st.raw.size += vol.geo.block_size() as u64;
    Ok((lblk, pblk))
}

/// Takes a block for `lblk` of a directory or a symbolic link, and maps it. Nothing is changed when there is no space.
pub(crate) fn allocate_block(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    lblk: LBlock,
    source: Source,
) -> Result<BlockNo> {
    let goal = mapping::goal(vol, inode, st, lblk)?;
    let pblk = vol.alloc.allocate_one(h, goal, source)?;
    let run = mapping::Run {
        lblk,
        len: 1,
        pblk,
        state: mapping::MapState::Written,
    };
    if let Err(error) = mapping::insert(vol, h, inode, st, run) {
        vol.alloc.free(h, pblk, 1, Class::Directory)?;
        return Err(error);
    }
    Ok(pblk)
}

/// The seed of the checksums of this directory's blocks; only computed when the volume has checksums.
pub(crate) fn seed(vol: &Volume, inode: &Inode, st: &InodeState) -> u32 {
    if vol.geo.metadata_csum {
        st.raw.csum_seed(inode.ino, &vol.geo)
    } else {
        0
    }
}

/// Makes changes in a block of entries and brings its checksum up to date.
pub(crate) fn apply(
    vol: &Volume,
    h: &Handle,
    seed: u32,
    pblk: BlockNo,
    block: BlockRef,
    changes: &Changes,
) -> Result<()> {
    let checksum = vol.geo.metadata_csum.then(|| {
        let end = chain_end(vol);
        (end + 8, changed_checksum(seed, &block[..end], changes))
    });
    drop(block);
    for (offset, bytes) in changes {
        h.write(pblk, Class::Directory, *offset, bytes)?;
    }
    if let Some((offset, sum)) = checksum {
        h.write(pblk, Class::Directory, offset, &sum.to_le_bytes())?;
    }
    Ok(())
}

/// The checksum of `old` as it is after `changes`, which are in order and do not overlap.
pub(crate) fn changed_checksum(seed: u32, old: &[u8], changes: &Changes) -> u32 {
    let mut sum = seed;
    let mut done = 0;
    for (offset, bytes) in changes {
        sum = crc32c(sum, &old[done..*offset]);
        sum = crc32c(sum, bytes);
        done = offset + bytes.len();
    }
    crc32c(sum, &old[done..])
}

/// Completes a block of entries that was built in memory: the tail and its checksum.
pub(crate) fn finish_leaf(vol: &Volume, seed: u32, block: &mut [u8]) {
    if !vol.geo.metadata_csum {
        return;
    }
    let end = chain_end(vol);
    let sum = crc32c(seed, &block[..end]);
    let tail = &mut block[end..];
    tail.fill(0);
    tail[4] = TAIL as u8;
    tail[7] = 0xde;
    tail[8..].copy_from_slice(&sum.to_le_bytes());
}
