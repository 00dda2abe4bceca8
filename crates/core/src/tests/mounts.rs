//! Mounting: recovery, read-only, refusals by name, error marks, orphans, full volumes. Our own
//! mount, e2fsck and the kernel judge the images of crashes.

use std::sync::Arc;

use stetfs_format::FeatureIncompat;
use stetfs_ftl::{Ftl, FtlOptions, Inspection, MountOptions as FtlMount};
use stetfs_media::nand::{Nand, NandOptions, NandSim, parts};
use stetfs_media::sim::Fault;
use stetfs_media::{BlockDev, Cause, Class, Op, Tag};
use stetfs_scheme::DataMode;

use crate::mount::superblock;
use crate::testing::{Image, KINDS};
use crate::{
    Caller, Error, FallocateMode, Fs, MountError, MountOptions, OnError, OpenFlags, SetAttr,
    Shutdown,
};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

fn why(image: &Image, options: &str) -> MountError {
    match Fs::mount(image.device(), MountOptions::parse(options).unwrap()) {
        Err(Error::Mount(e)) => *e,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it was mounted"),
    }
}

fn poke(image: &Image, offset: u64, bytes: &[u8]) {
    let mut block = vec![0; 4096];
    let at = offset & !4095;
    image
        .dev
        .read_at(at, &mut block, Tag::read(Class::Data))
        .unwrap();
    let skip = (offset - at) as usize;
    block[skip..skip + bytes.len()].copy_from_slice(bytes);
    image
        .dev
        .write_at(at, &block, Tag::new(Class::Data, Cause::Control))
        .unwrap();
}

/// The offset of an inode's slot on the device, in bytes (images with blocks of 4 KiB).
fn slot_of(image: &Image, what: &str) -> u64 {
    let text = image.debugfs(&format!("imap {what}"));
    let (_, rest) = text.split_once("at block ").unwrap();
    let (block, rest) = rest.split_once(", offset 0x").unwrap();
    let block: u64 = block.parse().unwrap();
    block * 4096 + u64::from_str_radix(rest.split_whitespace().next().unwrap(), 16).unwrap()
}

/// Makes a tree, syncs, makes more changes, and leaves the image as a crash would.
fn crashed(args: &[&str], options: &str) -> Image {
    let image = Image::new(24, args);
    let fs = image.mount(options);
    let c = Caller::root();
    let dir = fs.mkdir(&c, fs.root(), b"d", 0o755).unwrap().ino;
    for i in 0..50u32 {
        let ino = fs
            .create(&c, dir, format!("f{i}").as_bytes(), 0o644, RW)
            .unwrap()
            .ino;
        fs.write(&c, ino, 0, &i.to_le_bytes().repeat(2000)).unwrap();
        fs.release(ino).unwrap();
    }
    fs.sync().unwrap();
    for i in 0..25u32 {
        fs.unlink(&c, dir, format!("f{i}").as_bytes()).unwrap();
    }
    let ino = fs.create(&c, dir, b"never synced", 0o644, RW).unwrap().ino;
    fs.write(&c, ino, 0, b"lost").unwrap();
    image.crash_copy()
}

fn check_recovered(fs: &Fs) {
    let c = Caller::root();
    for i in 0..50u32 {
        let path = format!("/d/f{i}");
        let entry = fs.resolve(&c, path.as_bytes(), true).unwrap();
        let mut out = vec![0; 9000];
        assert_eq!(fs.read(entry.ino, 0, &mut out).unwrap(), 8000);
        assert_eq!(out[..8000], i.to_le_bytes().repeat(2000));
    }
    assert!(matches!(
        fs.resolve(&c, b"/d/never synced", true),
        Err(Error::NotFound)
    ));
}

