//! The journal itself: reading blocks, work in the background, closing. `handle` starts handles,
//! `commit` commits transactions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use stetfs_format::width::{must_fit_u32, u32_as_usize, usize_as_u64};
use stetfs_format::{BlockNo, BlockSize, InodeNo, Tid};
use stetfs_media::{Block, BlockRef, Cause, Class, Pmem, Tag};
use stetfs_scheme::{About, ActionCount, CacheStats, Goal, Held, Opened, Terms};
use stetfs_sync::{Background, MutexGuard};

use crate::cache::Cache;
use crate::delayed::{DelayLimits, Delayed};
use crate::error::{JournalError, Result};
use crate::file_data::FileData;
use crate::files::Files;
use crate::gate::{Gate, Limits};
use crate::pace::Pace;
use crate::page::Page;
use crate::placer::Placer;
use crate::stats::{Counters, JournalStats, count};
use crate::transaction::Transaction;

/// How the transaction layer behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// The age at which the background commits a transaction (`commit=`). `None`: it is committed
    /// only on request or when it is full, and there is no background thread, so that everything
    /// happens in one order.
    pub commit_interval: Option<Duration>,
    /// Bytes of block contents to keep in memory, dirty ones included (`memory=`).
    pub memory: usize,
    /// How long new data may stay delayed, where commits need not have it (`dirty_expire=`); zero:
    /// not at all.
    pub dirty_expire: Duration,
    /// How long a commit may wait for threads that will soon want one (`max_batch_time=`); zero:
    /// not at all. It never waits longer than a commit takes on average.
    pub max_batch_time: Duration,
    /// How long it waits for missing threads at least, however short a commit is
    /// (`min_batch_time=`), within `max_batch_time`.
    pub min_batch_time: Duration,
}

/// The transaction layer of one mounted volume.
pub struct Journal {
    served: Opened,
    size: BlockSize,
    limits: Limits,
    /// How much data may be delayed; `None`: none.
    delay_limits: Option<DelayLimits>,
    /// The number of cached blocks to keep.
    most_cached: usize,
    /// The device, if it is memory itself. Blocks there are not cached: a copy would only use up
    /// memory.
    memory: Option<Arc<dyn Pmem>>,
    zero: BlockRef,
    cache: Cache,
    files: Files,
    gate: Gate<Transaction>,
    placer: OnceLock<Weak<dyn Placer>>,
    goes_on: AtomicBool,
    /// File data was logged, although the scheme does not log all of it.
    has_logged_data: AtomicBool,
    counters: Counters,
    background: Background,
}

impl Journal {
    /// Opens the journal on a scheme that has recovered its log, and begins to take transactions.
    pub fn open(opened: Opened, config: &Config) -> Arc<Self> {
        let (dev, terms) = (&opened.dev, &opened.terms);
        let size = opened.block_size;
        let most_cached = (config.memory >> size.bits()).max(64);
        let blocks_max = terms.max_transaction;
        // On a fragmented volume, placing block_size / 24 data blocks takes one new, half full leaf
        // of a map at worst. The log has room for twice as many leaves as the blocks that a
        // transaction may log otherwise.
        let placeable = u32_as_usize(blocks_max) * (size.bytes() / 12);
        let most_dirty = u32::try_from(most_cached / 2).unwrap_or(u32::MAX);
        // In memory data is placed at once, as with ext4's `dax`: delaying it would gain nothing.
        let may_be_delayed =
            dev.pmem().is_none() && !config.dirty_expire.is_zero() && terms.promise.is_apart();
        let delay_limits = may_be_delayed.then_some(DelayLimits {
            age: config.dirty_expire,
            blocks: most_dirty,
        });
        // One transaction runs while another commits. Both are dirty, and so is delayed data.
        let pinned = if may_be_delayed {
            most_dirty / 2
        } else {
            most_dirty
        };
        let limits = Limits {
            blocks: blocks_max,
            pinned: u32::try_from(placeable).map_or(pinned, |most| most.min(pinned)),
        };
        // A commit in memory ends before a thread has gone to sleep.
        let pace = if dev.pmem().is_some() || opened.scheme.cache().is_some() {
            Pace::PROCESSORS
        } else {
            // Without a background thread no commit waits, so that everything happens in one order.
            Pace::Medium {
                batch: config
                    .commit_interval
                    .map_or(Duration::ZERO, |_| config.max_batch_time),
                least: config.min_batch_time,
            }
        };
        let journal = Arc::new(Self {
            memory: dev.pmem().cloned(),
            size,
            served: opened,
            limits,
            delay_limits,
            most_cached,
            zero: Block::zeroed(size.bytes()).into(),
            cache: Cache::new(),
            files: Files::new(),
            gate: Gate::new(Tid(1), pace),
            placer: OnceLock::new(),
            goes_on: AtomicBool::new(false),
            has_logged_data: AtomicBool::new(false),
            counters: Counters::default(),
            background: Background::new("stetfs-journal"),
        });
        match config.commit_interval {
            _ if !journal.served.writable => journal.gate.stop(JournalError::ReadOnly),
            Some(interval) => {
                let weak = Arc::downgrade(&journal);
                let round = move || Self::background_round(&weak, interval);
                journal.background.start(interval, round);
            }
            None => {}
        }
        journal
    }

