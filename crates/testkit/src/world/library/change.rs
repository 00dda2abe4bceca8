//! Operations that are one change of names or attributes, on the mount or in a group.

use stetfs::{Attr, Change, Error, New, RenameFlags, SetAttr, SetTime, SetXattr};
use stetfs_format::{InodeNo, Time};

use crate::world::op::{Op, RenameHow, XattrHow};

pub(super) type Answer<T> = std::result::Result<T, Error>;

pub(super) const S_IFMT: u16 = 0o170_000;
pub(super) const S_IFDIR: u16 = 0o040_000;
pub(super) const S_IFREG: u16 = 0o100_000;

/// Looks up paths below the base directory and makes changes: on the mount or in a group.
pub(super) trait Way {
    /// Returns what is at a path; with `follow`, what a symbolic link there leads to.
    fn at(&mut self, path: &str, follow: bool) -> Answer<Attr>;

    /// Returns the directory and the last name of a path.
    fn place(&mut self, path: &str) -> Answer<(InodeNo, Vec<u8>)>;

    /// Makes a change.
    fn change(&mut self, change: &Change<'_>) -> Answer<()>;

    /// Carries out an operation; `None` if it is no change of this kind.
    fn apply(&mut self, op: &Op) -> Answer<Option<()>> {
        match op {
            Op::Mkdir { path, mode } => self.make(path, New::Directory(*mode)),
            Op::Mknod {
                path,
                mode,
                special,
            } => {
                let mode = special.kind() as u16 | mode;
                self.make(path, New::Node(mode, special.device()))
            }
            Op::Symlink { target, path } => self.make(path, New::Symlink(target.as_bytes())),
            Op::Link { old, new } => {
                let ino = self.at(old, false)?.ino;
                self.link(ino, new)
            }
            Op::Unlink { path } => {
                let (dir, name) = self.place(path)?;
                self.change(&Change::Unlink((dir, &name)))
            }
            Op::Rmdir { path } => {
                let (dir, name) = self.place(path)?;
                self.change(&Change::Rmdir((dir, &name)))
            }
            Op::Rename { old, new, how } => {
                let (dir, name) = self.place(old)?;
                let (new_dir, new_name) = self.place(new)?;
                let (from, to) = ((dir, &name[..]), (new_dir, &new_name[..]));
                self.change(&Change::Rename(from, to, rename_flags(*how)))
            }
            Op::Truncate { path, size } => {
                let attr = self.at(path, true)?;
                match attr.mode & S_IFMT {
                    S_IFREG => self.resize(attr.ino, *size, false),
                    S_IFDIR => Err(Error::IsDirectory),
                    _ => Err(Error::Invalid),
                }
            }
            Op::Chmod { path, mode } => {
                let ino = self.at(path, true)?.ino;
                let mode = Some(*mode);
                self.set(
                    ino,
                    &SetAttr {
                        mode,
                        ..SetAttr::default()
                    },
                )
            }
            Op::Chown { path, uid, gid } => {
                let ino = self.at(path, false)?.ino;
                let (uid, gid) = (*uid, *gid);
                self.set(
                    ino,
                    &SetAttr {
                        uid,
                        gid,
                        ..SetAttr::default()
                    },
                )
            }
            Op::Utimes { path, atime, mtime } => {
                let ino = self.at(path, false)?.ino;
                let time = |(sec, nsec)| Some(SetTime::At(Time { sec, nsec }));
                let (atime, mtime) = (time(*atime), time(*mtime));
                self.set(
                    ino,
                    &SetAttr {
                        atime,
                        mtime,
                        ..SetAttr::default()
                    },
                )
            }
            Op::SetXattr {
                path,
                name,
                value,
                how,
            } => {
                let how = match how {
                    XattrHow::Any => SetXattr::Any,
                    XattrHow::Create => SetXattr::Create,
                    XattrHow::Replace => SetXattr::Replace,
                };
                let value = value.bytes();
                self.set_xattr(path, name.as_bytes(), Some(&value), how)
            }
            Op::RemoveXattr { path, name } => {
                self.set_xattr(path, name.as_bytes(), None, SetXattr::Replace)
            }
            Op::SetAcl { path, default, acl } => {
                let name: &[u8] = if *default {
                    b"system.posix_acl_default"
                } else {
                    b"system.posix_acl_access"
                };
                let value = acl.as_ref().map(|acl| acl.encode());
                self.set_xattr(path, name, value.as_deref(), SetXattr::Any)
            }
            _ => return Ok(None),
        }
        .map(Some)
    }

    fn make(&mut self, path: &str, new: New<'_>) -> Answer<()> {
        let (dir, name) = self.place(path)?;
        self.change(&Change::Make((dir, &name), new))
    }

    fn link(&mut self, ino: InodeNo, path: &str) -> Answer<()> {
        let (dir, name) = self.place(path)?;
        self.change(&Change::Link(ino, (dir, &name)))
    }

    fn resize(&mut self, ino: InodeNo, size: u64, through_handle: bool) -> Answer<()> {
        let size = Some(size);
        self.set(
            ino,
            &SetAttr {
                size,
                through_handle,
                ..SetAttr::default()
            },
        )
    }

    fn set(&mut self, ino: InodeNo, set: &SetAttr) -> Answer<()> {
        self.change(&Change::SetAttr(ino, set))
    }

    fn set_xattr(
        &mut self,
        path: &str,
        name: &[u8],
        value: Option<&[u8]>,
        how: SetXattr,
    ) -> Answer<()> {
        let ino = self.at(path, false)?.ino;
        self.change(&match value {
            Some(value) => Change::SetXattr(ino, name, value, how),
            None => Change::RemoveXattr(ino, name),
        })
    }
}

fn rename_flags(how: RenameHow) -> RenameFlags {
    match how {
        RenameHow::Plain => RenameFlags::empty(),
        RenameHow::NoReplace => RenameFlags::NOREPLACE,
        RenameHow::Exchange => RenameFlags::EXCHANGE,
        RenameHow::Whiteout => RenameFlags::WHITEOUT,
    }
}
