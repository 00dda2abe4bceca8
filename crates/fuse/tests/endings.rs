//! The ends of a mount, by unmounting, by a signal, by a kill, and what is left of it each time.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::{Server, Volume, errno, run, wait_until};

const ENOTCONN: i32 = 107;

#[test]
fn what_was_synced_survives_a_kill() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("commit=300");
    for i in 0..50 {
        let mut file = File::create(volume.path(&format!("synced-{i}"))).unwrap();
        file.write_all(format!("number {i}").as_bytes()).unwrap();
        file.sync_all().unwrap();
    }
    File::options()
        .write(true)
        .open(volume.path("synced-7"))
        .unwrap()
        .write_all(b"never synced")
        .unwrap();
    server.crash(&volume.dir);

    let server = volume.mount("");
    for i in 0..50 {
        assert_eq!(
            fs::read(volume.path(&format!("synced-{i}"))).unwrap().len(),
            format!("number {i}").len()
        );
    }
    volume.unmount(server);
}

#[test]
fn synchronous_writes_survive_a_kill() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    const O_DSYNC: i32 = 0o10_000;
    const O_SYNC: i32 = 0o4_010_000;
    const O_DIRECT: i32 = 0o40_000;
    for (name, flags) in [
        ("sync", O_SYNC),
        ("dsync", O_DSYNC),
        ("direct", O_SYNC | O_DIRECT),
    ] {
        let server = volume.mount("commit=300");
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags)
            .open(volume.path(name));
        // O_DIRECT wants aligned memory.
        let buffer = Aligned([b's'; 4096]);
        file.unwrap().write_all_at(&buffer.0, 4096).unwrap();
        server.crash(&volume.dir);
        let server = volume.mount("");
        let text = fs::read(volume.path(name)).unwrap();
        assert!(
            text.len() == 8192 && text[4096..].iter().all(|&b| b == b's'),
            "{name}"
        );
        volume.unmount(server);
    }
    let server = volume.mount("commit=300,sync");
    fs::create_dir(volume.path("dir")).unwrap();
    fs::write(volume.path("dir/file"), b"kept").unwrap();
    server.crash(&volume.dir);
    let server = volume.mount("commit=300,dirsync");
    assert_eq!(fs::read(volume.path("dir/file")).unwrap(), b"kept");
    fs::rename(volume.path("dir/file"), volume.path("moved")).unwrap();
    server.crash(&volume.dir);
    let server = volume.mount("");
    assert_eq!(fs::read(volume.path("moved")).unwrap(), b"kept");
    volume.unmount(server);
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

#[test]
fn syncing_the_mount_point_syncs_everything() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("commit=300");
    fs::create_dir(volume.path("d")).unwrap();
    fs::write(volume.path("d/f"), b"kept").unwrap();
    // The kernel still writes back the times of a file that is gone. syncfs must not fail because
    // of that.
    fs::write(volume.path("d/gone"), b"not kept").unwrap();
    fs::remove_file(volume.path("d/gone")).unwrap();
    run(Command::new("sync").arg("-f").arg(&volume.dir));
    fs::write(volume.path("d/g"), b"too").unwrap();
    stetfs_fuse::control::command(&volume.dir, stetfs_fuse::control::Command::Commit).unwrap();
    server.crash(&volume.dir);
    let server = volume.mount("");
    assert_eq!(fs::read(volume.path("d/f")).unwrap(), b"kept");
    assert_eq!(fs::read(volume.path("d/g")).unwrap(), b"too");
    volume.unmount(server);
}

/// The kernel asks again for the attributes of a file that has been open for writing for two
/// seconds. So a writer into its cache learns that the server is gone.
#[test]
fn who_writes_on_is_told_that_the_server_died() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let file = File::create(volume.path("f")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    server.crash(&volume.dir);
    // The kernel may keep attributes for a second.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(errno(file.write_at(b"after", 0)), ENOTCONN);
    assert!(file.sync_all().is_err());
    drop(file);
    let server = volume.mount("");
    volume.unmount(server);
}

