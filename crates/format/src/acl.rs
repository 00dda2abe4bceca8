//! POSIX access control lists: ext4's form in attributes 2 and 3, and the form in
//! which getxattr and setxattr carry `system.posix_acl_access` and `..._default`.
//!
//! Source: kernel `fs/ext4/acl.h` (version 1, entries of 4 or 8 bytes) and
//! `include/uapi/linux/posix_acl_xattr.h` (version 2, entries of 8 bytes).

use smallvec::SmallVec;

use crate::error::Corrupt;
use crate::layout::{Le16, Le32, layout};

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
const HEADER_SIZE: usize = 4;
const SHORT_SIZE: usize = 4;
const FULL_SIZE: usize = 8;
/// The id of entries that need none.
const UNDEFINED_ID: u32 = u32::MAX;

layout! {
    /// The header, in both forms.
    pub ACL_HEADER_LAYOUT = "ACL header", HEADER_SIZE, {
        0x0 Le32, VERSION = "a_version";
    }
}

layout! {
    /// An entry. On disk, an entry without an id ends before that field.
    pub ACL_ENTRY_LAYOUT = "ACL entry", FULL_SIZE, {
        0x0 Le16, TAG = "e_tag";
        0x2 Le16, PERM = "e_perm";
        0x4 Le32, ID = "e_id";
    }
}

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The file's owner.
    UserObj,
    /// A user.
    User(u32),
    /// The file's group.
    GroupObj,
    /// A group.
    Group(u32),
    /// Limits users, groups and the file's group.
    Mask,
    /// Everyone else.
    Other,
}