#[test]
fn a_crash_is_recovered() {
    for (kind, args) in KINDS {
        for options in ["data=ordered", "data=journal", "data=writeback"] {
            let image = crashed(args, options);
            let dirty = superblock::load(&*image.dev).unwrap();
            assert!(
                dirty.feature_incompat.contains(FeatureIncompat::RECOVER),
                "{kind}"
            );
            // Recovered by the kernel.
            image.crash_copy().on_kernel("rw", |dir| {
                for i in 0..50u32 {
                    let content = std::fs::read(dir.join(format!("d/f{i}"))).unwrap();
                    assert!(content == i.to_le_bytes().repeat(2000), "{kind} {options}");
                }
                assert!(!dir.join("d/never synced").exists());
            });
            // Recovered by us, for writing and for reading.
            for how in ["", "ro"] {
                let image = image.crash_copy();
                let fs = image.mount(how);
                check_recovered(&fs);
                fs.unmount().unwrap();
                image.assert_clean();
                let clean = superblock::load(&*image.dev).unwrap();
                assert!(!clean.feature_incompat.contains(FeatureIncompat::RECOVER));
            }
            // With `noload`, nothing is written.
            let fs = image.mount("ro,noload");
            assert!(matches!(
                fs.mkdir(&Caller::root(), fs.root(), b"x", 0o755),
                Err(Error::ReadOnly)
            ));
            fs.unmount().unwrap();
            assert_eq!(superblock::load(&*image.dev).unwrap(), dirty);
        }
    }
}

