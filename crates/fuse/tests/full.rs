//! A volume that fills up behind the writeback cache: what write(2) has confirmed has room, or its
//! writer is told.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;
use stetfs_sys::file_ioctl::{commit_atomic_write, start_atomic_write};
use support::{Volume, open};

/// How many bytes of a writer were confirmed, and which calls refused more.
struct Written {
    bytes: u64,
    refused: bool,
    sync_failed: bool,
}

/// Returns the byte that a file has at an offset.
fn content(seed: u64, offset: u64) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (offset >> 9).wrapping_mul(0x2545_f491_4f6c_dd1d))
        as u8
}

fn chunk(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| content(seed, offset + i)).collect()
}

/// Writes until a write is refused or `most` bytes are confirmed; then syncs.
fn fill(file: &File, seed: u64, size: usize, most: u64) -> Written {
    let mut written = Written {
        bytes: 0,
        refused: false,
        sync_failed: false,
    };
    while written.bytes < most {
        match file.write_at(&chunk(seed, written.bytes, size), written.bytes) {
            Ok(n) => written.bytes += n as u64,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC), "{e}");
                written.refused = true;
                break;
            }
        }
    }
    written.sync_failed = file.sync_all().is_err();
    written
}

/// Checks that the confirmed bytes are there.
fn check(path: &Path, seed: u64, bytes: u64) {
    let got = fs::read(path).unwrap();
    assert!(
        got.len() as u64 >= bytes,
        "{}: {} of {bytes} bytes",
        path.display(),
        got.len()
    );
    let wrong = (0..bytes).find(|&i| got[i as usize] != content(seed, i));
    assert_eq!(
        wrong,
        None,
        "{}: first wrong byte of {bytes}",
        path.display()
    );
}

/// Fills a volume by several writers. They open their files while the volume is empty, so their
/// writes go to the page cache to the end.
fn many_writers(size: usize, options: &str) -> (Volume, Vec<Written>) {
    let volume = Volume::new(128, &["-b", "4096"]);
    let server = volume.mount(options);
    let path = |i: u64| volume.path(&format!("f{i}"));
    let files: Vec<_> = (0..6).map(|i| File::create(path(i)).unwrap()).collect();
    let written: Vec<_> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..)
            .zip(&files)
            .map(|(seed, file)| scope.spawn(move || fill(file, seed, size, u64::MAX)))
            .collect();
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    drop(files);
    volume.unmount(server);
    let server = volume.mount(options);
    for (seed, w) in (0..).zip(&written) {
        assert!(w.refused);
        if !w.sync_failed {
            check(&path(seed), seed, w.bytes);
        }
    }
    let all: u64 = written.iter().map(|w| w.bytes).sum();
    assert!(all > 96 << 20, "{all} bytes of a volume of 128 MiB");
    volume.unmount(server);
    (volume, written)
}

#[test]
fn small_writes_are_refused_before_anything_is_lost() {
    need!(support::root_and_fuse());
    let (volume, written) = many_writers(16 << 10, "");
    for w in written {
        assert!(!w.sync_failed, "confirmed by write(2) and lost");
    }
    // A new writer gets the room that was kept for dirty pages.
    let server = volume.mount("");
    let mut more = File::create(volume.path("more")).unwrap();
    more.write_all(&[5; 1 << 20]).unwrap();
    more.sync_all().unwrap();
    drop(more);
    volume.unmount(server);
}

/// A part of a write(2) may find no room if it is larger than what is kept. Then its writer is
/// told.
#[test]
fn a_huge_write_is_told_at_the_latest_by_fsync() {
    need!(support::root_and_fuse());
    many_writers(16 << 20, "");
}

#[test]
fn without_a_writeback_cache() {
    need!(support::root_and_fuse());
    let (_volume, written) = many_writers(16 << 10, "nowriteback");
    for w in written {
        assert!(!w.sync_failed);
    }
}

/// On a full volume, overwrites need no room and succeed; pages that found no room are not shown;
/// and write(2) itself refuses a new writer.
#[test]
fn on_a_full_volume() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &["-b", "4096"]);
    let server = volume.mount("");
    let base = File::create(volume.path("database")).unwrap();
    base.write_all_at(&chunk(1, 0, 4 << 20), 0).unwrap();
    base.sync_all().unwrap();
    let ballast = File::create(volume.path("ballast")).unwrap();
    assert!(fill(&ballast, 2, 1 << 16, u64::MAX).refused);
    // A new writer fills it to the last block.
    let rest = File::create(volume.path("rest")).unwrap();
    assert!(fill(&rest, 3, 4096, u64::MAX).refused);

    let full = fs::write(volume.path("echo"), b"x").unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(fs::read(volume.path("echo")).unwrap(), b"");
    for round in 2..6 {
        for at in (0..4 << 20).step_by(64 << 10) {
            base.write_all_at(&chunk(round, at, 64 << 10), at).unwrap();
        }
        base.sync_all().unwrap();
    }
    // New room is there for those who were refused.
    fs::remove_file(volume.path("ballast")).unwrap();
    drop(ballast);
    rest.sync_all().unwrap();
    drop((base, rest));
    volume.unmount(server);
    let server = volume.mount("");
    check(&volume.path("database"), 5, 4 << 20);
    volume.unmount(server);
}

