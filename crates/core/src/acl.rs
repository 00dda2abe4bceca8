//! POSIX access control lists: storing them, what they permit, what new files inherit.
//!
//! A file's mode and its access list always agree: setting one changes the other. A list that says
//! no more than nine permission bits is kept as the mode alone. The rules are those of the kernel's
//! `fs/posix_acl.c`.

use std::sync::atomic::Ordering;

use stetfs_format::Place;
use stetfs_format::acl::{Acl, AclEntry, Tag};
use stetfs_format::width::low8;
use stetfs_format::xattr::{INDEX_POSIX_ACL_ACCESS, INDEX_POSIX_ACL_DEFAULT};
use stetfs_journal::Handle;

use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::types::{Access, Caller, SetXattr, mode};
use crate::volume::Volume;
use crate::xattr::store;

/// Which list of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The list that says who may use the file.
    Access,
    /// The list that new files in the directory get.
    Default,
}

impl Kind {
    /// Returns the kind for the index of an attribute; `None` if it holds no list.
    pub(crate) fn of_index(index: u8) -> Option<Self> {
        match index {
            INDEX_POSIX_ACL_ACCESS => Some(Self::Access),
            INDEX_POSIX_ACL_DEFAULT => Some(Self::Default),
            _ => None,
        }
    }

    /// Returns the index of the attribute.
    pub(crate) fn index(self) -> u8 {
        match self {
            Self::Access => INDEX_POSIX_ACL_ACCESS,
            Self::Default => INDEX_POSIX_ACL_DEFAULT,
        }
    }

    /// Returns the bit in `Inode::acls`.
    fn bit(self) -> u8 {
        match self {
            Self::Access => 2,
            Self::Default => 4,
        }
    }
}

/// The bit of `Inode::acls` without which the other bits mean nothing.
const KNOWN: u8 = 1;

/// Returns the list of a file, if it has one.
pub(crate) fn load(
    vol: &Volume,
    inode: &Inode,
    st: &InodeState,
    kind: Kind,
) -> Result<Option<Acl>> {
    let known = inode.acls.load(Ordering::Relaxed);
    if known & KNOWN != 0 && known & kind.bit() == 0 {
        return Ok(None);
    }
    let mut found = KNOWN;
    for kind in [Kind::Access, Kind::Default] {
        if known & KNOWN == 0 && store::find(vol, inode, st, kind.index(), b"")?.is_some() {
            found |= kind.bit();
        }
    }
    if known & KNOWN == 0 {
        inode.acls.store(found, Ordering::Relaxed);
    }
    let value = store::find(vol, inode, st, kind.index(), b"")?;
    decode(inode, value.as_deref())
}

/// Decodes the list in the value of a file's attribute, if there is one.
pub(crate) fn decode(inode: &Inode, value: Option<&[u8]>) -> Result<Option<Acl>> {
    match value {
        None => Ok(None),
        Some(value) => Ok(Acl::decode_disk(value).map_err(|e| e.at(Place::Inode(inode.ino)))?),
    }
}

/// Whether the file's access list grants `want` to a caller who is not the owner. `None` when the
/// mode decides: there is no list, or the group bits are all off, as in the kernel.
pub(crate) fn permits(
    vol: &Volume,
    c: &Caller,
    inode: &Inode,
    want: Access,
) -> Result<Option<bool>> {
    if !vol.opts.acl {
        return Ok(None);
    }
    let st = inode.state.read();
    if st.raw.mode & 0o070 == 0 || st.is_lnk() {
        return Ok(None);
    }
    Ok(load(vol, inode, &st, Kind::Access)?
        .map(|acl| evaluate(&acl, c, st.raw.gid, low8(want.bits().into()))))
}

/// Does `posix_acl_permission` for a caller who is not the owner. An entry for the user decides.
/// Else one entry for any of its groups must grant everything wanted. If no group matched, the
/// entry for others decides.
fn evaluate(acl: &Acl, c: &Caller, file_gid: u32, want: u8) -> bool {
    let perm_of = |tag| acl.entries().iter().find(|e| e.tag == tag).map(|e| e.perm);
    let mask = perm_of(Tag::Mask).unwrap_or(7);
    if let Some(perm) = perm_of(Tag::User(c.uid)) {
        return perm & mask & want == want;
    }
    let mut in_a_group = false;
    for entry in acl.entries() {
        let matches = match entry.tag {
            Tag::GroupObj => c.in_group(file_gid),
            Tag::Group(gid) => c.in_group(gid),
            _ => false,
        };
        in_a_group |= matches;
        if matches && entry.perm & want == want {
            return mask & want == want;
        }
    }
    !in_a_group && perm_of(Tag::Other).unwrap_or(0) & want == want
}