#[test]
fn a_shutdown_is_an_honest_crash() {
    for (how, kept) in [
        (Shutdown::NoLogFlush, false),
        (Shutdown::LogFlush, true),
        (Shutdown::Full, true),
    ] {
        let image = Image::new(16, &["-t", "ext4"]);
        let fs = image.mount("");
        let c = Caller::root();
        assert!(matches!(
            fs.shutdown(&Caller::user(1, 1), how),
            Err(Error::NotPermitted)
        ));
        fs.mkdir(&c, fs.root(), b"d", 0o755).unwrap();
        fs.shutdown(&c, how).unwrap();
        assert!(matches!(fs.getattr(fs.root()), Err(Error::ShutDown)));
        assert!(matches!(fs.unmount(), Err(Error::ShutDown)));
        drop(fs);
        let fs = image.mount("");
        assert_eq!(fs.resolve(&c, b"/d", true).is_ok(), kept);
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn refusals_are_named() {
    let image = Image::new(16, &["-t", "ext4", "-O", "encrypt"]);
    let e = why(&image, "");
    assert!(
        matches!(&e, MountError::Features { names } if names == "encrypt"),
        "{e}"
    );
    let image = Image::new(16, &["-t", "ext4", "-O", "^has_journal"]);
    assert!(matches!(
        why(&image, ""),
        MountError::NoJournal { scheme: "jbd2" }
    ));
    image.mount("ro").unmount().unwrap();
    image.mount("scheme=null").unmount().unwrap();
    image.assert_clean();
    let image = Image::new(16, &["-t", "ext4", "-O", "quota"]);
    let (fs, report) = Fs::mount(image.device(), MountOptions::default()).unwrap();
    assert!(
        report.read_only && report.warnings[0].contains("quota"),
        "{report:?}"
    );
    fs.unmount().unwrap();
    let image = Image::new(16, &["-t", "ext4"]);
    assert!(matches!(
        why(&image, "data=sideways"),
        MountError::DataMode { .. }
    ));
    assert!(Fs::mount(image.device(), MountOptions::parse("scheme=nope").unwrap()).is_err());

    // The journal's inode is no longer in use.
    let image = Image::new(
        16,
        &["-t", "ext3", "-O", "^dir_index", "-I", "128", "-b", "4096"],
    );
    let sb = superblock::load(&*image.dev).unwrap();
    assert_eq!(sb.inode_size, 128);
    poke(&image, slot_of(&image, "<8>") + 0x1a, &[0, 0]);
    assert!(matches!(why(&image, ""), MountError::JournalInode { .. }));
}

#[test]
fn a_small_device_and_garbage_are_refused() {
    let image = Image::new(16, &["-t", "ext4"]);
    let half: Vec<u8> = image.with_file(|path| std::fs::read(path).unwrap()[..8 << 20].to_vec());
    let dev = Arc::new(stetfs_media::RamDev::from_image(&half));
    let refused = Fs::mount(dev, MountOptions::default());
    assert!(
        matches!(refused, Err(Error::Mount(e)) if matches!(*e, MountError::DeviceTooSmall { .. }))
    );
    let dev = Arc::new(stetfs_media::RamDev::new(1 << 20));
    assert!(matches!(
        Fs::mount(dev, MountOptions::default()),
        Err(Error::Corrupt(_))
    ));
    for size in [0, 512, 1536] {
        let dev = Arc::new(stetfs_media::RamDev::new(size));
        let refused = Fs::mount(dev, MountOptions::default());
        assert!(matches!(refused, Err(Error::Mount(e)) if matches!(*e, MountError::NoRoom { .. })));
    }
}

#[test]
fn open_and_unlinked_files_are_freed_after_a_crash() {
    for (kind, args) in KINDS {
        let image = Image::new(32, args);
        let fs = image.mount("");
        let c = Caller::root();
        let before = fs.statfs().unwrap();
        let mut open = Vec::new();
        for i in 0..5u8 {
            let name = [b'o', b'0' + i];
            let ino = fs.create(&c, fs.root(), &name, 0o644, RW).unwrap().ino;
            fs.write(&c, ino, 0, &vec![i; 700_000]).unwrap();
            fs.sync().unwrap();
            fs.unlink(&c, fs.root(), &name).unwrap();
            open.push(ino);
        }
        // Whoever has them open still reads and writes them.
        let mut out = [0; 10];
        fs.write(&c, open[3], 5, b"x").unwrap();
        assert_eq!(fs.read(open[3], 0, &mut out).unwrap(), 10);
        assert_eq!(out, [3, 3, 3, 3, 3, b'x', 3, 3, 3, 3]);
        fs.release(open[1]).unwrap();
        assert!(matches!(fs.getattr(open[1]), Err(Error::Stale)));
        fs.sync().unwrap();
        let after = image.crash_copy();
        let (again, report) = Fs::mount(after.device(), MountOptions::default()).unwrap();
        assert_eq!(report.orphans_deleted, 4, "{kind}");
        assert_eq!(again.statfs().unwrap(), before, "{kind}");
        again.unmount().unwrap();
        after.assert_clean();
        image.crash_copy().on_kernel("rw", |_| ());
        // A clean unmount frees them too.
        fs.unmount().unwrap();
        image.assert_clean();
        assert_eq!(image.mount("ro").statfs().unwrap(), before, "{kind}");
    }
}

#[test]
fn a_full_volume_says_so_and_loses_nothing() {
    for (kind, args) in KINDS {
        let image = Image::new(8, args);
        let fs = image.mount("");
        let c = Caller::user(1000, 1000);
        fs.setattr(
            &Caller::root(),
            fs.root(),
            &SetAttr {
                mode: Some(0o777),
                ..SetAttr::default()
            },
        )
        .unwrap();
        let mut files = Vec::new();
        let mut refused = 0;
        'fill: for n in 0u32.. {
            let ino = match fs.create(&c, fs.root(), format!("f{n}").as_bytes(), 0o644, RW) {
                Ok(e) => e.ino,
                Err(Error::NoSpace) => break,
                Err(e) => panic!("{kind}: {e}"),
            };
            let mut size = 0;
            for _ in 0..10 {
                match fs.write(&c, ino, size, &n.to_le_bytes().repeat(5000)) {
                    Ok(n) => size += n as u64,
                    Err(Error::NoSpace) => {
                        refused += 1;
                        break;
                    }
                    Err(e) => panic!("{kind}: {e}"),
                }
            }
            fs.release(ino).unwrap();
            files.push((n, size));
            if refused > 20 {
                break 'fill;
            }
        }
        assert!(refused > 0, "{kind}: the volume never filled");
        fs.sync().unwrap();
        let check = |fs: &Fs| {
            for (n, size) in &files {
                let e = fs.resolve(&c, format!("/f{n}").as_bytes(), true).unwrap();
                assert_eq!(e.attr.size, *size);
                let mut out = vec![0; *size as usize];
                fs.read(e.ino, 0, &mut out).unwrap();
                assert!(
                    out.chunks(4).all(|w| w == &n.to_le_bytes()[..w.len()]),
                    "{kind}"
                );
            }
        };
        check(&fs);
        let crashed = image.crash_copy();
        let again = crashed.mount("");
        check(&again);
        again.unmount().unwrap();
        crashed.assert_clean();
        for (n, _) in &files {
            fs.unlink(&c, fs.root(), format!("f{n}").as_bytes())
                .unwrap();
        }
        // The space is free again, although nobody asked for a commit.
        let ino = fs.create(&c, fs.root(), b"again", 0o644, RW).unwrap().ino;
        assert_eq!(
            fs.write(&c, ino, 0, &vec![1; 1 << 20]).unwrap(),
            1 << 20,
            "{kind}"
        );
        if !kind.contains("ext3") {
            fs.fallocate(&c, ino, FallocateMode::empty(), 0, 2 << 20)
                .unwrap();
            assert!(matches!(
                fs.fallocate(&c, ino, FallocateMode::empty(), 0, 64 << 20),
                Err(Error::NoSpace)
            ));
        }
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn damage_marks_the_volume() {
    for on_error in [OnError::Continue, OnError::RemountReadOnly] {
        let image = Image::new(16, &["-t", "ext4", "-b", "4096"]);
        let c = Caller::root();
        let fs = image.mount("");
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        fs.unmount().unwrap();
        // Now the inode's checksum is wrong.
        poke(&image, slot_of(&image, "f") + 4, &[1]);
        let options = MountOptions {
            errors: Some(on_error),
            ..MountOptions::default()
        };
        let (fs, _) = Fs::mount(image.device(), options).unwrap();
        let unsynced = fs.mkdir(&c, fs.root(), b"unsynced", 0o755).unwrap().ino;
        let found = fs.getattr(ino);
        assert!(matches!(found, Err(Error::Corrupt(_))), "{found:?}");
        assert!(fs.stats().has_errors);
        let kept = on_error == OnError::Continue;
        assert_eq!(fs.sync().is_ok(), kept, "whoever syncs is told");
        assert_eq!(fs.fsync(unsynced, false).is_ok(), kept);
        let made = fs.mkdir(&c, fs.root(), b"d", 0o755);
        match on_error {
            OnError::Continue => assert!(made.is_ok()),
            _ => assert!(matches!(made, Err(Error::ReadOnly))),
        }
        let _ = fs.unmount();
        drop(fs);
        let sb = superblock::load(&*image.dev).unwrap();
        assert_eq!(sb.error_count, 1);
        assert!(sb.first_error_time > 0 && sb.last_error_line > 0);
        assert_eq!((sb.first_error_ino, sb.last_error_ino), (ino.0, ino.0));
        // The next mount knows it, even when it replays a superblock without the mark.
        let (fs, report) = Fs::mount(image.device(), MountOptions::default()).unwrap();
        assert!(
            report.warnings.iter().any(|w| w.contains("e2fsck")),
            "{report:?}"
        );
        fs.unmount().unwrap();
        assert!(
            superblock::load(&*image.dev)
                .unwrap()
                .state
                .contains(stetfs_format::State::ERROR)
        );
    }
}

#[test]
fn counts_and_times_of_mounts_are_kept() {
    let image = Image::new(16, &["-t", "ext4"]);
    for n in 1..4 {
        image.mount("").unmount().unwrap();
        let sb = superblock::load(&*image.dev).unwrap();
        assert_eq!(sb.mnt_count, n);
        assert!(sb.mtime >= crate::testing::CLOCK_START && sb.wtime >= sb.mtime);
    }
    let before = superblock::load(&*image.dev).unwrap();
    image.mount("ro").unmount().unwrap();
    assert_eq!(superblock::load(&*image.dev).unwrap(), before);
}

#[test]
fn a_scheme_without_recovery_leaves_a_dirty_volume_alone() {
    let image = crashed(&["-t", "ext4"], "");
    let before = image.crash_copy();
    assert!(matches!(
        why(&image, "scheme=null"),
        MountError::ForeignRecovery { scheme: "null" }
    ));
    // The attempt lost nothing.
    for image in [before, image] {
        let fs = image.mount("");
        check_recovered(&fs);
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = image.mount("scheme=null");
        check_recovered(&fs);
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// The superblock says that the volume is clean, so the log's content is old and must not be
/// replayed.
#[test]
fn a_log_that_nobody_vouches_for_is_not_replayed() {
    let image = crashed(&["-t", "ext4", "-b", "4096"], "data=journal");
    superblock::store(&*image.dev, |sb| {
        sb.feature_incompat -= FeatureIncompat::RECOVER
    })
    .unwrap();
    for options in ["ro", "", ""] {
        let (fs, report) =
            Fs::mount(image.device(), MountOptions::parse(options).unwrap()).unwrap();
        assert_eq!(report.recovery.transactions, 0);
        assert!(!report.recovery.was_needed, "{report:?}");
        assert!(fs.resolve(&Caller::root(), b"/d", true).is_err());
        fs.unmount().unwrap();
    }
    image.assert_clean();
}

/// A mount reads only descriptors, so the size of the volume and the number of its files hardly
/// matter.
#[test]
fn a_large_volume_mounts_at_once() {
    let image = Image::new(16 << 10, &["-t", "ext4", "-b", "4096"]);
    let start = std::time::Instant::now();
    let fs = image.mount("");
    let mounted = start.elapsed();
    let c = Caller::root();
    for i in 0..1000u32 {
        fs.mknod(&c, fs.root(), format!("f{i}").as_bytes(), 0o644, (0, 0))
            .unwrap();
    }
    fs.unmount().unwrap();
    eprintln!("mounted in {mounted:?}");
    assert!(mounted.as_millis() < 1000, "{mounted:?}");
}

/// Blocks that are freed on the volume are freed on the device too: a RAM device gives its memory
/// back.
#[test]
fn freed_blocks_are_discarded() {
    for (options, kept) in [("discard", false), ("", true)] {
        let image = Image::new(64, &["-t", "ext4", "-b", "4096"]);
        let fs = image.mount(options);
        let c = Caller::root();
        let before = image.dev.allocated_bytes();
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        fs.write(&c, ino, 0, &vec![1; 16 << 20]).unwrap();
        fs.fsync(ino, false).unwrap();
        assert!(image.dev.allocated_bytes() > before + (16 << 20));
        fs.release(ino).unwrap();
        fs.unlink(&c, fs.root(), b"f").unwrap();
        fs.sync().unwrap();
        let left = image.dev.allocated_bytes() - before;
        assert_eq!(left > 16 << 20, kept, "{options:?}: {left}");
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// The options of the mount come first, then those that the volume carries.
#[test]
fn a_volume_carries_its_mount_options() {
    let carry = |image: &Image, text: &[u8]| {
        superblock::store(&*image.dev, |sb| {
            sb.mount_opts = [0; 64];
            sb.mount_opts[..text.len()].copy_from_slice(text);
        })
        .unwrap();
    };
    let mount = |image: &Image, options: &str| {
        let (fs, report) =
            Fs::mount(image.device(), MountOptions::parse(options).unwrap()).unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
        (report.scheme, report.data, report.warnings)
    };
    let ordered = Some(DataMode::Ordered);
    let image = Image::new(16, &["-t", "ext4"]);
    for (carried, options, scheme, data) in [
        ("scheme=stet,fill=20,discard,nobody", "", "stet", None),
        ("scheme=stet", "fill=30", "stet", None),
        ("scheme=stet,fill=0", "scheme=null", "null", None),
        ("scheme=stet,data=ordered", "scheme=jbd2", "jbd2", ordered),
        ("data=ordered", "", "jbd2", ordered),
        (
            "data=ordered",
            "data=journal",
            "jbd2",
            Some(DataMode::Journal),
        ),
    ] {
        carry(&image, carried.as_bytes());
        let (found, mode, warnings) = mount(&image, options);
        assert_eq!((found, mode), (scheme, data), "{carried}; {options}");
        assert!(warnings.is_empty(), "{warnings:?}");
    }
    // The field's 64 bytes are all used, without a NUL.
    carry(&image, &[b'x'; 64]);
    assert_eq!(mount(&image, "").0, "jbd2");
    carry(&image, b"scheme=stet,fill=0");
    let fails = |options: &str| {
        Fs::mount(image.device(), MountOptions::parse(options).unwrap())
            .err()
            .expect("it is refused")
            .to_string()
    };
    assert!(fails("").contains("fill=0"), "{}", fails(""));
    assert!(fails("fill=20,data=ordered").contains("data=ordered"));

    // The volume names an unknown scheme; then one that cannot replay the volume's log.
    carry(&image, b"scheme=nope");
    let (scheme, _, warnings) = mount(&image, "");
    assert_eq!(scheme, "jbd2");
    assert!(warnings[0].contains("nope"), "{warnings:?}");
    let image = crashed(&["-t", "ext4"], "");
    carry(&image, b"scheme=stet");
    let (scheme, _, warnings) = mount(&image, "");
    assert_eq!(scheme, "jbd2");
    assert!(warnings[0].contains("scheme=stet"), "{warnings:?}");
    // The replay brought back an older superblock.
    carry(&image, b"scheme=stet");
    assert_eq!(mount(&image, "").0, "stet");
    let image = crashed(&["-t", "ext4"], "");
    carry(&image, b"scheme=stet,log=jbd2");
    assert_eq!(mount(&image, "").0, "stet");
}

/// Makes a volume on flash; returns its part, its translation layer and the mount.
fn on_flash(image: &Image, options: &str) -> (Arc<NandSim>, Arc<Ftl>, Fs) {
    let part = NandOptions {
        record: false,
        ..NandOptions::new(parts::JFTL.flawless())
    };
    let nand = Arc::new(part.build());
    let mount = FtlMount {
        checkpoint_at_end: true,
        ..FtlMount::default()
    };
    let ftl = Ftl::create(nand.clone(), [7; 16], &FtlOptions::default(), mount);
    let ftl = Arc::new(ftl.unwrap());
    let mut content = vec![0; image.dev.size() as usize];
    image
        .dev
        .read_at(0, &mut content, Tag::read(Class::Data))
        .unwrap();
    ftl.write_at(0, &content, Tag::new(Class::Data, Cause::Home))
        .unwrap();
    let mut options = MountOptions::parse(options).unwrap();
    options.commit = std::time::Duration::MAX;
    let (fs, _) = Fs::mount(ftl.clone(), options).unwrap();
    let c = Caller::root();
    let file = fs.create(&c, fs.root(), b"file", 0o644, RW).unwrap();
    fs.write(&c, file.ino, 0, &[7; 50_000]).unwrap();
    fs.release(file.ino).unwrap();
    (nand, ftl, fs)
}

/// Once, the translation layer wrote its checkpoint when its last holder let go. If the process
/// ended before one of its threads did, the next mount had to scan the part, and its counts were
/// lost.
#[test]
fn an_unmount_closes_the_device_whoever_still_holds_it() {
    let image = Image::new(12, &["-t", "ext4", "-b", "1024"]);
    for options in ["scheme=jbd2", "scheme=jftl", "nobarrier"] {
        let (nand, ftl, fs) = on_flash(&image, options);
        let scanned = |nand: &Arc<NandSim>| {
            let found = Inspection::new(nand.clone()).unwrap();
            (found.report.data_pages, found.info().stats.host_pages)
        };
        assert!(scanned(&nand).0 > 0, "{options}: nothing to scan before");
        fs.unmount().unwrap();
        assert_eq!(scanned(&nand), (0, ftl.stats().host_pages), "{options}");
        // The checkpoint is not written twice.
        let before = nand.meter().snapshot();
        drop((fs, ftl));
        let after = nand.meter().snapshot() - &before;
        assert_eq!(after.total().writes, 0, "{options}");
    }
}

#[test]
fn an_unmount_says_that_the_device_could_not_be_closed() {
    let image = Image::new(12, &["-t", "ext4", "-b", "1024"]);
    let (nand, _, fs) = on_flash(&image, "scheme=jbd2");
    let before = nand.meter().snapshot();
    fs.unmount().unwrap();
    let programs = (nand.meter().snapshot() - &before).total().writes;
    let (nand, _, fs) = on_flash(&image, "scheme=jbd2");
    // The last two writes are the anchors, of which one is enough.
    nand.inject(Fault::nth(Op::Write, programs - 3).for_good());
    let failed = fs.unmount().expect_err("the checkpoint is not there");
    assert_eq!(failed.kind(), crate::Kind::Io);
    // The volume is clean nevertheless.
    let mount = FtlMount {
        read_only: true,
        ..FtlMount::default()
    };
    let sb = superblock::load(&Ftl::mount(nand, mount).unwrap()).unwrap();
    assert!(!sb.feature_incompat.contains(FeatureIncompat::RECOVER));
}
