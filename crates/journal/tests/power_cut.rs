//! The journal alone, without a file system above it, cut at every write.
//!
//! A volume of 512 blocks with a log of 40, so that it wraps and checkpoints all the time.
//! Transactions change bytes of metadata blocks, free blocks and use them again for file data. The
//! model is the list of contents after each transaction. After each cut, and after a second cut
//! during the recovery from it, the volume must equal one of these contents, not older than the
//! last that was confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stetfs_format::jbd2::{JournalCompat, JournalIncompat, JournalSuperblock};
use stetfs_format::{BlockNo, BlockSize, InodeNo, LBlock, Tid};
use stetfs_journal::{Config, Handle, Journal, Old, PlaceReq, Placer};
use stetfs_media::sim::{Keep, SimOptions};
use stetfs_media::{BlockDev, Class, Image, SimDev};
use stetfs_scheme::{DataMode, LogExtent, OpenArgs, SchemeOptions};
use stetfs_schemes::find;

const BLOCK: usize = 1024;
const BLOCKS: u64 = 512;
const LOG: LogExtent = LogExtent {
    start: BlockNo(100),
    len: 20,
};
const LOG_REST: LogExtent = LogExtent {
    start: BlockNo(200),
    len: 21,
};
/// Blocks that hold metadata or, when freed, data.
const WORLD: std::ops::Range<u64> = 300..316;

/// A small random number generator, so that a seed names a failure.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn volume(v1: bool) -> Image {
    let mut raw = vec![0; BLOCK];
    let superblock = JournalSuperblock {
        is_v2: true,
        blocksize: BLOCK as u32,
        maxlen: LOG.len + LOG_REST.len,
        first: 1,
        sequence: Tid(u32::MAX - 5),
        start: 0,
        errno: 0,
        feature_compat: if v1 {
            JournalCompat::CHECKSUM
        } else {
            JournalCompat::empty()
        },
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
    let mut image = Image::new(BLOCKS * BLOCK as u64);
    image.write(LOG.start.0 * BLOCK as u64, &raw);
    image
}

/// Gives file block `n` of any inode the home that the test chose for it.
struct Homes;

