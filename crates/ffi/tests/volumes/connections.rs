//! Connections to a volume: their locks and shared memory, groups in place of journals, failures.

use std::thread;

use rusqlite::{Connection, ErrorCode, Result};
use stetfs::{Caller, OpenFlags};
use stetfs_media::Op;
use stetfs_media::sim::{Fault, Keep, SimOptions};
use stetfs_testkit::host::needs;
use stetfs_testkit::skip_unless;

use crate::{Bed, check_integrity, mount, number};

fn code<T: std::fmt::Debug>(result: Result<T>) -> Option<ErrorCode> {
    result.expect_err("it fails").sqlite_error_code()
}

#[test]
fn readers_are_beside_a_writer_until_it_commits() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for groups in [false, true] {
        let (bed, _) = Bed::new("scheme=stet", groups);
        let (one, two) = (bed.open("a.db").unwrap(), bed.open("a.db").unwrap());
        one.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1);")
            .unwrap();
        let count = |db: &Connection| number(db, "SELECT count(*) FROM t");
        let write = |db: &Connection| db.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (2)");
        write(&one).unwrap();
        assert_eq!(count(&two), Ok(1));
        assert_eq!(code(write(&two)), Some(ErrorCode::DatabaseBusy));
        // The writer waits for the reader, and lets no new one in.
        two.execute_batch("BEGIN; SELECT * FROM t").unwrap();
        assert_eq!(count(&two), Ok(1));
        assert_eq!(
            code(one.execute_batch("COMMIT")),
            Some(ErrorCode::DatabaseBusy)
        );
        let three = bed.open("a.db").unwrap();
        assert_eq!(code(count(&three)), Some(ErrorCode::DatabaseBusy));
        two.execute_batch("COMMIT").unwrap();
        one.execute_batch("COMMIT").unwrap();
        assert_eq!((count(&two), count(&three)), (Ok(2), Ok(2)));
        // Pages that spilled out of the cache are seen by no other connection. A rollback drops
        // them.
        one.execute_batch("PRAGMA cache_size = 5; BEGIN").unwrap();
        let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 99)
            INSERT INTO t SELECT randomblob(2000) FROM n";
        one.execute_batch(fill).unwrap();
        assert_eq!(code(count(&two)), Some(ErrorCode::DatabaseBusy));
        one.execute_batch("ROLLBACK").unwrap();
        assert_eq!((count(&one), count(&two)), (Ok(2), Ok(2)));
        check_integrity(&two, "after a rollback");
    }
}

#[test]
fn connections_share_the_index_of_a_log() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    let (bed, _) = Bed::new("data=ordered", false);
    let one = bed.open("a.db").unwrap();
    let mode: String = one
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
    one.execute_batch("CREATE TABLE t (x); PRAGMA wal_autocheckpoint = 20")
        .unwrap();
    let two = bed.open("a.db").unwrap();
    two.execute_batch("BEGIN; SELECT * FROM t").unwrap();
    assert_eq!(number(&two, "SELECT count(*) FROM t"), Ok(0));
    one.execute_batch("INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(number(&two, "SELECT count(*) FROM t"), Ok(0));
    two.execute_batch("COMMIT").unwrap();
    assert_eq!(number(&two, "SELECT count(*) FROM t"), Ok(1));
    // Several threads, each with a connection, lose none of their rows.
    let write = |thread: u32| {
        let db = bed.open("a.db").unwrap();
        db.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        for _ in 0..100 {
            db.execute("INSERT INTO t VALUES (?1)", [thread]).unwrap();
        }
    };
    thread::scope(|scope| (0..4).for_each(|n| drop(scope.spawn(move || write(n)))));
    assert_eq!(number(&two, "SELECT count(*) FROM t"), Ok(401));
    assert!(bed.has("a.db-wal"));
    check_integrity(&two, "after threads");
    drop((one, two));
    assert!(!bed.has("a.db-wal") && !bed.has("a.db-shm"));
}

/// A transaction is one commit of the volume, in each mode that has a rollback journal. The journal
/// is never written.
#[test]
fn a_group_takes_the_place_of_the_journal() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for mode in ["DELETE", "TRUNCATE", "PERSIST"] {
        for (options, groups) in [
            ("scheme=stet", true),
            ("atomic=all", true),
            ("scheme=stet", false),
        ] {
            let (bed, _) = Bed::new(options, groups);
            let db = bed.open("a.db").unwrap();
            let pragma = format!("PRAGMA journal_mode = {mode}");
            db.query_row(&pragma, [], |_| Ok(())).unwrap();
            db.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1);")
                .unwrap();
            db.execute_batch("UPDATE t SET x = x + 1").unwrap();
            bed.calls.take();
            let before = bed.fs.stats().journal.commits;
            db.execute_batch("UPDATE t SET x = x + 1").unwrap();
            let commits = bed.fs.stats().journal.commits - before;
            let calls = bed.calls.take();
            let what = format!("{mode}, {options}: {calls:?}, {commits} commits");
            if groups {
                assert_eq!(calls, ["commit", "fsync"], "{what}");
                assert_eq!(commits, 1, "{what}");
                assert!(!bed.has("a.db-journal"), "{what}");
            } else {
                assert!(calls.len() > 2 && commits > 1, "{what}");
            }
            // Without syncs it is a commit too, which the volume makes durable at some time. A
            // SQLite that makes groups itself makes none here.
            let built = "SELECT sqlite_compileoption_used('ENABLE_BATCH_ATOMIC_WRITE')";
            let is_its_own = number(&db, built) == Ok(1);
            db.execute_batch("PRAGMA synchronous = OFF; UPDATE t SET x = x + 1")
                .unwrap();
            let calls = bed.calls.take();
            let is_group = calls == ["commit"];
            assert!(!groups || is_its_own || is_group, "{what}: {calls:?}");
            let other = bed.open("a.db").unwrap();
            assert_eq!(number(&other, "SELECT x FROM t"), Ok(4), "{what}");
        }
    }
}

