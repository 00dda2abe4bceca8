//! The public operations. Each checks that the volume is up, calls the module that does the work,
//! and reports damage.
//!
//! Files are named by inode number. A number means the same file as long as the file has a name or
//! is open ([`Fs::open`], [`Fs::create`], [`Fs::release`]). After that an operation on the number
//! returns [`Error::Stale`], or another file has the number, with another generation.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use stetfs_format::width::usize_as_u64;
use stetfs_format::{InodeFlags, InodeNo};
use stetfs_journal::{JournalError, JournalStats};
use stetfs_media::{BlockDev, MeterSnapshot};
use stetfs_scheme::{About, ActionCount, CacheStats, DataPromise, Terms};

use crate::change::{Change, New};
use crate::device::Media;
use crate::error::{Error, Kind, Result};
use crate::inode::Inode;
use crate::mount::MountReport;
use crate::namei::{create, rename, unlink};
use crate::options::{AtomicFiles, MountOptions};
use crate::scope::Scope;
use crate::types::{
    Access, Attr, Caller, DirEntry, Entry, FallocateMode, FiemapExtent, InUse, OpenFlags, Past,
    RenameFlags, SetAttr, SetXattr, Shutdown, StatFs, Whence, WriteFlags,
};
use crate::volume::{ROOT_INO, Volume, VolumeState};
use crate::{
    atomic, attr, blocks, copy, damage, fallocate, file, in_use, mount, namei, open, path, perm,
    readdir, redo, seek, sync, xattr,
};

/// A mounted volume. Cloning it is cheap; all clones are the same mount.
///
/// Dropping the last clone without [`unmount`](Self::unmount) is a crash: nothing confirmed is
/// lost, and the next mount recovers. When the drop returns, nothing is written any more.
///
/// ```
/// # mod making { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/making/mod.rs")); }
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("disk.img");
/// # making::mke2fs(&path, 8)?;
/// # use stetfs::{Caller, Fs, MountOptions, OpenFlags, RenameFlags, open_media};
/// # let options = MountOptions::default();
/// # let (fs, _) = Fs::mount(open_media(&path, &options, false)?, options)?;
/// let me = Caller::user(1000, 1000);
/// let home = fs.mkdir(&Caller::root(), fs.root(), b"home", 0o777)?;
/// let file = fs.create(&me, home.ino, b"new", 0o600, OpenFlags::WRITE)?;
/// fs.write(&me, file.ino, 0, b"as one")?;
/// fs.fsync(file.ino, false)?;
/// fs.rename(&me, home.ino, b"new", home.ino, b"file", RenameFlags::empty())?;
///
/// let entry = fs.resolve(&me, b"/home/file", true)?;
/// let mut content = [0; 6];
/// assert_eq!(fs.read(entry.ino, 0, &mut content)?, 6);
/// assert_eq!((&content, entry.attr.uid), (b"as one", 1000));
/// fs.release(file.ino)?;
/// fs.unmount()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Fs(Arc<Mounted>);

/// The state that all clones share.
struct Mounted(Arc<Volume>);

impl Deref for Mounted {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.0.journal.end_background();
    }
}

/// The persistent memory beside a volume, and its traffic.
#[derive(Debug, Clone, Serialize)]
pub struct NvmStats {
    /// Which medium it is, and what its content survives.
    pub medium: String,
    /// The bytes stored to it and loaded from it.
    pub traffic: MeterSnapshot,
}

