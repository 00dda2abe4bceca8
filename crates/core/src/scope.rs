//! What an operation changes: the volume, in transactions of its own, or in the span that it is a
//! part of.
//!
//! A function that starts handles takes a [`Scope`], and hands it on to those that it calls. One
//! that takes a [`Volume`] reads only, or changes what it changes through the handle that it is
//! given. So nothing that a group repeats ([`Group`](crate::Group)) can leave its span unseen.

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
    /// For an operation with transactions of its own.
    pub(crate) fn of(vol: &'v Volume) -> Self {
        Self { vol, span: None }
    }

    /// For an operation that is a part of `span`: it commits nothing.
    pub(crate) fn within(self, span: &'v Span) -> Self {
        let span = Some(span);
        Self { span, ..self }
    }

    /// Does `work` in a handle for up to `credits` metadata blocks, on a volume that may be
    /// changed: what it changes becomes durable together. When it meets an error that it
    /// [cannot get over](Error::breaks) and has changed something, the journal stops; in a span
    /// its holder sees to that.
    pub(crate) fn with_handle<T>(
        &self,
        credits: u32,
        work: impl FnOnce(&Handle) -> Result<T>,
    ) -> Result<T> {
        self.check_writable()?;
        self.alloc.discard_freed();
        self.with_any_handle(credits, work)
    }

    /// The same on any volume.
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

    /// How often the operation may have a commit free blocks.
    pub(crate) fn retries(&self) -> Retries {
        match self.span {
            None => Retries::SOME,
            Some(_) => Retries::NONE,
        }
    }

    /// Makes `attempt`, which leaves nothing behind when there is no space, until it finds space or
    /// a commit can free no more. No handle is open.
    pub(crate) fn with_space<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut retries = self.retries();
        loop {
            match attempt() {
                Err(Error::NoSpace) if self.alloc.retry_after_commit(&mut retries)? => {}
                result => return result,
            }
        }
    }

    /// [Places](sync::place) the inode's data, for which the holder of a span has seen to before he
    /// began it.
    pub(crate) fn place(&self, inode: &Inode) -> Result<()> {
        match self.span {
            None => sync::place(self, inode),
            Some(_) => Ok(()),
        }
    }
}
