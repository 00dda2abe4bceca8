//! Delayed data: new data that is in no transaction.

use std::time::Duration;

use stetfs_format::InodeNo;
use stetfs_media::Class;

use crate::testing::{Image, KINDS};
use crate::{Caller, FallocateMode, Fs, MountOptions, OpenFlags, SetAttr};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

const KIB: u64 = 1 << 10;

fn content(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at / 5 + seed * 31) as u8).collect()
}

/// Makes a file, writes it and closes it.
fn make(fs: &Fs, seed: u64, len: u64) -> InodeNo {
    let (c, name) = (Caller::root(), format!("file-{seed}"));
    let ino = fs
        .create(&c, fs.root(), name.as_bytes(), 0o644, RW)
        .unwrap();
    assert_eq!(
        fs.write(&c, ino.ino, 0, &content(seed, len)).unwrap(),
        len as usize
    );
    fs.release(ino.ino).unwrap();
    ino.ino
}

fn remove(fs: &Fs, seed: u64) {
    let name = format!("file-{seed}");
    fs.unlink(&Caller::root(), fs.root(), name.as_bytes())
        .unwrap();
}

fn check(fs: &Fs, seed: u64, len: u64) {
    let name = format!("/file-{seed}");
    let entry = fs.resolve(&Caller::root(), name.as_bytes(), false).unwrap();
    assert_eq!(entry.attr.size, len);
    let mut out = vec![0; len as usize];
    assert_eq!(fs.read(entry.ino, 0, &mut out).unwrap(), len as usize);
    assert!(out == content(seed, len), "{name}");
}

/// Bytes of file data that were written to the device.
fn written(fs: &Fs) -> u64 {
    fs.stats().device.by_class(Class::Data).write_bytes
}

/// Options with which nothing happens by the clock.
fn options(list: &str) -> MountOptions {
    MountOptions {
        commit: Duration::MAX,
        ..MountOptions::parse(list).unwrap()
    }
}

fn mount(image: &Image, options: MountOptions) -> Fs {
    Fs::mount(image.device(), options).unwrap().0
}

#[test]
fn what_is_removed_while_delayed_never_reaches_the_device() {
    for data in ["ordered", "writeback"] {
        for (delays, list) in [
            (true, ""),
            (false, ",nodelalloc"),
            (false, ",dirty_expire=0"),
        ] {
            let image = Image::new(32, KINDS[0].1);
            let fs = mount(&image, options(&format!("data={data}{list}")));
            for seed in 0..40 {
                make(&fs, seed, 100 * KIB);
                fs.commit().unwrap();
                assert_eq!(fs.stats().journal.delayed_bytes > 0, delays);
                remove(&fs, seed);
            }
            assert_eq!(written(&fs) == 0, delays, "{data}{list}");
            assert_eq!(fs.stats().journal.delayed_bytes, 0);
            fs.unmount().unwrap();
            image.assert_clean();
        }
    }
}

