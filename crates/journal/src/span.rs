//! Several operations as one transaction (jbd2's nested handles).
//!
//! A span is one handle for all of them, and holds their credits. Each operation asks for the most
//! that it may need and leaves the rest to the next ones. So several operations that change the
//! same few blocks need little more than one.
//!
//! The holder of a span passes it to each operation that is to be part of it. Another operation of
//! the same thread would wait forever if it commits, or if it starts a handle while a commit waits.

use std::sync::Arc;

use stetfs_format::Tid;

use crate::error::Result;
use crate::handle::Handle;
use crate::journal::Journal;

/// Several operations as one transaction, which has all of them or none. Made by [`Journal::span`].
pub struct Span(Handle);

impl Journal {
    /// Begins a span of operations that change at most `credits` blocks, counting all that the last
    /// operation may ask for. After an operation of it has failed, the caller
    /// [aborts](Self::abort) the journal, because the transaction is half done.
    ///
    /// The caller makes sure that no thread waits to join a transaction while it holds a lock that
    /// the operations need. Until the span is dropped, the caller's thread commits nothing and
    /// starts no handle.
    pub fn span(self: &Arc<Self>, credits: u32) -> Result<Span> {
        let mut handle = self.start(credits)?;
        handle.become_span();
        Ok(Span(handle))
    }
}

impl Span {
    /// Returns the handle for the next operation, which changes at most `credits` blocks.
    ///
    /// # Errors
    /// [`TooLarge`](crate::JournalError::TooLarge) when the span has fewer left.
    pub fn operation(&self, credits: u32) -> Result<&Handle> {
        self.0.begin_operation(credits)?;
        Ok(&self.0)
    }

    /// Returns the transaction's number.
    pub fn tid(&self) -> Tid {
        self.0.tid()
    }
}
