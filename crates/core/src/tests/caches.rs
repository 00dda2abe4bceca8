//! The caches: what they keep in memory, and what they must not change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::testing::Image;
use crate::{Caller, Error, FiemapFlags, Fs, MountOptions, OpenFlags, SetAttr};
use stetfs_format::InodeNo;
use stetfs_media::{BlockDev, Class, Uncached};

const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn a_volume_can_be_shared_between_threads() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    shared::<Fs>();
}

/// Makes more inodes than the cache keeps, some with delayed data.
#[test]
fn inodes_leave_memory_and_come_back() {
    let image = Image::new(96, &["-t", "ext4", "-b", "4096", "-N", "20000"]);
    let fs = image.mount("memory=8M");
    let c = Caller::root();
    for i in 0..12_000u32 {
        let ino = fs
            .create(&c, fs.root(), format!("f{i}").as_bytes(), 0o644, RW)
            .unwrap()
            .ino;
        if i % 5 == 0 {
            fs.write(&c, ino, 0, &i.to_le_bytes()).unwrap();
        }
        fs.release(ino).unwrap();
    }
    fs.sync().unwrap();
    for i in 0..12_000u32 {
        let ino = fs
            .lookup(&c, fs.root(), format!("f{i}").as_bytes())
            .unwrap()
            .ino;
        let mut out = [0; 9];
        let n = fs.read(ino, 0, &mut out).unwrap();
        assert_eq!(n, if i % 5 == 0 { 4 } else { 0 });
        assert!(i % 5 != 0 || out[..4] == i.to_le_bytes());
        // Loaded and not changed: nothing to wait for.
        fs.fsync(ino, false).unwrap();
    }
    let kept = fs.stats().inodes_cached;
    assert!(kept < 4000, "{kept} inodes in memory");
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Makes no commits, and reads nothing but data.
#[test]
fn reading_alone_does_not_fill_the_memory() {
    let image = Image::new(64, &["-t", "ext4", "-b", "4096"]);
    let fs = image.mount("memory=8M,noatime");
    let c = Caller::root();
    let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
    let bytes = vec![7; 1 << 20];
    for at in 0..32 {
        fs.write(&c, ino, at << 20, &bytes).unwrap();
    }
    fs.unmount().unwrap();
    let dev = Arc::new(Uncached(image.dev.clone()));
    let options = MountOptions::parse("memory=8M,noatime").unwrap();
    let (fs, _) = Fs::mount(dev as Arc<dyn BlockDev>, options).unwrap();
    let mut out = vec![0; 4096];
    for at in (0..32 << 20).step_by(out.len()) {
        assert_eq!(fs.read(ino, at, &mut out).unwrap(), out.len());
    }
    let kept = fs.stats().journal.cached_bytes;
    assert!(
        (1 << 20..=5 << 20).contains(&kept),
        "{kept} bytes in memory"
    );
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Otherwise the memory would count as full of data that is long gone.
#[test]
fn what_a_file_loses_is_not_counted_any_more() {
    const LEN: u64 = 1 << 20;
    let image = Image::new(64, &["-t", "ext4", "-b", "4096"]);
    for mode in ["data=journal,noatime", "data=ordered,noatime"] {
        let fs = image.mount(mode);
        let c = Caller::root();
        let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
        let cached = || fs.stats().journal.cached_bytes;
        for is_synced in [false, true, false] {
            let before = cached();
            fs.write(&c, ino, 0, &vec![7; LEN as usize]).unwrap();
            assert!(cached() >= before + LEN, "{mode}");
            if is_synced {
                fs.sync().unwrap();
            }
            let nothing = SetAttr {
                size: Some(0),
                ..SetAttr::default()
            };
            fs.setattr(&c, ino, &nothing).unwrap();
            let left = cached().saturating_sub(before);
            assert!(left < LEN / 4, "{mode}, synced {is_synced}: {left} bytes");
        }
        fs.unlink(&c, fs.root(), b"f").unwrap();
        fs.release(ino).unwrap();
        fs.unmount().unwrap();
    }
    image.assert_clean();
}

#[test]
fn fsync_of_what_is_durable_writes_nothing() {
    let image = Image::new(16, &["-t", "ext4"]);
    let fs = image.mount("noatime");
    let c = Caller::root();
    let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
    fs.write(&c, ino, 0, b"x").unwrap();
    fs.fsync(ino, false).unwrap();
    let before = image.dev.meter().snapshot();
    for _ in 0..10 {
        fs.fsync(ino, false).unwrap();
        fs.fsync(ino, true).unwrap();
        fs.read(ino, 0, &mut [0; 1]).unwrap();
    }
    let after = image.dev.meter().snapshot();
    assert_eq!(before.total().writes, after.total().writes);
    assert_eq!(before.total_flushes(), after.total_flushes());
    fs.unmount().unwrap();
}

#[test]
fn fiemap_tells_what_is_delayed_and_what_is_unwritten() {
    let image = Image::new(16, &["-t", "ext4", "-b", "4096"]);
    let fs = image.mount("");
    let c = Caller::root();
    let ino = fs.create(&c, fs.root(), b"f", 0o644, RW).unwrap().ino;
    fs.write(&c, ino, 0, &[1; 8192]).unwrap();
    fs.fallocate(&c, ino, crate::FallocateMode::empty(), 16_384, 16_384)
        .unwrap();
    fs.write(&c, ino, 20_480, &[1; 4096]).unwrap();
    let map = |offset, len| {
        let mut found = Vec::new();
        fs.fiemap(ino, offset, len, &mut |e| {
            found.push((e.logical, e.length, e.flags, e.physical != 0));
            true
        })
        .unwrap();
        found
    };
    let delayed = FiemapFlags::UNKNOWN | FiemapFlags::DELALLOC;
    let unwritten = FiemapFlags::UNWRITTEN;
    let last = FiemapFlags::LAST;
    assert_eq!(
        map(0, u64::MAX),
        [
            (0, 8192, delayed, false),
            (16_384, 4096, unwritten, true),
            (20_480, 4096, delayed, false),
            (24_576, 8192, unwritten | last, true),
        ]
    );
    fs.sync().unwrap();
    let none = FiemapFlags::empty();
    assert_eq!(
        map(0, u64::MAX),
        [
            (0, 8192, none, true),
            (16_384, 4096, unwritten, true),
            (20_480, 4096, none, true),
            (24_576, 8192, unwritten | last, true),
        ]
    );
    assert_eq!(map(4096, 4096), [(4096, 4096, none, true)]);
    assert_eq!(map(8192, 8192), []);
    fs.unmount().unwrap();
    image.assert_clean();
}

#[test]
fn without_barriers_nothing_is_flushed() {
    let image = Image::new(16, &["-t", "ext4"]);
    for (options, flushes) in [("nobarrier", false), ("", true)] {
        let before = image.dev.meter().snapshot();
        let fs = image.mount(options);
        let c = Caller::root();
        fs.mkdir(&c, fs.root(), format!("d{flushes}").as_bytes(), 0o755)
            .unwrap();
        fs.sync().unwrap();
        fs.unmount().unwrap();
        let after = image.dev.meter().snapshot();
        let count = |m: stetfs_media::MeterSnapshot| m.total_flushes() + m.total_durable_writes();
        assert_eq!(count(after) > count(before), flushes, "{options}");
        image.assert_clean();
    }
}

/// A reader of a number that changes owners gets the new inode, or `Stale`. Once, a new inode's
/// slot was written in pieces, each under its own lock; in between, the slot held the new inode
/// with the old one's checksum.
#[test]
fn a_number_that_changes_owners_is_never_half_an_inode() {
    let image = Image::new(32, &["-t", "ext4", "-b", "4096"]);
    let fs = image.mount("memory=8M");
    let c = Caller::root();
    let ino = fs.create(&c, fs.root(), b"f", 0o600, RW).unwrap().ino;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let mut found = 0;
            while !is_over.load(Ordering::Relaxed) {
                match fs.getattr(ino) {
                    Ok(_) => found += 1,
                    Err(Error::Stale) => {}
                    Err(e) => panic!("inode {ino}: {e}"),
                }
            }
            found
        });
        fs.release(ino).unwrap();
        for _ in 0..100_000 {
            fs.unlink(&c, fs.root(), b"f").unwrap();
            let again = fs.create(&c, fs.root(), b"f", 0o600, RW).unwrap().ino;
            fs.release(again).unwrap();
            assert_eq!(again, ino);
            if asking.is_finished() {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert_ne!(asking.join().unwrap(), 0);
    });
    fs.unmount().unwrap();
    image.assert_clean();
}

