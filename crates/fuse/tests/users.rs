//! Mounting as an ordinary user, through fusermount3; and what programs ask for by ioctl.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};
use std::time::Duration;

use support::{Server, Volume, run, wait_until};

const NOBODY: &[&str] = &["--reuid=65534", "--regid=65534", "--clear-groups"];

fn as_nobody(script: &str) -> Output {
    Command::new("setpriv")
        .args(NOBODY)
        .args(["sh", "-c", script])
        .output()
        .unwrap()
}

/// The device as udev sets it up; fusermount3 opens it in the user's name.
fn device_for_everybody() -> Result<(), String> {
    let mode = fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o777;
    if mode == 0o666 {
        Ok(())
    } else {
        Err(format!("/dev/fuse has mode {mode:o}, not 666"))
    }
}

/// A volume whose image, root directory and mount point belong to nobody.
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
    // The test program may be where nobody else can reach it.
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
    // Nobody else is let in, not even root: only the kernel's owner check stands between them.
    assert!(fs::read_dir(&volume.dir).is_err());
    run(Command::new("setpriv")
        .args(NOBODY)
        .args(["fusermount3", "-u"])
        .arg(&volume.dir));
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
    volume.check_clean();

    // Killed, the companion releases the mount point with fusermount3.
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
    let server = volume.mount("commit=300");
    fs::create_dir(volume.path("lost")).unwrap();
    run(Command::new("xfs_io")
        .args(["-x", "-c", "shutdown"])
        .arg(&volume.dir));
    assert!(fs::create_dir(volume.path("late")).is_err());
    let _ = stetfs_fuse::umount(&volume.dir, false, Duration::from_secs(60));
    server.wait();
    let server = volume.mount("");
    assert!(!volume.path("lost").exists());
    volume.unmount(server);
}

#[test]
fn counters_are_there_for_everybody_and_commands_for_administrators() {
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
    let read = as_nobody(&format!(
        "getfattr --only-values -n system.stetfs.stats {dir}"
    ));
    if support::have("getfattr").is_ok() {
        assert!(
            read.status.success(),
            "{}",
            String::from_utf8_lossy(&read.stderr)
        );
        let command = as_nobody(&format!(
            "setfattr -n system.stetfs.control -v commit {dir}"
        ));
        assert!(!command.status.success());
    }
    volume.unmount(server);
}
