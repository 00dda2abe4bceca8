//! A refused mount has written nothing, and neither has one that recovers in memory. Two mounts of
//! one device.

use std::sync::Arc;

use stetfs_format::FeatureIncompat;
use stetfs_media::{BlockDev, Class, Overlay, Tag};

use crate::mount::superblock;
use crate::testing::Image;
use crate::{Caller, Error, Fs, MountError, MountOptions, OpenFlags};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn content(dev: &dyn BlockDev) -> Vec<u8> {
    let mut all = vec![0; dev.size() as usize];
    dev.read_at(0, &mut all, Tag::read(Class::Data)).unwrap();
    all
}

/// A volume after a crash, with a file that is only in its log.
fn crashed(args: &[&str]) -> Image {
    let image = Image::new(16, args);
    let fs = image.mount("data=journal");
    let c = Caller::root();
    let ino = fs.create(&c, fs.root(), b"file", 0o644, RW).unwrap().ino;
    fs.write(&c, ino, 0, b"only in the log").unwrap();
    fs.release(ino).unwrap();
    fs.sync().unwrap();
    image.crash_copy()
}

#[test]
fn a_refused_mount_writes_nothing() {
    let ext4 = ["-t", "ext4"];
    let images = [
        ("clean", Image::new(16, &ext4)),
        ("crashed", crashed(&ext4)),
    ];
    let refused = [
        "scheme=nope",
        "scheme=jftl",
        "scheme=jftl,remap=sideways",
        "scheme=shortcut",
        "scheme=shortcut,variant=best",
        "scheme=shortcut,data=ordered",
        "variant=adp-s",
        "journal_async_commit=maybe",
        "data=sideways",
        "scheme=null,data=journal",
        "scheme=null,variant=adp-s",
        "scheme=null,atomic=all",
        "scheme=dj",
        "scheme=dj,threshold=lots",
        "scheme=ubj",
        "scheme=ubj,keep-cache=perhaps",
        "scheme=tinca",
        "scheme=spindle",
        "noload,data=journal",
    ];
    for (what, image) in images {
        let before = content(&*image.dev);
        for options in refused {
            let parsed = MountOptions::parse(options).unwrap();
            assert!(
                Fs::mount(image.device(), parsed).is_err(),
                "{what} {options}"
            );
            let after = content(&*image.dev);
            let at = before.iter().zip(&after).position(|(a, b)| a != b);
            assert_eq!(at, None, "{what} {options}: a byte has changed");
        }
    }
    // The last check of a mount fails: the root is no directory.
    let image = Image::new(16, &ext4);
    image.with_file(|path| {
        let command = ["-w", "-R", "sif <2> mode 0100644"];
        let done = std::process::Command::new("debugfs")
            .args(command)
            .arg(path)
            .output();
        assert!(done.unwrap().status.success());
        let dev = Arc::new(stetfs_media::RamDev::from_file(path).unwrap());
        let before = content(&*dev);
        let mounted = Fs::mount(dev.clone(), MountOptions::default());
        assert!(matches!(mounted, Err(Error::Mount(e)) if matches!(*e, MountError::Root)));
        assert!(before == content(&*dev));
    });
}

#[test]
fn a_reader_recovers_in_memory() {
    for args in [&["-t", "ext4"][..], &["-t", "ext3", "-b", "1024"]] {
        let image = crashed(args);
        let before = content(&*image.dev);
        let over = Arc::new(Overlay::new(image.device()));
        let (fs, report) = Fs::mount(over, MountOptions::parse("ro").unwrap()).unwrap();
        assert!(report.recovery.was_needed && report.read_only);
        let entry = fs.resolve(&Caller::root(), b"/file", true).unwrap();
        let mut out = [0; 100];
        let n = fs.read(entry.ino, 0, &mut out).unwrap();
        assert_eq!(&out[..n], b"only in the log");
        fs.unmount().unwrap();
        assert!(before == content(&*image.dev), "{args:?}");
    }
}

/// The second mount waits for longer than a living mount leaves its number unchanged, sees that it
/// has changed, and writes nothing. After the first has died, the next mount takes the volume after
/// that wait.
#[test]
fn the_protection_tells_the_living_from_the_dead() {
    let args = ["-t", "ext4", "-O", "mmp", "-E", "mmp_update_interval=1"];
    let image = Image::new(16, &args);
    let first = image.mount("");
    let sb = superblock::load(&*image.dev).unwrap();
    assert!(sb.feature_incompat.contains(FeatureIncompat::MMP));
    match Fs::mount(image.device(), MountOptions::default()) {
        Err(Error::Mount(e)) => assert!(matches!(*e, MountError::InUse { fsck: false, .. }), "{e}"),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("mounted twice"),
    }
    let c = Caller::root();
    first.mkdir(&c, first.root(), b"still here", 0o755).unwrap();
    first.sync().unwrap();
    let dead = image.crash_copy();
    first.unmount().unwrap();
    image.assert_clean();
    let second = dead.mount("");
    second.resolve(&c, b"/still here", true).unwrap();
    second.unmount().unwrap();
    dead.assert_clean();
    // The volume is clean, so there is no wait.
    let started = std::time::Instant::now();
    dead.mount("").unmount().unwrap();
    assert!(started.elapsed().as_secs() < 11);
}
