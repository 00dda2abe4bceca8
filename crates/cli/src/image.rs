//! Volumes that this process mounts itself: opens the device, and shows an unmounted image as a
//! file tree.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use stetfs::{
    Attr, Caller, Error, Fs, Media, MountError, MountOptions, MountReport, OpenError, OpenFlags,
    RenameFlags, SetAttr, SetTime, SetXattr, Whence, mode,
};
use stetfs_format::width::{low16, must_fit, usize_as_u64};
use stetfs_format::{Corrupt, FeatureCompat, InodeNo, Time};
use stetfs_media::pmem::PmemOptions;
use stetfs_media::{BlockDev, MediaError, Overlay, Pmem};

use crate::disk::Disk;
use crate::failure::{Explain, Failure, Result};
use crate::part::{self, Extent, Use, Window};
use crate::shown::shown;
use crate::tree::{FileKind, Item, Meta, Source, Stamp, Tree, check_part};
use crate::unlike::not_a_volume;
use crate::{identity, mounts, place, repeatable};

/// Mounts the volume in `image`; the caller decides who sees it. A read-only mount writes nothing:
/// it recovers in memory if it must, and the report's warnings say so.
pub(crate) fn mount(image: &Path, mut options: MountOptions) -> Result<(Fs, MountReport)> {
    options.read_only |= part::is_qcow2(image);
    let in_memory = options.read_only && !options.noload && needs_recovery(image);
    let how = match in_memory {
        true => How::InMemory,
        false if options.read_only => How::ReadOnly,
        false => How::Writable,
    };
    let media = open_media(image, &options, how)?;
    let (fs, mut report) = Fs::mount(media, options).map_err(|e| failed(image, e))?;
    if in_memory {
        report.warnings.push(format!(
            "{}: in memory only, nothing is written",
            recovery_in_words(&report)
        ));
        report.recovery = Default::default();
        (report.orphans_deleted, report.orphans_truncated) = (0, 0);
    }
    Ok((fs, report))
}

fn needs_recovery(image: &Path) -> bool {
    Disk::open(image).is_ok_and(|disk| disk.needs_recovery())
}

/// What may become of an image that is opened.
#[derive(Clone, Copy)]
pub(crate) enum How {
    /// Changes stay in memory.
    InMemory,
    ReadOnly,
    Writable,
}

/// Opens a part of a file or device, and the memory beside it that the options name. A scheme that
/// needs the volume itself in memory finds that it is not.
fn open_part(extent: &Extent, options: &MountOptions, how: How) -> Result<Media, OpenError> {
    /// A server that was just unmounted may still commit.
    const PATIENCE: Duration = Duration::from_secs(5);
    let writable = matches!(how, How::Writable);
    let to = if writable { Use::Write } else { Use::Read };
    let window = Window::open(extent.clone(), to, options.direct, PATIENCE)?;
    let home: Arc<dyn BlockDev> = match how {
        How::InMemory => Arc::new(Overlay::new(Arc::new(window))),
        _ => Arc::new(window),
    };
    let memory = PmemOptions::default()
        .survives(options.durability)
        .private(matches!(how, How::InMemory))
        .read_only(!writable);
    let nvm = options.nvm.as_ref().map(|path| memory.open(path));
    let nvm = nvm
        .transpose()?
        .map(|nvm| -> Arc<dyn Pmem> { Arc::new(nvm) });
    Ok(Media { home, nvm })
}

/// Returns whether the volume is mounted, as far as can be seen from here.
pub(crate) fn is_mounted(image: &Path) -> bool {
    mounts::mount_of(image).is_ok_and(|mount| mount.is_some())
}

/// Opens the media for what the mount may do.
pub(crate) fn open_media(image: &Path, options: &MountOptions, how: How) -> Result<Media> {
    // A mount that is taken over is in the kernel's list.
    if options.in_use.is_none()
        && let Some(mount) = mounts::mount_of(image)?
    {
        return Err(Failure::new(format!(
            "{} is mounted on {}",
            image.display(),
            mount.dir.display()
        ))
        .advise("use it there, or unmount it first"));
    }
    let found = part::find(image)?;
    let open = |how| match &found {
        part::Image::Whole(image) => match how {
            How::InMemory => stetfs::open_overlay(image, options),
            How::ReadOnly => stetfs::open_media(image, options, true),
            How::Writable => stetfs::open_media(image, options, false),
        },
        part::Image::Part(extent) => open_part(extent, options, how),
    };
    let opened = match how {
        How::InMemory => open(how),
        _ => match open(how) {
            // As mount(8): a write-protected image is mounted read-only.
            Err(OpenError::Media(MediaError::Open {
                source: Errno::ROFS,
                ..
            })) => open(How::ReadOnly),
            other => other,
        },
    };
    opened.map_err(|e| {
        let advice = match &e {
            OpenError::Media(MediaError::Open {
                source: Errno::ACCESS,
                ..
            }) if !options.read_only => Some("you may not write to it; to read it: -o ro"),
            OpenError::Media(MediaError::Busy { .. }) => {
                Some("wait for the other process, or unmount it there")
            }
            _ => None,
        };
        let failure = Failure::from(e);
        advice.into_iter().fold(failure, Failure::advise)
    })
}

