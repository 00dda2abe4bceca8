//! Several operations as one transaction (jbd2's nested handles).
//!
//! A span is one handle for all of them, and has the credits. Each operation asks for what it may
//! need at worst; what it does not use, the next ones have. So many operations that change the same
//! few blocks need not much more than one.
//!
//! Whoever holds a span hands it to the operations that are to be in it. What is not given the span
//! is not in it, and waits forever when it commits, or starts a handle while a commit waits.

use std::sync::Arc;

use stetfs_format::Tid;

use crate::error::Result;
use crate::handle::Handle;
use crate::journal::Journal;

/// Makes several operations one transaction, which has all of them or none. From [`Journal::span`].
pub struct Span(Handle);

impl Journal {
    /// Begins one transaction of several operations, which change at most `credits` blocks, with
    /// what the last one may ask for at worst. What fails in it has failed half done: the caller
    /// [aborts](Self::abort) the journal.
    ///
    /// The caller keeps everybody out who holds a lock that the operations need while he waits to
    /// join a transaction. Until the span is dropped, the thread commits nothing and starts no
    /// handle.
    pub fn span(self: &Arc<Self>, credits: u32) -> Result<Span> {
        let mut handle = self.start(credits)?;
        handle.become_span();
        Ok(Span(handle))
    }
}

impl Span {
    /// The handle of the next operation, which changes at most `credits` blocks.
    ///
    /// # Errors
    /// [`TooLarge`](crate::JournalError::TooLarge) when the span has fewer left.
    pub fn operation(&self, credits: u32) -> Result<&Handle> {
        self.0.begin_operation(credits)?;
        Ok(&self.0)
    }

    /// The transaction.
    pub fn tid(&self) -> Tid {
        self.0.tid()
    }
}
