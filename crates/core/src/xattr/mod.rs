//! Extended attributes: names, who may see and change them, and the four calls.
//!
//! `store` decides where an attribute lies: in the inode, else in a block. `view` tries changes out
//! in memory. `shared` lets inodes with equal attributes have one block. POSIX ACLs pass through
//! here by name; `acl.rs` handles them, because they change the mode too.

pub(crate) mod shared;
pub(crate) mod store;
pub(crate) mod view;

use std::sync::atomic::Ordering;

use stetfs_format::inode::InodeFlags;
use stetfs_format::xattr::{
    INDEX_POSIX_ACL_ACCESS, INDEX_POSIX_ACL_DEFAULT, INDEX_SECURITY, INDEX_SYSTEM, INDEX_TRUSTED,
    INDEX_USER, MAX_NAME_LEN, Xattr, prefix, split_name,
};
use stetfs_journal::Handle;

use crate::acl;
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::perm;
use crate::scope::Scope;
use crate::types::{Access, Caller, SetXattr, mode};
use crate::volume::Volume;

use store::{CREDITS, Change, VALUE_MAX, change, find};
use view::View;

/// The index and suffix of `security.capability`.
pub(crate) const CAPABILITY: (u8, &[u8]) = (INDEX_SECURITY, b"capability");

/// Returns the value of `name`; if there is a `view`, its value there.
///
/// # Errors
/// `NoData`, `NotSupported` for an unknown namespace, `Range` for a name that is too long,
/// `Invalid` for one with a NUL, `Access`.
pub(crate) fn get(
    vol: &Volume,
    c: &Caller,
    inode: &Inode,
    name: &[u8],
    view: Option<&View>,
) -> Result<Vec<u8>> {
    let (index, suffix) = parse_name(vol, name)?;
    check(vol, c, inode, (index, suffix), Access::READ)?;
    let st = inode.state.read();
    st.check_live()?;
    if let Some(kind) = acl::Kind::of_index(index) {
        let acl = match view {
            None => acl::load(vol, inode, &st, kind)?,
            Some(view) => acl::decode(inode, view.find(index, suffix))?,
        };
        return Ok(acl.ok_or(Error::NoData)?.encode_xattr());
    }
    let value = match view {
        None => find(vol, inode, &st, index, suffix)?,
        Some(view) => view.find(index, suffix).map(<[u8]>::to_vec),
    };
    value.ok_or(Error::NoData)
}

/// Returns the names that the caller may see, each ended by a NUL; if there is a `view`, its names.
pub(crate) fn list(
    vol: &Volume,
    c: &Caller,
    inode: &Inode,
    view: Option<&View>,
) -> Result<Vec<u8>> {
    let st = inode.state.read();
    st.check_live()?;
    let mut names = Vec::new();
    let mut show = |attribute: Xattr<'_>| {
        let hidden = match attribute.index {
            INDEX_USER => !vol.opts.user_xattr,
            INDEX_TRUSTED => !c.privileged,
            INDEX_SYSTEM => true,
            INDEX_POSIX_ACL_ACCESS | INDEX_POSIX_ACL_DEFAULT => !vol.opts.acl,
            _ => false,
        };
        if let (false, Some(prefix)) = (hidden, prefix(attribute.index)) {
            names.extend_from_slice(prefix);
            names.extend_from_slice(attribute.name);
            names.push(0);
        }
    };
    match view {
        None => store::each(vol, inode, &st, show)?,
        Some(view) => view.iter().for_each(&mut show),
    }
    Ok(names)
}

/// Sets `name`.
///
/// # Errors
/// As [`get`]; `Exists`, `NoData` as `how` demands; `ArgTooBig`, `NoSpace`, `NotPermitted`.
pub(crate) fn set(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    modify(vol, c, inode, name, Some(value), how)
}

/// Removes `name`.
///
/// # Errors
/// As [`set`].
pub(crate) fn remove(vol: &Scope<'_>, c: &Caller, inode: &Inode, name: &[u8]) -> Result<()> {
    modify(vol, c, inode, name, None, SetXattr::Replace)
}

fn modify(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
    how: SetXattr,
) -> Result<()> {
    let _guard = inode.lock.write();
    let name = check_change(vol, c, inode, name, value)?;
    vol.with_space(|| apply(vol, c, inode, name, value, how))
}

/// Returns the index and suffix of an attribute, if the caller may change it to `value`.
///
/// # Errors
/// Those of [`set`], except those of existing attributes and of space.
pub(crate) fn check_change<'n>(
    vol: &Volume,
    c: &Caller,
    inode: &Inode,
    name: &'n [u8],
    value: Option<&[u8]>,
) -> Result<(u8, &'n [u8])> {
    if value.is_some_and(|value| value.len() > VALUE_MAX) {
        return Err(Error::ArgTooBig);
    }
    let name = parse_name(vol, name)?;
    vol.check_writable()?;
    check(vol, c, inode, name, Access::WRITE)?;
    Ok(name)
}

