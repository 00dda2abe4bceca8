//! The newest committed version of a block with bytes in the log.

use stetfs_format::{InodeNo, Tid};
use stetfs_media::{BlockRef, Class};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::Ranges;

use crate::engine::log::Version;
use crate::parts::index::Indexed;

/// The place of a version's content.
#[derive(Clone)]
pub(super) enum Content {
    /// In memory.
    Here(BlockRef),
    /// In a log in memory: the chunk at this position has all of it.
    Logged(u64),
    /// Home has it.
    Home,
}

/// A block's newest version.
pub(super) struct RangesVersion {
    pub(super) class: Class,
    /// The file that it belongs to, for data.
    pub(super) ino: Option<InodeNo>,
    content: Content,
    /// The bytes that differ from home; empty: it is home.
    pending: Ranges,
    /// The first transaction whose bytes home does not have. A replay from there on makes home this
    /// version.
    oldest: Tid,
    /// The last transaction that has bytes of it.
    newest: Tid,
    /// The number of transactions that have changed it since it was home.
    pub(super) changes: u16,
    /// `Some` while a checkpoint writes it home: the bytes that were changed since then, and the
    /// first transaction that did so.
    going: Option<(Ranges, Tid)>,
}

impl Indexed for RangesVersion {
    fn is_held(&self) -> bool {
        !self.pending.is_empty()
    }

    fn is_here(&self) -> bool {
        matches!(self.content, Content::Here(_))
    }
}

impl RangesVersion {
    /// Makes a version of a block that is not in the log yet.
    pub(super) fn new(class: Class, ino: Option<InodeNo>, content: Content, tid: Tid) -> Self {
        Self {
            class,
            ino,
            content,
            pending: Ranges::new(),
            oldest: tid,
            newest: tid,
            changes: 0,
            going: None,
        }
    }

    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// Lets go of its content, so that another holder has it alone.
    pub(super) fn forget_content(&mut self) {
        self.content = Content::Home;
    }

    /// Returns the bytes that differ from home, which a record may carry forward so that the log
    /// needs nothing older of the block; `None` while it is on its way home.
    pub(super) fn portable(&self) -> Option<&Ranges> {
        self.going.is_none().then_some(&self.pending)
    }

    /// Notes that transaction `tid` gave it this content and logged the `changed` bytes. With
    /// `carried` it has logged all bytes that home does not have.
    pub(super) fn change(&mut self, tid: Tid, content: Content, changed: &Ranges, carried: bool) {
        self.content = content;
        self.note(tid, changed);
        if carried {
            self.oldest = tid;
        }
    }

    fn note(&mut self, tid: Tid, changed: &Ranges) {
        if self.pending.is_empty() {
            self.oldest = tid;
            self.changes = 0;
        }
        self.pending.add_all(changed);
        self.newest = tid;
        self.changes = self.changes.saturating_add(1);
        if let Some((since, first)) = &mut self.going {
            if since.is_empty() {
                *first = tid;
            }
            since.add_all(changed);
        }
    }
}

/// A version on its way home.
pub(super) struct DueRanges {
    pub(super) class: Class,
    pub(super) ino: Option<InodeNo>,
    pub(super) content: Content,
    /// The bytes that home does not have.
    pub(super) pending: Ranges,
    /// The number of transactions that have changed it since it was home.
    pub(super) changes: u16,
}

impl Version for RangesVersion {
    type Due = DueRanges;

    fn oldest(&self) -> Tid {
        self.oldest
    }

    fn newest(&self) -> Tid {
        self.newest
    }

    fn leave(&mut self) -> DueRanges {
        self.going = Some((Ranges::new(), self.newest));
        DueRanges {
            class: self.class,
            ino: self.ino,
            content: self.content.clone(),
            pending: self.pending.clone(),
            changes: self.changes,
        }
    }

    fn arrive(&mut self, _: &DueRanges) {
        // This is a newer version of a block that was freed meanwhile. It never left.
        let Some((since, first)) = self.going.take() else {
            return;
        };
        if is_planted(Bug::LostChange) {
            self.pending = Ranges::new();
        } else {
            self.pending = since;
            self.oldest = first;
        }
        self.changes = u16::from(self.is_held());
        if !self.is_held() {
            self.content = Content::Home;
        }
    }

    fn stay(&mut self) {
        self.going = None;
    }
}
