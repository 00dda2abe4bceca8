//! The tree of this machine.
//!
//! A file is held by a descriptor that is open for nothing but being named (O_PATH). The path that
//! the user gave is the only one that the kernel ever walks; from there on each step is one name,
//! opened below the directory's descriptor with openat2(2) so that it can neither go up nor follow
//! a link. What takes no descriptor of that kind (reading, attributes) goes by `/proc/self/fd`,
//! which leads to the same file.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use stetfs_format::width::{low16, must_fit, usize_as_u64};

use crate::failure::{Failure, Result};
use crate::place;
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Source, Stamp, Tree, check_part};

/// Paths of this machine.
pub(crate) struct Host;

impl Tree for Host {
    fn shown(&self, path: &[u8]) -> String {
        shown(path)
    }

    fn at(&self, path: &[u8], follow: bool) -> Result<Option<Box<dyn Item + '_>>> {
        let mut flags = HANDLE;
        flags.set(OFlags::NOFOLLOW, !follow);
        let opened = rustix::fs::openat(CWD, path_of(path), flags, Mode::empty());
        let item = |fd| HostFile {
            fd,
            is_made: false,
            path: path.to_vec(),
            way: Vec::new(),
        };
        Ok(found(opened)?.map(|fd| -> Box<dyn Item> { Box::new(item(fd)) }))
    }

    fn is_image(&self) -> bool {
        false
    }

    fn capacity(&self) -> Result<u64> {
        Ok(u64::MAX)
    }
}

/// Names the file and gives no access to it.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// None when there is nothing.
fn found(opened: rustix::io::Result<OwnedFd>) -> Result<Option<OwnedFd>> {
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Opens `name` in the directory `dir`, and nothing elsewhere.
fn open_beneath(
    dir: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(dir, name, flags, mode, resolve) {
        // Before Linux 5.6, or where a sandbox does not know it. A name is one part of a path, so
        // this cannot lead away either.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(dir, name, flags, mode),
        other => other,
    }
}

fn meta_of(stat: &Stat) -> Meta {
    let rdev = stat.st_rdev;
    Meta {
        kind: FileKind::of_mode(stat.st_mode),
        mode: low16(stat.st_mode & 0o7777),
        uid: stat.st_uid,
        gid: stat.st_gid,
        nlink: must_fit(stat.st_nlink),
        size: stat.st_size.cast_unsigned(),
        id: (stat.st_dev, stat.st_ino),
        atime: (stat.st_atime, must_fit(stat.st_atime_nsec)),
        mtime: (stat.st_mtime, must_fit(stat.st_mtime_nsec)),
        rdev: (rustix::fs::major(rdev), rustix::fs::minor(rdev)),
    }
}

/// A file of this machine.
struct HostFile {
    /// Open for writing when `is_made`, otherwise a handle.
    fd: OwnedFd,
    is_made: bool,
    /// As it is shown.
    path: Vec<u8>,
    way: Vec<Vec<u8>>,
}

impl HostFile {
    /// Leads to the file itself, also where that is a symbolic link.
    fn by_descriptor(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    fn item(&self, name: &[u8], fd: OwnedFd, is_made: bool) -> Box<dyn Item + '_> {
        let mut way = self.way.clone();
        way.push(name.to_vec());
        Box::new(Self {
            fd,
            is_made,
            path: place::join(&self.path, name),
            way,
        })
    }

    /// What was just made under `name`; another kind of file there is somebody else's.
    fn made(&self, name: &[u8], kind: FileKind) -> Result<Box<dyn Item + '_>> {
        let fd = open_beneath(self.fd.as_fd(), name, HANDLE, Mode::empty())?;
        let item = self.item(name, fd, false);
        if item.meta()?.kind != kind {
            return Err(Failure::new("somebody else puts files there"));
        }
        Ok(item)
    }
}

impl Item for HostFile {
    fn shown(&self) -> String {
        shown(&self.path)
    }

    fn meta(&self) -> Result<Meta> {
        Ok(meta_of(&rustix::fs::fstat(&self.fd)?))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::new(fd)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn child(&self, name: &[u8]) -> Result<Option<Box<dyn Item + '_>>> {
        let opened = open_beneath(self.fd.as_fd(), check_part(name)?, HANDLE, Mode::empty());
        Ok(found(opened)?.map(|fd| self.item(name, fd, false)))
    }

    fn check_parent(&self, _: &dyn Item) -> Result<()> {
        Ok(())
    }

    fn way(&self) -> &[Vec<u8>] {
        &self.way
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn make_file(&self, name: &[u8], mode: u16) -> Result<Box<dyn Item + '_>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(mode.into());
        let fd = open_beneath(self.fd.as_fd(), check_part(name)?, flags, mode)?;
        Ok(self.item(name, fd, true))
    }

