//! Writes that the kernel's ext4 refuses at write(2), and that the writeback cache would take: the
//! next write(2) fails, and not only fsync(2).

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use stetfs::Shutdown;
use stetfs_fuse::control::{self, Command as Order};
use support::{Volume, errno, run};

/// Writes again and again for some seconds. Returns the first errno; `None` if no write fails.
fn refused(file: &File, at: u64) -> Option<i32> {
    let mut errno = None;
    support::happens(Duration::from_secs(5), || {
        let written = file.write_at(b"more", at);
        errno = written.err().and_then(|e| e.raw_os_error());
        errno.is_some()
    });
    errno
}

#[test]
fn who_has_a_file_open_that_becomes_immutable() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let path = volume.path("f");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    let chattr = |flag: &str| run(Command::new("chattr").arg(flag).arg(&path));
    chattr("+i");
    // As on the kernel's ext4: each write fails at once, and nothing of it reaches the file.
    for _ in 0..3 {
        assert_eq!(errno(file.write_at(b"after", 0)), libc::EPERM);
    }
    assert_eq!(fs::read(&path).unwrap(), b"before");
    chattr("-i");
    file.write_all_at(b"after!", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"after!");
    drop(file);
    volume.unmount(server);
}

#[test]
fn who_writes_beyond_the_largest_file() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &["-b", "1024"]);
    let server = volume.mount("");
    let path = volume.path("f");
    let file = File::create(&path).unwrap();
    // The page cache takes it before the server is asked.
    file.write_all_at(b"abc", 1 << 42).unwrap();
    assert_eq!(errno(file.sync_all()), libc::EFBIG);
    assert_eq!(refused(&file, 0), Some(libc::EFBIG));
    // After the error, writes work again.
    file.write_all_at(b"abc", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    if support::kernel() >= (6, 18) {
        // Meanwhile the kernel has sent a whole page, since it believed in the longer file.
        support::wait_until("the kernel has forgotten the wrong size", || {
            fs::metadata(&path).unwrap().len() == 4096
        });
        let read = fs::read(&path).unwrap();
        assert!(read.starts_with(b"abc"), "{:?}", &read[..8]);
    }
    volume.unmount(server);
}

#[test]
fn who_has_a_file_open_on_a_volume_that_stops() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let file = File::create(volume.path("f")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    file.sync_all().unwrap();
    control::command(&volume.dir, Order::Shutdown(Shutdown::LogFlush)).unwrap();
    assert_eq!(refused(&file, 0), Some(libc::EIO));
    drop(file);
    support::umount(&volume.dir);
    drop(server);
}
