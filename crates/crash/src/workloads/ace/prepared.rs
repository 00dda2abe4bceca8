//! The operations of a workload: each action after the preparations that it needs.

use std::collections::BTreeMap;

use super::action::{Action, Place, Point, TOP, Verb, is_file};
use stetfs_testkit::world::op::{Durable, Op, Payload, RenameHow, Reserve, Special, XattrHow};
use stetfs_testkit::world::text::SCRATCH_SLOT;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    Dir,
    /// The index in `files`.
    File(usize),
    /// A symbolic link to this path, counted from the top.
    Link(&'static str),
    Device,
}

#[derive(Clone, Copy, Debug, Default)]
struct File {
    size: u64,
    has_xattr: bool,
}

/// Operations on an empty volume, and the files and names after them.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    pub(super) ops: Vec<Op>,
    names: BTreeMap<String, Named>,
    files: Vec<File>,
    /// The seed of the newest write.
    seed: u16,
}

/// Bytes of a file before an action changes its content.
const CONTENT: u64 = 8192;
const XATTR: &str = "user.one";
const XATTR_BYTES: u32 = 20;

impl Prepared {
    /// Adds the action, after the preparations that it needs.
    pub(super) fn act(&mut self, action: Action) {
        let path = action.path;
        match action.verb {
            Verb::Create => {
                self.clear(path);
                self.create(path);
            }
            Verb::Mkdir => {
                self.clear(path);
                self.need(path);
            }
            Verb::Mknod => {
                self.clear(path);
                self.ops.push(Op::Mknod {
                    path: path.to_owned(),
                    mode: 0o644,
                    special: Special::Block(1, 3),
                });
                self.names.insert(path.to_owned(), Named::Device);
            }
            Verb::Fallocate(how, place) => self.fallocate(path, how, place),
            Verb::Write(place) => self.write(path, place, Durable::No),
            Verb::Direct(place) => self.write(path, place, Durable::No),
            Verb::Mapped(place) => {
                self.write(path, place, Durable::No);
                self.with_open(path, Op::Fdatasync { slot: SCRATCH_SLOT });
            }
            Verb::Link(new) => self.link(path, new),
            Verb::Symlink(new) => self.symlink(path, new),
            Verb::Unlink | Verb::Remove => {
                self.need(path);
                self.clear(path);
            }
            Verb::Rename(new) => self.rename(path, new),
            Verb::SetXattr => self.set_xattr(path),
            Verb::RemoveXattr => {
                let file = self.file(path);
                if !self.files[file].has_xattr {
                    self.set_xattr(path);
                }
                self.files[file].has_xattr = false;
                self.ops.push(Op::RemoveXattr {
                    path: path.to_owned(),
                    name: XATTR.to_owned(),
                });
            }
            Verb::Truncate(size) => {
                let file = self.filled(path);
                self.files[file].size = size;
                self.ops.push(Op::Truncate {
                    path: path.to_owned(),
                    size,
                });
            }
            Verb::Fdatasync => {
                self.need(path);
                self.with_open(path, Op::Fdatasync { slot: SCRATCH_SLOT });
            }
        }
    }

    /// Adds the sync. `None` if it is impossible: a device file has no fsync.
    pub(super) fn persist(&mut self, point: Point) -> Option<()> {
        match point {
            Point::Nothing => {}
            Point::Sync => self.ops.push(Op::Sync),
            Point::Fsync(path) if is_file(path) => {
                match self.names.get(path) {
                    Some(Named::Device) => return None,
                    Some(Named::Link(target)) => self.need(target),
                    _ => self.need(path),
                }
                self.with_open(path, Op::Fsync { slot: SCRATCH_SLOT });
            }
            Point::Fsync(path) => {
                self.need(path);
                self.ops.push(Op::FsyncDir {
                    path: path.to_owned(),
                });
            }
        }
        Some(())
    }

    /// Makes the file or directory unless it exists.
    fn need(&mut self, path: &str) {
        if path == TOP || self.names.contains_key(path) {
            return;
        }
        if is_file(path) {
            return self.create(path);
        }
        self.need_parent(path);
        self.ops.push(Op::Mkdir {
            path: path.to_owned(),
            mode: 0o755,
        });
        self.names.insert(path.to_owned(), Named::Dir);
    }

