//! TPC-C on SQLite, written from the specification (Transaction Processing Performance Council,
//! "TPC Benchmark C", revision 5.11).
//!
//! - Nine tables, filled as clause 4.3.3 says, with its numbers of rows unless there are fewer
//!   ([`Cardinality`]).
//! - The five transactions of clause 2, on one connection that does the work of all terminals in
//!   turn: each draws its warehouse. Transactions come in the order of shuffled decks of 23, with
//!   10 New-Order, 10 Payment and one of each other (clause 5.2.4.2). There are no keying and
//!   thinking times, and a delivery is not queued.
//! - The random numbers of clause 2.1.6, of a seed; 1 % of the New-Orders are rolled back (clause
//!   2.4.1.4), 1 % of their lines are of other warehouses and 15 % of the payments, if there are
//!   others; 60 % of customers are named by their last name.
//! - tpmC counts New-Orders, those rolled back too (clause 5.4).
//! - After a run the consistency conditions 1 to 4 of clause 3.3.2 are checked, and SQLite's own
//!   integrity check is made.

pub mod check;
pub mod random;
mod scale;
mod schema;
mod transactions;

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;
use serde::Serialize;

use self::random::{Constants, shuffle};
use self::scale::Kind;
pub use self::scale::{Cardinality, Outcome};
use self::transactions::Terminals;
use super::contract::Workload;
use super::session::Session;
use super::sqlite::{Database, JournalMode};
use stetfs_testkit::rng::Rng;

/// The database's file.
pub const FILE: &str = "tpcc.db";

/// Seconds since 1970 at which the database is loaded.
const NOW: u64 = 1_700_000_000;

/// TPC-C with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tpcc {
    /// The number of rows.
    pub size: Cardinality,
    /// Decks of 23 transactions.
    pub decks: u32,
    /// How SQLite makes them atomic.
    pub journal: JournalMode,
    /// Bytes of SQLite's pages.
    pub page_bytes: u32,
    /// Seed of everything random.
    pub seed: u64,
}

impl Tpcc {
    /// The deck of clause 5.2.4.2.
    fn deck() -> Vec<Kind> {
        let mut deck = vec![Kind::NewOrder; 10];
        deck.extend([Kind::Payment; 10]);
        deck.extend([Kind::OrderStatus, Kind::Delivery, Kind::StockLevel]);
        deck
    }

    /// Transactions of all kinds.
    pub fn transactions(&self) -> u32 {
        self.decks * Self::deck().len() as u32
    }

    /// New-Orders a minute.
    pub fn tpm_c(&self, elapsed_ns: u64) -> f64 {
        let new_orders = Self::deck()
            .into_iter()
            .filter(|kind| *kind == Kind::NewOrder)
            .count();
        f64::from(self.decks) * new_orders as f64 * 60e9 / elapsed_ns.max(1) as f64
    }

    /// Returns NURand's constants, the same for the load and every run on it.
    pub(crate) fn constants(&self) -> Constants {
        Constants::draw(&mut Rng::new(self.seed ^ 0xC0FF_EE00))
    }

    /// Fills a new database; calls `tell` with the steps done and their total.
    ///
    /// # Errors
    /// Those of SQLite.
    pub fn fill(&self, db: &Connection, tell: &mut dyn FnMut(u64, u64)) -> Result<()> {
        db.execute_batch(&format!("PRAGMA page_size={}", self.page_bytes))?;
        let mut rng = Rng::new(self.seed);
        let last_c = self.constants().last_load;
        schema::load(db, &self.size, &mut rng, last_c, NOW, tell).context("loading")?;
        check::check_consistency(db)
    }

    /// Makes the database.
    ///
    /// # Errors
    /// Those of SQLite and the volume.
    pub fn load(&self, session: &mut Session<'_>) -> Result<()> {
        let db = Database::open(session, FILE, JournalMode::Off, self.seed)?;
        let filled = self.fill(db.connection(), &mut |done, of| session.tell(done, of));
        filled.map_err(|e| db.explain(e))?;
        db.close(session)?;
        session.sync()
    }

