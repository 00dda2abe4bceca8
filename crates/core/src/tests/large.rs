//! Large files: beyond 4 GiB, and through three levels of block pointers.

use crate::testing::Image;
use crate::{Caller, Error, FallocateMode, OpenFlags, SetAttr, Whence};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn sparse_beyond_four_gibibytes() {
    for (args, step) in [
        (&["-t", "ext4", "-b", "4096"][..], 600_000_000_000u64),
        (&["-t", "ext4", "-b", "1024"], 300_000_000_000),
        (&["-t", "ext3", "-b", "4096"], 200_000_000_000),
        (&["-t", "ext3", "-b", "1024"], 1_500_000_000),
    ] {
        let image = Image::new(32, args);
        let fs = image.mount("");
        let c = Caller::root();
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        let places: Vec<u64> = (0..11).map(|i| i * step + i * 77).collect();
        for &at in &places {
            fs.write(&c, ino, at, &at.to_le_bytes().repeat(100))
                .unwrap();
        }
        fs.sync().unwrap();
        let check = |fs: &crate::Fs| {
            let ino = fs.resolve(&c, b"/f", true).unwrap().ino;
            for &at in &places {
                let mut out = vec![1; 808];
                let n = fs.read(ino, at, &mut out).unwrap();
                assert_eq!(out[..800], at.to_le_bytes().repeat(100));
                assert!(out[800..n].iter().all(|&b| b == 0));
            }
            let hole = fs.seek(ino, step / 2, Whence::Data).unwrap();
            let block = fs.getattr(ino).unwrap().blksize as u64;
            assert_eq!(hole, places[1] & !(block - 1));
        };
        check(&fs);
        fs.release(ino).unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = image.mount("");
        check(&fs);
        // Truncate it to the middle, punch a hole, and remove it.
        let ino = fs.resolve(&c, b"/f", true).unwrap().ino;
        let set = SetAttr {
            size: Some(places[8] + 3),
            ..SetAttr::default()
        };
        fs.setattr(&c, ino, &set).unwrap();
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        fs.fallocate(&c, ino, mode, places[2], places[5] - places[2])
            .unwrap();
        assert_eq!(
            fs.seek(ino, places[2] + 4096, Whence::Data).unwrap() >> 12,
            places[5] >> 12
        );
        fs.sync().unwrap();
        image.crash_copy().on_kernel("ro,noload", |_| ());
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = image.mount("");
        fs.unlink(&c, fs.root(), b"f").unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn the_largest_sizes_are_those_of_the_kernel() {
    // Sizes that the kernel's ext4 allows: s_maxbytes with extents, s_bitmap_maxbytes without.
    for (args, limit) in [
        (
            &["-t", "ext4", "-b", "4096"][..],
            (u64::from(u32::MAX)) << 12,
        ),
        (&["-t", "ext4", "-b", "1024"], (u64::from(u32::MAX)) << 10),
    ] {
        let image = Image::new(16, args);
        let fs = image.mount("");
        let c = Caller::root();
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        let set = |size| SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        assert!(matches!(
            fs.setattr(&c, ino, &set(limit + 1)),
            Err(Error::TooBig)
        ));
        fs.setattr(&c, ino, &set(limit)).unwrap();
        assert_eq!(fs.write(&c, ino, limit - 3, b"abcdef").unwrap(), 3);
        assert!(matches!(fs.write(&c, ino, limit, b"x"), Err(Error::TooBig)));
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// Truncates a file of many pieces, with a deep tree, in several handles, with a crash between
/// them.
#[test]
fn a_long_truncate_is_finished_after_a_crash() {
    for args in [
        &["-t", "ext4", "-b", "1024", "-J", "size=4"][..],
        &["-t", "ext3", "-b", "1024", "-J", "size=4"],
    ] {
        let image = Image::new(64, args);
        let fs = image.mount("");
        let c = Caller::root();
        let free = fs.statfs().unwrap().blocks_free;
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        for i in 0..12_000u64 {
            fs.write(&c, ino, i * 2048, &i.to_le_bytes()).unwrap();
        }
        fs.sync().unwrap();
        let before = image.crash_copy();
        fs.setattr(
            &c,
            ino,
            &SetAttr {
                size: Some(5),
                ..SetAttr::default()
            },
        )
        .unwrap();
        let during = image.crash_copy();
        fs.release(ino).unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
        for crashed in [before, during] {
            let fs = crashed.mount("");
            let e = fs.resolve(&c, b"/f", true).unwrap();
            let mut out = [0; 8];
            assert_eq!(
                fs.read(e.ino, 0, &mut out).unwrap(),
                e.attr.size.min(8) as usize
            );
            assert!(e.attr.size == 5 || e.attr.size == 11_999 * 2048 + 8);
            fs.unlink(&c, fs.root(), b"f").unwrap();
            assert_eq!(fs.statfs().unwrap().blocks_free, free);
            fs.unmount().unwrap();
            crashed.assert_clean();
        }
    }
}
