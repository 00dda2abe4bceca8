//! Attributes: stat, chmod, chown, times, size, and the flags of chattr.
//!
//! One call is one handle; a large truncate takes more. The kernel's `setattr_prepare` and
//! `may_setattr` say who may change what. Set-user-ID and set-group-ID are cleared where the kernel
//! clears them.

use std::sync::atomic::Ordering;

use stetfs_format::inode::InodeFlags;
use stetfs_format::{FeatureRoCompat, Time};

use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::options::Atime;
use crate::perm;
use crate::scope::Scope;
use crate::types::{Access, Attr, Caller, SetAttr, SetTime, mode};
use crate::volume::Volume;
use crate::{acl, atomic, truncate, xattr};

/// The credits for changing an inode and its attribute block.
pub(crate) const ATTR_CREDITS: u32 = 4 + xattr::store::CREDITS;

/// The flags that chattr may change (`EXT4_FL_USER_MODIFIABLE`). They mean something here, or
/// nothing to ext4 either (`SECRM`, `UNRM`, `COMPR`, `NOTAIL`).
pub(crate) const USER_MODIFIABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT);

/// The flags of the kernel's `EXT4_FL_USER_MODIFIABLE` that cannot be changed here: a change is
/// refused.
const NOT_HERE: InodeFlags = InodeFlags::EXTENTS
    .union(InodeFlags::EOFBLOCKS)
    .union(InodeFlags::DAX)
    .union(InodeFlags::CASEFOLD);

/// The flags that lsattr shows (`EXT4_FL_USER_VISIBLE`).
pub(crate) const USER_VISIBLE: InodeFlags = USER_MODIFIABLE
    .union(NOT_HERE)
    .union(InodeFlags::DIRTY)
    .union(InodeFlags::COMPRBLK)
    .union(InodeFlags::NOCOMPR)
    .union(InodeFlags::ENCRYPT)
    .union(InodeFlags::INDEX)
    .union(InodeFlags::VERITY)
    .union(InodeFlags::INLINE_DATA);

/// The flags that regular files cannot have (`EXT4_REG_FLMASK`).
const OF_DIRECTORIES: InodeFlags = InodeFlags::DIRSYNC
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::CASEFOLD)
    .union(InodeFlags::PROJINHERIT);

/// The flags that files other than regular files and directories can have (`EXT4_OTHER_FLMASK`).
const OF_OTHERS: InodeFlags = InodeFlags::NODUMP.union(InodeFlags::NOATIME);

/// Returns the attributes of an inode.
pub(crate) fn getattr(vol: &Volume, inode: &Inode) -> Result<Attr> {
    let st = inode.state.read();
    st.check_live()?;
    Ok(stat(vol, inode, &st))
}

/// Returns the attributes of an inode whose state the caller has locked.
pub(crate) fn stat(vol: &Volume, inode: &Inode, st: &InodeState) -> Attr {
    let raw = &st.raw;
    Attr {
        ino: inode.ino,
        generation: raw.generation,
        mode: raw.mode,
        nlink: raw.links_count.into(),
        uid: raw.uid,
        gid: raw.gid,
        rdev: if mode::is_device(raw.mode) {
            raw.rdev()
        } else {
            (0, 0)
        },
        size: raw.size,
        blocks: sectors(vol, st),
        blksize: vol.geo.block.bytes_u32(),
        atime: raw.atime,
        mtime: raw.mtime,
        ctime: raw.ctime,
        crtime: raw.crtime,
        flags: raw.flags & USER_VISIBLE,
        projid: raw.projid,
        version: raw.version,
    }
}

/// The space that the file takes, in units of 512 bytes. Content in the inode counts, or programs
/// would take the file for a hole (`ext4_file_getattr`).
fn sectors(vol: &Volume, st: &InodeState) -> u64 {
    let content = if st.is_reg() && st.raw.is_inline() {
        st.raw.size.div_ceil(512)
    } else {
        vol.geo.block.sectors_of(st.reserved.into())
    };
    st.raw.blocks_512(&vol.geo) + content
}

