//! A layer in memory: a directory of a tmpfs that is mounted out of sight. When the command has
//! ended, all of it goes to the volume's server in batches of records. The server makes the layer
//! on the volume from them (`stetfs_fuse::tx::layer`). So a file that the command makes costs no
//! requests of its own.
//!
//! The walk makes each directory the working one, so that no path gets too long.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat, XattrFlags};
use rustix::io::Errno;
use stetfs_format::width::{must_fit, u64_as_usize, usize_as_u64};
use stetfs_fuse::tx::layer::plan::{DEPTH_MAX, UPPER};
use stetfs_fuse::tx::layer::records::{self, BATCH_LEN, Record};
use stetfs_sys::file_ioctl::{FillLayer, LayOver, fill_layer};

use super::ending::{refused, too_deep};
use super::place::{WORK, dress, too_old};
use super::tree::{self, about};
use crate::failure::{Explain, Failure, Result};
use crate::ran::EXIT_FAILED;

/// The label by which a security module marks files in memory; it means nothing on a volume.
const LABEL: &[u8] = b"security.selinux";

/// If a file's data does not fit into a batch, the part in the batch ends at a multiple of this.
const PAGE: u64 = 4096;

/// Bytes of an extended attribute's value in one record.
const VALUE_PART: usize = 8 << 10;

/// If fewer bytes of memory are left than this, the layer counts as full.
const FULL: u64 = 256 << 10;

pub(super) struct Memory {
    upper: File,
    /// The directory that the transaction changes, below everything that is mounted over it.
    dir: File,
    path: PathBuf,
    name: [u8; 16],
}

impl Memory {
    /// Makes the layer in `mounts`, for the working directory, which is that of `path`.
    pub(super) fn make(path: &Path, name: [u8; 16], mounts: &Path, is_root: bool) -> Result<Self> {
        let (upper, work) = (mounts.join(UPPER), mounts.join(WORK));
        for dir in [&upper, &work] {
            DirBuilder::new().mode(0o700).create(dir)?;
        }
        let has = Self::has_xattrs(&work, is_root);
        has.map_err(|e| {
            unable(
                e,
                "this kernel's tmpfs cannot store the extended attributes that \
            overlayfs needs",
            )
        })?;
        let dir = File::open(".")?;
        let dressed = dress(&upper, &dir, Path::new("."));
        dressed.map_err(|e| {
            unable(
                e,
                "the layer in memory cannot have the directory's attributes",
            )
        })?;
        let memory = Self {
            upper: File::open(&upper)?,
            dir,
            path: path.to_owned(),
            name,
        };
        // Find out before the command runs whether the server is too old.
        memory.sender().send()?;
        Ok(memory)
    }

    /// Fails if overlayfs cannot keep its attributes there.
    fn has_xattrs(dir: &Path, is_root: bool) -> Result<()> {
        let name = if is_root {
            c"trusted.overlay.stetfs"
        } else {
            c"user.overlay.stetfs"
        };
        rustix::fs::lsetxattr(dir, name, b"", XattrFlags::empty()).during(|| shown(name))?;
        rustix::fs::lremovexattr(dir, name).during(|| shown(name))
    }

    /// True if the layer has no room left. Ask this before anything is removed from it.
    pub(super) fn is_full(&self) -> bool {
        let stat = rustix::fs::fstatvfs(&self.upper);
        stat.is_ok_and(|stat| stat.f_bavail * stat.f_frsize < FULL || stat.f_favail == 0)
    }

    /// Sends the whole layer to the server.
    pub(super) fn hand_over(&self) -> Result<()> {
        rustix::process::fchdir(&self.upper)?;
        let mut sender = self.sender();
        sender.file(c"", 0)?;
        sender.send()
    }

    fn sender(&self) -> Sender<'_> {
        let path = [0; 1008];
        let what = LayOver {
            name: self.name,
            path,
        };
        let records = [0; BATCH_LEN];
        Sender {
            memory: self,
            batch: Box::new(FillLayer { what, records }),
            len: 0,
            path: Vec::new(),
            linked: HashMap::new(),
        }
    }
}

fn unable(e: Failure, what: &str) -> Failure {
    e.context(what)
        .advise("take --layer volume")
        .exit(EXIT_FAILED)
}

fn shown(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

struct Sender<'a> {
    memory: &'a Memory,
    batch: Box<FillLayer>,
    /// Bytes of the batch that are filled.
    len: usize,
    /// Path of the file that is being sent.
    path: Vec<u8>,
    /// Numbers of files that have several names, by inode.
    linked: HashMap<u64, u64>,
}

