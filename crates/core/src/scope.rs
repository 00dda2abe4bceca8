//! The volume as an operation sees it: with transactions of its own, or within a span.
//!
//! A function that starts handles takes a [`Scope`], and passes it on to functions that do. A
//! function that takes a [`Volume`] only reads, or changes things through the handle that it is
//! given. So a step that a [`Group`](crate::Group) repeats cannot leave the group's span unnoticed.

use std::ops::Deref;

use stetfs_journal::{Handle, Span};

use crate::alloc::Retries;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::sync;
use crate::volume::Volume;

/// The volume, for an operation that starts handles on it.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'v> {
    vol: &'v Volume,
    span: Option<&'v Span>,
}

impl Deref for Scope<'_> {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        self.vol
    }
}

impl<'v> Scope<'v> {
    /// Makes the scope of an operation with transactions of its own.
    pub(crate) fn of(vol: &'v Volume) -> Self {
        Self { vol, span: None }
    }

    /// Makes the scope of an operation within `span`, which commits nothing.
    pub(crate) fn within(self, span: &'v Span) -> Self {
        let span = Some(span);
        Self { span, ..self }
    }

    /// Runs `work` in a handle for up to `credits` metadata blocks, on a volume that may be
    /// changed. All its changes become durable together. When `work` has changed something and
    /// fails with an error that it [cannot get over](Error::breaks), the journal stops. In a span,
    /// the holder of the span sees to that.
    pub(crate) fn with_handle<T>(
        &self,
        credits: u32,
        work: impl FnOnce(&Handle) -> Result<T>,
    ) -> Result<T> {
        self.check_writable()?;
        self.alloc.discard_freed();
        self.with_any_handle(credits, work)
    }

    /// Does [`with_handle`](Self::with_handle) on a volume that need not be writable.
    pub(crate) fn with_any_handle<T>(
        &self,
        credits: u32,
        work: impl FnOnce(&Handle) -> Result<T>,
    ) -> Result<T> {
        if let Some(span) = self.span {
            return work(span.operation(credits)?);
        }
        let h = self.journal.start(credits)?;
        let result = work(&h);
        if let Some(why) = result.as_ref().err().and_then(Error::breaks) {
            h.end(why);
        }
        result
    }

    /// How many commits the operation may start to free blocks.
    pub(crate) fn retries(&self) -> Retries {
        match self.span {
            None => Retries::SOME,
            Some(_) => Retries::NONE,
        }
    }

    /// Repeats `attempt` until it finds space, or until a commit can free no more. A failed attempt
    /// leaves nothing behind. No handle is open.
    pub(crate) fn with_space<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut retries = self.retries();
        loop {
            match attempt() {
                Err(Error::NoSpace) if self.alloc.retry_after_commit(&mut retries)? => {}
                result => return result,
            }
        }
    }

    /// [Places](sync::place) the inode's data. In a span there is nothing to do: its holder has
    /// placed the data before the span began.
    pub(crate) fn place(&self, inode: &Inode) -> Result<()> {
        match self.span {
            None => sync::place(self, inode),
            Some(_) => Ok(()),
        }
    }
}