/// The state of a volume, for people and for JSON.
#[derive(Debug, Clone, Serialize)]
pub struct Stats {
    /// The journaling scheme.
    pub scheme: &'static str,
    /// Which medium the volume is on; for memory also how stores become durable and what they
    /// survive.
    pub medium: String,
    /// How the medium brings committed blocks home without a copy; `None` when they are copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaps: Option<&'static str>,
    /// How many bytes callers have read from files.
    pub bytes_read: u64,
    /// How many bytes callers have written to files.
    pub bytes_written: u64,
    /// How long a write to any file may be to survive a crash entirely or not at all, in bytes; 0
    /// when file data is not journaled.
    pub atomic_write_max: u64,
    /// Which files are atomic with every mode of the scheme: one write is one transaction, or
    /// nothing of it.
    pub atomic_files: AtomicFiles,
    /// How long a write to these files may be for that, in bytes; 0 when there are no such files.
    pub marked_write_max: u64,
    /// The traffic of the device.
    pub device: MeterSnapshot,
    /// The persistent memory beside it; `None` if the scheme has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvm: Option<NvmStats>,
    /// The scheme's cache in that memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStats>,
    /// How often the scheme chose each action for a block, where it has a choice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<ActionCount>,
    /// The journal's transactions, blocks and caches.
    pub journal: JournalStats,
    /// How many inodes are in memory.
    pub inodes_cached: usize,
    /// How many blocks are free; reserved blocks count as used.
    pub blocks_free: u64,
    /// How many inodes are free.
    pub inodes_free: u64,
    /// Whether damage was found.
    pub has_errors: bool,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// Why writes no longer become durable: an error has stopped the journal, or a part of the
    /// image is gone. `None` if they do.
    pub stopped: Option<String>,
}

impl Fs {
    /// Mounts the ext4 (or ext3) volume on a device, recovering it first if need be.
    ///
    /// # Errors
    /// [`Error::Mount`] with the reason, [`Error::Corrupt`] for a record that fails a check, or an
    /// error of the device or journal.
    pub fn mount(media: impl Into<Media>, options: MountOptions) -> Result<(Self, MountReport)> {
        let (vol, report) = mount::mount(media.into(), options)?;
        Ok((Self(Arc::new(Mounted(vol))), report))
    }

    /// Commits everything and leaves a clean ext4 image. Every later operation returns
    /// [`Error::ShutDown`].
    ///
    /// # Errors
    /// An error of the journal or the device. The image may then need recovery; nothing confirmed
    /// is lost.
    pub fn unmount(&self) -> Result<()> {
        mount::unmount(&self.0)
    }

    /// Returns the volume that the clones share.
    pub(crate) fn volume(&self) -> &Volume {
        &self.0
    }

