//! Records the changes of a volume, between the mount's server and the volume.
//!
//! Changes are made one at a time, and each takes its place in the list. So the list is the order
//! in which they happened. Calls that only read are not recorded and wait for nothing.

mod group;
mod seen;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use stetfs::{
    Attr, Caller, Change, DirEntry, Entry, FallocateMode, Fs, Name, OpenFlags, RenameFlags, Result,
    StatFs, Whence, WriteFlags,
};
use stetfs_format::InodeNo;
use stetfs_fuse::Backend;
use stetfs_fuse::backend::AtomicGroup;

use crate::call::{Attribute, Call, Process, Recording, Slot, What};
use crate::content::Bytes;
use crate::family;
use crate::marks::Marks;
use crate::tree::{self, Body, Node, Object, ROOT, Tree};
use group::Noted;
use seen::Seen;

/// A volume that records its changes.
#[derive(Clone)]
pub struct Recorder {
    fs: Fs,
    log: Arc<Mutex<Log>>,
    /// True if the program may use groups of changes.
    has_groups: bool,
}

/// The recording so far.
struct Log {
    /// False before the program begins: nothing is recorded then.
    began: bool,
    before: Option<Tree>,
    calls: Vec<Call>,
    processes: Vec<Process>,
    /// Threads by their numbers.
    known: HashMap<u32, usize>,
    objects: BTreeMap<InodeNo, Object>,
    next: u32,
    /// The newest name of each object, for paths.
    slots: HashMap<Object, Slot>,
    /// How often files have been opened for writing since the program began, and not closed. The
    /// close of another one is late: the kernel does not wait for the server's answer to it.
    opened: HashMap<InodeNo, usize>,
    marks: Marks,
    /// The time that the volume has given the next call, if it has.
    time: Option<(i64, u32)>,
    /// Bytes in the list.
    bytes: u64,
}

impl Recorder {
    /// A recorder of the changes to `fs`, and of marks.
    pub fn new(fs: Fs, marks: Marks) -> Self {
        let log = Log {
            began: false,
            before: None,
            calls: Vec::new(),
            processes: Vec::new(),
            known: HashMap::new(),
            objects: BTreeMap::new(),
            next: 0,
            slots: HashMap::new(),
            opened: HashMap::new(),
            marks,
            time: None,
            bytes: 0,
        };
        Self {
            fs,
            log: Arc::new(Mutex::new(log)),
            has_groups: false,
        }
    }

    /// Returns the same recorder, on which the program may use groups (docs/ATOMIC.md).
    pub fn with_groups(self) -> Self {
        Self {
            has_groups: true,
            ..self
        }
    }

    /// Starts the recording: the present tree is the one from which the program starts.
    ///
    /// # Errors
    /// The volume cannot be read.
    pub fn begin(&self) -> Result<()> {
        let mut log = self.log.lock();
        let (before, objects) = Tree::read(&self.fs)?;
        log.next = objects.len() as u32;
        log.objects = objects;
        for object in log.objects.values().copied().collect::<Vec<_>>() {
            let Some(Node {
                body: Body::Dir(names),
                ..
            }) = before.get(object)
            else {
                continue;
            };
            for (name, below) in names {
                let (dir, name) = (object, name.clone());
                log.slots.insert(*below, Slot { dir, name });
            }
        }
        log.before = Some(before);
        log.began = true;
        Ok(())
    }

    /// Records the marks that have come since the last change.
    pub(crate) fn take_marks(&self) {
        self.log.lock().take_marks();
    }

    /// Returns the recording so far.
    ///
    /// # Panics
    /// It has not begun.
    pub fn so_far(&self) -> Recording {
        let log = self.log.lock();
        Recording {
            before: log.before.clone().expect("it has begun"),
            calls: log.calls.clone(),
            processes: log.processes.clone(),
            has_groups: self.has_groups,
        }
    }

