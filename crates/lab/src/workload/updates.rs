//! Updates of one row each in a table of SQLite, as applications of a telephone make them.

use anyhow::Result;
use rusqlite::Connection;

use super::contract::Workload;
use super::session::Session;
use super::sqlite::{Database, Updates};
use stetfs_testkit::rng::Rng;

/// Bytes of an update.
const BYTES: usize = 100;
/// The database's file.
pub const NAME: &str = "updates.db";

impl Workload for Updates {
    fn name(&self) -> String {
        format!(
            "{} updates of {BYTES} bytes in SQLite's journal mode {}, {} rows",
            self.updates,
            self.mode.name(),
            self.rows
        )
    }

    fn sqlite(&self) -> Option<Updates> {
        Some(*self)
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        Database::make(session, (NAME, self.seed), Self::SCHEMA, |db| self.fill(db))
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let database = Database::open(session, NAME, self.mode, self.seed)?;
        let updated = self.update(database.connection(), &mut |n| {
            database.tell(session)?;
            session.tell(n, self.updates);
            Ok(())
        });
        updated.map_err(|e| database.explain(e))?;
        database.close(session)
    }
}

impl Updates {
    /// What [`fill`](Self::fill) fills.
    pub const SCHEMA: &'static str =
        "CREATE TABLE things (id INTEGER PRIMARY KEY, content BLOB NOT NULL)";

    /// Makes the rows.
    ///
    /// # Errors
    /// Those of SQLite.
    pub fn fill(&self, db: &Connection) -> rusqlite::Result<()> {
        let mut insert = db.prepare("INSERT INTO things VALUES (?1, ?2)")?;
        let (mut rng, mut content) = (Rng::new(self.seed), [0; BYTES]);
        for id in 0..self.rows {
            rng.fill(&mut content);
            insert.execute((id as i64, content))?;
        }
        Ok(())
    }

    /// Updates the rows; calls `each` after every update.
    ///
    /// # Errors
    /// Those of SQLite and `each`.
    pub fn update(&self, db: &Connection, each: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let (mut rng, mut content) = (Rng::new(self.seed ^ 1), [0; BYTES]);
        for n in 0..self.updates {
            rng.fill(&mut content);
            let id = rng.below(self.rows) as i64;
            let update = "UPDATE things SET content = ?2 WHERE id = ?1";
            let changed = db.prepare_cached(update)?.execute((id, &content[..]))?;
            anyhow::ensure!(changed == 1, "row {id} is not there");
            each(n)?;
        }
        Ok(())
    }
}
