//! An inode's attributes before and after a call. A call may change more than it names. An ACL
//! changes the mode, and a mode the ACL. A write or a new owner clears set-user-ID, set-group-ID
//! and file capabilities. Most calls change times.

use std::collections::BTreeMap;

use stetfs::{Attr, Fs, Result};
use stetfs_format::InodeNo;

use crate::call::Attribute;
use crate::tree;

/// The attributes of an inode at one moment.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) attr: Attr,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Seen {
    pub(super) fn of(fs: &Fs, ino: InodeNo) -> Result<Self> {
        Ok(Self {
            attr: fs.getattr(ino)?,
            xattrs: tree::xattrs(fs, ino)?,
        })
    }

    /// Removed extended attributes. A call removes file capabilities before it changes anything
    /// else.
    pub(super) fn gone(&self, after: &Self) -> Vec<Attribute> {
        let gone = self.xattrs.keys();
        let gone = gone.filter(|name| !after.xattrs.contains_key(*name));
        gone.map(|name| Attribute::Xattr(name.clone(), None))
            .collect()
    }

    /// Changes of owner and mode, which lie in the inode and change together.
    pub(super) fn inode(&self, after: &Self) -> Vec<Attribute> {
        let (a, b) = (&self.attr, &after.attr);
        let owner = ((a.uid, a.gid) != (b.uid, b.gid)).then_some(Attribute::Owner(b.uid, b.gid));
        // The mode follows the owner, which clears some of its bits.
        let mode = (a.mode != b.mode).then_some(Attribute::Mode(b.mode));
        owner.into_iter().chain(mode).collect()
    }

    /// Added or changed extended attributes. An ACL changes after the mode.
    pub(super) fn given(&self, after: &Self) -> Vec<Attribute> {
        let new = after.xattrs.iter();
        let new = new.filter(|(name, value)| self.xattrs.get(*name) != Some(value));
        new.map(|(name, value)| Attribute::Xattr(name.clone(), Some(value.clone())))
            .collect()
    }

    /// All changes but the times.
    pub(super) fn all(&self, after: &Self) -> Vec<Attribute> {
        let parts = [self.gone(after), self.given(after), self.inode(after)];
        parts.concat()
    }

    /// The new modification time, if it changed.
    pub(super) fn modified(&self, after: &Self) -> Option<Attribute> {
        let time = after.attr.mtime;
        (self.attr.mtime != time).then_some(Attribute::Modified(time.sec, time.nsec))
    }
}