/// Describes a failed mount, with advice.
pub(crate) fn failed(image: &Path, error: Error) -> Failure {
    let shown = image.display();
    let is_no_volume = match &error {
        Error::Corrupt(why) => matches!(
            **why,
            Corrupt::SuperMagic(_) | Corrupt::SuperIsJournal | Corrupt::SuperBlockSize(_)
        ),
        Error::Mount(why) => matches!(**why, MountError::NoRoom { .. }),
        _ => false,
    };
    if is_no_volume {
        return not_a_volume(image, error);
    }
    let advice = match &error {
        Error::Mount(why) => match &**why {
            MountError::NoJournal { .. } => Some(format!(
                "to read it: -o ro; to write without a journal, so that a crash needs e2fsck: -o \
                    scheme=null; to give it one: \
                 tune2fs -j {shown}"
            )),
            MountError::NeedsRecovery { .. } => Some(format!(
                "make {shown} writable for the recovery, or read it as it would be after one: -o \
                    ro"
            )),
            _ => None,
        },
        _ => None,
    };
    let failure = Failure::from(error).context(&shown);
    advice.into_iter().fold(failure, Failure::advise)
}

/// Recovers the journal by the scheme that wrote it, finishes orphans, and leaves the volume clean.
pub(crate) fn recover(image: &Path, nvm: Option<&Path>) -> Result<MountReport> {
    part::check_writable(image)?;
    let mut options = MountOptions {
        nvm: nvm.map(Path::to_owned),
        ..MountOptions::default()
    };
    if let Some(owner) = Disk::open(image)?.private_log_owner() {
        options.scheme = owner;
    }
    let (fs, report) = mount(image, options)?;
    fs.unmount()?;
    Ok(report)
}

/// True if mounting found anything to recover.
pub(crate) fn recovered(report: &MountReport) -> bool {
    report.recovery.was_needed || report.orphans_deleted > 0 || report.orphans_truncated > 0
}

/// Describes a recovery: `recovered the journal: 3 transactions (41-43), 25 blocks; ...`
pub(crate) fn recovery_in_words(report: &MountReport) -> String {
    let r = &report.recovery;
    let range = r
        .sequences
        .map_or_else(String::new, |(first, last)| format!(" ({first}-{last})"));
    let mut text = format!(
        "recovered the journal: {} transactions{range}, {} blocks",
        r.transactions, r.blocks
    );
    if r.revoked > 0 {
        text.push_str(&format!(", {} revoked", r.revoked));
    }
    if report.orphans_deleted > 0 {
        text.push_str(&format!(
            "; freed {} deleted files that had been open",
            report.orphans_deleted
        ));
    }
    if report.orphans_truncated > 0 {
        text.push_str(&format!(
            "; finished {} truncates",
            report.orphans_truncated
        ));
    }
    text
}

/// An image on which this process works with the rights of root.
pub(crate) struct Volume {
    fs: Fs,
    caller: Caller,
    image: String,
    path: PathBuf,
    /// Nothing may be left in its journal.
    clears_log: bool,
}

impl Volume {
    /// Mounts the image in this process; nobody else can mount it meanwhile.
    pub(crate) fn open(image: &Path, writable: bool) -> Result<Self> {
        if writable {
            part::check_writable(image)?;
        }
        let disk = Disk::open(image)?;
        let has_journal = disk
            .superblock
            .feature_compat
            .contains(FeatureCompat::HAS_JOURNAL);
        let owner = disk.private_log_owner();
        drop(disk);
        let mut words = match owner {
            // After a crash, only the scheme that wrote the log finds everything.
            Some(owner) => format!("scheme={owner},noatime"),
            // A copy that is interrupted is made again, so its data need not go through the
            // journal. The volume's own scheme is for its mounts, and may have no such mode.
            None if has_journal => "scheme=jbd2,data=ordered,noatime".to_owned(),
            None => "scheme=null,noatime".to_owned(),
        };
        if !writable {
            words.push_str(",ro");
        }
        let mut options = MountOptions::parse(&words)?;
        let epoch = if writable {
            identity::source_date_epoch()?
        } else {
            None
        };
        if let Some(seconds) = epoch {
            repeatable::settle(&mut options, seconds);
        }
        let (fs, report) = mount(image, options)?;
        for warning in &report.warnings {
            eprintln!("stetfs: {}: {warning}", image.display());
        }
        if recovered(&report) {
            eprintln!(
                "stetfs: {}: {}",
                image.display(),
                recovery_in_words(&report)
            );
        }
        // As on a mount, new files belong to the user who runs this, and the umask limits their
        // permissions.
        let (uid, gid) = stetfs_sys::libc_files::effective_ids();
        let caller = Caller {
            uid,
            gid,
            umask: creation_mask(),
            ..Caller::root()
        };
        Ok(Self {
            fs,
            caller,
            image: image.display().to_string(),
            path: image.to_owned(),
            clears_log: epoch.is_some(),
        })
    }

