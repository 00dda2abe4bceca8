//! What a check can find: one variant per check, in ext4's own terms.
//!
//! A record that is wrong in itself is a [`Corrupt`] of the format. The other variants are
//! contradictions between records, and rules that e2fsck has beyond the decoders'.

use std::fmt;
use std::io::ErrorKind;

use stetfs_format::features::Feature;
use stetfs_format::{BlockNo, Corrupt, FileType, GroupNo, InodeNo, LBlock, Place, State};

/// A failed check and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its place.
    pub place: Place,
    /// What is wrong there.
    pub fault: Fault,
    /// The path of the inode concerned, if it has one; of several paths, the first that was found.
    pub path: Option<Name>,
}

impl Finding {
    /// The inode concerned, if any. For a wrong entry, its directory.
    pub fn inode(&self) -> Option<InodeNo> {
        match self.place {
            Place::Inode(ino) | Place::InodeBlock(ino, _) | Place::FileBlock(ino, _) => Some(ino),
            _ => None,
        }
    }

    /// The block of the volume concerned, if it is known.
    pub fn block(&self) -> Option<BlockNo> {
        match self.place {
            Place::Block(block) | Place::InodeBlock(_, block) => Some(block),
            _ => None,
        }
    }

    /// The group concerned, if any.
    pub fn group(&self) -> Option<GroupNo> {
        match self.place {
            Place::Group(group) => Some(group),
            _ => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            // The texts of these begin with their place.
            Fault::Record(corrupt) if self.place == Place::Superblock || names_place(corrupt) => {
                corrupt.fmt(f)?;
            }
            fault => write!(f, "{}: {fault}", self.place)?,
        }
        match &self.path {
            Some(path) => write!(f, " ({path})"),
            None => Ok(()),
        }
    }
}

/// Whether a text begins with its place: those of superblock, descriptors, bitmaps and inodes do.
fn names_place(corrupt: &Corrupt) -> bool {
    use Corrupt::*;
    matches!(
        corrupt,
        GroupChecksum { .. }
            | GroupBlock { .. }
            | GroupCount { .. }
            | BlockBitmapChecksum { .. }
            | InodeBitmapChecksum { .. }
            | InodeChecksum { .. }
            | InodeExtraSize { .. }
            | InodeMode { .. }
            | InodeSize { .. }
            | InodeFileAcl { .. }
            | InodeSymlink { .. }
    )
}

