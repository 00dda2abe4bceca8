//! SQLite's shell with our extension. It answers as on ordinary files, loses nothing committed when
//! it is killed, and e2fsck finds nothing.
//!
//! `STETFS_SQLITE_KILLS=N` sets the number of kills (default 30; `make sqlite-kills`: 1000).
#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use stetfs_testkit::host::{needs, run, scratch};
use stetfs_testkit::image::{EXT4_4K, check};
use stetfs_testkit::mounted::Mounted;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::skip_unless;

const SERVE: &str = env!("CARGO_BIN_EXE_serve");
const PROGRAMS: [&str; 4] = ["sqlite3", "mke2fs", "e2fsck", "stdbuf"];

/// Returns the extension's path; it is built with this test, into the same directory.
fn extension() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    let found = test.with_file_name("libstetfs_ffi.so");
    assert!(found.is_file(), "{} is not built", found.display());
    found
}

/// Starts a shell that has loaded the extension and opened `uri`, prints each line at once, and
/// ends at the first error.
fn shell(uri: &str) -> Child {
    shell_with(uri, &["-bail"])
}

fn shell_with(uri: &str, options: &[&str]) -> Child {
    let mut child = Command::new("stdbuf")
        .args(["-oL", "sqlite3", "-init", "/dev/null"])
        .args(options)
        .arg(":memory:")
        .env("SQLITE_TMPDIR", std::env::temp_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell");
    let begin = format!(".load {}\n.open '{uri}'\n", extension().display());
    say(&mut child, &begin);
    child
}

/// Writes to the shell; it may end before it has read everything.
fn say(child: &mut Child, text: &str) {
    let mut stdin = child.stdin.as_ref().expect("a pipe");
    let _ = stdin.write_all(text.as_bytes());
}

fn ask(uri: &str, sql: &str) -> Output {
    ask_shell(shell(uri), sql)
}

fn ask_shell(mut child: Child, sql: &str) -> Output {
    let mut stdin = child.stdin.take().expect("a pipe");
    let sql = sql.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(sql.as_bytes()));
    let output = child.wait_with_output().expect("its output");
    let _ = writer.join();
    output
}

