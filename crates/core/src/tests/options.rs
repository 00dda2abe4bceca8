//! Mount options of ext4, and mounts of volumes that have something wrong with them.

use std::process::Command;
use std::sync::Arc;

use stetfs_media::{BlockDev, Cause, Class, RamDev, Tag};

use crate::mount::superblock;
use crate::testing::Image;
use crate::{Caller, Error, Fs, MountError, MountOptions, MountReport, OpenFlags};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A volume of 24 MiB with blocks of 1 KiB: the second group begins with a copy of the superblock.
const ARGS: [&str; 4] = ["-t", "ext4", "-b", "1024"];
const COPY: u64 = 8193;

fn try_mount(image: &Image, options: &str) -> Result<(Fs, MountReport), Error> {
    Fs::mount(image.device(), MountOptions::parse(options).unwrap())
}

#[track_caller]
fn why(image: &Image, options: &str) -> MountError {
    match try_mount(image, options) {
        Err(Error::Mount(e)) => *e,
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("it was mounted"),
    }
}

fn make(fs: &Fs, name: &[u8], content: &[u8]) {
    let c = Caller::root();
    let ino = fs.create(&c, fs.root(), name, 0o644, RW).unwrap().ino;
    fs.write(&c, ino, 0, content).unwrap();
    fs.release(ino).unwrap();
}

/// A copy of the image that debugfs has changed.
fn changed(image: &Image, request: &str) -> Image {
    image.with_file(|path| {
        let mut debugfs = Command::new("debugfs");
        let done = debugfs.args(["-w", "-R", request]).arg(path).output();
        assert!(done.unwrap().status.success(), "{request}");
        Image {
            dev: Arc::new(RamDev::from_file(path).unwrap()),
        }
    })
}

/// A copy of the volume without its first superblock.
fn without_superblock(image: &Image) -> Image {
    let copy = image.crash_copy();
    let tag = Tag::new(Class::Superblock, Cause::Control);
    copy.dev.write_at(1024, &[0; 1024], tag).unwrap();
    copy
}

#[test]
fn who_may_have_roots_blocks() {
    let image = Image::new(24, &[&ARGS[..], &["-m", "20"]].concat());
    for (options, who, whose) in [
        ("", None, None),
        ("resuid=77", Some(77), None),
        ("resgid=0x58", None, Some(88)),
        ("resuid=77,resgid=88", Some(77), Some(88)),
    ] {
        let fs = image.mount(options);
        let room = |uid, gid| fs.room(&Caller::user(uid, gid));
        let (others, roots) = (room(1, 1), fs.room(&Caller::root()));
        assert!(others < roots, "{options}");
        let expected = |may| if may { roots } else { others };
        assert_eq!(room(77, 1), expected(who == Some(77)), "{options}");
        assert_eq!(room(1, 88), expected(whose == Some(88)), "{options}");
        fs.unmount().unwrap();
    }
}

