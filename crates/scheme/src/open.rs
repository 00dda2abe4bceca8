//! Opening a scheme: the arguments and the result.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use stetfs_format::{BlockNo, BlockSize};
use stetfs_media::{BlockDev, Pmem};

use crate::about::{About, InMemory, SchemeOptions};
use crate::error::{Result, SchemeError};
use crate::recovery_case::RecoveryCase;
use crate::scheme::Scheme;
use crate::terms::Terms;
use crate::trial::Trial;

/// A run of blocks of the journal area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogExtent {
    /// First block.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u32,
}

/// The arguments of opening a scheme.
pub struct OpenArgs {
    /// The home medium.
    pub dev: Arc<dyn BlockDev>,
    /// The persistent memory beside it, if there is any.
    pub nvm: Option<Arc<dyn Pmem>>,
    /// The scheme may overwrite that memory, unless a volume needs its content.
    pub nvm_new: bool,
    /// The file system's block size.
    pub block_size: BlockSize,
    /// The volume's size in blocks.
    pub blocks: u64,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The volume has the 64bit feature.
    pub has_64bit: bool,
    /// The volume has the metadata_csum feature.
    pub has_metadata_csum: bool,
    /// The journal area in the order of its logical blocks; empty when there is none. Block 0 is
    /// JBD2's superblock, and every scheme but JBD2's own leaves it as it is.
    pub log: Vec<LogExtent>,
    /// Bytes of memory for held blocks. Beyond that the scheme should write them home.
    pub memory: usize,
    /// The superblock has the mark of a private log
    /// ([`Mark::PrivateLog`](crate::Mark::PrivateLog)), so the content of the scheme's log counts.
    /// Without the mark nothing in the journal area counts.
    pub has_private_log: bool,
    /// Bytes of an inode.
    pub inode_size: usize,
    /// True: recover and write. False: only read; a journal that needs recovery is then an error.
    pub writable: bool,
    /// The mount's options for the scheme.
    pub options: SchemeOptions,
}

/// The findings and actions of opening a scheme.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveryReport {
    /// The volume was left unclean.
    pub was_needed: bool,
    /// Committed transactions that were recovered.
    pub transactions: u32,
    /// Blocks written home.
    pub blocks: u64,
    /// Blocks not replayed because a later transaction revoked them.
    pub revoked: u64,
    /// The error that stopped the journal (a negative errno); 0: none.
    pub journal_errno: i32,
    /// First and last transaction replayed, if any.
    pub sequences: Option<(u32, u32)>,
    /// Cases of the scheme's [recovery table](About::recovery) that the opening reached, in order,
    /// each once.
    #[serde(rename = "met")]
    pub reached: Vec<&'static RecoveryCase>,
}

/// The result of a scheme's own `open`.
pub type Parts = (Box<dyn Scheme>, Terms, RecoveryReport);

/// A scheme's row in the registry: its description, how to open it, and its trials.
pub struct Registration {
    /// Its description.
    pub about: &'static About,
    /// The first verb: formats or recovers, idempotently, and makes the scheme.
    pub make: fn(OpenArgs) -> Result<Parts>,
    /// The ways in which tests run it: each mode and each variant. The first is the default.
    pub trials: &'static [Trial],
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registration")
            .field(&self.about.name)
            .finish()
    }
}

impl Registration {
    /// Opens the scheme for a volume, and recovers the volume after a crash.
    ///
    /// # Errors
    /// [`SchemeError`](crate::SchemeError): an option, the ground or the log does not suit the
    /// scheme, the log is damaged, or a medium fails.
    pub fn open(&'static self, args: OpenArgs) -> Result<Opened> {
        let (dev, block_size, blocks) = (args.dev.clone(), args.block_size, args.blocks);
        let writable = args.writable;
        // Such a scheme relies on whole sectors, and a power cut tears sectors in memory.
        if self.about.in_memory == InMemory::Never && writable && dev.pmem().is_some() {
            return Err(SchemeError::Unusable(format!(
                "scheme {} needs a device that keeps sectors whole, not {}",
                self.about.name,
                dev.describe()
            )));
        }
        RecoveryCase::begin();
        let (scheme, terms, mut report) = (self.make)(args)?;
        report.reached = RecoveryCase::last_reached();
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
    /// Its description.
    pub about: &'static About,
    /// The scheme.
    pub scheme: Box<dyn Scheme>,
    /// Its terms.
    pub terms: Terms,
    /// The findings and actions of opening it.
    pub report: RecoveryReport,
    /// The home medium.
    pub dev: Arc<dyn BlockDev>,
    /// The file system's block size.
    pub block_size: BlockSize,
    /// The volume's size in blocks.
    pub blocks: u64,
    /// The volume may be written.
    pub writable: bool,
}
