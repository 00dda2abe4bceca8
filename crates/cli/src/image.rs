//! Volumes that this process mounts itself: opening the device, and an unmounted image as a file tree.

use std::path::Path;

use rustix::io::Errno;
use stetfs::mode;
use stetfs::{
    Attr, Caller, Entry, Error, Fs, Kind, Media, MountOptions, MountReport, OpenError, OpenFlags,
    SetAttr, SetTime, SetXattr, Whence,
};
use stetfs_format::{FeatureCompat, FeatureIncompat, InodeNo, Time};
use stetfs_media::MediaError;

use crate::disk::Disk;
use crate::failure::{Explain, Failure, Result};
use crate::mounts;
use crate::tree::{FileKind, Meta, Sink, Source, Stamp, Tree};

/// Mounts the volume in `image`; the caller decides who sees it.
pub(crate) fn mount(image: &Path, options: MountOptions) -> Result<(Fs, MountReport)> {
    let media = open_media(image, &options)?;
    Fs::mount(media, options).map_err(|e| failed(image, e))
}

/// Opens the media for what the mount may do. A read-only mount recovers the journal too, so it writes when there is something to
/// recover.
fn open_media(image: &Path, options: &MountOptions) -> Result<Media> {
    if let Some(mount) = mounts::mount_of(image)? {
        return Err(Failure::new(format!(
            "{} is mounted on {}",
            image.display(),
            mount.dir.display()
        ))
        .advise("use it there, or unmount it first"));
    }
    let needs_recovery = || {
        Disk::open(image).is_ok_and(|d| {
            d.superblock
                .feature_incompat
                .intersects(FeatureIncompat::RECOVER | FeatureIncompat::PRIVATE_LOG)
        })
    };
    let read_only = options.read_only && (options.noload || !needs_recovery());
    let open = |read_only| stetfs::open_media(image, options, read_only);
    let opened = match open(read_only) {
        // As mount(8): what is write-protected is mounted read-only.
        Err(OpenError::Media(MediaError::Open {
            source: Errno::ROFS,
            ..
        })) => open(true),
        Err(OpenError::Media(MediaError::Open {
            source: Errno::ACCESS,
            ..
        })) if options.read_only => open(true),
        other => other,
    };
    opened.map_err(|e| {
        let advice = match &e {
            OpenError::Media(MediaError::Open {
                source: Errno::ACCESS,
                ..
            }) => Some("it cannot be written by you; to look at it: -o ro"),
            OpenError::Media(MediaError::Busy { .. }) => {
                Some("wait for the other process, or unmount it there")
            }
            _ => None,
        };
        let failure = Failure::from(e);
        advice.into_iter().fold(failure, Failure::advise)
    })
}

/// A failed mount in words, with what can be done.
fn failed(image: &Path, error: Error) -> Failure {
    let shown = image.display();
    let is_read_only = error.kind() == Kind::ReadOnly;
    let failure = Failure::from(error).context(&shown);
    if is_read_only {
        return failure.advise(format!(
            "make {shown} writable for a moment, or look without recovery: -o ro,noload"
        ));
    }
    failure
}