    /// Runs an operation, which must not run another one inside it.
    pub(crate) fn run<T>(&self, op: impl FnOnce(&Scope<'_>) -> Result<T>) -> Result<T> {
        let _share = self.0.world.share();
        self.finish(op)
    }

    /// Runs several changes that all others see as one operation.
    pub(crate) fn run_alone<T>(&self, op: impl FnOnce(&Scope<'_>) -> Result<T>) -> Result<T> {
        let _alone = self.0.world.alone();
        self.finish(op)
    }

    fn finish<T>(&self, op: impl FnOnce(&Scope<'_>) -> Result<T>) -> Result<T> {
        self.0.check_up()?;
        let result = op(&Scope::of(&self.0));
        if let Err(e) = &result
            && e.kind() == Kind::Corrupted
        {
            damage::found(&self.0, e);
        }
        result
    }

    /// Whether both are the same mount.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the inode of the root directory.
    pub fn root(&self) -> InodeNo {
        ROOT_INO
    }

    /// Makes a change of names or attributes. Returns the attributes, after the change, of the
    /// inode that was made, named or set, or that lost a name. Each of the methods below makes one
    /// such change.
    ///
    /// # Errors
    /// Those of the change; an error of the journal.
    pub fn change(&self, c: &Caller, change: &Change<'_>) -> Result<Attr> {
        self.run(|vol| {
            let inode = apply(vol, c, change)?;
            let st = inode.state.read();
            Ok(attr::stat(vol, &inode, &st))
        })
    }

    // -- names --

    /// Returns the entry `name` in directory `parent`; `.` and `..` too.
    pub fn lookup(&self, c: &Caller, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.run(|vol| path::entry_of(vol, &*namei::lookup(vol, c, &*vol.iget(parent)?, name)?))
    }

    /// Returns the target of a symbolic link.
    pub fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.run(|vol| file::readlink(vol, &*vol.iget(ino)?))
    }

    /// Makes a regular file and opens it, or opens the existing one (unless
    /// [`OpenFlags::EXCLUSIVE`]).
    pub fn create(
        &self,
        c: &Caller,
        parent: InodeNo,
        name: &[u8],
        mode: u16,
        flags: OpenFlags,
    ) -> Result<Entry> {
        self.run(|vol| {
            let dir = vol.iget(parent)?;
            let made = create::create(vol, c, &dir, name, mode, flags)?;
            if made.new {
                if let Err(e) = settle(vol, &[&dir]) {
                    open::release(vol, made.inode.ino)?;
                    return Err(e);
                }
            } else {
                // It was open so that it could not be freed; from here on it is open as `flags`
                // say.
                let opened = open::open(vol, c, made.inode.ino, flags);
                open::release(vol, made.inode.ino)?;
                opened?;
            }
            path::entry_of(vol, &made.inode)
        })
    }

    /// Makes a regular file without a name in the file system of directory `parent` and opens it
    /// (O_TMPFILE). Closing it or a crash frees it, unless [`link`](Self::link) gave it a name,
    /// which [`OpenFlags::EXCLUSIVE`] forbids.
    pub fn create_unnamed(
        &self,
        c: &Caller,
        parent: InodeNo,
        mode: u16,
        flags: OpenFlags,
    ) -> Result<Entry> {
        self.run(|vol| {
            let nameable = !flags.contains(OpenFlags::EXCLUSIVE);
            let dir = vol.iget(parent)?;
            let what = New::File(mode);
            path::entry_of(vol, &*create::create_unnamed(vol, c, &dir, what, nameable)?)
        })
    }

    /// Makes a directory.
    pub fn mkdir(&self, c: &Caller, parent: InodeNo, name: &[u8], mode: u16) -> Result<Entry> {
        self.change(c, &Change::Make((parent, name), New::Directory(mode)))
            .map(Entry::from)
    }

    /// Makes a regular file, device, pipe or socket; `rdev` is the major and minor number.
    pub fn mknod(
        &self,
        c: &Caller,
        parent: InodeNo,
        name: &[u8],
        mode: u16,
        rdev: (u32, u32),
    ) -> Result<Entry> {
        self.change(c, &Change::Make((parent, name), New::Node(mode, rdev)))
            .map(Entry::from)
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink(
        &self,
        c: &Caller,
        parent: InodeNo,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        self.change(c, &Change::Make((parent, name), New::Symlink(target)))
            .map(Entry::from)
    }

    /// Gives `ino` one more name.
    pub fn link(&self, c: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.change(c, &Change::Link(ino, (parent, name)))
            .map(Entry::from)
    }

    /// Removes a name of anything but a directory.
    pub fn unlink(&self, c: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.change(c, &Change::Unlink((parent, name))).map(drop)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, c: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.change(c, &Change::Rmdir((parent, name))).map(drop)
    }

    /// Renames, as `flags` say.
    pub fn rename(
        &self,
        c: &Caller,
        parent: InodeNo,
        name: &[u8],
        new_parent: InodeNo,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = ((parent, name), (new_parent, new_name));
        self.change(c, &Change::Rename(from, to, flags)).map(drop)
    }

    /// Calls `each` with entries, beginning at `cookie` (0: from the start, then
    /// [`DirEntry::next`]), until it returns false, which means that it did not take the entry. A
    /// cookie stays valid while entries come and go.
    pub fn readdir(
        &self,
        ino: InodeNo,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.run(|vol| {
            let inode = vol.iget(ino)?;
            readdir::readdir(vol, &inode, cookie, each)?;
            attr::touch_atime(vol, &inode);
            Ok(())
        })
    }

    /// Walks `path` from the root, following symbolic links; the last one only if `follow`.
    pub fn resolve(&self, c: &Caller, path: &[u8], follow: bool) -> Result<Entry> {
        self.run(|vol| path::resolve(vol, c, ROOT_INO, path, follow))
    }

    /// Walks to the directory that holds the last name of `path`; returns that directory and the
    /// name.
    pub fn resolve_parent<'p>(&self, c: &Caller, path: &'p [u8]) -> Result<(Entry, &'p [u8])> {
        self.run(|vol| path::resolve_parent(vol, c, ROOT_INO, path))
    }

    /// Fails when the directory `ino`, which was found in the directory `parent`, says by its ".."
    /// that it is in another one. A program that walks a tree meets no circle if this succeeds for
    /// every directory and no two names lead to one.
    pub fn check_parent(&self, ino: InodeNo, parent: InodeNo) -> Result<()> {
        self.run(|vol| namei::check_parent(vol, &*vol.iget(ino)?, parent))
    }

    // -- attributes --

    /// Returns all attributes.
    pub fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        self.run(|vol| attr::getattr(vol, &*vol.iget(ino)?))
    }

    /// Calls `each` with the attributes of each inode, in order, as [`getattr`](Self::getattr)
    /// returns them. Inodes that are not in memory are read together.
    pub fn getattrs(&self, inos: &[InodeNo], each: &mut dyn FnMut(Result<Attr>)) -> Result<()> {
        self.run(|vol| {
            let mut is_ahead = false;
            for (n, ino) in inos.iter().enumerate() {
                if !is_ahead && !vol.icache.has(*ino) {
                    vol.read_ahead(&inos[n..]);
                    is_ahead = true;
                }
                each(vol.iget(*ino).and_then(|inode| attr::getattr(vol, &inode)));
            }
            Ok(())
        })
    }

    /// Changes attributes; returns all of them as they are afterwards.
    pub fn setattr(&self, c: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.change(c, &Change::SetAttr(ino, set))
    }

    /// Fails unless the caller may use the file as `want` says.
    pub fn access(&self, c: &Caller, ino: InodeNo, want: Access) -> Result<()> {
        self.run(|vol| perm::permission(vol, c, &*vol.iget(ino)?, want))
    }

    /// Returns the flags that lsattr shows.
    pub fn get_flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        self.run(|vol| attr::get_flags(&*vol.iget(ino)?))
    }

