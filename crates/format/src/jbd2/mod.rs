//! The JBD2 journal: big-endian records in blocks of the volume's size.
//!
//! A transaction in the log is: descriptor blocks, each followed by the blocks that
//! its tags name, revoke blocks among them, and one commit block. All begin with the
//! same [`Header`] and carry the transaction's number. A logged block that itself begins
//! with the magic is written *escaped* (its first four bytes zero) and its tag says so.
//!
//! How the records look depends on the journal's features; [`LogFormat`] holds what
//! follows from them. Four generations of checksums exist: none; v1, one CRC-32 of all
//! blocks of a transaction in its commit block; v2 and v3, CRC-32C on every record and
//! every logged block, v3 with all 32 bits in the tag.
//!
//! Source: kernel `Documentation/filesystems/ext4/journal.rst`, `include/linux/jbd2.h`.

mod commit;
mod descriptor;
mod header;
mod revoke;
mod superblock;

pub use commit::{COMMIT_LAYOUT, CommitBlock};
pub use descriptor::{DescriptorBlock, DescriptorWriter, TAG_LAYOUT, TAG3_LAYOUT, Tag, Tags};
pub use header::{
    BlockType, ChecksumVersion, HEADER_LAYOUT, HEADER_SIZE, Header, JBD2_MAGIC, LogFormat, escape,
    needs_escape, unescape,
};
pub use revoke::{REVOKE_LAYOUT, RevokeBlock, RevokeWriter};
pub use superblock::{
    JOURNAL_SUPERBLOCK_LAYOUT, JOURNAL_SUPERBLOCK_SIZE, JournalCompat, JournalIncompat,
    JournalSuperblock, MIN_JOURNAL_BLOCKS,
};