/// Attributes that are read together are those that were written, and cost few requests.
#[test]
fn attributes_are_read_together() {
    let image = Image::new(64, &["-t", "ext4", "-b", "1024", "-N", "8000"]);
    let fs = image.mount("");
    let c = Caller::root();
    let create = |i: u16| {
        let name = format!("f{i}");
        let made = fs.create(&c, fs.root(), name.as_bytes(), 0o600 | (i % 8), RW);
        let ino = made.unwrap().ino;
        fs.release(ino).unwrap();
        (ino, fs.getattr(ino).unwrap())
    };
    let mut made: Vec<_> = (0..2000).map(create).collect();
    fs.unmount().unwrap();
    // In an order that suits no program.
    made.sort_unstable_by_key(|(ino, _)| ino.0.wrapping_mul(0x9E37_79B9));
    let fs = image.mount("");
    // Some inodes are in memory, and changed.
    for (ino, attr) in made.iter_mut().step_by(200) {
        let set = SetAttr {
            mode: Some(0o7),
            ..SetAttr::default()
        };
        *attr = fs.setattr(&c, *ino, &set).unwrap();
    }
    let requests = || fs.stats().device.by_class(Class::InodeTable).reads;
    let before = requests();
    for part in made.chunks(64) {
        let inos: Vec<_> = part.iter().map(|(ino, _)| *ino).collect();
        let mut found = Vec::new();
        fs.getattrs(&inos, &mut |attr| found.push(attr.unwrap()))
            .unwrap();
        assert!(part.iter().map(|(_, attr)| *attr).eq(found));
    }
    let requests = requests() - before;
    assert!(requests < 100, "{requests} reads for 500 blocks");
    let mut none = Vec::new();
    fs.getattrs(&[InodeNo(7999)], &mut |attr| none.push(attr.is_err()))
        .unwrap();
    assert_eq!(none, [true]);
    fs.unmount().unwrap();
    image.assert_clean();
    let fs = image.mount("");
    assert!(
        made.iter()
            .all(|(ino, attr)| fs.getattr(*ino).unwrap() == *attr)
    );
    fs.unmount().unwrap();
}