    /// Ends the recording and returns it.
    ///
    /// # Panics
    /// It has not begun.
    pub fn end(&self) -> Recording {
        let mut log = self.log.lock();
        log.take_marks();
        log.marks_end();
        log.began = false;
        Recording {
            before: log.before.take().expect("it has begun"),
            calls: std::mem::take(&mut log.calls),
            processes: std::mem::take(&mut log.processes),
            has_groups: self.has_groups,
        }
    }

    fn rename(&self, c: &Caller, from: Name<'_>, to: Name<'_>, flags: RenameFlags) -> Result<Attr> {
        let ((dir, name), (new_dir, new_name)) = (from, to);
        self.noting(
            |fs| {
                let replaced = ino_of(fs, c, new_dir, new_name);
                let moved = fs.change(c, &Change::Rename(from, to, flags))?;
                Ok((moved, replaced))
            },
            |log, fs, (moved, replaced)| {
                let object = log.object(moved.ino);
                let replaced = replaced.map(|ino| log.object(ino));
                if replaced == Some(object) {
                    // Two names of one file: nothing happens.
                    return;
                }
                let (from, to) = (log.slot(dir, name), log.slot(new_dir, new_name));
                let behind = match ino_of(fs, c, dir, name) {
                    None => None,
                    Some(_) if flags.contains(RenameFlags::EXCHANGE) => {
                        replaced.map(|object| (object, None))
                    }
                    Some(ino) => {
                        let whiteout = tree::node(fs, ino).ok().map(Arc::new);
                        Some((log.fresh(ino), whiteout))
                    }
                };
                log.at_the_time_of(fs, new_dir);
                log.renamed((from, object), (to, replaced), behind);
            },
        )
        .map(|(moved, _)| moved)
    }

    /// Changes attributes, and records the change by `note`.
    fn set(
        &self,
        c: &Caller,
        change: &Change<'_>,
        ino: InodeNo,
        note: impl FnOnce(&mut Log, &Fs, InodeNo, &Seen),
    ) -> Result<Attr> {
        self.noting(
            |fs| Ok((Seen::of(fs, ino)?, fs.change(c, change)?)),
            |log, fs, (before, _)| note(log, fs, ino, before),
        )
        .map(|(_, after)| after)
    }

    /// Makes a change, and records it when it has succeeded.
    fn noting<T>(
        &self,
        op: impl FnOnce(&Fs) -> Result<T>,
        note: impl FnOnce(&mut Log, &Fs, &T),
    ) -> Result<T> {
        let mut log = self.log.lock();
        log.take_marks();
        let done = op(&self.fs)?;
        if log.began {
            note(&mut log, &self.fs, &done);
        }
        Ok(done)
    }
}

impl Log {
    fn take_marks(&mut self) {
        for text in self.marks.take() {
            self.mark(text);
        }
    }

    fn marks_end(&mut self) {
        for text in self.marks.rest() {
            self.mark(text);
        }
    }

    fn mark(&mut self, text: String) {
        if self.began {
            let call = Call {
                by: None,
                time: now(),
                path: String::new(),
                what: What::Mark { text },
            };
            self.calls.push(call);
        }
    }

    fn push(&mut self, path: String, what: What) {
        let by = Some(self.process(family::asking()));
        let time = self.time.take().unwrap_or_else(now);
        self.calls.push(Call {
            by,
            time,
            path,
            what,
        });
    }

    /// Gives the next call the time that an inode has of it.
    fn at_the_time_of(&mut self, fs: &Fs, ino: InodeNo) {
        let attr = fs.getattr(ino).ok();
        self.time = attr.map(|attr| (attr.mtime.sec, attr.mtime.nsec));
    }