/// Recovers the journal, by the scheme that wrote it, and finishes what was left open, and leaves the volume clean.
pub(crate) fn recover(image: &Path, nvm: Option<&Path>) -> Result<MountReport> {
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

/// Whether mounting found anything to recover.
pub(crate) fn recovered(report: &MountReport) -> bool {
    report.recovery.was_needed || report.orphans_deleted > 0 || report.orphans_truncated > 0
}

/// `recovered the journal: 3 transactions (41-43), 25 blocks; ...`
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

/// An image that this process works on as root would.
pub(crate) struct Volume {
    fs: Fs,
    caller: Caller,
    image: String,
}

impl Volume {
    /// Mounts it here; nobody else can while it is open.
    pub(crate) fn open(image: &Path, writable: bool) -> Result<Self> {
        let disk = Disk::open(image)?;
        let has_journal = disk
            .superblock
            .feature_compat
            .contains(FeatureCompat::HAS_JOURNAL);
        let owner = disk.private_log_owner();
        drop(disk);
        let mut words = match owner {
            // After a crash only that scheme finds everything.
            Some(owner) => format!("scheme={owner},noatime"),
            // A copy that is cut is repeated: it needs no copy of its data in the journal.
            None if has_journal => "data=ordered,noatime".to_owned(),
            None => "scheme=null,noatime".to_owned(),
        };
        if !writable {
            words.push_str(",ro");
        }
        let (fs, report) = mount(image, MountOptions::parse(&words)?)?;
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
        // New files belong to whoever runs this, as on a mount.
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let caller = Caller {
            uid,
            gid,
            ..Caller::root()
        };
        Ok(Self {
            fs,
            caller,
            image: image.display().to_string(),
        })
    }

    /// Makes everything durable and leaves a clean image.
    pub(crate) fn close(self) -> Result<()> {
        self.fs.unmount().during(|| self.image.clone())
    }

    fn find(&self, path: &[u8], follow: bool) -> Result<Option<Entry>> {
        match self.fs.resolve(&self.caller, path, follow) {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::NotFound | Error::NotDirectory) => Ok(None),
            Err(e) => Err(Failure::from(e).context(self.shown(path))),
        }
    }

    fn ino(&self, path: &[u8]) -> Result<InodeNo> {
        Ok(self.fs.resolve(&self.caller, path, false)?.ino)
    }

    fn set(&self, path: &[u8], set: SetAttr) -> Result<()> {
        self.fs.setattr(&self.caller, self.ino(path)?, &set)?;
        Ok(())
    }

    /// Opens a file for reading, following symbolic links.
    pub(crate) fn open_followed(&self, path: &[u8]) -> Result<Box<dyn Source + '_>> {
        let entry = self.fs.resolve(&self.caller, path, true)?;
        Ok(Box::new(OpenFile {
            volume: self,
            ino: entry.ino,
            size: entry.attr.size,
            is_created: false,
        }))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_dir(&self, path: &[u8]) -> Result<()> {
        let (dir, name) = self.fs.resolve_parent(&self.caller, path)?;
        Ok(self.fs.rmdir(&self.caller, dir.ino, name)?)
    }
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
        id: (0, attr.ino.0.into()),
        atime: stamp(attr.atime),
        mtime: stamp(attr.mtime),
        rdev: attr.rdev,
    }
}

impl Tree for Volume {
    fn shown(&self, path: &[u8]) -> String {
        format!("{}:{}", self.image, String::from_utf8_lossy(path))
    }

    fn meta(&self, path: &[u8]) -> Result<Option<Meta>> {
        Ok(self.find(path, false)?.map(|entry| meta(&entry.attr)))
    }

    fn meta_followed(&self, path: &[u8]) -> Result<Option<Meta>> {
        Ok(self.find(path, true)?.map(|entry| meta(&entry.attr)))
    }

