//! One step of a group, and what becomes of a file's extended attributes by all of them.

use std::collections::BTreeSet;

use stetfs_format::InodeNo;

use crate::types::{RenameFlags, SetAttr};
use crate::xattr::view::View;

/// A change, staged.
pub(super) enum Step {
    /// Something that the group made, or an existing file, gets this name.
    Name(InodeNo, InodeNo, Vec<u8>),
    Remove(InodeNo, Vec<u8>),
    Rename((InodeNo, Vec<u8>), (InodeNo, Vec<u8>), RenameFlags),
    Set(InodeNo, SetAttr),
    /// An attribute gets this value, or goes.
    Xattr(InodeNo, Name, Option<Vec<u8>>),
}

impl Step {
    /// Whether it may change extended attributes.
    pub(super) fn changes_xattrs(&self) -> bool {
        match self {
            Self::Xattr(..) => true,
            Self::Set(_, set) => set.mode.is_some() || set.uid.is_some() || set.gid.is_some(),
            Self::Name(..) | Self::Remove(..) | Self::Rename(..) => false,
        }
    }
}

/// The kind of an attribute's name, and what follows its prefix.
pub(super) type Name = (u8, Vec<u8>);

/// What the group does to the extended attributes of a file.
#[derive(Clone)]
pub(super) struct Xattrs {
    /// What the file had when the group first changed something.
    pub(super) base: View,
    pub(super) now: View,
    /// The attributes that steps name.
    pub(super) named: BTreeSet<Name>,
}
