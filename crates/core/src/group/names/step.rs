//! One step of a group, and what all steps make of a file's extended attributes.

use std::collections::BTreeSet;

use stetfs_format::InodeNo;

use crate::types::{RenameFlags, SetAttr};
use crate::xattr::view::View;

/// A change, staged.
pub(super) enum Step {
    /// A new or existing inode (the first) gets a name in a directory (the second).
    Name(InodeNo, InodeNo, Vec<u8>),
    Remove(InodeNo, Vec<u8>),
    Rename((InodeNo, Vec<u8>), (InodeNo, Vec<u8>), RenameFlags),
    Set(InodeNo, SetAttr),
    /// An attribute gets this value, or is removed.
    Xattr(InodeNo, Name, Option<Vec<u8>>),
}

impl Step {
    /// True when the step may change extended attributes.
    pub(super) fn changes_xattrs(&self) -> bool {
        match self {
            Self::Xattr(..) => true,
            Self::Set(_, set) => set.mode.is_some() || set.uid.is_some() || set.gid.is_some(),
            Self::Name(..) | Self::Remove(..) | Self::Rename(..) => false,
        }
    }
}

/// The index of a name's prefix, and the rest of the name.
pub(super) type Name = (u8, Vec<u8>);

/// What the group does to a file's extended attributes.
#[derive(Clone)]
pub(super) struct Xattrs {
    /// What the file had when the group first changed something.
    pub(super) base: View,
    pub(super) now: View,
    /// The attributes that steps name.
    pub(super) named: BTreeSet<Name>,
}