    /// Sets the file system's part of a commit. Without one, no new data can be committed. Only the
    /// first call has an effect.
    pub fn attach(&self, placer: Weak<dyn Placer>) {
        let _ = self.placer.set(placer);
    }

    /// Returns the newest content of a metadata block.
    pub fn read(&self, block: BlockNo, class: Class) -> Result<BlockRef> {
        let buffer = self.cache.get(block);
        let mut slot = buffer.page.lock();
        if let Some(page) = slot.as_mut() {
            page.referenced = true;
            return Ok(page.content.clone());
        }
        let page = slot.insert(self.load(block, class)?);
        let content = page.content.clone();
        drop(slot);
        drop(buffer);
        self.trim_caches();
        Ok(content)
    }

    /// Reads metadata blocks into memory that will soon be wanted, in few requests. It leaves
    /// blocks alone that are in memory or in use, and ignores errors: [`read`](Self::read) returns
    /// them.
    pub fn read_ahead(&self, start: BlockNo, count: u32, class: Class) {
        let most = AHEAD >> self.size.bits();
        for first in (0..count).step_by(u32_as_usize(most)) {
            let part = most.min(count - first);
            let _ = self.read_part_ahead(start.plus(first.into()), part, class);
        }
        self.trim_caches();
    }

    fn read_part_ahead(&self, start: BlockNo, count: u32, class: Class) -> Result<()> {
        let blocks = (0..count).map(|n| self.cache.get(start.plus(n.into())));
        let buffers: Vec<_> = blocks.collect();
        // Locked, so that nobody changes them meanwhile: the content read here would be older.
        let slots = buffers.iter().map(|buffer| buffer.page.try_lock());
        let mut slots: Vec<_> = slots.collect();
        let is_missing = |slot: &Option<MutexGuard<'_, Option<Page>>>| {
            slot.as_ref().is_some_and(|slot| slot.is_none())
        };
        let (Some(first), Some(last)) = (
            slots.iter().position(is_missing),
            slots.iter().rposition(is_missing),
        ) else {
            return Ok(());
        };
        let start = start.plus(usize_as_u64(first));
        let blocks = must_fit_u32(last + 1 - first);
        let mut content = vec![0; self.size.bytes_of(blocks)];
        self.read_home(start, blocks, &mut content, class)?;
        let contents = content.chunks_exact(self.size.bytes());
        for (n, (slot, content)) in (0..).zip(slots[first..=last].iter_mut().zip(contents)) {
            if let Some(slot) = slot
                && slot.is_none()
            {
                let home = start.plus(n);
                let content = Block::copy_of(content).into();
                **slot = Some(Page::clean(content, class, home));
            }
        }
        Ok(())
    }

    /// Reads the newest committed version of `count` blocks from `start` on into `out`. For file
    /// data that is not in memory: it goes straight into the reader's buffer.
    ///
    /// Panics when `out` is not `count` blocks long.
    pub fn read_home(
        &self,
        start: BlockNo,
        count: u32,
        out: &mut [u8],
        class: Class,
    ) -> Result<()> {
        assert_eq!(out.len(), self.size.bytes_of(count), "room for the blocks");
        if count == 0 {
            return Ok(());
        }
        self.check_block(start.plus(u64::from(count) - 1))?;
        let size = self.size;
        let cache = self.served.scheme.cache();
        if cache.is_none() && !self.served.scheme.holds_any(start, count) {
            return self.read_device(start, out, class);
        }
        // One request for each run of blocks whose newest version is home.
        let mut run = 0;
        for i in 0..=count {
            let is_held = match out.get_mut(size.bytes_of(i)..size.bytes_of(i + 1)) {
                Some(block) => self.read_held(start.plus(i.into()), block)?,
                None => true,
            };
            if is_held {
                let first = start.plus(run.into());
                let missing = &mut out[size.bytes_of(run)..size.bytes_of(i)];
                self.read_device(first, missing, class)?;
                if cache.is_some() {
                    for (n, content) in (0..).zip(missing.chunks_exact(size.bytes())) {
                        self.fill(first.plus(n), class, content);
                    }
                }
                run = i + 1;
            }
        }
        Ok(())
    }

    /// Reads a block from the scheme's log or cache; false if the scheme does not hold it.
    fn read_held(&self, block: BlockNo, out: &mut [u8]) -> Result<bool> {
        if let Some(cache) = self.served.scheme.cache() {
            return Ok(cache.read_part(block, 0, out)?);
        }
        match self.served.scheme.read(block)? {
            Held::Here(content) => {
                out.copy_from_slice(&content);
                Ok(true)
            }
            Held::Home => Ok(false),
        }
    }

    /// Offers a block that was read to the scheme's cache, if it has one. If the cache cannot make
    /// room because the device fails, the reader still has the block, but the journal stops:
    /// committed blocks can no longer go home.
    fn fill(&self, block: BlockNo, class: Class, content: &[u8]) {
        let Some(cache) = self.served.scheme.cache() else {
            return;
        };
        if let Err(error) = cache.fill(block, class, content) {
            self.abort(error.into());
        }
    }

    /// Reads a part of one block, from byte `offset` on, without loading the rest. Returns false
    /// where this is impossible because the block is not in memory or a cache; the caller then
    /// reads all of it by [`read_home`](Self::read_home).
    pub fn read_part(
        &self,
        block: BlockNo,
        offset: usize,
        out: &mut [u8],
        class: Class,
    ) -> Result<bool> {
        self.check_block(block)?;
        if let Some(cache) = self.served.scheme.cache() {
            return Ok(cache.read_part(block, offset, out)?);
        }
        let Some(memory) = &self.memory else {
            return Ok(false);
        };
        if self.served.scheme.holds_any(block, 1) {
            return Ok(false);
        }
        let at = self.size.start_of(block) + usize_as_u64(offset);
        memory.load(at, out, Tag::read(class))?;
        Ok(true)
    }

    /// Returns the data blocks of a file: the same object for all callers.
    pub fn file(&self, ino: InodeNo) -> Arc<FileData> {
        self.files.get(ino)
    }

    /// Returns the data blocks of a file; `None` when no block of it can be in memory.
    pub fn file_if_any(&self, ino: InodeNo) -> Option<Arc<FileData>> {
        self.files.get_if_any(ino)
    }

    /// Returns the newest durable transaction.
    pub fn committed(&self) -> Tid {
        self.gate.committed()
    }

    /// Returns the running transaction.
    pub fn running(&self) -> Tid {
        self.gate.running()
    }

    /// Returns the most credits that a handle may ask for, in blocks.
    pub fn max_credits(&self) -> u32 {
        self.limits.blocks
    }

    /// Returns the block size in bytes.
    pub fn block_size(&self) -> usize {
        self.size.bytes()
    }

    /// Returns the scheme's description.
    pub fn about(&self) -> &'static About {
        self.served.about
    }

    /// Returns what the scheme has agreed to.
    pub fn terms(&self) -> &Terms {
        &self.served.terms
    }

    /// True when the log may hold file data, so that freed blocks of files must be revoked.
    pub fn logs_data(&self) -> bool {
        self.terms().logs_data || self.has_logged_data.load(Ordering::Relaxed)
    }

    pub(crate) fn note_logged_data(&self) {
        self.has_logged_data.store(true, Ordering::Relaxed);
    }

    /// Returns the counters of the scheme's own cache; `None` if it has no cache.
    pub fn cache_stats(&self) -> Option<CacheStats> {
        self.served.scheme.cache().map(|cache| cache.stats())
    }

    /// Returns the error that has stopped the journal, if any.
    pub fn stopped(&self) -> Option<JournalError> {
        self.gate.stopped()
    }

    /// Stops the journal: it writes nothing any more, and waiting callers get `error`.
    pub fn abort(&self, error: JournalError) {
        tracing::error!("journal stopped: {error}");
        self.gate.stop(error);
    }

    /// Forgets a metadata block that no operation has changed, because something else changed its
    /// home. The next use reads it again.
    pub fn reread(&self, block: BlockNo) {
        self.cache.remove(block);
    }

    /// Lets the journal go on when an operation finds damage while it is half done
    /// (`errors=continue`).
    pub fn go_on(&self) {
        self.goes_on.store(true, Ordering::Relaxed);
    }

    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on.load(Ordering::Relaxed)
    }

    /// Stops at once without writing anything, like a crash (FS_IOC_SHUTDOWN without a flush of the
    /// log).
    pub fn shutdown(&self) {
        self.gate.stop(JournalError::Shutdown);
    }

    /// Writes committed blocks home.
    pub fn checkpoint(&self, goal: Goal) -> Result<()> {
        count(&self.counters.checkpoints, 1);
        let result = self
            .served
            .scheme
            .checkpoint(goal)
            .map_err(JournalError::from);
        if let Err(error) = &result {
            self.abort(error.clone());
        }
        result
    }

    /// Commits everything and brings home some blocks of the scheme's cache. Returns how many of
    /// its blocks are not home then. For a scheme without a cache it runs a checkpoint and returns
    /// 0.
    pub fn drain_some(self: &Arc<Self>) -> Result<u64> {
        self.sync()?;
        self.checkpoint(Goal::Some)?;
        Ok(self.cache_stats().map_or(0, |cache| cache.dirty))
    }

    /// Commits everything and leaves a plain ext4 image. A stopped journal writes nothing and
    /// returns the error that stopped it.
    pub fn close(self: &Arc<Self>) -> Result<()> {
        self.close_when(|| Ok(()))
    }

    /// [`close`](Self::close), as soon as `settle` has left nothing to commit and no operation is
    /// under way. It calls `settle` without a handle, after a commit, and again when an operation
    /// came in between.
    pub fn close_when<E: From<JournalError>>(
        self: &Arc<Self>,
        mut settle: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        self.background.end();
        match self.gate.stopped() {
            Some(JournalError::ReadOnly) => return Ok(()),
            Some(error) => return Err(error.into()),
            None => {}
        }
        loop {
            self.sync()?;
            settle()?;
            let is_settled = || self.delayed().blocks() == 0;
            if self.gate.seal(JournalError::ReadOnly, is_settled) {
                return Ok(self.served.scheme.close().map_err(JournalError::from)?);
            }
        }
    }

    /// Ends the background thread and waits for it.
    pub fn end_background(&self) {
        self.background.end();
    }

    /// Returns the counters.
    pub fn stats(&self) -> JournalStats {
        let bytes = |blocks| self.size.offset_of(blocks);
        let counted = self.counters.snapshot();
        JournalStats {
            checkpoints: counted.checkpoints + self.served.scheme.backlog().forced,
            cached_bytes: bytes(usize_as_u64(self.cache.len() + self.files.len())),
            dirty_bytes: bytes(self.gate.pinned().into()),
            delayed_bytes: bytes(self.delayed().blocks().into()),
            ..counted
        }
    }

    /// Returns how often the scheme has chosen each of its actions; empty if it has no choice.
    pub fn actions(&self) -> Vec<ActionCount> {
        self.served.scheme.actions()
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the scheme and its terms.
    pub(crate) fn served(&self) -> &Opened {
        &self.served
    }

    /// True when new data without a home is delayed: commits pass it by.
    pub(crate) fn delays(&self) -> bool {
        self.delay_limits.is_some()
    }

    pub(crate) fn delay_limits(&self) -> Option<DelayLimits> {
        self.delay_limits
    }

    pub(crate) fn delayed(&self) -> &Delayed {
        self.files.delayed()
    }

    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    pub(crate) fn gate(&self) -> &Gate<Transaction> {
        &self.gate
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn zero_block(&self) -> BlockRef {
        self.zero.clone()
    }

    pub(crate) fn placer(&self) -> Result<Arc<dyn Placer>> {
        self.placer_if_attached()
            .unwrap_or_else(|| Err(no_placer()))
    }

    /// Returns the file system's part; `None` if there never was one, an error if it is gone.
    pub(crate) fn placer_if_attached(&self) -> Option<Result<Arc<dyn Placer>>> {
        let placer = self.placer.get()?;
        Some(placer.upgrade().ok_or_else(no_placer))
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn leave(&self, credits: u32) {
        self.gate.leave(credits);
    }

    pub(crate) fn extend(&self, more: u32, may_end: bool) -> bool {
        self.gate.extend(more, self.limits, may_end)
    }

    pub(crate) fn check_block(&self, block: BlockNo) -> Result<()> {
        if block.0 < self.served.blocks {
            return Ok(());
        }
        Err(JournalError::BeyondVolume {
            block,
            blocks: self.served.blocks,
        })
    }

    /// Reads a block that is not in memory.
    pub(crate) fn load(&self, block: BlockNo, class: Class) -> Result<Page> {
        self.check_block(block)?;
        let content = match self.served.scheme.read(block)? {
            Held::Here(content) => content,
            Held::Home => {
                let mut content = Block::zeroed(self.size.bytes());
                self.read_device(block, content.bytes_mut(), class)?;
                // File data is loaded to be changed: the commit will put it into the cache.
                if class != Class::Data {
                    self.fill(block, class, content.bytes());
                }
                content.into()
            }
        };
        Ok(Page::clean(content, class, block))
    }

    /// Ends a commit: makes room in memory and wakes the background if a checkpoint is due. Without
    /// a background thread the caller runs the checkpoint, so that everything happens in one order.
    pub(crate) fn after_commit(&self) {
        self.trim_caches();
        if self.served.scheme.backlog().is_due
            && !self.background.wake()
            && self.stopped().is_none()
        {
            // `checkpoint` has stopped the journal on an error.
            let _ = self.checkpoint(Goal::Background);
        }
    }

    /// True when a data block that has become clean stays in memory.
    pub(crate) fn keeps_clean(&self, home: BlockNo) -> bool {
        !self.served.terms.is_buffer_cache
            && (self.memory.is_none() || self.served.scheme.holds_any(home, 1))
    }

    fn read_device(&self, block: BlockNo, out: &mut [u8], class: Class) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        let tag = Tag {
            class,
            cause: Cause::Read,
        };
        Ok(self
            .served
            .dev
            .read_at(self.size.start_of(block), out, tag)?)
    }

    /// Drops clean blocks while more than `most_cached` are in memory.
    pub fn trim_caches(&self) {
        let cached = self.cache.len() + self.files.len();
        if cached > self.most_cached {
            // An eighth more than needed, so that not every block causes this.
            let most = self.most_cached - self.most_cached / 8;
            let share = |part: usize| part * most / cached;
            self.files.evict(share(self.files.len()));
            self.cache.evict(share(self.cache.len()));
        }
    }

    /// Does one round of the background thread; false when the journal is gone or stopped. An error
    /// stops the journal, so that later callers get it.
    fn background_round(journal: &Weak<Self>, interval: Duration) -> bool {
        let Some(journal) = journal.upgrade().filter(|j| j.stopped().is_none()) else {
            return false;
        };
        let _ = journal.look_at_delayed();
        if let Some((tid, age)) = journal.gate.age()
            && age >= interval
        {
            let _ = journal.commit(tid);
        }
        if journal.served.scheme.backlog().is_due {
            let _ = journal.checkpoint(Goal::Background);
        }
        true
    }
}

/// Bytes of one request of a readahead.
const AHEAD: u32 = 256 << 10;

fn no_placer() -> JournalError {
    JournalError::Unusable("the file system is gone, its data has no place".to_owned())
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.background.end();
    }
}