    /// Sets the flags that chattr may change.
    pub fn set_flags(&self, c: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.change(c, &Change::SetFlags(ino, flags)).map(drop)
    }

    /// Returns the inode's generation.
    pub fn generation(&self, ino: InodeNo) -> Result<u32> {
        self.run(|vol| Ok(vol.iget(ino)?.state.read().raw.generation))
    }

    /// Sets the inode's generation; [`Error::NotSupported`] with `metadata_csum`.
    pub fn set_generation(&self, c: &Caller, ino: InodeNo, generation: u32) -> Result<()> {
        self.change(c, &Change::SetGeneration(ino, generation))
            .map(drop)
    }

    /// Returns the value of an extended attribute, by its full name (`user.x`).
    pub fn getxattr(&self, c: &Caller, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.run(|vol| xattr::get(vol, c, &*vol.iget(ino)?, name, None))
    }

    /// Sets an extended attribute. POSIX ACLs (`system.posix_acl_access`, `..._default`) change the
    /// mode too.
    pub fn setxattr(
        &self,
        c: &Caller,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.change(c, &Change::SetXattr(ino, name, value, how))
            .map(drop)
    }

    /// Returns the names of the extended attributes that the caller may see, each ended by a NUL.
    pub fn listxattr(&self, c: &Caller, ino: InodeNo) -> Result<Vec<u8>> {
        self.run(|vol| xattr::list(vol, c, &*vol.iget(ino)?, None))
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, c: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.change(c, &Change::RemoveXattr(ino, name)).map(drop)
    }

    // -- contents --

    /// Opens a file or directory: checks permission, and keeps the inode until
    /// [`release`](Self::release) even if it loses its last name.
    pub fn open(&self, c: &Caller, ino: InodeNo, flags: OpenFlags) -> Result<Attr> {
        self.run(|vol| open::open(vol, c, ino, flags))
    }

    /// Ends one [`open`](Self::open) or [`create`](Self::create).
    pub fn release(&self, ino: InodeNo) -> Result<()> {
        self.run(|vol| open::release(vol, ino))
    }

    /// Returns every inode that is in use, for a program that goes on with the volume
    /// ([`MountOptions::in_use`]). Nobody may change anything meanwhile.
    pub fn in_use(&self) -> Vec<InUse> {
        in_use::all(&self.0)
    }

    /// Has these inodes in use, as [`in_use`](Self::in_use) has told it of a mount before. An inode
    /// that is free by now, or another, is left out. Nobody else may use the volume meanwhile.
    ///
    /// # Errors
    /// Those of reading an inode.
    pub fn use_again(&self, all: &[InUse]) -> Result<()> {
        self.run(|vol| in_use::restore(vol, all))
    }

