//! The reasons why a layer cannot be made or mounted, or stops writing.

use stetfs_format::ftl::{FtlCorrupt, PageKind};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_media::nand::NandError;
use stetfs_media::{Errno, MediaError, Op};
use thiserror::Error;

/// A layer that cannot be made, mounted or read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FtlError {
    /// The spare area has no room for the layer's record.
    #[error("spare areas of {found} bytes: the flash translation layer needs {needed}")]
    SpareTooSmall {
        /// Bytes of the part's spare area.
        found: u32,
        /// Bytes needed.
        needed: u32,
    },
    /// The part has so many pages that the list of map pages does not fit into an anchor.
    #[error("{pages} pages of {page_bytes} bytes: too many for an anchor")]
    TooLarge {
        /// Pages of the part.
        pages: u32,
        /// Bytes of a page.
        page_bytes: u32,
    },
    /// The layer's own blocks leave nothing to export.
    #[error("{good} good erase blocks: the flash translation layer keeps {reserved} for itself")]
    TooSmall {
        /// Good blocks outside the anchors' region.
        good: u32,
        /// Blocks that are not exported.
        reserved: u32,
    },
    /// The over-provisioning is not from 1 to 90 percent.
    #[error("over-provisioning of {0} %: it must be from 1 to 90")]
    OverProvisioning(u32),
    /// No block of the anchors' region holds anything that a layer wrote.
    #[error("no flash translation layer on this part")]
    NotFormatted,
    /// There are anchors, but none is usable; the reason is that of the newest.
    #[error("no anchor can be used: {0}")]
    NoAnchor(FtlCorrupt),
    /// The anchor belongs to another part.
    #[error("the layer was made for {made} and is on {found} (page bytes, pages a block, blocks)")]
    OtherPart {
        /// The part's properties according to the anchor.
        made: String,
        /// The properties of this part.
        found: String,
    },
    /// An impossible number in an anchor, map, log or pool page.
    #[error("{record}: {what} {value} cannot be")]
    Impossible {
        /// The record.
        record: &'static str,
        /// The number.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A page of the map or its directory is unreadable, or is another page.
    #[error("page {page} does not hold {kind:?} page {index}")]
    MapPage {
        /// The page.
        page: PageNo,
        /// What kind of page it should be.
        kind: PageKind,
        /// Which page of that kind it should be.
        index: u32,
    },
    /// A page that fails a check of its own.
    #[error(transparent)]
    Corrupt(#[from] FtlCorrupt),
    /// The layer can no longer be written: no block for anchors is good any more, or no block is
    /// free.
    #[error("the part is worn out: too many erase blocks have gone bad")]
    WornOut,
    /// The part failed.
    #[error(transparent)]
    Nand(#[from] NandError),
}

/// The reasons that end all writing to a mounted layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Too few good blocks are left.
    WornOut,
    /// The layer is mounted read-only.
    ReadOnly,
    /// A request to the part failed: only a mount can find out what the part holds now.
    Nand(NandError),
}

impl From<Stop> for FtlError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::WornOut => Self::WornOut,
            Stop::Nand(e) => Self::Nand(e),
            Stop::ReadOnly => Self::Nand(NandError::File(stop.into_media(Op::Write, 0, 0))),
        }
    }
}

impl Stop {
    /// Converts to the error of a block device.
    pub(crate) fn into_media(self, op: Op, offset: u64, len: u64) -> MediaError {
        let io = |source| MediaError::Io {
            op,
            offset,
            len,
            source,
        };
        match self {
            Self::WornOut => io(Errno::NOSPC),
            Self::ReadOnly => MediaError::ReadOnly { op, offset, len },
            Self::Nand(NandError::PowerLost { .. }) => MediaError::PowerLost { op, offset, len },
            Self::Nand(NandError::File(e)) => e,
            Self::Nand(_) => io(Errno::IO),
        }
    }
}

/// Checks that a block number read from the part lies within it.
pub(crate) fn check_block(
    record: &'static str,
    block: BlockAddr,
    blocks: u32,
) -> Result<(), FtlError> {
    if block.0 < blocks {
        return Ok(());
    }
    Err(FtlError::Impossible {
        record,
        what: "block",
        value: block.0.into(),
    })
}

/// The error for a write or a list of remaps for which there is no room.
pub(crate) fn too_long(offset: u64, len: u64) -> MediaError {
    MediaError::Io {
        op: Op::Write,
        offset,
        len,
        source: Errno::TOOBIG,
    }
}