/// Changes attributes; returns all of them as they are afterwards.
///
/// # Errors
/// `NotPermitted`, `Access`, `Invalid`, `IsDirectory`, `TooBig`; an error of the journal.
pub(crate) fn setattr(vol: &Scope<'_>, c: &Caller, inode: &Inode, set: &SetAttr) -> Result<Attr> {
    let _guard = inode.lock.write();
    check(vol, c, inode, set)?;
    change(vol, c, inode, set)?;
    getattr(vol, inode)
}

/// Fails unless the caller may change these attributes.
pub(crate) fn check(vol: &Volume, c: &Caller, inode: &Inode, set: &SetAttr) -> Result<()> {
    vol.check_writable()?;
    {
        let st = inode.state.read();
        st.check_live()?;
        check_setattr(c, &st, set)?;
    }
    check_access(vol, c, inode, set)
}

/// Changes attributes for which [`check`] has succeeded. The caller holds the inode's lock for
/// writing.
pub(crate) fn change(vol: &Scope<'_>, c: &Caller, inode: &Inode, set: &SetAttr) -> Result<()> {
    let now = vol.now();
    if let Some(size) = set.size {
        truncate::set_size(vol, c, inode, size, |h, st| {
            apply(vol, c, h, inode, st, set, now)?;
            // As in the kernel, even if the size stays the same.
            if set.mtime.is_none() {
                st.raw.mtime = now;
            }
            Ok(())
        })
    } else {
        vol.with_handle(ATTR_CREDITS, |h| {
            let mut st = inode.state.write();
            apply(vol, c, h, inode, &mut st, set, now)?;
            let is_about_times =
                (set.mode, set.uid, set.gid, set.kill_suid) == (None, None, None, false);
            if is_about_times {
                vol.store_times(h, inode, &st)
            } else {
                vol.store_inode(h, inode, &st)
            }
        })
    }
}

/// Makes the checks that depend on flags and ownership only.
fn check_setattr(c: &Caller, st: &InodeState, set: &SetAttr) -> Result<()> {
    let explicit_time = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
    // A page cache above may hand in the times of earlier writes late. No flag forbids that.
    let late =
        set.ctime.is_some() && set.atime.is_none() && set.size.is_none() && set.mode.is_none();
    // When both times are set to now, such a cache gives its own time for `mtime`.
    let touched = set.ctime.is_some() && set.atime == Some(SetTime::Now);
    let explicit_mtime = explicit_time(set.mtime) && !touched;
    let explicit_times = !late && (explicit_time(set.atime) || explicit_mtime);
    let flags = st.raw.flags;
    let guarded = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || explicit_times;
    if guarded && flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
        return Err(Error::NotPermitted);
    }
    if flags.contains(InodeFlags::IMMUTABLE) && !late {
        return Err(Error::NotPermitted);
    }
    if set.size.is_some() {
        if st.is_dir() {
            return Err(Error::IsDirectory);
        }
        if !st.is_reg() {
            return Err(Error::Invalid);
        }
        if flags.contains(InodeFlags::APPEND) {
            return Err(Error::NotPermitted);
        }
    }
    if !c.checks || c.privileged {
        return Ok(());
    }
    let owner = c.uid == st.raw.uid;
    if let Some(uid) = set.uid
        && !(owner && uid == st.raw.uid)
    {
        return Err(Error::NotPermitted);
    }
    if let Some(gid) = set.gid
        && !(owner && (gid == st.raw.gid || c.in_group(gid)))
    {
        return Err(Error::NotPermitted);
    }
    if (set.mode.is_some() || explicit_times) && !owner {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Makes the checks of write permission. It is needed to set the size without an open file, and, by
/// others than the owner, to set times to now.
fn check_access(vol: &Volume, c: &Caller, inode: &Inode, set: &SetAttr) -> Result<()> {
    let touches =
        matches!(set.atime, Some(SetTime::Now)) || matches!(set.mtime, Some(SetTime::Now));
    let owner = c.uid == inode.state.read().raw.uid;
    if set.size.is_some() && !set.through_handle || touches && !owner {
        perm::permission(vol, c, inode, Access::WRITE)?;
    }
    Ok(())
}

/// Makes the changes, without the size, in `h`.
fn apply(
    vol: &Volume,
    c: &Caller,
    h: &stetfs_journal::Handle,
    inode: &Inode,
    st: &mut InodeState,
    set: &SetAttr,
    now: Time,
) -> Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        if !st.is_dir() {
            st.raw.mode = without_privileges(c, st);
            xattr::remove_capability(vol, h, inode, st)?;
        }
        st.raw.uid = set.uid.unwrap_or(st.raw.uid);
        st.raw.gid = set.gid.unwrap_or(st.raw.gid);
    }
    if set.kill_suid || set.size.is_some() && !c.privileged && st.is_reg() {
        st.raw.mode = without_privileges(c, st);
        xattr::remove_capability(vol, h, inode, st)?;
    } else if set.size.is_some() && st.is_reg() {
        xattr::remove_capability(vol, h, inode, st)?;
    }
    if let Some(bits) = set.mode {
        let mut bits = bits & !mode::S_IFMT;
        if bits & mode::S_ISGID != 0 && c.checks && !c.privileged && !c.in_group(st.raw.gid) {
            bits &= !mode::S_ISGID;
        }
        st.raw.mode = st.raw.mode & mode::S_IFMT | bits;
        acl::chmod(vol, h, inode, st)?;
    }
    let given = |t: Time| {
        vol.clock.seen(t);
        vol.kept(t)
    };
    let time = |t: SetTime| match t {
        SetTime::Now => now,
        SetTime::At(t) => given(t),
    };
    if let Some(t) = set.atime {
        st.raw.atime = time(t);
    }
    if let Some(t) = set.mtime {
        st.raw.mtime = time(t);
    }
    st.raw.ctime = set.ctime.map_or(now, given);
    inode.no_privileges.store(false, Ordering::Relaxed);
    Ok(())
}

