//! Schemes below another file system's journal. Here that file system is our own with JBD2's
//! scheme; `cli/tests/cli/below.rs` has the kernel's.

#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Duration;

use stetfs::{Caller, Fs, Media, MountOptions, open_alone};
use stetfs_below::{Below, BelowOptions, BelowStats};
use stetfs_media::RamDev;
use stetfs_testkit::image;

use support::{FILES, has, volume};

/// Kinds of volumes: block sizes, checksums of the journal, ways to map it.
const KINDS: [&[&str]; 4] = [
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3", "-b", "1024"],
];

fn open(medium: &Arc<RamDev>, options: &str) -> Arc<Below> {
    let options = MountOptions::parse(options).unwrap();
    let media = Media::from(medium.clone());
    let alone = open_alone(&media, &options).unwrap();
    let quiet = BelowOptions {
        background: false,
        ..BelowOptions::default()
    };
    Arc::new(Below::new(alone, quiet).unwrap())
}

fn mount(below: &Arc<Below>, options: &str) -> Fs {
    let options = MountOptions {
        commit: Duration::MAX,
        ..MountOptions::parse(options).unwrap()
    };
    Fs::mount(below.clone(), options).unwrap().0
}

/// [`support::work`], all of it durable.
fn work(fs: &Fs, rounds: std::ops::Range<u32>) {
    support::work(fs, rounds, support::content);
    fs.sync().unwrap();
}

/// Names and contents of the root directory.
fn tree(fs: &Fs) -> Vec<(String, Vec<u8>)> {
    let c = Caller::root();
    (0..FILES)
        .filter_map(|n| {
            let name = format!("file{n}");
            let file = fs.lookup(&c, fs.root(), name.as_bytes()).ok()?;
            let mut out = vec![0; usize::try_from(file.attr.size).unwrap()];
            fs.read(file.ino, 0, &mut out).unwrap();
            Some((name, out))
        })
        .collect()
}

fn run(kind: &[&str], scheme: &str, data: &str) -> BelowStats {
    let context = format!("{kind:?} {scheme} {data}");
    let medium = Arc::new(volume(16, kind));
    let below = open(&medium, scheme);
    let fs = mount(&below, data);
    work(&fs, 0..120);
    let before = tree(&fs);
    // The machine above dies.
    drop(fs);
    let fs = mount(&below, data);
    assert!(
        tree(&fs) == before,
        "{context}: after the file system came back"
    );
    work(&fs, 120..160);
    let before = tree(&fs);
    drop(fs);
    // Both die.
    drop(below);
    let below = open(&medium, scheme);
    let fs = mount(&below, data);
    assert!(tree(&fs) == before, "{context}: after the scheme came back");
    work(&fs, 160..170);
    let before = tree(&fs);
    fs.unmount().unwrap();
    let stats = below.stats();
    below.finish().unwrap();
    drop(below);
    let plain = tempfile::NamedTempFile::new().unwrap();
    medium.to_file(plain.path()).unwrap();
    image::check(plain.path()).unwrap_or_else(|found| panic!("{context}: {found}"));
    let options = MountOptions::parse("ro").unwrap();
    let (fs, report) = Fs::mount(medium.clone(), options).unwrap();
    assert!(!report.recovery.was_needed, "{context}");
    assert!(tree(&fs) == before, "{context}: as a plain image");
    stats
}

#[test]
fn what_was_synced_is_there_whoever_dies() {
    if !has(&["mke2fs", "e2fsck"]) {
        return;
    }
    for kind in KINDS {
        for scheme in ["scheme=stet", "scheme=stet,log=jbd2"] {
            for data in ["data=journal", "data=ordered", "data=writeback"] {
                let stats = run(kind, scheme, data);
                println!("{kind:?} {scheme} {data}: {stats:?}");
                assert!(stats.transactions > 5);
            }
        }
    }
}
