//! Whole volumes: a mke2fs image with one of everything, damaged as the input says, mounted, walked and written.
#![no_main]

use std::sync::LazyLock;

use stetfs_lab::damage;
use stetfs_media::Image;

type Volume = (Image, Vec<u64>);

static VOLUMES: LazyLock<Vec<Volume>> = LazyLock::new(damage::volumes_with_targets);

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((which, hits)) = data.split_first() else { return };
    let (image, targets) = &VOLUMES[usize::from(*which) % VOLUMES.len()];
    let mut image = image.clone();
    damage::apply(&mut image, targets, hits);
    damage::survive(image);
});
