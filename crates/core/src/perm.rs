//! Permissions: permission bits, ACLs, the sticky bit, immutable and append-only files, and what a
//! new file inherits from its directory.
//!
//! The rules are those of the kernel's `fs/namei.c` (`inode_permission`, `may_create`,
//! `may_delete`) and `inode_init_owner`. Without [`Caller::checks`], only those checks are left out
//! that the FUSE mount option `default_permissions` has made already: bits, ACLs, the sticky bit,
//! and which set-group-ID bits stay (the kernel knows all groups of the caller). Inode flags are
//! always honoured, because no layer above knows them.

use stetfs_format::inode::InodeFlags;

use crate::acl;
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::types::{Access, Caller, mode};
use crate::volume::Volume;

/// Fails unless the caller may use the file as `want` says.
///
/// # Errors
/// [`Error::NotPermitted`] for writing to an immutable file; [`Error::ReadOnly`] for writing to
/// anything but a device or a pipe on a read-only mount; [`Error::Access`] when bits or ACL deny
/// it.
pub(crate) fn permission(vol: &Volume, c: &Caller, inode: &Inode, want: Access) -> Result<()> {
    let (file_mode, owner, group) = {
        let st = inode.state.read();
        if want.contains(Access::WRITE) {
            check_writable(vol, &st)?;
        }
        (st.raw.mode, st.raw.uid, st.raw.gid)
    };
    if !c.checks || privileged_may(c, file_mode, want) {
        return Ok(());
    }
    let allowed = if c.uid == owner {
        file_mode >> 6
    } else {
        match acl::permits(vol, c, inode, want)? {
            Some(true) => return Ok(()),
            Some(false) => return Err(Error::Access),
            None if c.in_group(group) => file_mode >> 3,
            None => file_mode,
        }
    };
    if want.bits() & !allowed == 0 {
        Ok(())
    } else {
        Err(Error::Access)
    }
}

/// Checks what binds every writer, the superuser too.
fn check_writable(vol: &Volume, st: &InodeState) -> Result<()> {
    if st.raw.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Error::NotPermitted);
    }
    let kind = st.raw.mode & mode::S_IFMT;
    if vol.is_read_only() && matches!(kind, mode::S_IFREG | mode::S_IFDIR | mode::S_IFLNK) {
        return Err(Error::ReadOnly);
    }
    Ok(())
}

/// Whether the caller's CAP_DAC_OVERRIDE allows this: everything on a directory, reading and
/// writing a file, and running a file that has any execute bit.
fn privileged_may(c: &Caller, file_mode: u16, want: Access) -> bool {
    c.privileged
        && (mode::is_dir(file_mode) || !want.contains(Access::EXEC) || file_mode & 0o111 != 0)
}

/// Fails unless the caller may search the directory `dir`.
///
/// # Errors
/// [`Error::NotDirectory`], or those of [`permission`].
pub(crate) fn may_search(vol: &Volume, c: &Caller, dir: &Inode) -> Result<()> {
    if !mode::is_dir(dir.state.read().raw.mode) {
        return Err(Error::NotDirectory);
    }
    permission(vol, c, dir, Access::EXEC)
}

/// Fails unless the caller may add an entry to `dir` (the kernel's `may_create`).
///
/// # Errors
/// Those of [`check_named`] and [`permission`].
pub(crate) fn may_create(vol: &Volume, c: &Caller, dir: &Inode) -> Result<()> {
    check_named(dir)?;
    may_change_entries(vol, c, dir)
}

/// Fails unless the directory `dir` has a name, by which others find what is made in it.
///
/// # Errors
/// [`Error::NotFound`] when it was removed.
pub(crate) fn check_named(dir: &Inode) -> Result<()> {
    match dir.state.read().raw.links_count {
        0 => Err(Error::NotFound),
        _ => Ok(()),
    }
}

/// Fails unless the caller may add and remove entries in `dir`. `dir` may be without a name itself.
///
/// # Errors
/// Those of [`permission`].
pub(crate) fn may_change_entries(vol: &Volume, c: &Caller, dir: &Inode) -> Result<()> {
    permission(vol, c, dir, Access::WRITE | Access::EXEC)
}

/// Fails unless the caller may remove `victim`'s entry from `dir` (the kernel's `may_delete`,
/// without its checks of the file type).
///
/// # Errors
/// [`Error::NotPermitted`] when the directory or the victim is append-only, the victim is
/// immutable, or a sticky directory protects it; or those of [`permission`].
pub(crate) fn may_delete(vol: &Volume, c: &Caller, dir: &Inode, victim: &Inode) -> Result<()> {
    may_change_entries(vol, c, dir)?;
    let (dir_mode, dir_owner, dir_flags) = {
        let st = dir.state.read();
        (st.raw.mode, st.raw.uid, st.raw.flags)
    };
    let (victim_owner, victim_flags) = {
        let st = victim.state.read();
        (st.raw.uid, st.raw.flags)
    };
    let fixed = InodeFlags::APPEND | InodeFlags::IMMUTABLE;
    if dir_flags.contains(InodeFlags::APPEND) || victim_flags.intersects(fixed) {
        return Err(Error::NotPermitted);
    }
    let sticky = c.checks && dir_mode & mode::S_ISVTX != 0;
    if sticky && !c.privileged && c.uid != victim_owner && c.uid != dir_owner {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Returns the group of a new file in `dir`, and its mode: the set-group-ID bit follows from the
/// directory and the caller's rights (the kernel's `inode_init_owner` and `mode_strip_sgid`).
pub(crate) fn inherit_group(
    vol: &Volume,
    c: &Caller,
    dir: &InodeState,
    file_mode: u16,
) -> (u32, u16) {
    if vol.opts.grpid {
        return (dir.raw.gid, file_mode);
    }
    if dir.raw.mode & mode::S_ISGID == 0 {
        return (c.gid, file_mode);
    }
    let group = dir.raw.gid;
    let executable = mode::S_ISGID | mode::S_IXGRP;
    if mode::is_dir(file_mode) {
        (group, file_mode | mode::S_ISGID)
    } else if c.checks
        && file_mode & executable == executable
        && !c.privileged
        && !c.in_group(group)
    {
        (group, file_mode & !mode::S_ISGID)
    } else {
        (group, file_mode)
    }
}

/// The flags that a new file of mode `file_mode` inherits from its directory (EXT4_FL_INHERITED,
/// `ext4_mask_flags`).
pub(crate) fn inherit_flags(dir: InodeFlags, file_mode: u16) -> InodeFlags {
    let inherited = dir
        & (InodeFlags::SECRM
            | InodeFlags::UNRM
            | InodeFlags::COMPR
            | InodeFlags::SYNC
            | InodeFlags::NODUMP
            | InodeFlags::NOATIME
            | InodeFlags::NOCOMPR
            | InodeFlags::JOURNAL_DATA
            | InodeFlags::NOTAIL
            | InodeFlags::DIRSYNC
            | InodeFlags::PROJINHERIT);
    match file_mode & mode::S_IFMT {
        mode::S_IFDIR => inherited,
        mode::S_IFREG => inherited & !(InodeFlags::DIRSYNC | InodeFlags::PROJINHERIT),
        _ => inherited & (InodeFlags::NODUMP | InodeFlags::NOATIME),
    }
}