    fn process(&mut self, pid: u32) -> usize {
        if let Some(known) = self.known.get(&pid) {
            return *known;
        }
        let name = match pid {
            0 => Ok("kernel".to_owned()),
            _ => std::fs::read_to_string(format!("/proc/{pid}/comm")),
        };
        let name = name.unwrap_or_default().trim().to_owned();
        self.processes.push(Process { pid, name });
        let number = self.processes.len() - 1;
        self.known.insert(pid, number);
        number
    }

    /// Returns the object of an inode. An unknown inode becomes a new object.
    fn object(&mut self, ino: InodeNo) -> Object {
        if let Some(object) = self.objects.get(&ino) {
            return *object;
        }
        self.fresh(ino)
    }

    /// Returns the object of a new inode, whose number may have been another object's.
    fn fresh(&mut self, ino: InodeNo) -> Object {
        let object = Object(self.next);
        self.next += 1;
        self.objects.insert(ino, object);
        object
    }

    fn slot(&mut self, dir: InodeNo, name: &[u8]) -> Slot {
        Slot {
            dir: self.object(dir),
            name: name.to_owned(),
        }
    }

    fn named(&mut self, slot: &Slot, object: Object) {
        self.slots.insert(object, slot.clone());
    }

    fn path_of(&self, object: Object) -> String {
        let mut parts = Vec::new();
        let mut at = object;
        while at != ROOT {
            match self.slots.get(&at) {
                Some(slot) if parts.len() < 100 => {
                    parts.push(String::from_utf8_lossy(&slot.name).into_owned());
                    at = slot.dir;
                }
                _ => {
                    parts.push("(no name)".to_owned());
                    break;
                }
            }
        }
        parts.reverse();
        parts.join("/")
    }

    fn path_of_slot(&self, slot: &Slot) -> String {
        let name = String::from_utf8_lossy(&slot.name);
        match self.path_of(slot.dir) {
            dir if dir.is_empty() => name.into_owned(),
            dir => format!("{dir}/{name}"),
        }
    }

    fn on(&mut self, ino: InodeNo, what: impl FnOnce(Object) -> What) {
        let object = self.object(ino);
        let path = self.path_of(object);
        self.push(path, what(object));
    }

    /// Notes that the program opens a file.
    fn takes_open(&mut self, ino: InodeNo, flags: OpenFlags) {
        if flags.contains(OpenFlags::WRITE) {
            *self.opened.entry(ino).or_default() += 1;
        }
    }

