//! Schemes below another file system's journal. Here that file system is our own with JBD2's
//! scheme; `cli/tests/cli/below.rs` has the kernel's.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use stetfs::{Caller, Fs, Media, MountOptions, OpenFlags, open_alone};
use stetfs_below::{Below, BelowOptions, BelowStats};
use stetfs_media::{BlockDev, RamDev};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Kinds of volumes: block sizes, checksums of the journal, ways to map it.
const KINDS: [&[&str]; 4] = [
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum,^64bit"],
    &["-t", "ext3", "-b", "1024"],
];

fn volume(args: &[&str]) -> RamDev {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(16 << 20).unwrap();
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1"])
        .args(args)
        .arg(file.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    RamDev::from_file(file.path()).unwrap()
}

/// Panics unless e2fsck finds nothing on the device.
fn check(dev: &dyn BlockDev, context: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut all = vec![0; usize::try_from(dev.size()).unwrap()];
    let tag = stetfs_media::Tag::read(stetfs_media::Class::Data);
    dev.read_at(0, &mut all, tag).unwrap();
    std::fs::write(file.path(), &all).unwrap();
    let done = Command::new("e2fsck")
        .args(["-fn"])
        .arg(file.path())
        .output()
        .unwrap();
    if !done.status.success() {
        std::fs::copy(file.path(), "/tmp/below-bad.img").unwrap();
    }
    assert!(
        done.status.success(),
        "{context}: {}",
        String::from_utf8_lossy(&done.stdout)
    );
}

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

fn content(n: u32) -> Vec<u8> {
    (0..20_000).map(|i| (i * n / 7 + n) as u8).collect()
}

/// Files made, changed, shortened and deleted, each followed by an fsync, for several laps.
fn work(fs: &Fs, rounds: std::ops::Range<u32>) {
    let c = Caller::root();
    for n in rounds {
        let name = format!("file{}", n % 13);
        if n % 5 == 4 {
            fs.unlink(&c, fs.root(), name.as_bytes()).ok();
            continue;
        }
        let made = fs.create(&c, fs.root(), name.as_bytes(), 0o644, RW);
        let file = made.or_else(|_| fs.lookup(&c, fs.root(), name.as_bytes()));
        let ino = file.unwrap().ino;
        fs.write(&c, ino, u64::from(n % 3) * 4096, &content(n))
            .unwrap();
        fs.fsync(ino, false).unwrap();
    }
    fs.sync().unwrap();
}

/// Names and contents of the root directory.
fn tree(fs: &Fs) -> Vec<(String, Vec<u8>)> {
    let c = Caller::root();
    (0..13)
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
    let medium = Arc::new(volume(kind));
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
    check(&*medium, &context);
    let options = MountOptions::parse("ro").unwrap();
    let (fs, report) = Fs::mount(medium.clone(), options).unwrap();
    assert!(!report.recovery.was_needed, "{context}");
    assert!(tree(&fs) == before, "{context}: as a plain image");
    stats
}

#[test]
fn what_was_synced_is_there_whoever_dies() {
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
