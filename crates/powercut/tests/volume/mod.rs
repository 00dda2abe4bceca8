//! Volumes for these tests.

use std::sync::Arc;

use stetfs::{Fs, MountOptions};
use stetfs_media::Image;
use stetfs_media::sim::{CrashImage, SimOptions};
use stetfs_testkit::image::Variety;

/// An empty volume.
pub(crate) fn fresh(mib: u64) -> Image {
    let file = tempfile::NamedTempFile::new().unwrap();
    let variety = Variety::find("ext4-4k").unwrap();
    variety.make_with(file.path(), mib, 4, &[]).unwrap();
    Image::from_file(file.path()).unwrap()
}

/// Mounts with the default scheme.
pub(crate) fn mounted(fresh: &Image) -> Fs {
    let volume = Arc::new(CrashImage::new(fresh.clone(), SimOptions::default()));
    Fs::mount(volume, MountOptions::default()).unwrap().0
}