/// A change of a file's list.
pub(crate) struct New {
    /// The list to keep; `None` where the mode says everything.
    kept: Option<Acl>,
    /// The new low nine bits of the mode; `None` keeps the mode.
    bits: Option<u16>,
}

impl New {
    /// Returns the change that setxattr asks for, if the caller may make it.
    ///
    /// # Errors
    /// `NotPermitted` for somebody else's file, `Access` for a default list of anything but a
    /// directory, `Invalid` for a value that is no list, `NotSupported` for symbolic links.
    pub(crate) fn checked(
        c: &Caller,
        st: &InodeState,
        kind: Kind,
        value: Option<&[u8]>,
    ) -> Result<Self> {
        if st.is_lnk() {
            return Err(Error::NotSupported);
        }
        if c.checks && !c.privileged && c.uid != st.raw.uid {
            return Err(Error::NotPermitted);
        }
        let kept = match value {
            None | Some([]) => None,
            Some(value) => Acl::decode_xattr(value).map_err(|_| Error::Invalid)?,
        };
        match (kind, &kept) {
            (Kind::Default, Some(_)) if !st.is_dir() => Err(Error::Access),
            (Kind::Access, Some(acl)) => {
                let (bits, equivalent) = as_mode(acl);
                Ok(Self {
                    kept: kept.filter(|_| !equivalent),
                    bits: Some(bits),
                })
            }
            _ => Ok(Self { kept, bits: None }),
        }
    }

    /// Returns the list as the volume keeps it.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        self.kept.as_ref().map(Acl::encode_disk)
    }
}

/// Sets or removes a list, whose value is as setxattr gives it; returns whether that changed
/// anything. The caller stores the inode.
///
/// # Errors
/// Those of [`New::checked`], and of a change.
pub(crate) fn set(
    vol: &Volume,
    c: &Caller,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    kind: Kind,
    value: Option<&[u8]>,
) -> Result<bool> {
    let New { kept, bits } = New::checked(c, st, kind, value)?;
    let rooted = vol.alloc.may_use_root_blocks(c);
    let changed = store(vol, h, inode, st, kind, kept.as_ref(), rooted)?;
    let Some(bits) = bits else {
        return Ok(changed);
    };
    let before = st.raw.mode;
    st.raw.mode = st.raw.mode & !0o777 | bits;
    if !c.privileged && !c.in_group(st.raw.gid) {
        st.raw.mode &= !mode::S_ISGID;
    }
    Ok(changed || st.raw.mode != before)
}

/// Brings the access list in line with a mode that was just set (`posix_acl_chmod`). The caller
/// stores the inode.
pub(crate) fn chmod(vol: &Volume, h: &Handle, inode: &Inode, st: &mut InodeState) -> Result<()> {
    if !vol.opts.acl || st.is_lnk() {
        return Ok(());
    }
    let Some(acl) = load(vol, inode, st, Kind::Access)? else {
        return Ok(());
    };
    let acl = with_mode(&acl, st.raw.mode)?;
    store(vol, h, inode, st, Kind::Access, Some(&acl), true).map(drop)
}

/// Returns the list, with the permissions of `bits` in place of its own.
pub(crate) fn with_mode(acl: &Acl, bits: u16) -> Result<Acl> {
    let has_mask = acl.entries().iter().any(|e| e.tag == Tag::Mask);
    let changed = acl.entries().iter().map(|&entry| AclEntry {
        perm: match entry.tag {
            Tag::UserObj => triple(bits, 6),
            Tag::Mask => triple(bits, 3),
            Tag::GroupObj if !has_mask => triple(bits, 3),
            Tag::Other => triple(bits, 0),
            _ => entry.perm,
        },
        ..entry
    });
    Ok(Acl::new(changed)?)
}

/// Returns the permission bits of a list, and whether they say all that the list says
/// (`posix_acl_equiv_mode`).
fn as_mode(acl: &Acl) -> (u16, bool) {
    let (mut bits, mut equivalent) = (0, true);
    for entry in acl.entries() {
        let perm = u16::from(entry.perm);
        match entry.tag {
            Tag::UserObj => bits |= perm << 6,
            Tag::GroupObj => bits |= perm << 3,
            Tag::Other => bits |= perm,
            // The mask comes after the owning group's entry.
            Tag::Mask => {
                bits = bits & !0o070 | perm << 3;
                equivalent = false;
            }
            Tag::User(_) | Tag::Group(_) => equivalent = false,
        }
    }
    (bits, equivalent)
}

fn store(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    kind: Kind,
    acl: Option<&Acl>,
    privileged: bool,
) -> Result<bool> {
    let value = acl.map(Acl::encode_disk);
    let change = store::Change {
        index: kind.index(),
        name: b"",
        value: value.as_deref(),
        how: SetXattr::Any,
        privileged,
    };
    store::change(vol, h, inode, st, change)
}

