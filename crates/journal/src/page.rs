//! One cached block: its newest content, and the transaction that has changed it.
//!
//! | from | by | to | when |
//! |---|---|---|---|
//! | `Hole` | `Delay` | `Delayed` | new data is written, where commits need not have it (`delayed.rs`) |
//! | `Delayed` | `Delay` | `Delayed` | it is written again |
//! | `Delayed` | `Enlist` | `Running` | a sync wants it durable, it is old, or too much is delayed |
//! | `Hole`, `Unread`, `Clean` | `Write` | `Running` | a transaction changes it |
//! | `Running` | `Write` | `Running` | the same transaction changes it again |
//! | `Running` | `Place` | `Running` | the file system gives it a home, its first or another |
//! | `Running` | `Close` | `Committing` | the transaction's snapshot takes its content |
//! | `Committing` | `Write` | `Running` | the next transaction changes it |
//! | `Committing` | `Finish` | `Clean` | the transaction is durable |
//! | `Running`, `Committing` | `Overwrite` | `Clean` | an fsync has written it home without a commit |
//! | `Clean`, `Delayed`, `Running`, `Committing` | `Drop` | gone | truncated, freed |
//! | `Clean` | `Evict` | gone | memory is short, or the scheme's cache or a device in memory has it |
//!
//! Debug builds check every move against this table (`moves.rs`).

use stetfs_format::{BlockNo, Tid};
use stetfs_media::{Block, BlockRef, Class};

use crate::error::Result;
use crate::moves::{Kind, Step, note};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{Opened, Ranges, Spot};

/// A block in a cache.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) content: BlockRef,
    pub(crate) class: Class,
    /// Its home; `None`: file data in a hole or an unwritten extent that no commit has placed.
    pub(crate) home: Option<BlockNo>,
    /// Used since the last eviction passed it.
    pub(crate) referenced: bool,
    state: State,
}

/// The relation of a block to transactions.
#[derive(Debug)]
enum State {
    /// A hole's zeros, which a write is about to change.
    Hole,
    /// Any content of the right length, which a write is about to replace.
    Unread,
    /// The content is the committed one.
    Clean,
    /// New data without a home that is in no transaction.
    Delayed,
    /// The running transaction has changed it.
    Running(Change),
    /// This transaction has changed it, and its commit is under way.
    Committing(Tid),
}

/// A transaction's change of a block.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) tid: Tid,
    pub(crate) origin: Origin,
    /// The change must survive entirely or not at all
    /// ([`LoggedBlock::whole`](stetfs_scheme::LoggedBlock::whole)).
    pub(crate) whole: bool,
    /// The changed bytes.
    pub(crate) ranges: Ranges,
    /// The content before the change, if the scheme wants it.
    pub(crate) base: Option<BlockRef>,
    /// Where the scheme keeps the block while the transaction changes it.
    pub(crate) spot: Option<Spot>,
}

/// The content of a block's home before a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The block's old content.
    Old,
    /// The block's old content, which nobody has read, because all of it was overwritten.
    Unread,
    /// Nothing of value: the transaction made the block.
    Fresh,
    /// Nothing of value: the transaction switched the file's mapping to this home.
    Relocated,
}

impl Page {
    /// Makes a page of content that was read from `home`, or that is about to be
    /// [replaced](Self::replace).
    pub(crate) fn clean(content: BlockRef, class: Class, home: BlockNo) -> Self {
        Self::new(content, class, Some(home), State::Clean)
    }

    /// Makes a page for file data in a hole.
    pub(crate) fn hole(zeros: BlockRef) -> Self {
        Self::new(zeros, Class::Data, None, State::Hole)
    }

    /// Makes a page for a data block that a write is about to replace. Its content may be anything
    /// of the right length.
    pub(crate) fn unread(any: BlockRef, home: BlockNo) -> Self {
        Self::new(any, Class::Data, Some(home), State::Unread)
    }

    fn new(content: BlockRef, class: Class, home: Option<BlockNo>, state: State) -> Self {
        Self {
            content,
            class,
            home,
            referenced: true,
            state,
        }
    }

    /// True when a commit must place it.
    pub(crate) fn is_unplaced(&self) -> bool {
        self.home.is_none()
    }

    /// True when it is a hole that a write is about to fill.
    pub(crate) fn is_hole(&self) -> bool {
        matches!(self.state, State::Hole)
    }

    /// True when the content is the committed one.
    pub(crate) fn is_clean(&self) -> bool {
        matches!(self.state, State::Clean)
    }

    /// Returns the transaction that has changed it and is not durable, if any.
    pub(crate) fn tid(&self) -> Option<Tid> {
        match &self.state {
            State::Hole | State::Unread | State::Clean | State::Delayed => None,
            State::Running(change) => Some(change.tid),
            State::Committing(tid) => Some(*tid),
        }
    }

    /// Returns the change so far by transaction `tid`, if that is running and has changed it.
    pub(crate) fn running(&self, tid: Tid) -> Option<&Change> {
        match &self.state {
            State::Running(change) if change.tid == tid => Some(change),
            _ => None,
        }
    }

    /// True when transaction `tid` has the page and is to give it a home.
    pub(crate) fn is_placed_by(&self, tid: Tid) -> bool {
        self.is_unplaced() && self.running(tid).is_some()
    }

    /// Makes the page part of transaction `tid`; true when it was not yet. `fresh`: its old content
    /// does not count.
    pub(crate) fn join(&mut self, tid: Tid, served: &Opened, fresh: bool) -> bool {
        self.join_by(Step::Write, tid, served, fresh)
    }

