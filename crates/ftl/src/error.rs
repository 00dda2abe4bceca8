//! Why a layer cannot be made or mounted, and what makes a mounted one stop writing.

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
        /// Bytes that the part has.
        found: u32,
        /// Bytes that are needed.
        needed: u32,
    },
    /// So many pages need a longer list of map pages than an anchor has room for.
    #[error("{pages} pages of {page_bytes} bytes: too many for an anchor")]
    TooLarge {
        /// Pages of the part.
        pages: u32,
        /// Bytes of a page.
        page_bytes: u32,
    },
    /// What the layer keeps for itself leaves nothing.
    #[error("{good} good erase blocks: the flash translation layer keeps {reserved} for itself")]
    TooSmall {
        /// Good blocks outside the anchors' region.
        good: u32,
        /// Blocks that are not exported.
        reserved: u32,
    },
    /// Not a percentage for which there can be a layer.
    #[error("over-provisioning of {0} %: it must be from 1 to 90")]
    OverProvisioning(u32),
    /// No block of the anchors' region holds anything that the layer wrote.
    #[error("no flash translation layer on this part")]
    NotFormatted,
    /// There are anchors, and none of them can be used; the reason is that of the newest.
    #[error("no anchor can be used: {0}")]
    NoAnchor(FtlCorrupt),
    /// The anchor is that of another part.
    #[error("the layer was made for {made} and is on {found} (page bytes, pages a block, blocks)")]
    OtherPart {
        /// Numbers of the part in the anchor.
        made: String,
        /// Numbers of the part.
        found: String,
    },
    /// A number in an anchor, map, log or pool page that cannot be.
    #[error("{record}: {what} {value} cannot be")]
    Impossible {
        /// The record.
        record: &'static str,
        /// The number.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A page of the map or its directory cannot be read, or is another one.
    #[error("page {page} does not hold {kind:?} page {index}")]
    MapPage {
        /// The page.
        page: PageNo,
        /// What it should be.
        kind: PageKind,
        /// Which one.
        index: u32,
    },
    /// A page that fails a check of its own.
    #[error(transparent)]
    Corrupt(#[from] FtlCorrupt),
    /// Every block in which an anchor can lie has gone bad, or there is no free block left: it
    /// cannot be written to.
    #[error("the part is worn out: too many erase blocks have gone bad")]
    WornOut,
    /// The part failed.
    #[error(transparent)]
    Nand(#[from] NandError),
}

/// What ends all writing to a mounted layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Too few good blocks are left.
    WornOut,
    /// It is mounted for reading only.
    ReadOnly,
    /// The part did not do as it was told: what it holds now only a mount can find out.
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
    /// As a block device says it.
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

/// A block number that was read, within the part.
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

/// The error for a write or a list of remaps that there is no room for.
pub(crate) fn too_long(offset: u64, len: u64) -> MediaError {
    MediaError::Io {
        op: Op::Write,
        offset,
        len,
        source: Errno::TOOBIG,
    }
}
