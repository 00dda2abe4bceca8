//! A change of names or attributes, as a value. [`Fs::change`](crate::Fs::change) makes it and
//! [`Group::change`](crate::Group::change) stages it. Code that records, repeats, redirects or
//! refuses changes takes these values.
//!
//! Changes of data are not among them: they return how much was done, and where.

use stetfs_format::InodeNo;
use stetfs_format::inode::InodeFlags;

use crate::types::{RenameFlags, SetAttr, SetXattr};

/// A name: the directory, and the name in it.
pub type Name<'a> = (InodeNo, &'a [u8]);

/// One change.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Make a new file or directory with this name.
    Make(Name<'a>, New<'a>),
    /// Give an inode one more name, or its first.
    Link(InodeNo, Name<'a>),
    /// Remove a name of anything but a directory.
    Unlink(Name<'a>),
    /// Remove an empty directory.
    Rmdir(Name<'a>),
    /// Rename: the first name becomes the second.
    Rename(Name<'a>, Name<'a>, RenameFlags),
    /// Set attributes, the size among them.
    SetAttr(InodeNo, &'a SetAttr),
    /// Set the flags that chattr may change.
    SetFlags(InodeNo, InodeFlags),
    /// Set the inode's generation.
    SetGeneration(InodeNo, u32),
    /// Set an extended attribute by its full name (`user.x`). POSIX ACLs
    /// (`system.posix_acl_access`, `..._default`) change the mode too.
    SetXattr(InodeNo, &'a [u8], &'a [u8], SetXattr),
    /// Remove an extended attribute.
    RemoveXattr(InodeNo, &'a [u8]),
}

/// What [`Change::Make`] makes, with its permissions.
#[derive(Debug, Clone, Copy)]
pub enum New<'a> {
    /// A regular file.
    File(u16),
    /// A directory.
    Directory(u16),
    /// A regular file, pipe, socket or device file, by the type in the mode; then the major and
    /// minor number.
    Node(u16, (u32, u32)),
    /// A symbolic link to this path.
    Symlink(&'a [u8]),
}

impl Change<'_> {
    /// Returns the same change with each inode replaced by what `ino` returns.
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

    /// Returns what the change does, in words that follow "to".
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