    /// Does an operation once more, of which this is known, if the volume does not have it: `work`
    /// calls it, with its arguments of then. It gets the time, the inode number and the generation
    /// that it got then. `None`: the volume has it. The mount has [`MountOptions::redo`]. Nobody
    /// else may use the volume meanwhile.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Exists`]: its inode is in use.
    pub fn redo<T>(&self, past: Past, work: impl FnOnce(&Self) -> Result<T>) -> Result<Option<T>> {
        let Some(last) = self.run(|vol| redo::missing(vol, &past))? else {
            return Ok(None);
        };
        let during = self.0.redo.begin(past);
        let done = work(self)?;
        drop(during);
        self.run(|vol| redo::keep_last(vol, &last))?;
        Ok(Some(done))
    }

    /// From now on keeps the number and attributes of an inode that loses its last name until
    /// [`forget`](Self::forget), unless it is a regular file or symbolic link. For a cache above
    /// that knows inodes by their numbers.
    pub fn hold_removed(&self) {
        self.0.held.begin();
    }

    /// Ends what [`hold_removed`](Self::hold_removed) keeps for an inode, which the cache above has
    /// forgotten.
    pub fn forget(&self, ino: InodeNo) -> Result<()> {
        self.run(|vol| {
            if vol.held.forget(ino) {
                open::release(vol, ino)
            } else {
                Ok(())
            }
        })
    }

