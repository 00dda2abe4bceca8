//! SQLite through the library's VFS and on the kernel's ext4: transactions per second, and bytes
//! and flushes of the device for each transaction.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use rusqlite::{Connection, OpenFlags};
use stetfs_ffi::sqlite;
use stetfs_lab::workload::sqlite::{Database, JournalMode};
use stetfs_lab::workload::tpcc::{Cardinality, Tpcc, check::check_consistency};
use stetfs_lab::workload::{Durable, Session, Time, Updates};
use stetfs_media::BlockDev;

use crate::library::{KernelBed, LibraryBed};
use crate::report::Report;
use crate::systems::Traffic;

/// What is done to a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    Update,
    TpcC,
}

/// A row: a load in a journal mode.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name.
    pub name: &'static str,
    load: Load,
    /// The journal mode in the library. The kernel's file system has no groups, and uses DELETE
    /// instead.
    mode: JournalMode,
}

/// Every row.
pub const ROWS: [Row; 4] = [
    row("SQLite, 100 B, DELETE", Load::Update, JournalMode::Group),
    row("SQLite, 100 B, WAL", Load::Update, JournalMode::Wal),
    row("TPC-C, DELETE", Load::TpcC, JournalMode::Group),
    row("TPC-C, WAL", Load::TpcC, JournalMode::Wal),
];

const fn row(name: &'static str, load: Load, mode: JournalMode) -> Row {
    Row { name, load, mode }
}

const FILE: &str = "bench.db";
const SEED: u64 = 42;

/// The cost of a load.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    rate: f64,
    bytes: Option<f64>,
    flushes: Option<f64>,
}

impl Figures {
    /// Adds them to the report as samples of a column.
    pub fn report(&self, row: &Row, column: &str, report: &mut Report) {
        report.add(row.name, "tx/s", column, self.rate);
        for (what, value) in [("bytes", self.bytes), ("flushes", self.flushes)] {
            if let Some(value) = value {
                report.add(&format!("{}, {what}", row.name), "a tx", column, value);
            }
        }
    }
}

/// Both loads, of the size of one run.
pub(crate) struct Loads {
    updates: Updates,
    tpcc: Tpcc,
}

impl Loads {
    /// The loads for this effort; with 4, the kernel's ext4 takes some seconds.
    pub(crate) fn new(mode: JournalMode, effort: u64, shrink: u64) -> Self {
        let decks = u32::try_from(25 * effort / shrink).unwrap_or(u32::MAX);
        Self {
            updates: Updates {
                mode,
                rows: 10_000,
                updates: (2_000 * effort / shrink).max(1),
                seed: SEED,
            },
            tpcc: Tpcc {
                size: Cardinality::scaled(0.1),
                decks: decks.max(1),
                journal: mode,
                page_bytes: 4096,
                seed: SEED,
            },
        }
    }

    pub(crate) fn fill(&self, load: Load, db: &Connection) -> Result<()> {
        match load {
            Load::TpcC => self.tpcc.fill(db, &mut |_, _| {}),
            Load::Update => {
                db.execute_batch(&format!("{}; BEGIN", Updates::SCHEMA))?;
                self.updates.fill(db)?;
                Ok(db.execute_batch("COMMIT")?)
            }
        }
    }

    /// Does the load; returns the number of transactions.
    pub(crate) fn run(&self, load: Load, db: &Connection) -> Result<u64> {
        match load {
            Load::TpcC => {
                self.tpcc.transact(db, &mut |_| Ok(()))?;
                Ok(self.tpcc.transactions().into())
            }
            Load::Update => {
                self.updates.update(db, &mut |_| Ok(()))?;
                Ok(self.updates.updates)
            }
        }
    }

    pub(crate) fn check(&self, load: Load, db: &Connection) -> Result<()> {
        match load {
            Load::TpcC => check_consistency(db),
            Load::Update => Ok(()),
        }
    }

    /// Does the load and measures it; `count` returns the device's counters.
    fn measure(
        &self,
        load: Load,
        db: &Connection,
        count: &dyn Fn() -> Result<Traffic>,
    ) -> Result<Figures> {
        let (before, start) = (count()?, Instant::now());
        let done = self.run(load, db)? as f64;
        let seconds = start.elapsed().as_secs_f64();
        let traffic = count()?.since(&before);
        self.check(load, db)?;
        let each = |n: Option<u64>| n.map(|n| n as f64 / done);
        Ok(Figures {
            rate: done / seconds,
            bytes: each(traffic.bytes),
            flushes: each(traffic.flushes),
        })
    }
}

