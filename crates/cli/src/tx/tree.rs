//! A layer and the directory below it, as they are mounted: for the list of changes.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::fs::Stat;
use rustix::io::Errno;
use serde::Serialize;
use stetfs_format::width::{low16, must_fit};
use stetfs_fuse::tx::layer::plan::{About, Change, Child, Found, Tree, What, Xattr, listed};

use crate::failure::Result;
use crate::output::{self, JsonList};
use crate::shown::shown;

/// Mounted directories; a node of the tree is a path.
pub(super) struct Mounted;

impl Tree for Mounted {
    type Node = PathBuf;
    type Error = io::Error;

    fn children(&self, dir: &PathBuf) -> io::Result<Vec<Child<PathBuf>>> {
        let child = |entry: fs::DirEntry| (entry.file_name().into_vec(), entry.path());
        fs::read_dir(dir)?.map(|entry| entry.map(child)).collect()
    }

    fn child(&self, dir: &PathBuf, name: &[u8]) -> io::Result<Option<PathBuf>> {
        let path = dir.join(OsStr::from_bytes(name));
        match fs::symlink_metadata(&path) {
            Ok(_) => Ok(Some(path)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn about(&self, path: &PathBuf) -> io::Result<About> {
        Ok(about(&rustix::fs::lstat(path)?))
    }

    fn xattrs(&self, path: &PathBuf) -> io::Result<Vec<Xattr>> {
        xattrs(path)
    }
}

/// Returns what the layer's rules need of the result of `stat`.
pub(super) fn about(stat: &Stat) -> About {
    About {
        mode: low16(stat.st_mode),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: (
            rustix::fs::major(stat.st_rdev),
            rustix::fs::minor(stat.st_rdev),
        ),
        atime: (stat.st_atime, must_fit(stat.st_atime_nsec)),
        mtime: (stat.st_mtime, must_fit(stat.st_mtime_nsec)),
    }
}

/// Most bytes that all names, or one value, can take (XATTR_LIST_MAX, XATTR_SIZE_MAX).
const XATTR_MAX: usize = 65_536;

/// Returns the names of a file's extended attributes.
pub(super) fn xattr_names(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::with_capacity(XATTR_MAX);
    match rustix::fs::llistxattr(path, spare_capacity(&mut names)) {
        Ok(_) | Err(Errno::NOTSUP) => {}
        Err(e) => return Err(e.into()),
    }
    let names = names.split(|byte| *byte == 0).filter(|n| !n.is_empty());
    Ok(names.map(<[u8]>::to_vec).collect())
}

/// Returns a file's extended attributes.
pub(super) fn xattrs(path: &Path) -> io::Result<Vec<Xattr>> {
    let mut all = Vec::new();
    for name in xattr_names(path)? {
        let mut value = Vec::with_capacity(XATTR_MAX);
        match rustix::fs::lgetxattr(path, &*name, spare_capacity(&mut value)) {
            Ok(_) => all.push((name, value)),
            Err(Errno::NODATA) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(all)
}

/// A change in words.
#[derive(Serialize)]
struct Line {
    change: &'static str,
    kind: &'static str,
    path: String,
}

impl Line {
    fn new(change: &Change<PathBuf>) -> Self {
        let is_dir = |found: &Option<Found<_>>| found.as_ref().is_some_and(|f| f.about.is_dir());
        let (word, about) = match &change.what {
            What::Remove { old, .. } => ("removed", old.about),
            What::Place { new, old: None, .. } | What::Inside { new } => ("added", new.about),
            What::Place { new, old, .. } if new.about.is_dir() || is_dir(old) => {
                ("replaced", new.about)
            }
            What::Place { new, .. } => ("changed", new.about),
            What::Attributes { new, .. } => ("attributes", *new),
        };
        let path = if change.path.is_empty() {
            ".".to_owned()
        } else {
            shown(&change.path).to_string()
        };
        Self {
            change: word,
            kind: kind(about.mode),
            path,
        }
    }
}

fn kind(mode: u16) -> &'static str {
    match mode >> 12 {
        0o01 => "fifo",
        0o02 => "character device",
        0o04 => "directory",
        0o06 => "block device",
        0o12 => "symbolic link",
        0o14 => "socket",
        _ => "file",
    }
}

/// Prints the changes, sorted by path.
pub(super) fn list(changes: &[Change<PathBuf>], is_json: bool) -> Result<()> {
    let mut changes: Vec<_> = listed(changes).collect();
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    let lines = changes.into_iter().map(Line::new);
    if is_json {
        let mut list = JsonList::new();
        for line in lines {
            list.put(&line)?;
        }
        return list.end();
    }
    for line in lines {
        let slash = if line.kind == "directory" { "/" } else { "" };
        output::line(format!("{:<11}{}{slash}", line.change, line.path))?;
    }
    Ok(())
}