    /// Reads at `offset`; returns how many bytes were read, up to the end of the file.
    pub fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.run(|vol| {
            let inode = vol.iget(ino)?;
            let n = file::read(vol, &inode, offset, out)?;
            attr::touch_atime(vol, &inode);
            vol.bytes_read.fetch_add(usize_as_u64(n), Ordering::Relaxed);
            Ok(n)
        })
    }

    /// Writes at `offset`; returns how many bytes were written. Durable after
    /// [`fsync`](Self::fsync).
    pub fn write(&self, c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_with(c, ino, offset, bytes, WriteFlags::empty())
            .map(|(_, n)| n)
    }

    /// Writes at the end; returns where that was and how many bytes were written.
    pub fn append(&self, c: &Caller, ino: InodeNo, bytes: &[u8]) -> Result<(u64, usize)> {
        self.write_with(c, ino, 0, bytes, WriteFlags::APPEND)
    }

    /// Writes as `flags` say; returns where and how many bytes.
    pub fn write_with(
        &self,
        c: &Caller,
        ino: InodeNo,
        offset: u64,
        bytes: &[u8],
        flags: WriteFlags,
    ) -> Result<(u64, usize)> {
        self.run(|vol| {
            let inode = vol.iget(ino)?;
            let wrote = file::write(vol, c, &inode, offset, bytes, flags)?;
            vol.bytes_written
                .fetch_add(usize_as_u64(wrote.1), Ordering::Relaxed);
            let sync = is_synchronous(&inode);
            if sync || flags.intersects(WriteFlags::SYNC | WriteFlags::DATASYNC) {
                sync::fsync(vol, &inode, !sync && !flags.contains(WriteFlags::SYNC))?;
            }
            Ok(wrote)
        })
    }

    /// Returns how many free bytes a write of `len` bytes at `offset` would take. Blocks that are
    /// placed, preallocated or delayed take none, because they have or were promised their blocks.
    pub fn takes(&self, ino: InodeNo, offset: u64, len: u64) -> Result<u64> {
        self.run(|vol| file::takes(vol, &*vol.iget(ino)?, offset, len))
    }

    /// Fails unless the volume may be changed. It may not if it was mounted read-only, if an error
    /// has stopped the journal, or if it was shut down.
    pub fn check_writable(&self) -> Result<()> {
        self.0.check_writable()
    }

    /// Whether a [`Group`](crate::Group) can write to this file, because its data is journaled: all
    /// data of the volume is, or this file's (`chattr +j`, `atomic=all`).
    pub fn can_group(&self, ino: InodeNo) -> Result<bool> {
        self.run(|vol| Ok(atomic::can_group(vol, &*vol.iget(ino)?)))
    }

    /// Preallocates, punches holes, zeroes ranges.
    pub fn fallocate(
        &self,
        c: &Caller,
        ino: InodeNo,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.run(|vol| fallocate::fallocate(vol, c, &*vol.iget(ino)?, mode, offset, len))
    }

    /// Returns the next data or hole at or after `offset`.
    pub fn seek(&self, ino: InodeNo, offset: u64, whence: Whence) -> Result<u64> {
        self.run(|vol| seek::seek(vol, &*vol.iget(ino)?, offset, whence))
    }

    /// Calls `each` with the mapped ranges of the file until it returns false.
    pub fn fiemap(
        &self,
        ino: InodeNo,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(FiemapExtent) -> bool,
    ) -> Result<()> {
        self.run(|vol| seek::fiemap(vol, &*vol.iget(ino)?, offset, len, each))
    }

    /// Copies up to `len` bytes from one file to another (or within one, not overlapping); returns
    /// the number copied. Past the target's end, holes of the source stay holes.
    pub fn copy_range(
        &self,
        c: &Caller,
        from: (InodeNo, u64),
        to: (InodeNo, u64),
        len: u64,
    ) -> Result<u64> {
        self.run(|vol| {
            copy::copy_range(
                vol,
                c,
                (&*vol.iget(from.0)?, from.1),
                (&*vol.iget(to.0)?, to.1),
                len,
            )
        })
    }

    /// Makes the file's changes durable; with `datasync` only those that reading it back needs.
    pub fn fsync(&self, ino: InodeNo, datasync: bool) -> Result<()> {
        self.run(|vol| sync::fsync(vol, &*vol.iget(ino)?, datasync))
    }

    // -- the volume --

    /// Makes everything done before durable.
    pub fn sync(&self) -> Result<()> {
        self.run(|vol| {
            // A mount for reading only has nothing to sync. One that an error made read-only may
            // have lost something.
            if matches!(vol.journal.stopped(), Some(JournalError::ReadOnly)) {
                return Ok(());
            }
            vol.dev.check_backing()?;
            vol.journal.sync()?;
            vol.alloc.discard_freed();
            Ok(())
        })
    }

    /// Commits what was done before, as the clock does every `commit` seconds. For programs that
    /// keep the time themselves. Delayed data stays delayed.
    ///
    /// # Errors
    /// An error of the journal or the device.
    pub fn commit(&self) -> Result<()> {
        self.run(|vol| Ok(vol.journal.commit_running()?))
    }

    /// Enlists all delayed data, as the clock does with data that has been delayed for
    /// `dirty_expire`: the next commit places it and makes it durable.
    ///
    /// # Errors
    /// An error of the journal or the device.
    pub fn expire(&self) -> Result<()> {
        self.run(|vol| Ok(vol.journal.enlist_older(Duration::ZERO)?))
    }

    /// Returns space, counts and limits.
    pub fn statfs(&self) -> Result<StatFs> {
        self.run(|vol| Ok(open::statfs(vol)))
    }

    /// Returns how many bytes of new data the caller can still be promised a place for, at most. A
    /// shorter write may fail too: reservations also keep room for maps.
    pub fn room(&self, c: &Caller) -> u64 {
        let vol = &self.0;
        let blocks = vol.alloc.room(vol.alloc.may_use_root_blocks(c));
        vol.geo.block.offset_of(blocks)
    }

    /// Discards free blocks in `[offset, offset + len)` bytes, in runs of at least `min_len` bytes;
    /// returns the number of bytes discarded.
    ///
    /// # Errors
    /// `NotPermitted` without privilege; `Invalid` for a range beyond the volume or shorter than a
    /// block, or a `min_len` longer than a block group.
    pub fn trim(&self, c: &Caller, offset: u64, len: u64, min_len: u64) -> Result<u64> {
        self.run(|vol| open::trim(vol, c, offset, len, min_len))
    }

    /// Commits everything, and brings home some blocks of a scheme's cache in persistent memory: as
    /// many as take a moment. Returns how many of its blocks are not home yet. A scheme without
    /// such a cache brings everything home; it returns 0.
    ///
    /// # Errors
    /// An error of the journal or the device.
    pub fn drain_some(&self) -> Result<u64> {
        self.run(|vol| Ok(vol.journal.drain_some()?))
    }

    /// Stops the volume; see [`Shutdown`].
    pub fn shutdown(&self, c: &Caller, how: Shutdown) -> Result<()> {
        if !c.privileged {
            return Err(Error::NotPermitted);
        }
        self.run(|vol| mount::shutdown(vol, how))
    }

    /// Whether the file is atomic in every mode of the scheme: one write of at most
    /// [`Stats::marked_write_max`] bytes is one transaction, or nothing of it. It is if it is
    /// marked (`chattr +j`), or all files are atomic (`atomic=`), and the scheme can do it. On a
    /// full volume such a write fails as a whole and is not cut short.
    pub fn is_atomic(&self, ino: InodeNo) -> Result<bool> {
        self.run(|vol| Ok(vol.iget(ino)?.is_atomic()))
    }

    /// Whether each write to the file is durable when it returns (`chattr +S`).
    pub fn is_synchronous(&self, ino: InodeNo) -> Result<bool> {
        self.run(|vol| Ok(is_synchronous(&*vol.iget(ino)?)))
    }

    /// Returns the volume's label, without the zeros behind it.
    pub fn label(&self) -> Vec<u8> {
        self.0.sb.read().label().to_vec()
    }

    /// Changes the volume's label (FS_IOC_SETFSLABEL); durable when the call returns. The copies of
    /// the superblock keep the old label.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] unless the caller is privileged; [`Error::Invalid`] for more than 16
    /// bytes.
    pub fn set_label(&self, c: &Caller, label: &[u8]) -> Result<()> {
        if !c.privileged {
            return Err(Error::NotPermitted);
        }
        let mut name = [0; 16];
        let place = name.get_mut(..label.len()).ok_or(Error::Invalid)?;
        place.copy_from_slice(label);
        self.run(|vol| {
            vol.check_writable()?;
            vol.with_handle(1, |h| vol.update_super(h, |sb| sb.volume_name = name))?;
            vol.dev.check_backing()?;
            Ok(vol.journal.sync()?)
        })
    }

    /// Returns [`Stats::marked_write_max`].
    pub fn marked_write_max(&self) -> u64 {
        match atomic::which(&self.0) {
            AtomicFiles::None => 0,
            AtomicFiles::All | AtomicFiles::Marked => atomic::write_max(&self.0),
        }
    }

    /// Returns what a crash may do to the data of any file.
    pub fn promise(&self) -> DataPromise {
        atomic::promise(&self.0)
    }

    /// Returns how many bytes one handle writes, from the beginning of a block on. A longer write
    /// takes several handles, and a crash may leave only the first of them.
    pub fn handle_write_max(&self) -> u64 {
        blocks::handle_write_max(&self.0)
    }

    /// Returns the state of the volume.
    pub fn stats(&self) -> Stats {
        let vol = &self.0;
        let state = vol.state.load(Ordering::Relaxed);
        Stats {
            scheme: vol.journal.about().name,
            medium: vol.dev.describe(),
            remaps: vol.journal.terms().remaps,
            bytes_read: vol.bytes_read.load(Ordering::Relaxed),
            bytes_written: vol.bytes_written.load(Ordering::Relaxed),
            atomic_write_max: atomic::write_max_of_others(vol),
            atomic_files: atomic::which(vol),
            marked_write_max: self.marked_write_max(),
            device: vol.dev.meter().snapshot(),
            nvm: vol.nvm.as_ref().map(|nvm| NvmStats {
                medium: nvm.describe(),
                traffic: nvm.meter().snapshot(),
            }),
            cache: vol.journal.cache_stats(),
            actions: vol.journal.actions(),
            journal: vol.journal.stats(),
            inodes_cached: vol.icache.len(),
            blocks_free: vol.alloc.free_blocks().0,
            inodes_free: vol.alloc.free_inodes(),
            has_errors: state & VolumeState::ERROR != 0,
            read_only: state & VolumeState::READ_ONLY != 0,
            stopped: stopped(vol),
        }
    }

    /// Returns the journaling scheme's description of itself.
    pub fn about(&self) -> &'static About {
        self.0.journal.about()
    }

    /// Returns what the scheme has agreed to.
    pub fn terms(&self) -> &Terms {
        self.0.journal.terms()
    }

    /// Returns the resolution of the inodes' timestamps: a nanosecond, or a second with inodes of
    /// 128 bytes.
    pub fn time_step(&self) -> Duration {
        if self.has_birth_times() {
            Duration::from_nanos(1)
        } else {
            Duration::from_secs(1)
        }
    }

    /// Whether inodes hold the time of their making: all but those of 128 bytes.
    pub fn has_birth_times(&self) -> bool {
        self.0.has_birth_times()
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn BlockDev> {
        &self.0.dev
    }

    /// Returns the options of the mount.
    pub fn options(&self) -> &MountOptions {
        &self.0.opts
    }
}