impl Placer for Homes {
    fn place(
        &self,
        _: &Handle,
        ino: InodeNo,
        blocks: &[PlaceReq],
        homes: &mut Vec<BlockNo>,
    ) -> stetfs_journal::Result<()> {
        homes.extend(blocks.iter().map(|_| BlockNo(u64::from(ino.0))));
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
struct Kind {
    data: DataMode,
    csum: bool,
    v1: bool,
    async_commit: bool,
}

fn open(dev: Arc<dyn BlockDev>, kind: Kind) -> stetfs_journal::Result<Arc<Journal>> {
    let args = OpenArgs {
        dev,
        nvm: None,
        nvm_new: false,
        block_size: BlockSize::of(BLOCK),
        blocks: BLOCKS,
        uuid: [7; 16],
        has_64bit: true,
        has_metadata_csum: kind.csum,
        log: vec![LOG, LOG_REST],
        memory: 1 << 20,
        has_private_log: false,
        inode_size: 256,
        writable: true,
        options: SchemeOptions {
            data: Some(kind.data),
            extra: if kind.async_commit {
                vec![("journal_async_commit".into(), "on".into())]
            } else {
                vec![]
            },
        },
    };
    let config = Config {
        commit_interval: None,
        memory: 64 * BLOCK,
        dirty_expire: Duration::ZERO,
        max_batch_time: Duration::ZERO,
        min_batch_time: Duration::ZERO,
    };
    let opened = find("jbd2")?.open(args)?;
    Ok(Journal::open(opened, &config))
}

/// The state of a block of the world.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    Meta(Vec<u8>),
    Data(Vec<u8>),
    /// Anything may lie there.
    Free,
}

type World = BTreeMap<u64, Content>;

/// A run: the contents after each transaction, and when (in changes of the device) each was
/// confirmed.
struct Run {
    worlds: Vec<World>,
    confirmed_at: Vec<u64>,
}

impl Run {
    /// Notes that the newest transaction is durable, at the latest now.
    fn confirm(&mut self, now: u64) {
        if self.confirmed_at.len() < self.worlds.len() {
            self.confirmed_at.push(now);
        }
    }
}

fn transaction(
    journal: &Arc<Journal>,
    world: &mut World,
    freed: &mut BTreeMap<u64, Tid>,
    rng: &mut Rng,
) -> Tid {
    // A block of data that is logged, and a place for it.
    const MOST: u32 = 6;
    let handle = journal.start(MOST).expect("a handle");
    for _ in 0..1 + rng.below(4) {
        if !handle.has_credits(MOST) {
            break;
        }
        let block = WORLD.start + rng.below(WORLD.end - WORLD.start);
        if freed.get(&block) == Some(&handle.tid()) {
            // A freed block may be used again only after the commit of the transaction that
            // freed it.
            continue;
        }
        let fill = rng.below(256) as u8;
        let file = journal.file(InodeNo(block as u32));
        match world.get_mut(&block).expect("in the world") {
            Content::Meta(bytes) if rng.below(4) > 0 => {
                let offset = rng.below(BLOCK as u64 - 40) as usize;
                handle
                    .write(BlockNo(block), Class::Directory, offset, &[fill; 40])
                    .expect("a write");
                bytes[offset..offset + 40].fill(fill);
                // Sometimes the log has to escape the block: it begins with the log's magic number.
                if rng.below(4) == 0 {
                    let magic = 0xc03b_3998u32.to_be_bytes();
                    handle
                        .write(BlockNo(block), Class::Directory, 0, &magic)
                        .expect("a write");
                    bytes[..4].copy_from_slice(&magic);
                }
            }
            Content::Data(bytes) if rng.below(4) > 0 && journal.terms().logs_data => {
                let offset = rng.below(BLOCK as u64 - 100) as usize;
                let old = Old::Home(BlockNo(block));
                handle
                    .write_data(&file, LBlock(0), offset, &[fill; 100], old, false)
                    .expect("a write");
                bytes[offset..offset + 100].fill(fill);
            }
            slot @ Content::Free => {
                let bytes = vec![fill; BLOCK];
                if rng.below(2) == 0 {
                    handle
                        .create(BlockNo(block), Class::Directory, &bytes)
                        .expect("a block");
                    *slot = Content::Meta(bytes);
                } else {
                    handle
                        .write_data(&file, LBlock(0), 0, &bytes, Old::Hole, false)
                        .expect("a write");
                    *slot = Content::Data(bytes);
                }
            }
            slot => {
                handle.discard_data(&file, LBlock(0), None);
                if matches!(slot, Content::Meta(_)) || journal.terms().logs_data {
                    handle.revoke(BlockNo(block));
                }
                *slot = Content::Free;
                freed.insert(block, handle.tid());
            }
        }
    }
    handle.tid()
}

fn run(dev: &Arc<SimDev>, kind: Kind, seed: u64) -> Run {
    let mut rng = Rng(seed);
    let journal = open(dev.clone(), kind).expect("a fresh journal opens");
    let placer: Arc<dyn Placer> = Arc::new(Homes);
    journal.attach(Arc::downgrade(&placer));
    let mut world: World = WORLD.map(|b| (b, Content::Free)).collect();
    let mut run = Run {
        worlds: vec![world.clone()],
        confirmed_at: vec![0],
    };
    let mut freed = BTreeMap::new();
    let mut last = None;
    for _ in 0..40 {
        let tid = transaction(&journal, &mut world, &mut freed, &mut rng);
        if last.replace(tid) != Some(tid) {
            // The one before has committed, on request or because it was full.
            run.confirm(dev.changes());
            run.worlds.push(world.clone());
        } else {
            *run.worlds.last_mut().expect("one at least") = world.clone();
        }
        // Not every transaction is committed at once: the next handles join it.
        if rng.below(3) > 0 {
            journal.commit(tid).expect("a commit");
            // An empty transaction is not written, and stays the running one.
            if journal.committed() == tid {
                run.confirm(dev.changes());
            }
        }
        if rng.below(10) == 0 {
            journal
                .checkpoint(stetfs_scheme::Goal::Background)
                .expect("a checkpoint");
        }
    }
    journal.close().expect("a clean end");
    run.confirm(dev.changes());
    run
}

fn matches(image: &Image, world: &World) -> bool {
    world.iter().all(|(&block, content)| {
        let mut found = vec![0; BLOCK];
        image.read(block * BLOCK as u64, &mut found);
        match content {
            Content::Free => true,
            Content::Meta(bytes) | Content::Data(bytes) => found == *bytes,
        }
    })
}

/// Recovers and judges; returns the recovered content.
fn judge(
    dev: Arc<dyn BlockDev>,
    content: impl Fn() -> Image,
    kind: Kind,
    run: &Run,
    at: u64,
    what: &str,
) {
    let journal =
        open(dev, kind).unwrap_or_else(|error| panic!("{what}: recovery failed: {error}"));
    journal
        .close()
        .unwrap_or_else(|error| panic!("{what}: closing failed: {error}"));
    let image = content();
    let confirmed = run.confirmed_at.iter().rposition(|&c| c <= at).unwrap_or(0);
    // The commit in flight may be durable, but none after it.
    let allowed = confirmed..=(confirmed + 1).min(run.worlds.len() - 1);
    let found = allowed.clone().find(|&i| matches(&image, &run.worlds[i]));
    assert!(
        found.is_some(),
        "{what}: neither of the transactions {allowed:?} is there entirely; at any age: {:?}",
        run.worlds.iter().position(|w| matches(&image, w))
    );
}

fn explore(kind: Kind, seed: u64) {
    let options = SimOptions::default();
    let dev = Arc::new(options.build(volume(kind.v1)));
    let run = run(&dev, kind, seed);
    assert!(
        matches(&dev.newest(), run.worlds.last().expect("at least one")),
        "a clean end"
    );
    let tape = dev.tape();
    for point in tape.crash_points() {
        let at = point.position() as u64;
        for keep in [
            Keep::None,
            Keep::All,
            Keep::Random(at),
            Keep::Random(at + 1_000_000),
        ] {
            let crashed = Arc::new(point.crash(&keep));
            let before = crashed.image();
            let what = format!("{kind:?} seed {seed} cut at {at} keep {keep}");
            judge(crashed.clone(), || crashed.image(), kind, &run, at, &what);
            if !at.is_multiple_of(7) {
                continue;
            }
            // The same, with a second cut during recovery.
            for second in 0..6 {
                let nested = Arc::new(options.build(before.clone()));
                nested.cut_at(second);
                let recovered = open(nested.clone(), kind).is_ok();
                let after = Arc::new(nested.crash_point().crash(&Keep::Random(at ^ second)));
                let what = format!("{what} then at {second} (recovered: {recovered})");
                judge(after.clone(), || after.image(), kind, &run, at, &what);
            }
        }
    }
}

#[test]
fn journaled_data_survives_every_cut() {
    for seed in 0..6 {
        explore(
            Kind {
                data: DataMode::Journal,
                csum: seed % 2 == 0,
                v1: seed % 4 == 1,
                async_commit: seed % 3 == 2,
            },
            seed,
        );
    }
}

#[test]
fn ordered_data_survives_every_cut() {
    for seed in 10..16 {
        explore(
            Kind {
                data: DataMode::Ordered,
                csum: seed % 2 == 0,
                v1: seed % 4 == 1,
                async_commit: seed % 3 == 2,
            },
            seed,
        );
    }
}