    fn need_parent(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.need(parent);
        }
    }

    fn create(&mut self, path: &str) {
        self.need_parent(path);
        self.ops.push(Op::Create {
            path: path.to_owned(),
            mode: 0o644,
            exclusive: true,
        });
        let number = self.files.len();
        self.files.push(File::default());
        self.names.insert(path.to_owned(), Named::File(number));
    }

    /// Returns the file's index. Makes the file unless it exists.
    fn file(&mut self, path: &str) -> usize {
        self.need(path);
        match self.names[path] {
            Named::File(number) => number,
            ref other => panic!("{path} is {other:?}"),
        }
    }

    /// Like [`Self::file`], and writes to the file if it is empty.
    fn filled(&mut self, path: &str) -> usize {
        let file = self.file(path);
        if self.files[file].size == 0 {
            self.write_at(path, 0, CONTENT, Durable::No);
        }
        file
    }

    /// Removes whatever has the name, and makes its directory.
    fn clear(&mut self, path: &str) {
        self.need_parent(path);
        self.empty(path);
        let path = path.to_owned();
        match self.names.remove(&path) {
            None => {}
            Some(Named::Dir) => self.ops.push(Op::Rmdir { path }),
            Some(_) => self.ops.push(Op::Unlink { path }),
        }
    }

    /// Removes everything below a directory.
    fn empty(&mut self, path: &str) {
        let below = self.below(path);
        for path in below.into_iter().rev() {
            let named = self.names.remove(&path);
            self.ops.push(match named {
                Some(Named::Dir) => Op::Rmdir { path },
                _ => Op::Unlink { path },
            });
        }
    }

    fn below(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        let below = self.names.keys().filter(|name| name.starts_with(&prefix));
        below.cloned().collect()
    }

    fn with_open(&mut self, path: &str, op: Op) {
        let slot = SCRATCH_SLOT;
        self.ops.push(Op::Open {
            slot,
            path: path.to_owned(),
            truncate: false,
        });
        self.ops.push(op);
        self.ops.push(Op::Close { slot });
    }

    /// Returns offset and length of a place.
    fn span(&self, file: usize, place: Place) -> (u64, u64) {
        let size = self.files[file].size;
        match place {
            Place::Append(len) => (size, len),
            Place::At(offset, len) => (offset, len),
            Place::Tail(len) => (size.saturating_sub(len), len),
            Place::Across(before, behind) => {
                let offset = size.saturating_sub(before);
                (offset, size + behind - offset)
            }
        }
    }

    fn write(&mut self, path: &str, place: Place, durable: Durable) {
        let file = match place {
            Place::Append(_) => self.file(path),
            _ => self.filled(path),
        };
        let (offset, len) = self.span(file, place);
        self.write_at(path, offset, len, durable);
    }

    fn write_at(&mut self, path: &str, offset: u64, len: u64, durable: Durable) {
        let file = self.file(path);
        let size = &mut self.files[file].size;
        *size = (*size).max(offset + len);
        self.seed += 1;
        let payload = Payload {
            seed: self.seed,
            len: len as u32,
        };
        let write = Op::Write {
            slot: SCRATCH_SLOT,
            offset,
            payload,
            durable,
        };
        self.with_open(path, write);
    }

    fn fallocate(&mut self, path: &str, how: Reserve, place: Place) {
        let file = self.filled(path);
        let (offset, len) = self.span(file, place);
        if matches!(how, Reserve::Plain | Reserve::Zero) {
            let size = &mut self.files[file].size;
            *size = (*size).max(offset + len);
        }
        let slot = SCRATCH_SLOT;
        let fallocate = Op::Fallocate {
            slot,
            how,
            offset,
            len,
        };
        self.with_open(path, fallocate);
    }

    fn set_xattr(&mut self, path: &str) {
        let file = self.file(path);
        self.files[file].has_xattr = true;
        self.seed += 1;
        self.ops.push(Op::SetXattr {
            path: path.to_owned(),
            name: XATTR.to_owned(),
            value: Payload {
                seed: self.seed,
                len: XATTR_BYTES,
            },
            how: XattrHow::Any,
        });
    }

    fn link(&mut self, path: &str, new: &str) {
        let file = self.file(path);
        self.clear(new);
        self.ops.push(Op::Link {
            old: path.to_owned(),
            new: new.to_owned(),
        });
        self.names.insert(new.to_owned(), Named::File(file));
    }

    fn symlink(&mut self, path: &'static str, new: &str) {
        self.need_parent(path);
        self.clear(new);
        let up = "../".repeat(new.matches('/').count());
        self.ops.push(Op::Symlink {
            target: format!("{up}{path}"),
            path: new.to_owned(),
        });
        self.names.insert(new.to_owned(), Named::Link(path));
    }

    fn rename(&mut self, path: &str, new: &str) {
        self.need(path);
        self.need_parent(new);
        if !is_file(new) {
            self.empty(new);
        }
        self.ops.push(Op::Rename {
            old: path.to_owned(),
            new: new.to_owned(),
            how: RenameHow::Plain,
        });
        // A rename between two names of one file does nothing.
        if is_file(path) && self.names.get(path) == self.names.get(new) {
            return;
        }
        for name in [vec![path.to_owned()], self.below(path)].concat() {
            let named = self.names.remove(&name);
            let moved = format!("{new}{}", &name[path.len()..]);
            self.names.extend(named.map(|named| (moved, named)));
        }
    }
}
