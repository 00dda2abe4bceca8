//! Groups of changes: what is staged, by paths that are looked up through the group.

use stetfs::{Caller, Entry, Error, Fs, Group, Kind, OpenFlags, SetAttr};
use stetfs_format::InodeNo;

use super::{Answer, Library, S_IFLNK, S_IFMT, S_IFREG, flags_of};
use crate::world::Reply;
use crate::world::op::{Op, Payload};

/// Symbolic links on one path (MAXSYMLINKS).
const LINKS_MAX: u32 = 40;

/// A path's way through a group.
struct Way<'a> {
    fs: &'a Fs,
    group: &'a mut Group,
    caller: &'a Caller,
    base: &'a str,
}

impl Way<'_> {
    /// What is at a path below the base directory.
    fn at(&mut self, path: &str, follow: bool) -> Answer<Entry> {
        let components = |path: &[u8]| -> Vec<Vec<u8>> {
            let names = path.split(|b| *b == b'/').rev().filter(|n| !n.is_empty());
            names.map(<[u8]>::to_vec).collect()
        };
        let mut rest = components(format!("{}/{path}", self.base).as_bytes());
        let mut at = self.group.lookup(self.caller, self.fs.root(), b".")?;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let next = self.group.lookup(self.caller, at.ino, &name)?;
            if next.attr.mode & S_IFMT != S_IFLNK || rest.is_empty() && !follow {
                at = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::Loop);
            }
            rest.extend(components(&self.fs.readlink(next.ino)?));
        }
        Ok(at)
    }

    /// The directory and the last name of a path.
    fn place<'p>(&mut self, path: &'p str) -> Answer<(InodeNo, &'p [u8])> {
        let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
        let dir = self.at(above, true)?;
        if dir.attr.is_dir() {
            Ok((dir.ino, name.as_bytes()))
        } else {
            Err(Error::NotDirectory)
        }
    }

    /// As an open that may make it; a link that leads to nothing leads to where it is made.
    fn create(&mut self, path: &str, mode: u16, exclusive: bool) -> Answer<()> {
        let mut path = path.to_owned();
        for _ in 0..=LINKS_MAX {
            let (dir, name) = self.place(&path)?;
            match self.group.lookup(self.caller, dir, name) {
                Ok(found) if !exclusive && found.attr.mode & S_IFMT == S_IFLNK => {
                    let target = self.fs.readlink(found.ino)?;
                    let above = path.rfind('/').map_or("", |i| &path[..=i]);
                    path = format!("{above}{}", String::from_utf8_lossy(&target));
                }
                Ok(found) if !exclusive => return Library::check_regular(&found.attr),
                Err(error) if error.kind() != Kind::NotFound => return Err(error),
                _ => return self.group.create(self.caller, dir, name, mode).map(drop),
            }
        }
        Err(Error::Loop)
    }

    fn set(&mut self, ino: InodeNo, set: &SetAttr) -> Answer<()> {
        self.group.setattr(self.caller, ino, set)
    }

    fn truncate(&mut self, path: &str, size: u64) -> Answer<()> {
        let found = self.at(path, true)?;
        match found.attr.mode & S_IFMT {
            S_IFREG => {
                let size = Some(size);
                let set = SetAttr {
                    size,
                    ..SetAttr::default()
                };
                self.set(found.ino, &set)
            }
            _ if found.attr.is_dir() => Err(Error::IsDirectory),
            _ => Err(Error::Invalid),
        }
    }

    fn readdir(&mut self, path: &str) -> Answer<Reply> {
        let dir = self.at(path, true)?;
        if !dir.attr.is_dir() {
            return Err(Error::NotDirectory);
        }
        let names = self.group.list(self.caller, dir.ino)?;
        let typed = |(name, ino)| Ok((name, (self.fs.getattr(ino)?.mode >> 12) as u8));
        Ok(Reply::Names(
            names.into_iter().map(typed).collect::<Answer<_>>()?,
        ))
    }

    fn apply(&mut self, op: &Op) -> Answer<()> {
        let caller = self.caller;
        match op {
            Op::Create {
                path,
                mode,
                exclusive,
            } => self.create(path, *mode, *exclusive),
            Op::Mkdir { path, mode } => {
                let (dir, name) = self.place(path)?;
                self.group.mkdir(caller, dir, name, *mode).map(drop)
            }
            Op::Mknod {
                path,
                mode,
                special,
            } => {
                let (dir, name) = self.place(path)?;
                let mode = special.kind() as u16 | mode;
                let device = special.device();
                self.group.mknod(caller, dir, name, mode, device).map(drop)
            }
            Op::Symlink { target, path } => {
                let (dir, name) = self.place(path)?;
                let target = target.as_bytes();
                self.group.symlink(caller, dir, name, target).map(drop)
            }
            Op::Link { old, new } => {
                let old = self.at(old, false)?.ino;
                let (dir, name) = self.place(new)?;
                self.group.link(caller, old, dir, name)
            }
            Op::Unlink { path } => {
                let (dir, name) = self.place(path)?;
                self.group.unlink(caller, dir, name)
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.place(path)?;
                self.group.rmdir(caller, dir, name)
            }
            Op::Rename { old, new, how } => {
                let (old, old_name) = self.place(old)?;
                let (new, new_name) = self.place(new)?;
                self.group
                    .rename(caller, old, old_name, new, new_name, flags_of(*how))
            }
            Op::Truncate { path, size } => self.truncate(path, *size),
            Op::Chmod { path, mode } => {
                let ino = self.at(path, true)?.ino;
                let mode = Some(*mode);
                let set = SetAttr {
                    mode,
                    ..SetAttr::default()
                };
                self.set(ino, &set)
            }
            Op::Chown { path, uid, gid } => {
                let ino = self.at(path, false)?.ino;
                let (uid, gid) = (*uid, *gid);
                let set = SetAttr {
                    uid,
                    gid,
                    ..SetAttr::default()
                };
                self.set(ino, &set)
            }
            _ => Err(Error::NotSupported),
        }
    }
}

