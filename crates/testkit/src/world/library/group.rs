//! Groups of changes: changes are staged through paths that the group looks up.

use stetfs::{Attr, Caller, Change, Error, Fs, Group, Kind, New, OpenFlags};
use stetfs_format::InodeNo;

use super::change::{Answer, S_IFMT, Way};
use super::{Library, S_IFLNK};
use crate::world::Reply;
use crate::world::op::{Op, Payload};

/// Symbolic links on one path (MAXSYMLINKS).
const LINKS_MAX: u32 = 40;

/// Paths as a group sees them.
struct InGroup<'a> {
    fs: &'a Fs,
    group: &'a mut Group,
    caller: &'a Caller,
    base: &'a str,
}

impl Way for InGroup<'_> {
    fn at(&mut self, path: &str, follow: bool) -> Answer<Attr> {
        let components = |path: &[u8]| -> Vec<Vec<u8>> {
            let names = path.split(|b| *b == b'/').rev().filter(|n| !n.is_empty());
            names.map(<[u8]>::to_vec).collect()
        };
        let mut rest = components(format!("{}/{path}", self.base).as_bytes());
        let mut at = self.group.lookup(self.caller, self.fs.root(), b".")?.attr;
        let mut links = 0;
        while let Some(name) = rest.pop() {
            let next = self.group.lookup(self.caller, at.ino, &name)?.attr;
            if next.mode & S_IFMT != S_IFLNK || rest.is_empty() && !follow {
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

    fn place(&mut self, path: &str) -> Answer<(InodeNo, Vec<u8>)> {
        let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
        let dir = self.at(above, true)?;
        if dir.is_dir() {
            Ok((dir.ino, name.as_bytes().to_vec()))
        } else {
            Err(Error::NotDirectory)
        }
    }

    fn change(&mut self, change: &Change<'_>) -> Answer<()> {
        self.group.change(self.caller, change).map(drop)
    }
}

impl InGroup<'_> {
    /// Acts as an open that may create a file; a dangling link leads to the place where the file is
    /// made.
    fn create(&mut self, path: &str, mode: u16, exclusive: bool) -> Answer<()> {
        let mut path = path.to_owned();
        for _ in 0..=LINKS_MAX {
            let (dir, name) = self.place(&path)?;
            match self.group.lookup(self.caller, dir, &name) {
                Ok(found) if !exclusive && found.attr.mode & S_IFMT == S_IFLNK => {
                    let target = self.fs.readlink(found.ino)?;
                    let above = path.rfind('/').map_or("", |i| &path[..=i]);
                    path = format!("{above}{}", String::from_utf8_lossy(&target));
                }
                Ok(found) if !exclusive => return Library::check_regular(&found.attr),
                Err(error) if error.kind() != Kind::NotFound => return Err(error),
                _ => return self.change(&Change::Make((dir, &name), New::File(mode))),
            }
        }
        Err(Error::Loop)
    }

    fn readdir(&mut self, path: &str) -> Answer<Reply> {
        let dir = self.at(path, true)?;
        if !dir.is_dir() {
            return Err(Error::NotDirectory);
        }
        let names = self.group.list(self.caller, dir.ino)?;
        let typed = |(name, ino)| Ok((name, (self.fs.getattr(ino)?.mode >> 12) as u8));
        Ok(Reply::Names(
            names.into_iter().map(typed).collect::<Answer<_>>()?,
        ))
    }
}

impl Library {
    fn group(&mut self) -> Answer<&mut Group> {
        self.group.as_mut().ok_or(Error::BadFile)
    }

    fn way(&mut self) -> Answer<InGroup<'_>> {
        Ok(InGroup {
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
                Self::check_regular(&found)?;
                let how = OpenFlags::READ | OpenFlags::WRITE;
                self.fs.open(&self.caller, found.ino, how)?;
                self.slots[usize::from(*slot)] = Some(found.ino);
                Ok(Reply::Done)
            }
            Op::Create {
                path,
                mode,
                exclusive,
            } => {
                self.way()?.create(path, *mode, *exclusive)?;
                Ok(Reply::Done)
            }
            op => match self.way()?.apply(op)? {
                Some(()) => Ok(Reply::Done),
                None => Err(Error::NotSupported),
            },
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
