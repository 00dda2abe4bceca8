//! Databases in volumes that only this process mounts.
//!
//! A path goes on where the image's ends: `/path/x.img/dir/name.db`. Opening the first file of an
//! image mounts it, once for all connections of the process, with the options in the URI
//! (`options=scheme=stet`, as `mount -o` takes them). The image is locked as by every mount.
//! Closing the last file unmounts it. [`attach`] adds a volume that the program has mounted itself.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError};

use libsqlite3_sys as ffi;
use stetfs::{Error, Fs, MountOptions, OpenError};
use stetfs_media::MediaError;

use super::contract::{Failure, File, Files, Opening, Result, VFS};
use super::routines::Routines;
use super::vfs;
use super::volume::{Moved, Volume, Watch};

/// A volume that SQLite can reach as long as this lives.
pub struct Attached(String);

/// Lets the SQLite that is linked in reach a volume, by the VFS called [`VFS`]. With `groups`, a
/// transaction of a database whose data is journaled is a group of writes, as it is in an image.
///
/// # Panics
/// If a volume of that name is attached already. (Attach a volume by the same name each time: a
/// journal may name other files of its database.)
pub fn attach(name: &str, fs: Fs, watch: Arc<dyn Watch>, groups: bool) -> Attached {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| vfs::register(Routines::linked(), VFS, &|_| Box::new(Images)));
    let key = format!("{ATTACHED}{name}");
    let mounted = Mounted {
        volume: Volume::new(fs, watch, groups),
        options: None,
        files: 1,
    };
    let before = table().mounted.insert(key.clone(), mounted);
    assert!(before.is_none(), "{key} is there already");
    Attached(key)
}

impl Attached {
    /// Returns the path by which SQLite opens the file `name`.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        table().mounted.remove(&self.0);
    }
}

/// The beginning of an attached volume's path. No absolute path begins like this.
const ATTACHED: &str = "attached:";

/// The volumes that SQLite can reach, and why the last failed call failed.
#[derive(Default)]
struct Table {
    mounted: HashMap<String, Mounted>,
    trouble: Option<String>,
}

struct Mounted {
    volume: Volume,
    /// The options that it was mounted with.
    options: Option<String>,
    /// Number of open files.
    files: u64,
}

fn table() -> MutexGuard<'static, Table> {
    static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// Notes why a call failed, since SQLite's errors cannot carry our words.
    fn failed(&mut self, failure: Failure, why: impl Display) -> Failure {
        let why = why.to_string();
        vfs::log(&why);
        self.trouble = Some(why);
        failure
    }

    /// Returns the volume in an image. Mounts the image if it is not mounted.
    fn open(&mut self, image: &str, options: Option<&str>) -> Result<Volume> {
        if let Some(mounted) = self.mounted.get_mut(image) {
            if options.is_some() && options != mounted.options.as_deref() {
                let has = mounted.options.clone().unwrap_or_default();
                let why = format!("{image}: open with other options: \"{has}\"");
                return Err(self.failed(Failure::Other, why));
            }
            mounted.files += 1;
            return Ok(mounted.volume.clone());
        }
        let fs = mount(image, options).map_err(|(failure, why)| self.failed(failure, why))?;
        let volume = Volume::new(fs, Arc::new(Noting), true);
        let mounted = Mounted {
            volume: volume.clone(),
            options: options.map(str::to_owned),
            files: 1,
        };
        self.mounted.insert(image.to_owned(), mounted);
        Ok(volume)
    }

    /// Counts a closed file of the image. The last one unmounts it.
    fn close(&mut self, image: &str) {
        let Some(mounted) = self.mounted.get_mut(image) else {
            return;
        };
        mounted.files -= 1;
        if mounted.files > 0 {
            return;
        }
        if let Err(e) = mounted.volume.fs.unmount() {
            // Nothing that was confirmed is lost; the next mount recovers.
            self.failed(Failure::Other, format!("{image}: closing: {e}"));
        }
        self.mounted.remove(image);
    }
}

/// Returns why the last failed call of a volume or an image failed.
pub(super) fn trouble() -> Option<String> {
    table().trouble.clone()
}

