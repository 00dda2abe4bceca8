//! One cached block: its newest content, and what the transaction that changed it last did to it.

use stetfs_format::{BlockNo, Tid};
use stetfs_media::{Block, BlockRef, Class};

use crate::error::Result;
use stetfs_planted::{Bug, is_planted};
use stetfs_scheme::{Opened, Ranges, Spot};

/// A block in a cache. Clean when `tid` is `None`: then the content is what is committed, and it
/// may be dropped.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) content: BlockRef,
    pub(crate) class: Class,
    /// The transaction that changed it and has not finished committing.
    pub(crate) tid: Option<Tid>,
    /// What that transaction changed.
    pub(crate) ranges: Ranges,
    /// The content before that transaction, if the scheme wants it.
    pub(crate) base: Option<BlockRef>,
    /// That transaction made the block: what lies on its home means nothing.
    pub(crate) fresh: bool,
    /// That transaction must have all of the change or none of it
    /// ([`LoggedBlock::whole`](stetfs_scheme::LoggedBlock::whole)).
    pub(crate) whole: bool,
    /// Its home; a data block may have none yet.
    pub(crate) home: Option<BlockNo>,
    /// A data block that must get a place at commit (its home, if any, is an unwritten extent).
    pub(crate) unplaced: bool,
    /// That transaction switched the file's mapping to this home.
    pub(crate) relocated: bool,
    /// Where the scheme keeps it while that transaction changes it.
    pub(crate) spot: Option<Spot>,
    /// Used since the last look for something to evict.
    pub(crate) referenced: bool,
    /// The content is the block's. Otherwise the whole of it is about to be written, and nobody
    /// asks what it was.
    pub(crate) is_read: bool,
}

impl Page {
    pub(crate) fn clean(content: BlockRef, class: Class, home: Option<BlockNo>) -> Self {
        Self {
            content,
            class,
            tid: None,
            ranges: Ranges::new(),
            base: None,
            fresh: false,
            whole: false,
            home,
            unplaced: false,
            relocated: false,
            spot: None,
            referenced: true,
            is_read: true,
        }
    }

    /// A data block that is about to be written whole, with anything of the right length for its
    /// content.
    pub(crate) fn unread(any: BlockRef, home: BlockNo) -> Self {
        Self {
            is_read: false,
            ..Self::clean(any, Class::Data, Some(home))
        }
    }

    /// Makes the page part of transaction `tid`; true when it was not yet. `fresh`: its old content
    /// means nothing.
    pub(crate) fn join(&mut self, tid: Tid, served: &Opened, fresh: bool) -> bool {
        self.referenced = true;
        if self.tid == Some(tid) {
            return false;
        }
        // What is fresh, or what a commit under way has, is not what the scheme has of it.
        let is_kept = !fresh && self.tid.is_none();
        let home = self.home.filter(|_| is_kept);
        let cache = served.scheme.cache();
        self.spot = cache.and_then(|cache| cache.before_write(tid, home));
        self.base = (!fresh && served.terms.wants.base).then(|| self.content.clone());
        self.ranges = Ranges::new();
        self.fresh = fresh;
        self.whole = false;
        self.relocated = false;
        self.tid = Some(tid);
        true
    }

    /// Changes bytes; the page has joined before.
    pub(crate) fn change(&mut self, offset: usize, bytes: &[u8], served: &Opened) -> Result<()> {
        if self.is_read && !self.fresh && served.terms.wants.changed_bytes > 0 {
            self.ranges.add_changes(offset, &self.content, bytes);
        } else {
            self.ranges.add(offset, bytes.len());
        }
        if bytes.len() == self.content.len() && !self.content.is_unshared() {
            // Copying what is overwritten whole would be waste.
            self.content = Block::copy_of(bytes).into();
        } else {
            self.content.make_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        self.is_read = true;
        self.tell(offset, bytes.len(), served)
    }

    /// Gives it other content, all of it; the page has joined before.
    pub(crate) fn replace(&mut self, content: BlockRef, served: &Opened) -> Result<()> {
        self.ranges.add(0, content.len());
        self.content = content;
        self.tell(0, self.content.len(), served)
    }

    fn tell(&self, offset: usize, len: usize, served: &Opened) -> Result<()> {
        if let (Some(spot), Some(cache)) = (self.spot, served.scheme.cache()) {
            cache.after_write(spot, self.class, offset, len, &self.content)?;
        }
        Ok(())
    }

    /// Transaction `tid` is durable.
    pub(crate) fn committed(&mut self, tid: Tid) {
        if self.tid == Some(tid) || is_planted(Bug::CleanedNext) {
            self.tid = None;
            self.base = None;
        }
    }
}