/// `sync DIR` on the mount point makes everything durable, with what open files have in the page
/// cache. It is the way to do so if the kernel does not pass on sync(2).
#[test]
fn an_fsync_of_the_mount_point_confirms_everything() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("commit=300,noloop");
    fs::write(volume.path("closed"), b"closed").unwrap();
    let mut open = File::create(volume.path("open")).unwrap();
    for _ in 0..1000 {
        open.write_all(b"written, and not synced by itself\n")
            .unwrap();
    }
    // As sync(1) does. A process of its own would close the files that it inherits, which writes
    // their pages.
    File::open(&volume.dir).unwrap().sync_all().unwrap();
    server.crash(&volume.dir);
    drop(open);
    let server = volume.mount("");
    assert_eq!(fs::read(volume.path("closed")).unwrap(), b"closed");
    assert_eq!(fs::metadata(volume.path("open")).unwrap().len(), 34_000);
    volume.unmount(server);
}

#[test]
fn signals_leave_a_clean_image() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    for (i, signal) in [Signal::TERM, Signal::INT, Signal::HUP]
        .into_iter()
        .enumerate()
    {
        let server = volume.mount("commit=300");
        fs::write(volume.path(&format!("f{i}")), format!("{signal:?}")).unwrap();
        server.signal(signal);
        let (status, said) = server.wait();
        assert!(status.success(), "{signal:?}: {status}: {said}");
        assert_eq!(fs::read_dir(&volume.dir).unwrap().count(), 0, "unmounted");
        volume.check_clean();
    }
    let server = volume.mount("ro");
    for i in 0..3 {
        assert!(volume.path(&format!("f{i}")).exists());
    }
    volume.unmount(server);
}

#[test]
fn a_signal_closes_the_volume_under_open_files() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("commit=300");
    let mut open = File::create(volume.path("open")).unwrap();
    open.write_all(b"in the kernel's cache only").unwrap();
    let unlinked = File::create(volume.path("unlinked")).unwrap();
    unlinked.set_len(1 << 20).unwrap();
    fs::remove_file(volume.path("unlinked")).unwrap();
    assert!(matches!(
        stetfs_fuse::umount(&volume.dir, false, Duration::from_secs(1)),
        Err(stetfs_fuse::UmountError::Mount(
            stetfs_fuse::MountError::Busy(_)
        ))
    ));
    server.signal(Signal::TERM);
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(
        open.write_all(b"more")
            .and_then(|()| open.sync_all())
            .is_err()
    );
    drop((open, unlinked));
    volume.check_clean();
    let server = volume.mount("");
    assert_eq!(
        fs::read(volume.path("open")).unwrap(),
        b"in the kernel's cache only"
    );
    volume.unmount(server);
}

#[test]
fn unmounting_by_others_is_noticed() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("commit=300");
    fs::write(volume.path("f"), b"kept").unwrap();
    support::umount(&volume.dir);
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
    volume.check_clean();
    // Mount again at once: the old server must not undo the new mount.
    for _ in 0..5 {
        let server = volume.mount("");
        support::umount(&volume.dir);
        let next = volume.mount("");
        assert!(server.wait().0.success());
        assert_eq!(fs::read(volume.path("f")).unwrap(), b"kept");
        volume.unmount(next);
    }
}

#[test]
fn lazy_unmount_lasts_until_the_last_file_is_closed() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let mut file = File::create(volume.path("f")).unwrap();
    let unmounted = stetfs_fuse::umount(&volume.dir, true, Duration::from_secs(1)).unwrap();
    assert!(!unmounted.finished);
    file.write_all(b"late").unwrap();
    drop(file);
    assert!(server.wait().0.success());
    volume.check_clean();
    let server = volume.mount("ro");
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"late");
    volume.unmount(server);
}

#[test]
fn a_dead_mount_point_is_released() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    for by_mounting in [false, true] {
        let server = volume.mount("noauto_unmount");
        server.signal(Signal::KILL);
        server.wait();
        // A request that comes before io_uring has given up the server's ring is cancelled.
        wait_until("the mount is dead", || {
            errno(fs::metadata(&volume.dir)) == ENOTCONN
        });
        if by_mounting {
            let server = volume.mount("");
            volume.unmount(server);
        } else {
            let unmounted =
                stetfs_fuse::umount(&volume.dir, false, Duration::from_secs(1)).unwrap();
            assert!(unmounted.was_dead);
            assert!(fs::read_dir(&volume.dir).is_ok());
        }
    }
}

