//! The newest committed version of a block of which the log has some bytes, or all.

use stetfs_format::{InodeNo, Tid};
use stetfs_media::{BlockRef, Class};
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::Ranges;

use crate::engine::log::Version;
use crate::parts::index::Indexed;

/// Where a version's content is.
#[derive(Clone)]
pub(super) enum Content {
    /// In memory.
    Here(BlockRef),
    /// In the log, which is in memory: all of it in the chunk at this position.
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
    /// Where it differs from home. No bytes: it is home.
    pending: Ranges,
    /// The first transaction whose bytes home has not got: replayed from there on, home becomes
    /// this version.
    oldest: Tid,
    /// The last one that has bytes of it.
    newest: Tid,
    /// Transactions that changed it since it was home.
    pub(super) changes: u16,
    /// A checkpoint is writing it home: what was changed since, and by which transaction first.
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
    /// A block of which the log has nothing yet.
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

    /// Whoever has its content is the only one from now on.
    pub(super) fn forget_content(&mut self) {
        self.content = Content::Home;
    }

    /// Where it differs from home, if a record may carry all of that, so that the log needs nothing
    /// older of it: not while it is on its way.
    pub(super) fn portable(&self) -> Option<&Ranges> {
        self.going.is_none().then_some(&self.pending)
    }

    /// Transaction `tid` gave it this content, which differs in these bytes, and which it has
    /// logged. With `carried` it has logged all that home has not got.
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
    /// What home has not got.
    pub(super) pending: Ranges,
    /// Transactions that changed it since it was home.
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
        // A block that was freed meanwhile and has content again never left.
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
