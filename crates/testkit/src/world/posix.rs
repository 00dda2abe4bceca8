//! Operations as system calls below a mounted directory, as the superuser with umask 0.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirEntryExt, FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::{Errno, ReadWriteFlags};

use super::op::{Durable, Op, Payload, RenameHow, Reserve, SLOTS, XattrHow};
use super::{BASE, Outcome, Reply, Stat, World};

/// A function that unmounts and mounts again.
pub type Remount = Box<dyn FnMut() -> anyhow::Result<()>>;

/// A mounted file system.
pub struct Posix {
    name: String,
    base: PathBuf,
    slots: [Option<File>; SLOTS as usize],
    remount: Remount,
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Posix {
    /// Uses the file system mounted on `mount`; makes the base directory there.
    ///
    /// # Errors
    /// The base directory cannot be made.
    pub fn new(name: &str, mount: &Path, remount: Remount) -> io::Result<Self> {
        rustix::process::umask(Mode::empty());
        let base = mount.join(BASE);
        fs::create_dir(&base)?;
        rustix::fs::chmod(&base, Mode::from_raw_mode(0o755))?;
        Ok(Self {
            name: name.to_owned(),
            base,
            slots: Default::default(),
            remount,
        })
    }

    /// The base directory.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Closes every slot.
    pub fn close_all(&mut self) {
        self.slots = Default::default();
    }

    fn slot(&self, slot: u8) -> Result<&File, Errno> {
        self.slots[usize::from(slot)].as_ref().ok_or(Errno::BADF)
    }

    fn open_at(&self, path: &str, flags: OFlags, mode: u16) -> Result<OwnedFd, Errno> {
        let path = self.base.join(path);
        // Special files are not opened: the answer is the model's.
        let special = |t: fs::FileType| {
            t.is_fifo() || t.is_socket() || t.is_char_device() || t.is_block_device()
        };
        let exclusive = flags.contains(OFlags::EXCL);
        if !exclusive && fs::metadata(&path).is_ok_and(|stat| special(stat.file_type())) {
            return Err(Errno::NXIO);
        }
        rustix::fs::open(&path, flags, Mode::from_raw_mode(mode.into()))
    }

    fn open(&mut self, slot: u8, path: &str, truncate: bool) -> Outcome {
        self.slots[usize::from(slot)] = None;
        let flags = if truncate {
            OFlags::RDWR | OFlags::TRUNC
        } else {
            OFlags::RDWR
        };
        self.slots[usize::from(slot)] = Some(File::from(self.open_at(path, flags, 0)?));
        Ok(Reply::Done)
    }

    fn tmpfile(&mut self, slot: u8, path: &str, mode: u16) -> Outcome {
        self.slots[usize::from(slot)] = None;
        let path = self.base.join(path);
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let made = rustix::fs::open(path, flags, Mode::from_raw_mode(mode.into()))?;
        self.slots[usize::from(slot)] = Some(File::from(made));
        Ok(Reply::Done)
    }

    fn write(&self, slot: u8, offset: u64, payload: Payload, durable: Durable) -> Outcome {
        let file = self.slot(slot)?;
        let flags = match durable {
            Durable::No => ReadWriteFlags::empty(),
            Durable::Data => ReadWriteFlags::DSYNC,
            Durable::All => ReadWriteFlags::SYNC,
        };
        let (bytes, mut done) = (payload.bytes(), 0);
        while done < bytes.len() {
            let rest = [IoSlice::new(&bytes[done..])];
            match rustix::io::pwritev2(file, &rest, offset + done as u64, flags)? {
                0 => return Err(Errno::IO),
                n => done += n,
            }
        }
        Ok(Reply::Count(done))
    }

    fn append(&self, slot: u8, payload: Payload) -> Outcome {
        let size = self.slot(slot)?.metadata().map_err(errno)?.len();
        self.write(slot, size, payload, Durable::No)
    }

    fn read(&self, slot: u8, offset: u64, len: u32) -> Outcome {
        let file = self.slot(slot)?;
        let mut out = vec![0; len as usize];
        let mut done = 0;
        while done < out.len() {
            match file
                .read_at(&mut out[done..], offset + done as u64)
                .map_err(errno)?
            {
                0 => break,
                n => done += n,
            }
        }
        out.truncate(done);
        Ok(Reply::Bytes(out))
    }

    fn fallocate(&self, slot: u8, how: Reserve, offset: u64, len: u64) -> Result<(), Errno> {
        let keep = FallocateFlags::KEEP_SIZE;
        let mode = match how {
            Reserve::Plain => FallocateFlags::empty(),
            Reserve::KeepSize => keep,
            Reserve::Punch => FallocateFlags::PUNCH_HOLE | keep,
            Reserve::Zero => FallocateFlags::ZERO_RANGE,
            Reserve::ZeroKeepSize => FallocateFlags::ZERO_RANGE | keep,
        };
        rustix::fs::fallocate(self.slot(slot)?, mode, offset, len)
    }

    fn stat(&self, path: &str) -> Outcome {
        let stat = fs::symlink_metadata(self.base.join(path)).map_err(errno)?;
        let sized = stat.is_file() || stat.is_symlink();
        Ok(Reply::Stat(Stat {
            mode: stat.mode(),
            uid: stat.uid(),
            gid: stat.gid(),
            nlink: stat.nlink(),
            size: if sized { stat.size() } else { 0 },
        }))
    }

    fn readdir(&self, path: &str) -> Outcome {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.base.join(path)).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            let _ = entry.ino();
            let kind = d_type(entry.file_type().map_err(errno)?);
            names.push((entry.file_name().into_vec(), kind));
        }
        names.sort();
        Ok(Reply::Names(names))
    }

    fn list_xattr(&self, path: &str) -> Outcome {
        let mut buffer = vec![0; 65_536];
        let len = rustix::fs::llistxattr(self.base.join(path), &mut buffer[..])?;
        let names = buffer[..len].split(|b| *b == 0).filter(|n| !n.is_empty());
        let mut names: Vec<_> = names.map(|n| (n.to_vec(), 0)).collect();
        names.sort();
        Ok(Reply::Names(names))
    }

    fn get_xattr(&self, path: &str, name: &str) -> Outcome {
        let mut buffer = vec![0; 65_536];
        let len = rustix::fs::lgetxattr(self.base.join(path), name, &mut buffer[..])?;
        buffer.truncate(len);
        Ok(Reply::Bytes(buffer))
    }

    fn fsync_dir(&self, path: &str) -> Result<(), Errno> {
        let dir = rustix::fs::open(
            self.base.join(path),
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        rustix::fs::fsync(dir)
    }

    fn sync(&self) -> Result<(), Errno> {
        let dir = rustix::fs::open(
            &self.base,
            OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        rustix::fs::syncfs(dir.as_fd())
    }

    fn names_op(&mut self, op: &Op) -> Option<Result<(), Errno>> {
        let at = |path: &str| self.base.join(path);
        let bits = |mode: &u16| Mode::from_raw_mode(u32::from(*mode));
        Some(match op {
            Op::Create {
                path,
                mode,
                exclusive,
            } => {
                let mut flags = OFlags::CREATE | OFlags::RDWR;
                flags.set(OFlags::EXCL, *exclusive);
                self.open_at(path, flags, *mode).map(drop)
            }
            Op::Mkdir { path, mode } => rustix::fs::mkdir(at(path), bits(mode)),
            Op::Mknod {
                path,
                mode,
                special,
            } => {
                let kind = FileType::from_raw_mode(special.kind());
                let (major, minor) = special.device();
                let device = rustix::fs::makedev(major, minor);
                rustix::fs::mknodat(CWD, at(path), kind, bits(mode), device)
            }
            Op::Symlink { target, path } => rustix::fs::symlink(target.as_str(), at(path)),
            Op::Link { old, new } => rustix::fs::link(at(old), at(new)),
            Op::LinkSlot { slot, new } => self
                .slot(*slot)
                .and_then(|file| rustix::fs::linkat(file, c"", CWD, at(new), AtFlags::EMPTY_PATH)),
            Op::Unlink { path } => rustix::fs::unlink(at(path)),
            Op::Rmdir { path } => rustix::fs::rmdir(at(path)),
            Op::Rename { old, new, how } => {
                let flags = match how {
                    RenameHow::Plain => RenameFlags::empty(),
                    RenameHow::NoReplace => RenameFlags::NOREPLACE,
                    RenameHow::Exchange => RenameFlags::EXCHANGE,
                    RenameHow::Whiteout => RenameFlags::WHITEOUT,
                };
                rustix::fs::renameat_with(CWD, at(old), CWD, at(new), flags)
            }
            _ => return None,
        })
    }

    fn attribute_op(&self, op: &Op) -> Option<Result<(), Errno>> {
        let at = |path: &str| self.base.join(path);
        Some(match op {
            Op::SetXattr {
                path,
                name,
                value,
                how,
            } => {
                let flags = match how {
                    XattrHow::Any => XattrFlags::empty(),
                    XattrHow::Create => XattrFlags::CREATE,
                    XattrHow::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::lsetxattr(at(path), name.as_str(), &value.bytes(), flags)
            }
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(at(path), name.as_str()),
            Op::SetAcl { path, default, acl } => {
                let name = if *default {
                    "system.posix_acl_default"
                } else {
                    "system.posix_acl_access"
                };
                match acl {
                    Some(acl) => {
                        rustix::fs::lsetxattr(at(path), name, &acl.encode(), XattrFlags::empty())
                    }
                    None => rustix::fs::lremovexattr(at(path), name),
                }
            }
            Op::Chmod { path, mode } => {
                rustix::fs::chmod(at(path), Mode::from_raw_mode(u32::from(*mode)))
            }
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                rustix::fs::chownat(CWD, at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::Utimes { path, atime, mtime } => {
                let spec = |(sec, nsec): &(i64, u32)| Timespec {
                    tv_sec: *sec,
                    tv_nsec: i64::from(*nsec),
                };
                let times = Timestamps {
                    last_access: spec(atime),
                    last_modification: spec(mtime),
                };
                rustix::fs::utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            _ => return None,
        })
    }
}

fn d_type(kind: fs::FileType) -> u8 {
    match kind {
        k if k.is_fifo() => 1,
        k if k.is_char_device() => 2,
        k if k.is_dir() => 4,
        k if k.is_block_device() => 6,
        k if k.is_file() => 8,
        k if k.is_symlink() => 10,
        k if k.is_socket() => 12,
        _ => 0,
    }
}

impl World for Posix {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn apply(&mut self, op: &Op) -> Outcome {
        if let Some(done) = self.names_op(op).or_else(|| self.attribute_op(op)) {
            return done.map(|()| Reply::Done);
        }
        let done = match op {
            Op::Open {
                slot,
                path,
                truncate,
            } => return self.open(*slot, path, *truncate),
            Op::Tmpfile { slot, path, mode } => return self.tmpfile(*slot, path, *mode),
            Op::Close { slot } => self.slots[usize::from(*slot)]
                .take()
                .map(drop)
                .ok_or(Errno::BADF),
            Op::Write {
                slot,
                offset,
                payload,
                durable,
            } => return self.write(*slot, *offset, *payload, *durable),
            Op::Append { slot, payload } => return self.append(*slot, *payload),
            Op::Read { slot, offset, len } => return self.read(*slot, *offset, *len),
            Op::Truncate { path, size } => truncate(&self.base.join(path), *size),
            Op::Ftruncate { slot, size } => rustix::fs::ftruncate(self.slot(*slot)?, *size),
            Op::Fallocate {
                slot,
                how,
                offset,
                len,
            } => self.fallocate(*slot, *how, *offset, *len),
            Op::GetXattr { path, name } => return self.get_xattr(path, name),
            Op::ListXattr { path } => return self.list_xattr(path),
            Op::Stat { path } => return self.stat(path),
            Op::Readlink { path } => {
                let target = fs::read_link(self.base.join(path)).map_err(errno)?;
                return Ok(Reply::Bytes(target.into_os_string().into_vec()));
            }
            Op::Readdir { path } => return self.readdir(path),
            Op::Fsync { slot } => rustix::fs::fsync(self.slot(*slot)?),
            Op::Fdatasync { slot } => rustix::fs::fdatasync(self.slot(*slot)?),
            Op::FsyncDir { path } => self.fsync_dir(path),
            Op::Sync => self.sync(),
            // The kernel does this by its own clock.
            Op::Commit | Op::Expire => Ok(()),
            // A mount offers groups of one open file only: F2FS's ioctls.
            Op::GroupBegin | Op::GroupAbort | Op::GroupCommit { .. } => Err(Errno::OPNOTSUPP),
            Op::GroupDo(_) | Op::GroupSwitch => Err(Errno::OPNOTSUPP),
            Op::GroupWrite { .. } | Op::GroupRead { .. } => Err(Errno::OPNOTSUPP),
            Op::Checkpoint | Op::Crash | Op::Clock(_) | Op::Fill { .. } => Err(Errno::OPNOTSUPP),
            Op::Mark { .. } | Op::Store { .. } | Op::Copy { .. } => Err(Errno::OPNOTSUPP),
            Op::Remount => {
                self.close_all();
                (self.remount)().map_err(|error| {
                    eprintln!("remount of {}: {error:#}", self.name);
                    Errno::IO
                })
            }
            _ => unreachable!("done above"),
        };
        done.map(|()| Reply::Done)
    }
}

/// Does truncate(2), which rustix lacks: opens for writing and calls ftruncate, with the errors of
/// truncate.
fn truncate(path: &Path, size: u64) -> Result<(), Errno> {
    let kind = fs::metadata(path).map_err(errno)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(Errno::INVAL);
    }
    let file = rustix::fs::open(path, OFlags::WRONLY, Mode::empty())?;
    rustix::fs::ftruncate(file, size)
}
