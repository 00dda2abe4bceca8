//! What is kept sorted, or searched, and gets something new: an index of SQLite, a directory, the
//! extents of a file. Each insert is durable.

use anyhow::{Result, ensure};

use super::sqlite::{Database, JournalMode};
use super::{Session, Workload};
use stetfs_testkit::rng::Rng;

/// What is inserted into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// A table with an index of SQLite, of keys by chance; with a rollback journal.
    Index,
    /// A directory: files are made with names by chance, and each fourth time one is removed.
    Directory,
    /// A file with holes, of which blocks are written by chance.
    Extents,
}

impl Into {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Index, Self::Directory, Self::Extents];
}

/// Inserts.
#[derive(Clone, Copy, Debug)]
pub struct Inserts {
    /// What they are made into.
    pub into: Into,
    /// How much is there before.
    pub before: u64,
    /// How many are made.
    pub inserts: u64,
    /// What everything is drawn from.
    pub seed: u64,
}

const DATABASE: &str = "index.db";
const DIRECTORY: &str = "names";
const FILE: &str = "holes";
const INSERT: &str = "INSERT INTO words VALUES (?1, ?2)";
/// Bytes of a key.
const KEY: usize = 16;
const BLOCK: u64 = 4096;

impl Inserts {
    /// A block of each pair is written, so that no two extents are one.
    fn place(&self, rng: &mut Rng) -> u64 {
        rng.below(4 * (self.before + self.inserts)) * 2 * BLOCK
    }

    fn fill_database(&self, session: &mut Session<'_>) -> Result<()> {
        let schema = "CREATE TABLE words (word BLOB NOT NULL, page INTEGER); \
             CREATE INDEX by_word ON words (word)";
        Database::make(session, (DATABASE, self.seed), schema, |connection| {
            let mut insert = connection.prepare(INSERT)?;
            let (mut rng, mut key) = (Rng::new(self.seed), [0; KEY]);
            for page in 0..self.before {
                rng.fill(&mut key);
                insert.execute((key, page as i64))?;
            }
            Ok(())
        })
    }

    fn insert_rows(&self, session: &mut Session<'_>) -> Result<()> {
        let database = Database::open(session, DATABASE, JournalMode::Delete, self.seed)?;
        let (mut rng, mut key) = (Rng::new(self.seed ^ 1), [0; KEY]);
        for n in 0..self.inserts {
            rng.fill(&mut key);
            let mut insert = database.connection().prepare_cached(INSERT)?;
            let made = insert.execute((key, n as i64));
            made.map_err(|e| database.explain(e.into()))?;
            database.tell(session)?;
            session.tell(n, self.inserts);
        }
        database.close(session)
    }

    fn insert_names(
        &self,
        session: &mut Session<'_>,
        (mut rng, inserts): (Rng, u64),
        is_durable: bool,
    ) -> Result<()> {
        let dir = match session.has(DIRECTORY)? {
            true => session.find(session.root(), DIRECTORY)?,
            false => session.mkdir(session.root(), DIRECTORY)?,
        };
        let mut names: Vec<String> = Vec::new();
        for n in 0..inserts {
            let name = format!("{:0len$x}", rng.below(u64::MAX), len = 8 + n as usize % 24);
            let ino = session.create(dir, &name)?;
            names.push(name);
            if is_durable {
                session.fsync(ino)?;
            }
            session.close(ino)?;
            if is_durable && n % 4 == 3 {
                let old = names.swap_remove(rng.below(names.len() as u64) as usize);
                session.remove(dir, &old)?;
                session.sync()?;
            }
            session.tell(n, inserts);
        }
        Ok(())
    }

    fn insert_blocks(
        &self,
        session: &mut Session<'_>,
        (mut rng, inserts): (Rng, u64),
        is_durable: bool,
    ) -> Result<()> {
        let file = match session.has(FILE)? {
            true => session.open(session.root(), FILE)?,
            false => session.create(session.root(), FILE)?,
        };
        let mut content = vec![0; BLOCK as usize];
        for n in 0..inserts {
            rng.fill(&mut content);
            session.write(file, self.place(&mut rng), &content)?;
            if is_durable {
                session.fsync(file)?;
            }
            session.tell(n, inserts);
        }
        session.close(file)
    }
}

impl Workload for Inserts {
    fn name(&self) -> String {
        let into = match self.into {
            Into::Index => "an index of SQLite",
            Into::Directory => "a directory",
            Into::Extents => "the extents of a file",
        };
        format!(
            "{} inserts into {into} that has {}",
            self.inserts, self.before
        )
    }

    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        ensure!(self.inserts > 0, "no inserts");
        let what = (Rng::new(self.seed), self.before);
        match self.into {
            Into::Index => self.fill_database(session),
            Into::Directory => self.insert_names(session, what, false),
            Into::Extents => self.insert_blocks(session, what, false),
        }
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        let what = (Rng::new(self.seed ^ 1), self.inserts);
        match self.into {
            Into::Index => self.insert_rows(session),
            Into::Directory => self.insert_names(session, what, true),
            Into::Extents => self.insert_blocks(session, what, true),
        }
    }
}