/// Returns what the shell prints if all goes well.
fn answer(uri: &str, sql: &str) -> String {
    let output = ask(uri, sql);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{uri}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn made(dir: &Path, name: &str) -> PathBuf {
    let image = dir.join(name);
    EXT4_4K.make(&image, 96, 4).expect("a volume");
    image
}

const IN_IMAGES: [&str; 3] = ["scheme=stet", "data=journal", "data=ordered"];
const MODES: [&str; 6] = ["DELETE", "TRUNCATE", "PERSIST", "WAL", "MEMORY", "OFF"];

/// Every kind of statement, but without output that depends on the connection or the path. MODE,
/// and OTHER for the name of another database, are replaced.
const STATEMENTS: &str = "
PRAGMA journal_mode = MODE;
PRAGMA auto_vacuum = INCREMENTAL;
CREATE TABLE t
    (id INTEGER PRIMARY KEY, word TEXT UNIQUE, body BLOB, number REAL CHECK (number < 1e6));
CREATE TABLE child (id INTEGER PRIMARY KEY, t INTEGER REFERENCES t ON DELETE CASCADE) STRICT;
CREATE INDEX by_number ON t (number) WHERE number > 10;
CREATE VIEW much AS SELECT word, number FROM t WHERE number > 500;
CREATE TABLE log (what TEXT PRIMARY KEY) WITHOUT ROWID;
DROP TABLE log;
CREATE TABLE log (what TEXT);
CREATE TRIGGER told AFTER UPDATE ON t BEGIN INSERT INTO log VALUES (new.word); END;
CREATE VIRTUAL TABLE f USING fts5(text);
CREATE VIRTUAL TABLE r USING rtree(id, a, b);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
    INSERT INTO t SELECT i, 'word' || i, zeroblob(i % 900), i * 1.5 FROM n;
INSERT INTO child SELECT id, id FROM t WHERE id % 7 = 0;
INSERT INTO f SELECT word || ' and ' || id FROM t;
INSERT INTO r SELECT id, number, number + 1 FROM t;
INSERT OR REPLACE INTO t VALUES (5, 'five', x'05', 5);
INSERT INTO t VALUES (6, 'six', NULL, 6) ON CONFLICT DO UPDATE SET word = 'seis';
REPLACE INTO t VALUES (7, 'seven', NULL, 7);
INSERT INTO t VALUES (9001, 'new', NULL, 1) RETURNING id, word;
UPDATE t SET number = number + 1 WHERE id % 3 = 0;
UPDATE t SET body = other.word FROM (SELECT id, word FROM t) AS other WHERE t.id = other.id + 1;
DELETE FROM t WHERE id % 11 = 0;
BEGIN; DELETE FROM t; INSERT INTO f VALUES ('gone'); ENDING;
BEGIN IMMEDIATE; SAVEPOINT a; DELETE FROM t WHERE id < 50; ENDING TO a; RELEASE a; COMMIT;
SAVEPOINT b; UPDATE t SET word = word || '?' WHERE id > 2900; RELEASE b;
ALTER TABLE t ADD COLUMN more TEXT DEFAULT 'more';
ALTER TABLE t RENAME COLUMN more TO less;
ALTER TABLE t DROP COLUMN less;
ALTER TABLE child RENAME TO children;
SELECT count(*), sum(number), max(word) FROM t;
SELECT word, row_number() OVER (ORDER BY number DESC) FROM t ORDER BY body, word LIMIT 5;
SELECT count(*) FROM (SELECT DISTINCT a.number FROM t AS a, much AS b WHERE a.id < 40
    ORDER BY b.word, a.word);
SELECT count(*) FROM much UNION SELECT count(*) FROM f WHERE f MATCH 'and' EXCEPT SELECT 0;
SELECT count(*) FROM r WHERE a > 100 AND b < 1000;
SELECT count(*) FROM log;
EXPLAIN QUERY PLAN SELECT * FROM t WHERE number = 12;
ATTACH 'OTHER' AS other;
PRAGMA other.journal_mode = MODE;
CREATE TABLE other.copy AS SELECT id, word FROM t;
BEGIN; UPDATE other.copy SET word = 'x'; UPDATE t SET number = 1; COMMIT;
BEGIN; DELETE FROM other.copy; DELETE FROM t; ENDING;
SELECT count(*), (SELECT count(*) FROM t WHERE number = 1) FROM other.copy;
PRAGMA other.integrity_check;
DETACH other;
CREATE TEMP TABLE passing AS SELECT word FROM t ORDER BY word;
CREATE TEMP TRIGGER passes AFTER DELETE ON t BEGIN DELETE FROM passing WHERE word = old.word; END;
DELETE FROM t WHERE id % 2 = 0;
SELECT count(*) FROM passing;
PRAGMA incremental_vacuum(20);
ANALYZE; REINDEX; REINDEX by_number;
VACUUM;
DROP VIEW much; DROP TRIGGER told; DROP INDEX by_number; DROP TABLE children; DROP TABLE f;
PRAGMA wal_checkpoint(TRUNCATE);
PRAGMA user_version = 7; PRAGMA user_version;
PRAGMA foreign_key_check; PRAGMA quick_check;
SELECT name, sql FROM sqlite_schema ORDER BY name;
SELECT count(*), sum(length(body)), total(number), group_concat(word) FROM t WHERE id < 300;
PRAGMA integrity_check;
";

/// Returns the statements for a mode. Without a journal SQLite has no ROLLBACK.
fn statements(mode: &str, other: &str) -> String {
    let ending = match mode {
        "OFF" => STATEMENTS
            .lines()
            .filter(|line| !line.contains("ENDING"))
            .map(|line| format!("{line}\n"))
            .collect(),
        _ => STATEMENTS.replace("ENDING", "ROLLBACK"),
    };
    ending.replace("MODE", mode).replace("OTHER", other)
}

/// The answers are those on an ordinary file, through SQLite's own VFS.
#[test]
fn every_statement_in_every_mode() {
    skip_unless!(needs(false, false, &PROGRAMS));
    let dir = scratch().expect("a directory");
    for mode in MODES {
        let [plain, other] = ["plain.db", "other.db"].map(|name| dir.path().join(name));
        let wanted = answer(
            &format!("file:{}", plain.display()),
            &statements(mode, &format!("file:{}", other.display())),
        );
        assert!(wanted.lines().count() > 30, "{mode}: {wanted}");
        for file in [plain, other] {
            fs::remove_file(file).expect("it was made");
        }
        for options in IN_IMAGES {
            let image = made(dir.path(), "image");
            let uri = |name| format!("file:{}/{name}?vfs=stetfs", image.display());
            let main = format!("{}&options={options}", uri("a.db"));
            let found = answer(&main, &statements(mode, &uri("b.db")));
            assert_eq!(found, wanted, "{mode}, {options}");
            check(&image).unwrap_or_else(|e| panic!("{mode}, {options}: {e:#}"));
            assert_eq!(answer(&main, "PRAGMA integrity_check;"), "ok\n");
        }
    }
}

#[test]
fn every_statement_on_a_mount() {
    skip_unless!(needs(true, true, &PROGRAMS));
    let dir = scratch().expect("a directory");
    for options in ["scheme=stet,atomic=all", "data=ordered"] {
        let (image, mount) = (made(dir.path(), "image"), dir.path().join("mnt"));
        let _ = fs::create_dir(&mount);
        let mounted = Mounted::start(SERVE, &image, &mount, options).expect("a mount");
        for mode in MODES {
            let [own, other] = ["own.db", "other.db"].map(|name| dir.path().join(name));
            let plain = |path: &Path| format!("file:{}", path.display());
            let wanted = answer(&plain(&own), &statements(mode, &plain(&other)));
            for file in [own, other] {
                fs::remove_file(file).expect("it was made");
            }
            let uri = |name| format!("file:{}/{mode}{name}?vfs=stetfs-mount", mount.display());
            let found = answer(&uri("a.db"), &statements(mode, &uri("b.db")));
            assert_eq!(found, wanted, "{mode}, {options}");
        }
        mounted.unmount().expect("an unmount");
        check(&image).unwrap_or_else(|e| panic!("{options}: {e:#}"));
    }
}

/// If a file can have groups, nothing is made or deleted beside it: the directory does not change.
#[test]
fn a_group_on_a_mount_has_no_journal() {
    skip_unless!(needs(true, true, &PROGRAMS));
    let dir = scratch().expect("a directory");
    let (image, mount) = (made(dir.path(), "image"), dir.path().join("mnt"));
    fs::create_dir(&mount).expect("a directory");
    let mounted = Mounted::start(SERVE, &image, &mount, "data=ordered").expect("a mount");
    for (name, has_groups) in [("marked", true), ("plain", false)] {
        let inside = mount.join(name);
        fs::create_dir(&inside).expect("a directory");
        if has_groups {
            run("chattr", &["+j".as_ref(), inside.as_os_str()]).expect("a mark");
        }
        let uri = format!("file:{}/a.db?vfs=stetfs-mount", inside.display());
        answer(&uri, "CREATE TABLE t (x); INSERT INTO t VALUES (1);");
        let changed = || {
            fs::metadata(&inside)
                .and_then(|m| m.modified())
                .expect("a time")
        };
        let before = changed();
        std::thread::sleep(Duration::from_millis(20));
        answer(&uri, "UPDATE t SET x = 2;");
        assert_eq!(changed() == before, has_groups, "{name}");
        // A process without the extension sees the same, with any journal.
        let plain = format!("file:{}/a.db", inside.display());
        assert_eq!(answer(&plain, "SELECT x FROM t;"), "2\n");
    }
    mounted.unmount().expect("an unmount");
    check(&image).expect("it is clean");
}

/// The mark is removed while the database is open. The next transaction has a journal; a
/// transaction that has staged something fails, and leaves nothing.
#[test]
fn a_database_whose_mark_goes_has_a_journal() {
    skip_unless!(needs(true, true, &PROGRAMS));
    let dir = scratch().expect("a directory");
    let (image, mount) = (made(dir.path(), "image"), dir.path().join("mnt"));
    fs::create_dir(&mount).expect("a directory");
    let mounted = Mounted::start(SERVE, &image, &mount, "data=ordered").expect("a mount");
    run("chattr", &["+j".as_ref(), mount.as_os_str()]).expect("a mark");
    let file = mount.join("a.db").display().to_string();
    let uri = format!("file:{file}?vfs=stetfs-mount");
    let when = format!(".shell sleep 0.02; stat -c %y {}", mount.display());
    let (marks, unmarks) = (format!(".shell chattr +j {file}"), ".shell chattr -j");
    let sql = format!(
        "CREATE TABLE t (x); INSERT INTO t VALUES (1);\n{when}\nUPDATE t SET x = 2;\n{when}\n\
        {unmarks} {file}\nUPDATE t SET x = 3;\n{when}\n\
        {marks}\nUPDATE t SET x = 4;\n{when}\nSELECT x FROM t;\n"
    );
    let said = answer(&uri, &sql);
    let said: Vec<_> = said.lines().collect();
    let changed = said[..4].windows(2).map(|pair| pair[0] != pair[1]);
    assert_eq!(
        changed.collect::<Vec<_>>(),
        [false, true, false],
        "{said:?}"
    );
    assert_eq!(said[4..], ["4"]);
    let few = FILL.replace("300", "30");
    let sql = format!(
        "PRAGMA cache_size = 5; BEGIN; {few}\nUPDATE t SET x = 5;\n{unmarks} {file}\nCOMMIT;\n\
        SELECT x FROM t; UPDATE t SET x = 6; SELECT x FROM t; PRAGMA integrity_check;\n"
    );
    let output = ask_shell(shell_with(&uri, &[]), &sql);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("disk I/O error"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "4\n6\nok\n");
    mounted.unmount().expect("an unmount");
    check(&image).expect("it is clean");
}

/// Inserts rows of many pages.
const FILL: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300)
    INSERT INTO t SELECT randomblob(3000) FROM n;";

