//! Databases in volumes, which this process mounts without showing them to anybody.
//!
//! A path goes through the image's: `/path/x.img/dir/name.db`. The image is mounted when the first
//! of its files is opened, with the options that the URI has (`options=scheme=stet`, as `mount -o`
//! takes them), once for all connections of the process, and locked as by every mount; it is
//! unmounted when the last file is closed. A volume that the program has mounted itself is
//! [`attach`]ed.
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

/// Lets the SQLite that is linked in reach a volume, by the VFS called [`VFS`]. With `groups` a
/// transaction of a database whose data is journaled is a group of writes, as it is in an image.
///
/// # Panics
/// A volume of that name is attached. (A journal may name other files of its database, so a volume
/// has one name whenever it is attached.)
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
    /// The path of a file.
    pub fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        table().mounted.remove(&self.0);
    }
}

/// What the path of an attached volume begins with; no absolute path does.
const ATTACHED: &str = "attached:";

/// What is mounted, and why the last thing failed.
#[derive(Default)]
struct Table {
    mounted: HashMap<String, Mounted>,
    trouble: Option<String>,
}

struct Mounted {
    volume: Volume,
    /// Those that it was mounted with.
    options: Option<String>,
    /// Open ones.
    files: u64,
}

fn table() -> MutexGuard<'static, Table> {
    static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Table {
    /// Notes what failed; SQLite's errors have no words of ours.
    fn failed(&mut self, failure: Failure, why: impl Display) -> Failure {
        let why = why.to_string();
        vfs::log(&why);
        self.trouble = Some(why);
        failure
    }

    /// The volume in an image, mounted if it is not.
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

    /// A file of the image was closed.
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

/// Why the last call failed that a volume or an image had to do with.
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

/// Notes errors of volumes that belong to nobody but SQLite.
struct Noting;

impl Watch for Noting {
    fn called(&self, call: &'static str, result: Result<Moved, &Error>) {
        match result {
            // The last is no trouble: the journal is written.
            Ok(_) | Err(Error::NotFound | Error::GroupTooBig { .. }) => {}
            Err(e) => drop(table().failed(Failure::Other, format!("{call}: {e}"))),
        }
    }
}

/// The image that a path goes through, by its one name, and the path in it.
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

/// The same of a path that is one of ours already.
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

/// All of them.
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
    /// The volume of a path, one of whose files is open: SQLite asks for others only then.
    fn mounted(&self, path: &str) -> Result<(Volume, String)> {
        let (image, inside) = split(path)?;
        let found = table()
            .mounted
            .get(&image)
            .map(|mounted| mounted.volume.clone());
        Ok((found.ok_or(Failure::NotFound)?, inside))
    }
}

/// A share in an image.
struct Hold(String);

impl Drop for Hold {
    fn drop(&mut self) {
        table().close(&self.0);
    }
}