/// As in the kernel, a directory of the maximum size gets no further block (`ext4_append`).
#[test]
fn a_directory_grows_no_further_than_it_may() {
    let image = Image::new(24, &ARGS);
    let fs = image.mount("max_dir_size_kb=4");
    let c = Caller::root();
    let dir = fs.mkdir(&c, fs.root(), b"d", 0o755).unwrap().ino;
    let mut made = 0;
    let refused = loop {
        let name = format!("a-name-that-takes-some-room-{made:04}");
        match fs.create(&c, dir, name.as_bytes(), 0o644, RW) {
            Ok(file) => fs.release(file.ino).unwrap(),
            Err(e) => break e,
        }
        made += 1;
        assert!(made < 1000, "nothing was refused");
    };
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    assert!(made > 50, "{made}");
    let size = fs.getattr(dir).unwrap().size;
    assert!((4096..=5120).contains(&size), "{size}");
    // Another directory still has room.
    make(&fs, b"elsewhere", b"x");
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn minixdf_counts_all_blocks() {
    let image = Image::new(24, &ARGS);
    let (plain, minix) = (image.mount("bsddf"), image.mount("ro,minixdf"));
    let (plain, minix) = (plain.statfs().unwrap(), minix.statfs().unwrap());
    assert_eq!(minix.blocks, 24 * 1024);
    assert!(plain.blocks < minix.blocks);
    assert_eq!(plain.blocks_free, minix.blocks_free);
}

/// Mounts by a copy of the superblock, in every state that a volume can be left in. The copy does
/// not know that state.
#[test]
fn by_a_copy_of_the_superblock() {
    for (scheme, is_crashed) in [
        ("data=journal", false),
        ("data=journal", true),
        ("scheme=stet", false),
        ("scheme=stet", true),
    ] {
        let what = format!("{scheme}, crashed: {is_crashed}");
        let image = Image::new(24, &ARGS);
        let fs = image.mount(scheme);
        make(&fs, b"file", b"here");
        fs.sync().unwrap();
        let left = if is_crashed {
            image.crash_copy()
        } else {
            fs.unmount().unwrap();
            image.clone()
        };
        let left = without_superblock(&left);
        assert!(try_mount(&left, "").is_err(), "{what}");
        let at = format!("sb={COPY}");
        let before = left.crash_copy();
        assert!(try_mount(&left, &format!("{at},scheme=jftl")).is_err());
        assert!(try_mount(&left, "").is_err(), "a refused mount has written");
        let (fs, report) = try_mount(&left, &at).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(
            report.warnings.iter().any(|w| w.contains("8193")),
            "{report:?}"
        );
        let found = fs.lookup(&Caller::root(), fs.root(), b"file").unwrap().ino;
        let mut out = [0; 10];
        assert_eq!(fs.read(found, 0, &mut out).unwrap(), 4, "{what}");
        assert_eq!(&out[..4], b"here", "{what}");
        make(&fs, b"more", b"x");
        fs.unmount().unwrap();
        left.assert_clean();
        // The first superblock is there again.
        try_mount(&left, "").unwrap().0.unmount().unwrap();
        left.assert_clean();
        // It is also there in memory alone.
        let over = Arc::new(stetfs_media::Overlay::new(before.device()));
        let read = MountOptions::parse(&format!("{at},ro")).unwrap();
        let (fs, _) = Fs::mount(over, read).unwrap();
        fs.lookup(&Caller::root(), fs.root(), b"file").unwrap();
        drop(fs);
        assert!(try_mount(&before, "").is_err(), "{what}");
    }
}

#[test]
fn a_sound_superblock_is_newer_than_its_copy() {
    let image = Image::new(24, &ARGS);
    let (fs, report) = try_mount(&image, &format!("sb={COPY}")).unwrap();
    assert_eq!(report.warnings, [""; 0]);
    fs.unmount().unwrap();
    image.assert_clean();
    for at in [COPY + 1, 1 << 30] {
        let refused = why(&image, &format!("sb={at}"));
        assert!(matches!(refused, MountError::NoCopy { .. }), "{refused}");
    }
}

/// As in the kernel: `noload` writes to a clean volume without a journal, and only reads one that
/// is not clean.
#[test]
fn noload_leaves_the_journal_alone() {
    for args in [&ARGS[..], &["-t", "ext4", "-O", "^has_journal"]] {
        let image = Image::new(24, args);
        let (fs, report) = try_mount(&image, "noload").unwrap();
        assert_eq!(report.scheme, "null");
        assert!(report.warnings[0].contains("e2fsck"), "{report:?}");
        make(&fs, b"file", b"x");
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = image.mount("ro");
        fs.lookup(&Caller::root(), fs.root(), b"file").unwrap();
    }
    let image = Image::new(24, &ARGS);
    let fs = image.mount("");
    make(&fs, b"file", b"x");
    fs.sync().unwrap();
    let left = image.crash_copy();
    assert!(matches!(why(&left, "noload"), MountError::NoloadWritable));
    try_mount(&left, "ro,noload").unwrap();
}

/// Once, the scheme was "(unknown)", because the journal was not looked at.
#[test]
fn noload_knows_whose_the_log_is() {
    let image = Image::new(24, &ARGS);
    let fs = image.mount("scheme=stet");
    make(&fs, b"file", b"x");
    fs.sync().unwrap();
    let left = image.crash_copy();
    for options in ["ro,noload", "noload", "ro,noload,scheme=stet"] {
        match why(&left, options) {
            MountError::PrivateLog { scheme } => assert_eq!(scheme, "stet", "{options}"),
            other => panic!("{options}: {other}"),
        }
    }
}

/// The kernel takes such an entry off the list, marks the volume, and goes on. Once, we refused the
/// mount.
#[test]
fn what_is_no_orphan_is_taken_off_the_list() {
    let whole = Image::new(24, &[&ARGS[..], &["-e", "continue"]].concat());
    let fs = whole.mount("");
    make(&fs, b"file", b"x");
    fs.unmount().unwrap();
    for bad in [7, 2, 9_999_999, 4000] {
        let image = changed(&whole, &format!("ssv last_orphan {bad}"));
        let (fs, report) = try_mount(&image, "").unwrap_or_else(|e| panic!("{bad}: {e}"));
        assert!(report.warnings[0].contains("orphan"), "{bad}: {report:?}");
        make(&fs, b"more", b"x");
        fs.unmount().unwrap();
        let sb = superblock::load(&*image.dev).unwrap();
        assert_eq!(sb.last_orphan, 0, "{bad}");
        assert!(sb.error_count > 0, "{bad}");
        // The named inode is unchanged.
        let fs = image.mount("ro");
        fs.lookup(&Caller::root(), fs.root(), b"file").unwrap();
    }
    // A volume that wants to be read-only after an error is read-only.
    let image = changed(&whole, "ssv last_orphan 7");
    let (fs, report) = try_mount(&image, "errors=remount-ro").unwrap();
    assert!(report.read_only);
    drop(fs);
}
