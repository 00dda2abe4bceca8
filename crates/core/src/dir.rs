//! Directories: finding, adding, changing and removing a name, whichever way the directory is kept.
//!
//! A directory is *linear* (its blocks are searched one after the other) or *indexed* (block 0
//! holds the root of a tree by hash, `htree.rs`); the blocks with entries look alike (`leaf.rs`).
//! As in the kernel, a directory starts with one linear block and is turned into an indexed one
//! when that block is full, if the volume has `dir_index`.
//!
//! Invariants:
//! 1. Whoever calls holds the directory's `lock`: shared to search, alone to change. A [`Place`] is
//!    good as long as that lock is held and the directory is not changed otherwise.
//! 2. A name is at most once in a directory: [`place`] has looked before [`insert`] is called.
//! 3. Every change writes the bytes that differ and the block's checksum in one handle. A block
//!    that is read is let go before it is written, so that the write need not copy it.
//! 4. A new block is allocated before anything else is changed, so that "no space" changes nothing.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use stetfs_format::checksum::crc32c;
pub(crate) use stetfs_format::dirent::is_dot_or_dotdot;
use stetfs_format::dirent::{self, body_size, rec_len};
use stetfs_format::width::{high32, u64_as_usize, usize_as_u64};
use stetfs_format::{
    BlockNo, Corrupt, DirBlock as Leaf, FileType, HashVersion, Hasher, InodeFlags, InodeNo, LBlock,
    Place as Where, Superblock, Time,
};
use stetfs_journal::Handle;
use stetfs_media::{BlockRef, Class};

use crate::alloc::Source;
use crate::error::{Error, Inconsistent, Result};
use crate::htree;
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState};
use crate::volume::Volume;

pub(crate) mod leaf;

use leaf::{Broken, Changes, Hit};

/// Where the checksum is in the 12 bytes behind the records (`det_checksum`).
const TAIL_CHECKSUM: usize = 8;

/// What is the same for all directories of a volume.
pub(crate) struct Dirs {
    /// `s_def_hash_version`, of new indexes.
    pub(crate) default_version: u8,
    hash_seed: [u32; 4],
    unsigned_hash: bool,
    checked: Checked,
    /// How many generations were given out.
    generations: AtomicU64,
}

impl Dirs {
    /// As the superblock says.
    pub(crate) fn new(sb: &Superblock) -> Self {
        Self {
            default_version: sb.def_hash_version,
            hash_seed: sb.hash_seed,
            unsigned_hash: sb.unsigned_hash(),
            checked: Checked::new(),
            generations: AtomicU64::new(0),
        }
    }

    /// How the names of a directory are hashed.
    pub(crate) fn hasher(&self, version: HashVersion) -> Hasher {
        Hasher {
            version,
            unsigned: self.unsigned_hash,
            seed: self.hash_seed,
        }
    }

    /// How the names of a directory that becomes indexed will be hashed.
    pub(crate) fn default_hasher(&self) -> Hasher {
        self.hasher(HashVersion::of_code(self.default_version).unwrap_or(HashVersion::HalfMd4))
    }

    /// A number that the next inode of some number will not have again soon: counted, stirred with
    /// the time (splitmix64).
    pub(crate) fn new_generation(&self, now: Time) -> u32 {
        let count = self.generations.fetch_add(1, Ordering::Relaxed);
        let time = now.sec.cast_unsigned() << 30 ^ u64::from(now.nsec);
        let mut x = count.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(time);
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        high32(x)
    }
}

/// What a block of a directory was checked as: a block that the map has in several places must pass
/// for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckedAs {
    /// The first block of a linear directory.
    First,
    /// Any other block of entries.
    Leaf,
    /// A block of the index.
    Index,
}

impl CheckedAs {
    #[expect(clippy::as_conversions, reason = "any number that tells them apart")]
    const fn code(self) -> u64 {
        self as u64
    }
}