/// A connection that keeps its lock learns that the volume is full, and goes on.
#[test]
fn a_full_mount_says_so() {
    skip_unless!(needs(true, true, &PROGRAMS));
    let dir = scratch().expect("a directory");
    for (options, locking) in [
        ("data=ordered", "EXCLUSIVE"),
        ("data=ordered", "NORMAL"),
        ("scheme=stet,atomic=all", "EXCLUSIVE"),
    ] {
        let (image, mount) = (made(dir.path(), "image"), dir.path().join("mnt"));
        let _ = fs::create_dir(&mount);
        let mounted = Mounted::start(SERVE, &image, &mount, options).expect("a mount");
        run("chattr", &["+j".as_ref(), mount.as_os_str()]).expect("a mark");
        let uri = format!("file:{}/a.db?vfs=stetfs-mount", mount.display());
        let fill = format!(".shell head -c 200M /dev/zero >{}/fill", mount.display());
        answer(&uri, &format!("CREATE TABLE t (x); {FILL} {FILL}"));
        // Each of these fails: new content, more than a group holds, a longer file.
        let sql = format!(
            "PRAGMA locking_mode = {locking}; PRAGMA cache_size = 5;\n{fill}\n\
            INSERT INTO t VALUES (zeroblob(9000000));\n\
            UPDATE t SET x = randomblob(length(x));\n\
            UPDATE t SET x = zeroblob(40000);\n\
            SELECT count(*), max(length(x)) FROM t; UPDATE t SET x = 7 WHERE rowid = 3;\n\
            BEGIN; UPDATE t SET x = 8 WHERE rowid < 9; ROLLBACK;\n\
            SELECT count(*) FROM t WHERE length(x) != 3000; PRAGMA integrity_check;\n"
        );
        let output = ask_shell(shell_with(&uri, &[]), &sql);
        let what = format!("{options}, {locking}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = errors.matches("database or disk is full").count();
        assert!(
            told == 3 && !errors.contains("I/O"),
            "{what}: {said}{errors}"
        );
        let wanted = "600|3000\n1\nok\n";
        assert!(said.ends_with(wanted), "{what}: {said}{errors}");
        let again = answer(&uri, "SELECT count(*) FROM t; PRAGMA integrity_check;");
        assert_eq!(again, "600\nok\n", "{what}");
        mounted.unmount().expect("an unmount");
        check(&image).unwrap_or_else(|e| panic!("{what}: {e:#}"));
    }
}

#[test]
fn another_process_is_told_who_has_the_image() {
    skip_unless!(needs(false, false, &PROGRAMS));
    let dir = scratch().expect("a directory");
    let image = made(dir.path(), "image");
    let uri = format!(
        "file:{}/a.db?vfs=stetfs&options=scheme=stet",
        image.display()
    );
    let mut first = shell(&uri);
    say(
        &mut first,
        "CREATE TABLE t (x); INSERT INTO t VALUES (1); SELECT 'there';\n",
    );
    let mut lines = BufReader::new(first.stdout.take().expect("a pipe")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "there");
    let refused = ask(&uri, "SELECT * FROM t;\n");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("database is locked"), "{said}");
    // Ask why, without -bail, on a connection that works.
    let why = format!(
        ".load {}\n.open '{uri}'\nSELECT * FROM t;\n.open :memory:\nSELECT stetfs_error();\n",
        extension().display()
    );
    let mut second = Command::new("sqlite3")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell");
    say(&mut second, &why);
    drop(second.stdin.take());
    let said = second.wait_with_output().expect("its output").stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("already mounted or in use"), "{said}");
    assert!(said.contains(&*image.to_string_lossy()), "{said}");
    drop(first.stdin.take());
    assert!(first.wait().expect("it ends").success());
    assert_eq!(answer(&uri, "SELECT x FROM t;"), "1\n");
    let other = uri.replace("scheme=stet", "no-such-option");
    assert!(!ask(&other, "SELECT * FROM t;").status.success());
    check(&image).expect("it is clean");
}

