//! What the device and its thread share, and where a block's newest content is.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use stetfs::Alone;
use stetfs::clock::Clock;
use stetfs_format::{BlockNo, BlockSize, Tid};
use stetfs_media::{Block, BlockDev, BlockRef, Cause, Class, Errno, MediaError, Op, Tag};
use stetfs_scheme::{Goal, Held, SchemeError};
use stetfs_sync::RwLock;

use crate::error::BelowError;
use crate::state::State;
use crate::stats::{Counters, count};

/// Reads of blocks for nobody in particular.
const READ: Tag = Tag::read(Class::Data);

/// The device without its thread.
pub(crate) struct Core {
    pub(crate) alone: Alone,
    pub(crate) size: BlockSize,
    /// The block that has the superblock.
    pub(crate) superblock: u64,
    pub(crate) state: Mutex<State>,
    /// Held while transactions are made and committed, and while the medium is flushed: the number
    /// of the next one.
    pub(crate) commit: stetfs_sync::Mutex<Tid>,
    /// Held while a part of a block is changed that only transactions change.
    pub(crate) changing: stetfs_sync::Mutex<()>,
    /// Held while committed blocks are brought home: one at a time may do that.
    pub(crate) checkpointing: stetfs_sync::Mutex<()>,
    /// Held for reading while a home is written. A flush begins when nobody holds it: then it knows
    /// which writes it covers.
    pub(crate) writing: RwLock<()>,
    /// Homes were written since the last flush of the medium.
    pub(crate) is_written: AtomicBool,
    /// What the kernel says of its journal: `needs_recovery`.
    pub(crate) needs_recovery: AtomicBool,
    /// Groups of the volume, as the kernel wrote it last.
    pub(crate) groups: AtomicU32,
    pub(crate) broken: Mutex<Option<BelowError>>,
    pub(crate) counters: Counters,
    /// Where transactions get their times.
    pub(crate) clock: Clock,
}

impl Core {
    /// The medium.
    pub(crate) fn dev(&self) -> &dyn BlockDev {
        &*self.alone.opened.dev
    }

    /// Nothing may be written after an error.
    ///
    /// # Errors
    /// The first one.
    pub(crate) fn check(&self) -> Result<(), BelowError> {
        self.broken.lock().clone().map_or(Ok(()), Err)
    }

    /// The error of a request. All but those of reads stop the device.
    pub(crate) fn fail(&self, op: Op, error: BelowError) -> MediaError {
        let is_harmless =
            op == Op::Read || matches!(error, BelowError::Media(MediaError::Unsupported { .. }));
        let mut broken = self.broken.lock();
        if !is_harmless && broken.is_none() {
            tracing::error!("the device has stopped: {error}");
            *broken = Some(error.clone());
        }
        match error {
            BelowError::Media(error) => error,
            _ => MediaError::Io {
                op,
                offset: 0,
                len: 0,
                source: Errno::IO,
            },
        }
    }

    /// The newest content of a block.
    ///
    /// # Errors
    /// The scheme's or the medium's.
    pub(crate) fn content(&self, block: u64) -> Result<BlockRef, BelowError> {
        let newest = self.state.lock().content(block);
        newest.map_or_else(|| self.stored(block), Ok)
    }

    /// The newest committed content of a block.
    ///
    /// # Errors
    /// The scheme's or the medium's.
    pub(crate) fn committed(&self, block: u64) -> Result<BlockRef, BelowError> {
        let newest = self.state.lock().newest.get(&block).cloned();
        newest.map_or_else(|| self.stored(block), Ok)
    }

    /// What the scheme or the medium has of a block.
    fn stored(&self, block: u64) -> Result<BlockRef, BelowError> {
        let home = BlockNo(block);
        match self.alone.opened.scheme.read(home)? {
            Held::Here(content) => Ok(content),
            Held::Home => {
                let mut content = Block::zeroed(self.size.bytes());
                self.dev()
                    .read_at(self.size.start_of(home), content.bytes_mut(), READ)?;
                Ok(content.into())
            }
        }
    }

    /// Makes the homes durable that were written before this call. The caller holds `commit`.
    ///
    /// # Errors
    /// The medium's.
    pub(crate) fn flush_homes(&self) -> Result<(), BelowError> {
        let writers = self.writing.write();
        if !self.is_written.swap(false, Ordering::Relaxed) {
            count(&self.counters.flushes_saved, 1);
            return Ok(());
        }
        {
            let mut state = self.state.lock();
            state.flushing = std::mem::take(&mut state.unstable);
        }
        drop(writers);
        self.dev().flush(Cause::Home)?;
        self.state.lock().flushing.clear();
        Ok(())
    }

    /// Brings committed blocks home.
    ///
    /// # Errors
    /// The scheme's.
    pub(crate) fn bring_home(&self, goal: Goal) -> Result<(), SchemeError> {
        let _checkpointing = self.checkpointing.lock();
        self.alone.opened.scheme.checkpoint(goal)
    }

    /// Brings home what is due; returns whether there may be more another time.
    pub(crate) fn checkpoint(&self) -> bool {
        let scheme = &self.alone.opened.scheme;
        while scheme.backlog().is_due && self.broken.lock().is_none() {
            if let Err(error) = self.bring_home(Goal::Background) {
                self.fail(Op::Write, error.into());
                return false;
            }
        }
        self.broken.lock().is_none()
    }
}