    /// Runs the transactions and returns their counts; calls `each` after every one.
    ///
    /// # Errors
    /// Those of SQLite and `each`; there is no database of this size.
    pub fn transact(
        &self,
        db: &Connection,
        each: &mut dyn FnMut(u32) -> Result<()>,
    ) -> Result<Outcome> {
        let value = |sql| db.query_row(sql, [], |row| row.get::<_, u32>(0));
        let items = value("SELECT count(*) FROM item")?;
        let page_bytes = value("PRAGMA page_size")?;
        ensure!(
            (items, page_bytes) == (self.size.items, self.page_bytes),
            "the database has {items} items and pages of {page_bytes} bytes, not {} and {}",
            self.size.items,
            self.page_bytes
        );
        let mut outcome = Outcome::default();
        let mut deck = Vec::new();
        let mut terminals = Terminals {
            db,
            size: self.size,
            constants: self.constants(),
            rng: Rng::new(self.seed ^ 0x7E12_31A1),
            now: NOW,
            outcome: &mut outcome,
        };
        for n in 0..self.transactions() {
            if deck.is_empty() {
                deck = Self::deck();
                shuffle(&mut terminals.rng, &mut deck);
            }
            let kind = deck.pop().expect("it was filled");
            let done = terminals.one(kind);
            done.with_context(|| format!("transaction {n}, {kind:?}"))?;
            each(n)?;
        }
        Ok(outcome)
    }

    /// Runs the transactions on the volume and returns their counts.
    ///
    /// # Errors
    /// Those of SQLite and the volume; there is no database of this size.
    pub fn play(&self, session: &mut Session<'_>) -> Result<Outcome> {
        let db = Database::open(session, FILE, self.journal, self.seed)?;
        let played = self.transact(db.connection(), &mut |n| {
            db.tell(session)?;
            session.tell(u64::from(n), u64::from(self.transactions()));
            Ok(())
        });
        let outcome = played.map_err(|e| db.explain(e))?;
        db.close(session)?;
        Ok(outcome)
    }

    /// Judges what a run has left, by the consistency conditions and SQLite's integrity check.
    ///
    /// # Errors
    /// A condition does not hold; errors of SQLite and the volume.
    pub fn check(&self, session: &mut Session<'_>) -> Result<()> {
        let db = Database::open(session, FILE, self.journal, self.seed)?;
        let consistent = check::check_consistency(db.connection());
        consistent.map_err(|e| db.explain(e))?;
        db.check_integrity()?;
        db.close(session)
    }
}

impl Workload for Tpcc {
    fn name(&self) -> String {
        format!(
            "TPC-C, {} transactions on {} warehouses with {} items and {} customers a district, \
                pages of {} bytes, journal_mode={}",
            self.transactions(),
            self.size.warehouses,
            self.size.items,
            self.size.customers,
            self.page_bytes,
            self.journal.name()
        )
    }

    /// Loads, unless the database is there.
    fn prepare(&self, session: &mut Session<'_>) -> Result<()> {
        if session.has(FILE)? {
            Ok(())
        } else {
            self.load(session)
        }
    }

    /// Reads the whole database, as a run's ramp-up would.
    fn warm(&self, session: &mut Session<'_>) -> Result<()> {
        let root = session.root();
        let ino = session.open(root, FILE)?;
        let (mut piece, mut at) = (vec![0; 64 << 10], 0);
        loop {
            let n = session.read(ino, at, &mut piece)?;
            at += n as u64;
            if n < piece.len() {
                break;
            }
        }
        session.close(ino)
    }

    fn run(&self, session: &mut Session<'_>) -> Result<()> {
        self.play(session).map(drop)
    }

    fn is_judged(&self) -> bool {
        true
    }

    fn judge(&self, session: &mut Session<'_>) -> Result<()> {
        self.check(session)
    }
}