/// A name in a directory or a path; shown with unprintable bytes escaped.
#[derive(Clone, PartialEq, Eq)]
pub struct Name(pub Box<[u8]>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0.escape_ascii())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A failed check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A record that the decoders refuse.
    #[error(transparent)]
    Record(#[from] Corrupt),
    /// The source could not be read at the place.
    #[error("cannot be read: {0}")]
    Unreadable(ErrorKind),

    // --- what cannot be judged ---
    /// A feature that the checker does not understand.
    #[error("feature {0} is not supported")]
    UnsupportedFeature(Feature),
    /// Another property that the checker does not understand.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// The journal holds transactions that are not at home yet: nothing else can be judged with
    /// certainty.
    #[error("needs recovery of its journal")]
    NeedsRecovery,
    /// More claims of blocks were repeated than there are blocks; the check stopped counting them.
    #[error("blocks are claimed again and again; given up")]
    EndlessClaims,

    // --- superblock ---
    /// The volume is larger than its device.
    #[error("{blocks} blocks, but there is room for {room}")]
    VolumeTooLarge {
        /// `s_blocks_count`.
        blocks: u64,
        /// Blocks that fit.
        room: u64,
    },
    /// `s_state` does not say cleanly unmounted, or says that there were errors.
    #[error("state {0:?} is not that of a clean unmount")]
    NotClean(State),
    /// More than half of the volume is reserved.
    #[error("{0} reserved blocks are more than half")]
    ReservedBlocks(u64),
    /// A group has more inodes than fit beside its bitmaps.
    #[error("{0} inodes a group do not fit it")]
    InodesPerGroup(u32),
    /// `s_desc_size` without `64bit` is neither 0 nor a power of two up to 1024.
    #[error("group descriptor size {0} is impossible")]
    DescSize(u16),
    /// `s_log_groups_per_flex` is 32 or more.
    #[error("2^{0} groups in a flexible group")]
    GroupsPerFlex(u8),
    /// `s_min_extra_isize` or `s_want_extra_isize` is impossible.
    #[error("{field} {value} is impossible")]
    SuperExtraSize {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u16,
    },
    /// Two features exclude each other, or one needs another.
    #[error("{0}")]
    Features(&'static str),
    /// Blocks are reserved for descriptors without `resize_inode`.
    #[error("{0} reserved descriptor blocks without resize_inode")]
    ReservedGdtBlocks(u16),
    /// The list of orphans is not empty.
    #[error("orphan list begins with inode {0}")]
    OrphanList(InodeNo),
    /// `s_free_blocks_count` is not the number of free blocks.
    #[error("free blocks count {stored}, counted {counted}")]
    FreeBlocks {
        /// In the superblock.
        stored: u64,
        /// Counted in the block bitmaps.
        counted: u64,
    },
    /// `s_free_inodes_count` is not the number of free inodes.
    #[error("free inodes count {stored}, counted {counted}")]
    FreeInodes {
        /// In the superblock.
        stored: u32,
        /// Counted in the inode bitmaps.
        counted: u32,
    },
    /// A quota inode without the feature `quota`.
    #[error("{field} is {ino} without feature quota")]
    QuotaInode {
        /// The superblock's field.
        field: &'static str,
        /// The inode.
        ino: InodeNo,
    },
    /// A file has 2 GiB or more, but `large_file` is missing.
    #[error("inode {0} is of 2 GiB or more, but feature large_file is missing")]
    LargeFile(InodeNo),

    // --- group descriptors and bitmaps ---
    /// Flags or counts of uninitialised inodes, although descriptors have no checksum.
    #[error("marked uninitialised, but descriptors have no checksums")]
    GroupUninit,
    /// More unused inodes at the table's end than free ones.
    #[error("{unused} unused inodes, but {free} free ones")]
    ItableUnused {
        /// `bg_itable_unused`.
        unused: u32,
        /// `bg_free_inodes_count`.
        free: u32,
    },
    /// The block bitmap of the last group is not initialised.
    #[error("last group, but its block bitmap is not initialised")]
    LastGroupUninit,
    /// Metadata of the group overlaps that of another.
    #[error("{what} at block {block} lies on other metadata")]
    MetadataOverlap {
        /// Which metadata.
        what: &'static str,
        /// The first such block.
        block: BlockNo,
    },
    /// `bg_free_blocks_count` is not the number of free blocks.
    #[error("free blocks count {stored}, counted {counted}")]
    GroupFreeBlocks {
        /// In the descriptor.
        stored: u32,
        /// Counted in the bitmap.
        counted: u32,
    },
    /// `bg_free_inodes_count` is not the number of free inodes.
    #[error("free inodes count {stored}, counted {counted}")]
    GroupFreeInodes {
        /// In the descriptor.
        stored: u32,
        /// Counted in the bitmap.
        counted: u32,
    },
    /// `bg_used_dirs_count` is not the number of directories.
    #[error("directories count {stored}, counted {counted}")]
    GroupDirectories {
        /// In the descriptor.
        stored: u32,
        /// Directories found.
        counted: u32,
    },
    /// The bitmap says that blocks in use are free.
    #[error("blocks {first} to {last} are in use, but free in the bitmap")]
    BlocksNotMarked {
        /// The first of the run.
        first: BlockNo,
        /// The last of the run.
        last: BlockNo,
    },
    /// The bitmap says that unused blocks are in use.
    #[error("blocks {first} to {last} are not in use, but taken in the bitmap")]
    BlocksNotUsed {
        /// The first of the run.
        first: BlockNo,
        /// The last of the run.
        last: BlockNo,
    },
    /// The bitmap says that inodes in use are free.
    #[error("inodes {first} to {last} are in use, but free in the bitmap")]
    InodesNotMarked {
        /// The first of the run.
        first: InodeNo,
        /// The last of the run.
        last: InodeNo,
    },
    /// The bitmap says that unused inodes are in use.
    #[error("inodes {first} to {last} are not in use, but taken in the bitmap")]
    InodesNotUsed {
        /// The first of the run.
        first: InodeNo,
        /// The last of the run.
        last: InodeNo,
    },
    /// A bit behind the last block of the volume is not set.
    #[error("padding at the end of the block bitmap is not set")]
    BlockBitmapPadding,
    /// A bit behind the last inode of the group is not set.
    #[error("padding at the end of the inode bitmap is not set")]
    InodeBitmapPadding,

    // --- inodes ---
    /// The root directory is not in use.
    #[error("root directory is missing")]
    RootMissing,
    /// The root is not a directory.
    #[error("root is not a directory")]
    RootNotDirectory,
    /// Not in use by its link count, but without a deletion time.
    #[error("deleted, but without a deletion time")]
    ZeroDtime,
    /// In use, but with a deletion time.
    #[error("in use, but with deletion time {0}")]
    Dtime(u32),
    /// A deletion time so low that it must be the next inode of an orphan list.
    #[error("was part of an orphan list (next: {0})")]
    OrphanRefugee(u32),
    /// A reserved inode that is not what it must be.
    #[error("reserved inode has mode {0:#o}")]
    ReservedMode(u16),
    /// A reserved inode that is not in use, but not empty.
    #[error("reserved inode is not in use, but not empty")]
    ReservedNotClear,
    /// A field that must be zero.
    #[error("{field} is {value:#x}, must be zero")]
    FieldNotZero {
        /// The kernel's name.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// A flag without its feature, or on a file that cannot have it.
    #[error("flag {0} cannot be set here")]
    Flag(&'static str),
    /// The inode holds extents, but not the flag for them.
    #[error("holds extents without the flag for them")]
    ExtentsFlagMissing,
    /// The inode has a type that does not exist.
    #[error("mode {0:#o} has no known file type")]
    Mode(u16),
    /// A device, pipe or socket whose size is not 0.
    #[error("special file has size {0}")]
    SpecialSize(u64),
    /// A symbolic link whose text and size disagree, or that maps more than a block.
    #[error("symbolic link of size {0} is invalid")]
    Symlink(u64),
    /// A directory without blocks.
    #[error("directory without blocks")]
    EmptyDirectory,
    /// The size disagrees with the mapped blocks.
    #[error("size {size} does not agree with {mapped} mapped blocks")]
    Size {
        /// `i_size`.
        size: u64,
        /// The logical block behind the last mapped one.
        mapped: u64,
    },
    /// The size is beyond the reach of the mapping.
    #[error("size {0} is more than its map reaches")]
    SizeTooLarge(u64),
    /// `i_blocks` is not the number of the file's blocks.
    #[error("i_blocks is {stored}, counted {counted}")]
    BlocksCount {
        /// In the inode, in its own unit.
        stored: u64,
        /// In the same unit.
        counted: u64,
    },

    // --- blocks of files ---
    /// Blocks that another owner, or metadata, also claims.
    #[error("{count} blocks from {first} on are claimed twice")]
    ClaimedTwice {
        /// The first of them.
        first: BlockNo,
        /// How many of the claim's blocks.
        count: u64,
    },
    /// `eh_max` is more than two below the number of entries that fit.
    #[error("extent node: room for {max} entries claimed, {possible} fit")]
    ExtentMaxLow {
        /// `eh_max`.
        max: u16,
        /// The number that fits.
        possible: u16,
    },
    /// An extent outside the range of the index above, or a written one beyond the end of the file.
    #[error("extent at logical block {lblk} of {len} blocks exceeds its bounds")]
    ExtentBounds {
        /// Its first logical block.
        lblk: LBlock,
        /// Its length.
        len: u32,
    },
    /// Logical blocks that an extent in another node maps too.
    #[error("extent at logical block {0} maps what was mapped before")]
    ExtentCollision(LBlock),
    /// An unwritten extent in a directory.
    #[error("directory has an unwritten extent at logical block {0}")]
    DirectoryUnwritten(LBlock),
    /// A directory with a hole.
    #[error("directory has a hole before logical block {0}")]
    DirectoryHole(LBlock),
    /// A directory of more than 2 GiB without `large_dir`.
    #[error("logical block {0} makes the directory too large")]
    DirectoryTooLarge(LBlock),
    /// A symbolic link that maps more than its first block.
    #[error("logical block {0} makes the symbolic link too large")]
    SymlinkTooLarge(LBlock),

    // --- extended attributes ---
    /// Attributes without the feature `ext_attr`.
    #[error("attribute block {0} without feature ext_attr")]
    XattrFeature(BlockNo),
    /// Two entries, names or values of one attribute area overlap, or one lies outside.
    #[error("attributes: entry at {0} overlaps something or lies outside")]
    XattrOverlap(usize),
    /// A name without a name index.
    #[error("attributes: entry at {0} has name index 0")]
    XattrIndex(usize),
    /// A hash does not match its entry.
    #[error("attributes: entry at {offset} has hash {stored:#010x}, computed {computed:#010x}")]
    XattrHash {
        /// Where the entry begins in the area.
        offset: usize,
        /// In the entry.
        stored: u32,
        /// Computed from name and value.
        computed: u32,
    },
    /// A block's reference count is not the number of inodes that refer to it.
    #[error("attribute block: reference count {stored}, counted {counted}")]
    XattrRefcount {
        /// In the block.
        stored: u32,
        /// Inodes that refer to the block.
        counted: u32,
    },

    // --- directories ---
    /// `.` or `..` is missing from its place.
    #[error("entry {0} is missing")]
    DotMissing(&'static str),
    /// `.` does not name the directory.
    #[error("entry . is inode {0}")]
    DotInode(InodeNo),
    /// The name of `.` or `..` does not end with a zero.
    #[error("entry {0} does not end in a zero")]
    DotUnended(&'static str),
    /// The entry of `.` takes the space of two entries.
    #[error("entry . has rec_len {0}")]
    DotLarge(usize),
    /// An entry with an inode that is reserved or does not exist.
    #[error("entry {name} has invalid inode {ino}")]
    EntryInode {
        /// The entry.
        name: Name,
        /// Its inode.
        ino: InodeNo,
    },
    /// An entry with an inode that is not in use.
    #[error("entry {name} has unused inode {ino}")]
    EntryUnused {
        /// The entry.
        name: Name,
        /// Its inode.
        ino: InodeNo,
    },
    /// An entry with an inode that was never initialised, by its group's descriptor.
    #[error("entry {name} has inode {ino}, which its group says was never used")]
    EntryUninit {
        /// The entry.
        name: Name,
        /// Its inode.
        ino: InodeNo,
    },
    /// An entry with the inode of the directory itself.
    #[error("entry {0} is a link to .")]
    EntrySelf(Name),
    /// An entry with the inode of the root.
    #[error("entry {0} is a link to the root directory")]
    EntryRoot(Name),
    /// A second `.` or `..`.
    #[error("entry {0} is there again")]
    EntryDotAgain(Name),
    /// A name of no bytes.
    #[error("entry of inode {0} has no name")]
    EntryNameEmpty(InodeNo),
    /// `/` or a zero in a name.
    #[error("entry {0} has an illegal character in its name")]
    EntryName(Name),
    /// The file type of an entry is not that of its inode.
    #[error("entry {name} of inode {ino} has file type {found}, should be {expected:?}")]
    EntryType {
        /// The entry.
        name: Name,
        /// Its inode.
        ino: InodeNo,
        /// The code in the entry.
        found: u8,
        /// The type of the inode; `None` if it has no known type, or without `filetype`.
        expected: Option<FileType>,
    },
    /// A second entry for a directory.
    #[error("entry {name} is a second link to directory {ino}, which is in directory {parent}")]
    DirectoryLink {
        /// The entry.
        name: Name,
        /// The directory that it names.
        ino: InodeNo,
        /// The directory of the first entry.
        parent: InodeNo,
    },
    /// A name twice in a directory.
    #[error("entry {0} is there twice")]
    DuplicateName(Name),

    // --- hash trees ---
    /// A pair names a block that the directory does not have.
    #[error("hash tree: block {0} does not exist")]
    HtreeBlock(LBlock),
    /// Nothing refers to the block.
    #[error("hash tree: block is not referred to")]
    HtreeUnreferenced,
    /// Two pairs refer to the block.
    #[error("hash tree: block is referred to twice")]
    HtreeReferencedTwice,
    /// A name's hash is below the block's range.
    #[error("hash tree: hash {found:#010x} is below {limit:#010x}")]
    HtreeMinHash {
        /// The lowest hash found.
        found: u32,
        /// The lowest hash of the range.
        limit: u32,
    },
    /// A name's hash is above the block's range.
    #[error("hash tree: hash {found:#010x} is above {limit:#010x}")]
    HtreeMaxHash {
        /// The highest hash found.
        found: u32,
        /// The highest hash of the range.
        limit: u32,
    },
    /// Names with one hash continue in the next block, but its pair does not say so.
    #[error("hash tree: names of hash {0:#010x} go on in the next block, which is not marked")]
    HtreeContinuation(u32),
    /// A leaf is at another depth than the root says.
    #[error("hash tree: leaf at depth {found}, root says {expected}")]
    HtreeDepth {
        /// The depth found.
        found: u32,
        /// The depth by the root.
        expected: u32,
    },

    // --- the tree ---
    /// A directory that cannot be reached from the root.
    #[error("directory is not connected to the root")]
    Unconnected,
    /// `..` is not the directory that holds the entry.
    #[error("entry .. is inode {found}, should be {parent}")]
    DotDot {
        /// In the entry.
        found: InodeNo,
        /// The directory that holds the entry.
        parent: InodeNo,
    },
    /// An inode in use that no entry names.
    #[error("in use, but in no directory")]
    Unattached,
    /// The link count is not the number of entries.
    #[error("link count {stored}, counted {counted}")]
    LinkCount {
        /// `i_links_count`.
        stored: u16,
        /// Entries that name it.
        counted: u32,
    },
    /// A directory with more links than the field can count, without `dir_nlink`.
    #[error("{0} links are too many without feature dir_nlink")]
    DirNlink(u32),

    // --- special files ---
    /// The resize inode does not map exactly the reserved descriptor blocks.
    #[error("resize inode is invalid: {0}")]
    ResizeInode(&'static str),
    /// The journal's inode is no journal.
    #[error("journal inode is invalid: {0}")]
    JournalInode(&'static str),
    /// The journal is longer than its file.
    #[error("journal of {length} blocks in a file of {blocks}")]
    JournalTooLong {
        /// `s_maxlen`.
        length: u32,
        /// Blocks of the file.
        blocks: u64,
    },
    /// The journal holds transactions, but the superblock does not ask for recovery.
    #[error("journal begins at block {0}, but nothing needs recovery")]
    JournalNotEmpty(u32),
    /// The journal was aborted.
    #[error("journal was aborted with error {0}")]
    JournalAborted(i32),
    /// The orphan file is malformed.
    #[error("orphan file is invalid: {0}")]
    OrphanFile(&'static str),
    /// The orphan file is not empty.
    #[error("orphan file holds inode {0}")]
    OrphanFileEntry(u32),
}
