//! Paths: from the root to an inode, through symbolic links.

use std::sync::Arc;

use stetfs_format::InodeNo;

use crate::error::{Error, Result};
use crate::file;
use crate::inode::Inode;
use crate::namei;
use crate::types::{Caller, Entry, mode};
use crate::volume::{ROOT_INO, Volume};

/// The most symbolic links on one path (the kernel's MAXSYMLINKS).
const LINKS_MAX: u32 = 40;

/// The longest path in bytes, with its terminating NUL (PATH_MAX).
const PATH_MAX: usize = 4096;

/// A function that returns the inode of a name in a directory.
pub(crate) type Lookup<'a> = &'a mut dyn FnMut(InodeNo, &[u8]) -> Result<Arc<Inode>>;

/// Does [`walk`] through the names that everybody sees.
pub(crate) fn resolve(
    vol: &Volume,
    c: &Caller,
    start: InodeNo,
    path: &[u8],
    follow: bool,
) -> Result<Entry> {
    let mut lookup = |dir, name: &[u8]| namei::lookup(vol, c, &*vol.iget(dir)?, name);
    walk(vol, start, path, follow, &mut lookup)
}

/// Walks `path` from `start`, or from the root if it begins with `/`. Follows the last symbolic
/// link if `follow` is true or the path ends in `/`.
///
/// # Errors
/// `NotFound`, `NotDirectory`, `Access`, `Loop`, `NameTooLong`.
pub(crate) fn walk(
    vol: &Volume,
    start: InodeNo,
    path: &[u8],
    follow: bool,
    lookup: Lookup<'_>,
) -> Result<Entry> {
    check_length(path)?;
    let mut at = entry_of(vol, &*vol.iget(start)?)?;
    if path.is_empty() {
        return Err(Error::NotFound);
    }
    // The components that are still to be walked, last one first.
    let mut rest: Vec<Vec<u8>> = components(path);
    let mut must_be_dir = path.last() == Some(&b'/');
    if path[0] == b'/' {
        at = entry_of(vol, &*vol.iget(ROOT_INO)?)?;
    }
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let next = entry_of(vol, &*lookup(at.ino, &name)?)?;
        let last = rest.is_empty();
        if !mode::is_lnk(next.attr.mode) || last && !follow && !must_be_dir {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Error::Loop);
        }
        let target = file::readlink(vol, &*vol.iget(next.ino)?)?;
        check_length(&target)?;
        if target.first() == Some(&b'/') {
            at = entry_of(vol, &*vol.iget(ROOT_INO)?)?;
        }
        must_be_dir |= last && target.last() == Some(&b'/');
        rest.extend(components(&target));
    }
    if must_be_dir && !at.attr.is_dir() {
        return Err(Error::NotDirectory);
    }
    Ok(at)
}

/// Does [`walk_to_parent`] through the names that everybody sees.
pub(crate) fn resolve_parent<'p>(
    vol: &Volume,
    c: &Caller,
    start: InodeNo,
    path: &'p [u8],
) -> Result<(Entry, &'p [u8])> {
    let mut lookup = |dir, name: &[u8]| namei::lookup(vol, c, &*vol.iget(dir)?, name);
    walk_to_parent(vol, start, path, &mut lookup)
}

/// Walks to the directory of the last component. Returns the directory and that component.
///
/// # Errors
/// As [`walk`]; `Busy` for the root, `Invalid` when the last component is `.` or `..`.
pub(crate) fn walk_to_parent<'p>(
    vol: &Volume,
    start: InodeNo,
    path: &'p [u8],
    lookup: Lookup<'_>,
) -> Result<(Entry, &'p [u8])> {
    check_length(path)?;
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |i| i + 1);
    let trimmed = &path[..end];
    let cut = trimmed
        .iter()
        .rposition(|&b| b == b'/')
        .map_or(0, |i| i + 1);
    let name = &trimmed[cut..];
    if name.is_empty() {
        return Err(if path.is_empty() {
            Error::NotFound
        } else {
            Error::Busy
        });
    }
    if name == b"." || name == b".." {
        return Err(Error::Invalid);
    }
    let dir = match cut {
        0 => entry_of(vol, &*vol.iget(start)?)?,
        _ => walk(vol, start, &path[..cut], true, lookup)?,
    };
    if !dir.attr.is_dir() {
        return Err(Error::NotDirectory);
    }
    Ok((dir, name))
}

fn check_length(path: &[u8]) -> Result<()> {
    if path.len() < PATH_MAX {
        Ok(())
    } else {
        Err(Error::NameTooLong)
    }
}

fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&b| b == b'/')
        .rev()
        .filter(|p| !p.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Returns the entry of an inode.
pub(crate) fn entry_of(vol: &Volume, inode: &Inode) -> Result<Entry> {
    crate::attr::getattr(vol, inode).map(Entry::from)
}
