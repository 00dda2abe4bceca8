//! Write patterns of programs that people trust with their data: postmark's pool of small files,
//! and SQLite's two journals.

use stetfs_testkit::rng::Rng;
use stetfs_testkit::world::op::Op;

use super::steps::{append, create, fdatasync, fsync, fsync_dir, open, unlink, write};

/// Bytes of a page of the database.
const PAGE: u64 = 1024;

/// Postmark (Katcher, NetApp TR3022, 1997): a pool of small files in a few directories. Each
/// transaction creates or deletes a file, and reads or appends to another. A sync follows every
/// tenth transaction, in place of the periodic commit.
pub(super) fn postmark(seed: u64) -> Vec<Op> {
    const TRANSACTIONS: u32 = 80;
    const POOL: u64 = 15;
    const DIRS: u64 = 2;
    let mut rng = Rng::new(seed ^ 0x9057);
    let mut ops: Vec<Op> = (0..DIRS)
        .map(|n| Op::Mkdir {
            path: format!("s{n}"),
            mode: 0o755,
        })
        .collect();
    let (mut pool, mut made) = (Vec::new(), 0u16);
    let mut make = |ops: &mut Vec<Op>, rng: &mut Rng| {
        made += 1;
        let path = format!("s{}/{made}", rng.below(DIRS));
        let len = 500 + rng.below(9500) as u32;
        ops.extend([create(&path), open(0, &path), write(0, 0, made, len)]);
        path
    };
    for _ in 0..POOL {
        pool.push(make(&mut ops, &mut rng));
    }
    ops.push(Op::Sync);
    for n in 0..TRANSACTIONS {
        let victim = rng.below(pool.len() as u64) as usize;
        if rng.chance(50) || pool.len() < 5 {
            pool.push(make(&mut ops, &mut rng));
        } else {
            ops.push(unlink(&pool.swap_remove(victim)));
        }
        let other = rng.pick(&pool).clone();
        ops.push(open(1, &other));
        ops.push(if rng.chance(50) {
            append(1, 1000 + n as u16, 200 + rng.below(3000) as u32)
        } else {
            Op::Read {
                slot: 1,
                offset: 0,
                len: 10_000,
            }
        });
        if n % 10 == 9 {
            ops.push(Op::Sync);
        }
    }
    ops.extend([Op::Close { slot: 0 }, Op::Close { slot: 1 }]);
    ops.extend(pool.iter().map(|path| unlink(path)));
    ops
}

/// Makes the database as it is before the first transaction, open in slot 0.
fn database(pages: u64) -> Vec<Op> {
    let mut ops = vec![create("db"), open(0, "db")];
    ops.extend((0..pages).map(|n| write(0, n * PAGE, n as u16 + 1, PAGE as u32)));
    ops.extend([fsync(0), fsync_dir(".")]);
    ops
}

/// Returns the pages that a transaction changes.
fn changes(rng: &mut Rng, pages: u64) -> Vec<u64> {
    let mut changed: Vec<_> = (0..1 + rng.below(5)).map(|_| rng.below(pages)).collect();
    changed.sort_unstable();
    changed.dedup();
    changed
}

/// SQLite's rollback journal in mode DELETE (<https://www.sqlite.org/atomiccommit.html>, sections
/// 3.2 to 3.11). Old pages go into a journal, which is synced before and after its header gets
/// their number. Then the database gets the new pages. Deleting the journal commits.
pub(super) fn sqlite_rollback() -> Vec<Op> {
    const PAGES: u64 = 20;
    /// The journal's header fills a sector; a record is a page with its number and checksum.
    const HEADER: u32 = 512;
    const RECORD: u64 = PAGE + 8;
    let mut rng = Rng::new(0x5011);
    let mut ops = database(PAGES);
    for n in 0..10u16 {
        let changed = changes(&mut rng, PAGES);
        ops.extend([create("db-journal"), open(1, "db-journal")]);
        ops.push(write(1, 0, 100 + n, HEADER));
        for (i, _) in changed.iter().enumerate() {
            let at = u64::from(HEADER) + i as u64 * RECORD;
            ops.push(write(1, at, 200 + n, RECORD as u32));
        }
        ops.extend([fsync(1), fsync_dir("."), write(1, 0, 300 + n, 12), fsync(1)]);
        for page in changed {
            ops.push(write(0, page * PAGE, 400 + n, PAGE as u32));
        }
        ops.extend([fsync(0), Op::Close { slot: 1 }, unlink("db-journal")]);
    }
    ops.push(fsync_dir("."));
    ops
}

/// SQLite's write-ahead log (<https://www.sqlite.org/fileformat2.html#walformat>). A transaction
/// appends frames, each a page behind 24 bytes, and syncs. A checkpoint copies the newest pages
/// into the database, and the log begins again at its start, over the old frames.
pub(super) fn sqlite_wal() -> Vec<Op> {
    const PAGES: u64 = 20;
    const HEADER: u32 = 32;
    const FRAME: u64 = PAGE + 24;
    let mut rng = Rng::new(0x3a1);
    let mut ops = database(PAGES);
    ops.extend([create("db-wal"), open(1, "db-wal")]);
    for lap in 0..3u16 {
        let mut end = u64::from(HEADER);
        let mut logged = std::collections::BTreeSet::new();
        ops.push(write(1, 0, 50 + lap, HEADER));
        for n in 0..5u16 {
            for page in changes(&mut rng, PAGES) {
                ops.push(write(1, end, 100 + 10 * lap + n, FRAME as u32));
                end += FRAME;
                logged.insert(page);
            }
            ops.push(fdatasync(1));
        }
        for page in logged {
            ops.push(write(0, page * PAGE, 500 + lap, PAGE as u32));
        }
        ops.push(fdatasync(0));
    }
    ops.extend([
        Op::Close { slot: 1 },
        unlink("db-wal"),
        Op::Close { slot: 0 },
    ]);
    ops
}
