//! A read-only judge of ext4 and ext3 volumes.
//!
//! [`Checker::check`] looks at every structure of a volume and says what is wrong with it: each
//! failed check is a [`Finding`] with its place. It finds what `e2fsck -fn` finds (the tests hold
//! one against the other), and besides that what the kernel refuses and e2fsck lets pass; those
//! cases are listed in `tests/agreement`. What it cannot judge it names too. It writes nothing and
//! knows nothing of the file system whose work it judges: the decoders of `stetfs_format` are all
//! that it shares with it.
//!
//! It is made to be asked often: a [`Checker`] keeps its buffers, reads only what is in use, and
//! needs some microseconds for a volume of a few MiB. Memory is a bit a block, eight bytes an inode
//! that was ever used, and sixteen bytes a run of directory blocks. Damage costs no more than the
//! volume's size: what is claimed twice is followed once, and numbers are checked before they are
//! believed.
//!
//! A tour, in the order of a check:
//! - `source.rs`, `finding.rs`, `report.rs`: what goes in and out.
//! - `checker.rs`: the buffers and the order.
//! - `superblock.rs`, `groups.rs`, `claims.rs`: shape, descriptors, whose block is whose.
//! - `inodes.rs`, `inode.rs`, `extents.rs`, `indirect.rs`, `xattrs.rs`: every inode and its blocks.
//! - `special.rs`: resize inode, journal, orphan file.
//! - `directories.rs`, `htree.rs`: every entry.
//! - `tree.rs`: parents and link counts.
//! - `bitmaps.rs`: bitmaps and counts against what was found.
//! - `paths.rs`: names for what was found.
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