/// A mount has the number of one that is gone, whose companion comes late and does not take it for
/// its own.
#[test]
fn a_late_companion_leaves_the_next_mount_alone() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("");
    let mut companion = None;
    wait_until("there is a companion", || {
        let all = descendants(server.pid());
        companion = all.into_iter().find(|(_, n)| n == "mount-companion");
        companion.is_some()
    });
    let (companion, _) = companion.unwrap();
    wait_until("it knows the connection", || has_control_open(companion));
    let pid = Pid::from_raw(companion as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    server.signal(Signal::KILL);
    wait_until("the mount is dead", || {
        errno(fs::metadata(&volume.dir)) == ENOTCONN
    });
    let next = volume.mount("");
    kill_process(pid, Signal::CONT).unwrap();
    wait_until("the companion has gone", || name_of(companion).is_none());
    server.wait();
    fs::write(volume.path("f"), b"x").unwrap();
    volume.unmount(next);
    volume.check_clean();
}

#[test]
fn the_background_server_stands_when_the_command_returns() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let out = volume
        .serve_command("")
        .arg("--background")
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    fs::write(volume.path("f"), b"x").unwrap();
    let cwd = fs::read_link(format!("/proc/{}/cwd", server_pid(&volume.dir))).unwrap();
    assert_eq!(cwd, Path::new("/"));
    let again = volume
        .serve_command("")
        .arg("--background")
        .output()
        .unwrap();
    assert!(!again.status.success());
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("already"),
        "the server's words reach the terminal"
    );
    let unmounted = stetfs_fuse::umount(&volume.dir, false, Duration::from_secs(60)).unwrap();
    assert!(unmounted.finished);
    volume.check_clean();
}

#[test]
fn a_crash_is_told_on_the_terminal() {
    need!(support::fuse());
    need!(support::have("script"));
    let volume = Volume::new(64, &[]);
    let (program, image, dir) = (
        support::serve_program(),
        volume.image.display(),
        volume.dir.display(),
    );
    let session = format!("'{program}' '{image}' '{dir}'; sleep 5");
    let mut terminal = Command::new("script");
    terminal
        .args(["-qec", &session, "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let terminal = terminal.spawn().unwrap();
    wait_until("it is mounted", || {
        stetfs_fuse::query_stats(&volume.dir).is_ok()
    });
    kill_process(
        Pid::from_raw(server_pid(&volume.dir)).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    let said = terminal.wait_with_output().unwrap().stdout;
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.contains("died") && said.contains("the mount point was released"),
        "{said}"
    );
    assert!(said.contains(&image.to_string()), "{said}");
}

#[test]
fn a_crash_is_told_in_the_log() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let log = volume.scratch.path().join("log");
    let mut server = volume.serve_command("");
    server
        .arg("--background")
        .stderr(File::create(&log).unwrap());
    run(&mut server);
    kill_process(
        Pid::from_raw(server_pid(&volume.dir)).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    wait_until("the log has it", || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("the mount point was released")
    });
}

/// Returns the process that serves the mount, as it says itself.
fn server_pid(dir: &Path) -> i32 {
    let stats = stetfs_fuse::query_stats(dir).unwrap();
    let pid = stats.split("\"pid\":").nth(1).unwrap();
    pid[..pid.find(|c: char| !c.is_ascii_digit()).unwrap()]
        .parse()
        .unwrap()
}

#[test]
fn wrong_mounts_are_refused_with_the_reason() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let refused =
        |volume: &Volume, options: &str| volume.try_mount(options).err().expect("it was mounted");
    assert!(refused(&volume, "frobnicate").contains("unknown mount option \"frobnicate\""));
    assert!(refused(&volume, "commit=soon").contains("commit=soon"));
    assert!(refused(&volume, "scheme=nonsense").contains("nonsense"));

    let server = volume.mount("");
    let twice = refused(&volume, "");
    assert!(twice.contains("already"), "{twice}");
    let elsewhere = volume.scratch.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let mut command = Command::new(support::serve_program());
    let locked = Server::start({
        command.arg(&volume.image).arg(&elsewhere);
        command
    });
    let locked = locked.err().expect("mounted twice");
    assert!(
        locked.contains("in use") || locked.contains("lock") || locked.contains("already"),
        "{locked}"
    );
    volume.unmount(server);

    let nowhere = Volume::new(8, &[]);
    fs::remove_dir(&nowhere.dir).unwrap();
    assert!(refused(&nowhere, "").contains("mnt"));
    fs::write(&nowhere.dir, b"").unwrap();
    assert!(refused(&nowhere, "").contains("not a directory"));

    let garbage = Volume::new(8, &[]);
    fs::write(&garbage.image, vec![0; 8 << 20]).unwrap();
    assert!(!refused(&garbage, "").is_empty());
    assert!(
        stetfs_fuse::mountinfo::mounted_on(&garbage.dir)
            .unwrap()
            .is_none()
    );
}

