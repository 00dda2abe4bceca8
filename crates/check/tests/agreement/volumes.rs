//! The volumes to be damaged: each contains every structure once.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{XattrFlags, setxattr};

use crate::image::{self, Image};

/// A volume without errors.
pub struct Volume {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    pub read: image::Volume,
}

const KINDS: [(&str, &[&str], u64); 9] = [
    ("ext4-1k", &["-t", "ext4", "-b", "1024"], 12),
    (
        "ext4-1k-groups",
        &["-t", "ext4", "-b", "1024", "-g", "2048", "-G", "4"],
        14,
    ),
    ("ext4-4k", &["-t", "ext4", "-b", "4096"], 24),
    (
        "ext4-2k-inode128",
        &["-t", "ext4", "-b", "2048", "-I", "128", "-O", "^64bit"],
        16,
    ),
    (
        "ext4-1k-bare",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^metadata_csum,^64bit,^resize_inode",
        ],
        12,
    ),
    (
        "ext4-1k-uninit",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "^metadata_csum,uninit_bg",
        ],
        16,
    ),
    (
        "ext4-1k-orphan-file",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "orphan_file,large_dir,metadata_csum_seed,fast_commit",
        ],
        12,
    ),
    (
        "ext4-1k-meta-bg",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "meta_bg,^resize_inode",
        ],
        16,
    ),
    ("ext3-1k", &["-t", "ext3", "-b", "1024"], 16),
];

static KERNEL: OnceLock<bool> = OnceLock::new();

/// Whether every kind was made with all its content, so that every difference must occur.
pub fn are_complete() -> bool {
    KERNEL.get().copied().unwrap_or(false) && std::env::var_os("STETFS_CHECK_VOLUME").is_none()
}

/// Makes all volumes. Without e2fsprogs it reports that and returns none.
pub fn all() -> Vec<Volume> {
    let only = std::env::var("STETFS_CHECK_VOLUME").unwrap_or_default();
    let kinds = || KINDS.iter().filter(|(name, ..)| name.contains(&only));
    let made: Vec<_> = std::thread::scope(|scope| {
        let made: Vec<_> = kinds()
            .map(|(_, args, mib)| scope.spawn(|| make(args, *mib)))
            .collect();
        let made = made.into_iter();
        made.map(|image| image.join().expect("an image")).collect()
    });
    // One after the other: processes that other threads start can keep a mount busy for a moment.
    let images = kinds().zip(made);
    images
        .filter_map(|((name, ..), image)| Some(finish(name, &image?)))
        .collect()
}

fn make(args: &[&str], mib: u64) -> Option<Image> {
    let image = Image::make(args, mib * 1024)?;
    image.populate();
    let mut script = String::new();
    script += "mkdir deep\ncd deep\nmkdir deeper\ncd deeper\nmkdir deepest\ncd /\n";
    script += "write /dev/null one\nln one deep/hard\nsif one links_count 2\n";
    for i in 0..40 {
        writeln!(script, "write /dev/null deep/file-{i}").expect("a string");
    }
    script += "write /dev/null written\n";
    image.change(&script);
    Some(image)
}

/// Adds what only the kernel makes.
fn finish(name: &'static str, image: &Image) -> Volume {
    let mounted = image.while_mounted(&[], fill);
    KERNEL.get_or_init(|| mounted);
    let (status, output) = image.e2fsck("-fy");
    assert!(status < 4, "{output}");
    image.assert_clean(name);
    let bytes = std::fs::read(&image.path).expect("the image");
    let read = image::Volume::new(bytes.clone());
    Volume { name, bytes, read }
}

fn fill(root: &Path) {
    let file = File::options()
        .write(true)
        .open(root.join("written"))
        .expect("a file");
    // Every second block, so that the map gets several levels.
    for i in 0..300 {
        file.write_all_at(&[i as u8; 700], i * 2048).expect("room");
    }
    // The kernel lets files with equal attributes share a block.
    for name in ["one", "written", "deep/file-3"] {
        let value = [b'v'; 400];
        setxattr(root.join(name), "user.shared", &value, XattrFlags::empty()).expect("room");
    }
    UnixListener::bind(root.join("socket")).expect("a socket");
    std::fs::create_dir(root.join("many")).expect("a directory");
    let name = |i: usize| root.join(format!("many/{i:03}-{}", "y".repeat(i % 40)));
    for i in 0..150 {
        std::fs::write(name(i), []).expect("a file");
    }
    for i in 0..20 {
        std::fs::remove_file(name(7 * i)).expect("a file");
    }
}
