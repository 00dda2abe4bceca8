//! The changes of one operation.
//!
//! A handle belongs to one transaction, which has all changes made through it. It holds no lock
//! between two calls: the file system's own locks keep two operations from changing the same bytes.

use std::cell::Cell;
use std::sync::Arc;

use stetfs_format::{BlockNo, LBlock, Tid};
use stetfs_media::{Block, BlockRef, Class};

use crate::error::{Broken, JournalError, Result};
use crate::file_data::{Enlisted, FileData, Joined, Part, Wrote};
use crate::gate::{Join, Wish};
use crate::journal::Journal;
use crate::page::Page;
use crate::stats::count;
use crate::transaction::Transaction;
use stetfs_sync::schedule::ask;

/// Metadata blocks that placing one run of new data blocks may change: a bitmap, a descriptor, an
/// extent or indirect block, and one more when that splits.
pub const CREDITS_PER_RUN: u32 = 4;

/// The number of revoked blocks that one block of the log has room for, at the smallest block size
/// and with the longest entries.
const REVOKES_PER_BLOCK: usize = 120;

/// The content of a data block that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// Zeros: a hole or an unwritten extent, which the commit places.
    Hole,
    /// The content of its home.
    Home(BlockNo),
}

/// An operation's part of the running transaction. An operation that succeeds drops it; one that
/// fails [ends](Self::end) it.
pub struct Handle {
    journal: Arc<Journal>,
    txn: Arc<Transaction>,
    tid: Tid,
    credits: Cell<u32>,
    used: Cell<u32>,
    owner: Owner,
    /// It has changed something.
    changed: Cell<bool>,
    /// Its operation may stop after any step and go on in another handle.
    splits: Cell<bool>,
}

/// What keeps the transaction open while the handle exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The handle.
    Itself,
    /// The handle. It does work that operations have left to the commit and have been charged for.
    Early,
    /// The handle. It is a [`Span`](crate::Span) with these credits for all its operations.
    Span(u32),
    /// The commit.
    Commit,
}

impl Journal {
    /// Opens a handle for an operation that changes at most `credits` blocks (debug builds check
    /// this). Waits while the running transaction is being closed, commits it first if it is full,
    /// and enlists delayed data if there is too much of it.
    pub fn start(self: &Arc<Self>, credits: u32) -> Result<Handle> {
        self.relieve()?;
        self.start_anyway(credits)
    }

    /// [`start`](Self::start), however much data is delayed.
    pub(crate) fn start_anyway(self: &Arc<Self>, credits: u32) -> Result<Handle> {
        let limits = self.limits();
        if credits > limits.blocks {
            return Err(JournalError::TooLarge {
                wanted: credits,
                limit: limits.blocks,
            });
        }
        count(&self.counters().handles, 1);
        if ask(|s| s.commits_first()) == Some(true) {
            self.commit_running()?;
        }
        loop {
            match self.gate().join(credits, limits)? {
                Join::Joined { tid, load } => {
                    let journal = Arc::clone(self);
                    return Ok(Handle::new(journal, load, tid, credits, Owner::Itself));
                }
                Join::Full(tid) => self.commit_as(tid, Wish::Room)?,
            }
        }
    }
}

/// Whether a write of file data needs the old content of a block that is not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overwrites {
    /// No: it overwrites all of it, and nobody asks for the old content.
    Blindly,
    /// It overwrites all of it; the scheme decides.
    Perhaps,
    /// Yes: the block must be read.
    No,
}

impl Journal {
    fn overwrites(&self, bytes: &[u8]) -> Overwrites {
        let wants = &self.terms().wants;
        if bytes.len() != self.block_size() || wants.base {
            Overwrites::No
        } else if wants.changed_bytes == 0 {
            Overwrites::Blindly
        } else {
            Overwrites::Perhaps
        }
    }

