//! Mounting as an ordinary user, through fusermount3; and the ioctls that programs use.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::Duration;

use stetfs_fuse::mountinfo::MountEntry;
use support::{Server, Volume, run, wait_until};

const NOBODY: &[&str] = &["--reuid=65534", "--regid=65534", "--clear-groups"];

fn as_nobody(script: &str) -> Output {
    Command::new("setpriv")
        .args(NOBODY)
        .args(["sh", "-c", script])
        .output()
        .unwrap()
}

/// Fails unless `/dev/fuse` is as udev sets it up: fusermount3 opens it in the user's name.
fn device_for_everybody() -> Result<(), String> {
    let mode = fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o777;
    if mode == 0o666 {
        Ok(())
    } else {
        Err(format!("/dev/fuse has mode {mode:o}, not 666"))
    }
}

/// Makes a volume whose image, root directory and mount point belong to nobody.
fn volume_of_nobody() -> Volume {
    let volume = Volume::new(64, &["-E", "root_owner=65534:65534"]);
    fs::set_permissions(volume.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for path in [&volume.image, &volume.dir] {
        std::os::unix::fs::chown(path, Some(65_534), Some(65_534)).unwrap();
    }
    volume
}

#[test]
fn an_ordinary_user_mounts() {
    need!(support::root_and_fuse());
    need!(support::have("setpriv"));
    need!(support::have("fusermount3"));
    need!(device_for_everybody());
    // The user `nobody` may be unable to reach the test program where it is.
    let program = std::env::temp_dir().join(format!("stetfs-serve-{}", std::process::id()));
    fs::copy(support::serve_program(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let volume = volume_of_nobody();
    let mount = || {
        let mut command = Command::new("setpriv");
        command
            .args(NOBODY)
            .arg(&program)
            .args([&volume.image, &volume.dir]);
        Server::start(command).unwrap_or_else(|said| panic!("{said}"))
    };
    let server = mount();
    let entry = stetfs_fuse::mountinfo::mounted_on(&volume.dir)
        .unwrap()
        .unwrap();
    assert_eq!(
        (entry.kind.as_str(), &entry.source),
        ("fuse.stetfs", &volume.image)
    );
    let dir = volume.dir.display();
    let out = as_nobody(&format!(
        "cd {dir} && echo mine > f && mkdir d && mv f d && cat d/f && sync d/f"
    ));
    assert_eq!(
        out.stdout,
        b"mine\n",
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    // No other user is let in, not even root: only the kernel's owner check stands between them.
    assert!(fs::read_dir(&volume.dir).is_err());
    run(Command::new("setpriv")
        .args(NOBODY)
        .args(["fusermount3", "-u"])
        .arg(&volume.dir));
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
    volume.check_clean();

    // If the server is killed, the companion releases the mount point with fusermount3.
    let server = mount();
    assert_eq!(as_nobody(&format!("cat {dir}/d/f")).stdout, b"mine\n");
    server.crash(&volume.dir);
    // A signal unmounts.
    let server = mount();
    server.signal(rustix::process::Signal::TERM);
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
    wait_until("it is unmounted", || {
        stetfs_fuse::mountinfo::mounted_on(&volume.dir)
            .unwrap()
            .is_none()
    });
    volume.check_clean();
    let _ = fs::remove_file(&program);
}

#[test]
fn flags_of_chattr() {
    need!(support::root_and_fuse());
    need!(support::have("chattr"));
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let file = volume.path("f");
    fs::write(&file, b"text").unwrap();
    let chattr = |flags: &str| run(Command::new("chattr").arg(flags).arg(&file));
    let lsattr = || {
        let out = run(Command::new("lsattr").arg(&file)).stdout;
        String::from_utf8(out)
            .unwrap()
            .split_whitespace()
            .next()
            .unwrap()
            .to_owned()
    };
    assert!(lsattr().contains('e'));
    chattr("+i");
    assert!(lsattr().contains('i'));
    for attempt in [
        fs::OpenOptions::new().write(true).open(&file).map(drop),
        fs::OpenOptions::new().append(true).open(&file).map(drop),
        fs::write(&file, b""),
        fs::remove_file(&file),
        fs::rename(&file, volume.path("g")),
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)),
    ] {
        assert_eq!(support::errno(attempt), 1);
    }
    chattr("-i");
    chattr("+a");
    // The times may be set to now only.
    let touch = |time: &str| {
        Command::new("touch")
            .args(["-c", "-d", time])
            .arg(&file)
            .status()
    };
    run(Command::new("touch").arg(&file));
    assert!(!touch("2001-01-01").unwrap().success());
    assert_eq!(
        support::errno(fs::OpenOptions::new().write(true).open(&file).map(drop)),
        1
    );
    {
        use std::io::Write;
        let mut append = fs::OpenOptions::new().append(true).open(&file).unwrap();
        append.write_all(b" and more").unwrap();
        append.sync_all().unwrap();
    }
    assert_eq!(fs::read(&file).unwrap(), b"text and more");
    chattr("-a");
    chattr("+jAd");
    assert!(
        ["j", "A", "d"].iter().all(|flag| lsattr().contains(flag)),
        "{}",
        lsattr()
    );
    run(Command::new("lsattr").arg("-v").arg(&file));
    volume.unmount(server);
    let stat = run(Command::new("debugfs")
        .args(["-R", "stat /f"])
        .arg(&volume.image))
    .stdout;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    assert!(
        stat.contains("Flags: 0x840c0"),
        "0x80000 extents, 0x4000 j, 0x80 A, 0x40 d: {stat}"
    );
}

#[test]
fn trimming_gives_space_back_to_the_host() {
    need!(support::root_and_fuse());
    need!(support::have("fstrim"));
    use std::os::unix::fs::MetadataExt;
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    fs::write(volume.path("f"), vec![1; 30 << 20]).unwrap();
    run(Command::new("sync").arg(&volume.dir));
    fs::remove_file(volume.path("f")).unwrap();
    run(Command::new("sync").arg(&volume.dir));
    let before = fs::metadata(&volume.image).unwrap().blocks();
    let out = run(Command::new("fstrim").arg("-v").arg(&volume.dir)).stdout;
    let after = fs::metadata(&volume.image).unwrap().blocks();
    let said = String::from_utf8_lossy(&out);
    assert!(said.contains("MiB"), "{said}");
    assert!(after < before, "{before} -> {after} sectors: {said}");
    volume.unmount(server);
}

#[test]
fn a_shutdown_is_a_crash() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    use stetfs::Shutdown::{Full, LogFlush, NoLogFlush};
    for (mode, kept) in [(NoLogFlush, false), (LogFlush, true), (Full, true)] {
        let name = format!("{mode:?}");
        let server = volume.mount("commit=300");
        let file = fs::File::create(volume.path("synced")).unwrap();
        file.sync_all().unwrap();
        fs::create_dir(volume.path(&name)).unwrap();
        stetfs_fuse::control::command(&volume.dir, stetfs_fuse::control::Command::Shutdown(mode))
            .unwrap();
        assert!(
            file.sync_all().is_err() || fs::write(volume.path("after"), b"x").is_err(),
            "{name}"
        );
        drop(file);
        let _ = stetfs_fuse::umount(&volume.dir, false, Duration::from_secs(60));
        server.wait();
        let server = volume.mount("");
        assert!(volume.path("synced").exists());
        assert_eq!(volume.path(&name).exists(), kept, "{name}");
        volume.unmount(server);
    }
}

#[test]
fn the_usual_shutdown_ioctl_works() {
    need!(support::root_and_fuse());
    need!(support::have("xfs_io"));
    let volume = Volume::new(64, &[]);
    // A sync(2) of another test syncs the whole machine and may keep what is to be lost here.
    let lost = (0..5).any(|n| {
        let name = format!("lost-{n}");
        let server = volume.mount("commit=300");
        fs::create_dir(volume.path(&name)).unwrap();
        run(Command::new("xfs_io")
            .args(["-x", "-c", "shutdown"])
            .arg(&volume.dir));
        assert!(fs::create_dir(volume.path("late")).is_err());
        let _ = stetfs_fuse::umount(&volume.dir, false, Duration::from_secs(60));
        server.wait();
        let server = volume.mount("");
        let is_lost = !volume.path(&name).exists();
        volume.unmount(server);
        is_lost
    });
    assert!(lost, "a shutdown has lost nothing, five times");
}

#[test]
fn counters_and_commands_are_for_administrators() {
    need!(support::root_and_fuse());
    need!(support::have("setpriv"));
    let volume = Volume::new(64, &[]);
    fs::set_permissions(volume.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let server = volume.mount("");
    fs::write(volume.path("f"), b"x").unwrap();
    let stats = stetfs_fuse::query_stats(&volume.path("f")).unwrap();
    assert!(
        stats.contains(&format!("\"pid\":{}", server.pid())),
        "{stats}"
    );
    assert!(stats.contains("\"create\":1"), "{stats}");
    let dir = volume.dir.display();
    if support::have("getfattr").is_ok() {
        let read = as_nobody(&format!("getfattr -n system.stetfs.stats {dir}"));
        assert!(!read.status.success());
        let command = as_nobody(&format!(
            "setfattr -n system.stetfs.control -v commit {dir}"
        ));
        assert!(!command.status.success());
    }
    volume.unmount(server);
}

/// Device files and set-user-ID programs of an image work if only root could have put them there,
/// or if root says so.
#[test]
fn whose_images_are_trusted() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let flags = |options: &str| {
        let server = volume.mount(options);
        let mounted = || {
            stetfs_fuse::mountinfo::mounted_on(&volume.dir)
                .unwrap()
                .unwrap()
        };
        let flags = |m: MountEntry| (m.has("nosuid"), m.has("nodev"));
        let at_first = flags(mounted());
        let options = stetfs_fuse::Options::parse("ro").unwrap().fuse;
        stetfs_fuse::remount(&volume.dir, &options).unwrap();
        assert!(mounted().has("ro"));
        assert_eq!(flags(mounted()), at_first);
        volume.unmount(server);
        at_first
    };
    assert_eq!(flags(""), (false, false));
    for (owner, mode) in [(Some(65_534), 0o644), (Some(0), 0o666)] {
        std::os::unix::fs::chown(&volume.image, owner, None).unwrap();
        fs::set_permissions(&volume.image, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(flags(""), (true, true));
        assert_eq!(flags("dev"), (true, false));
        assert_eq!(flags("suid,dev"), (false, false));
    }
}

/// Every call that clears set-user-ID as a side effect, made by a user who may not keep it. The
/// kernel may keep the old attributes for a year, and must not show them.
#[test]
fn set_user_id_goes_and_is_seen_to_go() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &["-b", "4096", "-E", "root_owner=65534:65534"]);
    let server = volume.mount("");
    let (file, other) = (volume.path("program"), volume.path("other"));
    fs::write(&other, vec![7; 8192]).unwrap();
    fs::write(&file, vec![1; 8192]).unwrap();
    let open = |flags| {
        use std::os::unix::fs::OpenOptionsExt;
        fs::OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(&file)
            .unwrap()
    };
    let page = AlignedPage([2; 4096]);
    let ways: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("a direct write", &|| {
            rustix::io::pwrite(open(libc::O_DIRECT), &page.0, 0).unwrap();
        }),
        ("a write through the page cache", &|| {
            rustix::io::pwrite(open(0), b"x", 0).unwrap();
        }),
        ("fallocate", &|| {
            let mode = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(open(0), mode, 0, 16_384).unwrap();
        }),
        ("copy_file_range", &|| {
            let from = fs::File::open(&other).unwrap();
            let n = rustix::fs::copy_file_range(&from, Some(&mut 0), open(0), Some(&mut 0), 4096);
            assert_eq!(n.unwrap(), 4096);
        }),
        ("an open that truncates", &|| drop(open(libc::O_TRUNC))),
    ];
    // The thread is in root's group: set-group-ID without execution stays if that is the file's
    // group.
    for (group, before, after) in [(0, 0o6777, 0o777), (0, 0o6766, 0o2766), (1, 0o6766, 0o766)] {
        std::os::unix::fs::chown(&file, None, Some(group)).unwrap();
        for (way, act) in ways {
            fs::set_permissions(&file, fs::Permissions::from_mode(before)).unwrap();
            assert_eq!(mode_of(&file), before);
            as_user_nobody(act);
            assert_eq!(mode_of(&file), after, "{way}, {before:o}, group {group}");
        }
    }
    volume.unmount(server);
}

