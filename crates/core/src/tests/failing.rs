//! A failing device: nothing confirmed is lost, and nothing is confirmed after the first failed
//! write.

use std::sync::Arc;

use stetfs_format::InodeNo;
use stetfs_media::sim::Fault;
use stetfs_media::{Op, SimDev};

use crate::testing::Image;
use crate::{Caller, Error, Fs, Kind, MountOptions, OpenFlags};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn image(args: &[&str]) -> stetfs_media::Image {
    Image::new(16, args).with_file(|path| stetfs_media::Image::from_file(path).unwrap())
}

/// Makes and syncs one file after the other until an error. Returns the number of confirmed files.
fn work(fs: &Fs) -> (u32, Option<Error>) {
    let c = Caller::root();
    for i in 0..30u32 {
        let step = || {
            let ino = fs
                .create(&c, fs.root(), format!("f{i}").as_bytes(), 0o644, RW)?
                .ino;
            fs.write(&c, ino, 0, &i.to_le_bytes().repeat(3000))?;
            fs.fsync(ino, false)?;
            fs.release(ino)
        };
        if let Err(e) = step() {
            return (i, Some(e));
        }
    }
    (30, None)
}

#[test]
fn a_failed_write_stops_the_volume_and_loses_nothing_confirmed() {
    for options in ["data=ordered", "data=journal"] {
        let start = image(&["-t", "ext4", "-b", "4096"]);
        for op in [Op::Write, Op::Flush] {
            for skip in (0..60).step_by(3) {
                let dev = Arc::new(SimDev::new(start.clone()));
                let mounted = Fs::mount(dev.clone(), MountOptions::parse(options).unwrap());
                let (fs, _) = mounted.unwrap();
                dev.inject(Fault::nth(op, skip));
                let (confirmed, error) = work(&fs);
                let struck = dev.faults_struck() > 0;
                if struck {
                    let e = error.expect("told the writer");
                    assert!(matches!(e.kind(), Kind::Io | Kind::ReadOnly), "{e}");
                    let c = Caller::root();
                    let later = fs.mkdir(&c, fs.root(), b"later", 0o755);
                    assert!(
                        later.is_err(),
                        "the volume goes on after {op} {skip} failed"
                    );
                    // Reads still work.
                    for i in 0..confirmed {
                        let e = fs.resolve(&c, format!("/f{i}").as_bytes(), true).unwrap();
                        assert_eq!(fs.read(e.ino, 0, &mut [0; 100]).unwrap(), 100);
                    }
                    assert!(fs.unmount().is_err());
                } else if let Err(e) = fs.unmount() {
                    assert!(dev.faults_struck() > 0, "{e}");
                }
                drop(fs);
                dev.heal();
                let again = Arc::new(stetfs_media::RamDev::from_image(&dev.newest().to_bytes()));
                let after = Image { dev: again };
                let fs = after.mount(options);
                let c = Caller::root();
                for i in 0..confirmed {
                    let e = fs.resolve(&c, format!("/f{i}").as_bytes(), true).unwrap();
                    let mut out = vec![0; 12_000];
                    assert_eq!(fs.read(e.ino, 0, &mut out).unwrap(), 12_000);
                    assert!(out == i.to_le_bytes().repeat(3000));
                }
                fs.unmount().unwrap();
                after.assert_clean();
            }
        }
    }
}

#[test]
fn a_failed_read_is_told_and_nothing_more() {
    let start = image(&["-t", "ext4", "-b", "4096"]);
    let dev = Arc::new(SimDev::new(start));
    let (fs, _) = Fs::mount(dev.clone(), MountOptions::default()).unwrap();
    let (made, error) = work(&fs);
    assert!(made == 30 && error.is_none());
    fs.unmount().unwrap();
    let dev = Arc::new(SimDev::new(dev.newest()));
    let (fs, _) = Fs::mount(dev.clone(), MountOptions::default()).unwrap();
    let c = Caller::root();
    let ino = fs.resolve(&c, b"/f7", true).unwrap().ino;
    dev.inject(Fault::nth(Op::Read, 0));
    let error = fs.read(ino, 0, &mut [0; 5000]).unwrap_err();
    assert_eq!(error.kind(), Kind::Io);
    assert_eq!(fs.read(ino, 0, &mut [0; 5000]).unwrap(), 5000);
    // A block whose read-ahead failed is read when it is needed.
    let inos: Vec<_> = (12..42).map(InodeNo).collect();
    dev.inject(Fault::nth(Op::Read, 0));
    let (struck, mut all) = (dev.faults_struck(), true);
    fs.getattrs(&inos, &mut |attr| all &= attr.is_ok()).unwrap();
    assert!(all, "told");
    assert!(dev.faults_struck() > struck, "nothing read");
    fs.mkdir(&c, fs.root(), b"d", 0o755).unwrap();
    fs.unmount().unwrap();
}

/// A write that must be whole reads what it needs first. If a block at one of its ends cannot be
/// read, it changes nothing, and the volume stays in use.
#[test]
fn a_write_that_must_be_whole_is_not_begun_when_something_cannot_be_read() {
    let options = || MountOptions::parse("data=ordered,atomic=all").unwrap();
    let dev = Arc::new(SimDev::new(image(&["-t", "ext4", "-b", "4096"])));
    let (fs, _) = Fs::mount(dev.clone(), options()).unwrap();
    let c = Caller::root();
    let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
    fs.write(&c, ino, 0, &[1; 40_000]).unwrap();
    fs.unmount().unwrap();
    for skip in 0..2 {
        let dev = Arc::new(SimDev::new(dev.newest()));
        let (fs, _) = Fs::mount(dev.clone(), options()).unwrap();
        fs.getattr(ino).unwrap();
        // The write covers parts of its first and last block, and all blocks between.
        dev.inject(Fault::nth(Op::Read, skip));
        let error = fs.write(&c, ino, 1000, &[2; 30_000]).unwrap_err();
        assert_eq!(error.kind(), Kind::Io, "read {skip}");
        let mut bytes = vec![0; 40_000];
        assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), 40_000);
        assert!(bytes == vec![1; 40_000], "read {skip}: a part was written");
        assert_eq!(fs.write(&c, ino, 1000, &[2; 30_000]).unwrap(), 30_000);
        fs.unmount().unwrap();
    }
}