fn mount(image: &str, options: Option<&str>) -> Result<Fs, (Failure, String)> {
    let failed = |e: &dyn Display| (Failure::Other, format!("{image}: {e}"));
    let options = MountOptions::parse(options.unwrap_or_default()).map_err(|e| failed(&e))?;
    let media = stetfs::open_media(Path::new(image), &options, options.read_only);
    let media = media.map_err(|e| match &e {
        OpenError::Media(MediaError::Busy { .. }) => (Failure::Busy, e.to_string()),
        _ => (Failure::Other, e.to_string()),
    })?;
    let (fs, report) = Fs::mount(media, options).map_err(|e| failed(&e))?;
    for warning in report.warnings {
        vfs::log(&format!("{image}: {warning}"));
    }
    Ok(fs)
}

/// Notes errors of volumes that only SQLite uses.
struct Noting;

impl Watch for Noting {
    fn called(&self, call: &'static str, result: Result<Moved, &Error>) {
        match result {
            // A group that is too big is no failure: SQLite's journal is written instead.
            Ok(_) | Err(Error::NotFound | Error::GroupTooBig { .. }) => {}
            Err(e) => drop(table().failed(Failure::Other, format!("{call}: {e}"))),
        }
    }
}

/// Splits a path into the image's canonical path and the path inside of the image.
fn find_image(path: &str) -> Result<(String, String)> {
    let failed = |why: &dyn Display| table().failed(Failure::Other, format!("{path}: {why}"));
    let absolute = std::path::absolute(path).map_err(|e| failed(&e))?;
    let mut parts = absolute.components();
    let mut image = PathBuf::new();
    loop {
        let Some(part) = parts.next() else {
            return Err(failed(&"is a directory, and names nothing in an image"));
        };
        image.push(part);
        match fs::metadata(&image) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => break,
            Err(e) => return Err(failed(&format!("no image: {}: {e}", image.display()))),
        }
    }
    let image = image.canonicalize().map_err(|e| failed(&e))?;
    let (image, inside) = (image.to_str(), parts.as_path().to_str());
    match (image, inside) {
        (Some(image), Some(inside)) if !inside.is_empty() => {
            Ok((image.to_owned(), inside.to_owned()))
        }
        _ => Err(failed(&"names nothing in an image")),
    }
}

/// Splits a path that `full_path` has made.
fn split(path: &str) -> Result<(String, String)> {
    let table = table();
    let within = |key: &str| path.strip_prefix(key)?.strip_prefix('/').map(str::to_owned);
    let found = table
        .mounted
        .keys()
        .find_map(|key| Some((key.clone(), within(key)?)));
    drop(table);
    match found {
        Some(found) => Ok(found),
        None if path.starts_with(ATTACHED) => Err(Failure::NotFound),
        None => find_image(path),
    }
}

/// The files of all images and attached volumes.
pub(super) struct Images;

impl Files for Images {
    fn full_path(&self, name: &CStr) -> Result<CString> {
        let name = name.to_str().map_err(|_| Failure::Other)?;
        let path = if name.starts_with(ATTACHED) {
            name.to_owned()
        } else {
            let (image, inside) = find_image(name)?;
            format!("{image}/{inside}")
        };
        CString::new(path).map_err(|_| Failure::Other)
    }

    fn open(&self, how: &Opening) -> Result<(Box<dyn File>, c_int)> {
        let (image, inside) = split(&how.path)?;
        let volume = table().open(&image, how.options.as_deref())?;
        let create = how.has(ffi::SQLITE_OPEN_CREATE);
        let hold = Box::new(Hold(image));
        let (file, can_write) = volume.open(&inside, create, hold)?;
        let flags = if can_write {
            how.flags
        } else {
            how.flags & !ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_READONLY
        };
        Ok((Box::new(file), flags))
    }

    fn delete(&self, path: &str, sync_directory: bool) -> Result<()> {
        let (volume, inside) = self.mounted(path)?;
        volume.delete(&inside, sync_directory)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        let (volume, inside) = self.mounted(path)?;
        volume.exists(&inside)
    }
}

impl Images {
    /// Returns the volume of a path. A file of it is open: only then does SQLite ask for others.
    fn mounted(&self, path: &str) -> Result<(Volume, String)> {
        let (image, inside) = split(path)?;
        let found = table()
            .mounted
            .get(&image)
            .map(|mounted| mounted.volume.clone());
        Ok((found.ok_or(Failure::NotFound)?, inside))
    }
}

/// Keeps an image mounted, for one open file.
struct Hold(String);

impl Drop for Hold {
    fn drop(&mut self) {
        table().close(&self.0);
    }
}
