//! The newest committed version of a block that the log has whole.

use stetfs_format::Tid;
use stetfs_media::{BlockRef, Cause, Class};
use stetfs_scheme::{LoggedBlock, Result};

use crate::engine::log::{Due, Log, Version};
use crate::parts::home::{Write, write_home};
use crate::parts::index::Indexed;

/// A version of which the log has all, at a `place` that the scheme knows.
pub(crate) struct WholeVersion<P> {
    class: Class,
    /// The transaction that logged it.
    sequence: Tid,
    pub(crate) place: P,
    /// `None` once it is home.
    content: Option<BlockRef>,
}

impl<P> WholeVersion<P> {
    pub(crate) fn new(block: &LoggedBlock, sequence: Tid, place: P) -> Self {
        Self {
            class: block.class,
            sequence,
            place,
            content: Some(block.content.clone()),
        }
    }

    /// Returns its content. Only for a held version.
    pub(crate) fn content(&self) -> &BlockRef {
        self.content.as_ref().expect("it is held")
    }
}

impl<P> Indexed for WholeVersion<P> {
    fn is_held(&self) -> bool {
        self.content.is_some()
    }
}

/// A version on its way home.
pub(crate) struct DueWhole<P> {
    class: Class,
    sequence: Tid,
    pub(crate) place: P,
    content: BlockRef,
}

impl<P: Clone + Send + Sync> Version for WholeVersion<P> {
    type Due = DueWhole<P>;

    fn oldest(&self) -> Tid {
        self.sequence
    }

    fn newest(&self) -> Tid {
        self.sequence
    }

    fn leave(&mut self) -> DueWhole<P> {
        DueWhole {
            class: self.class,
            sequence: self.sequence,
            place: self.place.clone(),
            content: self.content().clone(),
        }
    }

    fn arrive(&mut self, due: &DueWhole<P>) {
        if self.sequence == due.sequence {
            self.content = None;
        }
    }
}

impl<P: Clone + Send + Sync> Log<WholeVersion<P>> {
    /// Writes versions home; durable when it returns.
    pub(crate) fn land<'d>(&self, due: impl Iterator<Item = &'d Due<DueWhole<P>>>) -> Result<()>
    where
        P: 'd,
    {
        let writes = due.map(|due| Write {
            home: due.home,
            class: due.version.class,
            content: &due.version.content,
        });
        let dev = &*self.dev;
        write_home(dev, self.block_size, Cause::Checkpoint, writes.collect())?;
        Ok(dev.flush(Cause::Checkpoint)?)
    }
}
