//! A read-only judge of ext4 and ext3 volumes.
//!
//! [`Checker::check`] examines every structure of a volume. Each failed check becomes a [`Finding`]
//! with its place. It finds what `e2fsck -fn` finds (tests compare the two), and also what the
//! kernel refuses and e2fsck accepts; `tests/agreement` lists those cases. It also reports what it
//! cannot judge. It writes nothing, and shares only the decoders of `stetfs_format` with the file
//! system whose work it judges.
//!
//! It is built to be called often: a [`Checker`] keeps its buffers, reads only what is in use, and
//! needs some microseconds for a volume of a few MiB. It takes one bit of memory per block, eight
//! bytes per inode that was ever used, and sixteen bytes per run of directory blocks. Damage costs
//! no more than the volume's size: a block that is claimed twice is followed once, and numbers are
//! checked before they are used.
//!
//! A tour, in the order of a check:
//! - `source.rs`, `finding.rs`, `report.rs`: input and output.
//! - `checker.rs`: the buffers and the order of the steps.
//! - `superblock.rs`, `groups.rs`, `claims.rs`: shape, descriptors, the owner of each block.
//! - `inodes.rs`, `inode.rs`, `extents.rs`, `indirect.rs`, `xattrs.rs`: every inode and its blocks.
//! - `special.rs`: resize inode, journal, orphan file.
//! - `directories.rs`, `htree.rs`: every entry.
//! - `tree.rs`: parents and link counts.
//! - `bitmaps.rs`: bitmaps and counts, compared with what was found.
//! - `paths.rs`: the paths of the inodes in findings.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod bitmaps;
mod checker;
mod claims;
mod directories;
mod extents;
mod finding;
mod groups;
mod htree;
mod indirect;
mod inode;
mod inodes;
mod paths;
mod report;
mod source;
mod special;
mod state;
mod superblock;
mod tree;
mod xattrs;

pub use checker::Checker;
pub use finding::{Fault, Finding, Name};
pub use report::Report;
pub use source::{FnSource, Source};
pub use stetfs_format::{Corrupt, Place};