    /// Mounts a volume that was just made, to fill it: without its journal, since a volume that was
    /// half filled is of no use. New files are of the time `seconds`.
    pub(crate) fn fresh(image: &Path, seconds: u64) -> Result<Self> {
        let mut options = MountOptions::parse("scheme=null,noatime")?;
        repeatable::settle(&mut options, seconds);
        let (fs, _) = mount(image, options)?;
        Ok(Self {
            fs,
            caller: Caller::root(),
            image: image.display().to_string(),
            path: image.to_owned(),
            clears_log: false,
        })
    }

    /// Returns the image as the user named it.
    pub(crate) fn name(&self) -> &Path {
        &self.path
    }

    /// Returns whether the image is this one, by another of its names, too.
    pub(crate) fn is_of(&self, image: &Path) -> bool {
        mounts::resolved(image) == mounts::resolved(&self.path)
    }

    /// Makes everything durable and leaves a clean image.
    pub(crate) fn close(self) -> Result<()> {
        let shown = || self.image.clone();
        self.fs.unmount().during(shown)?;
        if !self.clears_log {
            return Ok(());
        }
        // The mount holds the image.
        drop(self.fs);
        repeatable::clear_log(&self.path).during(shown)
    }

    /// Makes a directory.
    pub(crate) fn make_dir(&self, path: &[u8], mode: u16) -> Result<Box<dyn Item + '_>> {
        let (dir, name) = self.fs.resolve_parent(&self.caller, path)?;
        let made = self.fs.mkdir(&self.caller, dir.ino, name, mode)?;
        Ok(Box::new(self.item(made.ino, path.to_vec(), Vec::new())))
    }

    /// Renames a file; an existing file of the new name is replaced.
    pub(crate) fn rename(&self, path: &[u8], new: &[u8]) -> Result<()> {
        let (fs, c) = (&self.fs, &self.caller);
        let (from, name) = fs.resolve_parent(c, path)?;
        let (to, new_name) = fs.resolve_parent(c, new)?;
        Ok(fs.rename(c, from.ino, name, to.ino, new_name, RenameFlags::empty())?)
    }

    /// Makes a further name for the file at a path; that file may be a link.
    pub(crate) fn make_link(&self, path: &[u8], new: &[u8]) -> Result<()> {
        let (fs, c) = (&self.fs, &self.caller);
        let existing = fs.resolve(c, path, false)?;
        let (dir, name) = fs.resolve_parent(c, check_no_slash(new)?)?;
        fs.link(c, existing.ino, dir.ino, name)?;
        Ok(())
    }

    /// Makes a symbolic link that leads to `words`.
    pub(crate) fn make_symlink(&self, words: &[u8], path: &[u8]) -> Result<()> {
        let (fs, c) = (&self.fs, &self.caller);
        let (dir, name) = fs.resolve_parent(c, check_no_slash(path)?)?;
        fs.symlink(c, dir.ino, name, words)?;
        Ok(())
    }

    /// Removes a name of a file that is no directory.
    pub(crate) fn remove_file(&self, path: &[u8]) -> Result<()> {
        let (fs, c) = (&self.fs, &self.caller);
        let (dir, name) = fs.resolve_parent(c, path)?;
        Ok(fs.unlink(c, dir.ino, name)?)
    }

    /// Returns what is at a path; follows a symbolic link at its end.
    pub(crate) fn meta(&self, path: &[u8]) -> Result<Option<Meta>> {
        self.at(path, true)?.map(|item| item.meta()).transpose()
    }

    fn item(&self, ino: InodeNo, path: Vec<u8>, way: Vec<Vec<u8>>) -> File<'_> {
        File {
            volume: self,
            ino,
            path,
            way,
            is_open: false,
        }
    }
}