    fn names(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let ino = self.fs.resolve(&self.caller, dir, true)?.ino;
        let mut names = Vec::new();
        self.fs.readdir(ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            true
        })?;
        names.sort();
        Ok(names)
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        Ok(self.fs.readlink(self.ino(path)?)?)
    }

    fn open(&self, path: &[u8]) -> Result<Box<dyn Source + '_>> {
        self.open_followed(path)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let ino = self.ino(path)?;
        let names = self.fs.listxattr(&self.caller, ino)?;
        let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
        names
            .map(|name| Ok((name.to_vec(), self.fs.getxattr(&self.caller, ino, name)?)))
            .collect()
    }

    fn create(&self, path: &[u8], mode: u16) -> Result<Box<dyn Sink + '_>> {
        let (dir, name) = self.fs.resolve_parent(&self.caller, path)?;
        let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
        let entry = self.fs.create(&self.caller, dir.ino, name, mode, flags)?;
        Ok(Box::new(OpenFile {
            volume: self,
            ino: entry.ino,
            size: 0,
            is_created: true,
        }))
    }

    fn make_dir(&self, path: &[u8], mode: u16) -> Result<()> {
        let (dir, name) = self.fs.resolve_parent(&self.caller, path)?;
        self.fs.mkdir(&self.caller, dir.ino, name, mode)?;
        Ok(())
    }

    fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<()> {
        let (dir, name) = self.fs.resolve_parent(&self.caller, path)?;
        self.fs.symlink(&self.caller, dir.ino, name, target)?;
        Ok(())
    }

    fn make_link(&self, path: &[u8], existing: &[u8]) -> Result<()> {
        let (dir, name) = self.fs.resolve_parent(&self.caller, path)?;
        self.fs
            .link(&self.caller, self.ino(existing)?, dir.ino, name)?;
        Ok(())
    }

    fn make_node(&self, path: &[u8], kind: FileKind, mode: u16, rdev: (u32, u32)) -> Result<()> {
        let (dir, name) = self.fs.resolve_parent(&self.caller, path)?;
        self.fs
            .mknod(&self.caller, dir.ino, name, kind.bits() as u16 | mode, rdev)?;
        Ok(())
    }

    fn remove_file(&self, path: &[u8]) -> Result<()> {
        let (dir, name) = self.fs.resolve_parent(&self.caller, path)?;
        Ok(self.fs.unlink(&self.caller, dir.ino, name)?)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        Ok(self
            .fs
            .setxattr(&self.caller, self.ino(path)?, name, value, SetXattr::Any)?)
    }

    fn set_owner(&self, path: &[u8], uid: u32, gid: u32) -> Result<bool> {
        self.set(
            path,
            SetAttr {
                uid: Some(uid),
                gid: Some(gid),
                ..SetAttr::default()
            },
        )?;
        Ok(true)
    }

    fn set_mode(&self, path: &[u8], mode: u16) -> Result<()> {
        self.set(
            path,
            SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            },
        )
    }

    fn set_times(&self, path: &[u8], atime: Stamp, mtime: Stamp) -> Result<()> {
        let time = |(sec, nsec): Stamp| Some(SetTime::At(Time { sec, nsec }));
        self.set(
            path,
            SetAttr {
                atime: time(atime),
                mtime: time(mtime),
                ..SetAttr::default()
            },
        )
    }
}

/// A file of a volume while it is read or written.
struct OpenFile<'a> {
    volume: &'a Volume,
    ino: InodeNo,
    size: u64,
    /// Made by `create`, which counts as an open.
    is_created: bool,
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        if self.is_created
            && let Err(e) = self.volume.fs.release(self.ino)
        {
            tracing::warn!("{}: closing inode {}: {e}", self.volume.image, self.ino);
        }
    }
}

impl Source for OpenFile<'_> {
    fn next_data(&mut self, from: u64) -> Result<Option<(u64, u64)>> {
        if from >= self.size {
            return Ok(None);
        }
        let fs = &self.volume.fs;
        match fs.seek(self.ino, from, Whence::Data) {
            Ok(start) => Ok(Some((start, fs.seek(self.ino, start, Whence::Hole)?))),
            Err(Error::NoSuchDevice) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<usize> {
        Ok(self.volume.fs.read(self.ino, offset, out)?)
    }
}

impl Sink for OpenFile<'_> {
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let n = self.volume.fs.write(
                &self.volume.caller,
                self.ino,
                offset + done as u64,
                &data[done..],
            )?;
            if n == 0 {
                return Err(Failure::new("nothing more can be written"));
            }
            done += n;
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        let set = SetAttr {
            size: Some(len),
            ..SetAttr::default()
        };
        self.volume
            .fs
            .setattr(&self.volume.caller, self.ino, &set)?;
        Ok(())
    }
}
