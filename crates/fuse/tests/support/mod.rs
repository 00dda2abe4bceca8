//! Images, servers and judges for the mount tests.
#![allow(dead_code)]

pub(crate) mod fio;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Ends the test, with a message, if the machine lacks what it needs.
#[macro_export]
macro_rules! need {
    ($need:expr) => {
        if let Err(missing) = $need {
            eprintln!("SKIPPED {}:{}: {missing}", file!(), line!());
            return;
        }
    };
}

/// Fails without /dev/fuse or root.
pub(crate) fn root_and_fuse() -> Result<(), String> {
    fuse()?;
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    Ok(())
}

/// Fails without /dev/fuse, e2fsprogs, and root or fusermount3.
pub(crate) fn fuse() -> Result<(), String> {
    std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|e| format!("/dev/fuse: {e}"))?;
    for program in ["mke2fs", "e2fsck", "dumpe2fs"] {
        have(program)?;
    }
    if !rustix::process::geteuid().is_root() {
        have("fusermount3")?;
    }
    Ok(())
}

/// Fails unless a program is in the path.
pub(crate) fn have(program: &str) -> Result<(), String> {
    let status = Command::new("sh")
        .arg("-c")
        .arg(format!("command -v {program} >/dev/null"))
        .status();
    match status {
        Ok(s) if s.success() => Ok(()),
        _ => Err(format!("needs the program {program}")),
    }
}

/// A fresh volume in a scratch directory, with a mount point beside it.
pub(crate) struct Volume {
    pub(crate) scratch: TempDir,
    pub(crate) image: PathBuf,
    pub(crate) dir: PathBuf,
}

impl Volume {
    /// Makes a volume of `mib` MiB by mke2fs, with further arguments.
    pub(crate) fn new(mib: u32, arguments: &[&str]) -> Self {
        let scratch = tempfile::Builder::new()
            .prefix("stetfs-mount-")
            .tempdir()
            .unwrap();
        let (image, dir) = (scratch.path().join("disk.img"), scratch.path().join("mnt"));
        std::fs::create_dir(&dir).unwrap();
        let mut command = Command::new("mke2fs");
        command
            .args(["-q", "-F", "-t", "ext4"])
            .args(arguments)
            .arg(&image)
            .arg(format!("{mib}M"));
        run(&mut command);
        Self {
            scratch,
            image,
            dir,
        }
    }

    /// Mounts the volume in the foreground of a child process.
    pub(crate) fn mount(&self, options: &str) -> Server {
        match self.try_mount(options) {
            Ok(server) => server,
            Err(said) => panic!("the server gave up: {said}"),
        }
    }

    /// Mounts the volume. On failure, returns what the server said.
    pub(crate) fn try_mount(&self, options: &str) -> Result<Server, String> {
        Server::start(self.serve_command(options))
    }

    /// Returns the command that mounts the volume.
    pub(crate) fn serve_command(&self, options: &str) -> Command {
        let mut command = Command::new(serve_program());
        command.args([
            self.image.as_os_str(),
            self.dir.as_os_str(),
            OsStr::new(options),
        ]);
        command
    }

    /// Returns a path in the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes a directory whose files are marked atomic.
    pub(crate) fn marked(&self) -> PathBuf {
        let dir = self.path("marked");
        std::fs::create_dir(&dir).unwrap();
        run(Command::new("chattr").arg("+j").arg(&dir));
        dir
    }

    /// Unmounts through the crate, waits for the server, and lets e2fsck judge.
    pub(crate) fn unmount(&self, server: Server) {
        let unmounted = stetfs_fuse::umount(&self.dir, false, Duration::from_secs(60)).unwrap();
        assert!(unmounted.finished);
        let (status, said) = server.wait();
        assert!(status.success(), "{status}: {said}");
        self.check_clean();
    }

