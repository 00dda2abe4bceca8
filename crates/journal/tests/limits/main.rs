//! The journal's memory stays within its bound, however long the log is. A panic in an operation
//! stops the journal and leaves no thread waiting. An operation that changes more blocks than its
//! credits is caught. A checkpoint beside commits frees nothing in the log that is not home.
//! `overwrite` tests data that goes home without a transaction.

mod overwrite;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use stetfs_format::jbd2::{JournalCompat, JournalIncompat, JournalSuperblock};
use stetfs_format::{BlockNo, BlockSize, InodeNo, LBlock, Tid};
use stetfs_journal::{Config, Handle, Journal, JournalError, Old, PlaceReq, Placer};
use stetfs_media::{BlockDev, Cause, Class, Layer, MediaError, RamDev, Tag};
use stetfs_scheme::{DataMode, Goal, LogExtent, OpenArgs, SchemeOptions};
use stetfs_schemes::find;

const BLOCK: usize = 1024;
const BLOCKS: u64 = 8192;
const LOG: LogExtent = LogExtent {
    start: BlockNo(100),
    len: 4000,
};

fn open(memory: usize) -> (Arc<RamDev>, Arc<Journal>) {
    open_with(memory, 256 * BLOCK, LOG)
}

fn open_with(memory: usize, caches: usize, log: LogExtent) -> (Arc<RamDev>, Arc<Journal>) {
    let dev = Arc::new(formatted(log));
    let journal = open_on(dev.clone(), memory, caches, log, None);
    (dev, journal)
}

/// Makes a device with an empty log.
fn formatted(log: LogExtent) -> RamDev {
    let mut raw = vec![0; BLOCK];
    let superblock = JournalSuperblock {
        is_v2: true,
        blocksize: BLOCK as u32,
        maxlen: log.len,
        first: 1,
        sequence: Tid(1),
        start: 0,
        errno: 0,
        feature_compat: JournalCompat::empty(),
        feature_incompat: JournalIncompat::empty(),
        feature_ro_compat: 0,
        uuid: [7; 16],
        nr_users: 1,
        max_transaction: 0,
        max_trans_data: 0,
        checksum_type: 0,
        num_fc_blks: 0,
        head: 0,
    };
    superblock.encode_into(&mut raw);
    let tag = Tag::new(Class::Journal, Cause::Control);
    let dev = RamDev::new(BLOCKS * BLOCK as u64);
    dev.write_at(log.start.0 * BLOCK as u64, &raw, tag).unwrap();
    dev
}

/// Opens a journal, which recovers the log.
fn open_on(
    dev: Arc<dyn BlockDev>,
    memory: usize,
    caches: usize,
    log: LogExtent,
    commit_interval: Option<Duration>,
) -> Arc<Journal> {
    let config = Config {
        commit_interval,
        memory: caches,
        ..CONFIG
    };
    open_as(dev, memory, log, &config)
}

/// No data is delayed.
const CONFIG: Config = Config {
    commit_interval: None,
    memory: 256 * BLOCK,
    dirty_expire: Duration::ZERO,
    max_batch_time: Duration::ZERO,
    min_batch_time: Duration::ZERO,
};

fn open_as(dev: Arc<dyn BlockDev>, memory: usize, log: LogExtent, config: &Config) -> Arc<Journal> {
    let args = OpenArgs {
        dev,
        nvm: None,
        nvm_new: false,
        block_size: BlockSize::of(BLOCK),
        blocks: BLOCKS,
        uuid: [7; 16],
        has_64bit: true,
        has_metadata_csum: true,
        log: vec![log],
        memory,
        has_private_log: false,
        inode_size: 256,
        writable: true,
        options: SchemeOptions {
            data: Some(DataMode::Ordered),
            extra: vec![],
        },
    };
    let opened = find("jbd2").unwrap().open(args).unwrap();
    Journal::open(opened, config)
}

/// Commits 600 blocks, one after the other. The log has room for all of them.
fn commit_blocks(journal: &Arc<Journal>, mut after_each: impl FnMut(u64)) {
    for n in 0..600 {
        let handle = journal.start(1).unwrap();
        let block = BlockNo(5000 + n);
        handle
            .write(block, Class::Directory, 0, &[n as u8 | 1; 8])
            .unwrap();
        let tid = handle.tid();
        drop(handle);
        journal.commit(tid).unwrap();
        after_each(n + 1);
    }
}

fn written_home(dev: &dyn BlockDev) -> u64 {
    dev.meter()
        .snapshot()
        .by_cause(Cause::Checkpoint)
        .write_bytes
        / BLOCK as u64
}

