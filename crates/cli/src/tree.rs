//! What a walk or a copy needs of a file tree, so that it can treat a directory of this machine and
//! an unmounted image alike.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use crate::failure::{DAMAGED, Failure, Result};
use crate::shown::shown;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

impl FileKind {
    const TABLE: [(Self, u32, char, &'static str); 7] = [
        (Self::File, 0o100000, '-', "file"),
        (Self::Dir, 0o040000, 'd', "directory"),
        (Self::Symlink, 0o120000, 'l', "symlink"),
        (Self::Fifo, 0o010000, 'p', "fifo"),
        (Self::Socket, 0o140000, 's', "socket"),
        (Self::Char, 0o020000, 'c', "char"),
        (Self::Block, 0o060000, 'b', "block"),
    ];

    #[expect(clippy::as_conversions, reason = "the discriminant is the row")]
    fn row(self) -> (Self, u32, char, &'static str) {
        Self::TABLE[self as usize]
    }

    /// Returns the type for the type bits of a mode (stat(2)).
    pub(crate) fn of_mode(mode: u32) -> Self {
        Self::TABLE
            .iter()
            .find(|row| row.1 == mode & 0o170000)
            .map_or(Self::File, |row| row.0)
    }

    /// Returns the type bits of a mode.
    pub(crate) fn bits(self) -> u32 {
        self.row().1
    }

    /// Returns the letter that `ls -l` shows.
    pub(crate) fn letter(self) -> char {
        self.row().2
    }

    /// Returns the word that JSON uses.
    pub(crate) fn word(self) -> &'static str {
        self.row().3
    }
}

/// A time: seconds since 1970, and nanoseconds.
pub(crate) type Stamp = (i64, u32);

/// The result of `lstat`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) kind: FileKind,
    /// Permission, set-ID and sticky bits.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u64,
    pub(crate) size: u64,
    /// The space that it takes, in units of 512 bytes.
    pub(crate) blocks: u64,
    /// Device and inode: equal for two names of one file.
    pub(crate) id: (u64, u64),
    pub(crate) atime: Stamp,
    pub(crate) mtime: Stamp,
    /// Major and minor number of a device file.
    pub(crate) rdev: (u32, u32),
}

/// A file that is read.
pub(crate) trait Source {
    /// Returns start and end of the next range, at or after `from`, that may hold data. Returns
    /// `None` if only a hole is left.
    fn next_data(&mut self, from: u64) -> Result<Option<(u64, u64)>>;
    /// Reads at `offset`; returns 0 at the end.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize>;
    /// Returns its present length; 0 if it has none (a pipe).
    fn size(&self) -> Result<u64>;
}

/// A tree: an image, or this machine.
pub(crate) trait Tree {
    /// Returns a path as messages show it.
    fn shown(&self, path: &[u8]) -> String;
    /// Returns what is at a path that the user gave; `None` if nothing is. Follows a symbolic link
    /// at the path's end if `follow` is true. Links before it are always followed, because the path
    /// comes from the user and not from the image.
    fn at(&self, path: &[u8], follow: bool) -> Result<Option<Box<dyn Item + '_>>>;
    /// True for an image, which damage or malice may have brought into any state.
    fn is_image(&self) -> bool;
    /// Returns the number of bytes that the files of the tree can hold together.
    fn capacity(&self) -> Result<u64>;
}

/// A file of any kind, held by a handle and not by its path: every call acts on this file, whatever
/// becomes of its names.
///
/// Names are single parts of a path ([`check_part`]) and are looked up only in this directory. Only
/// [`Item::followed`] follows a symbolic link. So nothing in an image leads out of the directory
/// that the user named.
pub(crate) trait Item {
    /// Returns its path as messages show it.
    fn shown(&self) -> String;
    fn meta(&self) -> Result<Meta>;

    /// Returns the names in this directory, without `.` and `..`, sorted.
    fn names(&self) -> Result<Vec<Vec<u8>>>;
    /// Returns the file of this name; `None` if there is none.
    fn child(&self, name: &[u8]) -> Result<Option<Box<dyn Item + '_>>>;
    /// Returns the file of this name; if it is a symbolic link, the file that it leads to. Returns
    /// `None` if there is none.
    fn followed(&self, name: &[u8]) -> Result<Option<Box<dyn Item + '_>>>;
    /// Fails if this directory, found in `parent`, says that it is in another one.
    fn check_parent(&self, parent: &dyn Item) -> Result<()>;
    /// Returns the names that lead here from the item that [`Tree::at`] returned.
    fn way(&self) -> &[Vec<u8>];
    /// Returns its descriptor, if it is on this machine.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Makes an empty file and opens it for writing. The name must be free, as for all calls that
    /// follow.
    fn make_file(&self, name: &[u8], mode: u16) -> Result<Box<dyn Item + '_>>;
    fn make_dir(&self, name: &[u8], mode: u16) -> Result<Box<dyn Item + '_>>;
    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<Box<dyn Item + '_>>;
    fn make_node(
        &self,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        rdev: (u32, u32),
    ) -> Result<Box<dyn Item + '_>>;
    /// Makes a further name for a file of the same tree.
    fn make_link(&self, name: &[u8], existing: &dyn Item) -> Result<()>;
    /// Removes a file that is no directory.
    fn remove_file(&self, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, name: &[u8]) -> Result<()>;