#[repr(align(4096))]
struct AlignedPage([u8; 4096]);

fn mode_of(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Calls `act` in a thread of the user `nobody`, without root's privileges.
fn as_user_nobody(act: &(dyn Fn() + Sync)) {
    let nobody = rustix::process::Uid::from_raw(65_534);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            act();
        });
        thread.join().unwrap();
    });
}

/// chattr changes the time of the last change, and the kernel had another. With the writeback cache
/// it keeps its own for a regular file, and no server can change that (`fuse_get_cache_mask`).
#[test]
fn the_time_of_a_change_by_ioctl_is_seen() {
    use std::os::unix::fs::MetadataExt;
    need!(support::root_and_fuse());
    need!(support::have("chattr"));
    let volume = Volume::new(64, &[]);
    for (options, name) in [("", "dir"), ("nowriteback", "file")] {
        let server = volume.mount(options);
        let path = volume.path(name);
        if name == "dir" {
            fs::create_dir(&path).unwrap();
        } else {
            fs::write(&path, b"text").unwrap();
        }
        let time = || {
            let meta = fs::metadata(&path).unwrap();
            (meta.ctime(), meta.ctime_nsec())
        };
        let before = time();
        // The volume's clock may stand still for some milliseconds.
        wait_until("the time of the change is seen", || {
            run(Command::new("chattr").arg("+A").arg(&path));
            time() > before
        });
        volume.unmount(server);
    }
}