/// A transaction that is too large for one of the volume is protected by a journal after all.
#[test]
fn a_large_transaction_has_a_journal() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    let (bed, _) = Bed::new("data=journal", true);
    let db = bed.open("a.db").unwrap();
    db.execute_batch("CREATE TABLE t (x); PRAGMA cache_size = 50")
        .unwrap();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
        INSERT INTO t SELECT randomblob(3000) FROM n";
    db.execute_batch("BEGIN").unwrap();
    db.execute_batch(fill).unwrap();
    assert!(bed.has("a.db-journal"), "it is written");
    db.execute_batch("ROLLBACK").unwrap();
    assert_eq!(number(&db, "SELECT count(*) FROM t"), Ok(0));
    check_integrity(&db, "rolled back");
    db.execute_batch(fill).unwrap();
    assert_eq!(number(&db, "SELECT count(*) FROM t"), Ok(2000));
    assert!(!bed.has("a.db-journal"), "it is deleted");
    check_integrity(&db, "filled");
}

/// A VACUUM that changes the page size shortens the database while pages are staged. Other kinds of
/// VACUUM shorten it when the transaction is over. All are groups.
#[test]
fn a_database_becomes_shorter_in_one_transaction() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    let (bed, _) = Bed::new("scheme=stet", true);
    let db = bed.open("a.db").unwrap();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150)
        INSERT INTO t SELECT randomblob(3000) FROM n";
    db.execute_batch("CREATE TABLE t (x)").unwrap();
    db.execute_batch(fill).unwrap();
    db.execute_batch("DELETE FROM t WHERE rowid > 20; PRAGMA auto_vacuum = FULL")
        .unwrap();
    let size = || bed.fs.getattr(bed.find("a.db").unwrap()).unwrap().size;
    for (sql, rows) in [
        ("PRAGMA page_size = 8192; VACUUM", 20),
        ("PRAGMA page_size = 2048; VACUUM", 20),
        ("DELETE FROM t WHERE rowid > 10", 10),
        ("DELETE FROM t WHERE rowid > 5; VACUUM", 5),
    ] {
        let before = size();
        bed.calls.take();
        db.execute_batch(sql).unwrap();
        let calls = bed.calls.take();
        assert!(!calls.contains(&"create"), "{sql}: a journal: {calls:?}");
        assert!(size() < before, "{sql}: {before} bytes");
        let other = bed.open("a.db").unwrap();
        assert_eq!(number(&other, "SELECT count(*) FROM t"), Ok(rows), "{sql}");
        check_integrity(&other, sql);
    }
    assert_eq!(number(&db, "PRAGMA page_size"), Ok(2048));
}

#[test]
fn a_full_volume_says_so() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for groups in [false, true] {
        let (bed, _) = Bed::new("scheme=stet", groups);
        let db = bed.open("a.db").unwrap();
        db.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1);")
            .unwrap();
        let full = db.execute("INSERT INTO t VALUES (zeroblob(90000000))", []);
        assert_eq!(code(full), Some(ErrorCode::DiskFull));
        assert_eq!(number(&db, "SELECT count(*) FROM t"), Ok(1));
        // The volume is full when a part of the transaction is staged.
        let mut rows = 1;
        while db
            .execute("INSERT INTO t VALUES (zeroblob(400000))", [])
            .is_ok()
        {
            rows += 1;
        }
        db.execute_batch("PRAGMA cache_size = 5").unwrap();
        let full = db.execute("UPDATE t SET x = zeroblob(length(x) + 20000)", []);
        assert_eq!(code(full), Some(ErrorCode::DiskFull));
        let other = bed.open("a.db").unwrap();
        for db in [&db, &other] {
            assert_eq!(number(db, "SELECT count(*) FROM t"), Ok(rows));
            assert_eq!(number(db, "SELECT max(length(x)) FROM t"), Ok(400_000));
            check_integrity(db, "after it was full");
        }
        db.execute_batch("DELETE FROM t; INSERT INTO t VALUES (2)")
            .unwrap();
        check_integrity(&other, "after it was emptied");
    }
}

const OTHERS: &str = "SELECT count(*) FROM t WHERE x != zeroblob(400000)";