impl Library {
    fn group(&mut self) -> Answer<&mut Group> {
        self.group.as_mut().ok_or(Error::BadFile)
    }

    fn way(&mut self) -> Answer<Way<'_>> {
        Ok(Way {
            group: self.group.as_mut().ok_or(Error::BadFile)?,
            fs: &self.fs,
            caller: &self.caller,
            base: &self.base,
        })
    }

    fn stage(&mut self, slot: u8, offset: u64, payload: Payload) -> Answer<()> {
        let (caller, ino) = (self.caller.clone(), self.slot(slot)?);
        self.group()?.write(&caller, ino, offset, &payload.bytes())
    }

    pub(super) fn read_staged(&mut self, slot: u8, offset: u64, len: u32) -> Answer<Reply> {
        let ino = self.slot(slot)?;
        let mut out = vec![0; len as usize];
        let n = self.group()?.read(ino, offset, &mut out)?;
        out.truncate(n);
        Ok(Reply::Bytes(out))
    }

    pub(super) fn group_do(&mut self, op: &Op) -> Answer<Reply> {
        self.group()?;
        match op {
            Op::Readdir { path } => self.way()?.readdir(path),
            Op::Open {
                slot,
                path,
                truncate: false,
            } => {
                drop(self.close(*slot));
                let found = self.way()?.at(path, true)?;
                Self::check_regular(&found.attr)?;
                let how = OpenFlags::READ | OpenFlags::WRITE;
                self.fs.open(&self.caller, found.ino, how)?;
                self.slots[usize::from(*slot)] = Some(found.ino);
                Ok(Reply::Done)
            }
            op => self.way()?.apply(op).map(|()| Reply::Done),
        }
    }

    pub(super) fn group_op(&mut self, op: &Op) -> Option<Answer<()>> {
        let caller = self.caller.clone();
        let done = match op {
            Op::GroupBegin => {
                self.group = Some(self.fs.begin());
                return Some(Ok(()));
            }
            Op::GroupSwitch => {
                std::mem::swap(&mut self.group, &mut self.other);
                return Some(Ok(()));
            }
            Op::GroupWrite {
                slot,
                offset,
                payload,
            } => return Some(self.stage(*slot, *offset, *payload)),
            Op::GroupCommit { lazy: false } => self.group().and_then(|group| group.commit(&caller)),
            Op::GroupCommit { lazy: true } => {
                self.group().and_then(|group| group.commit_lazy(&caller))
            }
            Op::GroupAbort => self.group().map(Group::abort),
            _ => return None,
        };
        self.group = None;
        Some(done)
    }
}
