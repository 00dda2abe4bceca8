//! The actions of ACE on a path, and the syncs that may follow them.

use stetfs_testkit::world::op::Reserve;

/// What an action does to its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Create,
    Mkdir,
    Mknod,
    Fallocate(Reserve, Place),
    Write(Place),
    /// A write with `O_DIRECT`.
    Direct(Place),
    /// Stores to a mapping, then msync.
    Mapped(Place),
    Link(&'static str),
    Symlink(&'static str),
    /// unlink(2).
    Unlink,
    /// remove(3).
    Remove,
    Rename(&'static str),
    SetXattr,
    RemoveXattr,
    Truncate(u64),
    Fdatasync,
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// This many bytes behind the end.
    Append(u64),
    /// Offset, and length.
    At(u64, u64),
    /// The last bytes, this many.
    Tail(u64),
    /// The last bytes, and bytes behind the end: how many of each.
    Across(u64, u64),
}

/// An operation and its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) verb: Verb,
    pub(super) path: &'static str,
}

/// The sync that follows an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    Nothing,
    Sync,
    /// fsync of this path.
    Fsync(&'static str),
}

/// The directory in which all paths begin.
pub(super) const TOP: &str = ".";

/// True for the path of a file. In ACE no file and directory share a name.
pub(super) fn is_file(path: &str) -> bool {
    path.ends_with("foo") || path.ends_with("bar")
}
