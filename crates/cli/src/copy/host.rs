//! The tree of this machine.
//!
//! A descriptor that only names its file (O_PATH) holds each file. The kernel walks no path but the
//! one that the user gave. From there on each step is one name, opened below the directory's
//! descriptor with openat2(2), so that it can neither go up nor follow a link. What such a
//! descriptor cannot do (reading, attributes) goes through `/proc/self/fd`, which leads to the same
//! file.
//!
//! Owners, modes, devices and extended attributes are read and set through the C library, and files
//! are made and removed through it (the standard library, `stetfs_sys::libc_files`). So all of that
//! works under fakeroot(1) as it does for root.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{File, Metadata, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::Errno;
use stetfs_format::width::{low16, must_fit, u64_as_usize, usize_as_u64};
use stetfs_sys::libc_files;

use crate::failure::{Failure, Result};
use crate::place;
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Source, Stamp, Tree, check_part};

/// Files of this machine, by path.
pub(crate) struct Host;

impl Tree for Host {
    fn shown(&self, path: &[u8]) -> String {
        shown(path)
    }

    fn at(&self, path: &[u8], follow: bool) -> Result<Option<Box<dyn Item + '_>>> {
        let mut flags = HANDLE;
        flags.set(OFlags::NOFOLLOW, !follow);
        let opened = rustix::fs::openat(CWD, path_of(path), flags, Mode::empty());
        let item = |fd| HostFile::handle(fd, path.to_vec(), Vec::new());
        Ok(found(opened)?.map(|fd| -> Box<dyn Item> { Box::new(item(fd)) }))
    }

    fn is_image(&self) -> bool {
        false
    }

    fn capacity(&self) -> Result<u64> {
        Ok(u64::MAX)
    }
}

/// Flags for a descriptor that names the file and gives no access to it.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Returns None if there is no such file.
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
        // Linux before 5.6, or a sandbox that does not know openat2(2). A name is one part of a
        // path, so this cannot lead away either.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(dir, name, flags, mode),
        other => other,
    }
}

fn meta_of(stat: &Metadata) -> Meta {
    let rdev = stat.rdev();
    Meta {
        kind: FileKind::of_mode(stat.mode()),
        mode: low16(stat.mode() & 0o7777),
        uid: stat.uid(),
        gid: stat.gid(),
        nlink: stat.nlink(),
        size: stat.len(),
        blocks: stat.blocks(),
        id: (stat.dev(), stat.ino()),
        atime: (stat.atime(), must_fit(stat.atime_nsec())),
        mtime: (stat.mtime(), must_fit(stat.mtime_nsec())),
        rdev: (rustix::fs::major(rdev), rustix::fs::minor(rdev)),
    }
}

/// How the descriptor of a file is open.
enum Open {
    /// Only names the file.
    Handle,
    /// For writing at any offset.
    Places,
    /// For writing one byte after the other (a pipe, a terminal, a device); with the number of
    /// bytes written.
    Stream(Cell<u64>),
}

/// A file of this machine.
struct HostFile {
    fd: File,
    open: Open,
    /// Its path, as messages show it.
    path: Vec<u8>,
    way: Vec<Vec<u8>>,
}

impl HostFile {
    fn handle(fd: OwnedFd, path: Vec<u8>, way: Vec<Vec<u8>>) -> Self {
        Self {
            fd: fd.into(),
            open: Open::Handle,
            path,
            way,
        }
    }

    /// Returns a path that leads to the file itself, also if that is a symbolic link.
    fn by_descriptor(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    fn item(&self, name: &[u8], fd: OwnedFd) -> Self {
        let mut way = self.way.clone();
        way.push(name.to_vec());
        Self::handle(fd, place::join(&self.path, name), way)
    }

    /// Opens what was just made under `name`. If it is another kind of file, somebody else put it
    /// there.
    fn made(&self, name: &[u8], kind: FileKind) -> Result<Box<dyn Item + '_>> {
        let fd = open_beneath(self.fd.as_fd(), name, HANDLE, Mode::empty())?;
        let item = self.item(name, fd);
        if item.meta()?.kind != kind {
            return Err(Failure::new(
                "another program replaced it during the copy: stop that, and copy again",
            ));
        }
        Ok(Box::new(item))
    }

    /// Writes zeros from the end of what was written up to `end`.
    fn fill(&self, written: &Cell<u64>, end: u64) -> Result<()> {
        let zeros = [0; 4096];
        while written.get() < end {
            let n = zeros.len().min(u64_as_usize(end - written.get()));
            (&self.fd).write_all(&zeros[..n])?;
            written.set(written.get() + usize_as_u64(n));
        }
        Ok(())
    }
}

impl Item for HostFile {
    fn shown(&self) -> String {
        shown(&self.path)
    }

