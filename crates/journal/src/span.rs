//! Several operations that are one: every handle that a thread starts while it holds a [`Span`] is
//! a part of the span's transaction, which takes all of them or none (jbd2's nested handles).
//!
//! The span has the credits. An operation in it takes of them what it may need at worst, and gives
//! back what it did not use: so many operations that change the same few blocks need not much more
//! than one.

use std::cell::RefCell;
use std::sync::Arc;

use stetfs_format::Tid;

use crate::error::{JournalError, Result};
use crate::handle::{Handle, Owner};
use crate::journal::Journal;
use crate::transaction::Transaction;

thread_local! {
    /// The span that this thread holds.
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

struct Open {
    journal: Arc<Journal>,
    txn: Arc<Transaction>,
    tid: Tid,
    /// Credits that no handle in it holds.
    left: u32,
}

/// Holds one transaction open; from [`Journal::span`]. Dropping it lets the transaction commit.
pub struct Span(Handle);

impl Journal {
    /// Makes one transaction of all that this thread does from now on until the span is dropped,
    /// and that changes at most `credits` blocks, beside what its last operation may need at worst.
    /// What fails in it has failed half done: the caller [aborts](Self::abort) the journal.
    ///
    /// The caller keeps everybody out who holds a lock that the operations need while waiting for
    /// a transaction of his own. In a span nothing can be committed, and no other span begun.
    pub fn span(self: &Arc<Self>, credits: u32) -> Result<Span> {
        let handle = self.start(credits)?;
        // Whatever goes wrong from here on leaves something half done.
        handle.note_change();
        let (txn, tid) = handle.part_of();
        let open = Open {
            journal: Arc::clone(self),
            txn,
            tid,
            left: credits,
        };
        OPEN.set(Some(open));
        Ok(Span(handle))
    }

    /// A handle in this thread's span, if it holds one.
    pub(crate) fn start_in_span(&self, credits: u32) -> Result<Option<Handle>> {
        OPEN.with_borrow_mut(|open| {
            let Some(open) = open else {
                return Ok(None);
            };
            open.take(credits)?;
            let (journal, txn) = (Arc::clone(&open.journal), Arc::clone(&open.txn));
            Ok(Some(Handle::new(
                journal,
                txn,
                open.tid,
                credits,
                Owner::Span,
            )))
        })
    }
}

impl Open {
    fn take(&mut self, credits: u32) -> Result<()> {
        let (wanted, limit) = (credits, self.left);
        self.left = limit
            .checked_sub(credits)
            .ok_or(JournalError::TooLarge { wanted, limit })?;
        Ok(())
    }
}

impl Span {
    /// The transaction.
    pub fn tid(&self) -> Tid {
        self.0.tid()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        OPEN.set(None);
    }
}

/// Whether this thread holds a span: it must not wait for a commit.
pub fn in_span() -> bool {
    OPEN.with_borrow(Option::is_some)
}

/// Takes more credits of this thread's span for a handle in it; whether it has them.
pub(crate) fn take(credits: u32) -> bool {
    OPEN.with_borrow_mut(|open| open.as_mut().is_some_and(|open| open.take(credits).is_ok()))
}

/// Gives back what a handle in this thread's span did not use.
pub(crate) fn give_back(credits: u32, used: u32) {
    OPEN.with_borrow_mut(|open| {
        if let Some(open) = open {
            open.left = (open.left + credits).saturating_sub(used);
        }
    });
}