/// Fails if a path that names no directory ends in a slash.
fn check_no_slash(path: &[u8]) -> Result<&[u8]> {
    if path.ends_with(b"/") {
        Err(Failure::new("no such file or directory"))
    } else {
        Ok(path)
    }
}

/// Returns the file creation mask of this process. umask(2) can only be read by setting it.
pub(crate) fn creation_mask() -> u16 {
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    low16(mask.bits())
}

fn meta(attr: &Attr) -> Meta {
    let stamp = |t: Time| (t.sec, t.nsec);
    Meta {
        kind: FileKind::of_mode(attr.mode.into()),
        mode: attr.mode & !mode::S_IFMT,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink.into(),
        size: attr.size,
        blocks: attr.blocks,
        id: (0, attr.ino.0.into()),
        atime: stamp(attr.atime),
        mtime: stamp(attr.mtime),
        rdev: attr.rdev,
    }
}

impl Tree for Volume {
    fn shown(&self, path: &[u8]) -> String {
        format!("{}:{}", self.image, shown(path))
    }

    fn at(&self, path: &[u8], follow: bool) -> Result<Option<Box<dyn Item + '_>>> {
        match self.fs.resolve(&self.caller, path, follow) {
            Ok(entry) => Ok(Some(Box::new(self.item(
                entry.ino,
                path.to_vec(),
                Vec::new(),
            )))),
            Err(Error::NotFound | Error::NotDirectory) => Ok(None),
            Err(e) => Err(Failure::from(e).context(self.shown(path))),
        }
    }

    fn is_image(&self) -> bool {
        true
    }

    fn capacity(&self) -> Result<u64> {
        let stat = self.fs.statfs()?;
        Ok(stat.blocks.saturating_mul(stat.block_size.into()))
    }
}

/// Explains that a pipe or a device in an image has no content: it is a name and a number.
fn nothing_behind(kind: FileKind) -> Failure {
    let kind = kind.word();
    Failure::new(format!(
        "is a {kind}: in an image that is not mounted it has no content"
    ))
    .advise("stetfs cp -r or -a copies it as what it is")
}

/// A file of a volume.
struct File<'a> {
    volume: &'a Volume,
    ino: InodeNo,
    /// Its path, as messages show it.
    path: Vec<u8>,
    way: Vec<Vec<u8>>,
    /// True if `make_file` or `open_to_write` returned this; each counts as an open.
    is_open: bool,
}

impl Drop for File<'_> {
    fn drop(&mut self) {
        if self.is_open
            && let Err(e) = self.volume.fs.release(self.ino)
        {
            tracing::warn!("{}: closing inode {}: {e}", self.volume.image, self.ino);
        }
    }
}