    fn meta(&self) -> Result<Meta> {
        Ok(meta_of(&self.fd.metadata()?))
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
        Ok(found(opened)?.map(|fd| -> Box<dyn Item> { Box::new(self.item(name, fd)) }))
    }

    fn followed(&self, name: &[u8]) -> Result<Option<Box<dyn Item + '_>>> {
        let opened = rustix::fs::openat(&self.fd, check_part(name)?, HANDLE, Mode::empty());
        Ok(found(opened)?.map(|fd| -> Box<dyn Item> { Box::new(self.item(name, fd)) }))
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
        let mut item = self.item(name, fd);
        item.open = Open::Places;
        Ok(Box::new(item))
    }

    fn make_dir(&self, name: &[u8], mode: u16) -> Result<Box<dyn Item + '_>> {
        libc_files::make_dir(&self.fd, check_part(name)?, mode.into())?;
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
        let mode = kind.bits() | u32::from(mode);
        libc_files::make_node(&self.fd, check_part(name)?, mode, rdev)?;
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
        Ok(libc_files::remove(&self.fd, check_part(name)?, false)?)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        Ok(libc_files::remove(&self.fd, check_part(name)?, true)?)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.fd, "", Vec::new())?.into_bytes())
    }

    fn open(&self) -> Result<Box<dyn Source + '_>> {
        let file = File::open(self.by_descriptor())?;
        Ok(if file.metadata()?.is_file() {
            Box::new(file)
        } else {
            Box::new(Stream { file, read: 0 })
        })
    }

    fn open_to_write(&self) -> Result<Box<dyn Item + '_>> {
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd: File = rustix::fs::open(self.by_descriptor(), flags, Mode::empty())?.into();
        let open = if fd.metadata()?.is_file() {
            Open::Places
        } else {
            Open::Stream(Cell::new(0))
        };
        Ok(Box::new(Self {
            fd,
            open,
            path: self.path.clone(),
            way: self.way.clone(),
        }))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let Open::Stream(written) = &self.open else {
            return Ok(self.fd.write_all_at(data, offset)?);
        };
        self.fill(written, offset)?;
        (&self.fd).write_all(data)?;
        written.set(offset + usize_as_u64(data.len()));
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        match &self.open {
            Open::Stream(written) => self.fill(written, len),
            _ => Ok(self.fd.set_len(len)?),
        }
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = self.by_descriptor();
        let names = match grown(|out| libc_files::list_xattrs(path.as_bytes(), out)) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            other => other?,
        };
        let mut all = Vec::new();
        for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            match grown(|out| libc_files::get_xattr(path.as_bytes(), name, out)) {
                Ok(value) => all.push((name.to_vec(), value)),
                // The attribute went away in between, or this user may not read it.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(e) => return Err(e.into()),
            }
        }
        // A file system lists them in its own order, perhaps that in which they were set.
        all.sort();
        Ok(all)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let path = self.by_descriptor();
        Ok(libc_files::set_xattr(path.as_bytes(), name, value)?)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let path = self.by_descriptor();
        match libc_files::remove_xattr(path.as_bytes(), name) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            other => Ok(other?),
        }
    }

    fn set_owner(&self, uid: u32, gid: u32) -> Result<bool> {
        match std::os::unix::fs::chown(self.by_descriptor(), Some(uid), Some(gid)) {
            Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    fn set_mode(&self, mode: u16) -> Result<()> {
        let mode = Permissions::from_mode(mode.into());
        Ok(std::fs::set_permissions(self.by_descriptor(), mode)?)
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
        let path = self.by_descriptor();
        Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?)
    }
}

/// Calls with a larger buffer until it is large enough: the size may change between asking and
/// reading.
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
            // A file system without SEEK_DATA: everything is data, up to where reading ends. Its
            // files may have another length than they claim (/proc).
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((from, u64::MAX))),
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

    fn size(&self) -> Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// A pipe, a terminal or a device while it is read, from its beginning to its end. Nothing tells
/// beforehand where that is.
struct Stream {
    file: File,
    read: u64,
}

impl Source for Stream {
    fn next_data(&mut self, _: u64) -> Result<Option<(u64, u64)>> {
        Ok(Some((self.read, u64::MAX)))
    }

    fn read(&mut self, _: u64, out: &mut [u8]) -> Result<usize> {
        loop {
            match Read::read(&mut self.file, out) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                read => {
                    let n = read?;
                    self.read += usize_as_u64(n);
                    return Ok(n);
                }
            }
        }
    }

    fn size(&self) -> Result<u64> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns the words of the failure.
    fn refused<T>(result: Result<T>) -> String {
        result.err().expect("a refusal").to_string()
    }

    /// Tries what names in an image could do, at the last place that stands in their way.
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
        // A link stays a link: nothing is made, written or changed where it leads.
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
