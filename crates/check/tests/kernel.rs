//! Volumes as the kernel's ext4 leaves them after an unmount, without any other tool. This test is
//! a process of its own, because programs that other tests start can keep the mount busy for a
//! moment.

#[path = "../../format/tests/image/mod.rs"]
mod image;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use image::Image;
use rustix::fs::{FallocateFlags, fallocate};
use stetfs_check::Checker;

/// Names in a directory, enough for a hash tree of three levels.
const NAMES: usize = 42_000;

#[test]
fn what_the_kernel_leaves_is_clean() {
    let args = ["-t", "ext4", "-b", "1024", "-N", "256", "-O", "large_dir"];
    let Some(image) = Image::make(&args, 40 << 10) else {
        return;
    };
    if !image.while_mounted(&[], fill) {
        return;
    }
    let dump = image.debugfs("htree_dump tree");
    assert!(dump.contains("Indirect levels: 2"), "{dump:.200}");
    image.assert_clean("by the kernel");
    let bytes = std::fs::read(&image.path).expect("the image");
    let report = Checker::new().check(bytes.as_slice());
    assert!(report.is_clean(), "{report}");
}

fn fill(root: &Path) {
    let tree = root.join("tree");
    std::fs::create_dir(&tree).expect("a directory");
    std::fs::write(tree.join("first"), b"").expect("a file");
    for i in 0..NAMES {
        let name = format!("{i:06}{}", "n".repeat(240));
        std::fs::hard_link(tree.join("first"), tree.join(name)).expect("a link");
    }
    let file = File::create(root.join("file")).expect("a file");
    file.write_all_at(&[7; 300_000], 0).expect("room");
    for (flags, offset, length) in [
        (FallocateFlags::KEEP_SIZE, 300_000, 100_000),
        (
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            5_000,
            20_000,
        ),
        (FallocateFlags::ZERO_RANGE, 50_000, 9_000),
        (FallocateFlags::COLLAPSE_RANGE, 102_400, 4_096),
        (FallocateFlags::INSERT_RANGE, 204_800, 4_096),
    ] {
        fallocate(&file, flags, offset, length).expect("room");
    }
    std::fs::create_dir(root.join("a")).expect("a directory");
    std::fs::create_dir(root.join("a/below")).expect("a directory");
    std::fs::rename(root.join("a/below"), root.join("moved")).expect("another parent");
    let gone = File::create(root.join("gone")).expect("a file");
    gone.write_all_at(&[1; 50_000], 0).expect("room");
    std::fs::remove_file(root.join("gone")).expect("a file");
}