/// Returns the mode after a change of content or owner. Set-user-ID goes. Set-group-ID goes where
/// it means execution, and where the caller is not in the group (`setattr_should_drop_sgid`).
fn without_privileges(c: &Caller, st: &InodeState) -> u16 {
    let is_foreign = !c.privileged && !c.in_group(st.raw.gid);
    let gone = if is_foreign || st.raw.mode & mode::S_IXGRP != 0 {
        mode::S_ISUID | mode::S_ISGID
    } else {
        mode::S_ISUID
    };
    st.raw.mode & !gone
}

/// Clears privileges before content changes (`file_remove_privs`): file capabilities, and
/// set-user-ID and set-group-ID unless the caller is privileged; with `all`, these in any case. The
/// caller holds the inode's lock for writing. Cheap when the last call left nothing to clear.
pub(crate) fn strip_privileges(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    all: bool,
) -> Result<()> {
    if inode.no_privileges.load(Ordering::Relaxed) {
        return Ok(());
    }
    let (bits, needed) = {
        let st = inode.state.read();
        let bits = if c.privileged && !all {
            st.raw.mode
        } else {
            without_privileges(c, &st)
        };
        let needed = st.raw.mode != bits || xattr::has_capability(vol, inode, &st)?;
        (bits, needed)
    };
    if needed {
        vol.with_handle(ATTR_CREDITS, |h| {
            let mut st = inode.state.write();
            st.raw.mode = bits;
            xattr::remove_capability(vol, h, inode, &mut st)?;
            st.raw.ctime = vol.now();
            vol.store_inode(h, inode, &st)
        })?;
    }
    let is_clear = bits & (mode::S_ISUID | mode::S_ISGID) == 0;
    inode.no_privileges.store(is_clear, Ordering::Relaxed);
    Ok(())
}

/// Notes a read, if the mount and the inode want that (`touch_atime`). Ignores errors.
pub(crate) fn touch_atime(vol: &Scope<'_>, inode: &Inode) {
    let now = {
        let st = inode.state.read();
        let off = vol.opts.atime == Atime::Never
            || st.is_dir() && !vol.opts.diratime
            || st.raw.flags.contains(InodeFlags::NOATIME)
            || st.gone;
        if off || vol.is_read_only() {
            return;
        }
        let now = vol.now();
        if !wants_atime(vol.opts.atime, &st, now) {
            return;
        }
        now
    };
    let _ = set_atime(vol, inode, now);
}

fn set_atime(vol: &Scope<'_>, inode: &Inode, now: Time) -> Result<()> {
    vol.with_handle(1, |h| {
        let mut st = inode.state.write();
        if st.gone {
            return Ok(());
        }
        st.raw.atime = now;
        vol.store_times(h, inode, &st)
    })
}

