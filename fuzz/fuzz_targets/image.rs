//! Whole volumes: a mke2fs image with one of everything, damaged as the input says, mounted, walked and written.
#![no_main]

use std::sync::LazyLock;

use stetfs_lab::damage;
use stetfs_media::Image;

type Volume = (Image, Vec<u64>);

static VOLUMES: LazyLock<Vec<Volume>> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("stetfs-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for the volumes");
    let volumes = damage::volumes(&dir).expect("volumes to damage (needs mke2fs)");
    std::fs::remove_dir_all(&dir).expect("the directory is ours");
    let with_targets = |(_, image)| {
        let targets = damage::used_blocks(&image);
        (image, targets)
    };
    volumes.into_iter().map(with_targets).collect()
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((which, hits)) = data.split_first() else { return };
    let (image, targets) = &VOLUMES[usize::from(*which) % VOLUMES.len()];
    let mut image = image.clone();
    damage::apply(&mut image, targets, hits);
    damage::survive(image);
});
