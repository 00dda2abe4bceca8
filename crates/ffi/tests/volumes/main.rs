//! The SQLite that is linked in, on volumes in memory.
#![forbid(unsafe_code)]

mod connections;
mod power;

use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OpenFlags, Result};
use stetfs::{Caller, Error, Fs, MountOptions};
use stetfs_ffi::sqlite::{self, Attached, Moved, Watch};
use stetfs_format::{InodeFlags, InodeNo};
use stetfs_media::Image;
use stetfs_media::sim::{SimDev, SimOptions};
use stetfs_testkit::host::scratch;
use stetfs_testkit::image::EXT4_4K;

/// A volume with a journal of 4 MiB.
fn image() -> Image {
    let dir = scratch().expect("a directory");
    let path = dir.path().join("image");
    EXT4_4K.make(&path, 48, 4).expect("a volume");
    Image::from_file(&path).expect("its content")
}

/// The successful calls that change something or sync, in order.
#[derive(Default)]
struct Calls(Mutex<Vec<&'static str>>);

impl Calls {
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Watch for Calls {
    fn called(&self, call: &'static str, result: std::result::Result<Moved, &Error>) {
        if result.is_ok() && ["create", "commit", "fsync", "unlink"].contains(&call) {
            self.0.lock().unwrap().push(call);
        }
    }
}

/// A mounted volume that SQLite can reach.
struct Bed {
    fs: Fs,
    calls: Arc<Calls>,
    attached: Attached,
}

impl Bed {
    /// Attaches a volume, by the test's name.
    fn of(fs: Fs, groups: bool) -> Self {
        let calls = Arc::<Calls>::default();
        let thread = std::thread::current();
        let name = thread.name().expect("that of the test");
        let attached = sqlite::attach(name, fs.clone(), calls.clone(), groups);
        Self {
            fs,
            calls,
            attached,
        }
    }

    fn new(options: &str, groups: bool) -> (Self, Arc<SimDev>) {
        let dev = Arc::new(SimOptions::default().build(image()));
        (Self::of(mount(&dev, options), groups), dev)
    }

    fn open(&self, name: &str) -> Result<Connection> {
        self.open_as(name, "")
    }

    /// Opens a database with parameters of a URI.
    fn open_as(&self, name: &str, parameters: &str) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_URI;
        let path = format!("file:{}?{parameters}", self.attached.path(name));
        let db = Connection::open_with_flags_and_vfs(path, flags, sqlite::VFS)?;
        db.busy_timeout(std::time::Duration::ZERO)?;
        Ok(db)
    }

    fn find(&self, name: &str) -> stetfs::Result<InodeNo> {
        let root = self.fs.root();
        let found = self.fs.lookup(&Caller::root(), root, name.as_bytes());
        found.map(|found| found.ino)
    }

    fn has(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    /// Marks a file, as `chattr +j` does.
    fn mark(&self, name: &str) {
        let ino = self.find(name).unwrap();
        let flags = self.fs.get_flags(ino).unwrap() | InodeFlags::JOURNAL_DATA;
        self.fs.set_flags(&Caller::root(), ino, flags).unwrap();
    }
}

fn mount(dev: &Arc<SimDev>, options: &str) -> Fs {
    // The clock starts no commit.
    let options = MountOptions::parse(&format!("{options},commit=3600")).unwrap();
    Fs::mount(dev.clone(), options).unwrap().0
}

/// Returns the one number that a query finds.
fn number(db: &Connection, sql: &str) -> Result<i64> {
    db.query_row(sql, [], |row| row.get(0))
}

fn check_integrity(db: &Connection, what: &str) {
    let found = db.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    assert_eq!(found.as_deref(), Ok("ok"), "{what}");
}
