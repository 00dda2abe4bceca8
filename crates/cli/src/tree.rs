//! What copying needs of a file tree, so that a host directory and an unmounted image are alike to it.

use crate::failure::Result;

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

    fn row(self) -> (Self, u32, char, &'static str) {
        Self::TABLE[self as usize]
    }

    /// From the type bits of a mode (stat(2)).
    pub(crate) fn of_mode(mode: u32) -> Self {
        Self::TABLE
            .iter()
            .find(|row| row.1 == mode & 0o170000)
            .map_or(Self::File, |row| row.0)
    }

    /// The type bits of a mode.
    pub(crate) fn bits(self) -> u32 {
        self.row().1
    }

    /// The letter that `ls -l` shows.
    pub(crate) fn letter(self) -> char {
        self.row().2
    }

    /// The word in JSON.
    pub(crate) fn word(self) -> &'static str {
        self.row().3
    }
}

/// A time: seconds since 1970 and nanoseconds.
pub(crate) type Stamp = (i64, u32);

/// What `lstat` tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) kind: FileKind,
    /// Permission, set-ID and sticky bits.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u64,
    pub(crate) size: u64,
    /// Device and inode: the same for two names of one file.
    pub(crate) id: (u64, u64),
    pub(crate) atime: Stamp,
    pub(crate) mtime: Stamp,
    /// Major and minor number of a device file.
    pub(crate) rdev: (u32, u32),
}

/// A file that is read.
pub(crate) trait Source {
    /// The next range that may hold data, at or after `from`: start and end. `None` when only a hole is left.
    fn next_data(&mut self, from: u64) -> Result<Option<(u64, u64)>>;
    /// Reads at `offset`; 0 at the end.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize>;
}

/// A file that is written.
pub(crate) trait Sink {
    /// Writes all of `data` at `offset`.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()>;
    /// Sets the length.
    fn set_len(&mut self, len: u64) -> Result<()>;
}

/// A file tree. Symbolic links in the last part of a path are never followed.
pub(crate) trait Tree {
    /// How a path is shown in messages.
    fn shown(&self, path: &[u8]) -> String;
    /// What is there; `None` when nothing is.
    fn meta(&self, path: &[u8]) -> Result<Option<Meta>>;
    /// As `meta`, following symbolic links.
    fn meta_followed(&self, path: &[u8]) -> Result<Option<Meta>>;
    /// The names in a directory, without `.` and `..`, sorted.
    fn names(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>>;
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>>;
    fn open(&self, path: &[u8]) -> Result<Box<dyn Source + '_>>;
    fn xattrs(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;

    /// Makes a file, or empties the one that is there.
    fn create(&self, path: &[u8], mode: u16) -> Result<Box<dyn Sink + '_>>;
    fn make_dir(&self, path: &[u8], mode: u16) -> Result<()>;
    fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<()>;
    fn make_link(&self, path: &[u8], existing: &[u8]) -> Result<()>;
    fn make_node(&self, path: &[u8], kind: FileKind, mode: u16, rdev: (u32, u32)) -> Result<()>;
    /// Removes a file that is no directory.
    fn remove_file(&self, path: &[u8]) -> Result<()>;
    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()>;
    /// Sets the owner; false when the caller may not.
    fn set_owner(&self, path: &[u8], uid: u32, gid: u32) -> Result<bool>;
    fn set_mode(&self, path: &[u8], mode: u16) -> Result<()>;
    fn set_times(&self, path: &[u8], atime: Stamp, mtime: Stamp) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_kinds() {
        for row in FileKind::TABLE {
            assert_eq!(row.0.row().1, row.1);
            assert_eq!(FileKind::of_mode(row.1 | 0o644), row.0);
        }
    }
}