/// Which directory blocks have passed their whole check since the mount: a fixed table, where a
/// collision costs another check and nothing else. The searches stay inside a block without it.
struct Checked {
    slots: Box<[AtomicU64]>,
    /// So that no image can be made in which a block has the key of another one.
    secrets: [u64; 2],
}

impl Checked {
    const SLOTS: usize = 1 << 14;

    fn new() -> Self {
        let random = RandomState::new();
        Self {
            slots: (0..Self::SLOTS).map(|_| AtomicU64::new(0)).collect(),
            secrets: [random.hash_one(0), random.hash_one(1)],
        }
    }

    /// The slot and what stands there when the block has passed.
    #[inline]
    fn key(&self, ino: InodeNo, block: BlockNo, checked_as: CheckedAs) -> (usize, u64) {
        // Block numbers have 48 bits.
        let what = block.0 | checked_as.code() << 48;
        let [a, b] = self.secrets;
        let (low, high) = (what ^ a).carrying_mul(u64::from(ino.0) ^ b, 0);
        let key = low ^ high;
        (u64_as_usize(block.0) % Self::SLOTS, key | 1)
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
    lblk: LBlock,
    pblk: BlockNo,
    hit: Hit,
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
            // None has more blocks than the volume: a map that says so leads to the same ones again
            // and again.
            Some(blocks)
                if u64::from(blocks) << bits == size
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

    /// Where the chain of records ends in each block.
    #[inline]
    pub(crate) fn end(&self) -> usize {
        body_size(&self.vol.geo)
    }

    /// Seed of the checksums of this directory's blocks.
    pub(crate) fn seed(&self) -> u32 {
        self.st.raw.csum_seed(self.inode.ino, &self.vol.geo)
    }

    /// Names the directory and the block of a failed check.
    #[cold]
    pub(crate) fn corrupt(&self, lblk: LBlock, what: Corrupt) -> Error {
        what.at(Where::FileBlock(self.inode.ino, lblk)).into()
    }

    /// Names the directory, the block and the failed check of a broken chain of records.
    #[cold]
    pub(crate) fn broken(&self, block: &DirBlock, at: Broken) -> Error {
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

    /// A block of entries; checked as a whole when it is met for the first time.
    #[inline]
    pub(crate) fn read_leaf(&self, lblk: LBlock) -> Result<DirBlock> {
        let checked_as = match lblk {
            LBlock(0) => CheckedAs::First,
            _ => CheckedAs::Leaf,
        };
        self.read(lblk, checked_as, |bytes| check_leaf(*self, lblk, bytes))
    }

    /// A block of the index; checked as a whole by `check` when it is met for the first time.
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
        Ok(DirBlock { lblk, pblk, bytes })
    }

    /// Looks for a name in one block.
    #[inline]
    pub(crate) fn find_in(&self, block: &DirBlock, name: &[u8]) -> Result<Option<Found>> {
        let hit = leaf::find(&block.bytes, self.end(), name).map_err(|b| self.broken(block, b))?;
        Ok(hit.map(|hit| found(block, hit)))
    }

    /// Looks for a name in one block, and for room for it.
    pub(crate) fn find_or_room_in(
        &self,
        block: &DirBlock,
        name: &[u8],
    ) -> Result<(Option<Found>, Option<usize>)> {
        let (hit, room) = leaf::find_or_room(&block.bytes, self.end(), name, rec_len(name.len()))
            .map_err(|b| self.broken(block, b))?;
        Ok((hit.map(|hit| found(block, hit)), room))
    }

    /// Looks for room for a name in one block.
    pub(crate) fn room_in(&self, block: &DirBlock, name: &[u8]) -> Result<Option<usize>> {
        leaf::room(&block.bytes, self.end(), rec_len(name.len())).map_err(|b| self.broken(block, b))
    }
}

fn found(block: &DirBlock, hit: Hit) -> Found {
    Found {
        ino: hit.ino,
        lblk: block.lblk,
        pblk: block.pblk,
        hit,
    }
}

/// The check of a whole block of entries: checksum, and every entry.
fn check_leaf(dir: Dir<'_>, lblk: LBlock, bytes: &[u8]) -> Result<(), Corrupt> {
    let leaf = Leaf::decode(bytes, &dir.vol.geo)?;
    leaf.check_checksum(dir.seed())?;
    leaf.check_entries(lblk == LBlock(0))
}

/// Whether the names of a directory in this state are found through a hash tree.
#[inline]
pub(crate) fn is_indexed(vol: &Volume, st: &InodeState) -> bool {
    vol.geo.dir_index && st.raw.flags.contains(InodeFlags::INDEX)
}

/// The entry `name`, if there is one.
#[inline]
pub(crate) fn find(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    if dir.is_indexed() {
        if is_dot_or_dotdot(name) {
            find_dot(dir, name)
        } else {
            htree::find(dir, name)
        }
    } else {
        find_linear(dir, name)
    }
}

fn find_linear(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    for lblk in (0..dir.blocks).map(LBlock) {
        if let Some(found) = dir.find_in(&dir.read_leaf(lblk)?, name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// "." or ".." of an indexed directory: where they are in every root.
fn find_dot(dir: Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
    let block = htree::read_root(dir)?;
    let size = dir.vol.geo.block_size();
    let hit = leaf::find(&block.bytes, size, name).map_err(|b| dir.broken(&block, b))?;
    Ok(hit.map(|hit| found(&block, hit)))
}

/// The entry ".." of a directory.
pub(crate) fn dotdot(dir: Dir<'_>) -> Result<Found> {
    find(dir, b"..")?.ok_or_else(|| Inconsistent::NoDotDot(dir.inode.ino).into())
}

/// Where `name`, which must not exist, can be put.
///
/// # Errors
/// [`Error::Exists`], or what reading finds.
pub(crate) fn place(dir: Dir<'_>, name: &[u8]) -> Result<Place> {
    if is_dot_or_dotdot(name) {
        return Err(Error::Exists);
    }
    if dir.is_indexed() {
        return htree::place(dir, name);
    }
    let mut place = Place::Grow;
    for lblk in (0..dir.blocks).map(LBlock) {
        let block = dir.read_leaf(lblk)?;
        let (found, room) = dir.find_or_room_in(&block, name)?;
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

/// The block of entries that a new name goes to; of a linear directory the first stands for all.
pub(crate) fn leaf_for(dir: Dir<'_>, name: &[u8]) -> Result<LBlock> {
    match dir.is_indexed() {
        true => htree::leaf_for(dir, name),
        false => Ok(LBlock(0)),
    }
}

/// The longest record, in bytes, that [`leaf_for`]'s block has room for.
pub(crate) fn room_at(dir: Dir<'_>, at: LBlock) -> Result<usize> {
    let all = match dir.is_indexed() {
        true => at.0..at.0.saturating_add(1),
        false => 0..dir.blocks,
    };
    let mut longest = 0;
    for lblk in all.map(LBlock) {
        let block = dir.read_leaf(lblk)?;
        let room = leaf::longest_room(&block.bytes, dir.end());
        longest = longest.max(room.map_err(|b| dir.broken(&block, b))?);
    }
    Ok(longest)
}

/// Adds a name at a place that [`place`] has found. The caller stores the inode of the directory,
/// which may have grown.
pub(crate) fn insert(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    place: Place,
    entry: NewEntry<'_>,
) -> Result<()> {
    if !vol.geo.dir_index {
        // An index that is not kept up would hide the new name from who trusts it
        // (`ext4_update_dx_flag`).
        st.raw.flags.remove(InodeFlags::INDEX);
    }
    match place {
        Place::Room { pblk, offset } => {
            let block = vol.journal.read(pblk, Class::Directory)?;
            let changes = leaf::insert(
                &block,
                offset,
                entry.name,
                entry.ino,
                file_type(vol, entry.mode),
            );
            apply(Dir::open(vol, inode, st)?, h, pblk, block, &changes)
        }
        Place::Grow => grow(vol, h, inode, st, entry),
    }
}

fn grow(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    entry: NewEntry<'_>,
) -> Result<()> {
    let most = vol.opts.max_dir_size_kb;
    if most > 0 && st.raw.size >> 10 >= most.into() {
        return Err(Error::NoSpace);
    }
    let dir = Dir::open(vol, inode, st)?;
    if dir.is_indexed() {
        return htree::insert(vol, h, inode, st, entry);
    }
    if dir.blocks == 1 && vol.geo.dir_index {
        htree::make_indexed(vol, h, inode, st, entry.source)?;
        return htree::insert(vol, h, inode, st, entry);
    }
    let seed = dir.seed();
    let mut block = vec![0; vol.geo.block_size()];
    let record = dirent::NewEntry {
        inode: entry.ino,
        file_type: FileType::of_mode(entry.mode),
        name: entry.name,
    };
    dirent::fill(&mut block, [record], &vol.geo);
    dirent::write_checksum(&mut block, seed, &vol.geo);
    append(vol, h, inode, st, &block, entry.source).map(|_| ())
}

/// The file type that an entry of this volume holds for an inode of mode `mode`: 0 without
/// `filetype`.
pub(crate) fn file_type(vol: &Volume, mode: u16) -> u8 {
    if !vol.geo.filetype {
        return 0;
    }
    FileType::of_mode(mode).map_or(0, FileType::dirent_code)
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
    apply(Dir::open(vol, inode, st)?, h, found.pblk, block, &changes)
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
    let dir = Dir::open(vol, inode, st)?;
    let block = vol.journal.read(found.pblk, Class::Directory)?;
    let changes = leaf::replace(&block, found.hit.offset, ino, file_type(vol, mode));
    if found.lblk == LBlock(0) && dir.is_indexed() {
        // Only ".." of an indexed directory is changed here: the block ends with an index, not with
        // a dirent tail.
        return htree::apply(dir, h, found.pblk, block, &changes);
    }
    apply(dir, h, found.pblk, block, &changes)
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
    Leaf::decode(&block.bytes, &dir.vol.geo)
        .and_then(|leaf| leaf.is_empty())
        .map_err(|e| dir.corrupt(block.lblk, e))
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
    dirent::init_dot_dotdot(&mut block, inode.ino, parent, &vol.geo);
    dirent::write_checksum(&mut block, st.raw.csum_seed(inode.ino, &vol.geo), &vol.geo);
    append(vol, h, inode, st, &block, source).map(|_| ())
}

/// Adds a block with this content at the directory's end. Nothing is changed when there is no
/// space.
pub(crate) fn append(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    content: &[u8],
    source: Source,
) -> Result<(LBlock, BlockNo)> {
    let lblk =
        LBlock(u32::try_from(st.raw.size >> vol.geo.block_bits).map_err(|_| Error::NoSpace)?);
    let size = st.raw.size + usize_as_u64(vol.geo.block_size());
    if size > u64::from(u32::MAX) && !vol.geo.largedir {
        return Err(Error::NoSpace);
    }
    let pblk = mapping::allocate_block(vol, h, inode, st, lblk, source)?;
    h.create(pblk, Class::Directory, content)?;
    st.raw.size = size;
    Ok((lblk, pblk))
}

/// Makes changes in a block of entries and brings its checksum up to date.
fn apply(
    dir: Dir<'_>,
    h: &Handle,
    pblk: BlockNo,
    block: BlockRef,
    changes: &Changes,
) -> Result<()> {
    let checksum = dir.vol.geo.metadata_csum.then(|| {
        let end = dir.end();
        (
            end + TAIL_CHECKSUM,
            changed_checksum(dir.seed(), &block[..end], changes),
        )
    });
    drop(block);
    let checksum = checksum.map(|(offset, sum)| (offset, sum.to_le_bytes()));
    let checksum = checksum.iter().map(|(offset, sum)| (*offset, &sum[..]));
    let parts = changes.iter().map(|(offset, bytes)| (*offset, &bytes[..]));
    Ok(h.write_parts(pblk, Class::Directory, parts.chain(checksum))?)
}

/// The checksum of `old` as it is after `changes`, which are in order and do not overlap.
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
