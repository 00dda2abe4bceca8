//! Kinds of media, and their units.

use std::str::FromStr;

use anyhow::Context;
use stetfs_media::Image;

/// A kind of medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block device with sectors of 512 bytes and a volatile cache.
    Block,
    /// Persistent memory behind a processor's cache.
    Pmem,
    /// A NAND part with pages of 512 bytes, JFTL's, under a flash translation layer. The layer is
    /// mounted whenever the home device is asked for.
    Nand,
    /// The same with pages of 16 KiB, which the layer maps in units of 4 KiB.
    Nand16k,
}

impl Kind {
    /// Returns its name on the command line and in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Pmem => "pmem",
            Self::Nand => "nand",
            Self::Nand16k => "nand16k",
        }
    }

    /// True if it is a NAND part with a layer.
    pub fn is_flash(self) -> bool {
        matches!(self, Self::Nand | Self::Nand16k)
    }

    /// Returns the sector size of a home device on it, in bytes.
    pub fn sector(self) -> u32 {
        match self {
            Self::Pmem => 64,
            Self::Block | Self::Nand => 512,
            Self::Nand16k => 4096,
        }
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let kinds = [Self::Block, Self::Pmem, Self::Nand, Self::Nand16k];
        let found = kinds.into_iter().find(|kind| kind.name() == name);
        found.with_context(|| format!("there is no medium {name}: block, pmem, nand or nand16k"))
    }
}

/// Bytes of a unit.
pub const UNIT: u64 = 512;

/// A unit's number, over all media.
pub type Unit = u32;

/// Returns the number of units of a medium with this content.
pub(crate) fn units_of(image: &Image) -> u64 {
    image.size().div_ceil(UNIT)
}