/// Returns transactions that print when they are committed.
fn load(from: u64) -> String {
    let each = |n: u64| {
        let grow = n % 5 * 3000;
        format!(
            "BEGIN; UPDATE t SET v = {n}; INSERT INTO t VALUES (NULL, {n}, zeroblob({grow}));
            DELETE FROM t WHERE id > 200; COMMIT; SELECT {n};\n"
        )
    };
    (from..from + 400).map(each).collect()
}

const BEGIN: &str = "CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, filler BLOB);
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
    INSERT INTO t SELECT i, 0, zeroblob(700) FROM n;";

/// Lets a shell commit until `kill` ends it; returns the last transaction that it reported.
fn killed_after(uri: &str, from: u64, kill: impl FnOnce(&mut Child), random: &mut Rng) -> u64 {
    let mut child = shell(uri);
    let (mut stdin, script) = (child.stdin.take().expect("a pipe"), load(from));
    let writer = std::thread::spawn(move || drop(stdin.write_all(script.as_bytes())));
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut told = from - 1;
    let number = |line: &str| line.trim().parse().ok();
    for _ in 0..random.below(60) {
        let mut line = String::new();
        if out.read_line(&mut line).expect("a line") == 0 {
            let mut said = String::new();
            let _ = child
                .stderr
                .take()
                .expect("a pipe")
                .read_to_string(&mut said);
            panic!("{uri}: it ended: {said}");
        }
        told = number(&line).unwrap_or(told);
    }
    std::thread::sleep(Duration::from_micros(random.below(3000)));
    kill(&mut child);
    // Reports from before its death count as well.
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("text");
    let whole = rest.rfind('\n').map_or("", |end| &rest[..end]);
    told = whole.lines().filter_map(number).next_back().unwrap_or(told);
    child.wait().expect("it ends");
    writer.join().expect("a thread");
    told
}