#[test]
fn everything_of_that_name_is_killed() {
    need!(support::fuse());
    let volume = Volume::new(64, &[]);
    let name = std::path::Path::new(support::serve_program())
        .file_name()
        .unwrap()
        .to_str()
        .unwrap();
    // Processes show at most 15 bytes of their name.
    let name = &name[..name.len().min(15)];
    for (signal, clean) in [(Signal::TERM, true), (Signal::KILL, false)] {
        let server = volume.mount("");
        fs::write(volume.path("f"), b"x").unwrap();
        wait_until("the companion has its own name", || {
            descendants(server.pid())
                .iter()
                .any(|(_, n)| n == "mount-companion")
        });
        let group = descendants(server.pid());
        assert_eq!(group.len(), 2, "the server and its companion: {group:?}");
        for (pid, _) in group
            .iter()
            .filter(|(_, comm)| comm == name || signal == Signal::TERM)
        {
            let _ = kill_process(Pid::from_raw(*pid as i32).unwrap(), signal);
        }
        let (status, said) = server.wait();
        assert_eq!(status.success(), clean, "{said}");
        support::wait_for_release(&volume.dir);
        wait_until("the companion has gone", || {
            group.iter().all(|(pid, _)| name_of(*pid).is_none())
        });
    }
}

/// Whether a process can abort a connection.
fn has_control_open(pid: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let mut paths = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    paths.any(|path| path.ends_with("abort"))
}

/// Returns a process and its descendants, with their names.
fn descendants(pid: u32) -> Vec<(u32, String)> {
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let all = std::iter::once(pid).chain(children.split_whitespace().map(|c| c.parse().unwrap()));
    all.filter_map(|pid| Some((pid, name_of(pid)?))).collect()
}

fn name_of(pid: u32) -> Option<String> {
    Some(
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .ok()?
            .trim()
            .to_owned(),
    )
}

/// The image is truncated or removed while it is mounted: the next sync and the log report it.
#[test]
fn an_image_that_is_spoiled_is_told() {
    need!(support::fuse());
    for spoil in ["cut", "removed"] {
        let volume = Volume::new(64, &[]);
        let server = volume.mount("commit=300");
        let file = File::create(volume.path("f")).unwrap();
        file.write_all_at(b"kept", 0).unwrap();
        file.sync_all().unwrap();
        if spoil == "cut" {
            let image = File::options().write(true).open(&volume.image).unwrap();
            image.set_len(1 << 20).unwrap();
        } else {
            fs::remove_file(&volume.image).unwrap();
        }
        // The sync fails also if there is nothing new to write.
        assert!(file.sync_all().is_err(), "{spoil}");
        file.write_all_at(b"lost", 0).unwrap();
        assert!(file.sync_all().is_err(), "{spoil}");
        drop(file);
        server.signal(Signal::TERM);
        let (status, said) = server.wait();
        assert!(
            !status.success() && said.contains(&format!("the file was {spoil}")),
            "{said}"
        );
    }
}