    /// Notes that a writer closes a file. Returns whether the program had opened it.
    fn takes_close(&mut self, ino: InodeNo) -> bool {
        let Some(count) = self.opened.get_mut(&ino) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.opened.remove(&ino);
        }
        true
    }

    fn made(&mut self, fs: &Fs, dir: InodeNo, name: &[u8], ino: InodeNo) {
        let object = self.fresh(ino);
        let slot = self.slot(dir, name);
        let path = self.path_of_slot(&slot);
        self.named(&slot, object);
        if let Ok(node) = tree::node(fs, ino) {
            let node = Arc::new(node);
            self.at_the_time_of(fs, dir);
            self.push(path, What::Make { slot, object, node });
        }
    }

    fn linked(&mut self, fs: &Fs, ino: InodeNo, dir: InodeNo, name: &[u8]) {
        let (object, slot) = (self.object(ino), self.slot(dir, name));
        let path = self.path_of_slot(&slot);
        self.named(&slot, object);
        self.at_the_time_of(fs, dir);
        self.push(path, What::Link { slot, object });
    }

    fn removed(&mut self, fs: &Fs, dir: InodeNo, name: &[u8], ino: InodeNo) {
        let (slot, object) = (self.slot(dir, name), self.object(ino));
        let path = self.path_of_slot(&slot);
        self.at_the_time_of(fs, dir);
        self.push(path, What::Remove { slot, object });
    }

    /// `behind`: what the old name stands for now, and the device that it is if it is new.
    fn renamed(
        &mut self,
        from: (Slot, Object),
        to: (Slot, Option<Object>),
        behind: Option<(Object, Option<Arc<Node>>)>,
    ) {
        let (path, to_path) = (self.path_of_slot(&from.0), self.path_of_slot(&to.0));
        self.named(&to.0, from.1);
        let (behind, whiteout) = behind.unzip();
        if let Some(behind) = behind {
            self.named(&from.0, behind);
        }
        let whiteout = whiteout.flatten();
        let what = What::Rename {
            from,
            to,
            to_path,
            behind,
            whiteout,
        };
        self.push(path, what);
    }

    /// Records attributes that changed at once, if any.
    fn set(&mut self, ino: InodeNo, attributes: Vec<Attribute>) {
        if !attributes.is_empty() {
            self.on(ino, |object| What::Set { object, attributes });
        }
    }

    /// Content changes, which may have cleared privileges first: each in a transaction of its own
    /// (`file_remove_privs`).
    fn lost_privileges(&mut self, fs: &Fs, ino: InodeNo, before: &Seen) {
        if let Ok(after) = Seen::of(fs, ino) {
            self.set(ino, before.gone(&after));
            self.set(ino, before.inode(&after));
        }
    }

    /// All that has changed is one change: an extended attribute, and what follows from it.
    fn set_at_once(&mut self, fs: &Fs, ino: InodeNo, before: &Seen) {
        if let Ok(after) = Seen::of(fs, ino) {
            self.set(ino, before.all(&after));
        }
    }

    /// Attributes were set, or the length. An ACL follows a mode in a transaction of its own
    /// (`posix_acl_chmod`).
    fn set_by(&mut self, fs: &Fs, ino: InodeNo, before: &Seen) {
        let Ok(after) = Seen::of(fs, ino) else { return };
        self.set(ino, before.gone(&after));
        let is_resized = self.resized(fs, ino, before, &after);
        self.set(ino, before.inode(&after));
        self.set(ino, before.given(&after));
        if !is_resized {
            self.timed(ino, before, &after);
        }
    }

    /// True if the length has changed; records the change.
    fn resized(&mut self, fs: &Fs, ino: InodeNo, before: &Seen, after: &Seen) -> bool {
        let (from, to) = (before.attr.size, after.attr.size);
        if from != to {
            self.at_the_time_of(fs, ino);
            self.on(ino, |file| What::Resize { file, from, to });
        }
        from != to
    }

    /// Records a time that no other call records.
    fn timed(&mut self, ino: InodeNo, before: &Seen, after: &Seen) {
        self.set(ino, before.modified(after).into_iter().collect());
    }

    fn wrote(&mut self, ino: InodeNo, offset: u64, bytes: &[u8], size: u64) {
        self.bytes += bytes.len() as u64;
        let bytes = Bytes(bytes.into());
        self.on(ino, |file| What::Write {
            file,
            offset,
            bytes,
            size,
        });
    }
}

fn ino_of(fs: &Fs, c: &Caller, dir: InodeNo, name: &[u8]) -> Option<InodeNo> {
    fs.lookup(c, dir, name).ok().map(|entry| entry.ino)
}

fn now() -> (i64, u32) {
    let time = stetfs::clock::Clock::System.now();
    (time.sec, time.nsec)
}

/// Calls that change nothing.
macro_rules! pass {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            fn $name(&self, $($arg: $kind),*) -> $result {
                Backend::$name(&self.fs, $($arg),*)
            }
        )*
    };
}

