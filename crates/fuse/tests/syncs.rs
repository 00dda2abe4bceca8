//! Mounts of a block device: what the kernel passes on to their server, and what others may do with
//! the device.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::mount::MountFlags;
use rustix::process::Signal;
use stetfs_fuse::mountinfo::{self, MountEntry};
use support::{Volume, run, wait_until};

/// Fails unless mounts are on a block device and the kernel passes syncs on.
fn block_mounts() -> Result<(), String> {
    support::root_and_fuse()?;
    if !Path::new("/dev/loop-control").exists() {
        return Err("no loop devices".to_owned());
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap();
    if !known.lines().any(|line| line.trim() == "fuseblk") {
        return Err("this kernel has no fuseblk".to_owned());
    }
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    let mut numbers = release.split(['.', '-']).map(|n| n.parse().unwrap_or(0));
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= (6, 18) => Ok(()),
        _ => Err(format!(
            "Linux {release} does not pass syncs on to FUSE servers (6.18 does)"
        )),
    }
}

/// Each way to sync the whole file system makes it durable: it is there after the server is killed.
#[test]
fn syncs_of_the_whole_file_system_are_kept() {
    need!(block_mounts());
    let volume = Volume::new(64, &[]);
    let ways: [(&str, &dyn Fn()); 3] = [
        ("syncfs", &|| {
            run(Command::new("sync").arg("-f").arg(&volume.dir));
        }),
        ("sync", &|| {
            run(&mut Command::new("sync"));
        }),
        ("remount", &|| {
            let flags = MountFlags::RDONLY;
            rustix::mount::mount_remount(&volume.dir, flags, c"").unwrap();
        }),
    ];
    for (way, sync) in ways {
        let server = volume.mount("loop,commit=300");
        fs::create_dir(volume.path(way)).unwrap();
        fs::write(volume.path(way).join("f"), way).unwrap();
        sync();
        server.crash(&volume.dir);
        let server = volume.mount("loop");
        let kept = fs::read(volume.path(way).join("f"));
        assert_eq!(kept.unwrap(), way.as_bytes());
        volume.unmount(server);
    }
}

/// umount(2), by any program, returns when the image is clean.
#[test]
fn unmounting_waits_for_a_clean_image() {
    need!(block_mounts());
    let volume = Volume::new(64, &[]);
    for i in 0..8 {
        let server = volume.mount("loop,commit=300");
        let entry = mountinfo::mounted_on(&volume.dir).unwrap().unwrap();
        assert_eq!(entry.kind, "fuseblk.stetfs");
        assert_eq!(entry.image(), volume.image);
        assert_eq!(entry.source, volume.image);
        let device = device_of(&entry);
        fs::write(volume.path(&format!("f{i}")), vec![7; 3 << 20]).unwrap();
        let stood_for_it = backing_file(&device);
        assert!(stood_for_it.is_some(), "{}", device.display());
        wait_until("umount(2) returns", || {
            rustix::mount::unmount(&volume.dir, rustix::mount::UnmountFlags::empty()).is_ok()
        });
        volume.check_clean();
        let (status, said) = server.wait();
        assert!(status.success(), "{said}");
        // The image's loop device is gone with the mount. Another image may have it by now.
        let now = backing_file(&device);
        assert!(now.is_none() || now != stood_for_it, "{now:?}");
    }
}

/// Returns the image's loop device, and checks that the image is shown as source.
fn device_of(entry: &MountEntry) -> PathBuf {
    let (_, minor) = entry.device.split_once(':').unwrap();
    PathBuf::from(format!("/dev/loop{minor}"))
}

/// Returns the file behind a loop device.
fn backing_file(device: &Path) -> Option<String> {
    let name = device.file_name().unwrap();
    let file = Path::new("/sys/block").join(name).join("loop/backing_file");
    fs::read_to_string(file).ok()
}

/// While the volume is mounted, the kernel can mount neither the device nor the file.
#[test]
fn the_kernel_does_not_mount_it_a_second_time() {
    need!(block_mounts());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("loop");
    let device = device_of(&mountinfo::mounted_on(&volume.dir).unwrap().unwrap());
    let other = volume.scratch.path().join("other");
    fs::create_dir(&other).unwrap();
    for mount in [&["-t", "ext4"][..], &["-o", "loop"], &["-o", "loop,ro"]] {
        let source = if mount[0] == "-t" {
            &device
        } else {
            &volume.image
        };
        let out = Command::new("mount")
            .args(mount)
            .arg(source)
            .arg(&other)
            .output()
            .unwrap();
        assert!(!out.status.success(), "{mount:?}");
        assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    }
    volume.unmount(server);
}

