//! Removes names, and gives a file another one: unlink, rmdir, link.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stetfs_format::inode::InodeFlags;
use stetfs_journal::Handle;

use super::create::enter;
use super::{
    ENTRY_CREDITS, LINK_MAX, check_dir_links, check_name, check_project, entry_credits, find,
    named_child, names_changed, remove_dir_link, set_dotdot,
};
use crate::alloc::Source;
use crate::dir;
use crate::dir::block::{Dir, Found, NewEntry};
use crate::error::{Error, Result};
use crate::evict::{self, EVICT_CREDITS};
use crate::inode::{Inode, InodeState};
use crate::scope::Scope;
use crate::types::Caller;
use crate::volume::{ROOT_INO, Volume};
use crate::{orphan, perm};

/// Credits of a name's removal: the entry's block and the directory's inode, the inode's own slot,
/// and freeing it.
pub(crate) const UNLINK_CREDITS: u32 = ENTRY_CREDITS + 1 + orphan::CREDITS + EVICT_CREDITS;

/// Credits of a new name if the directory has room: the entry's block and the directory's inode,
/// the inode's own slot, the block of "..", and taking the inode off the orphan list.
pub(crate) const LINK_CREDITS: u32 = ENTRY_CREDITS + 2 + orphan::CREDITS;

/// Removes the name of anything but a directory. Returns the inode that had it. A file without
/// names lives on while it is open.
///
/// # Errors
/// `NotFound`, `IsDirectory`, `Access`, `NotPermitted` (sticky directory, append-only or immutable
/// file), `ReadOnly`.
pub(crate) fn unlink(vol: &Scope<'_>, c: &Caller, dir: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
    perm::may_search(vol, c, dir)?;
    check_name(name)?;
    if dir::is_dot_or_dotdot(name) {
        return Err(Error::IsDirectory);
    }
    let _alone = dir.lock.write();
    let found = find(vol, dir, name)?.ok_or(Error::NotFound)?;
    let child = named_child(vol, dir, &found)?;
    let child_alone = child.lock.write();
    perm::may_delete(vol, c, dir, &child)?;
    if child.state.read().is_dir() {
        return Err(Error::IsDirectory);
    }
    let gone = vol.with_handle(UNLINK_CREDITS, |h| {
        change_entry(vol, h, dir, &found, None, false)?;
        drop_link(vol, h, &child)
    })?;
    if !gone {
        evict::evict(vol, &child)?;
    }
    drop(child_alone);
    Ok(child)
}

/// Removes an empty directory and returns its inode.
///
/// # Errors
/// `NotFound`, `NotDirectory`, `NotEmpty` (also for ".."), `Invalid` (for "."), `Busy` (the root),
/// `Access`, `NotPermitted`, `ReadOnly`.
pub(crate) fn rmdir(vol: &Scope<'_>, c: &Caller, dir: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
    perm::may_search(vol, c, dir)?;
    check_name(name)?;
    match name {
        b"." => return Err(Error::Invalid),
        b".." => return Err(Error::NotEmpty),
        _ => {}
    }
    let _alone = dir.lock.write();
    let found = find(vol, dir, name)?.ok_or(Error::NotFound)?;
    let child = named_child(vol, dir, &found)?;
    let child_alone = child.lock.write();
    perm::may_delete(vol, c, dir, &child)?;
    if child.ino == ROOT_INO {
        return Err(Error::Busy);
    }
    check_empty(vol, &child)?;
    let gone = vol.with_handle(UNLINK_CREDITS, |h| {
        change_entry(vol, h, dir, &found, None, true)?;
        drop_link(vol, h, &child)
    })?;
    if !gone {
        evict::evict(vol, &child)?;
    }
    drop(child_alone);
    Ok(child)
}

/// Fails unless `inode` is an empty directory.
pub(super) fn check_empty(vol: &Volume, inode: &Inode) -> Result<()> {
    let st = inode.state.read();
    let empty = dir::is_empty(Dir::open(vol, inode, &st)?)?;
    if empty { Ok(()) } else { Err(Error::NotEmpty) }
}

/// Removes an entry, or points it to another inode (with its mode), and updates the directory's
/// inode. `was_dir`: counts one subdirectory less.
pub(super) fn change_entry(
    vol: &Volume,
    h: &Handle,
    dir: &Inode,
    found: &Found,
    instead: Option<(&Inode, u16)>,
    was_dir: bool,
) -> Result<()> {
    let mut st = dir.state.write();
    match instead {
        None => dir::remove(vol, h, dir, &mut st, found)?,
        Some((inode, mode)) => dir::replace(vol, h, dir, &mut st, found, inode.ino, mode)?,
    }
    names_changed(vol, dir, &mut st);
    if was_dir {
        remove_dir_link(&mut st);
    }
    vol.store_inode(h, dir, &st)
}

