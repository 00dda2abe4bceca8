//! Volumes for these tests.

use std::sync::Arc;

use stetfs::{Fs, MountOptions};
use stetfs_media::Image;
use stetfs_media::sim::{CrashImage, SimOptions};

/// An empty volume.
pub(crate) fn fresh(mib: u64) -> Image {
    stetfs_powercut::fresh::volume(mib << 20).unwrap()
}

/// Mounts with the default scheme.
pub(crate) fn mounted(fresh: &Image) -> Fs {
    let volume = Arc::new(CrashImage::new(fresh.clone(), SimOptions::default()));
    Fs::mount(volume, MountOptions::default()).unwrap().0
}
