//! The changes that others make while a layer is written that will change the same directory.
//!
//! Every request that may change something is noted, by the numbers of inodes and by names in
//! directories. Requests of the layer itself are noted too, but nobody asks for them. A request
//! that fails may be noted: then a conflict is reported where there is none.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;

use stetfs_format::InodeNo;

use crate::attr::inode;
use crate::ioctl::numbers::{FSSETXATTR, SETFLAGS, SETFLAGS_32, SETVERSION};
use crate::tx::groups;
use crate::wire::{Request, What};

/// The largest number of changes that are noted. Beyond it everything counts as changed.
const NOTED_MAX: usize = 1 << 20;

/// The changes since the layer began.
#[derive(Default)]
pub(super) struct Notes {
    names: HashMap<InodeNo, HashSet<Vec<u8>>>,
    files: HashSet<InodeNo>,
    count: usize,
}

impl Notes {
    /// Notes what a request is about to change.
    pub(super) fn note(&mut self, request: &Request<'_>) {
        let ino = inode(request.header.nodeid);
        match &request.what {
            What::SymLink { name, .. }
            | What::MkNod(_, name)
            | What::MkDir(_, name)
            | What::Unlink { name }
            | What::RmDir { name }
            | What::Create(_, name) => self.name(ino, name.as_bytes()),
            What::Link { ino: file, name } => {
                self.name(ino, name.as_bytes());
                self.file(inode(*file));
            }
            What::Rename {
                name,
                new_dir,
                new_name,
                ..
            } => {
                self.name(ino, name.as_bytes());
                self.name(inode(*new_dir), new_name.as_bytes());
            }
            What::Open(from) if from.flags & libc::O_TRUNC != 0 => self.file(ino),
            What::Ioctl(from, _) => match from.cmd {
                SETFLAGS | SETFLAGS_32 | FSSETXATTR | SETVERSION | groups::COMMIT => self.file(ino),
                _ => {}
            },
            What::CopyFileRange { from, .. } => self.file(inode(from.nodeid_out)),
            What::Write { .. }
            | What::SetAttr { .. }
            | What::SetXattr { .. }
            | What::RemoveXattr { .. }
            | What::FAllocate { .. } => self.file(ino),
            _ => {}
        }
    }

    fn name(&mut self, dir: InodeNo, name: &[u8]) {
        if self.count < NOTED_MAX && self.names.entry(dir).or_default().insert(name.to_vec()) {
            self.count += 1;
        }
    }

    /// Notes that a file was changed.
    pub(super) fn file(&mut self, ino: InodeNo) {
        if self.count < NOTED_MAX && self.files.insert(ino) {
            self.count += 1;
        }
    }

    /// Returns whether the file's content or its attributes may have been changed.
    pub(super) fn has_file(&self, ino: InodeNo) -> bool {
        self.is_full() || self.files.contains(&ino)
    }

    /// Returns whether that name in the directory may have been changed.
    pub(super) fn has_name(&self, dir: InodeNo, name: &[u8]) -> bool {
        let names = self.names.get(&dir);
        self.is_full() || names.is_some_and(|names| names.contains(name))
    }

    /// Returns whether any name in the directory may have been changed.
    pub(super) fn has_names(&self, dir: InodeNo) -> bool {
        self.is_full() || self.names.contains_key(&dir)
    }

    fn is_full(&self) -> bool {
        self.count >= NOTED_MAX
    }
}