    /// Makes a delayed page part of transaction `tid` with its present content.
    pub(crate) fn enlist(&mut self, tid: Tid, served: &Opened) -> Result<()> {
        self.join_by(Step::Enlist, tid, served, true);
        self.replace(self.content.clone(), served)
    }

    fn join_by(&mut self, step: Step, tid: Tid, served: &Opened, fresh: bool) -> bool {
        self.referenced = true;
        if self.running(tid).is_some() {
            note(Kind::Running, step, Kind::Running);
            return false;
        }
        // The scheme's cache has the present content, unless the block is fresh or a commit of it
        // is under way.
        let is_kept = !fresh && self.tid().is_none();
        let home = self.home.filter(|_| is_kept);
        let cache = served.scheme.cache();
        let change = Change {
            tid,
            origin: match self.state {
                _ if fresh => Origin::Fresh,
                State::Unread => Origin::Unread,
                _ => Origin::Old,
            },
            whole: false,
            ranges: Ranges::new(),
            base: (!fresh && served.terms.wants.base).then(|| self.content.clone()),
            spot: cache.and_then(|cache| cache.before_write(tid, home)),
        };
        self.go(step, State::Running(change));
        true
    }

    /// Changes bytes of a block without a home, outside of any transaction.
    pub(crate) fn delay(&mut self, offset: usize, bytes: &[u8]) {
        self.referenced = true;
        self.write(offset, bytes);
        self.go(Step::Delay, State::Delayed);
    }

    /// True when it is delayed, or a hole that may become so.
    pub(crate) fn may_be_delayed(&self) -> bool {
        matches!(self.state, State::Hole | State::Delayed)
    }

    /// Marks its change as whole ([`Change::whole`]); true when it was not yet.
    pub(crate) fn must_be_whole(&mut self) -> bool {
        !std::mem::replace(&mut self.state.change_mut().whole, true)
    }

    /// Changes bytes. The page must have joined a transaction.
    pub(crate) fn change(&mut self, offset: usize, bytes: &[u8], served: &Opened) -> Result<()> {
        let change = self.state.change_mut();
        match change.origin {
            Origin::Old | Origin::Relocated if served.terms.wants.changed_bytes > 0 => {
                change.ranges.add_changes(offset, &self.content, bytes);
            }
            _ => change.ranges.add(offset, bytes.len()),
        }
        self.write(offset, bytes);
        self.tell(offset, bytes.len(), served)
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.len() == self.content.len() && !self.content.is_unshared() {
            // Not `make_mut`, which would copy content that is overwritten entirely.
            self.content = Block::copy_of(bytes).into();
        } else {
            self.content.make_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Replaces all of its content. The page must have joined a transaction.
    pub(crate) fn replace(&mut self, content: BlockRef, served: &Opened) -> Result<()> {
        self.state.change_mut().ranges.add(0, content.len());
        self.content = content;
        self.tell(0, self.content.len(), served)
    }

    fn tell(&self, offset: usize, len: usize, served: &Opened) -> Result<()> {
        if let State::Running(Change {
            spot: Some(spot), ..
        }) = &self.state
            && let Some(cache) = served.scheme.cache()
        {
            cache.after_write(*spot, self.class, offset, len, &self.content)?;
        }
        Ok(())
    }

    /// Gives it this home, its first or another one, in the running transaction.
    pub(crate) fn place(&mut self, home: BlockNo) {
        note(self.state.kind(), Step::Place, self.state.kind());
        let is_moved = self.home.is_some_and(|before| before != home);
        self.home = Some(home);
        if is_moved {
            self.state.change_mut().origin = Origin::Relocated;
        }
    }

    /// Closes transaction `tid` for this page; returns its change, if it made one.
    pub(crate) fn close(&mut self, tid: Tid) -> Option<Change> {
        self.running(tid)?;
        match self.go(Step::Close, State::Committing(tid)) {
            State::Running(change) => Some(change),
            _ => unreachable!("it is running"),
        }
    }

    /// Notes that transaction `tid` is durable.
    pub(crate) fn finish(&mut self, tid: Tid) {
        if self.tid() == Some(tid) {
            self.go(Step::Finish, State::Clean);
        } else if is_planted(Bug::CleanedNext) {
            self.state = State::Clean;
        }
    }

    /// Notes that its change is durable at its home.
    pub(crate) fn overwritten(&mut self) {
        self.go(Step::Overwrite, State::Clean);
    }

    /// Notes that it leaves memory, in any state.
    pub(crate) fn dropped(&self) {
        note(self.state.kind(), Step::Drop, Kind::Gone);
    }

    /// True when it is clean and was not used since the last call.
    pub(crate) fn may_go(&mut self) -> bool {
        self.is_clean() && !std::mem::replace(&mut self.referenced, false)
    }

    /// Notes that it leaves memory, clean.
    pub(crate) fn evicted(&self) {
        note(self.state.kind(), Step::Evict, Kind::Gone);
    }

    /// Takes a step; returns the state before.
    fn go(&mut self, step: Step, to: State) -> State {
        note(self.state.kind(), step, to.kind());
        std::mem::replace(&mut self.state, to)
    }
}

impl State {
    /// Returns the running transaction's change. Panics unless the page has joined one.
    fn change_mut(&mut self) -> &mut Change {
        match self {
            Self::Running(change) => change,
            _ => panic!("a block is changed in no transaction"),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Hole => Kind::Hole,
            Self::Unread => Kind::Unread,
            Self::Clean => Kind::Clean,
            Self::Delayed => Kind::Delayed,
            Self::Running(_) => Kind::Running,
            Self::Committing(_) => Kind::Committing,
        }
    }
}