/// Checks that all rows are of one transaction, not older than `told`; returns which.
fn judge(uri: &str, told: u64) -> u64 {
    let found = answer(uri, "PRAGMA integrity_check; SELECT min(v), max(v) FROM t;");
    let (check, values) = found.split_once('\n').expect("two lines");
    assert_eq!(check, "ok", "{uri}");
    let (min, max) = values.trim().split_once('|').expect("two numbers");
    assert_eq!(min, max, "{uri}");
    let found = max.parse().expect("a number");
    assert!(found >= told, "{uri}: {found} of {told}");
    found
}

fn kills() -> u64 {
    let asked = std::env::var("STETFS_SQLITE_KILLS").ok();
    asked.map_or(30, |n| n.parse().expect("STETFS_SQLITE_KILLS is a number"))
}

#[test]
fn what_was_committed_survives_a_kill() {
    skip_unless!(needs(false, false, &PROGRAMS));
    let dir = scratch().expect("a directory");
    let mut random = Rng::new(20);
    let beds = [
        ("scheme=stet", "DELETE"),
        ("data=journal", "PERSIST"),
        ("data=ordered", "DELETE"),
        ("scheme=stet", "WAL"),
        ("data=ordered", "TRUNCATE"),
    ];
    let each = kills().div_ceil(beds.len() as u64);
    for (options, mode) in beds {
        let image = made(dir.path(), "image");
        let uri = format!("file:{}/a.db?vfs=stetfs&options={options}", image.display());
        answer(&uri, &format!("PRAGMA journal_mode = {mode}; {BEGIN}"));
        let mut at = 0;
        for _ in 0..each {
            let kill = |child: &mut Child| child.kill().expect("it is killed");
            let told = killed_after(&uri, at + 1, kill, &mut random);
            at = judge(&uri, told);
        }
        assert!(at > each, "{options}, {mode}: {at} transactions");
        check(&image).unwrap_or_else(|e| panic!("{options}, {mode}: {e:#}"));
    }
}

/// The server of the mount is killed. What was staged is gone; what was committed is there.
#[test]
fn what_was_committed_survives_the_death_of_the_server() {
    skip_unless!(needs(true, true, &PROGRAMS));
    let dir = scratch().expect("a directory");
    let mut random = Rng::new(21);
    let (image, mount) = (made(dir.path(), "image"), dir.path().join("mnt"));
    fs::create_dir(&mount).expect("a directory");
    let uri = format!("file:{}/a.db?vfs=stetfs-mount", mount.display());
    let start = || {
        let options = "scheme=stet,atomic=all";
        Mounted::start(SERVE, &image, &mount, options).expect("a mount")
    };
    let mut mounted = start();
    answer(&uri, BEGIN);
    let mut at = 0;
    for _ in 0..kills().div_ceil(5) {
        let kill = |child: &mut Child| {
            mounted.kill().expect("it is killed");
            let _ = child.kill();
        };
        let told = killed_after(&uri, at + 1, kill, &mut random);
        mounted = start();
        at = judge(&uri, told);
    }
    mounted.unmount().expect("an unmount");
    check(&image).expect("it is clean");
}
