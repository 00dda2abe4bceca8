//! The tree of this machine.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result as IoResult};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::failure::Result;
use crate::tree::{FileKind, Meta, Sink, Source, Stamp, Tree};

/// Paths of this machine.
pub(crate) struct Host;

fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn meta_of(found: IoResult<fs::Metadata>) -> Result<Option<Meta>> {
    let m = match found {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        other => other?,
    };
    Ok(Some(Meta {
        kind: FileKind::of_mode(m.mode()),
        mode: (m.mode() & 0o7777) as u16,
        uid: m.uid(),
        gid: m.gid(),
        nlink: m.nlink(),
        size: m.len(),
        id: (m.dev(), m.ino()),
        atime: (m.atime(), m.atime_nsec() as u32),
        mtime: (m.mtime(), m.mtime_nsec() as u32),
        rdev: (rustix::fs::major(m.rdev()), rustix::fs::minor(m.rdev())),
    }))
}

impl Tree for Host {
    fn shown(&self, p: &[u8]) -> String {
        path(p).display().to_string()
    }

    fn meta(&self, p: &[u8]) -> Result<Option<Meta>> {
        meta_of(path(p).symlink_metadata())
    }

    fn meta_followed(&self, p: &[u8]) -> Result<Option<Meta>> {
        meta_of(path(p).metadata())
    }

    fn names(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let entries: IoResult<Vec<_>> = fs::read_dir(path(dir))?
            .map(|e| e.map(|e| e.file_name().into_vec()))
            .collect();
        let mut names = entries?;
        names.sort();
        Ok(names)
    }

    fn read_link(&self, p: &[u8]) -> Result<Vec<u8>> {
        Ok(fs::read_link(path(p))?.into_os_string().into_vec())
    }

    fn open(&self, p: &[u8]) -> Result<Box<dyn Source + '_>> {
        Ok(Box::new(File::open(path(p))?))
    }

    fn xattrs(&self, p: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = match grown(|out| rustix::fs::llistxattr(path(p), out)) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            other => other?,
        };
        let mut all = Vec::new();
        for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            match grown(|out| rustix::fs::lgetxattr(path(p), name, out)) {
                Ok(value) => all.push((name.to_vec(), value)),
                // It went away in between, or this user may not read it.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(all)
    }

    fn create(&self, p: &[u8], mode: u16) -> Result<Box<dyn Sink + '_>> {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode.into())
            .open(path(p))?;
        Ok(Box::new(file))
    }

    fn make_dir(&self, p: &[u8], mode: u16) -> Result<()> {
        Ok(fs::DirBuilder::new().mode(mode.into()).create(path(p))?)
    }

    fn make_symlink(&self, p: &[u8], target: &[u8]) -> Result<()> {
        Ok(symlink(path(target), path(p))?)
    }

    fn make_link(&self, p: &[u8], existing: &[u8]) -> Result<()> {
        Ok(fs::hard_link(path(existing), path(p))?)
    }

    fn make_node(&self, p: &[u8], kind: FileKind, mode: u16, rdev: (u32, u32)) -> Result<()> {
        let kind = FileType::from_raw_mode(kind.bits());
        let rdev = rustix::fs::makedev(rdev.0, rdev.1);
        Ok(rustix::fs::mknodat(
            CWD,
            path(p),
            kind,
            Mode::from_raw_mode(mode.into()),
            rdev,
        )?)
    }

    fn remove_file(&self, p: &[u8]) -> Result<()> {
        Ok(fs::remove_file(path(p))?)
    }

    fn set_xattr(&self, p: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        Ok(rustix::fs::lsetxattr(
            path(p),
            name,
            value,
            XattrFlags::empty(),
        )?)
    }

    fn set_owner(&self, p: &[u8], uid: u32, gid: u32) -> Result<bool> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        match rustix::fs::chownat(
            CWD,
            path(p),
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        ) {
            Err(Errno::PERM) => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    fn set_mode(&self, p: &[u8], mode: u16) -> Result<()> {
        Ok(fs::set_permissions(
            path(p),
            fs::Permissions::from_mode(mode.into()),
        )?)
    }

    fn set_times(&self, p: &[u8], atime: Stamp, mtime: Stamp) -> Result<()> {
        let spec = |t: Stamp| Timespec {
            tv_sec: t.0,
            tv_nsec: t.1.into(),
        };
        let times = Timestamps {
            last_access: spec(atime),
            last_modification: spec(mtime),
        };
        Ok(rustix::fs::utimensat(
            CWD,
            path(p),
            &times,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
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

impl Sink for File {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.write_all_at(data, offset)?)
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        Ok(File::set_len(self, len)?)
    }
}