/// Without a block device nobody passes syncs on. Changes are committed soon all the same.
#[test]
fn plain_mounts_commit_by_themselves() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("noloop");
    let entry = mountinfo::mounted_on(&volume.dir).unwrap().unwrap();
    assert_eq!(entry.kind, "fuse.stetfs");
    let commits = || {
        let stats = stetfs_fuse::query_stats(&volume.dir).unwrap();
        let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
        stats["journal"]["commits"].as_u64().unwrap()
    };
    let before = commits();
    fs::create_dir(volume.path("d")).unwrap();
    // The next commit may be for what the mount itself changed.
    let mut others = 0;
    wait_until("commits that nobody asked for", || {
        others += 1;
        fs::write(volume.path("other"), format!("{others}")).unwrap();
        commits() > before + 1
    });
    server.crash(&volume.dir);
    let server = volume.mount("noloop");
    assert!(volume.path("d").is_dir());
    volume.unmount(server);
}

/// A writer whose pages the kernel takes learns that the server is gone, although the server is not
/// asked for each write.
#[test]
fn a_writer_learns_that_the_server_has_died() {
    need!(support::root_and_fuse());
    for options in ["", "noloop"] {
        let volume = Volume::new(64, &[]);
        let server = volume.mount(options);
        let file = File::create(volume.path("log")).unwrap();
        file.write_all_at(b"first line\n", 0).unwrap();
        // The file has to be open for as long as the kernel may keep its attributes.
        wait_until("the kernel asks for attributes again", || {
            file.write_all_at(b"x", 11).unwrap();
            let stats = stetfs_fuse::query_stats(&volume.dir).unwrap();
            let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
            stats["server"]["requests"]["getattr"].as_u64() > Some(2)
        });
        server.crash(&volume.dir);
        wait_until("write(2) fails", || (&file).write_all(b"more\n").is_err());
    }
}

/// The companion of a dead server releases its own mount, and leaves what is mounted on top of it.
#[test]
fn what_is_mounted_on_top_of_a_dead_mount_stays() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let device = mountinfo::mounted_on(&volume.dir).unwrap().unwrap().device;
    run(Command::new("mount")
        .args(["-t", "tmpfs", "on-top"])
        .arg(&volume.dir));
    let elsewhere = volume.scratch.path().join("bound");
    fs::create_dir(&elsewhere).unwrap();
    server.signal(Signal::KILL);
    let _ = server.wait();
    let on_top = || mountinfo::mounted_on(&volume.dir).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(on_top().unwrap().kind, "tmpfs");
    support::umount(&volume.dir);
    wait_until("the dead mount below is released", || {
        on_top().is_none() && mountinfo::mounts_of(&device).unwrap().is_empty()
    });
}

/// A volume that is bound elsewhere too goes on there, and unmounting does not wait for its server.
#[test]
fn unmounting_one_of_two_places() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let bound = volume.scratch.path().join("bound");
    fs::create_dir(&bound).unwrap();
    run(Command::new("mount")
        .arg("--bind")
        .arg(&volume.dir)
        .arg(&bound));
    let minute = Duration::from_secs(60);
    let unmounted = stetfs_fuse::umount(&bound, false, minute).unwrap();
    assert_eq!(unmounted.still, Some(Some(volume.dir.clone())));
    fs::write(volume.path("f"), b"goes on").unwrap();
    volume.unmount(server);
}

/// A program that looks at the mount for a moment does not make unmounting fail.
#[test]
fn unmounting_while_somebody_looks() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    for _ in 0..10 {
        let server = volume.mount("");
        let looking = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while looking.load(std::sync::atomic::Ordering::Relaxed) {
                    drop(File::open(&volume.dir));
                }
            });
            let unmounted = stetfs_fuse::umount(&volume.dir, false, Duration::from_secs(60));
            looking.store(false, std::sync::atomic::Ordering::Relaxed);
            assert!(unmounted.unwrap().finished);
        });
        let (status, said) = server.wait();
        assert!(status.success(), "{said}");
    }
    volume.check_clean();
}