/// What a new file gets from its directory.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Its mode, with the umask or the default list applied.
    pub(crate) mode: u16,
    access: Option<Acl>,
    default: Option<Acl>,
}

impl Inherited {
    /// Whether a new file gets nothing but the mode.
    pub(crate) fn is_none(&self) -> bool {
        self.access.is_none() && self.default.is_none()
    }

    /// Returns the credits for storing it.
    pub(crate) fn credits(&self) -> u32 {
        if self.is_none() { 0 } else { store::CREDITS }
    }
}

/// Returns what a new file with this mode gets from `dir` (`posix_acl_create`).
pub(crate) fn inherit(vol: &Volume, c: &Caller, dir: &Inode, file_mode: u16) -> Result<Inherited> {
    let plain = |mode| Inherited {
        mode,
        access: None,
        default: None,
    };
    if mode::is_lnk(file_mode) {
        return Ok(plain(file_mode));
    }
    let masked = file_mode & !(c.umask & 0o777);
    if !vol.opts.acl {
        return Ok(plain(masked));
    }
    let Some(default) = load(vol, dir, &dir.state.read(), Kind::Default)? else {
        return Ok(plain(masked));
    };
    let (access, mode) = masked_by(&default, file_mode)?;
    let (_, equivalent) = as_mode(&access);
    Ok(Inherited {
        mode,
        access: (!equivalent).then_some(access),
        default: mode::is_dir(file_mode).then_some(default),
    })
}

/// Returns the permissions that a mode grants to the class whose bits begin at `shift`.
fn triple(mode: u16, shift: u32) -> u8 {
    low8((mode >> shift & 7).into())
}

/// Returns the list and the mode after each took away what the other does not grant
/// (`posix_acl_create_masq`).
fn masked_by(default: &Acl, file_mode: u16) -> Result<(Acl, u16)> {
    let has_mask = default.entries().iter().any(|e| e.tag == Tag::Mask);
    let mut bits = file_mode;
    let entries: Vec<AclEntry> = default
        .entries()
        .iter()
        .map(|&entry| {
            let shift = match entry.tag {
                Tag::UserObj => 6,
                Tag::Mask => 3,
                Tag::GroupObj if !has_mask => 3,
                Tag::Other => 0,
                _ => return entry,
            };
            let perm = entry.perm & triple(file_mode, shift);
            bits = bits & !(7 << shift) | u16::from(perm) << shift;
            AclEntry { perm, ..entry }
        })
        .collect();
    Ok((Acl::new(entries)?, bits))
}

/// Stores what a new file inherited. The caller stores the inode.
pub(crate) fn store_inherited(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    inherited: &Inherited,
) -> Result<()> {
    if let Some(default) = &inherited.default {
        store(vol, h, inode, st, Kind::Default, Some(default), true)?;
    }
    if let Some(access) = &inherited.access {
        store(vol, h, inode, st, Kind::Access, Some(access), true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u8)]) -> Acl {
        Acl::new(entries.iter().map(|&(tag, perm)| AclEntry { tag, perm })).unwrap()
    }

    #[test]
    fn no_union_of_groups() {
        let list = acl(&[
            (Tag::UserObj, 7),
            (Tag::User(5), 4),
            (Tag::GroupObj, 4),
            (Tag::Group(20), 2),
            (Tag::Mask, 6),
            (Tag::Other, 1),
        ]);
        let mut c = Caller::user(9, 10);
        c.groups.push(20);
        // Group 10 owns the file. Each group grants one of the two permissions, none both.
        assert!(evaluate(&list, &c, 10, 4));
        assert!(evaluate(&list, &c, 10, 2));
        assert!(!evaluate(&list, &c, 10, 6));
        // When a group matches, the entry for others does not count.
        assert!(!evaluate(&list, &c, 10, 1));
        assert!(evaluate(&list, &Caller::user(9, 99), 10, 1));
        // An entry for the user decides alone.
        assert!(!evaluate(&list, &Caller::user(5, 20), 10, 2));
    }

    #[test]
    fn a_mask_stands_for_the_group() {
        let list = acl(&[
            (Tag::UserObj, 7),
            (Tag::User(5), 7),
            (Tag::GroupObj, 5),
            (Tag::Mask, 6),
            (Tag::Other, 0),
        ]);
        assert_eq!(as_mode(&list), (0o760, false));
        let (masked, bits) = masked_by(&list, 0o100644).unwrap();
        assert_eq!(bits, 0o100640);
        assert_eq!(as_mode(&masked).0, 0o640);
        let minimal = acl(&[(Tag::UserObj, 6), (Tag::GroupObj, 4), (Tag::Other, 4)]);
        assert_eq!(as_mode(&minimal), (0o644, true));
    }
}