    /// True when a block at `home` that is not in memory must be read before `bytes` replace it.
    fn reads_first(&self, home: BlockNo, bytes: &[u8]) -> Result<bool> {
        self.check_block(home)?;
        Ok(match self.overwrites(bytes) {
            Overwrites::Blindly => false,
            Overwrites::Perhaps => self.served().scheme.wants_changes(home, bytes)?,
            Overwrites::No => true,
        })
    }

    /// Reads the block that [`Handle::write_data`] would read to write `bytes` into `home`, so that
    /// a failing device shows before anything is changed.
    pub fn read_ahead_of_write(
        &self,
        file: &FileData,
        lblk: LBlock,
        home: BlockNo,
        bytes: &[u8],
    ) -> Result<()> {
        if file.get(lblk).is_none() && self.reads_first(home, bytes)? {
            let page = self.load(home, Class::Data)?;
            file.insert_clean(lblk, home, page.content);
        }
        Ok(())
    }
}

impl Handle {
    pub(crate) fn new(
        journal: Arc<Journal>,
        txn: Arc<Transaction>,
        tid: Tid,
        credits: u32,
        owner: Owner,
    ) -> Self {
        let (credits, used) = (Cell::new(credits), Cell::new(0));
        Self {
            journal,
            txn,
            tid,
            credits,
            used,
            owner,
            changed: Cell::new(false),
            splits: Cell::new(false),
        }
    }

    pub(crate) fn of_commit(journal: Arc<Journal>, txn: Arc<Transaction>, tid: Tid) -> Self {
        Self::new(journal, txn, tid, u32::MAX, Owner::Commit)
    }

    /// Turns the handle into a span.
    pub(crate) fn become_span(&mut self) {
        // A span that fails counts as half done, even before its first change.
        self.note_change();
        self.owner = Owner::Span(self.credits.get());
    }

    /// Begins the next operation of a span, which may change `credits` more blocks.
    pub(crate) fn begin_operation(&self, credits: u32) -> Result<()> {
        let used = self.used.get();
        if let Owner::Span(all) = self.owner
            && credits > all.saturating_sub(used)
        {
            let (wanted, limit) = (credits, all.saturating_sub(used));
            return Err(JournalError::TooLarge { wanted, limit });
        }
        self.credits.set(used.saturating_add(credits));
        Ok(())
    }

    /// Returns the transaction's number.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Writes `bytes` at `offset` of a metadata block, which it reads first if it is not in memory.
    ///
    /// Panics when the range is not inside the block.
    pub fn write(&self, block: BlockNo, class: Class, offset: usize, bytes: &[u8]) -> Result<()> {
        self.change(block, class, std::iter::once((offset, bytes)))
    }

    /// Writes any number of parts of a block, each an offset and bytes, like
    /// [`write`](Self::write).
    pub fn write_parts<'a>(
        &self,
        block: BlockNo,
        class: Class,
        parts: impl IntoIterator<Item = (usize, &'a [u8])>,
    ) -> Result<()> {
        let mut parts = parts.into_iter().peekable();
        match parts.peek() {
            Some(_) => self.change(block, class, parts),
            None => Ok(()),
        }
    }

    /// Makes a metadata block part of the transaction and charges for it, so that the file system
    /// can change it when the transaction [closes](crate::Placer::settle).
    pub fn join(&self, block: BlockNo, class: Class) -> Result<()> {
        self.change(block, class, std::iter::empty())
    }

    fn change<'a>(
        &self,
        block: BlockNo,
        class: Class,
        parts: impl Iterator<Item = (usize, &'a [u8])>,
    ) -> Result<()> {
        let buffer = self.journal.cache().get(block);
        let mut slot = buffer.page.lock();
        if slot.is_none() {
            *slot = Some(self.journal.load(block, class)?);
        }
        let page = slot.as_mut().expect("loaded just now");
        self.note_change();
        let joined = page.join(self.tid, self.journal.served(), false);
        page.class = class;
        let mut changed = Ok(());
        for (offset, bytes) in parts {
            changed = changed.and_then(|()| page.change(offset, bytes, self.journal.served()));
        }
        drop(slot);
        self.must_be(changed)?;
        if joined {
            self.txn.add_meta(buffer);
            self.charge(1);
        }
        Ok(())
    }

