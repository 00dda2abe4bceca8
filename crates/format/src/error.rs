//! What can be wrong with a record: one variant for each check.
//!
//! A decoder knows the bytes, not where they came from; [`Corrupt`] therefore
//! says what is wrong and where inside the record, and the reader of the block
//! adds the place with [`Corrupt::at`].

use std::fmt;

use crate::num::{BlockNo, GroupNo, InodeNo, LBlock};

/// A check that a record failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Corrupt {
    // --- superblock ---
    /// Fewer bytes than the record has.
    #[error("{record}: {found} bytes where {needed} are needed")]
    TooShort {
        /// The record.
        record: &'static str,
        /// Bytes that it has.
        needed: usize,
        /// Bytes that there were.
        found: usize,
    },
    /// `s_magic` is not 0xef53.
    #[error("not an ext2/3/4 superblock: magic {0:#06x}, not 0xef53")]
    SuperMagic(u16),
    /// `s_rev_level` is above 1.
    #[error("superblock: revision {0} is not known")]
    SuperRevision(u32),
    /// The device is an external journal.
    #[error("superblock: this is an external journal device, not a file system")]
    SuperIsJournal,
    /// The superblock's checksum does not fit its content.
    #[error("superblock: checksum {stored:#010x}, computed {computed:#010x}")]
    SuperChecksum {
        /// The checksum in the superblock.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// `s_checksum_type` is not 1 (CRC-32C) though `metadata_csum` is set.
    #[error("superblock: checksum type {0} is not crc32c")]
    SuperChecksumType(u8),
    /// The block size is not 1, 2 or 4 KiB.
    #[error("superblock: s_log_block_size {0} means a block size other than 1, 2 or 4 KiB")]
    SuperBlockSize(u32),
    /// The cluster size does not fit the block size.
    #[error("superblock: s_log_cluster_size {cluster} does not fit s_log_block_size {block}")]
    SuperClusterSize {
        /// `s_log_cluster_size`.
        cluster: u32,
        /// `s_log_block_size`.
        block: u32,
    },
    /// The inode size is below 128, not a power of two, or above the block size.
    #[error("superblock: inode size {0} is impossible")]
    SuperInodeSize(u16),
    /// The first inode that is not reserved is below 11 or beyond the last.
    #[error("superblock: first inode {0} is impossible")]
    SuperFirstInode(u32),
    /// The descriptor size with `64bit` is below 64, above 1024 or no power of two.
    #[error("superblock: group descriptor size {0} is impossible")]
    SuperDescSize(u16),
    /// Blocks per group is below 8, above what a bitmap block holds, or no multiple of 8.
    #[error("superblock: {0} blocks per group is impossible")]
    SuperBlocksPerGroup(u32),
    /// Clusters per group does not agree with blocks per group.
    #[error("superblock: {clusters} clusters per group do not agree with {blocks} blocks")]
    SuperClustersPerGroup {
        /// `s_clusters_per_group`.
        clusters: u32,
        /// `s_blocks_per_group`.
        blocks: u32,
    },
    /// Inodes per group is zero, above what a bitmap block holds, or does not
    /// fill the blocks of the table.
    #[error("superblock: {0} inodes per group is impossible")]
    SuperInodesPerGroup(u32),
    /// The first data block is not what the block size demands.
    #[error("superblock: first data block {0} is impossible at this block size")]
    SuperFirstDataBlock(u32),
    /// The number of blocks is zero, or more than can be addressed.
    #[error("superblock: block count {0} is impossible")]
    SuperBlocksCount(u64),
    /// The last group is too small for its own metadata.
    #[error("superblock: the last group has {0} blocks, too few for its metadata")]
    SuperLastGroup(u32),
    /// The inode count is not groups times inodes per group.
    #[error("superblock: inode count {stored}, but the groups hold {computed}")]
    SuperInodesCount {
        /// `s_inodes_count`.
        stored: u32,
        /// Groups times inodes per group.
        computed: u64,
    },
    /// More blocks are reserved for root than the volume has.
    #[error("superblock: {reserved} reserved blocks of {blocks}")]
    SuperReservedBlocks {
        /// `s_r_blocks_count`.
        reserved: u64,
        /// `s_blocks_count`.
        blocks: u64,
    },
    /// More blocks are reserved for descriptors than a block of pointers holds.
    #[error("superblock: {0} reserved descriptor blocks is impossible")]
    SuperReservedGdt(u16),
    /// The first meta block group lies beyond the descriptor table.
    #[error("superblock: first meta block group {first} of {blocks} descriptor blocks")]
    SuperFirstMetaBg {
        /// `s_first_meta_bg`.
        first: u32,
        /// Blocks of the descriptor table.
        blocks: u32,
    },

    // --- group descriptors and bitmaps ---
    /// The descriptor's checksum does not fit its content.
    #[error("descriptor of group {group}: checksum {stored:#06x}, computed {computed:#06x}")]
    GroupChecksum {
        /// The group.
        group: GroupNo,
        /// The checksum in the descriptor.
        stored: u16,
        /// The checksum of the content.
        computed: u16,
    },
    /// A bitmap or the inode table lies outside the volume (or outside the
    /// group, without `flex_bg`), or on the superblock.
    #[error("descriptor of group {group}: {what} at block {block} is outside its range")]
    GroupBlock {
        /// The group.
        group: GroupNo,
        /// "block bitmap", "inode bitmap" or "inode table".
        what: &'static str,
        /// Where it should be.
        block: BlockNo,
    },
    /// A count of the descriptor is larger than the group.
    #[error("descriptor of group {group}: {what} {value} is above {limit}")]
    GroupCount {
        /// The group.
        group: GroupNo,
        /// The field.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The largest possible.
        limit: u32,
    },
    /// The block bitmap's checksum does not fit its content.
    #[error("block bitmap of group {group}: checksum {stored:#010x}, computed {computed:#010x}")]
    BlockBitmapChecksum {
        /// The group.
        group: GroupNo,
        /// The checksum in the descriptor.
        stored: u32,
        /// The checksum of the bitmap.
        computed: u32,
    },
    /// The inode bitmap's checksum does not fit its content.
    #[error("inode bitmap of group {group}: checksum {stored:#010x}, computed {computed:#010x}")]
    InodeBitmapChecksum {
        /// The group.
        group: GroupNo,
        /// The checksum in the descriptor.
        stored: u32,
        /// The checksum of the bitmap.
        computed: u32,
    },

    // --- inodes ---
    /// The number is 0 or beyond the last inode.
    #[error("inode number {0} does not exist")]
    InodeNumber(InodeNo),
    /// The inode's checksum does not fit its content.
    #[error("inode {ino}: checksum {stored:#010x}, computed {computed:#010x}")]
    InodeChecksum {
        /// The inode.
        ino: InodeNo,
        /// The checksum in the inode.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// `i_extra_isize` is no multiple of 4, or beyond the inode's end.
    #[error("inode {ino}: i_extra_isize {extra} does not fit {inode_size} bytes")]
    InodeExtraSize {
        /// The inode.
        ino: InodeNo,
        /// `i_extra_isize`.
        extra: u16,
        /// Bytes of an inode.
        inode_size: u16,
    },
    /// The file type in `i_mode` does not exist.
    #[error("inode {ino}: mode {mode:#o} has no known file type")]
    InodeMode {
        /// The inode.
        ino: InodeNo,
        /// `i_mode`.
        mode: u16,
    },
    /// The size is above 2^63.
    #[error("inode {ino}: size {size} is impossible")]
    InodeSize {
        /// The inode.
        ino: InodeNo,
        /// `i_size`.
        size: u64,
    },
    /// The extended attribute block lies outside the volume.
    #[error("inode {ino}: extended attributes at block {block}, outside the volume")]
    InodeFileAcl {
        /// The inode.
        ino: InodeNo,
        /// `i_file_acl`.
        block: BlockNo,
    },
    /// A symbolic link in the inode whose size is not that of its text.
    #[error("inode {ino}: symbolic link of size {size} does not fit its text in the inode")]
    InodeSymlink {
        /// The inode.
        ino: InodeNo,
        /// `i_size`.
        size: u64,
    },

    // --- extent trees and block maps ---
    /// The node does not begin with the magic.
    #[error("extent node: magic {0:#06x}, not 0xf30a")]
    ExtentMagic(u16),
    /// The depth is above 5 or not what the node above demands.
    #[error("extent node: depth {found}, expected {expected:?}")]
    ExtentDepth {
        /// `eh_depth`.
        found: u16,
        /// What the node above demands.
        expected: Option<u16>,
    },
    /// `eh_max` is 0 or more than the node has room for.
    #[error("extent node: room for {max} entries claimed, {possible} possible")]
    ExtentMax {
        /// `eh_max`.
        max: u16,
        /// What fits.
        possible: u16,
    },
    /// More entries than `eh_max`, or none above the leaves.
    #[error("extent node: {entries} entries of {max} is impossible")]
    ExtentEntries {
        /// `eh_entries`.
        entries: u16,
        /// `eh_max`.
        max: u16,
    },
    /// The node's checksum does not fit its content.
    #[error("extent node: checksum {stored:#010x}, computed {computed:#010x}")]
    ExtentChecksum {
        /// The checksum in the node's tail.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// The first entry does not begin where the index above says.
    #[error("extent node: begins at logical block {found}, its index says {expected}")]
    ExtentFirst {
        /// The first logical block of the first entry.
        found: LBlock,
        /// The first logical block by the index.
        expected: LBlock,
    },
    /// An entry begins before the one before it ends.
    #[error("extent node: entry {index} at logical block {lblk} is out of order or overlaps")]
    ExtentOrder {
        /// The entry.
        index: u16,
        /// Where it begins.
        lblk: LBlock,
    },
    /// An extent of no blocks.
    #[error("extent node: entry {index} has length 0")]
    ExtentLength {
        /// The entry.
        index: u16,
    },
    /// An extent that ends beyond the last logical block.
    #[error("extent node: entry {index} at logical block {lblk} ends beyond 2^32")]
    ExtentEnd {
        /// The entry.
        index: u16,
        /// Where it begins.
        lblk: LBlock,
    },
    /// An entry that points outside the volume.
    #[error("extent node: entry {index} names {count} blocks at {block}, outside the volume")]
    ExtentBlocks {
        /// The entry.
        index: u16,
        /// The first block.
        block: BlockNo,
        /// Blocks.
        count: u16,
    },
    /// A pointer of a block map points outside the volume.
    #[error("block map: pointer {index} to block {block} is outside the volume")]
    IndirectBlock {
        /// The pointer's index in its block.
        index: u32,
        /// Where it points.
        block: BlockNo,
    },

    // --- directories ---
    /// There is no place for the block's checksum.
    #[error("directory block: no checksum entry at its end")]
    DirentTail,
    /// The block's checksum does not fit its content.
    #[error("directory block: checksum {stored:#010x}, computed {computed:#010x}")]
    DirentChecksum {
        /// The checksum in the block.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// `rec_len` is no multiple of 4 or too short for the name.
    #[error("directory entry at {offset}: rec_len {rec_len} with a name of {name_len} bytes")]
    DirentRecLen {
        /// Where the entry begins.
        offset: usize,
        /// `rec_len`.
        rec_len: usize,
        /// `name_len`.
        name_len: usize,
    },
    /// The entry ends beyond the block, or so close to its end that no further fits.
    #[error("directory entry at {offset}: does not end with the block")]
    DirentOverrun {
        /// Where the entry begins.
        offset: usize,
    },
    /// The entry names an inode that does not exist.
    #[error("directory entry at {offset}: inode {ino} does not exist")]
    DirentInode {
        /// Where the entry begins.
        offset: usize,
        /// The inode.
        ino: InodeNo,
    },
    /// An entry in use without a name.
    #[error("directory entry at {offset}: empty name")]
    DirentNameEmpty {
        /// Where the entry begins.
        offset: usize,
    },
    /// An entry in use whose name has a `/` or a zero in it: no file can have it, and as part of a
    /// path it leads elsewhere.
    #[error("directory entry at {offset}: a slash or a zero byte in its name")]
    DirentName {
        /// Where the entry begins.
        offset: usize,
    },
    /// An entry in use "." that is not the first of a directory, or ".." that is not the second.
    #[error("directory entry at {offset}: . or .. where only other names may be")]
    DirentDots {
        /// Where the entry begins.
        offset: usize,
    },

    // --- hash trees ---
    /// "." and ".." do not stand where a root has them.
    #[error("hash tree root: . and .. are not in their places")]
    DxDots,
    /// The info is not of 8 bytes, or its reserved word is not 0.
    #[error("hash tree root: info of length {0} is not known")]
    DxInfoLength(u8),
    /// The hash function is not known.
    #[error("hash tree root: hash version {0} is not known")]
    DxHashVersion(u8),
    /// A flag is set; none are known.
    #[error("hash tree root: flags {0:#x} are not known")]
    DxFlags(u8),
    /// The tree has more levels than the volume allows.
    #[error("hash tree root: {0} levels of nodes are too many")]
    DxLevels(u8),
    /// The block does not look like a node.
    #[error("hash tree node: does not look like one free entry")]
    DxNode,
    /// `limit` is not what the block has room for.
    #[error("hash tree block: limit {limit}, room for {expected}")]
    DxLimit {
        /// `limit`.
        limit: u16,
        /// What fits.
        expected: u16,
    },
    /// `count` is 0 or above `limit`.
    #[error("hash tree block: count {count} of limit {limit}")]
    DxCount {
        /// `count`.
        count: u16,
        /// `limit`.
        limit: u16,
    },
    /// The block's checksum does not fit its content.
    #[error("hash tree block: checksum {stored:#010x}, computed {computed:#010x}")]
    DxChecksum {
        /// The checksum in the block's tail.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// A hash is below the one before it.
    #[error("hash tree block: entry {index} is out of order")]
    DxOrder {
        /// The pair.
        index: u16,
    },

    // --- extended attributes ---
    /// The block does not begin with the magic.
    #[error("attribute block: magic {0:#010x}, not 0xea020000")]
    XattrMagic(u32),
    /// The block claims to be of more or fewer blocks than one.
    #[error("attribute block: {0} blocks claimed")]
    XattrBlocks(u32),
    /// No inode, or more than 1,024, refer to the block.
    #[error("attribute block: reference count {0} is impossible")]
    XattrRefcount(u32),
    /// The block's checksum does not fit its content.
    #[error("attribute block: checksum {stored:#010x}, computed {computed:#010x}")]
    XattrChecksum {
        /// The checksum in the block.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// The list of attributes runs past its place.
    #[error("attributes: entry at {0} runs past the end")]
    XattrUnended(usize),
    /// A zero in an attribute's name, or no name.
    #[error("attributes: entry at {0} has no name or a zero in it")]
    XattrName(usize),
    /// An attribute's value lies in an inode (`ea_inode`).
    #[error("attributes: entry at {offset} has its value in inode {ino}, which is not supported")]
    XattrInode {
        /// Where the entry begins.
        offset: usize,
        /// The inode.
        ino: u32,
    },
    /// An attribute's value does not lie between the list and the end.
    #[error("attributes: entry at {offset} has {size} bytes of value at {start}, out of place")]
    XattrValue {
        /// Where the entry begins.
        offset: usize,
        /// Where the value should begin.
        start: usize,
        /// Its size.
        size: u32,
    },
    /// An entry's hash does not fit it.
    #[error("attributes: entry at {offset} has the wrong hash {stored:#010x}")]
    XattrHash {
        /// Where the entry begins.
        offset: usize,
        /// The hash in the entry.
        stored: u32,
    },

    // --- access control lists ---
    /// The version is not that of the form.
    #[error("access control list: version {0} is not known")]
    AclVersion(u32),
    /// The size is not that of a header and whole entries.
    #[error("access control list: {0} bytes is impossible")]
    AclSize(usize),
    /// An entry whose tag does not exist.
    #[error("access control list: entry {index} has unknown tag {tag:#x}")]
    AclTag {
        /// The entry.
        index: usize,
        /// Its tag.
        tag: u16,
    },
    /// An entry that permits more than read, write and execute.
    #[error("access control list: entry {index} has permissions {perm:#o}")]
    AclPermissions {
        /// The entry.
        index: usize,
        /// Its permissions.
        perm: u16,
    },
    /// An entry out of order or twice.
    #[error("access control list: entry {index} is out of order")]
    AclOrder {
        /// The entry.
        index: usize,
    },
    /// The owner, the group, others or a mask is missing.
    #[error("access control list: a required entry is missing")]
    AclIncomplete,

    // --- orphan file ---
    /// `mmp_magic` is not 0x004d4d50.
    #[error("multiple-mount block: magic {0:#010x}, not 0x004d4d50")]
    MmpMagic(u32),
    /// The multiple-mount block's checksum does not fit its content.
    #[error("multiple-mount block: checksum {stored:#010x}, computed {computed:#010x}")]
    MmpChecksum {
        /// The checksum in the block.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// `mmp_seq` is neither a mount's, nor e2fsck's, nor that of a clean volume.
    #[error("multiple-mount block: sequence {0:#010x} means nothing")]
    MmpSequence(u32),
    /// `s_mmp_block` is not a block of the volume.
    #[error("superblock: block {0} for the multiple-mount protection is impossible")]
    SuperMmpBlock(u64),
    /// A block of the orphan file does not end in the magic.
    #[error("orphan file block: magic {0:#010x}, not 0x0b10ca04")]
    OrphanMagic(u32),
    /// The checksum of a block of the orphan file does not fit its content.
    #[error("orphan file block: checksum {stored:#010x}, computed {computed:#010x}")]
    OrphanChecksum {
        /// The checksum in the block's tail.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },

    // --- stetfs's own logs ---
    /// The block does not begin with the magic of a private log.
    #[error("private log header: magic {0:02x?}")]
    PrivateLogMagic([u8; 8]),
    /// The header does not fit its checksum.
    #[error("private log header: checksum {stored:#010x}, computed {computed:#010x}")]
    PrivateLogChecksum {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// The log was written by a later version.
    #[error("private log header: version {0}, neither 1 nor 2")]
    PrivateLogVersion(u16),
    /// The unit of the log does not exist.
    #[error("private log header: a unit of 2^{0} bytes, not of 2^6 to 2^16")]
    PrivateLogUnit(u8),
    /// The log's state is neither open nor closed.
    #[error("private log header: state {0} is neither 0 (closed) nor 1 (open)")]
    PrivateLogState(u64),
    /// A chunk that no writer makes.
    #[error("private log: a chunk {0}")]
    PrivateLogChunk(&'static str),
    /// A record that ties a volume to the memory beside it has what no writer leaves.
    #[error("memory beside the volume: {0}")]
    NvmPair(&'static str),
    /// Volume and memory were last used by another version.
    #[error(
        "memory beside the volume: format {0}, not 2: unmount the volume with the version of \
            stetfs that used it last"
    )]
    NvmPairVersion(u32),
    /// A record of Delta Journaling's NVRAM region that no writer makes.
    #[error("delta journal: {0}")]
    DeltaJournal(&'static str),
    /// A record of an NVM cache's region that no writer makes.
    #[error("NVM cache: {0}")]
    NvmCache(&'static str),

    // --- JBD2 ---
    /// The block does not begin with JBD2's magic.
    #[error("journal block: magic {0:#010x}, not 0xc03b3998")]
    JournalMagic(u32),
    /// The journal superblock's type is neither 3 nor 4.
    #[error("journal superblock: block type {0} is neither version 1 nor 2")]
    JournalSuperType(u32),
    /// The block is of another type than the reader expects.
    #[error("journal block: type {found} where {expected} is expected")]
    JournalBlockType {
        /// What was expected.
        expected: u32,
        /// What was there.
        found: u32,
    },
    /// The journal superblock's checksum does not fit its content.
    #[error("journal superblock: checksum {stored:#010x}, computed {computed:#010x}")]
    JournalSuperChecksum {
        /// The checksum in the superblock.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// The journal's checksum type is not 4 (CRC-32C) with checksums v2 or v3.
    #[error("journal superblock: checksum type {0} is not crc32c")]
    JournalChecksumType(u8),
    /// Checksums v2 and v3, or v1 together with v2 or v3, are both set.
    #[error("journal superblock: more than one checksum version is set")]
    JournalChecksumVersions,
    /// The journal's block size is not that of the volume.
    #[error("journal superblock: block size {journal}, but the volume has {volume}")]
    JournalBlockSize {
        /// `s_blocksize`.
        journal: u32,
        /// Bytes of a block of the volume.
        volume: u32,
    },
    /// The journal is shorter than the kernel accepts.
    #[error("journal superblock: length {0} blocks is too short")]
    JournalLength(u32),
    /// The first log block is 0 or beyond the end.
    #[error("journal superblock: first block {first} of {length}")]
    JournalFirst {
        /// `s_first`.
        first: u32,
        /// `s_maxlen`.
        length: u32,
    },
    /// The start of the log lies outside the log.
    #[error("journal superblock: log start {start} is outside {first}..{length}")]
    JournalStart {
        /// `s_start`.
        start: u32,
        /// `s_first`.
        first: u32,
        /// `s_maxlen`.
        length: u32,
    },
    /// The fast-commit area takes the whole journal.
    #[error("journal superblock: {fast} fast-commit blocks of {length}")]
    JournalFastCommit {
        /// `s_num_fc_blks`.
        fast: u32,
        /// `s_maxlen`.
        length: u32,
    },
    /// The journal has an incompatible feature that is not known.
    #[error("journal superblock: unknown incompatible features {0:#x}")]
    JournalIncompat(u32),
    /// The journal has a read-only-compatible feature; none are known.
    #[error("journal superblock: unknown read-only-compatible features {0:#x}")]
    JournalRoCompat(u32),
    /// A descriptor or revoke block's checksum does not fit its content.
    #[error("journal block: checksum {stored:#010x}, computed {computed:#010x}")]
    JournalTail {
        /// The checksum in the block's tail.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// A commit block's checksum does not fit its content.
    #[error("commit block: checksum {stored:#010x}, computed {computed:#010x}")]
    JournalCommitChecksum {
        /// The checksum in the block.
        stored: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// Zeros where a tag must follow one that is not marked as the last.
    #[error("descriptor block: no tag at offset {0}, nor was the one before the last")]
    JournalTagsUnended(usize),
    /// A tag names a block that the volume does not have.
    #[error("descriptor block: tag names block {0}, outside the volume")]
    JournalTagBlock(BlockNo),
    /// A logged block does not fit the checksum in its tag.
    #[error("descriptor block: the copy of block {0} does not fit the checksum in its tag")]
    JournalTagChecksum(BlockNo),
    /// The byte count of a revoke block is impossible.
    #[error("revoke block: {0} bytes used is impossible")]
    JournalRevokeCount(u32),
}

/// Where a corrupt record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The superblock.
    Superblock,
    /// A block of the volume.
    Block(BlockNo),
    /// A record that belongs to a group.
    Group(GroupNo),
    /// The inode itself.
    Inode(InodeNo),
    /// A metadata block (extent, indirect, attribute) of an inode.
    InodeBlock(InodeNo, BlockNo),
    /// A logical block of a directory or other file.
    FileBlock(InodeNo, LBlock),
    /// A block of the journal, counted from the journal's start.
    Journal(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock => f.write_str("superblock"),
            Self::Block(block) => write!(f, "block {block}"),
            Self::Group(group) => write!(f, "group {group}"),
            Self::Inode(ino) => write!(f, "inode {ino}"),
            Self::InodeBlock(ino, block) => write!(f, "block {block} of inode {ino}"),
            Self::FileBlock(ino, lblk) => write!(f, "logical block {lblk} of inode {ino}"),
            Self::Journal(block) => write!(f, "journal block {block}"),
        }
    }
}

/// A failed check and where the record lies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Corruption {
    /// Where.
    pub place: Place,
    /// What.
    #[source]
    pub what: Corrupt,
}

impl Corrupt {
    /// Names the place.
    pub fn at(self, place: Place) -> Corruption {
        Corruption { place, what: self }
    }
}