    /// Checks that e2fsck finds nothing, and that the superblock needs no recovery.
    pub(crate) fn check_clean(&self) {
        let header = run(Command::new("dumpe2fs").arg("-h").arg(&self.image));
        let header = String::from_utf8_lossy(&header.stdout).into_owned();
        assert!(
            header.contains("Filesystem state:         clean"),
            "{header}"
        );
        assert!(!header.contains("needs_recovery"), "{header}");
        self.fsck();
    }

    /// Checks that e2fsck finds nothing.
    pub(crate) fn fsck(&self) {
        let out = Command::new("e2fsck")
            .args(["-fn"])
            .arg(&self.image)
            .output()
            .unwrap();
        assert!(
            out.status.success(),
            "e2fsck: {}",
            String::from_utf8_lossy(&out.stdout)
        );
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // A failed test leaves its mount behind. The scratch directory must not be removed through
        // it.
        while stetfs_fuse::mountinfo::mounted_on(&self.dir).is_ok_and(|m| m.is_some()) {
            let out = Command::new("umount").arg("-l").arg(&self.dir).output();
            if !out.is_ok_and(|out| out.status.success()) {
                break;
            }
        }
    }
}

/// Returns the program that the tests mount with.
pub(crate) fn serve_program() -> &'static str {
    env!("CARGO_BIN_EXE_stetfs-serve")
}

/// A running server.
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Starts a server and waits for its mount. On failure, returns what it said.
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line == "mounted\n" {
            return Ok(Self { child });
        }
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        child.wait().unwrap();
        Err(said)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end. Returns its exit status and what it said.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (status, said)
    }

    /// Kills it as a crash would, and waits until the companion has released the mount point.
    pub(crate) fn crash(self, dir: &Path) {
        self.signal(Signal::KILL);
        let (status, _) = self.wait();
        assert!(!status.success());
        wait_for_release(dir);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
    }
}

/// Opens a file for reading and writing, and creates it if it does not exist.
pub(crate) fn open(path: &Path) -> std::fs::File {
    let mut how = std::fs::File::options();
    how.read(true).write(true).create(true).truncate(false);
    how.open(path).unwrap()
}

/// Runs a program that must succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        out.status.success(),
        "{command:?}: {}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    out
}

/// Stops all threads of a process. The signal only begins that, so wait for the end.
pub(crate) fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", pid.as_raw_pid());
    wait_until("all threads are stopped", || {
        let mut all = std::fs::read_dir(&tasks).unwrap().map(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        });
        all.all(|is_stopped| is_stopped)
    });
}

/// Waits for something that must happen soon.
pub(crate) fn wait_until(what: &str, happened: impl FnMut() -> bool) {
    let limit = Duration::from_secs(120);
    assert!(happens(limit, happened), "waited in vain until {what}");
}

/// Waits until the companion has released the mount point.
pub(crate) fn wait_for_release(dir: &Path) {
    wait_until("the mount point is released", || {
        stetfs_fuse::mountinfo::mounted_on(dir).unwrap().is_none()
    });
}

/// Waits for something at most for this time. Returns true if it happened.
pub(crate) fn happens(limit: Duration, mut happened: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !happened() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Runs umount(8), as soon as nobody looks into the mount.
pub(crate) fn umount(dir: &Path) {
    let unmounts = || Command::new("umount").arg(dir).output();
    wait_until(&format!("{} is unmounted", dir.display()), || {
        unmounts().is_ok_and(|out| out.status.success())
    });
}

/// Returns the errno of a failed call.
pub(crate) fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Returns the kernel's version.
pub(crate) fn kernel() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut parts = release
        .split(['.', '-'])
        .filter_map(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Returns a counter of the server.
pub(crate) fn counted(volume: &Volume, what: &str) -> u64 {
    let stats = stetfs_fuse::control::query_stats(&volume.dir).unwrap();
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    stats
        .pointer(what)
        .and_then(serde_json::Value::as_u64)
        .unwrap()
}
