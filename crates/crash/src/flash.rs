//! Volumes on a NAND part with a flash translation layer.

use std::sync::Arc;

use anyhow::{Context, Result};
use stetfs_ftl::{Ftl, FtlOptions, MountOptions};
use stetfs_media::nand::{NandGeometry, NandPart, NandSim, parts};
use stetfs_media::sim::Rig;
use stetfs_media::{BlockDev, Class, Image, Tag};
use stetfs_testkit::image::copy_to;

/// The paper's part with just enough blocks for a volume of 12 MiB, so that garbage is collected
/// all the time.
const PART: NandPart = NandPart {
    geometry: NandGeometry {
        blocks: 960,
        ..parts::JFTL.geometry
    },
    ..parts::JFTL
};

/// The content of a part that holds the volume.
///
/// # Errors
/// The volume is too large.
pub fn part_with(volume: &Image) -> Result<Image> {
    let nand = Arc::new(NandSim::new(PART));
    let ftl = Ftl::create(
        nand.clone(),
        [9; 16],
        &FtlOptions::default(),
        MountOptions::default(),
    )?;
    copy_to(volume, &ftl, 4096)?;
    Ok(nand.image())
}

/// What a part with this content shows of its volume: all that the layer offers.
///
/// # Errors
/// The layer cannot be mounted, or a page of it not be read.
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
