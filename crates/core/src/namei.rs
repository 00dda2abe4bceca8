//! Operations on names: what a call may do, in which order, and what else changes with it.
//!
//! Every operation has the same steps: check the names; take the inodes' locks (parents before
//! children); look; check permissions in the kernel's order; open one handle; change; let go. So
//! each operation is in one transaction and happens as a whole. One part may take further handles:
//! freeing the blocks of a large file that lost its last name (`evict.rs`).
//!
//! When there is no space, the operation leaves nothing behind and lets go of its handle. It is
//! tried again after a commit that may have freed some ([`Scope::with_space`]).
//!
//! No operation holds the `state` of two inodes, with two exceptions: an inode that nobody else can
//! know yet, and a neighbour on the orphan list (`orphan.rs`).
//!
//! [`Scope::with_space`]: crate::scope::Scope::with_space
//!
//! | file | operations |
//! |---|---|
//! | `namei/create` | create, also without a name, mkdir, mknod, symlink |
//! | `namei/unlink` | link, unlink, rmdir |
//! | `namei/rename` | rename, also NOREPLACE, EXCHANGE and WHITEOUT |

use std::sync::Arc;

use stetfs_format::dirent::MAX_NAME_LEN;
use stetfs_format::{InodeFlags, InodeNo};
use stetfs_journal::Handle;

use crate::dir;
use crate::dir::block::{Dir, Found, Place, is_indexed};
use crate::error::{Error, Inconsistent, Result};
use crate::inode::{Inode, InodeState};
use crate::perm;
use crate::types::{Caller, mode};
use crate::volume::{ROOT_INO, Volume};

pub(crate) mod create;
pub(crate) mod rename;
pub(crate) mod unlink;

/// The most links that an inode can have (EXT4_LINK_MAX).
pub(crate) const LINK_MAX: u16 = 65_000;

/// Credits of changing an existing directory block: the block and the directory's inode.
const ENTRY_CREDITS: u32 = 2;

/// Credits of adding a name to a directory that must grow: at worst a new leaf and three new index
/// blocks, each with its bitmap, descriptor and two blocks of the map; the old ones; the
/// directory's inode.
pub(crate) const GROW_CREDITS: u32 = 32;

/// The credits for adding a name at `place`.
fn entry_credits(place: Place) -> u32 {
    match place {
        Place::Room { .. } => ENTRY_CREDITS,
        Place::Grow => GROW_CREDITS,
    }
}

/// Returns the inode that `name` stands for in `dir`.
///
/// # Errors
/// `NotFound`, `NotDirectory`, `NameTooLong`, `Access`; damage.
pub(crate) fn lookup(vol: &Volume, c: &Caller, dir: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
    perm::may_search(vol, c, dir)?;
    check_name(name)?;
    let _shared = dir.lock.read();
    let found = find(vol, dir, name)?.ok_or(Error::NotFound)?;
    named_inode(vol, &found)
}

/// Returns the entry `name` of `dir`; `None` if there is none. The caller holds the directory's
/// lock.
pub(crate) fn find(vol: &Volume, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
    let st = dir.state.read();
    st.check_live()?;
    dir::find(Dir::open(vol, dir, &st)?, name)
}

/// Returns the inode that an entry names.
fn named_inode(vol: &Volume, found: &Found) -> Result<Arc<Inode>> {
    if found.ino.0 < vol.geo.first_ino && found.ino != ROOT_INO {
        // The journal and other reserved inodes have no names.
        return Err(Inconsistent::InodeNumber(found.ino).into());
    }
    match vol.iget(found.ino) {
        Err(Error::Stale) => Err(Inconsistent::UnusedInode(found.ino).into()),
        other => other,
    }
}

/// Returns the inode that an entry of `dir` names, for a caller that holds the lock of `dir` and
/// will lock the inode too. A directory must be the child of `dir` by its "..": if a damaged tree
/// put it below itself, two callers would take its lock and another in opposite orders, and wait
/// forever.
pub(crate) fn named_child(vol: &Volume, dir: &Inode, found: &Found) -> Result<Arc<Inode>> {
    if found.ino == dir.ino {
        // Only "." may lead back to the directory.
        return Err(Inconsistent::NotBelowRoot(dir.ino).into());
    }
    let child = named_inode(vol, found)?;
    let st = child.state.read();
    if st.is_dir() {
        // Only a holder of the lock of `dir` changes "..".
        check_dotdot(vol, &child, &st, dir.ino)?;
    }
    drop(st);
    Ok(child)
}

