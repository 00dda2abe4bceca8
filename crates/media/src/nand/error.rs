//! Errors of NAND parts.

use std::path::PathBuf;

use stetfs_format::nand::NandCorrupt;
use stetfs_format::num::{BlockAddr, PageNo};
use thiserror::Error;

use crate::error::{MediaError, Op};

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NandError {
    /// More wrong bits than the code corrects.
    #[error("page {page} cannot be read: more wrong bits than can be corrected")]
    Uncorrectable {
        /// The page.
        page: PageNo,
    },
    /// The part reported that it could not program the page. The block has to be retired.
    #[error("page {page} cannot be programmed: its block has gone bad")]
    ProgramFailed {
        /// The page.
        page: PageNo,
    },
    /// The part reported that it could not erase the block. The block has to be retired.
    #[error("erase block {block} cannot be erased: it has gone bad")]
    EraseFailed {
        /// The block.
        block: BlockAddr,
    },
    /// The simulated power is off.
    #[error("{op} on a NAND part: the power is off")]
    PowerLost {
        /// The request.
        op: Op,
    },
    /// The part's file contradicts itself.
    #[error(transparent)]
    Corrupt(#[from] NandCorrupt),
    /// The host went down while the part's file was open without synchronous writes: pages and
    /// their states may not fit together.
    #[error("{}: was in use when the system went down; some of its pages may be \
        wrong", path.display())]
    HostCrashed {
        /// The file.
        path: PathBuf,
    },
    /// A real part that lacks something that is needed.
    #[error("{}: cannot be used as a NAND part: {why}", path.display())]
    NotUsable {
        /// Its device node.
        path: PathBuf,
        /// The missing property.
        why: String,
    },
    /// The part's file or device cannot be opened, read or written.
    #[error(transparent)]
    File(#[from] MediaError),
}
