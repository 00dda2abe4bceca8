//! The content of media.

use anyhow::Result;
use stetfs_media::Image;

use super::kind::{Kind, UNIT, Unit, units_of};
use crate::flash;

/// Bytes of the pages that images share.
const PAGE: u64 = 4096;

/// The content of all media of a run. Clones share equal pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents(pub(super) Vec<(Kind, Image)>);

impl Contents {
    /// The contents of these media, the home device first.
    pub fn new(media: Vec<(Kind, Image)>) -> Self {
        assert!(!media.is_empty(), "a home device");
        Self(media)
    }

    /// The content of a single block device.
    pub fn of_block_device(image: Image) -> Self {
        Self(vec![(Kind::Block, image)])
    }

    /// Returns the volume, as the home device shows it.
    ///
    /// # Errors
    /// The content of a NAND part cannot be read.
    pub fn volume(&self) -> Result<Image> {
        let (kind, home) = &self.0[0];
        match kind {
            Kind::Block | Kind::Pmem => Ok(home.clone()),
            Kind::Nand | Kind::Nand16k => flash::volume_on(home),
        }
    }

    /// Returns each medium with its content, the home device first.
    pub fn media(&self) -> impl Iterator<Item = (Kind, &Image)> {
        self.0.iter().map(|(kind, image)| (*kind, image))
    }

    /// Overwrites bytes of a medium; 0 is the home device.
    ///
    /// # Panics
    /// There is no such place.
    pub fn write(&mut self, medium: usize, offset: u64, bytes: &[u8]) {
        self.0[medium].1.write(offset, bytes);
    }

    fn images(&self) -> impl Iterator<Item = &Image> {
        self.0.iter().map(|(_, image)| image)
    }

    /// Returns the number of units of all media.
    pub fn units(&self) -> usize {
        self.images().map(units_of).sum::<u64>() as usize
    }

    /// Returns the units of the pages that the two do not share. Their content may still be equal.
    pub fn unshared(&self, other: &Self) -> Vec<Unit> {
        let mut found = Vec::new();
        let mut first = 0;
        for (mine, theirs) in self.images().zip(other.images()) {
            for page in mine.unshared_pages(theirs) {
                let end = (page + PAGE).min(mine.size());
                found.extend((page / UNIT..end.div_ceil(UNIT)).map(|n| (first + n) as Unit));
            }
            first += units_of(mine);
        }
        found
    }

    /// Returns the bytes of a unit.
    pub fn unit(&self, unit: Unit) -> [u8; UNIT as usize] {
        let mut out = [0; UNIT as usize];
        let mut unit = u64::from(unit);
        for image in self.images() {
            let units = units_of(image);
            if unit < units {
                let at = unit * UNIT;
                let there = (image.size() - at).min(UNIT) as usize;
                image.read(at, &mut out[..there]);
                break;
            }
            unit -= units;
        }
        out
    }
}
