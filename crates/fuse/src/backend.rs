//! What the server asks of a file system.
//!
//! There is one server, generic over this trait. The transport, the threads, the mount options, the
//! agreement with the kernel and the decoding of requests are the same for every file system behind
//! it. A call from the server is a call of the file system itself, with nothing in between. The
//! volume ([`Fs`]) is one implementation. The benchmarks have another, which keeps everything in
//! memory and so shows what the server costs.
//!
//! Operations, their arguments and their errors are those of [`Fs`], whose documentation says what
//! each does. Operations that few file systems have are refused by default.

use std::time::Duration;

use serde::Serialize;
use stetfs::{
    Attr, Caller, Change, DirEntry, Entry, Error, FallocateMode, Fs, Group, InUse, OpenFlags, Past,
    Result, Shutdown, StatFs, Whence, WriteFlags,
};
use stetfs_format::InodeNo;

use crate::errno::Outcome;

/// The operations that the server needs of a group of changes. They are those of [`Group`].
pub trait AtomicGroup: Send {
    /// As [`Group::files`].
    fn files(&self) -> Vec<InodeNo>;

    /// As [`Group::size`].
    fn size(&self, ino: InodeNo) -> Result<u64>;

    /// As [`Group::read`].
    fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize>;

    /// As [`Group::write`].
    fn write(&mut self, c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<()>;

    /// As [`Group::change`].
    fn change(&mut self, c: &Caller, change: &Change<'_>) -> Result<Attr>;

    /// As [`Group::commit`].
    fn commit(&mut self, c: &Caller) -> Result<()>;
}

impl AtomicGroup for Group {
    fn files(&self) -> Vec<InodeNo> {
        Group::files(self)
    }

    fn size(&self, ino: InodeNo) -> Result<u64> {
        Group::size(self, ino)
    }

    fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        Group::read(self, ino, offset, out)
    }

    fn write(&mut self, c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<()> {
        Group::write(self, c, ino, offset, bytes)
    }

    fn change(&mut self, c: &Caller, change: &Change<'_>) -> Result<Attr> {
        Group::change(self, c, change)
    }

    fn commit(&mut self, c: &Caller) -> Result<()> {
        Group::commit(self, c)
    }
}

/// A file system that the server can mount. Workers call it in parallel; clones are the same file
/// system.
///
/// - The root directory is inode 2, every other file has a number from 11 on, and `.` and `..` are
///   among the entries of a directory.
/// - The kernel has checked permissions, and nothing changes but through the server.
/// - A removed file keeps its number and content while it is open. It also keeps them until the
///   kernel has forgotten it, unless it is a regular file or a symbolic link.
pub trait Backend: Clone + Send + Sync + 'static {
    // -- what is agreed with the kernel --

    /// Returns how many bytes of memory the mount may take. The buffers of the workers are a part
    /// of it.
    fn memory(&self) -> u64;

    /// Returns whether the kernel is to check permissions by ACLs too.
    fn has_acls(&self) -> bool;

    /// Returns the step of its timestamps.
    fn time_step(&self) -> Duration {
        Duration::from_nanos(1)
    }

    /// Returns whether its files have a time of birth.
    fn has_birth_times(&self) -> bool {
        true
    }

    /// As [`Fs::change`].
    fn change(&self, c: &Caller, change: &Change<'_>) -> Result<Attr>;

    // -- names --

    /// As [`Fs::lookup`].
    fn lookup(&self, c: &Caller, dir: InodeNo, name: &[u8]) -> Result<Entry>;

    /// As [`Fs::readlink`].
    fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>>;

    /// As [`Fs::create`]: the file is open then.
    fn create(
        &self,
        c: &Caller,
        dir: InodeNo,
        name: &[u8],
        mode: u16,
        flags: OpenFlags,
    ) -> Result<Entry>;

    /// As [`Fs::create_unnamed`].
    fn create_unnamed(
        &self,
        _c: &Caller,
        _dir: InodeNo,
        _mode: u16,
        _flags: OpenFlags,
    ) -> Result<Entry> {
        Err(Error::NotSupported)
    }

    /// As [`Fs::readdir`].
    fn readdir(
        &self,
        dir: InodeNo,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    // -- attributes --

    /// As [`Fs::getattr`].
    fn getattr(&self, ino: InodeNo) -> Result<Attr>;

    /// As [`Fs::getattrs`]. By default one after the other.
    fn getattrs(&self, inos: &[InodeNo], each: &mut dyn FnMut(Result<Attr>)) -> Result<()> {
        inos.iter().for_each(|ino| each(self.getattr(*ino)));
        Ok(())
    }

    /// As [`Fs::is_atomic`]: such a file is written past the page cache.
    fn is_atomic(&self, _ino: InodeNo) -> bool {
        false
    }

    /// As [`Fs::is_synchronous`]: such a file is written past the page cache, too.
    fn is_synchronous(&self, _ino: InodeNo) -> bool {
        false
    }

    /// As [`Fs::label`].
    fn label(&self) -> Result<Vec<u8>> {
        Err(Error::NotSupported)
    }

    /// As [`Fs::set_label`].
    fn set_label(&self, _c: &Caller, _label: &[u8]) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Returns the largest write to such a file, in bytes, that is one transaction
    /// ([`stetfs::Stats::marked_write_max`]).
    fn marked_write_max(&self) -> u64 {
        0
    }

    /// As [`Fs::getxattr`].
    fn getxattr(&self, c: &Caller, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>>;

    /// As [`Fs::listxattr`].
    fn listxattr(&self, c: &Caller, ino: InodeNo) -> Result<Vec<u8>>;

    // -- contents --

    /// As [`Fs::open`].
    fn open(&self, c: &Caller, ino: InodeNo, flags: OpenFlags) -> Result<()>;

    /// Notes that a file that was open for writing is closed: [`Self::release`] follows.
    fn writer_closes(&self, _ino: InodeNo) {}

    /// As [`Fs::release`].
    fn release(&self, ino: InodeNo) -> Result<()>;

    /// Notes that the kernel has dropped an inode: all its references at once.
    fn forget(&self, ino: InodeNo) -> Result<()>;

    /// As [`Fs::read`].
    fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize>;

    /// As [`Fs::write_with`].
    fn write_with(
        &self,
        c: &Caller,
        ino: InodeNo,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
    ) -> Result<(u64, usize)>;

    /// As [`Fs::check_writable`].
    fn check_writable(&self) -> Result<()> {
        Ok(())
    }

    /// As [`Fs::takes`]. Called when [`Self::room`] is short.
    fn takes(&self, _ino: InodeNo, _offset: u64, _len: u64) -> Result<u64> {
        Ok(0)
    }

    /// As [`Fs::fallocate`].
    fn fallocate(
        &self,
        c: &Caller,
        ino: InodeNo,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()>;

    /// As [`Fs::seek`].
    fn seek(&self, ino: InodeNo, offset: u64, whence: Whence) -> Result<u64>;

    /// As [`Fs::copy_range`]. If it is refused, the kernel reads and writes instead.
    fn copy_range(
        &self,
        _c: &Caller,
        _from: (InodeNo, u64),
        _to: (InodeNo, u64),
        _len: u64,
    ) -> Result<u64> {
        Err(Error::NotSupported)
    }

    /// As [`Fs::fsync`].
    fn fsync(&self, ino: InodeNo, datasync: bool) -> Result<()>;

    /// As [`Fs::fsync`], for the root directory. By default everything becomes durable: the kernel
    /// does not pass sync(2) on to every mount, so `sync DIR` is the way to ask for it.
    fn fsync_root(&self, _datasync: bool) -> Result<()> {
        self.sync()
    }

    // -- the whole --

    /// Notes that a request has come from this thread of a process (0: from the kernel itself). The
    /// calls for it are made on the thread that calls this.
    fn asked_by(&self, _pid: u32) {}

    /// As [`Fs::sync`].
    fn sync(&self) -> Result<()>;

    /// As [`Fs::statfs`].
    fn statfs(&self) -> Result<StatFs>;

    /// As [`Fs::room`].
    fn room(&self, c: &Caller) -> u64;

    /// As [`Fs::trim`].
    fn trim(&self, _c: &Caller, _offset: u64, _len: u64, _min_len: u64) -> Result<u64> {
        Err(Error::NotSupported)
    }

    /// As [`Fs::drain_some`].
    fn drain_some(&self) -> Result<u64> {
        Ok(0)
    }

    /// As [`Fs::shutdown`].
    fn shutdown(&self, _c: &Caller, _how: Shutdown) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// Returns its counters, for `system.stetfs.stats`: a record, to which the server adds its own.
    fn stats(&self) -> impl Serialize;

    /// Fails if its image is no longer complete. Called once a second.
    fn check_backing(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether there are groups of changes. If not, requests for one get the answer of
    /// other file systems.
    fn has_groups(&self) -> bool {
        false
    }

    /// Returns whether writes to this file can be in a group.
    fn can_group(&self, _ino: InodeNo) -> bool {
        false
    }

    /// Returns a new group of changes; `None` if there are none.
    fn new_group(&self) -> Option<Box<dyn AtomicGroup>> {
        None
    }

    /// As [`Fs::in_use`].
    fn in_use(&self) -> Vec<InUse> {
        Vec::new()
    }

    /// As [`Fs::use_again`].
    fn use_again(&self, _all: &[InUse]) -> Result<()> {
        Err(Error::NotSupported)
    }

    /// As [`Fs::redo`]: `None` if the file system has the operation, otherwise what `work` returns.
    fn redo(
        &self,
        _past: &Past,
        _work: &mut dyn FnMut() -> Outcome<()>,
    ) -> Result<Option<Outcome<()>>> {
        Err(Error::NotSupported)
    }

    /// Begins the mount: from now on [`Self::forget`] is called.
    fn begin(&self) {}

    /// Ends the mount. Every later operation may fail.
    fn unmount(&self) -> Result<()>;
}

/// Methods that [`Fs`] has itself, with the same name and arguments.
macro_rules! as_the_volume_does {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            #[inline]
            fn $name(&self, $($arg: $kind),*) -> $result {
                Fs::$name(self, $($arg),*)
            }
        )*
    };
}

impl Backend for Fs {
    as_the_volume_does! {
        fn time_step() -> Duration;
        fn has_birth_times() -> bool;
        fn change(c: &Caller, change: &Change<'_>) -> Result<Attr>;
        fn lookup(c: &Caller, dir: InodeNo, name: &[u8]) -> Result<Entry>;
        fn readlink(ino: InodeNo) -> Result<Vec<u8>>;
        fn create(c: &Caller, dir: InodeNo, name: &[u8], mode: u16, flags: OpenFlags)
            -> Result<Entry>;
        fn create_unnamed(c: &Caller, dir: InodeNo, mode: u16, flags: OpenFlags) -> Result<Entry>;
        fn readdir(dir: InodeNo, cookie: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool)
            -> Result<()>;
        fn getattr(ino: InodeNo) -> Result<Attr>;
        fn getattrs(inos: &[InodeNo], each: &mut dyn FnMut(Result<Attr>)) -> Result<()>;
        fn getxattr(c: &Caller, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(c: &Caller, ino: InodeNo) -> Result<Vec<u8>>;
        fn release(ino: InodeNo) -> Result<()>;
        fn forget(ino: InodeNo) -> Result<()>;
        fn read(ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize>;
        fn write_with(c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8], flags: WriteFlags)
            -> Result<(u64, usize)>;
        fn check_writable() -> Result<()>;
        fn takes(ino: InodeNo, offset: u64, len: u64) -> Result<u64>;
        fn fallocate(c: &Caller, ino: InodeNo, mode: FallocateMode, offset: u64, len: u64)
            -> Result<()>;
        fn seek(ino: InodeNo, offset: u64, whence: Whence) -> Result<u64>;
        fn copy_range(c: &Caller, from: (InodeNo, u64), to: (InodeNo, u64), len: u64)
            -> Result<u64>;
        fn fsync(ino: InodeNo, datasync: bool) -> Result<()>;
        fn sync() -> Result<()>;
        fn statfs() -> Result<StatFs>;
        fn room(c: &Caller) -> u64;
        fn trim(c: &Caller, offset: u64, len: u64, min_len: u64) -> Result<u64>;
        fn drain_some() -> Result<u64>;
        fn shutdown(c: &Caller, how: Shutdown) -> Result<()>;
        fn unmount() -> Result<()>;
    }

    fn memory(&self) -> u64 {
        self.options().memory
    }

    fn has_acls(&self) -> bool {
        self.options().acl
    }

    fn open(&self, c: &Caller, ino: InodeNo, flags: OpenFlags) -> Result<()> {
        Fs::open(self, c, ino, flags).map(drop)
    }

    fn is_atomic(&self, ino: InodeNo) -> bool {
        Fs::is_atomic(self, ino).unwrap_or(false)
    }

    fn is_synchronous(&self, ino: InodeNo) -> bool {
        Fs::is_synchronous(self, ino).unwrap_or(false)
    }

    fn label(&self) -> Result<Vec<u8>> {
        Ok(Fs::label(self))
    }

    fn set_label(&self, c: &Caller, label: &[u8]) -> Result<()> {
        Fs::set_label(self, c, label)
    }

    fn marked_write_max(&self) -> u64 {
        Fs::marked_write_max(self)
    }

    fn has_groups(&self) -> bool {
        true
    }

    fn can_group(&self, ino: InodeNo) -> bool {
        Fs::can_group(self, ino).unwrap_or(false)
    }

    fn new_group(&self) -> Option<Box<dyn AtomicGroup>> {
        Some(Box::new(Fs::begin(self)))
    }

    fn stats(&self) -> impl Serialize {
        Fs::stats(self)
    }

    fn check_backing(&self) -> Result<()> {
        Ok(self.device().check_backing()?)
    }

    fn in_use(&self) -> Vec<InUse> {
        self.in_use()
    }

    fn use_again(&self, all: &[InUse]) -> Result<()> {
        Fs::use_again(self, all)
    }

    fn redo(
        &self,
        past: &Past,
        work: &mut dyn FnMut() -> Outcome<()>,
    ) -> Result<Option<Outcome<()>>> {
        Fs::redo(self, past.clone(), |_| Ok(work()))
    }

    fn begin(&self) {
        self.hold_removed();
    }
}