/// Its room in the log is free for others again, as with jbd2_journal_forget.
#[test]
fn what_is_removed_again_brings_no_commit() {
    for data in ["journal", "ordered"] {
        let image = Image::new(32, KINDS[0].1);
        let fs = mount(&image, options(&format!("data={data}")));
        fs.commit().unwrap();
        let before = fs.stats().journal;
        for seed in 0..400 {
            make(&fs, seed, 100 * KIB);
            // First a part of the file goes, then the rest.
            let ino = fs.resolve(&Caller::root(), format!("/file-{seed}").as_bytes(), false);
            let size = Some(30 * KIB + seed);
            let cut = SetAttr {
                size,
                ..SetAttr::default()
            };
            fs.setattr(&Caller::root(), ino.unwrap().ino, &cut).unwrap();
            remove(&fs, seed);
        }
        let after = fs.stats().journal;
        assert_eq!(after.commits, before.commits, "{data}");
        fs.commit().unwrap();
        let after = fs.stats().journal;
        assert!(after.meta_blocks - before.meta_blocks < 40, "{data}");
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// A hole makes two runs of one, and each is charged for. Once, only one was, and the removal gave
/// two back, so that the log could run out of room.
#[test]
fn a_split_run_is_charged_for() {
    let (c, block) = (Caller::root(), 4 * KIB);
    for list in ["data=journal", "data=ordered,nodelalloc"] {
        let image = Image::new(32, KINDS[0].1);
        let fs = mount(&image, options(list));
        let many: u64 = 6;
        for seed in 0..many {
            make(&fs, seed, 16 * block);
            let name = format!("/file-{seed}");
            let ino = fs.resolve(&c, name.as_bytes(), false).unwrap().ino;
            let how = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
            // Two holes in the middle, one of which has partial blocks at its ends.
            for hole in [3 * block..5 * block, 7 * block + 10..12 * block - 10] {
                fs.fallocate(&c, ino, how, hole.start, hole.end - hole.start)
                    .unwrap();
            }
        }
        (0..many).for_each(|seed| remove(&fs, seed));
        // A debug build compares what is logged with what was charged.
        fs.commit().unwrap();
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// The size that a truncate set is in a hole. An append in the same block is delayed, and the size
/// must stay: an fsync between the two may have confirmed it.
#[test]
fn a_size_that_was_set_is_not_lost_with_delayed_data() {
    let (c, size) = (Caller::root(), 9 * KIB + 300);
    for by_fallocate in [false, true] {
        let image = Image::new(32, KINDS[0].1);
        let fs = mount(&image, options("data=ordered"));
        let ino = make(&fs, 1, 5 * KIB);
        if by_fallocate {
            let mode = FallocateMode::empty();
            fs.fallocate(&c, ino, mode, 0, size).unwrap();
        } else {
            let set = SetAttr {
                size: Some(size),
                ..SetAttr::default()
            };
            fs.setattr(&c, ino, &set).unwrap();
        }
        // As an fsync does that is under way when the append comes.
        fs.expire().unwrap();
        fs.write(&c, ino, size, &content(2, 10 * KIB)).unwrap();
        fs.commit().unwrap();
        let left = image.crash_copy().mount("ro");
        let attr = left.resolve(&c, b"/file-1", false).unwrap().attr;
        assert_eq!(attr.size, size, "by fallocate: {by_fallocate}");
        fs.unmount().unwrap();
    }
}

#[test]
fn delayed_data_is_bounded_by_the_memory() {
    let image = Image::new(64, KINDS[0].1);
    let list = "data=ordered,memory=8M";
    let few = MountOptions {
        inodes: Some(0),
        ..options(list)
    };
    let fs = mount(&image, few);
    let mut most = 0;
    for seed in 0..60 {
        make(&fs, seed, 300 * KIB + seed);
        most = most.max(fs.stats().journal.delayed_bytes);
    }
    // Half of what the block caches have, which is half of the memory, and one write more.
    assert!(most > KIB << 10 && most < (2 << 20) + 400 * KIB, "{most}");
    (0..60).for_each(|seed| check(&fs, seed, 300 * KIB + seed));
    fs.unmount().unwrap();
    image.assert_clean();
    let fs = image.mount("ro");
    (0..60).for_each(|seed| check(&fs, seed, 300 * KIB + seed));
}

#[test]
fn what_was_delayed_long_enough_is_in_the_next_commit() {
    let image = Image::new(32, KINDS[0].1);
    let fs = mount(&image, options("data=ordered"));
    make(&fs, 1, 50 * KIB);
    fs.commit().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    assert_eq!(written(&fs), 0);
    fs.expire().unwrap();
    assert_eq!((written(&fs), fs.stats().journal.delayed_bytes), (0, 0));
    fs.commit().unwrap();
    assert!(written(&fs) >= 50 * KIB);
    // The blocks counted as used all along.
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    check(&fs, 1, 50 * KIB);
}

/// Otherwise a block would get a home while one before it is delayed, and the stored size could not
/// end where the first delayed block starts.
#[test]
fn what_is_written_before_what_has_joined_is_not_delayed() {
    let image = Image::new(32, KINDS[0].1);
    let fs = mount(&image, options("data=ordered"));
    let (c, block) = (Caller::root(), fs.statfs().unwrap().block_size);
    let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
    let delays_after = |lblk: u64| {
        fs.write(&c, ino, lblk * u64::from(block), &[1; 10])
            .unwrap();
        fs.stats().journal.delayed_bytes > 0
    };
    assert!(delays_after(20) && delays_after(10));
    fs.expire().unwrap();
    assert!(!delays_after(5) && !delays_after(15));
    assert!(delays_after(21));
    fs.unmount().unwrap();
    image.assert_clean();
}

/// fdatasync takes a transaction for a new size or a new block. It takes none for times, nor for
/// overwritten data, unless data is journaled.
#[test]
fn overwritten_data_is_synced_without_a_transaction() {
    for (data, is_journaled) in [("ordered", false), ("writeback", false), ("journal", true)] {
        let image = Image::new(32, KINDS[0].1);
        let fs = mount(&image, options(&format!("data={data}")));
        let (c, ino) = (Caller::root(), make(&fs, 1, 10_000));
        make(&fs, 2, 1000);
        fs.sync().unwrap();
        let sync = |offset: u64, bytes: &[u8]| {
            let before = fs.stats().journal;
            fs.write(&c, ino, offset, bytes).unwrap();
            fs.fsync(ino, true).unwrap();
            let now = fs.stats().journal;
            let overwritten = now.overwritten_blocks - before.overwritten_blocks;
            (now.commits - before.commits, overwritten)
        };
        // Nobody syncs this removal.
        remove(&fs, 2);
        let expected = if is_journaled { (1, 0) } else { (0, 1) };
        assert_eq!(sync(500, &[1; 2000]), expected, "{data}");
        assert_eq!(sync(9990, &[2; 20]), (1, 0), "{data}: the size");
        assert_eq!(sync(40_000, &[3; 20]), (1, 0), "{data}: a block");
        fs.unmount().unwrap();
        image.assert_clean();
    }
}