/// Fails unless ".." of `dir` names `parent`.
///
/// # Errors
/// `NotDirectory`; damage, also when ".." names another directory.
pub(crate) fn check_parent(vol: &Volume, dir: &Inode, parent: InodeNo) -> Result<()> {
    let _shared = dir.lock.read();
    let st = dir.state.read();
    st.check_live()?;
    check_dotdot(vol, dir, &st, parent)
}

fn check_dotdot(vol: &Volume, dir: &Inode, st: &InodeState, parent: InodeNo) -> Result<()> {
    let dotdot = dir::dotdot(Dir::open(vol, dir, st)?)?.ino;
    if dotdot == parent {
        return Ok(());
    }
    let ino = dir.ino;
    Err(Inconsistent::DirectoryElsewhere {
        ino,
        parent,
        dotdot,
    }
    .into())
}

/// Notes that names in a directory have changed. The caller stores its inode.
fn names_changed(vol: &Volume, dir: &Inode, st: &mut InodeState) {
    let now = vol.now();
    (st.raw.mtime, st.raw.ctime) = (now, now);
    if vol.opts.redo {
        let next = || st.raw.version.wrapping_add(1);
        st.raw.version = vol.redo.version(dir.ino).unwrap_or_else(next);
    }
}

/// Makes `parent` the directory's "..".
fn set_dotdot(vol: &Volume, h: &Handle, inode: &Inode, parent: &Inode) -> Result<()> {
    let mut st = inode.state.write();
    let at = dir::dotdot(Dir::open(vol, inode, &st)?)?;
    dir::replace(vol, h, inode, &mut st, &at, parent.ino, mode::S_IFDIR)?;
    vol.store_inode(h, inode, &st)
}

/// Fails unless a name has 1 to 255 bytes, without '/' and NUL.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return Err(Error::NotFound);
    }
    if name.len() > MAX_NAME_LEN {
        return Err(Error::NameTooLong);
    }
    if name.iter().any(|&b| matches!(b, b'/' | 0)) {
        return Err(Error::Invalid);
    }
    Ok(())
}

/// Fails unless the directory can count `more` subdirectories (EXT4_DIR_LINK_MAX).
pub(crate) fn check_dir_links(vol: &Volume, dir: &InodeState, more: u16) -> Result<()> {
    if dir.raw.links_count > LINK_MAX - more && !uncounted_links(vol, dir) {
        return Err(Error::TooManyLinks);
    }
    Ok(())
}

/// Whether the directory may have more subdirectories than its link count says.
fn uncounted_links(vol: &Volume, dir: &InodeState) -> bool {
    vol.geo.dir_nlink && is_indexed(vol, dir)
}

/// Counts one more subdirectory. A count of 1 means "too many to count" and stays
/// (`ext4_inc_count`).
fn add_dir_link(vol: &Volume, dir: &mut InodeState) {
    dir.raw.links_count += 1;
    if uncounted_links(vol, dir) && (dir.raw.links_count > LINK_MAX || dir.raw.links_count == 2) {
        dir.raw.links_count = 1;
    }
}

/// Counts one subdirectory less (`ext4_dec_count`).
fn remove_dir_link(dir: &mut InodeState) {
    if dir.raw.links_count > 2 {
        dir.raw.links_count -= 1;
    }
}

/// Fails when the directory passes its project on and the inode has another one.
pub(crate) fn check_project(dir: &Inode, inode: &Inode) -> Result<()> {
    let project = {
        let st = dir.state.read();
        st.raw
            .flags
            .contains(InodeFlags::PROJINHERIT)
            .then_some(st.raw.projid)
    };
    match project {
        Some(project) if inode.state.read().raw.projid != project => Err(Error::CrossDevice),
        _ => Ok(()),
    }
}

/// Whether directory `above` is `below` or lies above it. The caller holds the rename lock, so no
/// directory moves.
fn is_same_or_above(vol: &Volume, above: InodeNo, below: InodeNo) -> Result<bool> {
    let mut at = below;
    // A path that goes in a circle comes to a marked directory again (Brent's algorithm).
    let mut marked = None;
    for steps in 1..=vol.geo.inodes_count {
        if at == above {
            return Ok(true);
        }
        if at == ROOT_INO {
            return Ok(false);
        }
        if marked == Some(at) {
            break;
        }
        if steps.is_power_of_two() {
            marked = Some(at);
        }
        let inode = vol.iget(at)?;
        let st = inode.state.read();
        at = dir::dotdot(Dir::open(vol, &inode, &st)?)?.ino;
    }
    Err(Inconsistent::NotBelowRoot(below).into())
}
