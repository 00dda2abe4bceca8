//! What transactions change in the blocks that they overwrite.
//!
//! The volume is mounted without a journal (scheme `null`). So a commit writes every block of its
//! transaction home, where the device still has the old content: each pair is compared as it
//! passes. A block that was free in the bitmap before is new, not an update.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use stetfs::{Fs, MountOptions, clock};
use stetfs_format::group::{GroupDesc, GroupFlags};
use stetfs_format::superblock::Superblock;
use stetfs_format::{BlockNo, GroupNo};
use stetfs_media::sim::SimOptions;
use stetfs_media::{BlockDev, Cause, Class, Clock, Layer, MediaError, SimDev, Tag};
use stetfs_schemes::delta::{COMPRESSORS, difference};

use super::volume::{START, Volume};
use crate::workload::{Durable, Session, Tell, Time, Workload};

/// What was changed.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Transactions.
    pub transactions: u64,
    /// Blocks that had not been in use.
    pub new_blocks: u64,
    /// Blocks that were overwritten, by class and bytes that differ: `[n]` have `n`.
    pub updates: BTreeMap<Class, Vec<u64>>,
    /// Nanoseconds that one core of this machine took to capture the differences as scheme dj does:
    /// exclusive or, count of bits, and LZO where that is wanted.
    pub capture_ns: u64,
}

impl Changes {
    /// Updated blocks of some classes.
    pub fn updated(&self, wanted: impl Fn(Class) -> bool) -> u64 {
        self.below(wanted, usize::MAX)
    }

    /// Updated blocks of some classes in which fewer than `bytes` bytes differ.
    pub fn below(&self, wanted: impl Fn(Class) -> bool, bytes: usize) -> u64 {
        let classes = self.updates.iter().filter(|(class, _)| wanted(**class));
        classes
            .flat_map(|(_, counts)| counts.iter().take(bytes))
            .sum()
    }
}

/// Runs a workload on a copy of the volume and notes what its transactions change.
///
/// # Errors
/// Those of the volume.
pub fn changes_of(
    volume: &Volume,
    memory_mib: u64,
    workload: &dyn Workload,
    tell: Tell<'_>,
) -> Result<Changes> {
    let options = SimOptions {
        record: false,
        ..SimOptions::default()
    };
    let watched = Arc::new(Watched {
        dev: options.build(volume.image().clone()),
        block: volume.variety.block as usize,
        watching: Mutex::new(None),
    });
    let mut options = MountOptions::parse(&format!("scheme=null,noatime,memory={memory_mib}M"))?;
    options.commit = Duration::MAX;
    options.clock = clock::Clock::manual(START);
    let (fs, _) = Fs::mount(watched.clone(), options)?;
    let time = Time::Virtual(Clock::default());
    let mut session = Session::new(&fs, time, Durable::EXT3, tell);
    workload.prepare(&mut session)?;
    session.sync()?;
    *watched.watching.lock() = Some(Watching::default());
    workload.run(&mut session)?;
    session.sync()?;
    let watching = watched.watching.lock().take();
    let watching = watching.expect("it was set above");
    fs.unmount()?;
    match watching.failed {
        Some(failed) => Err(anyhow!(failed)).context("looking for a block's bit"),
        None => Ok(watching.changes),
    }
}

/// A device that compares writes home with what they overwrite.
struct Watched {
    dev: SimDev,
    block: usize,
    /// `None` while the workload is prepared.
    watching: Mutex<Option<Watching>>,
}

#[derive(Default)]
struct Watching {
    /// The blocks of the running commit.
    commit: BTreeMap<u64, Update>,
    changes: Changes,
    failed: Option<String>,
}

struct Update {
    class: Class,
    before: Vec<u8>,
    now: Vec<u8>,
}

impl Watched {
    fn content(&self, block: u64) -> Result<Vec<u8>, MediaError> {
        let mut content = vec![0; self.block];
        let tag = Tag::read(Class::Data);
        self.dev
            .read_at(block * self.block as u64, &mut content, tag)?;
        Ok(content)
    }

