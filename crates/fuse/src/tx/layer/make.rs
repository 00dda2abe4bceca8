//! Makes a layer, which a command has written elsewhere, on the volume from records. It has the
//! sender's rights: the result is the same as if the sender had made it through the mount.
//!
//! The order is such that nothing has to be undone. While a directory is filled, only its owner can
//! use it, and it has no default ACL and no set-group-ID bit that new files would inherit. What a
//! write would clear (set-user-ID, capabilities), and what would forbid another change, comes after
//! it:
//!
//! 1. the file, with its owner and group;
//! 2. its data, or a directory's files;
//! 3. its extended attributes, ACLs too;
//! 4. its permissions and times.

use std::sync::Arc;

use parking_lot::Mutex;
use stetfs::{Attr, Caller, Change, Error, New, SetAttr, SetTime, SetXattr, WriteFlags, mode};
use stetfs_format::InodeNo;
use stetfs_format::inode::Time;
use stetfs_format::width::{u64_as_usize, usize_as_u64};

use super::plan::{About, DEPTH_MAX};
use super::records::{Record, decode};
use crate::backend::Backend;

/// The longest value that an extended attribute can have (XATTR_SIZE_MAX).
const VALUE_MAX: usize = 65_536;

/// A layer that is being made.
#[derive(Default)]
pub(super) struct Making {
    /// True after the first record.
    has_begun: bool,
    /// The open files, each inside of the one before.
    open: Vec<Open>,
    /// Files that get more names; a link's number is an index here.
    linked: Vec<InodeNo>,
    /// The parts of an extended attribute's value so far.
    value: Vec<u8>,
}

/// Where a layer is, and the directory that it changes.
pub(super) struct Where {
    pub(super) dir: InodeNo,
    pub(super) place: InodeNo,
    pub(super) upper: InodeNo,
    pub(super) trash: InodeNo,
    pub(super) lock: InodeNo,
    pub(super) making: Arc<Mutex<Making>>,
}

struct Open {
    ino: InodeNo,
    name: Vec<u8>,
    about: About,
}

impl Making {
    /// Returns the path of the innermost open file.
    pub(super) fn path(&self) -> Vec<u8> {
        let names = self.open.iter().skip(1).map(|open| &open.name[..]);
        names.collect::<Vec<_>>().join(&b'/')
    }

    /// Returns whether the layer is complete.
    pub(super) fn is_done(&self) -> bool {
        self.has_begun && self.open.is_empty()
    }

    /// Carries out the records of a batch. A record that is not valid, or makes no sense where it
    /// is, is [`Error::Invalid`]. When one fails, those before it have happened. Its file is open
    /// then if it has a path.
    pub(super) fn take<B: Backend>(
        &mut self,
        fs: &B,
        c: &Caller,
        at: &Where,
        mut batch: &[u8],
    ) -> stetfs::Result<()> {
        while let Some(record) = decode(&mut batch).map_err(|_| Error::Invalid)? {
            self.step(fs, c, at, &record)?;
        }
        Ok(())
    }

    fn step<B: Backend>(
        &mut self,
        fs: &B,
        c: &Caller,
        at: &Where,
        record: &Record<'_>,
    ) -> stetfs::Result<()> {
        match *record {
            Record::Make {
                name,
                about,
                has_links,
                target,
            } => {
                let dir = self.parent(name, &about)?;
                // Push it first, so that it has a path if it cannot be made.
                self.open.push(Open {
                    ino: at.upper,
                    name: name.to_vec(),
                    about,
                });
                let attr = match dir {
                    None => fs.getattr(at.upper)?,
                    Some(dir) => fs.change(c, &Change::Make((dir, name), new(&about, target)))?,
                };
                if let Some(open) = self.open.last_mut() {
                    open.ino = attr.ino;
                }
                if has_links {
                    self.linked.push(attr.ino);
                }
                own(fs, c, &attr, &about)?;
            }
            Record::Link { name, number } => {
                let dir = self.dir()?;
                let file = self.linked.get(u64_as_usize(number));
                let file = *file.ok_or(Error::Invalid)?;
                fs.change(c, &Change::Link(file, (dir, name)))?;
            }
            Record::Data { offset, bytes } => {
                let open = self.open.last().ok_or(Error::Invalid)?;
                if !mode::is_reg(open.about.mode) {
                    return Err(Error::Invalid);
                }
                write(fs, c, open.ino, offset, bytes)?;
            }
            Record::Xattr {
                name,
                value,
                goes_on,
            } => {
                let open = self.open.last().ok_or(Error::Invalid)?;
                self.value.extend_from_slice(value);
                if self.value.len() > VALUE_MAX {
                    return Err(Error::ArgTooBig);
                }
                if !goes_on {
                    let value = std::mem::take(&mut self.value);
                    let change = Change::SetXattr(open.ino, name, &value, SetXattr::Any);
                    fs.change(c, &change)?;
                }
            }
            Record::Done => {
                let open = self.open.last().ok_or(Error::Invalid)?;
                finish(fs, c, open)?;
                self.open.pop();
            }
        }
        Ok(())
    }