/// A group's staged data has its room, and so do pages that the kernel has taken before. The staged
/// write is refused, and not the commit or a later write-back.
#[test]
fn a_group_takes_nothing_that_is_kept_for_dirty_pages() {
    need!(support::root_and_fuse());
    // The journal takes more in one transaction than there will be room for.
    let volume = Volume::new(64, &["-b", "4096", "-m", "0", "-J", "size=20"]);
    let server = volume.mount("");
    let path = volume.marked().join("group");
    let (cached, group) = (File::create(volume.path("cached")).unwrap(), open(&path));
    let room = || {
        let free = rustix::fs::statvfs(&volume.dir).unwrap();
        free.f_bavail * free.f_frsize
    };
    let ballast = File::create(volume.path("ballast")).unwrap();
    let most = room() - (7 << 19);
    assert!(!fill(&ballast, 1, 1 << 16, most).refused);
    // The server looks once a second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    start_atomic_write(&group).unwrap();
    let mut end = 0;
    let refused = loop {
        match group.write_all_at(&chunk(2, end, 1 << 16), end) {
            Ok(()) => end += 1 << 16,
            Err(e) => break e,
        }
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC), "after {end}");
    let written = fill(&cached, 3, 1 << 16, 1 << 20);
    assert!(!written.sync_failed, "confirmed by write(2) and lost");
    assert!(written.bytes > 0 && end > 0);
    commit_atomic_write(&group).unwrap();
    drop((cached, group, ballast));
    volume.unmount(server);
    let server = volume.mount("");
    check(&volume.path("cached"), 3, written.bytes);
    check(&path, 2, end);
    volume.unmount(server);
}

/// Returns the bytes that df shows as available.
fn available(volume: &Volume) -> u64 {
    let free = rustix::fs::statvfs(&volume.dir).unwrap();
    free.f_bavail * free.f_frsize
}

/// A single writer gets what df shows, except for what one write(2) may need. (Before the fix, a
/// part that grew with the volume was left: 17 of 800 MB.)
#[test]
fn a_single_writer_fills_the_volume() {
    need!(support::root_and_fuse());
    let volume = Volume::new(256, &["-b", "4096", "-m", "0"]);
    let server = volume.mount("");
    let file = File::create(volume.path("f")).unwrap();
    let written = fill(&file, 1, 1 << 18, u64::MAX);
    assert!(written.refused && !written.sync_failed);
    let left = available(&volume);
    assert!(left < 3 << 20, "{left} bytes are left");
    drop(file);
    check(&volume.path("f"), 1, written.bytes);
    volume.unmount(server);
}

/// Writes that need no room always succeed. Those that need some wait until it is known how much is
/// left. This holds also just after the volume got full, while a file is being written through the
/// page cache.
#[test]
fn what_has_blocks_is_not_refused_just_after_the_volume_got_full() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &["-b", "4096"]);
    let server = volume.mount("");
    let log = File::create(volume.path("log")).unwrap();
    for round in 0..5 {
        log.write_all_at(&chunk(round, 0, 4096), 0).unwrap();
        let keep = File::create(volume.path("keep")).unwrap();
        rustix::fs::fallocate(&keep, FallocateFlags::KEEP_SIZE, 0, 4 << 20).unwrap();
        fs::write(volume.path("old"), chunk(9, 0, 4 << 20)).unwrap();
        let ballast = File::create(volume.path("ballast")).unwrap();
        assert!(fill(&ballast, round, 1 << 16, u64::MAX).refused);
        let keep = open(&volume.path("keep"));
        let at = |part: u64| chunk(3, part << 16, 1 << 16);
        for part in 0..64 {
            keep.write_all_at(&at(part), part << 16)
                .unwrap_or_else(|e| panic!("round {round}, preallocated, part {part}: {e}"));
        }
        fs::remove_file(volume.path("old")).unwrap();
        // Write as much as is certainly free after the removal.
        let new = open(&volume.path("new"));
        for part in 0..16 {
            new.write_all_at(&at(part), part << 16)
                .unwrap_or_else(|e| panic!("round {round}, freed, part {part}: {e}"));
        }
        let more = open(&volume.path("more"));
        rustix::fs::fallocate(&more, FallocateFlags::empty(), 0, 1 << 18)
            .unwrap_or_else(|e| panic!("round {round}, preallocation: {e}"));
        for file in [&keep, &new, &more, &ballast] {
            file.sync_all().unwrap();
        }
        check(&volume.path("keep"), 3, 4 << 20);
        check(&volume.path("new"), 3, 1 << 20);
        for name in ["keep", "new", "more", "ballast"] {
            fs::remove_file(volume.path(name)).unwrap();
        }
    }
    drop(log);
    volume.unmount(server);
}

/// The kernel does not wait for the end of a close. Whoever closes a removed file and then needs
/// its blocks gets them all the same.
#[test]
fn the_room_of_a_removed_file_is_there_when_it_is_closed() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &["-b", "1024"]);
    let server = volume.mount("");
    // With a file that is written through the page cache, whose pages may need the room too.
    let log = File::create(volume.path("log")).unwrap();
    let most = available(&volume) / 2 - (2 << 20);
    let piece = 1 << 14;
    for round in 0..50 {
        let files = ["f", "g"].map(|name| File::create(volume.path(name)).unwrap());
        // In turn, so that each has many extents.
        for at in (0..most).step_by(piece) {
            for file in &files {
                let (none, len) = (FallocateFlags::empty(), piece as u64);
                rustix::fs::fallocate(file, none, at, len)
                    .unwrap_or_else(|e| panic!("round {round}, at {at}: {e}"));
            }
        }
        fs::remove_file(volume.path("f")).unwrap();
        fs::remove_file(volume.path("g")).unwrap();
        log.write_all_at(&chunk(round, 0, 4096), 0).unwrap();
        drop(files);
        let file = File::create(volume.path("h")).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, most * 2)
            .unwrap_or_else(|e| panic!("round {round}: {e}"));
        fs::remove_file(volume.path("h")).unwrap();
    }
    drop(log);
    volume.unmount(server);
}