/// Whether reading now changes `atime`: always, or with `relatime` when it is not newer than the
/// last change, or a day old.
fn wants_atime(rule: Atime, st: &InodeState, now: Time) -> bool {
    const DAY_S: i64 = 24 * 60 * 60;
    let t = st.raw.atime;
    match rule {
        Atime::Never => false,
        Atime::Strict => t != now,
        Atime::Relative => t <= st.raw.mtime || t <= st.raw.ctime || now.sec - t.sec >= DAY_S,
    }
}

/// Returns the flags that lsattr shows.
pub(crate) fn get_flags(inode: &Inode) -> Result<InodeFlags> {
    let st = inode.state.read();
    st.check_live()?;
    Ok(st.raw.flags & USER_VISIBLE)
}

/// Sets the flags that chattr may change; others must be as they are (`ext4_ioctl_setflags`).
///
/// # Errors
/// `NotPermitted` for somebody else's file, and for the immutable, append-only and journal-data
/// flags without privilege; `NotSupported` for a change of any other flag.
pub(crate) fn set_flags(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    flags: InodeFlags,
) -> Result<()> {
    let _guard = inode.lock.write();
    vol.check_writable()?;
    let (old, file_mode) = {
        let st = inode.state.read();
        st.check_live()?;
        if !c.privileged && c.uid != st.raw.uid {
            return Err(Error::NotPermitted);
        }
        (st.raw.flags, st.raw.mode)
    };
    check_flags(vol, c, file_mode, old, flags)?;
    vol.with_handle(1, |h| {
        let mut st = inode.state.write();
        st.raw.flags = (old - USER_MODIFIABLE) | (flags & USER_MODIFIABLE);
        st.raw.ctime = vol.now();
        vol.store_inode(h, inode, &st)
    })?;
    atomic::flags_changed(vol, inode)
}

/// Fails unless the caller may give a file with the flags `old` those of `flags`
/// (`ext4_fileattr_set`). Flags that lsattr shows and chattr cannot change are ignored: programs
/// change one bit of what lsattr showed them.
fn check_flags(
    vol: &Volume,
    c: &Caller,
    file_mode: u16,
    old: InodeFlags,
    flags: InodeFlags,
) -> Result<()> {
    let wanted = flags & (USER_MODIFIABLE | NOT_HERE);
    let possible = match file_mode & mode::S_IFMT {
        mode::S_IFDIR => wanted,
        mode::S_IFREG => wanted - OF_DIRECTORIES,
        _ => wanted & (OF_OTHERS | old),
    };
    if !(flags - USER_VISIBLE).is_empty() || possible != wanted {
        return Err(Error::NotSupported);
    }
    let changed = (old ^ flags) & (USER_MODIFIABLE | NOT_HERE);
    let privileged_only = InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::JOURNAL_DATA;
    if changed.intersects(privileged_only) && !c.privileged {
        return Err(Error::NotPermitted);
    }
    if !(old & flags & InodeFlags::IMMUTABLE).is_empty() && !changed.is_empty() {
        return Err(Error::NotPermitted);
    }
    // Without the feature there are no projects to inherit.
    let has_projects = vol
        .sb
        .read()
        .feature_ro_compat
        .contains(FeatureRoCompat::PROJECT);
    let no_project = InodeFlags::PROJINHERIT & flags & changed;
    if changed.intersects(NOT_HERE) || !has_projects && !no_project.is_empty() {
        return Err(Error::NotSupported);
    }
    Ok(())
}

/// Sets the inode's generation (EXT4_IOC_SETVERSION). Refused with `metadata_csum`, where the
/// generation seeds checksums.
pub(crate) fn set_generation(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    generation: u32,
) -> Result<()> {
    let _guard = inode.lock.write();
    vol.check_writable()?;
    if vol.geo.metadata_csum {
        return Err(Error::NotSupported);
    }
    vol.with_handle(1, |h| {
        let mut st = inode.state.write();
        st.check_live()?;
        if !c.privileged && c.uid != st.raw.uid {
            return Err(Error::NotPermitted);
        }
        st.raw.generation = generation;
        st.raw.ctime = vol.now();
        vol.store_inode(h, inode, &st)
    })
}