    /// Makes a fresh metadata block of this content. The old content of its home does not count.
    pub fn create(&self, block: BlockNo, class: Class, bytes: &[u8]) -> Result<()> {
        self.journal.check_block(block)?;
        self.note_change();
        let buffer = self.journal.cache().get(block);
        let mut slot = buffer.page.lock();
        let content: BlockRef = Block::copy_of(bytes).into();
        let page = slot.get_or_insert_with(|| Page::clean(content.clone(), class, block));
        let joined = page.join(self.tid, self.journal.served(), true);
        page.class = class;
        let changed = page.replace(content, self.journal.served());
        drop(slot);
        self.must_be(changed)?;
        self.txn.cancel_revoke(block);
        if joined {
            self.txn.add_meta(buffer);
            self.charge(1);
        }
        Ok(())
    }

    /// Notes that the block was freed: drops this transaction's changes of it (JBD2's forget), and
    /// keeps recovery from replaying older versions of it in the log (revoke).
    pub fn revoke(&self, block: BlockNo) {
        self.note_change();
        self.journal.cache().remove(block);
        if self.txn.revoke(block).is_multiple_of(REVOKES_PER_BLOCK) {
            self.charge(1);
        }
    }

    /// Writes `bytes` at `offset` of a file's block. `old` is the block's content if it is not in
    /// memory. A `whole` block changes with its transaction or not at all, even where the scheme
    /// promises less for other data ([`Terms::logs_marked`](stetfs_scheme::Terms::logs_marked)).
    ///
    /// The caller holds the inode's lock and, for [`Wrote::Unplaced`]`{ newly: true }`, keeps a
    /// reserved block for it.
    pub fn write_data(
        &self,
        file: &Arc<FileData>,
        lblk: LBlock,
        offset: usize,
        bytes: &[u8],
        old: Old,
        whole: bool,
    ) -> Result<Wrote> {
        let journal = &self.journal;
        let served = journal.served();
        let mut absent = match old {
            Old::Hole => Some(Page::hole(journal.zero_block())),
            Old::Home(home) if journal.overwrites(bytes) == Overwrites::Blindly => {
                Some(Page::unread(journal.zero_block(), home))
            }
            Old::Home(_) => None,
        };
        self.note_change();
        let charge = |joined: Joined| {
            if joined.block {
                self.txn.add_pinned(1);
            }
            if served.terms.logs_data {
                self.charge(u32::from(joined.block));
            } else if joined.whole {
                journal.note_logged_data();
                self.charge(1);
            }
            if joined.run {
                self.charge(CREDITS_PER_RUN);
            }
        };
        let part = Part {
            lblk,
            offset,
            bytes,
            whole,
        };
        let written = loop {
            let delays = journal.delays();
            let written = file.write(self.tid, delays, served, &part, absent, charge);
            let written = self.must_be(written)?;
            match (written, old) {
                (Some(written), _) => break written,
                (None, Old::Home(home)) => {
                    absent = Some(if journal.reads_first(home, bytes)? {
                        journal.load(home, Class::Data)?
                    } else {
                        Page::unread(journal.zero_block(), home)
                    });
                }
                (None, Old::Hole) => unreachable!("a hole holds zeros"),
            }
        };
        if written.file {
            self.txn.add_file(Arc::clone(file));
        }
        Ok(written.wrote)
    }

    /// Makes the first delayed blocks of a file part of the transaction: those before `end`, at
    /// most `blocks` of them in at most `runs` runs. The file itself may take `credits` credits.
    pub(crate) fn enlist(
        &self,
        file: &Arc<FileData>,
        end: u32,
        blocks: u32,
        runs: u32,
        credits: u32,
    ) -> Result<()> {
        self.note_change();
        let served = self.journal.served();
        let charge = |enlisted: Enlisted| {
            self.txn.add_pinned(enlisted.blocks);
            self.charge(credits + CREDITS_PER_RUN * enlisted.runs);
        };
        let enlisted = file.enlist(self.tid, served, end, blocks, runs, charge);
        if self.must_be(enlisted)? {
            self.txn.add_file(Arc::clone(file));
        }
        Ok(())
    }