    fn make_dir(&self, name: &[u8], mode: u16) -> Result<Box<dyn Item + '_>> {
        let mode = Mode::from_raw_mode(mode.into());
        rustix::fs::mkdirat(&self.fd, check_part(name)?, mode)?;
        self.made(name, FileKind::Dir)
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<Box<dyn Item + '_>> {
        rustix::fs::symlinkat(target, &self.fd, check_part(name)?)?;
        self.made(name, FileKind::Symlink)
    }

    fn make_node(
        &self,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        rdev: (u32, u32),
    ) -> Result<Box<dyn Item + '_>> {
        let file_type = FileType::from_raw_mode(kind.bits());
        let mode = Mode::from_raw_mode(mode.into());
        let rdev = rustix::fs::makedev(rdev.0, rdev.1);
        rustix::fs::mknodat(&self.fd, check_part(name)?, file_type, mode, rdev)?;
        self.made(name, kind)
    }

    fn make_link(&self, name: &[u8], existing: &dyn Item) -> Result<()> {
        let fd = existing.descriptor().ok_or(Errno::XDEV)?;
        let existing = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let name = check_part(name)?;
        Ok(rustix::fs::linkat(
            CWD,
            existing,
            &self.fd,
            name,
            AtFlags::SYMLINK_FOLLOW,
        )?)
    }

    fn remove_file(&self, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::unlinkat(
            &self.fd,
            check_part(name)?,
            AtFlags::empty(),
        )?)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        Ok(rustix::fs::unlinkat(
            &self.fd,
            check_part(name)?,
            AtFlags::REMOVEDIR,
        )?)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.fd, "", Vec::new())?.into_bytes())
    }

    fn open(&self) -> Result<Box<dyn Source + '_>> {
        Ok(Box::new(File::open(self.by_descriptor())?))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.fd, &data[done..], offset + usize_as_u64(done)) {
                Err(Errno::INTR) => {}
                written => done += written?,
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        Ok(rustix::fs::ftruncate(&self.fd, len)?)
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = self.by_descriptor();
        let names = match grown(|out| rustix::fs::listxattr(&path, out)) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            other => other?,
        };
        let mut all = Vec::new();
        for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            match grown(|out| rustix::fs::getxattr(&path, name, out)) {
                Ok(value) => all.push((name.to_vec(), value)),
                // It went away in between, or this user may not read it.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(all)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let flags = XattrFlags::empty();
        match self.is_made {
            true => rustix::fs::fsetxattr(&self.fd, name, value, flags)?,
            false => rustix::fs::setxattr(self.by_descriptor(), name, value, flags)?,
        }
        Ok(())
    }

    fn set_owner(&self, uid: u32, gid: u32) -> Result<bool> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let set = rustix::fs::chownat(&self.fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
        match set {
            Err(Errno::PERM) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    fn set_mode(&self, mode: u16) -> Result<()> {
        let mode = Mode::from_raw_mode(mode.into());
        match self.is_made {
            true => rustix::fs::fchmod(&self.fd, mode)?,
            false => rustix::fs::chmod(self.by_descriptor(), mode)?,
        }
        Ok(())
    }

    fn set_times(&self, atime: Stamp, mtime: Stamp) -> Result<()> {
        let spec = |t: Stamp| Timespec {
            tv_sec: t.0,
            tv_nsec: t.1.into(),
        };
        let times = Timestamps {
            last_access: spec(atime),
            last_modification: spec(mtime),
        };
        match self.is_made {
            true => rustix::fs::futimens(&self.fd, &times)?,
            false => rustix::fs::utimensat(CWD, self.by_descriptor(), &times, AtFlags::empty())?,
        }
        Ok(())
    }
}

/// Calls until the buffer is large enough: the size may change between asking and reading.
fn grown(
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut out = vec![0; 4096];
    loop {
        match call(&mut out) {
            Ok(n) => {
                out.truncate(n);
                return Ok(out);
            }
            Err(Errno::RANGE) if out.len() < 1 << 20 => out.resize(out.len() * 4, 0),
            Err(e) => return Err(e),
        }
    }
}

impl Source for File {
    fn next_data(&mut self, from: u64) -> Result<Option<(u64, u64)>> {
        let start = match rustix::fs::seek(&*self, SeekFrom::Data(from)) {
            Err(Errno::NXIO) => return Ok(None),
            // A file system without SEEK_DATA: everything is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                let end = self.metadata()?.len();
                return Ok((from < end).then_some((from, end)));
            }
            other => other?,
        };
        Ok(Some((
            start,
            rustix::fs::seek(&*self, SeekFrom::Hole(start))?,
        )))
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        Ok(self.read_at(out, offset)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// The words of the failure.
    fn refused<T>(result: Result<T>) -> String {
        result.err().expect("a refusal").to_string()
    }

    /// What an image's names could try, at the last place that stands in their way.
    #[test]
    fn no_name_leads_out_of_its_directory() {
        let lab = tempfile::tempdir().unwrap();
        let (inside, outside) = (lab.path().join("inside"), lab.path().join("outside"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "whole").unwrap();
        symlink(&outside, inside.join("link")).unwrap();
        symlink("../outside/file", inside.join("file-link")).unwrap();
        let path = inside.as_os_str().as_bytes();
        let dir = Host.at(path, true).unwrap().unwrap();
        for name in ["../outside/new", "link/new", "..", ".", "", "/tmp/new"] {
            let name = name.as_bytes();
            refused(dir.child(name));
            refused(dir.make_file(name, 0o644));
            refused(dir.make_dir(name, 0o755));
            refused(dir.make_symlink(name, b"target"));
            refused(dir.make_node(name, FileKind::Fifo, 0o644, (0, 0)));
            refused(dir.remove_file(name));
        }
        // A link is only ever itself: nothing is made in what it leads to, nor written or changed
        // there.
        let link = dir.child(b"link").unwrap().unwrap();
        assert_eq!(link.meta().unwrap().kind, FileKind::Symlink);
        refused(link.make_file(b"new", 0o644));
        refused(link.make_dir(b"new", 0o755));
        refused(link.names());
        refused(dir.make_file(b"file-link", 0o644));
        let before = outside.join("file").metadata().unwrap().modified().unwrap();
        let file_link = dir.child(b"file-link").unwrap().unwrap();
        file_link.set_times((1, 0), (1, 0)).unwrap();
        refused(file_link.set_xattr(b"user.x", b"1"));
        refused(file_link.open());
        let after = outside.join("file").metadata().unwrap().modified().unwrap();
        assert_eq!(after, before);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read_dir(&inside).unwrap().count(), 2);
    }
}
