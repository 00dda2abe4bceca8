//! The span that a thread holds: one transaction for several operations (jbd2's nested handles).
//!
//! The span has the credits. An operation in it takes of them what it may need at worst, and gives
//! back what it did not use: so many operations that change the same few blocks need not much more
//! than one.

use std::cell::RefCell;
use std::sync::Arc;

use stetfs_format::Tid;

use crate::error::{JournalError, Result};
use crate::transaction::Transaction;

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// The span of a thread.
pub(crate) struct Open {
    pub(crate) txn: Arc<Transaction>,
    pub(crate) tid: Tid,
    /// Credits that no handle in it holds.
    pub(crate) left: u32,
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

/// From now on this thread holds this span, or none.
pub(crate) fn set(open: Option<Open>) {
    OPEN.set(open);
}

/// Whether this thread holds a span: it must not wait for a commit.
pub fn in_span() -> bool {
    OPEN.with_borrow(Option::is_some)
}

/// Takes credits of this thread's span, if it holds one: what a handle in it is a part of.
pub(crate) fn enter(credits: u32) -> Result<Option<(Arc<Transaction>, Tid)>> {
    OPEN.with_borrow_mut(|open| {
        let Some(open) = open else {
            return Ok(None);
        };
        open.take(credits)?;
        Ok(Some((Arc::clone(&open.txn), open.tid)))
    })
}

/// Takes more credits of this thread's span for a handle in it; whether it has them.
pub(crate) fn take(credits: u32) -> bool {
    OPEN.with_borrow_mut(|open| open.as_mut().is_some_and(|open| open.take(credits).is_ok()))
}

/// Gives back what a handle in this thread's span did not use.
pub(crate) fn leave(credits: u32, used: u32) {
    OPEN.with_borrow_mut(|open| {
        if let Some(open) = open {
            open.left = (open.left + credits).saturating_sub(used);
        }
    });
}