    /// Returns the directory to make a file in; `None` for the layer itself, which is there.
    fn parent(&mut self, name: &[u8], about: &About) -> stetfs::Result<Option<InodeNo>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return if name.is_empty() && about.is_dir() {
                Ok(None)
            } else {
                Err(Error::Invalid)
            };
        }
        if self.open.len() > DEPTH_MAX {
            return Err(Error::NameTooLong);
        }
        self.dir().map(Some)
    }

    /// Returns the open directory.
    fn dir(&self) -> stetfs::Result<InodeNo> {
        let open = self.open.last().filter(|open| open.about.is_dir());
        open.map(|dir| dir.ino).ok_or(Error::Invalid)
    }
}

/// Returns how a file is made at first: for its owner only.
fn new<'a>(about: &About, target: &'a [u8]) -> New<'a> {
    match about.mode & mode::S_IFMT {
        mode::S_IFDIR => New::Directory(0o700),
        mode::S_IFLNK => New::Symlink(target),
        kind => New::Node(kind | 0o600, about.rdev),
    }
}

/// Gives a new file its owner and group.
fn own<B: Backend>(fs: &B, c: &Caller, attr: &Attr, about: &About) -> stetfs::Result<()> {
    let set = SetAttr {
        uid: (attr.uid != about.uid).then_some(about.uid),
        gid: (attr.gid != about.gid).then_some(about.gid),
        ..SetAttr::default()
    };
    if set == SetAttr::default() {
        Ok(())
    } else {
        fs.change(c, &Change::SetAttr(attr.ino, &set)).map(drop)
    }
}

/// Writes all of the bytes; without bytes, sets the length.
fn write<B: Backend>(
    fs: &B,
    c: &Caller,
    ino: InodeNo,
    offset: u64,
    bytes: &[u8],
) -> stetfs::Result<()> {
    if bytes.is_empty() {
        let set = SetAttr {
            size: Some(offset),
            through_handle: true,
            ..SetAttr::default()
        };
        return fs.change(c, &Change::SetAttr(ino, &set)).map(drop);
    }
    let (mut at, mut rest) = (offset, bytes);
    while !rest.is_empty() {
        let (_, n) = fs.write_with(c, ino, at, rest, WriteFlags::empty())?;
        if n == 0 {
            return Err(Error::NoSpace);
        }
        at += usize_as_u64(n);
        rest = rest.get(n..).unwrap_or_default();
    }
    Ok(())
}

/// Gives a finished file its permissions and times.
fn finish<B: Backend>(fs: &B, c: &Caller, open: &Open) -> stetfs::Result<()> {
    let time = |(sec, nsec)| Some(SetTime::At(Time { sec, nsec }));
    let is_link = mode::is_lnk(open.about.mode);
    let set = SetAttr {
        mode: (!is_link).then_some(open.about.mode & 0o7777),
        atime: time(open.about.atime),
        mtime: time(open.about.mtime),
        ..SetAttr::default()
    };
    fs.change(c, &Change::SetAttr(open.ino, &set)).map(drop)
}