/// A failed transaction is undone, also where no lock tells when it ends. Later transactions stay,
/// also for the next connection that opens the database.
#[test]
fn a_transaction_that_failed_comes_back_in_no_way() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    let ways = [("nolock=1", "NORMAL"), ("", "EXCLUSIVE"), ("", "NORMAL")];
    let modes = ["DELETE", "TRUNCATE", "PERSIST"];
    for ((parameters, locking), mode) in ways.iter().flat_map(|w| modes.map(|mode| (w, mode))) {
        let what = format!("{parameters} {locking} {mode}");
        let (bed, _) = Bed::new("data=journal", true);
        let (fs, c) = (&bed.fs, Caller::root());
        let other = fs.create(&c, fs.root(), b"other", 0o644, OpenFlags::WRITE);
        let other = other.unwrap().ino;
        assert_eq!(
            fs.write(&c, other, 0, &vec![1; 16 << 20]).unwrap(),
            16 << 20
        );
        fs.release(other).unwrap();
        let db = bed.open_as("a.db", parameters).unwrap();
        db.execute_batch(&format!(
            "PRAGMA locking_mode={locking}; PRAGMA journal_mode={mode}; CREATE TABLE t (x);"
        ))
        .unwrap();
        let fill = "INSERT INTO t VALUES (zeroblob(400000))";
        while db.execute(fill, []).is_ok() {}
        db.execute_batch("PRAGMA cache_size = 5").unwrap();
        // The first update is more than a group holds, over blocks that are there: it needs a
        // journal, which has no room. The second one needs room itself.
        for update in ["randomblob(length(x))", "zeroblob(length(x) + 20000)"] {
            let full = db.execute(&format!("UPDATE t SET x = {update}"), []);
            assert_eq!(code(full), Some(ErrorCode::DiskFull), "{what} {update}");
            assert_eq!(number(&db, OTHERS), Ok(0), "{what} {update}");
            check_integrity(&db, &what);
        }
        // An update that needs no room works at once.
        for row in [2, 3] {
            let update = format!("UPDATE t SET x = 7 WHERE rowid = {row}");
            db.execute(&update, []).expect(&what);
        }
        // The same by a ROLLBACK, after pages have spilled and made the database longer.
        let free = "DELETE FROM t WHERE rowid = 4; BEGIN; INSERT INTO t VALUES (zeroblob(90000));
            UPDATE t SET x = 8 WHERE rowid < 10; ROLLBACK";
        db.execute_batch(free).expect(&what);
        drop(db);
        let db = bed.open("a.db").unwrap();
        check_integrity(&db, &what);
        assert_eq!(number(&db, OTHERS), Ok(2), "{what}");
    }
}

#[test]
fn what_is_detached_is_not_found() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    let (bed, _) = Bed::new("data=ordered", false);
    let path = bed.attached.path("a.db");
    let db = bed.open("a.db").unwrap();
    db.execute_batch("CREATE TABLE t (x)").unwrap();
    assert!(!bed.has("b.db"));
    drop(bed);
    let flags = rusqlite::OpenFlags::default();
    let again = Connection::open_with_flags_and_vfs(path, flags, stetfs_ffi::sqlite::VFS);
    assert_eq!(code(again), Some(ErrorCode::CannotOpen));
}

/// Each write and each flush of the device fails once. A commit that SQLite reports is there after
/// the next mount, and the database is whole.
#[test]
fn no_failure_becomes_a_commit() {
    skip_unless!(needs(false, false, &["mke2fs"]));
    for groups in [false, true] {
        for (options, op) in [("scheme=stet", Op::Write), ("data=journal", Op::Flush)] {
            let (mut struck, mut reported) = (0, 0);
            for skip in 0..40 {
                let (bed, dev) = Bed::new(options, groups);
                let db = bed.open("a.db").unwrap();
                db.execute_batch("PRAGMA synchronous = EXTRA; CREATE TABLE t (x)")
                    .unwrap();
                db.execute_batch("INSERT INTO t VALUES (0)").unwrap();
                dev.inject(Fault::nth(op, skip).for_good());
                let mut confirmed = 0;
                for n in 1..=12 {
                    match db.execute("UPDATE t SET x = ?1", [n]) {
                        Ok(_) => confirmed = n,
                        Err(_) => reported += 1,
                    }
                }
                struck += u64::from(dev.faults_struck() > 0);
                dev.heal();
                drop((db, bed));
                let left = SimOptions::default().build(dev.crash_point().state(&Keep::None));
                let left = std::sync::Arc::new(left);
                let bed = Bed::of(mount(&left, options), groups);
                let db = bed.open("a.db").unwrap();
                let what = format!("groups {groups}, {op} {skip}");
                check_integrity(&db, &what);
                let found = number(&db, "SELECT x FROM t");
                let is_there = matches!(found, Ok(found) if found >= confirmed);
                assert!(is_there, "{what}: {found:?} of {confirmed}");
            }
            assert!(struck > 10 && reported > 0, "{op}: {struck}, {reported}");
        }
    }
}
