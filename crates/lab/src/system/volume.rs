//! Fresh volumes: mke2fs makes each once, the same each time, and each run gets a copy.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use stetfs_media::Image;

use super::flash::Flash;
use stetfs_testkit::host::{run, scratch};
use stetfs_testkit::image::Variety;

/// ext3's features, with inodes of 256 bytes as in the Shortcut-JFS paper.
const EXT3_FEATURES: &str = stetfs_testkit::image::EXT3_1K.features;

/// An ext3 volume with 4 KiB blocks: block pointers, no checksums.
pub const EXT3_4K: Variety = Variety {
    name: "ext3-4k",
    block: 4096,
    inode: 256,
    features: EXT3_FEATURES,
    extents: false,
};

/// An ext3 volume with 1 KiB blocks.
pub const EXT3_1K: Variety = stetfs_testkit::image::EXT3_1K;

/// Fixed, so that volumes are the same each time.
const UUID: &str = "73746574-6673-4c61-8000-000000000002";

/// Seconds since 1970 at which volumes are made and runs begin.
pub(super) const START: u64 = 1_700_000_000;

/// A volume that was just made.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its kind.
    pub variety: Variety,
    /// Its size in MiB.
    pub mib: u64,
    /// The size of its journal in MiB.
    pub journal_mib: u64,
    image: Image,
    /// A NAND part that holds it.
    on_flash: OnceLock<(Flash, Image)>,
}

impl Volume {
    /// Makes a volume. Its time stamps are the time at which runs begin, so it is the same each
    /// time.
    ///
    /// # Errors
    /// Those of mke2fs.
    pub fn make(variety: Variety, mib: u64, journal_mib: u64) -> Result<Self> {
        let dir = scratch()?;
        let path = dir.path().join("image");
        File::create(&path)?.set_len(mib << 20)?;
        let (block, inode) = (variety.block.to_string(), variety.inode.to_string());
        let (time, journal) = (
            format!("E2FSPROGS_FAKE_TIME={START}"),
            format!("size={journal_mib}"),
        );
        let seed = format!("hash_seed={UUID}");
        let path_text = path.to_string_lossy();
        let args = [
            &time,
            "mke2fs",
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            &block,
            "-I",
            &inode,
            "-O",
            variety.features,
            "-J",
            &journal,
            "-U",
            UUID,
            "-E",
            &seed,
            &path_text,
        ];
        run("env", &args).with_context(|| format!("a volume of {mib} MiB"))?;
        Ok(Self {
            variety,
            mib,
            journal_mib,
            image: Image::from_file(&path)?,
            on_flash: OnceLock::new(),
        })
    }

    /// Its content.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Returns a NAND part that holds it, made once.
    pub(super) fn on_flash(&self, flash: Flash) -> Result<Image> {
        let (kind, image) = match self.on_flash.get() {
            Some(made) => made,
            None => {
                let made = (flash, flash.with(&self.image)?);
                self.on_flash.get_or_init(|| made)
            }
        };
        if *kind == flash {
            Ok(image.clone())
        } else {
            flash.with(&self.image)
        }
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn to_file(&self, path: &Path) -> Result<()> {
        Ok(self.image.to_file(path)?)
    }
}
