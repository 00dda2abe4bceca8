//! Repeats recorded calls as system calls below a mounted directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Timespec,
    Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use stetfs::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};

use crate::call::{Attribute, Recording, Slot, What};
use crate::player::{Pace, last_uses};
use crate::tree::{Body, LOST_FOUND, Node, Object, ROOT, Tree};

const DIR: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Repeats recorded calls below a directory, as root.
pub(super) struct Player {
    pace: Pace,
    /// The root directory, and others that were used.
    dirs: BTreeMap<Object, OwnedFd>,
    /// The names of each object.
    names: BTreeMap<Object, BTreeSet<Slot>>,
    /// Open files, each once: a recording does not say when a file was opened.
    open: BTreeMap<Object, File>,
    /// Files with data that the kernel may not have sent to the device.
    written: BTreeSet<Object>,
    /// The last call that concerns each object.
    last: BTreeMap<Object, usize>,
    /// The directory that is changed to make the journal commit.
    aside: OwnedFd,
}

impl Player {
    /// A player below `root`, which holds the tree from before the program.
    pub(super) fn new(root: &Path, recording: &Recording, pace: Pace) -> Result<Self> {
        let root = rustix::fs::open(root, DIR, Mode::empty())?;
        // No state shows its time; nor that of the root directory.
        let aside = rustix::fs::openat(&root, LOST_FOUND, DIR, Mode::empty());
        let aside = aside.or_else(|_| rustix::fs::openat(&root, ".", DIR, Mode::empty()))?;
        Ok(Self {
            pace,
            dirs: BTreeMap::from([(ROOT, root)]),
            names: names_in(&recording.before),
            open: BTreeMap::new(),
            written: BTreeSet::new(),
            last: last_uses(recording),
            aside,
        })
    }

