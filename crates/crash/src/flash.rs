//! Volumes on a NAND part with a flash translation layer.
//!
//! A modern part has pages of 16 KiB, which the layer maps in units of 4 KiB. Units wait in a
//! controller's memory until their page is full; capacitors program the rest when the power fails
//! ([`UnitNand`](stetfs_media::nand::UnitNand)). To the layer this is a part whose pages are the
//! units, since a unit is durable when its program returns. So the simulated part has the units as
//! its pages. Only a cut shows the difference: the page that was not full is programmed all the
//! same, and its rest cannot be programmed before the next erase (`settle`).

use std::sync::Arc;

use anyhow::{Context, Result};
use stetfs_format::nand::{BlockCondition, NandBlock};
use stetfs_format::num::BlockAddr;
use stetfs_ftl::{Ftl, FtlOptions, MountOptions};
use stetfs_media::nand::{Nand, NandGeometry, NandPart, NandSim, parts};
use stetfs_media::sim::Rig;
use stetfs_media::{BlockDev, Cause, Class, Image, Tag};
use stetfs_testkit::image::copy_to;

use crate::media::kind::Kind;

/// The paper's part, with just enough blocks for a volume of 12 MiB, so that it collects garbage
/// all the time.
const PAPERS: NandPart = NandPart {
    geometry: NandGeometry {
        blocks: 960,
        ..parts::JFTL.geometry
    },
    ..parts::JFTL
};

/// Units in a page of the modern part.
const UNITS: u32 = 4;

/// A part with pages of 16 KiB, in units, also with just enough blocks. A block has 8 pages instead
/// of hundreds, so that blocks are erased often.
const MODERN: NandPart = NandPart {
    geometry: NandGeometry {
        page_bytes: (16 << 10) / UNITS,
        spare_bytes: 2208 / UNITS,
        pages_per_block: 8 * UNITS,
        blocks: 140,
        planes: 1,
        bad_mark: 0,
    },
    ..parts::MLC.flawless()
};

/// Returns the content of a part that holds the volume.
///
/// # Errors
/// The volume is too large.
pub fn part_with(kind: Kind, volume: &Image) -> Result<Image> {
    let part = if kind == Kind::Nand16k {
        MODERN
    } else {
        PAPERS
    };
    let nand = Arc::new(NandSim::new(part));
    let ftl = Ftl::create(
        nand.clone(),
        [9; 16],
        &FtlOptions::default(),
        MountOptions::default(),
    )?;
    copy_to(volume, &ftl, 4096)?;
    Ok(nand.image())
}

/// Does what the controller's capacitors do after a power failure: in each block, the rest of the
/// page that is being programmed is left as erased and cannot be programmed.
pub(super) fn settle(kind: Kind, nand: &NandSim) {
    if kind != Kind::Nand16k {
        return;
    }
    let NandGeometry {
        page_bytes,
        spare_bytes,
        blocks,
        ..
    } = nand.geometry();
    let erased = vec![0xff; page_bytes.max(spare_bytes) as usize];
    let (data, spare) = (
        &erased[..page_bytes as usize],
        &erased[..spare_bytes as usize],
    );
    let tag = Tag::new(Class::Data, Cause::Home);
    for block in (0..blocks).map(BlockAddr) {
        let NandBlock {
            condition,
            next_page,
            ..
        } = nand.block(block).expect("in memory");
        if condition != BlockCondition::Good {
            continue;
        }
        for n in next_page..next_page.next_multiple_of(UNITS) {
            let page = nand.geometry().page_at(block, n);
            nand.program(page, data, spare, tag)
                .expect("a page in its turn");
        }
    }
}

/// Returns the content of the volume on a part with this content: all that the layer offers.
///
/// # Errors
/// The layer cannot be mounted, or one of its pages cannot be read.
pub fn volume_on(part: &Image) -> Result<Image> {
    let nand = NandSim::from_image(&Rig::default(), part.clone())?;
    let mount = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let ftl = Ftl::mount(Arc::new(nand), mount).context("mounting the flash translation layer")?;
    let mut volume = Image::new(ftl.size());
    let mut chunk = vec![0; 64 << 10];
    for at in (0..ftl.size()).step_by(chunk.len()) {
        let len = (ftl.size() - at).min(chunk.len() as u64) as usize;
        ftl.read_at(at, &mut chunk[..len], Tag::read(Class::Data))?;
        volume.write(at, &chunk[..len]);
    }
    Ok(volume)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_full_is_lost_until_the_next_erase() {
        let tag = Tag::new(Class::Data, Cause::Home);
        let next_pages = |kind| {
            let nand = NandSim::new(MODERN);
            let NandGeometry {
                page_bytes,
                spare_bytes,
                ..
            } = MODERN.geometry;
            let (data, spare) = (
                vec![7; page_bytes as usize],
                vec![0xff; spare_bytes as usize],
            );
            for (block, units) in [(1, 1), (2, UNITS), (3, UNITS + 2)] {
                nand.erase(BlockAddr(block), Cause::Home).expect("an erase");
                for unit in 0..units {
                    let page = MODERN.geometry.page_at(BlockAddr(block), unit);
                    nand.program(page, &data, &spare, tag).expect("a program");
                }
            }
            settle(kind, &nand);
            [0, 1, 2, 3].map(|block| nand.block(BlockAddr(block)).expect("a block").next_page)
        };
        assert_eq!(next_pages(Kind::Nand16k), [0, 4, 4, 8]);
        assert_eq!(next_pages(Kind::Nand), [0, 1, 4, 6]);
    }
}
