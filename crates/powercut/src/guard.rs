//! Keeps strangers out: processes that the program has not started ([`crate::family`]) change
//! nothing behind a guard, and their syncs make nothing durable.
//!
//! Strangers may read. Their changes are refused (EROFS), so that neither the program nor a check
//! ever meets one. Their syncs are answered and go no further. All of this is noted for the report.
//! What the kernel does for an open file counts as the program's, since only the program opens
//! files for writing.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use stetfs::{
    Attr, Caller, Change, DirEntry, Entry, Error, FallocateMode, OpenFlags, Result, StatFs, Whence,
    WriteFlags,
};
use stetfs_format::InodeNo;
use stetfs_fuse::Backend;
use stetfs_fuse::backend::AtomicGroup;

use crate::family::{self, Family, Whose};

/// At most this many strangers are noted.
const NOTED: usize = 64;

/// A file system behind a guard.
#[derive(Clone)]
pub struct Guard<B> {
    fs: B,
    door: Arc<Door>,
}

/// A process: its number and the name of its program.
type Stranger = (u32, String);

/// Refused requests by their kind, with their number.
type Asked = BTreeMap<&'static str, u64>;

#[derive(Default)]
struct Door {
    /// True if everybody is let in.
    everybody: bool,
    /// The processes that are let in; empty at first.
    family: OnceLock<Family>,
    /// True if nobody is let in any more.
    is_locked: AtomicBool,
    strangers: Mutex<BTreeMap<Stranger, Asked>>,
}

impl<B> Guard<B> {
    /// A guard that lets in everybody, or nobody so far.
    pub fn new(fs: B, everybody: bool) -> Self {
        let door = Door {
            everybody,
            ..Door::default()
        };
        Self {
            fs,
            door: Arc::new(door),
        }
    }

    /// Lets in the processes that this process starts from now on.
    pub fn open(&self) {
        self.door.family.get_or_init(Family::from_now_on);
    }

    /// Returns the processes that are let in, once the guard is open.
    pub fn family(&self) -> Option<&Family> {
        self.door.family.get()
    }

    /// From now on lets in nobody. Requests that still come are the kernel's, for files that the
    /// program had open.
    pub fn lock(&self) {
        self.door.is_locked.store(true, Ordering::Relaxed);
    }

    /// Returns the strangers so far, a line for each.
    pub fn strangers(&self) -> Vec<String> {
        let strangers = self.door.strangers.lock();
        let line = |((pid, name), asked): (&Stranger, &Asked)| {
            let who = match pid {
                0 => "a process outside of this pid namespace".to_owned(),
                pid => format!("{name}[{pid}]"),
            };
            let asked = asked.iter().map(|(what, times)| match times {
                1 => (*what).to_owned(),
                times => format!("{what} ({times} times)"),
            });
            format!("{who}: {}", asked.collect::<Vec<_>>().join(", "))
        };
        strangers.iter().map(line).collect()
    }

    fn whose(&self) -> Whose {
        let family = self.door.family.get();
        match family.map_or(Whose::Stranger, Family::whose) {
            Whose::Program if self.is_locked() => Whose::Stranger,
            Whose::Stranger | Whose::Nameless if self.lets_everybody_in() => Whose::Program,
            whose => whose,
        }
    }

    fn lets_everybody_in(&self) -> bool {
        self.door.everybody && !self.is_locked()
    }

    fn is_locked(&self) -> bool {
        self.door.is_locked.load(Ordering::Relaxed)
    }

    fn note(&self, what: &'static str) {
        if self.is_locked() {
            return;
        }
        let pid = family::asking();
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let mut strangers = self.door.strangers.lock();
        let key = (pid, name.trim().to_owned());
        if strangers.len() < NOTED || strangers.contains_key(&key) {
            let asked = strangers.entry(key).or_default();
            *asked.entry(what).or_default() += 1;
        }
    }

    /// Decides on a change by a name, or of an inode's attributes: only the program may make it.
    fn by_name(&self, what: &'static str) -> Result<()> {
        match self.whose() {
            Whose::Program => Ok(()),
            _ => self.refuse(what),
        }
    }

    /// Decides on a change through an open file.
    fn by_file(&self, what: &'static str) -> Result<()> {
        match self.whose() {
            Whose::Stranger => self.refuse(what),
            _ => Ok(()),
        }
    }

