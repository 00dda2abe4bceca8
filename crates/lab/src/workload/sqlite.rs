//! SQLite on a mounted volume, in the process: each call of its VFS is one of the library's, from
//! the one thread that works the database, so that in virtual time nothing depends on the machine.
//!
//! The calls are those of SQLite's own VFS for Unix: a file that it made and synchronizes for the
//! first time takes its directory along, a delete does not. SQLite's random numbers, which go into
//! the headers of its journals, belong to the process; so one [`Database`] is open at a time, and
//! another thread that wants one waits.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, anyhow};
use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags as SqliteFlags};
use serde::Serialize;
use stetfs::{Caller, Error, Fs, Kind, OpenFlags, SetAttr};
use stetfs_ffi::sqlite::{self, Attached, File, Files};
use stetfs_format::InodeNo;

use super::{Counts, Session};

/// How SQLite makes a transaction atomic (`PRAGMA journal_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum JournalMode {
    /// The old pages go to a file, which is deleted: SQLite's default.
    Delete,
    /// The same, and the file is truncated.
    Truncate,
    /// The new pages go to a log.
    Wal,
    /// Not at all: for loading.
    Off,
}

impl JournalMode {
    /// The word of the pragma.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Delete => "DELETE",
            Self::Truncate => "TRUNCATE",
            Self::Wal => "WAL",
            Self::Off => "OFF",
        }
    }
}

static RANDOM: Mutex<()> = Mutex::new(());

/// A database in the root directory of a volume.
pub struct Database {
    connection: Option<Connection>,
    files: Arc<VolumeFiles>,
    _attached: Attached,
    _random: MutexGuard<'static, ()>,
}

impl Database {
    /// Opens it, or makes it, with `synchronous=FULL` (none without a journal) and otherwise
    /// SQLite's defaults; temporary files are in memory.
    ///
    /// # Errors
    /// Of SQLite and the volume.
    pub fn open(session: &Session<'_>, name: &str, mode: JournalMode, seed: u64) -> Result<Self> {
        let random = RANDOM.lock();
        sqlite::seed_random(seed as u32);
        let files = Arc::new(VolumeFiles {
            fs: session.fs().clone(),
            tally: Arc::default(),
        });
        let attached = sqlite::attach(files.clone());
        let flags = SqliteFlags::SQLITE_OPEN_READ_WRITE | SqliteFlags::SQLITE_OPEN_CREATE;
        let path = attached.path(name);
        let connection = Connection::open_with_flags_and_vfs(path, flags, sqlite::VFS)?;
        connection.set_prepared_statement_cache_capacity(64);
        let pragmas = match mode {
            JournalMode::Wal => "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL;",
            JournalMode::Truncate => "PRAGMA journal_mode=TRUNCATE;",
            JournalMode::Delete => "PRAGMA journal_mode=DELETE;",
            JournalMode::Off => "PRAGMA journal_mode=OFF;",
        };
        let synchronous = match mode {
            JournalMode::Off => "OFF",
            _ => "FULL",
        };
        let all = format!("PRAGMA temp_store=MEMORY; {pragmas} PRAGMA synchronous={synchronous};");
        let database = Self {
            connection: Some(connection),
            files,
            _attached: attached,
            _random: random,
        };
        let done = database.connection().execute_batch(&all);
        done.map_err(|e| database.explain(e.into()))?;
        let is: String = database.value("PRAGMA journal_mode")?;
        anyhow::ensure!(
            is.eq_ignore_ascii_case(mode.name()),
            "SQLite's journal mode is {is}, not {}",
            mode.name()
        );
        Ok(database)
    }

    /// Makes one without a journal, in a transaction: what `schema` has, and then what `fill` puts
    /// in.
    ///
    /// # Errors
    /// Of SQLite and the volume.
    pub fn make(
        session: &mut Session<'_>,
        (name, seed): (&str, u64),
        schema: &str,
        fill: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<()> {
        let database = Self::open(session, name, JournalMode::Off, seed)?;
        let connection = database.connection();
        connection
            .execute_batch(&format!("{schema}; BEGIN"))
            .and_then(|()| fill(connection))
            .and_then(|()| connection.execute_batch("COMMIT"))
            .map_err(|e| database.explain(e.into()))?;
        database.close(session)
    }

    /// The connection.
    pub fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("it is open")
    }

    /// The one value that a query gives.
    ///
    /// # Errors
    /// Of SQLite.
    pub fn value<T: rusqlite::types::FromSql>(&self, sql: &str) -> Result<T> {
        let value = self.connection().query_row(sql, [], |row| row.get(0));
        value
            .map_err(|e| self.explain(e.into()))
            .context(sql.to_owned())
    }

    /// Says in the session what calls there were, which may be due to commit.
    ///
    /// # Errors
    /// Of the commit.
    pub fn tell(&self, session: &mut Session<'_>) -> Result<()> {
        session.was_called(self.files.tally.take())
    }