/// Returns the number of blocks that are held after [`commit_blocks`].
fn blocks_held(memory: usize) -> u64 {
    let (dev, journal) = open(memory);
    commit_blocks(&journal, |_| {});
    600 - written_home(&*dev)
}

/// A read of a run gives each block as it was committed, although some are in the log and others
/// are home, wherever the run begins and ends.
#[test]
fn every_run_is_read_as_it_was_committed() {
    const RUN: u64 = 12;
    let (dev, journal) = open(1 << 20);
    let tag = Tag::new(Class::Data, Cause::Home);
    let mut wanted = Vec::new();
    for n in 0..RUN {
        let block = BlockNo(5000 + n);
        dev.write_at(block.0 * BLOCK as u64, &[n as u8; BLOCK], tag)
            .unwrap();
        let is_logged = [2, 3, 7, 11].contains(&n);
        wanted.push(n as u8 + 100 * u8::from(is_logged));
        if is_logged {
            let handle = journal.start(1).unwrap();
            let content = [wanted[n as usize]; BLOCK];
            handle.write(block, Class::Directory, 0, &content).unwrap();
            let tid = handle.tid();
            drop(handle);
            journal.commit(tid).unwrap();
        }
    }
    for start in 0..RUN as usize {
        for count in 0..=RUN as usize - start {
            let mut out = vec![0; count * BLOCK];
            let first = BlockNo(5000 + start as u64);
            journal
                .read_home(first, count as u32, &mut out, Class::Data)
                .unwrap();
            for (block, wanted) in out.chunks(BLOCK).zip(&wanted[start..]) {
                assert_eq!(block, [*wanted; BLOCK], "{count} from {start}");
            }
        }
    }
}

#[test]
fn what_is_done_is_counted() {
    let (_, journal) = open(1 << 20);
    commit_blocks(&journal, |_| {});
    let done = journal.stats();
    let transactions = (
        done.handles,
        done.commits,
        done.meta_blocks,
        done.data_blocks,
    );
    assert_eq!(transactions, (600, 600, 600, 0));
    assert_eq!(done.checkpoints, 0);
    for n in 1..=3 {
        journal.checkpoint(Goal::All).unwrap();
        assert_eq!(journal.stats().checkpoints, n);
    }
}

#[test]
fn a_long_log_does_not_hold_more_than_the_memory() {
    assert_eq!(blocks_held(1 << 20), 600, "nothing needs to go home");
    let held = blocks_held(100 * BLOCK);
    assert!(held <= 101, "{held} blocks are held");
}

/// Panics when it is asked to place a block.
struct Clumsy;

impl Placer for Clumsy {
    fn place(
        &self,
        _: &Handle,
        _: InodeNo,
        _: &[PlaceReq],
        _: &mut Vec<BlockNo>,
    ) -> stetfs_journal::Result<()> {
        panic!("planted");
    }
}

#[test]
fn a_panic_in_a_commit_stops_the_journal() {
    let (_, journal) = open(1 << 20);
    let placer: Arc<dyn Placer> = Arc::new(Clumsy);
    let weak: Weak<dyn Placer> = Arc::downgrade(&placer);
    journal.attach(weak);
    let handle = journal.start(8).unwrap();
    let (tid, file) = (handle.tid(), journal.file(InodeNo(12)));
    handle
        .write_data(&file, LBlock(0), 0, &[1; 10], Old::Hole, false)
        .unwrap();
    drop(handle);
    assert!(catch_unwind(AssertUnwindSafe(|| journal.commit(tid))).is_err());
    assert!(journal.start(1).is_err());
    assert!(journal.commit(tid).is_err());
}

#[test]
fn a_panic_in_an_operation_stops_the_journal() {
    let (_, journal) = open(1 << 20);
    let tid = journal.running();
    let half = catch_unwind(AssertUnwindSafe(|| {
        let handle = journal.start(8).unwrap();
        handle
            .write(BlockNo(5000), Class::Directory, 0, &[1; 8])
            .unwrap();
        panic!("planted");
    }));
    assert!(half.is_err());
    assert!(journal.commit(tid).is_err());
    // A panic before the first change does no harm.
    let (_, journal) = open(1 << 20);
    let nothing = catch_unwind(AssertUnwindSafe(|| {
        let _handle = journal.start(8).unwrap();
        panic!("planted");
    }));
    assert!(nothing.is_err());
    assert!(journal.start(1).is_ok());
}