/// Takes one name from the inode's count; a directory has none left. Returns false when the inode
/// must be evicted after the handle is closed. The caller holds the inode's lock alone.
pub(super) fn drop_link(vol: &Volume, h: &Handle, inode: &Inode) -> Result<bool> {
    let mut st = inode.state.write();
    st.touch(vol.now());
    st.raw.links_count = if st.is_dir() {
        0
    } else {
        st.raw.links_count.saturating_sub(1)
    };
    finish_unlink(vol, h, inode, &mut st)
}

fn finish_unlink(vol: &Volume, h: &Handle, inode: &Inode, st: &mut InodeState) -> Result<bool> {
    if st.raw.links_count == 0 {
        if inode.opens.load(Ordering::Relaxed) == 0 && !vol.held.hold(inode, st) {
            return evict::evict_in(vol, h, inode, st);
        }
        orphan::add(vol, h, inode, st)?;
    }
    vol.store_inode(h, inode, st)?;
    Ok(true)
}

/// Gives `inode` the name `name` in `dir`. An inode that was made to get a name may have it as its
/// first.
///
/// # Errors
/// `Exists`, `NotPermitted` (a directory, an immutable or append-only file), `NotFound` (the file
/// or the directory was removed), `TooManyLinks`, `CrossDevice` (another project), `Access`,
/// `NoSpace`, `ReadOnly`.
pub(crate) fn link(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Arc<Inode>,
    dir: &Inode,
    name: &[u8],
) -> Result<()> {
    perm::may_search(vol, c, dir)?;
    check_name(name)?;
    vol.with_space(|| try_link(vol, c, inode, dir, name, false))
}

/// Gives a directory that was made without a name its first one.
///
/// # Errors
/// As [`link`].
pub(crate) fn name_dir(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    dir: &Inode,
    name: &[u8],
) -> Result<()> {
    check_name(name)?;
    try_link(vol, c, inode, dir, name, true)
}

/// `names_dir`: the inode may be a directory that was made without a name.
fn try_link(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    dir: &Inode,
    name: &[u8],
    names_dir: bool,
) -> Result<()> {
    let _alone = dir.lock.write();
    let place = {
        let st = dir.state.read();
        st.check_live()?;
        dir::place(Dir::open(vol, dir, &st)?, name)?
    };
    let is_dir = inode.state.read().is_dir();
    if is_dir && !(names_dir && inode.state.read().nameable) {
        return Err(Error::NotPermitted);
    }
    perm::may_create(vol, c, dir)?;
    if is_dir {
        check_dir_links(vol, &dir.state.read(), 1)?;
    }
    let _inode_alone = inode.lock.write();
    let file_mode = {
        let st = inode.state.read();
        check_linkable(&st)?;
        st.raw.mode
    };
    check_project(dir, inode)?;
    let credits = LINK_CREDITS - ENTRY_CREDITS + entry_credits(place);
    vol.with_handle(credits, |h| {
        let entry = NewEntry {
            name,
            ino: inode.ino,
            mode: file_mode,
            source: Source::Free {
                privileged: vol.alloc.may_use_root_blocks(c),
            },
        };
        enter(vol, h, dir, place, entry, is_dir)?;
        if is_dir {
            set_dotdot(vol, h, inode, dir)?;
        }
        let mut st = inode.state.write();
        let is_first = st.raw.links_count == 0;
        st.raw.links_count += if is_dir { 2 } else { 1 };
        if is_first {
            orphan::del(vol, h, inode, &mut st)?;
            st.nameable = false;
        }
        st.touch(vol.now());
        vol.store_inode(h, inode, &st)
    })
}

/// Whether an inode in this state can be given a name.
pub(crate) fn check_linkable(st: &InodeState) -> Result<()> {
    if st
        .raw
        .flags
        .intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
    {
        return Err(Error::NotPermitted);
    }
    if st.gone || (st.raw.links_count == 0 && !st.nameable) {
        return Err(Error::NotFound);
    }
    if st.raw.links_count >= LINK_MAX {
        return Err(Error::TooManyLinks);
    }
    Ok(())
}