impl Tag {
    const fn code(self) -> u16 {
        match self {
            Self::UserObj => 0x01,
            Self::User(_) => 0x02,
            Self::GroupObj => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    const fn id(self) -> Option<u32> {
        match self {
            Self::User(id) | Self::Group(id) => Some(id),
            _ => None,
        }
    }

    fn has_id(code: u16) -> bool {
        code == 0x02 || code == 0x08
    }

    fn of_code(code: u16, id: u32) -> Option<Self> {
        Some(match code {
            0x01 => Self::UserObj,
            0x02 => Self::User(id),
            0x04 => Self::GroupObj,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }
}

/// One entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: Tag,
    /// Permissions: 4 read, 2 write, 1 execute.
    pub perm: u8,
}

/// An access control list that POSIX allows: see [`Acl::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: SmallVec<[AclEntry; 8]>,
}

impl Acl {
    /// Makes a list, which is valid if and only if (the kernel's `posix_acl_valid`): 1. permissions
    /// are below 8; 2. entries come in the order owner, users, group, groups, mask, others; 3.
    /// owner, group and others are there once; 4. a mask is there once, if users or groups are, and
    /// at most once otherwise. Users and groups need no order among themselves.
    ///
    /// # Errors
    /// [`Corrupt::AclPermissions`], [`Corrupt::AclOrder`], [`Corrupt::AclIncomplete`].
    pub fn new(entries: impl IntoIterator<Item = AclEntry>) -> Result<Self, Corrupt> {
        let entries: SmallVec<[AclEntry; 8]> = entries.into_iter().collect();
        let mut seen = 0;
        for (index, entry) in entries.iter().enumerate() {
            if entry.perm > 7 {
                return Err(Corrupt::AclPermissions {
                    index,
                    perm: entry.perm.into(),
                });
            }
            let code = entry.tag.code();
            // Tag codes are single bits that rise in the required order.
            let repeats = seen & code != 0 && entry.tag.id().is_none();
            if code < highest_bit(seen) || repeats {
                return Err(Corrupt::AclOrder { index });
            }
            seen |= code;
        }
        let complete = seen & 0x25 == 0x25 && (seen & 0x0a == 0 || seen & 0x10 != 0);
        if !complete {
            return Err(Corrupt::AclIncomplete);
        }
        Ok(Self { entries })
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Decodes ext4's form. `None` for an empty list, which means that there is none.
    ///
    /// # Errors
    /// [`Corrupt::AclVersion`], [`Corrupt::AclSize`], [`Corrupt::AclTag`], and those of
    /// [`new`](Self::new).
    pub fn decode_disk(value: &[u8]) -> Result<Option<Self>, Corrupt> {
        let mut rest = entries_behind_header(value, DISK_VERSION)?;
        let mut entries = SmallVec::<[AclEntry; 8]>::new();
        while !rest.is_empty() {
            let size = match rest.len() {
                FULL_SIZE.. if Tag::has_id(TAG.get(rest)) => FULL_SIZE,
                SHORT_SIZE.. if !Tag::has_id(TAG.get(rest)) => SHORT_SIZE,
                _ => return Err(Corrupt::AclSize(value.len())),
            };
            let (entry, behind) = rest.split_at(size);
            let id = if size == FULL_SIZE {
                ID.get(entry)
            } else {
                UNDEFINED_ID
            };
            entries.push(decode_entry(entry, id, entries.len())?);
            rest = behind;
        }
        if entries.is_empty() {
            Ok(None)
        } else {
            Self::new(entries).map(Some)
        }
    }

    /// Encodes ext4's form.
    pub fn encode_disk(&self) -> Vec<u8> {
        let mut value = header(DISK_VERSION);
        for entry in &self.entries {
            push_entry(&mut value, entry);
            if let Some(id) = entry.tag.id() {
                value.extend_from_slice(&id.to_le_bytes());
            }
        }
        value
    }

    /// Decodes the form that setxattr passes. `None` for an empty list, which removes the
    /// attribute.
    ///
    /// # Errors
    /// As [`decode_disk`](Self::decode_disk).
    pub fn decode_xattr(value: &[u8]) -> Result<Option<Self>, Corrupt> {
        let rest = entries_behind_header(value, XATTR_VERSION)?;
        if rest.is_empty() {
            return Ok(None);
        }
        if !rest.len().is_multiple_of(FULL_SIZE) {
            return Err(Corrupt::AclSize(value.len()));
        }
        let entries = rest
            .chunks_exact(FULL_SIZE)
            .enumerate()
            .map(|(index, entry)| decode_entry(entry, ID.get(entry), index))
            .collect::<Result<SmallVec<[_; 8]>, _>>()?;
        Self::new(entries).map(Some)
    }

    /// Encodes the form that getxattr returns.
    pub fn encode_xattr(&self) -> Vec<u8> {
        let mut value = header(XATTR_VERSION);
        for entry in &self.entries {
            push_entry(&mut value, entry);
            value.extend_from_slice(&entry.tag.id().unwrap_or(UNDEFINED_ID).to_le_bytes());
        }
        value
    }
}

fn highest_bit(bits: u16) -> u16 {
    if bits == 0 { 0 } else { 1 << bits.ilog2() }
}

fn entries_behind_header(value: &[u8], version: u32) -> Result<&[u8], Corrupt> {
    if value.len() < HEADER_SIZE {
        return Err(Corrupt::AclSize(value.len()));
    }
    if VERSION.get(value) != version {
        return Err(Corrupt::AclVersion(VERSION.get(value)));
    }
    Ok(&value[HEADER_SIZE..])
}

fn decode_entry(raw: &[u8], id: u32, index: usize) -> Result<AclEntry, Corrupt> {
    let code = TAG.get(raw);
    let tag = Tag::of_code(code, id).ok_or(Corrupt::AclTag { index, tag: code })?;
    let perm = PERM.get(raw);
    let perm = u8::try_from(perm).map_err(|_| Corrupt::AclPermissions { index, perm })?;
    Ok(AclEntry { tag, perm })
}

fn header(version: u32) -> Vec<u8> {
    version.to_le_bytes().to_vec()
}

fn push_entry(value: &mut Vec<u8>, entry: &AclEntry) {
    value.extend_from_slice(&entry.tag.code().to_le_bytes());
    value.extend_from_slice(&u16::from(entry.perm).to_le_bytes());
}