impl Sender<'_> {
    /// Sends the batch.
    fn send(&mut self) -> Result<()> {
        let batch = &mut *self.batch;
        records::end(&mut batch.records, self.len);
        self.len = 0;
        fill_layer(&self.memory.dir, batch).map_err(|e| match e {
            Errno::NOTTY => too_old(&self.memory.path),
            e => refused(&self.memory.path, e, &batch.what.path),
        })
    }

    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        if self.put_if_room(record) {
            return Ok(());
        }
        self.send()?;
        if self.put_if_room(record) {
            Ok(())
        } else {
            Err(self.at(Errno::TOOBIG))
        }
    }

    fn put_if_room(&mut self, record: &Record<'_>) -> bool {
        let len = records::encode(record, &mut self.batch.records[self.len..]);
        self.len += len.unwrap_or_default();
        len.is_some()
    }

    /// Makes a failure about the file that is being sent.
    fn at(&self, e: Errno) -> Failure {
        refused(&self.memory.path, e, &self.path)
    }

    /// Sends a file of the working directory, or, without a name, the working directory.
    fn file(&mut self, name: &CStr, depth: usize) -> Result<()> {
        let here = if name.is_empty() { c"." } else { name };
        let stat = rustix::fs::statat(CWD, here, AtFlags::SYMLINK_NOFOLLOW);
        let stat = stat.map_err(|e| self.at(e))?;
        let about = about(&stat);
        let kind = FileType::from_raw_mode(stat.st_mode);
        // overlayfs makes many whiteouts links of one file, to save files.
        let has_links = kind != FileType::Directory && stat.st_nlink > 1 && !about.is_whiteout();
        if has_links {
            let number = usize_as_u64(self.linked.len());
            let name = name.to_bytes();
            if let Some(&number) = self.linked.get(&stat.st_ino) {
                return self.put(&Record::Link { name, number });
            }
            self.linked.insert(stat.st_ino, number);
        }
        let target = match kind {
            FileType::Symlink => rustix::fs::readlinkat(CWD, here, Vec::new()),
            _ => Ok(CString::default()),
        };
        self.put(&Record::Make {
            name: name.to_bytes(),
            about,
            has_links,
            target: target.map_err(|e| self.at(e))?.to_bytes(),
        })?;
        match kind {
            FileType::Directory => self.inside(here, depth)?,
            FileType::RegularFile => self.data(here, &stat)?,
            _ => {}
        }
        self.xattrs(here)?;
        self.put(&Record::Done)
    }

    /// Sends the content of a directory.
    fn inside(&mut self, dir: &CStr, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(too_deep(&self.memory.path, &self.path));
        }
        rustix::process::chdir(dir).map_err(|e| self.at(e))?;
        for name in names().map_err(|e| self.at(e))? {
            let len = self.path.len();
            if len > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            self.file(&name, depth + 1)?;
            self.path.truncate(len);
        }
        if dir == c"." {
            Ok(())
        } else {
            rustix::process::chdir("..").map_err(|e| self.at(e))
        }
    }

    /// Sends the content of a file, without its holes.
    fn data(&mut self, name: &CStr, stat: &Stat) -> Result<()> {
        let size: u64 = must_fit(stat.st_size);
        if size == 0 {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, name, flags, Mode::empty()).map_err(|e| self.at(e))?;
        let has_holes = must_fit::<_, u64>(stat.st_blocks) < size.div_ceil(512);
        let (mut at, mut sent) = (0, 0);
        while at < size {
            let mut end = size;
            if has_holes {
                at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                    Err(Errno::NXIO) => break,
                    found => found.map_err(|e| self.at(e))?,
                };
                let found = rustix::fs::seek(&file, SeekFrom::Hole(at));
                end = found.map_err(|e| self.at(e))?;
            }
            while at < end {
                let most = self.data_len(at, end)?;
                let read = |to: &mut [u8]| {
                    let len = to.len().min(most);
                    rustix::io::pread(&file, &mut to[..len], at)
                };
                let put = records::encode_data(at, &mut self.batch.records[self.len..], read);
                let Some((len, n)) = put.map_err(|e| self.at(e))? else {
                    // The command has ended, so nobody truncates the file any more.
                    return Err(self.at(Errno::IO));
                };
                self.len += len;
                at += n;
                sent = at;
            }
        }
        if sent < size {
            self.put(&Record::Data {
                offset: size,
                bytes: b"",
            })
        } else {
            Ok(())
        }
    }

    /// Returns how many bytes of data from `at` on go into the batch. Sends the batch first if
    /// there is little room.
    fn data_len(&mut self, at: u64, end: u64) -> Result<usize> {
        loop {
            let room = usize_as_u64(records::data_room(self.len));
            let whole = (at + room) / PAGE * PAGE;
            if end - at <= room {
                return Ok(u64_as_usize(end - at));
            }
            if whole > at {
                return Ok(u64_as_usize(whole - at));
            }
            self.send()?;
        }
    }

    fn xattrs(&mut self, file: &CStr) -> Result<()> {
        let all = tree::xattrs(Path::new(OsStr::from_bytes(file.to_bytes())));
        let all = all.map_err(|e| self.at(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        for (name, value) in all.iter().filter(|(name, _)| name != LABEL) {
            let mut rest = &value[..];
            loop {
                let (value, behind) = rest.split_at(rest.len().min(VALUE_PART));
                rest = behind;
                let goes_on = !rest.is_empty();
                self.put(&Record::Xattr {
                    name,
                    value,
                    goes_on,
                })?;
                if !goes_on {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// Returns the names in the working directory, sorted: files with neighbouring names will lie near
/// each other.
fn names() -> Result<Vec<CString>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = Dir::new(rustix::fs::openat(CWD, c".", flags, Mode::empty())?)?;
    let names = dir.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    let mut names = names.collect::<Result<Vec<_>, _>>()?;
    names.retain(|name| ![c".", c".."].contains(&&**name));
    names.sort_unstable();
    Ok(names)
}
