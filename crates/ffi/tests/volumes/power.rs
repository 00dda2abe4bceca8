//! After power cuts at random moments, the database is whole. It has all of one transaction, and
//! not of one before the last that was committed. The same holds for two databases that commit
//! together.
//!
//! Each handle of the volume is a transaction here, so the test finds a commit that takes two
//! handles.

use std::sync::Arc;

use rusqlite::Connection;
use stetfs::{Schedule, Scheduled};
use stetfs_media::sim::{Keep, SimDev, SimOptions};
use stetfs_testkit::host::needs;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

use crate::{Bed, mount, number};

const TRANSACTIONS: i64 = 24;
const CUTS: usize = 30;

/// Each handle begins a transaction.
#[derive(Debug)]
struct EachHandle;

impl Schedule for EachHandle {
    fn commits_first(&self) -> bool {
        true
    }

    /// With splits, a truncate would go on for ever.
    fn splits(&self) -> bool {
        false
    }

    fn pass(&self) {}

    fn wait(&self) {
        std::thread::yield_now();
    }
}

/// Only the data of the databases is journaled.
const MARKED: &str = "data=ordered,atomic=marked";

const TABLE: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, filler BLOB);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
    INSERT INTO t SELECT i, 0, zeroblob(1500) FROM n;";

fn open(bed: &Bed, mode: &str, what: &str) -> Connection {
    let db = bed.open("a.db").unwrap();
    let attach = format!("ATTACH '{}' AS other", bed.attached.path("b.db"));
    let set = format!(
        "PRAGMA temp_store = MEMORY;
        PRAGMA synchronous = EXTRA; PRAGMA main.journal_mode = {mode}; {attach};
        PRAGMA other.journal_mode = {mode}; PRAGMA main.cache_size = 10"
    );
    db.execute_batch(&set)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    db
}

/// Commits a transaction that writes its number to rows of many pages.
fn transact(db: &Connection, number: i64, shares: bool) {
    // Roll one back after the cache has spilled.
    db.execute_batch("BEGIN; UPDATE t SET v = -1, filler = randomblob(3000); ROLLBACK")
        .unwrap();
    // Every seventh transaction is more than a group holds.
    let filler = if number % 7 == 0 { 20_000 } else { 1_600 };
    let grow = format!(
        "INSERT INTO t VALUES (NULL, {number}, zeroblob({}))",
        700 * number
    );
    let shrink = format!("DELETE FROM t WHERE id > 60 AND id % {number} = 0");
    let other = if shares {
        format!("UPDATE other.t SET v = {number};")
    } else {
        String::new()
    };
    let all = format!(
        "BEGIN; UPDATE t SET v = {number}, filler = zeroblob({filler});
        {other} {grow}; {shrink}; COMMIT"
    );
    db.execute_batch(&all).unwrap();
    // After every fifth, one shortens the database while its pages are staged.
    if number % 5 == 0 {
        let page = if number % 2 == 0 { 2048 } else { 4096 };
        db.execute_batch(&format!("PRAGMA main.page_size = {page}; VACUUM main"))
            .unwrap();
    }
}

/// Returns the number of the transaction that wrote the rows. All must have the same.
fn judge(db: &Connection, name: &str, what: &str) -> i64 {
    let check = format!("PRAGMA {name}.integrity_check");
    let found = db.query_row(&check, [], |row| row.get::<_, String>(0));
    assert_eq!(found.as_deref(), Ok("ok"), "{what}");
    let value = |aggregate| number(db, &format!("SELECT {aggregate}(v) FROM {name}.t")).unwrap();
    let found = value("max");
    assert_eq!(
        value("min"),
        found,
        "{what}: {name} is of several transactions"
    );
    found
}

fn cut(options: &str, mode: &str, groups: bool, seed: u64) {
    let (bed, dev) = Bed::new(options, groups);
    let db = open(&bed, mode, "new");
    if options == MARKED {
        for name in ["a.db", "b.db"] {
            bed.mark(name);
        }
    }
    let shares = mode != "WAL";
    db.execute_batch(TABLE).unwrap();
    db.execute_batch(&TABLE.replace(" t ", " other.t "))
        .unwrap();
    bed.fs.sync().unwrap();
    let begin = dev.changes();
    let mut durable = vec![(begin, 0)];
    {
        let _scheduled = Scheduled::by(Arc::new(EachHandle));
        for n in 1..=TRANSACTIONS {
            transact(&db, n, shares && n % 3 == 0);
            durable.push((dev.changes(), n));
        }
    }
    std::mem::forget(db);
    drop(bed);
    let mut random = Rng::new(seed);
    // Some transactions make a hundred times the changes of others: each gets its share of the
    // cuts.
    let during = durable.windows(2).map(|two| (two[0].0, two[1].0));
    let mut moments: Vec<_> = during
        .cycle()
        .take(CUTS)
        .map(|(from, to)| from + random.below(to - from + 1))
        .collect();
    moments.sort_unstable();
    let (tape, mut seen) = (dev.tape(), std::collections::BTreeSet::new());
    let mut points = tape.crash_points();
    for moment in moments {
        let point = points.at_moment(moment);
        for keep in [Keep::All, Keep::None, Keep::Random(random.next_u64())] {
            let what = format!("{options}, {mode}, groups {groups}, seed {seed}, {moment}, {keep}");
            let left: Arc<SimDev> = Arc::new(SimOptions::default().build(point.state(&keep)));
            let bed = Bed::of(mount(&left, options), groups);
            let db = open(&bed, mode, &what);
            let (found, other) = (judge(&db, "main", &what), judge(&db, "other", &what));
            let with_it = if shares { found - found % 3 } else { 0 };
            assert_eq!(other, with_it, "{what}: the other database at {found}");
            let floor = durable.iter().rfind(|(changes, _)| *changes <= moment);
            let floor = floor.map_or(0, |(_, n)| *n);
            assert!(found >= floor, "{what}: {found} of {floor}");
            seen.insert(found);
        }
    }
    // A cut in a transaction leaves that transaction or the one before.
    let count = i64::try_from(seen.len()).unwrap();
    assert!(count >= TRANSACTIONS / 2, "too few: {seen:?}");
}

#[test]
fn every_commit_survives() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for (options, mode, groups, seed) in [
        ("scheme=stet", "DELETE", true, 1),
        ("data=ordered,atomic=all", "DELETE", true, 2),
        ("data=journal", "PERSIST", true, 3),
        ("data=journal", "TRUNCATE", true, 4),
        (MARKED, "DELETE", true, 8),
        ("data=ordered", "DELETE", false, 5),
        ("scheme=stet", "WAL", true, 6),
        ("data=ordered", "WAL", true, 7),
    ] {
        cut(options, mode, groups, seed);
    }
}
