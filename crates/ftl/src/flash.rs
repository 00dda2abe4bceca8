//! Pages of the part, with the layer's record in their spare area.

use std::sync::Arc;

use stetfs_format::ftl::{FtlSpare, SpareCodec};
use stetfs_format::num::{BlockAddr, PageNo};
use stetfs_media::nand::{Nand, NandError};
use stetfs_media::{Cause, Tag};

/// How often to repeat a read that failed.
const RETRIES: u32 = 2;

pub(crate) struct Flash {
    nand: Arc<dyn Nand>,
    codec: SpareCodec,
    /// A page with this many corrected bits is moved.
    move_bits: u32,
    spare: Vec<u8>,
}

/// The content of a page.
pub(crate) enum Found {
    /// The page as it was programmed.
    Page(FtlSpare),
    /// The page as it was programmed, but so weak that it should be moved.
    Weak(FtlSpare),
    /// Apparently nothing.
    Erased,
    /// Something other than what was programmed, or a page that this layer did not program.
    Damaged,
}

impl Found {
    pub(crate) fn record(&self) -> Option<FtlSpare> {
        match self {
            Self::Page(record) | Self::Weak(record) => Some(*record),
            Self::Erased | Self::Damaged => None,
        }
    }
}

impl Flash {
    pub(crate) fn new(nand: Arc<dyn Nand>, uuid: &[u8; 16]) -> Self {
        let geometry = nand.geometry();
        let strength = nand.ecc().strength_bits;
        Self {
            codec: SpareCodec::new(uuid, geometry.bad_mark),
            // Three quarters of the bits that the code corrects. A code that corrects one bit warns
            // only when that bit is used up.
            move_bits: if strength == 0 {
                u32::MAX
            } else {
                (strength - strength / 4).max(1)
            },
            spare: vec![0xff; geometry.spare_len()],
            nand,
        }
    }

    /// Reads a page once.
    pub(crate) fn look(
        &mut self,
        page: PageNo,
        data: &mut [u8],
        tag: Tag,
    ) -> Result<Found, NandError> {
        let corrected = match self.nand.read(page, data, &mut self.spare, tag) {
            Ok(corrected) => corrected,
            Err(NandError::Uncorrectable { .. }) => return Ok(Found::Damaged),
            Err(e) => return Err(e),
        };
        Ok(match self.codec.decode(page, data, &self.spare) {
            Ok(Some(record)) if corrected.bits >= self.move_bits => Found::Weak(record),
            Ok(Some(record)) => Found::Page(record),
            Ok(None) => Found::Erased,
            Err(_) => Found::Damaged,
        })
    }

    /// Reads a programmed page; repeats the read a few times if it fails.
    pub(crate) fn read(
        &mut self,
        page: PageNo,
        data: &mut [u8],
        tag: Tag,
    ) -> Result<Found, NandError> {
        for _ in 0..RETRIES {
            let found = self.look(page, data, tag)?;
            if found.record().is_some() {
                return Ok(found);
            }
        }
        self.look(page, data, tag)
    }

    pub(crate) fn program(
        &mut self,
        page: PageNo,
        record: &FtlSpare,
        data: &[u8],
        tag: Tag,
    ) -> Result<(), NandError> {
        self.codec.encode(record, page, data, &mut self.spare);
        self.nand.program(page, data, &self.spare, tag)
    }

    pub(crate) fn erase(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        self.nand.erase(block, cause)
    }

    pub(crate) fn is_bad(&self, block: BlockAddr) -> Result<bool, NandError> {
        self.nand.is_bad(block)
    }

    pub(crate) fn mark_bad(&self, block: BlockAddr, cause: Cause) -> Result<(), NandError> {
        self.nand.mark_bad(block, cause)
    }
}