/// The operations of a span share its credits: each may use what the earlier ones left, and no
/// more. All of them are one transaction.
#[test]
fn operations_of_a_span_share_its_credits() {
    let (_, journal) = open(1 << 20);
    let span = journal.span(4).unwrap();
    let change = |handle: &Handle, block| {
        let block = BlockNo(block);
        handle.write(block, Class::Directory, 0, &[1; 8]).unwrap();
    };
    let first = span.operation(3).unwrap();
    change(first, 5000);
    assert!(first.has_credits(3), "of the span");
    assert!(!first.has_credits(4));
    let second = span.operation(3).unwrap();
    change(second, 5000);
    change(second, 5001);
    let refused = span.operation(3).err();
    let has_two = JournalError::TooLarge {
        wanted: 3,
        limit: 2,
    };
    assert_eq!(refused.map(|e| e.to_string()), Some(has_two.to_string()));
    change(span.operation(2).unwrap(), 5002);
    let tid = span.tid();
    assert_eq!(journal.running(), tid);
    drop(span);
    journal.commit(tid).unwrap();
    let done = journal.stats();
    assert_eq!((done.handles, done.commits, done.meta_blocks), (1, 1, 3));
}

/// Places every file block behind the one before.
struct InOrder;

impl Placer for InOrder {
    fn place(
        &self,
        _: &Handle,
        _: InodeNo,
        blocks: &[PlaceReq],
        homes: &mut Vec<BlockNo>,
    ) -> stetfs_journal::Result<()> {
        homes.extend(
            blocks
                .iter()
                .map(|b| BlockNo(1000 + u64::from(b.lblk.0) % 4000)),
        );
        Ok(())
    }
}

/// A file's delayed data is as old as its first block. After all of it was enlisted, the age of the
/// next block begins anew.
#[test]
fn what_is_written_after_all_was_enlisted_is_delayed_no_longer_than_that() {
    const AGE: Duration = Duration::from_millis(200);
    let config = Config {
        dirty_expire: Duration::from_secs(3600),
        ..CONFIG
    };
    let journal = open_as(Arc::new(formatted(LOG)), 1 << 20, LOG, &config);
    let placer: Arc<dyn Placer> = Arc::new(InOrder);
    let weak: Weak<dyn Placer> = Arc::downgrade(&placer);
    journal.attach(weak);
    let file = journal.file(InodeNo(12));
    let delayed = || journal.stats().delayed_bytes / BLOCK as u64;
    for n in 0.. {
        let since = Instant::now();
        let handle = journal.start(4).unwrap();
        handle
            .write_data(&file, LBlock(n), 0, &[1; 10], Old::Hole, false)
            .unwrap();
        drop(handle);
        assert_eq!(delayed(), 1);
        journal.enlist_older(AGE).unwrap();
        let is_delayed = delayed() == 1;
        // On a machine that was too slow for this, the test tries again.
        if since.elapsed() < AGE {
            assert!(is_delayed, "block {n} has waited {:?}", since.elapsed());
            if n > 0 {
                break;
            }
        }
        std::thread::sleep(AGE);
        journal.enlist_older(AGE).unwrap();
        assert_eq!(delayed(), 0);
        journal.commit_running().unwrap();
    }
}

#[test]
fn a_short_log_bounds_the_data_of_a_transaction() {
    // 64 blocks of log: 15 for a transaction, so room for the maps of 15 * 1024 / 12 data blocks,
    // whatever the memory.
    let log = LogExtent { len: 64, ..LOG };
    let (_, journal) = open_with(1 << 20, 1 << 30, log);
    let placer: Arc<dyn Placer> = Arc::new(InOrder);
    let weak: Weak<dyn Placer> = Arc::downgrade(&placer);
    journal.attach(weak);
    let file = journal.file(InodeNo(12));
    for n in 0..4000 {
        // The credits of a run of new blocks.
        let handle = journal.start(4).unwrap();
        handle
            .write_data(&file, LBlock(n), 0, &[1; 10], Old::Hole, false)
            .unwrap();
        drop(handle);
        assert!(file.unplaced() <= 15 * 1024 / 12 + 1, "block {n}");
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "an operation changes 2 blocks and has credits for 1")]
fn an_operation_changes_no_more_than_it_has_asked_for() {
    let (_, journal) = open(1 << 20);
    let handle = journal.start(1).unwrap();
    // The same block twice counts once.
    for (block, n) in [(5000, 1), (5000, 2), (5001, 3)] {
        let block = BlockNo(block);
        handle.write(block, Class::Directory, 0, &[n]).unwrap();
    }
}

/// A device on which writes home and writes of commit records are slow. It says when it begins one.
struct Slow(RamDev, AtomicBool);

impl Slow {
    fn new() -> Arc<Self> {
        Arc::new(Self(formatted(LOG), AtomicBool::new(false)))
    }
}