    /// The directory of a name, open.
    fn dir(&mut self, object: Object) -> Result<BorrowedFd<'_>> {
        if !self.dirs.contains_key(&object) {
            let slot = self.slot_of(object)?;
            let above = self.dir(slot.dir)?;
            let dir = rustix::fs::openat(above, slot.name.as_slice(), DIR, Mode::empty())?;
            self.dirs.insert(object, dir);
        }
        let dir = self.dirs.get(&object).context("it was opened")?;
        Ok(dir.as_fd())
    }

    fn slot_of(&self, object: Object) -> Result<Slot> {
        let names = self.names.get(&object);
        let first = names.and_then(|names| names.first()).cloned();
        first.context("the recording names a file that has no name, and is not open")
    }

    fn file(&mut self, object: Object) -> Result<&File> {
        if !self.open.contains_key(&object) {
            let slot = self.slot_of(object)?;
            let dir = self.dir(slot.dir)?;
            let file = rustix::fs::openat(dir, slot.name.as_slice(), FILE, Mode::empty())?;
            self.open.insert(object, file.into());
        }
        self.open.get(&object).context("it was opened")
    }

    fn stat(&mut self, slot: &Slot) -> Result<Stat> {
        let dir = self.dir(slot.dir)?;
        let how = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::statat(dir, slot.name.as_slice(), how)?)
    }

    /// Keeps an object whose name is about to go, if a later call uses it; otherwise nothing of it
    /// stays open.
    fn keep(&mut self, number: usize, slot: &Slot, object: Object) -> Result<()> {
        let is_used = self.last.get(&object).is_some_and(|last| *last > number);
        let mode = self.stat(slot)?.st_mode;
        match FileType::from_raw_mode(mode) {
            FileType::RegularFile if is_used => drop(self.file(object)?),
            FileType::Directory if !is_used => drop(self.dirs.remove(&object)),
            _ => {}
        }
        Ok(())
    }

    fn named(&mut self, slot: &Slot, object: Object) {
        self.names.entry(object).or_default().insert(slot.clone());
    }

    fn unnamed(&mut self, slot: &Slot, object: Object) {
        if let Some(names) = self.names.get_mut(&object) {
            names.remove(slot);
        }
    }

    /// Repeats call `number` of the recording, and commits as the pace says.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(super) fn play(&mut self, number: usize, what: &What) -> Result<()> {
        self.call(number, what)?;
        match self.pace {
            Pace::AtSyncs => return Ok(()),
            Pace::EachCall => {}
            Pace::WrittenBack => self.write_back()?,
        }
        self.commit()
    }

    /// Makes all that is there durable.
    pub(super) fn begin(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(&self.aside)?)
    }

    /// Makes jbd2 commit the running transaction, as its timer may do it: without the data that
    /// waits for its allocation. A changed directory that nobody sees is synced for that.
    fn commit(&self) -> Result<()> {
        rustix::fs::futimens(&self.aside, &now())?;
        Ok(rustix::fs::fsync(&self.aside)?)
    }

    /// Makes the kernel send the data of files to the device, as its writeback may do it.
    fn write_back(&mut self) -> Result<()> {
        for object in std::mem::take(&mut self.written) {
            let was_open = self.open.contains_key(&object);
            if !was_open && self.slot_of(object).is_err() {
                continue;
            }
            // It begins to write what is dirty, waits for nothing, and makes nothing durable.
            rustix::fs::fadvise(self.file(object)?, 0, None, Advice::DontNeed)?;
            if !was_open {
                self.open.remove(&object);
            }
        }
        Ok(())
    }

    fn call(&mut self, number: usize, what: &What) -> Result<()> {
        match what {
            What::Make { slot, object, node } => self.make(slot, *object, node)?,
            What::Unnamed { object, node } => {
                let how = FILE.union(OFlags::TMPFILE);
                let root = self.dir(ROOT)?;
                let file = rustix::fs::openat(root, ".", how, permissions(node.mode))?;
                self.open.insert(*object, file.into());
                self.own(*object, None, node)?;
            }
            What::Link { slot, object } => self.link(slot, *object)?,
            What::Remove { slot, object } => {
                self.keep(number, slot, *object)?;
                let is_dir = FileType::from_raw_mode(self.stat(slot)?.st_mode).is_dir();
                let how = if is_dir {
                    AtFlags::REMOVEDIR
                } else {
                    AtFlags::empty()
                };
                rustix::fs::unlinkat(self.dir(slot.dir)?, slot.name.as_slice(), how)?;
                self.unnamed(slot, *object);
            }
            What::Rename {
                from: (from, object),
                to: (to, replaced),
                behind,
                ..
            } => {
                if let Some(replaced) = replaced {
                    self.keep(number, to, *replaced)?;
                }
                self.rename((from, *object), (to, *replaced), *behind)?;
            }
            What::Write {
                file,
                offset,
                bytes,
                ..
            } => {
                self.file(*file)?.write_all_at(&bytes.0, *offset)?;
                self.written.insert(*file);
            }
            What::Zero { file, offset, len } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(self.file(*file)?, how, *offset, *len)?;
                self.written.insert(*file);
            }
            What::Resize { file, to, .. } => {
                rustix::fs::ftruncate(self.file(*file)?, *to)?;
                self.written.insert(*file);
            }
            What::Set { object, attributes } => self.set(*object, attributes)?,
            What::Close { file } => drop(self.open.remove(file)),
            What::Fsync { object, datasync } => self.sync(*object, *datasync)?,
            What::Sync => rustix::fs::syncfs(self.dir(ROOT)?)?,
            What::Group { .. } => bail!("the kernel's ext4 knows no groups"),
            What::Mark { .. } => {}
        }
        Ok(())
    }

    fn make(&mut self, slot: &Slot, object: Object, node: &Node) -> Result<()> {
        let (name, mode) = (slot.name.as_slice(), permissions(node.mode));
        let dir = self.dir(slot.dir)?;
        let mut made = None;
        match (&node.body, node.mode & S_IFMT) {
            (_, S_IFDIR) => rustix::fs::mkdirat(dir, name, mode)?,
            (Body::Link(target), S_IFLNK) => rustix::fs::symlinkat(target.as_slice(), dir, name)?,
            (_, S_IFREG) => {
                let how = FILE | OFlags::CREATE | OFlags::EXCL;
                made = Some(rustix::fs::openat(dir, name, how, mode)?);
            }
            (_, _) => {
                let kind = FileType::from_raw_mode(node.mode.into());
                let (major, minor) = node.rdev;
                let number = rustix::fs::makedev(major, minor);
                rustix::fs::mknodat(dir, name, kind, mode, number)?;
            }
        }
        if let Some(made) = made {
            self.open.insert(object, made.into());
        }
        self.named(slot, object);
        self.own(object, Some(slot), node)
    }

    /// Gives a new object its owner and permissions, where this process has made it with others.
    fn own(&mut self, object: Object, slot: Option<&Slot>, node: &Node) -> Result<()> {
        let stat = match slot {
            Some(slot) => self.stat(slot)?,
            None => rustix::fs::fstat(self.file(object)?)?,
        };
        let mut wrong = Vec::new();
        if (stat.st_uid, stat.st_gid) != (node.uid, node.gid) {
            wrong.push(Attribute::Owner(node.uid, node.gid));
        }
        let is_link = node.mode & S_IFMT == S_IFLNK;
        if !is_link && (!wrong.is_empty() || stat.st_mode & 0o7777 != u32::from(node.mode) & 0o7777)
        {
            wrong.push(Attribute::Mode(node.mode));
        }
        self.set(object, &wrong)
    }

    fn link(&mut self, slot: &Slot, object: Object) -> Result<()> {
        // One directory has to be looked up while the other is borrowed.
        let to = self.dir(slot.dir)?.try_clone_to_owned()?;
        let name = slot.name.as_slice();
        match self.slot_of(object) {
            Ok(from) => {
                let (dir, old) = (self.dir(from.dir)?, from.name.as_slice());
                rustix::fs::linkat(dir, old, to, name, AtFlags::empty())?;
            }
            Err(_) => {
                let file = self.file(object)?;
                rustix::fs::linkat(file, "", to, name, AtFlags::EMPTY_PATH)?;
            }
        }
        self.named(slot, object);
        Ok(())
    }

    fn rename(
        &mut self,
        (from, object): (&Slot, Object),
        (to, replaced): (&Slot, Option<Object>),
        behind: Option<Object>,
    ) -> Result<()> {
        let how = match behind {
            None => RenameFlags::empty(),
            Some(_) if behind == replaced => RenameFlags::EXCHANGE,
            Some(_) => RenameFlags::WHITEOUT,
        };
        let into = self.dir(to.dir)?.try_clone_to_owned()?;
        let (old, new) = (from.name.as_slice(), to.name.as_slice());
        rustix::fs::renameat_with(self.dir(from.dir)?, old, into, new, how)?;
        self.unnamed(from, object);
        if let Some(replaced) = replaced {
            self.unnamed(to, replaced);
        }
        self.named(to, object);
        if let Some(behind) = behind {
            self.named(from, behind);
        }
        Ok(())
    }

    fn sync(&mut self, object: Object, datasync: bool) -> Result<()> {
        let opened;
        let is_dir = object == ROOT || self.dirs.contains_key(&object);
        let fd = if is_dir {
            self.dir(object)?
        } else if let Some(file) = self.open.get(&object) {
            file.as_fd()
        } else {
            let slot = self.slot_of(object)?;
            let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = self.dir(slot.dir)?;
            opened = rustix::fs::openat(dir, slot.name.as_slice(), how, Mode::empty())?;
            opened.as_fd()
        };
        let synced = if datasync {
            rustix::fs::fdatasync(fd)
        } else {
            rustix::fs::fsync(fd)
        };
        Ok(synced?)
    }

    /// Sets attributes. The permissions come last: other changes take bits away.
    fn set(&mut self, object: Object, attributes: &[Attribute]) -> Result<()> {
        let at = self.path(object)?;
        for attribute in attributes {
            match attribute {
                Attribute::Xattr(name, Some(value)) => {
                    rustix::fs::lsetxattr(&at, name.as_slice(), value, XattrFlags::empty())?;
                }
                // It may have gone with the change of owner or mode.
                Attribute::Xattr(name, None) => {
                    match rustix::fs::lremovexattr(&at, name.as_slice()) {
                        Err(Errno::NODATA) => {}
                        done => done?,
                    }
                }
                Attribute::Owner(uid, gid) => {
                    let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                    let how = AtFlags::SYMLINK_NOFOLLOW;
                    rustix::fs::chownat(CWD, &at, Some(uid), Some(gid), how)?;
                }
                Attribute::Mode(_) | Attribute::Modified(..) => {}
            }
        }
        for attribute in attributes {
            match attribute {
                Attribute::Mode(mode) => {
                    rustix::fs::chmodat(CWD, &at, permissions(*mode), AtFlags::empty())?;
                }
                Attribute::Modified(sec, nsec) => {
                    let time = Timestamps {
                        last_access: omitted(),
                        last_modification: Timespec {
                            tv_sec: *sec,
                            tv_nsec: (*nsec).into(),
                        },
                    };
                    rustix::fs::utimensat(CWD, &at, &time, AtFlags::SYMLINK_NOFOLLOW)?;
                }
                Attribute::Xattr(..) | Attribute::Owner(..) => {}
            }
        }
        Ok(())
    }

    /// A path by which attributes of an object are set.
    fn path(&mut self, object: Object) -> Result<PathBuf> {
        let of = |fd: BorrowedFd<'_>| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        if let Some(dir) = self.dirs.get(&object) {
            return Ok(of(dir.as_fd()).join("."));
        }
        match self.slot_of(object) {
            Ok(slot) => {
                let dir = of(self.dir(slot.dir)?);
                let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(&slot.name);
                Ok(dir.join(name))
            }
            // No path leads to a file without a name but one that must be followed.
            Err(no_name) => match self.open.get(&object) {
                Some(file) => Ok(of(file.as_fd())),
                None => Err(no_name),
            },
        }
    }
}

fn permissions(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode & 0o7777))
}

fn omitted() -> Timespec {
    Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_OMIT,
    }
}

/// The time now, for futimens(2).
fn now() -> Timestamps {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    Timestamps {
        last_access: omitted(),
        last_modification: now,
    }
}

/// The names of each object of a tree.
fn names_in(tree: &Tree) -> BTreeMap<Object, BTreeSet<Slot>> {
    let mut names: BTreeMap<Object, BTreeSet<Slot>> = BTreeMap::new();
    let dirs: BTreeSet<Object> = tree.paths().into_iter().map(|(_, object)| object).collect();
    for dir in dirs.into_iter().chain([ROOT]) {
        if let Some(Node {
            body: Body::Dir(below),
            ..
        }) = tree.get(dir)
        {
            for (name, object) in below {
                let name = name.clone();
                names.entry(*object).or_default().insert(Slot { dir, name });
            }
        }
    }
    names
}