    /// What went wrong in the volume is no part of SQLite's errors.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match self.files.tally.trouble.lock().take() {
            Some(trouble) => anyhow!("{error:#}: {trouble}"),
            None => error,
        }
    }

    /// Judges the database by SQLite's own check.
    ///
    /// # Errors
    /// It is not intact.
    pub fn check_integrity(&self) -> Result<()> {
        let found: String = self.value("PRAGMA integrity_check")?;
        anyhow::ensure!(found == "ok", "the database is damaged: {found}");
        Ok(())
    }

    /// Closes it; a write-ahead log is gone then.
    ///
    /// # Errors
    /// Of SQLite and the volume.
    pub fn close(mut self, session: &mut Session<'_>) -> Result<()> {
        let connection = self.connection.take().expect("it is open");
        let closed = connection.close();
        closed.map_err(|(_, e)| self.explain(e.into()))?;
        self.tell(session)
    }
}

/// Calls since they were asked for, and the first that failed.
#[derive(Default)]
struct Tally {
    operations: AtomicU64,
    written_bytes: AtomicU64,
    read_bytes: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl Tally {
    fn take(&self) -> Counts {
        Counts {
            operations: self.operations.swap(0, Relaxed),
            written_bytes: self.written_bytes.swap(0, Relaxed),
            read_bytes: self.read_bytes.swap(0, Relaxed),
        }
    }

    /// Counts a call; its error as SQLite's VFS wants it.
    fn called<T>(&self, what: &str, result: Result<T, Error>) -> io::Result<T> {
        self.operations.fetch_add(1, Relaxed);
        result.map_err(|e| {
            let kind = match e.kind() {
                Kind::NotFound => return ErrorKind::NotFound.into(),
                Kind::NoSpace => ErrorKind::StorageFull,
                _ => ErrorKind::Other,
            };
            let mut trouble = self.trouble.lock();
            trouble.get_or_insert_with(|| format!("{what}: {e}"));
            io::Error::new(kind, e.to_string())
        })
    }
}

/// The root directory of a volume.
struct VolumeFiles {
    fs: Fs,
    tally: Arc<Tally>,
}

impl VolumeFiles {
    fn find(&self, name: &str) -> io::Result<InodeNo> {
        let entry = self
            .fs
            .lookup(&Caller::root(), self.fs.root(), name.as_bytes());
        Ok(self.tally.called("lookup", entry)?.ino)
    }
}

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl Files for VolumeFiles {
    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn File>> {
        let caller = Caller::root();
        let (ino, is_new) = match self.find(name) {
            Ok(ino) => {
                let opened = self.fs.open(&caller, ino, READ_WRITE);
                self.tally.called("open", opened)?;
                (ino, false)
            }
            Err(e) if e.kind() == ErrorKind::NotFound && create => {
                let flags = READ_WRITE | OpenFlags::EXCLUSIVE;
                let root = self.fs.root();
                let made = self.fs.create(&caller, root, name.as_bytes(), 0o644, flags);
                (self.tally.called("create", made)?.ino, true)
            }
            Err(e) => return Err(e),
        };
        Ok(Box::new(VolumeFile {
            fs: self.fs.clone(),
            tally: self.tally.clone(),
            ino,
            is_new,
        }))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let root = self.fs.root();
        let deleted = self.fs.unlink(&Caller::root(), root, name.as_bytes());
        self.tally.called("unlink", deleted)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let ino = match self.find(name) {
            Ok(ino) => ino,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        let attr = self.tally.called("stat", self.fs.getattr(ino))?;
        Ok(attr.size > 0)
    }
}

struct VolumeFile {
    fs: Fs,
    tally: Arc<Tally>,
    ino: InodeNo,
    /// It was made when it was opened, and not synchronized since.
    is_new: bool,
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        // An error here is one of the volume, which the next call meets too.
        let _ = self.tally.called("release", self.fs.release(self.ino));
    }
}

impl File for VolumeFile {
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let n = self
            .tally
            .called("read", self.fs.read(self.ino, offset, out))?;
        self.tally.read_bytes.fetch_add(n as u64, Relaxed);
        Ok(n)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut left = bytes;
        let mut at = offset;
        while !left.is_empty() {
            let wrote = self.fs.write(&Caller::root(), self.ino, at, left);
            let n = self.tally.called("write", wrote)?;
            self.tally.written_bytes.fetch_add(n as u64, Relaxed);
            (left, at) = (&left[n..], at + n as u64);
        }
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> io::Result<()> {
        let set = SetAttr {
            size: Some(size),
            through_handle: true,
            ..SetAttr::default()
        };
        let cut = self.fs.setattr(&Caller::root(), self.ino, &set);
        self.tally.called("truncate", cut).map(drop)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.tally.called("fsync", self.fs.fsync(self.ino, false))?;
        if std::mem::take(&mut self.is_new) {
            let root = self.fs.root();
            self.tally.called("fsync", self.fs.fsync(root, false))?;
        }
        Ok(())
    }

    fn size(&mut self) -> io::Result<u64> {
        Ok(self.tally.called("stat", self.fs.getattr(self.ino))?.size)
    }
}
