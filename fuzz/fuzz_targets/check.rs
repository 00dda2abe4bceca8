//! The checker on whole volumes: a mke2fs image with one of everything, damaged as the input says. What it says must not
//! depend on what it checked before.
#![no_main]

use std::sync::LazyLock;

use stetfs_check::{Checker, FnSource, Report};
use stetfs_lab::damage;
use stetfs_media::Image;

type Volume = (Image, Vec<u64>);

static VOLUMES: LazyLock<Vec<Volume>> = LazyLock::new(|| {
    let volumes = damage::volumes_with_targets();
    let mut checker = Checker::new();
    for (image, _) in &volumes {
        let report = check(&mut checker, image);
        assert!(report.is_clean(), "{report}");
    }
    volumes
});

fn check(checker: &mut Checker, image: &Image) -> Report {
    let read = |offset, out: &mut [u8]| {
        image.read(offset, out);
        Ok(())
    };
    checker.check(&FnSource::new(image.size(), read))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((which, hits)) = data.split_first() else {
        return;
    };
    let mut checker = Checker::new();
    for volume in [!which, *which] {
        let (image, targets) = &VOLUMES[usize::from(volume) % VOLUMES.len()];
        let mut image = image.clone();
        damage::apply(&mut image, targets, hits);
        let report = check(&mut checker, &image);
        assert_eq!(report, check(&mut Checker::new(), &image));
        let _ = report.to_string();
    }
});
