//! One cached block: its newest content, and what transactions have to do with it.
//!
//! | from | by | to | when |
//! |---|---|---|---|
//! | `Hole` | `Delay` | `Delayed` | new data, where commits need not have it (`delayed.rs`) |
//! | `Delayed` | `Delay` | `Delayed` | it is written again |
//! | `Delayed` | `Enlist` | `Running` | somebody wants it durable, it is old, or too much is delayed |
//! | `Hole`, `Unread`, `Clean` | `Write` | `Running` | a transaction changes it |
//! | `Running` | `Write` | `Running` | the same transaction changes it again |
//! | `Running` | `Place` | `Running` | the file system gives it a home, its first or another |
//! | `Running` | `Close` | `Committing` | the transaction's snapshot has its content |
//! | `Committing` | `Write` | `Running` | the next transaction changes it |
//! | `Committing` | `Finish` | `Clean` | the transaction is durable |
//! | `Running`, `Committing` | `Overwrite` | `Clean` | it was written home without the commit |
//! | `Clean`, `Delayed`, `Running`, `Committing` | `Drop` | gone | truncated, freed |
//! | `Clean` | `Evict` | gone | memory is short, or the scheme has it |
//!
//! Debug builds hold every move against this table (`moves.rs`).

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
    /// Its home. File data has none until a commit places it: in a hole or an unwritten extent.
    pub(crate) home: Option<BlockNo>,
    /// Used since the last look for something to evict.
    pub(crate) referenced: bool,
    state: State,
}

/// What transactions have to do with a block.
#[derive(Debug)]
enum State {
    /// A hole's zeros, about to be written.
    Hole,
    /// Any content of the right length: all of it is about to be written.
    Unread,
    /// The content is what is committed.
    Clean,
    /// New data that is in no transaction.
    Delayed,
    /// The running transaction has changed it.
    Running(Change),
    /// This transaction has changed it, and its commit is under way.
    Committing(Tid),
}

/// What a transaction did to a block.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) tid: Tid,
    pub(crate) origin: Origin,
    /// The transaction must have all of the change or none of it
    /// ([`LoggedBlock::whole`](stetfs_scheme::LoggedBlock::whole)).
    pub(crate) whole: bool,
    /// What it changed.
    pub(crate) ranges: Ranges,
    /// The content before it, if the scheme wants that.
    pub(crate) base: Option<BlockRef>,
    /// Where the scheme keeps the block while the transaction changes it.
    pub(crate) spot: Option<Spot>,
}

/// What a block's home held before a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// What the block was.
    Old,
    /// The same, and nobody read it: all of it was written.
    Unread,
    /// Nothing: the transaction made the block.
    Fresh,
    /// Nothing: the transaction switched the file's mapping to this home.
    Relocated,
}

impl Page {
    /// What was read from its home, or is about to be [replaced](Self::replace).
    pub(crate) fn clean(content: BlockRef, class: Class, home: BlockNo) -> Self {
        Self::new(content, class, Some(home), State::Clean)
    }

    /// File data where there is none yet.
    pub(crate) fn hole(zeros: BlockRef) -> Self {
        Self::new(zeros, Class::Data, None, State::Hole)
    }

    /// A data block that is about to be written whole, with anything of the right length for its
    /// content.
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

    /// It must get a place at a commit.
    pub(crate) fn is_unplaced(&self) -> bool {
        self.home.is_none()
    }

    /// It is about to be the first data where the file has none.
    pub(crate) fn is_hole(&self) -> bool {
        matches!(self.state, State::Hole)
    }

    /// The content is what is committed.
    pub(crate) fn is_clean(&self) -> bool {
        matches!(self.state, State::Clean)
    }

    /// The transaction that changed it and is not durable.
    pub(crate) fn tid(&self) -> Option<Tid> {
        match &self.state {
            State::Hole | State::Unread | State::Clean | State::Delayed => None,
            State::Running(change) => Some(change.tid),
            State::Committing(tid) => Some(*tid),
        }
    }

    /// What transaction `tid` did to it so far, if it is the running one and did anything.
    pub(crate) fn running(&self, tid: Tid) -> Option<&Change> {
        match &self.state {
            State::Running(change) if change.tid == tid => Some(change),
            _ => None,
        }
    }

    /// Makes the page part of transaction `tid`; true when it was not yet. `fresh`: its old content
    /// means nothing.
    pub(crate) fn join(&mut self, tid: Tid, served: &Opened, fresh: bool) -> bool {
        self.join_by(Step::Write, tid, served, fresh)
    }

    /// [`join`](Self::join) of delayed data, as it is.
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
        // What is fresh, or what a commit under way has, is not what the scheme has of it.
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

    /// The transaction that it is part of must have all of it or nothing; true when it need not
    /// before.
    pub(crate) fn must_be_whole(&mut self) -> bool {
        !std::mem::replace(&mut self.state.change_mut().whole, true)
    }

    /// Changes bytes; the page has joined before.
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
            // Copying what is overwritten whole would be waste.
            self.content = Block::copy_of(bytes).into();
        } else {
            self.content.make_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Gives it other content, all of it; the page has joined before.
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

    /// The running transaction gives it this home, its first or another one.
    pub(crate) fn place(&mut self, home: BlockNo) {
        note(self.state.kind(), Step::Place, self.state.kind());
        let is_moved = self.home.is_some_and(|before| before != home);
        self.home = Some(home);
        if is_moved {
            self.state.change_mut().origin = Origin::Relocated;
        }
    }

    /// Transaction `tid` is closed: what it did, if anything.
    pub(crate) fn close(&mut self, tid: Tid) -> Option<Change> {
        self.running(tid)?;
        match self.go(Step::Close, State::Committing(tid)) {
            State::Running(change) => Some(change),
            _ => unreachable!("it is running"),
        }
    }

    /// Transaction `tid` is durable.
    pub(crate) fn finish(&mut self, tid: Tid) {
        if self.tid() == Some(tid) {
            self.go(Step::Finish, State::Clean);
        } else if is_planted(Bug::CleanedNext) {
            self.state = State::Clean;
        }
    }

    /// What transaction `tid` did to it is durable at its home.
    pub(crate) fn overwritten(&mut self) {
        self.go(Step::Overwrite, State::Clean);
    }

    /// It leaves memory, whatever it is.
    pub(crate) fn dropped(&self) {
        note(self.state.kind(), Step::Drop, Kind::Gone);
    }

    /// It is clean, and was not used since it was asked last.
    pub(crate) fn may_go(&mut self) -> bool {
        self.is_clean() && !std::mem::replace(&mut self.referenced, false)
    }

    /// It leaves memory, clean.
    pub(crate) fn evicted(&self) {
        note(self.state.kind(), Step::Evict, Kind::Gone);
    }

    /// Takes a step; what it was before.
    fn go(&mut self, step: Step, to: State) -> State {
        note(self.state.kind(), step, to.kind());
        std::mem::replace(&mut self.state, to)
    }
}

impl State {
    /// What the running transaction did. Panics when it did nothing: the page has joined before.
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
