//! One mount that shows one volume after another.
//!
//! Each volume has node numbers of its own: the number of the show, then the inode's number. So
//! nothing that the kernel or a process has cached of an earlier volume can be taken for a part of
//! a later one. Only the root has the same number in all volumes; the kernel caches nothing of it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::Serialize;
use stetfs::{
    Attr, Caller, Change, DirEntry, Entry, Error, FallocateMode, Fs, OpenFlags, Result, StatFs,
    Whence, WriteFlags,
};
use stetfs_format::InodeNo;
use stetfs_fuse::Backend;

/// The root directory's inode.
const ROOT: InodeNo = InodeNo(2);

/// The mount's backend.
#[derive(Clone)]
pub struct Stage {
    shown: Arc<RwLock<Shown>>,
}

struct Shown {
    fs: Fs,
    /// The number of the show. Node numbers have it in the bits above `bits`.
    show: u32,
    /// Bits for the inode's number.
    bits: u32,
}

impl Stage {
    /// Shows `fs`. Later volumes may have at most `inodes` inodes.
    pub fn new(fs: Fs, inodes: u64) -> Self {
        let bits = 64 - inodes.max(1).leading_zeros();
        let shown = Shown {
            fs,
            show: 0,
            bits: bits.clamp(8, 31),
        };
        Self {
            shown: Arc::new(RwLock::new(shown)),
        }
    }

    /// Shows another volume. Open files of the last one become stale. Numbers of shows are used
    /// again only when all have been used.
    pub fn show(&self, fs: Fs) {
        let mut shown = self.shown.write();
        let shows = u32::MAX >> shown.bits;
        shown.fs = fs;
        shown.show = (shown.show + 1) % shows.max(1);
    }

    fn with<T>(&self, op: impl FnOnce(&Shown) -> Result<T>) -> Result<T> {
        op(&self.shown.read())
    }
}

impl Shown {
    /// Returns the node number of an inode.
    fn out(&self, ino: InodeNo) -> InodeNo {
        match ino {
            ROOT => ROOT,
            InodeNo(n) => InodeNo(n | self.show << self.bits),
        }
    }

    /// Returns the inode of a node number, which must be of this show.
    fn inside(&self, ino: InodeNo) -> Result<InodeNo> {
        match ino {
            ROOT => Ok(ROOT),
            InodeNo(n) if n >> self.bits == self.show => Ok(InodeNo(n & ((1 << self.bits) - 1))),
            _ => Err(Error::Stale),
        }
    }

    fn attr(&self, attr: Attr) -> Attr {
        Attr {
            ino: self.out(attr.ino),
            ..attr
        }
    }

    fn entry(&self, entry: Entry) -> Entry {
        Entry {
            ino: self.out(entry.ino),
            attr: self.attr(entry.attr),
            ..entry
        }
    }
}

/// Calls on an inode whose answer holds no inode numbers.
macro_rules! on_inode {
    ($(fn $name:ident($($before:ident: $b:ty,)? [$ino:ident] $(, $arg:ident: $kind:ty)*)
        -> $result:ty;)*) => {
        $(
            fn $name(&self, $($before: $b,)? $ino: InodeNo $(, $arg: $kind)*) -> $result {
                self.with(|s| s.fs.$name($($before,)? s.inside($ino)? $(, $arg)*))
            }
        )*
    };
}

/// Calls that answer with the entry of a name in a directory.
macro_rules! makes {
    ($(fn $name:ident($($arg:ident: $kind:ty),*);)*) => {
        $(
            fn $name(&self, c: &Caller, dir: InodeNo $(, $arg: $kind)*) -> Result<Entry> {
                self.with(|s| Ok(s.entry(s.fs.$name(c, s.inside(dir)? $(, $arg)*)?)))
            }
        )*
    };
}

impl Backend for Stage {
    on_inode! {
        fn readlink([ino]) -> Result<Vec<u8>>;
        fn getxattr(c: &Caller, [ino], name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(c: &Caller, [ino]) -> Result<Vec<u8>>;
        fn release([ino]) -> Result<()>;
        fn forget([ino]) -> Result<()>;
        fn read([ino], offset: u64, out: &mut [u8]) -> Result<usize>;
        fn write_with(c: &Caller, [ino], offset: u64, bytes: &[u8], flags: WriteFlags)
            -> Result<(u64, usize)>;
        fn fallocate(c: &Caller, [ino], mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
        fn seek([ino], offset: u64, whence: Whence) -> Result<u64>;
        fn fsync([ino], datasync: bool) -> Result<()>;
    }

    makes! {
        fn lookup(name: &[u8]);
        fn create(name: &[u8], mode: u16, flags: OpenFlags);
        fn create_unnamed(mode: u16, flags: OpenFlags);
    }

    fn memory(&self) -> u64 {
        Backend::memory(&self.shown.read().fs)
    }

    fn has_acls(&self) -> bool {
        Backend::has_acls(&self.shown.read().fs)
    }

    fn time_step(&self) -> Duration {
        self.shown.read().fs.time_step()
    }

    fn change(&self, c: &Caller, change: &Change<'_>) -> Result<Attr> {
        self.with(|s| Ok(s.attr(s.fs.change(c, &change.with_inodes(|ino| s.inside(ino))?)?)))
    }

    fn readdir(
        &self,
        dir: InodeNo,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.with(|s| {
            s.fs.readdir(s.inside(dir)?, cookie, &mut |entry| {
                each(DirEntry {
                    ino: s.out(entry.ino),
                    ..entry
                })
            })
        })
    }

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        self.with(|s| Ok(s.attr(s.fs.getattr(s.inside(ino)?)?)))
    }

    fn open(&self, c: &Caller, ino: InodeNo, flags: OpenFlags) -> Result<()> {
        self.with(|s| s.fs.open(c, s.inside(ino)?, flags).map(drop))
    }

    fn copy_range(
        &self,
        c: &Caller,
        from: (InodeNo, u64),
        to: (InodeNo, u64),
        len: u64,
    ) -> Result<u64> {
        self.with(|s| {
            let from = (s.inside(from.0)?, from.1);
            s.fs.copy_range(c, from, (s.inside(to.0)?, to.1), len)
        })
    }

    fn sync(&self) -> Result<()> {
        self.with(|s| s.fs.sync())
    }

    fn statfs(&self) -> Result<StatFs> {
        self.with(|s| s.fs.statfs())
    }

    fn room(&self, c: &Caller) -> u64 {
        self.shown.read().fs.room(c)
    }

    fn stats(&self) -> impl Serialize {
        self.shown.read().fs.stats()
    }

    fn begin(&self) {
        self.shown.read().fs.hold_removed();
    }

    /// The volume is thrown away, so there is nothing to write.
    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}