impl File<'_> {
    fn made(&self, name: &[u8], ino: InodeNo, is_open: bool) -> Box<dyn Item + '_> {
        let mut way = self.way.clone();
        way.push(name.to_vec());
        let mut file = self.volume.item(ino, place::join(&self.path, name), way);
        file.is_open = is_open;
        Box::new(file)
    }

    fn find(&self, dir: InodeNo, name: &[u8]) -> Result<Option<InodeNo>> {
        match self.volume.fs.lookup(&self.volume.caller, dir, name) {
            Ok(entry) => Ok(Some(entry.ino)),
            Err(Error::NotFound) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn set(&self, set: SetAttr) -> Result<()> {
        self.volume
            .fs
            .setattr(&self.volume.caller, self.ino, &set)?;
        Ok(())
    }
}

impl Item for File<'_> {
    fn shown(&self) -> String {
        self.volume.shown(&self.path)
    }

    fn meta(&self) -> Result<Meta> {
        Ok(meta(&self.volume.fs.getattr(self.ino)?))
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.volume.fs.readdir(self.ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        names.sort();
        Ok(names)
    }

    fn child(&self, name: &[u8]) -> Result<Option<Box<dyn Item + '_>>> {
        let found = self.find(self.ino, check_part(name)?)?;
        Ok(found.map(|ino| self.made(name, ino, false)))
    }

    fn followed(&self, name: &[u8]) -> Result<Option<Box<dyn Item + '_>>> {
        self.volume
            .at(&place::join(&self.path, check_part(name)?), true)
    }

    fn check_parent(&self, parent: &dyn Item) -> Result<()> {
        let parent = InodeNo(must_fit(parent.meta()?.id.1));
        Ok(self.volume.fs.check_parent(self.ino, parent)?)
    }

    fn way(&self) -> &[Vec<u8>] {
        &self.way
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn make_file(&self, name: &[u8], mode: u16) -> Result<Box<dyn Item + '_>> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        let flags = OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        let entry = fs.create(caller, self.ino, check_part(name)?, mode, flags)?;
        Ok(self.made(name, entry.ino, true))
    }

    fn make_dir(&self, name: &[u8], mode: u16) -> Result<Box<dyn Item + '_>> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        let entry = fs.mkdir(caller, self.ino, check_part(name)?, mode)?;
        Ok(self.made(name, entry.ino, false))
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<Box<dyn Item + '_>> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        let entry = fs.symlink(caller, self.ino, check_part(name)?, target)?;
        Ok(self.made(name, entry.ino, false))
    }

    fn make_node(
        &self,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        rdev: (u32, u32),
    ) -> Result<Box<dyn Item + '_>> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        let mode = low16(kind.bits()) | mode;
        let entry = fs.mknod(caller, self.ino, check_part(name)?, mode, rdev)?;
        Ok(self.made(name, entry.ino, false))
    }

    fn make_link(&self, name: &[u8], existing: &dyn Item) -> Result<()> {
        let ino = InodeNo(must_fit(existing.meta()?.id.1));
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        fs.link(caller, ino, self.ino, check_part(name)?)?;
        Ok(())
    }

    fn remove_file(&self, name: &[u8]) -> Result<()> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        Ok(fs.unlink(caller, self.ino, name)?)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        Ok(fs.rmdir(caller, self.ino, name)?)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Ok(self.volume.fs.readlink(self.ino)?)
    }

    fn open(&self) -> Result<Box<dyn Source + '_>> {
        let meta = self.meta()?;
        if meta.kind != FileKind::File {
            return Err(nothing_behind(meta.kind));
        }
        let size = meta.size;
        Ok(Box::new(Reader { file: self, size }))
    }

    fn open_to_write(&self) -> Result<Box<dyn Item + '_>> {
        let kind = self.meta()?.kind;
        if kind != FileKind::File {
            return Err(nothing_behind(kind));
        }
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        fs.open(caller, self.ino, OpenFlags::WRITE | OpenFlags::TRUNCATE)?;
        let mut file = self
            .volume
            .item(self.ino, self.path.clone(), self.way.clone());
        file.is_open = true;
        Ok(Box::new(file))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        let mut done = 0;
        while done < data.len() {
            let n = fs.write(caller, self.ino, offset + usize_as_u64(done), &data[done..])?;
            if n == 0 {
                return Err(Failure::new("nothing more can be written"));
            }
            done += n;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.set(SetAttr {
            size: Some(len),
            ..SetAttr::default()
        })
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        let names = fs.listxattr(caller, self.ino)?;
        let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
        names
            .map(|name| Ok((name.to_vec(), fs.getxattr(caller, self.ino, name)?)))
            .collect()
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        let set = fs.setxattr(caller, self.ino, name, value, SetXattr::Any);
        set.map_err(|e| match e {
            Error::NoSpace => Failure::new(format!(
                "attribute {} of {} bytes: no space left on device: all attributes of a file must \
                    fit into its inode and one block",
                shown(name),
                value.len()
            )),
            e => e.into(),
        })
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        let (fs, caller) = (&self.volume.fs, &self.volume.caller);
        match fs.removexattr(caller, self.ino, name) {
            Err(Error::NoData) => Ok(()),
            other => Ok(other?),
        }
    }

    fn set_owner(&self, uid: u32, gid: u32) -> Result<bool> {
        self.set(SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        })?;
        Ok(true)
    }

    fn set_mode(&self, mode: u16) -> Result<()> {
        self.set(SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        })
    }

    fn set_times(&self, atime: Stamp, mtime: Stamp) -> Result<()> {
        let time = |(sec, nsec): Stamp| Some(SetTime::At(Time { sec, nsec }));
        self.set(SetAttr {
            atime: time(atime),
            mtime: time(mtime),
            ..SetAttr::default()
        })
    }
}

/// A file of a volume that is being read.
struct Reader<'a> {
    file: &'a File<'a>,
    size: u64,
}

impl Source for Reader<'_> {
    fn next_data(&mut self, from: u64) -> Result<Option<(u64, u64)>> {
        if from >= self.size {
            return Ok(None);
        }
        let (fs, ino) = (&self.file.volume.fs, self.file.ino);
        match fs.seek(ino, from, Whence::Data) {
            Ok(start) => Ok(Some((start, fs.seek(ino, start, Whence::Hole)?))),
            Err(Error::NoSuchDevice) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        Ok(self.file.volume.fs.read(self.file.ino, offset, out)?)
    }

    fn size(&self) -> Result<u64> {
        Ok(self.size)
    }
}
