//! Reads a volume's blocks directly, without mounting it: for `info` and `journal`.
//!
//! Takes no lock, so a mounted volume can be read too; what is found then may be a moment old.

use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use stetfs::MountOptions;
use stetfs_format::width::usize_as_u64;
use stetfs_format::{Corrupt, FeatureIncompat, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock};
use stetfs_media::nand::NandFile;
use stetfs_media::{BlockDev, Class, FileOptions, Tag};

use crate::failure::{Failure, Result};
use crate::part::{self, Use, Window};
use crate::size::Size;
use crate::unlike::not_a_volume;

/// A volume that is only read.
pub(crate) struct Disk {
    pub(crate) dev: Arc<dyn BlockDev>,
    pub(crate) superblock: Superblock,
}

impl Disk {
    /// Opens an image, mounted or not.
    pub(crate) fn open(image: &Path) -> Result<Self> {
        let dev = look_at(image)?;
        if dev.size() < SUPERBLOCK_OFFSET + usize_as_u64(SUPERBLOCK_SIZE) {
            let why = format!(
                "no volume: {} have no room for a superblock",
                Size(dev.size())
            );
            return Err(not_a_volume(image, Failure::new(why)));
        }
        let superblock = read_superblock(&*dev).map_err(|e| not_a_volume(image, e))?;
        Ok(Self { dev, superblock })
    }

    /// Returns the number of bytes of the volume that the device does not have.
    pub(crate) fn missing(&self) -> u64 {
        let sb = &self.superblock;
        sb.volume_bytes().saturating_sub(self.dev.size())
    }

    /// True if the newest content is in the journal.
    pub(crate) fn needs_recovery(&self) -> bool {
        let features = self.superblock.feature_incompat;
        features.intersects(FeatureIncompat::RECOVER | FeatureIncompat::PRIVATE_LOG)
    }

    /// True if the newest content is in a log that only its scheme can read.
    pub(crate) fn has_private_log(&self) -> bool {
        let features = self.superblock.feature_incompat;
        features.contains(FeatureIncompat::PRIVATE_LOG)
    }

    /// Returns that scheme, if it can be identified.
    pub(crate) fn private_log_owner(&self) -> Option<String> {
        if !self.has_private_log() {
            return None;
        }
        let sb = &self.superblock;
        let log = stetfs::journal_extents(&*self.dev, sb).ok()?;
        stetfs::private_log_owner(&*self.dev, sb, &log).ok()?
    }
}

/// Opens the volume's device for reading only. A NAND part cannot be read while it is in use,
/// because its user has the map in memory.
pub(crate) fn look_at(image: &Path) -> Result<Arc<dyn BlockDev>> {
    let image = match part::find(image)? {
        part::Image::Part(extent) => {
            let window = Window::open(extent, Use::Look, Some(false), Duration::ZERO)?;
            return Ok(Arc::new(window));
        }
        part::Image::Whole(image) => image,
    };
    if NandFile::is_at(&image) {
        return Ok(stetfs::open_device(&image, &MountOptions::default(), true)?);
    }
    let file = FileOptions::default().read_only(true).lock(false);
    Ok(Arc::new(file.open(&image)?))
}

/// Reads the superblock. Reads it again if its checksum fails, because the server of a mounted
/// volume may just be writing it.
fn read_superblock(dev: &dyn BlockDev) -> Result<Superblock> {
    const TRIES: usize = 3;
    let mut raw = [0; SUPERBLOCK_SIZE];
    for _ in 1..TRIES {
        dev.read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, Tag::read(Class::Superblock))?;
        match Superblock::decode(&raw) {
            Err(Corrupt::SuperChecksum { .. }) => sleep(Duration::from_millis(2)),
            other => return Ok(other?),
        }
    }
    dev.read_bytes_at(SUPERBLOCK_OFFSET, &mut raw, Tag::read(Class::Superblock))?;
    Ok(Superblock::decode(&raw)?)
}