    /// Forgets the file's blocks in `[from, to)`, dirty or not; returns how many of them had no
    /// home, so that the caller gives up as many reserved blocks. Takes [`CREDITS_PER_RUN`] credits
    /// when this splits a run of new blocks.
    pub fn discard_data(&self, file: &FileData, from: LBlock, to: Option<LBlock>) -> u32 {
        self.note_change();
        let dropped = file.discard(self.tid, from, to);
        count(
            &self.journal.counters().dropped_blocks,
            u64::from(dropped.dirty),
        );
        // The commit will not have these blocks, so others may have their room (JBD2's forget).
        let logged = if self.journal.served().terms.logs_data {
            dropped.joined
        } else {
            dropped.whole
        };
        self.txn
            .give_back(logged + CREDITS_PER_RUN * dropped.runs, dropped.joined);
        self.charge(CREDITS_PER_RUN * dropped.splits);
        dropped.unplaced
    }

    /// True when the handle has, or has just got, room for `n` more blocks. Otherwise the operation
    /// must go on in a new handle.
    pub fn has_credits(&self, n: u32) -> bool {
        // A span cannot split: its next handle would be part of the same transaction.
        let may_split = self.splits.get() && !matches!(self.owner, Owner::Span(_));
        if may_split && ask(|s| s.splits()) == Some(true) {
            return false;
        }
        let wanted = self.used.get().saturating_add(n);
        let more = wanted.saturating_sub(self.credits.get());
        if more == 0 {
            return true;
        }
        let extended = match self.owner {
            Owner::Span(all) => wanted <= all,
            Owner::Itself | Owner::Early | Owner::Commit => {
                self.journal.extend(more, self.splits.get())
            }
        };
        if extended {
            self.credits.set(self.credits.get() + more);
        }
        extended
    }

    /// Lets the operation be split: a crash between any two of its steps leaves a state that the
    /// caller accepts. The handle gets no more credits while a commit waits for it, and a test's
    /// scheduler may let [`has_credits`](Self::has_credits) say that it is full.
    pub fn allow_split(&self) {
        self.splits.set(true);
    }

    /// Ends the handle of an operation that failed. If the operation has changed something already,
    /// the journal stops, so that no other thread's commit makes half of the operation durable.
    pub fn end(self, why: Broken) {
        let stops = match why {
            Broken::ByFailure => true,
            Broken::ByDamage => !self.journal.goes_on(),
        };
        if stops {
            self.stop_if_changed("an operation failed when it was half done");
        }
    }

    fn stop_if_changed(&self, why: &str) {
        // A commit that fails stops the journal itself, with the reason.
        if self.changed.get() && self.owner != Owner::Commit {
            self.journal.abort(JournalError::Unusable(why.to_owned()));
        }
    }

    /// Stops the journal if the scheme could not note a change, because the commit would lack it.
    fn must_be<T>(&self, changed: Result<T>) -> Result<T> {
        changed.inspect_err(|error| self.journal.abort(error.clone()))
    }

    fn note_change(&self) {
        self.changed.set(true);
    }

    fn charge(&self, blocks: u32) {
        let used = self.used.get().saturating_add(blocks);
        self.used.set(used);
        // Otherwise the transaction could exceed the room in the log (jbd2 asserts this too).
        debug_assert!(
            used <= self.credits.get() || self.owner == Owner::Early,
            "an operation changes {used} blocks and has credits for {}",
            self.credits.get()
        );
        self.txn.add_blocks(blocks);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop_if_changed("an operation panicked when it was half done");
        }
        match self.owner {
            Owner::Itself | Owner::Early => self.journal.leave(self.credits.get()),
            Owner::Span(all) => self.journal.leave(all),
            Owner::Commit => {}
        }
    }
}
