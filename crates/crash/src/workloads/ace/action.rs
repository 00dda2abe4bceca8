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
    /// O_DIRECT.
    Direct(Place),
    /// Through a mapping, and msync.
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

/// Where in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// So many bytes behind the end.
    Append(u64),
    /// So many bytes from an offset on.
    At(u64, u64),
    /// The last so many bytes.
    Tail(u64),
    /// The last so many bytes, and so many behind the end.
    Across(u64, u64),
}

/// An operation with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Action {
    pub(super) verb: Verb,
    pub(super) path: &'static str,
}

/// What follows an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    Nothing,
    Sync,
    /// fsync of an object.
    Fsync(&'static str),
}

/// The directory that all paths begin in.
pub(super) const TOP: &str = ".";

/// By the path: ACE has no file and directory of one name.
pub(super) fn is_file(path: &str) -> bool {
    path.ends_with("foo") || path.ends_with("bar")
}