    fn refuse(&self, what: &'static str) -> Result<()> {
        self.note(what);
        Err(Error::ReadOnly)
    }

    /// True if a sync counts: only the program's may promise durability. Kernel threads sync files
    /// for io_submit(2), and for a loop device on a file.
    fn counts(&self, what: &'static str, of_a_file: bool) -> bool {
        let counts = match self.whose() {
            Whose::Program => true,
            Whose::Kernel => of_a_file,
            Whose::Stranger | Whose::Nameless => false,
        };
        if !counts {
            self.note(what);
        }
        counts
    }
}

/// Calls that anybody may make.
macro_rules! pass {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            fn $name(&self, $($arg: $kind),*) -> $result {
                self.fs.$name($($arg),*)
            }
        )*
    };
}

/// Calls that change something, each with its kind in a word.
macro_rules! guarded {
    ($($by:ident, $what:literal: fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            fn $name(&self, $($arg: $kind),*) -> $result {
                self.$by($what)?;
                self.fs.$name($($arg),*)
            }
        )*
    };
}

impl<B: Backend> Backend for Guard<B> {
    pass! {
        fn memory() -> u64;
        fn has_acls() -> bool;
        fn time_step() -> Duration;
        fn has_birth_times() -> bool;
        fn lookup(c: &Caller, dir: InodeNo, name: &[u8]) -> Result<Entry>;
        fn readlink(ino: InodeNo) -> Result<Vec<u8>>;
        fn readdir(dir: InodeNo, cookie: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool)
            -> Result<()>;
        fn getattr(ino: InodeNo) -> Result<Attr>;
        fn is_atomic(ino: InodeNo) -> bool;
        fn marked_write_max() -> u64;
        fn getxattr(c: &Caller, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(c: &Caller, ino: InodeNo) -> Result<Vec<u8>>;
        fn writer_closes(ino: InodeNo) -> ();
        fn release(ino: InodeNo) -> Result<()>;
        fn forget(ino: InodeNo) -> Result<()>;
        fn read(ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize>;
        fn seek(ino: InodeNo, offset: u64, whence: Whence) -> Result<u64>;
        fn statfs() -> Result<StatFs>;
        fn room(c: &Caller) -> u64;
        fn stats() -> impl Serialize;
        fn has_groups() -> bool;
        fn can_group(ino: InodeNo) -> bool;
        fn begin() -> ();
        fn unmount() -> Result<()>;
    }

    guarded! {
        by_name, "create": fn create(c: &Caller, dir: InodeNo, name: &[u8], mode: u16,
            flags: OpenFlags) -> Result<Entry>;
        by_name, "create": fn create_unnamed(c: &Caller, dir: InodeNo, mode: u16,
            flags: OpenFlags) -> Result<Entry>;
        by_file, "write": fn write_with(c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8],
            flags: WriteFlags) -> Result<(u64, usize)>;
        by_file, "write": fn fallocate(c: &Caller, ino: InodeNo, mode: FallocateMode,
            offset: u64, len: u64) -> Result<()>;
        by_file, "write": fn copy_range(c: &Caller, from: (InodeNo, u64), to: (InodeNo, u64),
            len: u64) -> Result<u64>;
    }

    fn change(&self, c: &Caller, change: &Change<'_>) -> Result<Attr> {
        self.by_name(change.verb())?;
        self.fs.change(c, change)
    }

    fn asked_by(&self, pid: u32) {
        family::asked_by(pid);
    }

    fn open(&self, c: &Caller, ino: InodeNo, flags: OpenFlags) -> Result<()> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            self.by_name("open for writing")?;
        }
        self.fs.open(c, ino, flags)
    }

    fn fsync(&self, ino: InodeNo, datasync: bool) -> Result<()> {
        if self.counts("fsync", true) {
            self.fs.fsync(ino, datasync)
        } else {
            Ok(())
        }
    }

    fn fsync_root(&self, datasync: bool) -> Result<()> {
        if self.counts("fsync", true) {
            self.fs.fsync_root(datasync)
        } else {
            Ok(())
        }
    }

    fn sync(&self) -> Result<()> {
        if self.counts("sync", false) {
            self.fs.sync()
        } else {
            Ok(())
        }
    }

    fn new_group(&self) -> Option<Box<dyn AtomicGroup>> {
        self.by_name("a group of changes").ok()?;
        self.fs.new_group()
    }
}
