//! Opening a scheme: what it is given, and what it gives.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use stetfs_format::BlockNo;
use stetfs_media::{BlockDev, Pmem};

use crate::about::{About, SchemeOptions};
use crate::error::Result;
use crate::scheme::Scheme;
use crate::terms::Terms;

/// A run of blocks of the journal area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogExtent {
    /// First block.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u32,
}

/// What a scheme is opened with.
pub struct OpenArgs {
    /// The home medium.
    pub dev: Arc<dyn BlockDev>,
    /// The persistent memory beside it, where there is one.
    pub nvm: Option<Arc<dyn Pmem>>,
    /// That memory may be overwritten, whatever is in it that no volume needs.
    pub nvm_new: bool,
    /// The file system's block size in bytes.
    pub block_size: usize,
    /// The volume's size in blocks.
    pub blocks: u64,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The volume has the 64bit feature.
    pub has_64bit: bool,
    /// The volume has the metadata_csum feature.
    pub has_metadata_csum: bool,
    /// The journal area in order of its logical blocks; empty without one.
    pub log: Vec<LogExtent>,
    /// Bytes that the scheme may use to hold committed blocks before it should write them home.
    pub memory: usize,
    /// The superblock has the mark of a private log: what is in the scheme's log counts.
    pub has_private_log: bool,
    /// Bytes of an inode.
    pub inode_size: usize,
    /// Recover and write; otherwise look only (a journal that needs recovery is then an error).
    pub writable: bool,
    /// The mount's wishes.
    pub options: SchemeOptions,
}

/// What opening found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// The volume had been left unclean.
    pub was_needed: bool,
    /// Committed transactions put in place.
    pub transactions: u32,
    /// Blocks written home.
    pub blocks: u64,
    /// Blocks not replayed because a later transaction revoked them.
    pub revoked: u64,
    /// The error that the journal had been stopped with (a negative errno), 0 for none.
    pub journal_errno: i32,
    /// First and last transaction replayed, when there was one.
    pub sequences: Option<(u32, u32)>,
}

/// What a scheme's own `open` gives.
pub type Parts = (Box<dyn Scheme>, Terms, RecoveryReport);

/// A scheme as the registry knows it.
pub struct Registration {
    /// What it says of itself.
    pub about: &'static About,
    /// The first of the verbs: formats or recovers, idempotently, and makes the scheme.
    pub make: fn(OpenArgs) -> Result<Parts>,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration")
            .field(&self.about.name)
            .finish()
    }
}

impl Registration {
    /// Opens the scheme for a volume: what a crash left is recovered when it returns.
    ///
    /// # Errors
    /// [`SchemeError`](crate::SchemeError): an option, the ground or the log does not suit it, the
    /// log is damaged, or a medium fails.
    pub fn open(&'static self, args: OpenArgs) -> Result<Opened> {
        let (dev, block_size, blocks) = (args.dev.clone(), args.block_size, args.blocks);
        let writable = args.writable;
        let (scheme, terms, report) = (self.make)(args)?;
        Ok(Opened {
            about: self.about,
            scheme,
            terms,
            report,
            dev,
            block_size,
            blocks,
            writable,
        })
    }
}

/// A scheme that serves a volume.
pub struct Opened {
    /// What it says of itself.
    pub about: &'static About,
    /// It.
    pub scheme: Box<dyn Scheme>,
    /// On these terms.
    pub terms: Terms,
    /// What opening found and did.
    pub report: RecoveryReport,
    /// The home medium.
    pub dev: Arc<dyn BlockDev>,
    /// The file system's block size in bytes.
    pub block_size: usize,
    /// The volume's size in blocks.
    pub blocks: u64,
    /// It may be written.
    pub writable: bool,
}
