//! A change of names or attributes, as a value: what [`Fs::change`](crate::Fs::change) makes and
//! [`Group::change`](crate::Group::change) stages. Whoever records, repeats, redirects or refuses
//! changes speaks of them so.
//!
//! Changes of data are no such values. They answer how much was done, and where.

use stetfs_format::InodeNo;
use stetfs_format::inode::InodeFlags;

use crate::types::{RenameFlags, SetAttr, SetXattr};

/// A name in a directory.
pub type Name<'a> = (InodeNo, &'a [u8]);

/// One change.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Something new gets a name.
    Make(Name<'a>, New<'a>),
    /// An inode gets one more name, or its first.
    Link(InodeNo, Name<'a>),
    /// A name goes of something that is no directory.
    Unlink(Name<'a>),
    /// An empty directory goes.
    Rmdir(Name<'a>),
    /// What has the first name gets the second.
    Rename(Name<'a>, Name<'a>, RenameFlags),
    /// Attributes are set, the size among them.
    SetAttr(InodeNo, &'a SetAttr),
    /// The flags that chattr may change are these.
    SetFlags(InodeNo, InodeFlags),
    /// The inode's generation is this.
    SetGeneration(InodeNo, u32),
    /// An extended attribute, by its full name (`user.x`), gets a value. POSIX ACLs
    /// (`system.posix_acl_access`, `..._default`) change the mode with them.
    SetXattr(InodeNo, &'a [u8], &'a [u8], SetXattr),
    /// An extended attribute goes.
    RemoveXattr(InodeNo, &'a [u8]),
}

/// Something new, with its permissions.
#[derive(Debug, Clone, Copy)]
pub enum New<'a> {
    /// A regular file.
    File(u16),
    /// A directory.
    Directory(u16),
    /// A regular file, pipe, socket or device file, by the type in the mode; major and minor.
    Node(u16, (u32, u32)),
    /// A symbolic link to this.
    Symlink(&'a [u8]),
}

impl Change<'_> {
    /// The same change with other inodes.
    ///
    /// # Errors
    /// Those of `ino`.
    pub fn with_inodes<E>(
        self,
        mut ino: impl FnMut(InodeNo) -> std::result::Result<InodeNo, E>,
    ) -> std::result::Result<Self, E> {
        Ok(match self {
            Self::Make((dir, name), new) => Self::Make((ino(dir)?, name), new),
            Self::Link(of, (dir, name)) => Self::Link(ino(of)?, (ino(dir)?, name)),
            Self::Unlink((dir, name)) => Self::Unlink((ino(dir)?, name)),
            Self::Rmdir((dir, name)) => Self::Rmdir((ino(dir)?, name)),
            Self::Rename((dir, name), (new_dir, new_name), flags) => {
                let (from, to) = ((ino(dir)?, name), (ino(new_dir)?, new_name));
                Self::Rename(from, to, flags)
            }
            Self::SetAttr(of, set) => Self::SetAttr(ino(of)?, set),
            Self::SetFlags(of, flags) => Self::SetFlags(ino(of)?, flags),
            Self::SetGeneration(of, generation) => Self::SetGeneration(ino(of)?, generation),
            Self::SetXattr(of, name, value, how) => Self::SetXattr(ino(of)?, name, value, how),
            Self::RemoveXattr(of, name) => Self::RemoveXattr(ino(of)?, name),
        })
    }

    /// What it does, in words that follow "to".
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Make(_, New::File(_)) => "create",
            Self::Make(_, New::Directory(_)) => "mkdir",
            Self::Make(_, New::Node(..)) => "mknod",
            Self::Make(_, New::Symlink(_)) => "symlink",
            Self::Link(..) => "link",
            Self::Unlink(_) => "unlink",
            Self::Rmdir(_) => "rmdir",
            Self::Rename(..) => "rename",
            Self::SetFlags(..) | Self::SetGeneration(..) => "set flags",
            Self::SetAttr(..) | Self::SetXattr(..) | Self::RemoveXattr(..) => "set attributes",
        }
    }
}
