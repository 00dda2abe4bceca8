//! The label of every access to a medium: what the bytes are and why they move.
//!
//! The meter counts by both, the tape records both, and a crash report uses both to name a torn
//! write.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Class {
    /// The superblock or one of its copies.
    Superblock,
    /// Group descriptors.
    GroupDesc,
    /// A block bitmap.
    BlockBitmap,
    /// An inode bitmap.
    InodeBitmap,
    /// A block of an inode table.
    InodeTable,
    /// A node of an extent tree or a block of block pointers.
    Mapping,
    /// A directory block, hash-tree nodes included.
    Directory,
    /// A block of extended attributes.
    Xattr,
    /// Content of files.
    Data,
    /// The log's own records: descriptor, revoke, commit, journal superblock.
    Journal,
}

impl Class {
    /// Its place in [`ALL`](Self::ALL).
    #[expect(clippy::as_conversions, reason = "the discriminant is the place")]
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Every class, in the order in which reports list them.
    pub const ALL: [Self; 10] = [
        Self::Superblock,
        Self::GroupDesc,
        Self::BlockBitmap,
        Self::InodeBitmap,
        Self::InodeTable,
        Self::Mapping,
        Self::Directory,
        Self::Xattr,
        Self::Data,
        Self::Journal,
    ];

    /// The name in reports and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::GroupDesc => "group_desc",
            Self::BlockBitmap => "block_bitmap",
            Self::InodeBitmap => "inode_bitmap",
            Self::InodeTable => "inode_table",
            Self::Mapping => "mapping",
            Self::Directory => "directory",
            Self::Xattr => "xattr",
            Self::Data => "data",
            Self::Journal => "journal",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why the bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Cause {
    /// A caller asked for the bytes.
    Read,
    /// Written to the log.
    Log,
    /// The record that makes a transaction valid.
    CommitRecord,
    /// Written home from the log or from the cache, to free log space.
    Checkpoint,
    /// Written home directly, without a log: ordered data.
    Home,
    /// Superblocks and flags, at mount and unmount.
    Control,
    /// Recovery after a crash.
    Recovery,
    /// Moved by the flash translation layer, to free a block for erasing or to level wear.
    Gc,
    /// The flash translation layer's own map and its log.
    Map,
}

impl Cause {
    /// Its place in [`ALL`](Self::ALL).
    #[expect(clippy::as_conversions, reason = "the discriminant is the place")]
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// Every cause, in the order in which reports list them.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Log,
        Self::CommitRecord,
        Self::Checkpoint,
        Self::Home,
        Self::Control,
        Self::Recovery,
        Self::Gc,
        Self::Map,
    ];

    /// The name in reports and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Log => "log",
            Self::CommitRecord => "commit_record",
            Self::Checkpoint => "checkpoint",
            Self::Home => "home",
            Self::Control => "control",
            Self::Recovery => "recovery",
            Self::Gc => "gc",
            Self::Map => "map",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The label of one access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Tag {
    /// What the bytes are.
    pub class: Class,
    /// Why they move.
    pub cause: Cause,
}

impl Tag {
    /// A label.
    pub const fn new(class: Class, cause: Cause) -> Self {
        Self { class, cause }
    }

    /// The label of an ordinary read.
    pub const fn read(class: Class) -> Self {
        Self::new(class, Cause::Read)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.class, self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_complete_and_in_order_of_the_discriminants() {
        for (i, class) in Class::ALL.iter().enumerate() {
            assert_eq!(*class as usize, i);
            let json = serde_json::to_string(class).expect("a name");
            assert_eq!(json, format!("\"{class}\""));
        }
        for (i, cause) in Cause::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, i);
            let json = serde_json::to_string(cause).expect("a name");
            assert_eq!(json, format!("\"{cause}\""));
        }
    }
}