    /// Returns a block as it was before the running commit.
    fn before(&self, commit: &BTreeMap<u64, Update>, block: u64) -> Result<Vec<u8>, MediaError> {
        match commit.get(&block) {
            Some(update) => Ok(update.before.clone()),
            None => self.content(block),
        }
    }

    /// Whether it was in use before the running commit.
    fn was_used(&self, commit: &BTreeMap<u64, Update>, block: u64) -> Result<bool> {
        let first = self.before(commit, 1024 / self.block as u64)?;
        let superblock = Superblock::decode(&first[1024 % self.block..][..1024])?;
        let geometry = superblock.geometry();
        let first_data_block = u64::from(geometry.first_data_block);
        let blocks_per_group = u64::from(geometry.blocks_per_group());
        let (group, bit) = (
            (block - first_data_block) / blocks_per_group,
            ((block - first_data_block) % blocks_per_group) as usize,
        );
        let size = geometry.desc_size();
        let at = group as usize * size;
        let descriptors = first_data_block + 1 + (at / self.block) as u64;
        let raw = self.before(commit, descriptors)?;
        let raw = &raw[at % self.block..][..size];
        let desc = GroupDesc::decode(raw, GroupNo(group as u32), geometry)?;
        if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            return Ok(false);
        }
        let BlockNo(bitmap) = desc.block_bitmap;
        let bitmap = self.before(commit, bitmap)?;
        Ok(bitmap[bit / 8] & 1 << (bit % 8) != 0)
    }

    fn end(&self, watching: &mut Watching) -> Result<()> {
        let commit = std::mem::take(&mut watching.commit);
        if commit.is_empty() {
            return Ok(());
        }
        let changes = &mut watching.changes;
        changes.transactions += 1;
        let mut updates = Vec::new();
        for (block, update) in &commit {
            if self.was_used(&commit, *block)? {
                updates.push((*block, update))
            } else {
                changes.new_blocks += 1;
            }
        }
        for (_, update) in &updates {
            let pairs = update.before.iter().zip(&update.now);
            let differ = pairs.filter(|(a, b)| a != b).count();
            let counts = changes.updates.entry(update.class).or_default();
            counts.resize(self.block + 1, 0);
            counts[differ] += 1;
        }
        let start_ns = processor_ns();
        let (mut xor, mut delta) = (vec![0; self.block], Vec::new());
        for (_, update) in &updates {
            capture(update, &mut xor, &mut delta);
        }
        changes.capture_ns += processor_ns() - start_ns;
        Ok(())
    }
}

/// Returns the processor time of this thread so far, in nanoseconds.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Captures a difference as scheme dj does by default.
fn capture(update: &Update, xor: &mut [u8], delta: &mut Vec<u8>) {
    let bits = difference(&update.before, &update.now, xor);
    let all = 8 * update.now.len() as u64;
    if bits * 4 < all || (all - bits) * 4 < all {
        COMPRESSORS[0].compress(xor, delta);
    }
}

impl Layer for Watched {
    fn below(&self) -> &dyn BlockDev {
        &self.dev
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        if let Some(watching) = &mut *self.watching.lock()
            && tag.cause == Cause::Home
        {
            let first = offset / self.block as u64;
            for (n, now) in parts.concat().chunks(self.block).enumerate() {
                let block = first + n as u64;
                let update = Update {
                    class: tag.class,
                    before: self.content(block)?,
                    now: now.to_vec(),
                };
                watching.commit.insert(block, update);
            }
        }
        self.dev.write_vectored_at(offset, parts, tag)
    }

    fn flush(&self, cause: Cause) -> Result<(), MediaError> {
        if let Some(watching) = &mut *self.watching.lock()
            && let Err(failed) = self.end(watching)
        {
            watching.failed.get_or_insert(format!("{failed:#}"));
        }
        self.dev.flush(cause)
    }
}
