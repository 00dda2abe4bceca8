//! The live part of the log: which transactions are in it, and the newest committed version of each
//! block that is not home yet.
//!
//! A block stays in the index until the log's tail has passed its newest copy, even when its
//! content is home: until then a replay would write that copy, so freeing the block needs a revoke
//! record.

use std::collections::VecDeque;

use stetfs_format::{BlockNo, Tid};
use stetfs_media::{BlockRef, Class};

use crate::parts::index::{Index, Indexed};
use stetfs_planted::{Bug, is_planted};
use stetfs_sync::Mutex;

/// A committed transaction in the log.
pub(super) struct Logged {
    pub(super) sequence: Tid,
    /// Its first log block.
    pub(super) start: u32,
    /// Its log blocks, records included.
    pub(super) len: u32,
    /// The blocks that it logged.
    pub(super) homes: Vec<BlockNo>,
}

/// The newest committed version of a block.
struct LiveVersion {
    sequence: Tid,
    class: Class,
    /// `None` once it is home.
    content: Option<BlockRef>,
    /// The log block that holds it as it is.
    at: Option<u32>,
}

impl Indexed for LiveVersion {
    fn is_held(&self) -> bool {
        self.content.is_some()
    }
}

/// A block of a transaction that is durable in the log.
pub(super) struct Committed {
    pub(super) home: BlockNo,
    pub(super) class: Class,
    pub(super) content: BlockRef,
    /// The log block that holds it as it is; none when it had to be changed to be logged.
    pub(super) at: Option<u32>,
}

/// Where the log begins and ends.
pub(super) struct Span {
    /// Where the next transaction goes.
    pub(super) head: u32,
    /// Log blocks that may be written.
    pub(super) free: u32,
    /// The next transaction's sequence number.
    pub(super) sequence: Tid,
    /// The journal superblock says that the log is empty (`s_start` = 0).
    pub(super) marked_empty: bool,
    pub(super) transactions: VecDeque<Logged>,
}

pub(super) struct Live {
    pub(super) span: Mutex<Span>,
    index: Index<LiveVersion>,
}

/// A block that a checkpoint writes home.
pub(super) struct DueLogged {
    pub(super) home: BlockNo,
    pub(super) class: Class,
    pub(super) content: BlockRef,
    /// The log block that holds it as it is.
    pub(super) at: Option<u32>,
    sequence: Tid,
}

impl Live {
    pub(super) fn new(span: Span) -> Self {
        Self {
            span: Mutex::new(span),
            index: Index::default(),
        }
    }

    pub(super) fn held(&self) -> usize {
        self.index.held()
    }

    pub(super) fn content(&self, block: BlockNo) -> Option<BlockRef> {
        self.index.find(block, |version| version.content.clone())
    }

    pub(super) fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.index.holds_any(start, count)
    }

    /// Tells of which blocks there is a copy in the live log, as long as somebody asks: freeing
    /// them needs a revoke record, and a replay would write over them.
    pub(super) fn logged(&self) -> impl Fn(BlockNo) -> bool + '_ {
        let index = self.index.read();
        move |block| index.contains_key(&block)
    }

    /// Transaction `logged` is durable: its versions are the newest, what it revoked is gone, and
    /// the next one goes to `head`.
    pub(super) fn add(
        &self,
        logged: Logged,
        head: u32,
        versions: impl Iterator<Item = Committed>,
        revoked: &[BlockNo],
    ) {
        let mut index = self.index.write();
        for block in versions {
            let version = LiveVersion {
                sequence: logged.sequence,
                class: block.class,
                content: Some(block.content),
                at: block.at,
            };
            index.insert(block.home, version);
        }
        for block in revoked {
            index.remove(block);
        }
        drop(index);
        // All at once: to a checkpoint, a log whose end lies behind a transaction that is not
        // listed has no need of it.
        let mut span = self.span.lock();
        span.head = head;
        span.free -= logged.len;
        span.sequence = logged.sequence.next();
        if is_planted(Bug::LateListing) {
            drop(span);
            span = self.span.lock();
        }
        span.transactions.push_back(logged);
    }

    /// What must be written home so that the first `n` transactions can leave the log: the newest
    /// version of each of their blocks, unless a later transaction logged it again.
    pub(super) fn due(&self, n: usize) -> Vec<DueLogged> {
        let span = self.span.lock();
        let index = self.index.read();
        let mut due = Vec::new();
        for logged in span.transactions.iter().take(n) {
            for &home in &logged.homes {
                if let Some(LiveVersion {
                    sequence,
                    class,
                    content: Some(content),
                    at,
                }) = index.get(&home)
                    && *sequence == logged.sequence
                {
                    due.push(DueLogged {
                        home,
                        class: *class,
                        content: content.clone(),
                        at: *at,
                        sequence: *sequence,
                    });
                }
            }
        }
        due
    }

    /// These versions are durable at home.
    pub(super) fn are_home(&self, due: &[DueLogged]) {
        let mut index = self.index.write();
        for block in due {
            index.change(&block.home, |version| {
                if version.sequence == block.sequence {
                    version.content = None;
                }
            });
        }
    }

    /// The first `n` transactions are no longer replayed by anybody: forget them and free their
    /// blocks.
    pub(super) fn drop_oldest(&self, n: usize) {
        let mut span = self.span.lock();
        let mut index = self.index.write();
        for logged in span.transactions.drain(..n).collect::<Vec<_>>() {
            span.free += logged.len;
            for home in logged.homes {
                if index
                    .get(&home)
                    .is_some_and(|v| v.sequence == logged.sequence)
                {
                    index.remove(&home);
                }
            }
        }
    }
}