impl Layer for Slow {
    fn below(&self) -> &dyn BlockDev {
        &self.0
    }
    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        match tag.cause {
            Cause::Checkpoint => std::thread::sleep(Duration::from_millis(100)),
            Cause::CommitRecord if self.1.swap(true, Ordering::Relaxed) => {}
            Cause::CommitRecord => std::thread::sleep(Duration::from_millis(100)),
            _ => {}
        }
        self.0.write_vectored_at(offset, parts, tag)
    }
}

#[test]
fn a_slow_background_does_not_let_more_pile_up() {
    let dev = Slow::new();
    let hour = Some(Duration::from_secs(3600));
    let journal = open_on(dev.clone(), 50 * BLOCK, 256 * BLOCK, LOG, hour);
    commit_blocks(&journal, |n| {
        let held = n - written_home(&*dev);
        assert!(held <= 2 * 50 + 1, "{held} blocks are held after {n}");
    });
    journal.close().unwrap();
}

#[test]
fn closing_waits_for_a_commit_in_the_background() {
    let dev = Slow::new();
    let at_once = Some(Duration::from_millis(1));
    let journal = open_on(dev.clone(), BLOCK, 256 * BLOCK, LOG, at_once);
    // Enough that the background will run a checkpoint.
    let handle = journal.start(40).unwrap();
    for n in 0..40 {
        handle
            .write(BlockNo(5000 + n), Class::Directory, 0, &[1; 8])
            .unwrap();
    }
    drop(handle);
    while !dev.1.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (sender, closed) = channel();
    std::thread::spawn(move || sender.send(journal.close().is_ok()));
    assert_eq!(closed.recv_timeout(Duration::from_secs(120)), Ok(true));
}

/// After `end_background` the caller can still commit, as an unmount does for its last commit.
#[test]
fn nothing_is_committed_behind_the_back_of_who_has_ended_it() {
    let dev = Arc::new(formatted(LOG));
    let at_once = Some(Duration::from_millis(1));
    let journal = open_on(dev, 1 << 20, 256 * BLOCK, LOG, at_once);
    journal.end_background();
    let handle = journal.start(1).unwrap();
    handle
        .write(BlockNo(5000), Class::Directory, 0, &[1; 8])
        .unwrap();
    drop(handle);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(journal.stats().commits, 0);
    journal.close().unwrap();
    assert_eq!(journal.stats().commits, 1);
}

/// A transaction that frees a block and uses it again does not revoke it: after a crash the block
/// has its last content.
#[test]
fn what_is_freed_and_used_again_at_once_is_there_after_a_crash() {
    let (dev, journal) = open(1 << 20);
    for n in 1..=2 {
        let handle = journal.start(4).unwrap();
        handle.revoke(BlockNo(5000));
        let content = [n; BLOCK];
        handle
            .write(BlockNo(5000), Class::Directory, 0, &content)
            .unwrap();
        let tid = handle.tid();
        drop(handle);
        journal.commit(tid).unwrap();
        let again = open_on(Arc::new(dev.fork()), 1 << 20, 256 * BLOCK, LOG, None);
        let found = again.read(BlockNo(5000), Class::Directory).unwrap();
        assert!(found[..] == content, "transaction {n}");
    }
}

/// Clears the flag when dropped, in a panic too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// While one thread writes everything home all the time, as the background does now and then, each
/// copy of the device has everything that was committed.
#[test]
fn a_checkpoint_beside_commits_forgets_nothing() {
    const COMMITS: u64 = 1000;
    const CHANGED: std::ops::Range<u64> = 5000..5400;
    let (dev, journal) = open(1 << 20);
    let is_busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while is_busy.load(Ordering::Relaxed) {
                journal.checkpoint(Goal::All).unwrap();
            }
        });
        let _ends = Ends(&is_busy);
        for n in 0..COMMITS {
            let handle = journal.start(CHANGED.count() as u32).unwrap();
            for block in CHANGED {
                let change = n.to_le_bytes();
                handle
                    .write(BlockNo(block), Class::Directory, 0, &change)
                    .unwrap();
            }
            let tid = handle.tid();
            drop(handle);
            journal.commit(tid).unwrap();
            // Not each time, so that the other thread has something to write home.
            if n % 2 == 0 {
                continue;
            }
            let left = Arc::new(dev.fork());
            let again = open_on(left, 1 << 20, 256 * BLOCK, LOG, None);
            for block in CHANGED {
                let content = again.read(BlockNo(block), Class::Directory).unwrap();
                assert_eq!(content[..8], n.to_le_bytes(), "block {block}, commit {n}");
            }
        }
    });
}