fn stopped(vol: &Volume) -> Option<String> {
    match vol.journal.stopped() {
        Some(JournalError::ReadOnly) => None,
        Some(why) => Some(why.to_string()),
        None => vol.dev.check_backing().err().map(|e| e.to_string()),
    }
}

/// Makes a change; returns the inode that it is about, which may have lost its last name. Makes
/// changes of names and sizes durable where flags ask for that (`chattr +D`, `+S`).
fn apply(vol: &Scope<'_>, c: &Caller, change: &Change<'_>) -> Result<Arc<Inode>> {
    let on = |ino, set: &dyn Fn(&Inode) -> Result<()>| {
        let inode = vol.iget(ino)?;
        set(&inode)?;
        Ok(inode)
    };
    let within = |dir, change: &dyn Fn(&Inode) -> Result<Arc<Inode>>| {
        let dir = vol.iget(dir)?;
        let about = change(&dir)?;
        settle(vol, &[&dir])?;
        Ok(about)
    };
    match *change {
        Change::Make((dir, name), new) => {
            within(dir, &|dir| create::make_named(vol, c, dir, name, new))
        }
        Change::Link(ino, (dir, name)) => {
            let inode = vol.iget(ino)?;
            within(dir, &|dir| {
                unlink::link(vol, c, &inode, dir, name)?;
                Ok(inode.clone())
            })
        }
        Change::Unlink((dir, name)) => within(dir, &|dir| unlink::unlink(vol, c, dir, name)),
        Change::Rmdir((dir, name)) => within(dir, &|dir| unlink::rmdir(vol, c, dir, name)),
        Change::Rename((dir, name), (new_dir, new_name), flags) => {
            let (from, to) = (vol.iget(dir)?, vol.iget(new_dir)?);
            let moved = rename::rename(vol, c, &from, name, &to, new_name, flags)?;
            settle(vol, &[&from, &to])?;
            Ok(moved)
        }
        Change::SetAttr(ino, set) => on(ino, &|inode| {
            attr::setattr(vol, c, inode, set)?;
            if set.size.is_some() && is_synchronous(inode) {
                sync::fsync(vol, inode, false)?;
            }
            Ok(())
        }),
        Change::SetFlags(ino, flags) => on(ino, &|inode| attr::set_flags(vol, c, inode, flags)),
        Change::SetGeneration(ino, generation) => on(ino, &|inode| {
            attr::set_generation(vol, c, inode, generation)
        }),
        Change::SetXattr(ino, name, value, how) => {
            on(ino, &|inode| xattr::set(vol, c, inode, name, value, how))
        }
        Change::RemoveXattr(ino, name) => on(ino, &|inode| xattr::remove(vol, c, inode, name)),
    }
}

/// Whether the file has the flag that makes each write durable when it returns (`chattr +S`).
fn is_synchronous(inode: &Inode) -> bool {
    inode.state.read().raw.flags.contains(InodeFlags::SYNC)
}

/// Makes a change of names durable if one of the directories asks for that (`chattr +D`, `+S`).
fn settle(vol: &Volume, dirs: &[&Inode]) -> Result<()> {
    let marked = InodeFlags::DIRSYNC | InodeFlags::SYNC;
    for dir in dirs {
        if dir.state.read().raw.flags.intersects(marked) {
            return sync::fsync(vol, dir, false);
        }
    }
    Ok(())
}