/// Opens a database on a mount: through SQLite's own VFS, or for groups through ours above that.
pub(crate) fn open(path: &Path, journal: JournalMode, synchronous: &str) -> Result<Connection> {
    let db = match journal {
        JournalMode::Group => {
            sqlite::register_mount_vfs();
            Connection::open_with_flags_and_vfs(path, OpenFlags::default(), sqlite::MOUNT_VFS)?
        }
        _ => Connection::open(path)?,
    };
    db.set_prepared_statement_cache_capacity(64);
    let mode = journal.pragma();
    let is: String = db.query_row(&format!("PRAGMA journal_mode={mode}"), [], |row| row.get(0))?;
    ensure!(
        is.eq_ignore_ascii_case(mode),
        "SQLite's journal mode is {is}"
    );
    db.execute_batch(&format!("PRAGMA synchronous={synchronous}"))?;
    Ok(db)
}

/// Closes the database and returns its errors.
pub(crate) fn close(db: Connection) -> Result<()> {
    db.close().map_err(|(_, error)| error.into())
}

impl Row {
    /// Measures the row through the library's VFS.
    ///
    /// # Errors
    /// Of SQLite and the volume.
    pub fn library(&self, bed: &LibraryBed, seconds: u64) -> Result<Figures> {
        let time = Time::Real(Instant::now());
        let mut session = Session::new(bed.fs(), time, Durable::EXT3, &|_, _| {});
        let loads = Loads::new(self.mode, seconds, 1);
        let db = Database::open(&session, FILE, JournalMode::Off, SEED)?;
        loads.fill(self.load, db.connection())?;
        db.close(&mut session)?;
        bed.fs().sync()?;
        let db = Database::open(&session, FILE, self.mode, SEED)?;
        let count = || Ok(traffic(&**bed.fs().device()));
        let figures = loads.measure(self.load, db.connection(), &count);
        let figures = figures.map_err(|e| db.explain(e))?;
        db.check_integrity()?;
        db.close(&mut session)?;
        Ok(figures)
    }

    /// Measures the row on the kernel's ext4.
    ///
    /// # Errors
    /// Of SQLite and the kernel.
    pub fn kernel(&self, bed: &KernelBed, seconds: u64) -> Result<Figures> {
        let mode = match self.mode {
            JournalMode::Group => JournalMode::Delete,
            mode => mode,
        };
        let (loads, path) = (Loads::new(mode, seconds, 1), bed.dir().join(FILE));
        let db = open(&path, JournalMode::Off, "FULL")?;
        loads.fill(self.load, &db)?;
        close(db)?;
        let db = open(&path, mode, "FULL")?;
        loads.measure(self.load, &db, &|| Traffic::of(bed.device()))
    }
}

/// Returns the counters of a device of ours. A write that is durable at once counts as a flush too.
fn traffic(device: &dyn BlockDev) -> Traffic {
    let counted = device.meter().snapshot();
    Traffic {
        bytes: Some(counted.total().write_bytes),
        flushes: Some(counted.total_flushes() + counted.total_durable_writes()),
        requests: None,
    }
}

#[cfg(test)]
mod tests {
    use stetfs_testkit::host::needs;
    use stetfs_testkit::skip_unless;

    use super::*;

    /// Checks what `docs/SQLITE.md` says of scheme `stet`: bytes and flushes are the same on every
    /// machine.
    #[test]
    fn a_transaction_in_a_group_costs_one_flush() {
        skip_unless!(needs(false, false, &["mke2fs", "e2fsck"]));
        for (row, bytes) in [(ROWS[0], 1024.0), (ROWS[2], 16_384.0)] {
            let bed = LibraryBed::new("scheme=stet").expect("a volume");
            let found = row.library(&bed, 1).expect("a run");
            bed.finish().expect("a whole volume");
            let is_flushes = found.flushes.is_some_and(|n| (0.5..1.01).contains(&n));
            assert!(
                is_flushes && found.bytes.is_some_and(|n| n <= bytes),
                "{found:?}"
            );
        }
    }
}
