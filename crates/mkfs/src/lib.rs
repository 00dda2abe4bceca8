//! Makes ext4 and ext3 volumes: what mke2fs makes of the same arguments, to the byte.
//!
//! There is no subprocess, and nothing is chosen by chance: UUID, hash seed and time are arguments.
//! So the same [`Params`] make the same bytes on every machine.
//!
//! The peer is mke2fs 1.47.0 with Debian's `mke2fs.conf`. `tests/peer.rs` compares whole images
//! with it by `cmp`. They differ in one number, `s_kbytes_written`: mke2fs counts there what it
//! wrote and how its cache went about that; [`make`] leaves 1, which mke2fs begins with.
//!
//! It takes two steps. [`Plan::new`] is pure computation and finds every mistake in the arguments;
//! it goes through the files below in their order, which is that of mke2fs, since each step takes
//! the first free blocks behind those of the one before:
//! - `params.rs`: what a volume is to be like; the defaults of `mke2fs.conf`.
//! - `shape.rs`: blocks, groups, inodes of a group, blocks reserved for growth.
//! - `block_map.rs`: the blocks in use, and the searches for free ones.
//! - `groups.rs`: the bitmaps and inode tables of each group.
//! - `files.rs`: the root, `lost+found`, the resize inode and the journal.
//! - `plan.rs`: all of these together.
//!
//! Then [`Plan::write`] (`write.rs`, `superblock.rs`, `fields.rs`) puts it on a device, the
//! superblock last: a volume that is cut short in the making is none.
//!
//! Sources: kernel `Documentation/filesystems/ext4`, `mke2fs(8)`, `mke2fs.conf(5)`; where these
//! say nothing, what mke2fs does.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::as_conversions))]

mod block_map;
mod error;
mod fields;
mod files;
mod groups;
mod params;
mod plan;
mod shape;
mod superblock;
mod write;

pub use error::MkfsError;
pub use params::{Content, Inodes, JournalSize, Params};
pub use plan::Plan;

use stetfs_media::BlockDev;

/// Makes the volume that `params` describe on `dev`, and flushes it.
///
/// # Errors
/// Those of [`Plan::new`], before anything is written; those of [`Plan::write`].
pub fn make(dev: &dyn BlockDev, params: &Params) -> Result<Plan, MkfsError> {
    let plan = Plan::new(params)?;
    plan.write(dev)?;
    Ok(plan)
}
