//! SQLite on a mounted volume, in this process: each call of its VFS is a call of the library, from
//! the one thread that works on the database. So in virtual time nothing depends on the machine.
//!
//! The VFS is the product's (`crates/ffi/src/sqlite`). SQLite's random numbers, which go into the
//! headers of its journals, belong to the process; so one [`Database`] is open at a time, and
//! another thread that wants one waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, anyhow};
use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags as SqliteFlags};
use serde::{Deserialize, Serialize};
use stetfs::{Error, Kind};
use stetfs_ffi::sqlite::{self, Attached, Moved, Watch};

use super::session::{Counts, Session};

/// How SQLite makes a transaction atomic (`PRAGMA journal_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum JournalMode {
    /// The old pages go to a file, which is deleted: SQLite's default.
    Delete,
    /// As `Delete`, but where the data is journaled, the new pages are a group of writes and the
    /// old ones stay in memory.
    Group,
    /// As `Delete`, but the file is truncated.
    Truncate,
    /// As `Delete`, but the file's head is cleared.
    Persist,
    /// The new pages go to a log.
    Wal,
    /// No transaction is atomic: for loading.
    Off,
}

impl JournalMode {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Group => "DELETE in groups",
            mode => mode.pragma(),
        }
    }

    /// Returns the pragmas of a connection: `synchronous=FULL` (`OFF` without a journal), temporary
    /// files in memory, and otherwise SQLite's defaults.
    pub fn settings(self) -> String {
        let exclusive = match self {
            Self::Wal => "PRAGMA locking_mode=EXCLUSIVE;",
            _ => "",
        };
        let synchronous = match self {
            Self::Off => "OFF",
            _ => "FULL",
        };
        format!(
            "PRAGMA temp_store=MEMORY; {exclusive} PRAGMA journal_mode={}; \
                PRAGMA synchronous={synchronous};",
            self.pragma()
        )
    }

    /// The word of the pragma.
    pub const fn pragma(self) -> &'static str {
        match self {
            Self::Delete | Self::Group => "DELETE",
            Self::Truncate => "TRUNCATE",
            Self::Persist => "PERSIST",
            Self::Wal => "WAL",
            Self::Off => "OFF",
        }
    }
}

static RANDOM: Mutex<()> = Mutex::new(());

/// A database in the root directory of a volume.
pub struct Database {
    connection: Option<Connection>,
    tally: Arc<Tally>,
    _attached: Attached,
    _random: MutexGuard<'static, ()>,
}

impl Database {
    /// Opens a database, or makes it, with the mode's [`settings`](JournalMode::settings).
    ///
    /// # Errors
    /// Those of SQLite and the volume.
    pub fn open(session: &Session<'_>, name: &str, mode: JournalMode, seed: u64) -> Result<Self> {
        let random = RANDOM.lock();
        sqlite::seed_random(seed as u32);
        let tally = Arc::<Tally>::default();
        let groups = mode == JournalMode::Group;
        let attached = sqlite::attach("lab", session.fs().clone(), tally.clone(), groups);
        let flags = SqliteFlags::SQLITE_OPEN_READ_WRITE | SqliteFlags::SQLITE_OPEN_CREATE;
        let path = attached.path(name);
        let connection = Connection::open_with_flags_and_vfs(path, flags, sqlite::VFS)?;
        connection.set_prepared_statement_cache_capacity(64);
        let database = Self {
            connection: Some(connection),
            tally,
            _attached: attached,
            _random: random,
        };
        let done = database.connection().execute_batch(&mode.settings());
        done.map_err(|e| database.explain(e.into()))?;
        let is: String = database.value("PRAGMA journal_mode")?;
        anyhow::ensure!(
            is.eq_ignore_ascii_case(mode.pragma()),
            "SQLite's journal mode is {is}, not {}",
            mode.pragma()
        );
        Ok(database)
    }

    /// Makes a database without a journal, in one transaction: first the tables of `schema`, then
    /// what `fill` puts in.
    ///
    /// # Errors
    /// Those of SQLite and the volume.
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

    /// Returns the one value that a query gives.
    ///
    /// # Errors
    /// Those of SQLite.
    pub fn value<T: rusqlite::types::FromSql>(&self, sql: &str) -> Result<T> {
        let value = self.connection().query_row(sql, [], |row| row.get(0));
        value
            .map_err(|e| self.explain(e.into()))
            .context(sql.to_owned())
    }

    /// Reports SQLite's calls to the session, which may be due to commit.
    ///
    /// # Errors
    /// Those of the commit.
    pub fn tell(&self, session: &mut Session<'_>) -> Result<()> {
        session.was_called(self.tally.take())
    }

    /// Adds the volume's error, which SQLite's errors do not have.
    pub fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match self.tally.trouble.lock().take() {
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

    /// Closes the database, which removes a write-ahead log.
    ///
    /// # Errors
    /// Those of SQLite and the volume.
    pub fn close(mut self, session: &mut Session<'_>) -> Result<()> {
        let connection = self.connection.take().expect("it is open");
        let closed = connection.close();
        closed.map_err(|(_, e)| self.explain(e.into()))?;
        self.tell(session)
    }
}

/// Calls since they were last asked for, and the first that failed.
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
            // They are not told apart.
            writes: 0,
            reads: 0,
        }
    }
}

impl Watch for Tally {
    fn called(&self, call: &'static str, result: Result<Moved, &Error>) {
        self.operations.fetch_add(1, Relaxed);
        match result {
            Ok(Moved::Nothing) => {}
            Ok(Moved::Read(bytes)) => drop(self.read_bytes.fetch_add(bytes, Relaxed)),
            Ok(Moved::Written(bytes)) => drop(self.written_bytes.fetch_add(bytes, Relaxed)),
            Err(e) if e.kind() == Kind::NotFound => {}
            Err(e) => {
                let mut trouble = self.trouble.lock();
                trouble.get_or_insert_with(|| format!("{call}: {e}"));
            }
        }
    }
}

/// Updates of 100 bytes, each a transaction.
#[derive(Clone, Copy, Debug)]
pub struct Updates {
    /// How SQLite makes them atomic.
    pub mode: JournalMode,
    /// Rows of the table.
    pub rows: u64,
    /// Updates.
    pub updates: u64,
    /// Seed of rows and contents.
    pub seed: u64,
}