/// Makes a change that [`check_change`] has allowed. The caller holds the inode's lock for writing.
pub(crate) fn apply(
    vol: &Scope<'_>,
    c: &Caller,
    inode: &Inode,
    (index, name): (u8, &[u8]),
    value: Option<&[u8]>,
    how: SetXattr,
) -> Result<()> {
    vol.with_handle(CREDITS, |h| {
        let mut st = inode.state.write();
        st.check_live()?;
        let changed = if let Some(kind) = acl::Kind::of_index(index) {
            acl::set(vol, c, h, inode, &mut st, kind, value)?
        } else {
            change(
                vol,
                h,
                inode,
                &mut st,
                Change {
                    index,
                    name,
                    value,
                    how,
                    privileged: vol.alloc.may_use_root_blocks(c),
                },
            )?
        };
        if !changed {
            return Ok(());
        }
        inode.no_privileges.store(false, Ordering::Relaxed);
        st.raw.ctime = vol.now();
        vol.store_inode(h, inode, &st)
    })
}

/// Splits a full name into index and suffix.
fn parse_name<'n>(vol: &Volume, name: &'n [u8]) -> Result<(u8, &'n [u8])> {
    if name.is_empty() || name.len() > MAX_NAME_LEN {
        return Err(Error::Range);
    }
    if name.contains(&0) {
        return Err(Error::Invalid);
    }
    // A bare prefix is refused after the permissions were checked, as in the kernel.
    let bare = [
        (b"user.".as_slice(), INDEX_USER),
        (b"trusted.", INDEX_TRUSTED),
        (b"security.", INDEX_SECURITY),
    ];
    let bare = bare.into_iter().find(|(prefix, _)| *prefix == name);
    let (index, suffix) = split_name(name)
        .or(bare.map(|(_, index)| (index, b"".as_slice())))
        .ok_or(Error::NotSupported)?;
    let off = match index {
        INDEX_USER => !vol.opts.user_xattr,
        INDEX_POSIX_ACL_ACCESS | INDEX_POSIX_ACL_DEFAULT => !vol.opts.acl,
        INDEX_TRUSTED | INDEX_SECURITY => false,
        _ => true,
    };
    if off {
        Err(Error::NotSupported)
    } else {
        Ok((index, suffix))
    }
}

/// Checks that the caller may do this (the kernel's `xattr_permission`, `cap_inode_setxattr`), and
/// that there is a name behind the prefix.
fn check(
    vol: &Volume,
    c: &Caller,
    inode: &Inode,
    (index, suffix): (u8, &[u8]),
    want: Access,
) -> Result<()> {
    check_permission(vol, c, inode, index, want)?;
    if suffix.is_empty() && acl::Kind::of_index(index).is_none() {
        return Err(Error::Invalid);
    }
    Ok(())
}

fn check_permission(
    vol: &Volume,
    c: &Caller,
    inode: &Inode,
    index: u8,
    want: Access,
) -> Result<()> {
    let writes = want == Access::WRITE;
    let (file_mode, owner) = {
        let st = inode.state.read();
        if writes
            && st
                .raw
                .flags
                .intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
        {
            return Err(Error::NotPermitted);
        }
        (st.raw.mode, st.raw.uid)
    };
    let refused = if writes {
        Error::NotPermitted
    } else {
        Error::NoData
    };
    match index {
        INDEX_TRUSTED if c.checks && !c.privileged => Err(refused),
        INDEX_SECURITY if c.checks && writes && !c.privileged => Err(Error::NotPermitted),
        INDEX_USER => {
            if !mode::is_reg(file_mode) && !mode::is_dir(file_mode) {
                return Err(refused);
            }
            let sticky = mode::is_dir(file_mode) && file_mode & mode::S_ISVTX != 0;
            if writes && sticky && c.checks && !c.privileged && c.uid != owner {
                return Err(Error::NotPermitted);
            }
            perm::permission(vol, c, inode, want)
        }
        _ => Ok(()),
    }
}

/// Whether the file has capabilities. A change of its content takes them away.
pub(crate) fn has_capability(vol: &Volume, inode: &Inode, st: &InodeState) -> Result<bool> {
    let (index, name) = CAPABILITY;
    Ok(find(vol, inode, st, index, name)?.is_some())
}

/// Takes away the file's capabilities, if it has any. The caller stores the inode.
pub(crate) fn remove_capability(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
) -> Result<()> {
    if !has_capability(vol, inode, st)? {
        return Ok(());
    }
    let ((index, name), how) = (CAPABILITY, SetXattr::Replace);
    change(
        vol,
        h,
        inode,
        st,
        Change {
            index,
            name,
            value: None,
            how,
            privileged: true,
        },
    )
    .map(drop)
}