impl Backend for Recorder {
    pass! {
        fn memory() -> u64;
        fn has_acls() -> bool;
        fn time_step() -> std::time::Duration;
        fn has_birth_times() -> bool;
        fn lookup(c: &Caller, dir: InodeNo, name: &[u8]) -> Result<Entry>;
        fn readlink(ino: InodeNo) -> Result<Vec<u8>>;
        fn readdir(dir: InodeNo, cookie: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool)
            -> Result<()>;
        fn getattr(ino: InodeNo) -> Result<Attr>;
        fn getxattr(c: &Caller, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(c: &Caller, ino: InodeNo) -> Result<Vec<u8>>;
        fn release(ino: InodeNo) -> Result<()>;
        fn forget(ino: InodeNo) -> Result<()>;
        fn read(ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize>;
        fn seek(ino: InodeNo, offset: u64, whence: Whence) -> Result<u64>;
        fn statfs() -> Result<StatFs>;
        fn room(c: &Caller) -> u64;
        fn stats() -> impl Serialize;
        fn begin() -> ();
        fn unmount() -> Result<()>;
    }

    fn is_atomic(&self, ino: InodeNo) -> bool {
        self.has_groups && Backend::is_atomic(&self.fs, ino)
    }

    fn marked_write_max(&self) -> u64 {
        Backend::marked_write_max(&self.fs)
    }

    fn has_groups(&self) -> bool {
        self.has_groups
    }

    fn can_group(&self, ino: InodeNo) -> bool {
        self.has_groups && Backend::can_group(&self.fs, ino)
    }

    fn new_group(&self) -> Option<Box<dyn AtomicGroup>> {
        self.has_groups.then(|| Noted::boxed(self))
    }

    fn asked_by(&self, pid: u32) {
        family::asked_by(pid);
    }

    fn change(&self, c: &Caller, change: &Change<'_>) -> Result<Attr> {
        match *change {
            Change::Make((dir, name), _) => self.noting(
                |fs| fs.change(c, change),
                |log, fs, made| log.made(fs, dir, name, made.ino),
            ),
            Change::Link(ino, (dir, name)) => self.noting(
                |fs| fs.change(c, change),
                |log, fs, _| log.linked(fs, ino, dir, name),
            ),
            Change::Unlink((dir, name)) | Change::Rmdir((dir, name)) => self.noting(
                |fs| fs.change(c, change),
                |log, fs, gone| log.removed(fs, dir, name, gone.ino),
            ),
            Change::Rename(from, to, flags) => self.rename(c, from, to, flags),
            Change::SetAttr(ino, _) => self.set(c, change, ino, Log::set_by),
            Change::SetXattr(ino, ..) | Change::RemoveXattr(ino, _) => {
                self.set(c, change, ino, Log::set_at_once)
            }
            Change::SetFlags(..) | Change::SetGeneration(..) => self.fs.change(c, change),
        }
    }

    fn create(
        &self,
        c: &Caller,
        dir: InodeNo,
        name: &[u8],
        mode: u16,
        flags: OpenFlags,
    ) -> Result<Entry> {
        self.noting(
            |fs| {
                let before = ino_of(fs, c, dir, name).map(|ino| Seen::of(fs, ino));
                Ok((before.transpose()?, fs.create(c, dir, name, mode, flags)?))
            },
            |log, fs, (before, entry)| {
                log.takes_open(entry.ino, flags);
                match before {
                    None => log.made(fs, dir, name, entry.ino),
                    Some(before) => log.set_by(fs, entry.ino, before),
                }
            },
        )
        .map(|(_, entry)| entry)
    }

    fn create_unnamed(
        &self,
        c: &Caller,
        dir: InodeNo,
        mode: u16,
        flags: OpenFlags,
    ) -> Result<Entry> {
        self.noting(
            |fs| fs.create_unnamed(c, dir, mode, flags),
            |log, fs, entry| {
                log.takes_open(entry.ino, flags);
                let object = log.fresh(entry.ino);
                let dir = log.object(dir);
                let path = log.path_of(dir);
                if let Ok(node) = tree::node(fs, entry.ino) {
                    let node = Arc::new(node);
                    log.push(path, What::Unnamed { object, node });
                }
            },
        )
    }

    fn open(&self, c: &Caller, ino: InodeNo, flags: OpenFlags) -> Result<()> {
        self.noting(
            |fs| {
                let cuts = flags.contains(OpenFlags::TRUNCATE);
                let before = cuts.then(|| Seen::of(fs, ino)).transpose()?;
                fs.open(c, ino, flags)?;
                Ok(before)
            },
            |log, fs, before| {
                log.takes_open(ino, flags);
                if let Some(before) = before {
                    log.set_by(fs, ino, before);
                }
            },
        )
        .map(drop)
    }

    fn writer_closes(&self, ino: InodeNo) {
        let closed = self.noting(
            |_| Ok(()),
            |log, _, ()| {
                if log.takes_close(ino) {
                    log.on(ino, |file| What::Close { file });
                }
            },
        );
        // Does nothing, so nothing can fail.
        drop(closed);
    }

    fn write_with(
        &self,
        c: &Caller,
        ino: InodeNo,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
    ) -> Result<(u64, usize)> {
        // The recording itself says when a change becomes durable.
        let plain = flags.difference(WriteFlags::SYNC | WriteFlags::DATASYNC);
        self.noting(
            |fs| {
                let before = Seen::of(fs, ino)?;
                Ok((before, fs.write_with(c, ino, offset, bytes, plain)?))
            },
            |log, fs, (before, (at, len))| {
                log.lost_privileges(fs, ino, before);
                if *len > 0 {
                    log.at_the_time_of(fs, ino);
                    log.wrote(ino, *at, &bytes[..*len], before.attr.size);
                }
                let datasync = !flags.contains(WriteFlags::SYNC);
                if flags != plain {
                    log.on(ino, |object| What::Fsync { object, datasync });
                }
            },
        )
        .map(|(_, written)| written)
    }

    fn fallocate(
        &self,
        c: &Caller,
        ino: InodeNo,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.noting(
            |fs| {
                let before = Seen::of(fs, ino)?;
                fs.fallocate(c, ino, mode, offset, len)?;
                Ok((before, Seen::of(fs, ino)?))
            },
            |log, fs, (before, after)| {
                log.lost_privileges(fs, ino, before);
                let zeros = FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE;
                let size = before.attr.size;
                let is_zeroed = mode.intersects(zeros) && offset < size;
                if is_zeroed {
                    let len = len.min(size - offset);
                    log.at_the_time_of(fs, ino);
                    log.on(ino, |file| What::Zero { file, offset, len });
                }
                if !log.resized(fs, ino, before, after) && !is_zeroed {
                    log.timed(ino, before, after);
                }
            },
        )
        .map(drop)
    }

    fn copy_range(
        &self,
        c: &Caller,
        from: (InodeNo, u64),
        to: (InodeNo, u64),
        len: u64,
    ) -> Result<u64> {
        self.noting(
            |fs| Ok((Seen::of(fs, to.0)?, fs.copy_range(c, from, to, len)?)),
            |log, fs, (before, copied)| {
                log.lost_privileges(fs, to.0, before);
                let mut bytes = vec![0; *copied as usize];
                let mut done = 0;
                while done < bytes.len() {
                    match fs.read(to.0, to.1 + done as u64, &mut bytes[done..]) {
                        Ok(n) if n > 0 => done += n,
                        _ => break,
                    }
                }
                if done > 0 {
                    log.at_the_time_of(fs, to.0);
                    log.wrote(to.0, to.1, &bytes[..done], before.attr.size);
                }
            },
        )
        .map(|(_, copied)| copied)
    }

    fn fsync(&self, ino: InodeNo, datasync: bool) -> Result<()> {
        self.noting(
            |_| Ok(()),
            |log, _, ()| log.on(ino, |object| What::Fsync { object, datasync }),
        )
    }

    fn fsync_root(&self, datasync: bool) -> Result<()> {
        self.fsync(self.fs.root(), datasync)
    }

    fn sync(&self) -> Result<()> {
        self.noting(|_| Ok(()), |log, _, ()| log.push(String::new(), What::Sync))
    }
}