    /// Returns the target of this symbolic link.
    fn read_link(&self) -> Result<Vec<u8>>;
    /// Opens this file for reading.
    fn open(&self) -> Result<Box<dyn Source + '_>>;
    /// Opens this file for writing and truncates it; it stays the same file.
    fn open_to_write(&self) -> Result<Box<dyn Item + '_>>;
    /// Writes all of `data` at `offset` into this file, which `make_file` or `open_to_write`
    /// returned. Offsets only grow; what is left out reads as zeros.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Sets the length of this file, which was written.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Returns the extended attributes, from this machine and from archives in ascending order of
    /// their names: the same content is to make the same bytes.
    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()>;
    /// Removes an attribute; a missing one is no error.
    fn remove_xattr(&self, name: &[u8]) -> Result<()>;
    /// Sets the owner; returns false if the caller may not.
    fn set_owner(&self, uid: u32, gid: u32) -> Result<bool>;
    fn set_mode(&self, mode: u16) -> Result<()>;
    fn set_times(&self, atime: Stamp, mtime: Stamp) -> Result<()>;
}

/// Calls `found` with the file to which the names in `way` lead from `top`.
pub(crate) fn descend(
    top: &dyn Item,
    way: &[Vec<u8>],
    found: &mut dyn FnMut(&dyn Item) -> Result<()>,
) -> Result<()> {
    let Some((name, rest)) = way.split_first() else {
        return found(top);
    };
    match top.child(name)? {
        Some(child) => descend(&*child, rest, found),
        None => Err(Failure::new("it no longer exists")),
    }
}

/// Returns a name in a directory as messages show it.
pub(crate) fn shown_below(dir: &dyn Item, name: &[u8]) -> String {
    match dir.shown() {
        dir if dir == "." => shown(name),
        dir => format!("{}/{}", dir.strip_suffix('/').unwrap_or(&dir), shown(name)),
    }
}

/// Fails unless `name` is one part of a path, which names something in this directory and nothing
/// elsewhere.
pub(crate) fn check_part(name: &[u8]) -> Result<&[u8]> {
    let leads_on = name.iter().any(|byte| matches!(byte, b'/' | 0));
    if name.is_empty() || leads_on || matches!(name, b"." | b"..") {
        return Err(Failure::new(format!(
            "{}: this cannot be the name of a file",
            shown(name)
        )));
    }
    Ok(name)
}

/// How deep directories may be nested: the longest path (PATH_MAX) has no more parts.
const DEPTH_MAX: usize = 2048;

/// The directories that a walk through a tree has entered. A damaged image may have a directory
/// under several names, one of them below itself; a walk that entered it again would not end.
pub(crate) struct Walk {
    /// All directories, for an image. A directory of this machine may be mounted in two places.
    entered: HashSet<(u64, u64)>,
    above: Vec<(u64, u64)>,
    is_image: bool,
}

impl Walk {
    /// A walk through this tree.
    pub(crate) fn new(tree: &dyn Tree) -> Self {
        Self {
            entered: HashSet::new(),
            above: Vec::new(),
            is_image: tree.is_image(),
        }
    }

    /// Enters a directory that was found in `parent`; `None` for the directory in which the walk
    /// begins.
    pub(crate) fn enter(&mut self, dir: &dyn Item, parent: Option<&dyn Item>) -> Result<()> {
        let id = dir.meta()?.id;
        if let Some(parent) = parent {
            dir.check_parent(parent)?;
        }
        if self.above.len() == DEPTH_MAX {
            return Err(Failure::new(format!(
                "directories nested deeper than {DEPTH_MAX}"
            )));
        }
        if self.above.contains(&id) || self.is_image && !self.entered.insert(id) {
            let words = format!("directory inode {} has a second name here", id.1);
            let failure = Failure::new(words);
            return Err(if self.is_image {
                failure.advise(DAMAGED)
            } else {
                failure
            });
        }
        self.above.push(id);
        Ok(())
    }

    /// Leaves the directory that was entered last.
    pub(crate) fn leave(&mut self) {
        self.above.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_path_leads_nowhere_else() {
        for name in [
            &b""[..],
            b".",
            b"..",
            b"/",
            b"a/b",
            b"../x",
            b"/etc",
            b"a\0b",
        ] {
            assert!(check_part(name).is_err(), "{}", name.escape_ascii());
        }
        for name in [&b"a"[..], b"...", b".x", b"a b", b"\xff"] {
            assert!(check_part(name).is_ok(), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn the_table_is_in_the_order_of_the_kinds() {
        for row in FileKind::TABLE {
            assert_eq!(row.0.row().1, row.1);
            assert_eq!(FileKind::of_mode(row.1 | 0o644), row.0);
        }
    }
}
