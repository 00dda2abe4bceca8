//! Runs of fio, and the work of a mount meanwhile.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::fs::SeekFrom;
use rustix::mount::UnmountFlags;
use serde_json::Value;

use super::{Volume, happens};

/// A run that lasts longer than this never ends.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns fio with what all jobs have in common, in a memory cgroup if there is one.
pub(crate) fn fio(volume: &Volume, group: Option<&Path>) -> Command {
    let mut command = Command::new("fio");
    if let Some(group) = group {
        command = Command::new("sh");
        let enter = format!(
            "echo $$ >{}/cgroup.procs && exec fio \"$@\"",
            group.display()
        );
        command.args(["-c", &enter, "fio"]);
    }
    let directory = format!("--directory={}", volume.dir.display());
    command.args([&directory, "--output-format=json", "--fallocate=none"]);
    command.args([
        "--bs=4k",
        "--thread",
        "--allow_file_create=1",
        "--randrepeat=1",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for the end of a run and returns its report, from JSON. A run that does not end is cut off
/// from its server, so that it ends.
pub(crate) fn end(volume: &Volume, what: &str, mut child: Child) -> Value {
    if !happens(PATIENCE, || child.try_wait().unwrap().is_some()) {
        abort(volume);
        let _ = child.kill();
        panic!("{what}: still not ended after {PATIENCE:?}; the connection was aborted");
    }
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let json = said.find('{').map_or("", |at| &said[at..]);
    serde_json::from_str(json).unwrap_or_else(|e| {
        let errors = String::from_utf8_lossy(&out.stderr);
        panic!("{what}: {e}: {said}{errors}")
    })
}

/// Aborts the connection, so that nobody waits for the server any more.
fn abort(volume: &Volume) {
    // EBUSY comes only after the abort.
    let _ = rustix::mount::unmount(&volume.dir, UnmountFlags::FORCE);
}

/// Makes the server fetch dirty pages meanwhile: writes another file and asks for its holes.
fn ask_for_holes(path: PathBuf, stop: &AtomicBool) {
    let file = super::open(&path);
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        if file.write_at(&[7; 4096], at).is_err()
            || rustix::fs::seek(&file, SeekFrom::Hole(0)).is_err()
        {
            return;
        }
        at = (at + 8192) % (1 << 20);
    }
}

/// Sets the flag when dropped, also if the test fails.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs, for a second, `depth` direct writes at once by one of fio's engines, to a file that is
/// also written through the page cache.
pub(crate) fn run(volume: &Volume, engine: &str, depth: u32, group: Option<&Path>) {
    let what = format!("{engine}, {depth} at once");
    let mut command = fio(volume, group);
    command.args([
        "--runtime=1",
        "--time_based",
        "--size=1m",
        "--filename=f",
        "--rw=randwrite",
    ]);
    command.args([
        "--name=direct",
        &format!("--ioengine={engine}"),
        "--direct=1",
    ]);
    command.arg(format!("--iodepth={depth}"));
    command.args(["--name=cached", "--ioengine=psync", "--direct=0"]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let holes = volume.path("holes");
        scope.spawn(|| ask_for_holes(holes, &stop));
        let stopping = Stopping(&stop);
        let ended = end(volume, &what, command.spawn().unwrap());
        drop(stopping);
        for job in ended["jobs"].as_array().unwrap() {
            assert_eq!(job["error"], 0, "{what}: {job}");
            assert!(job["write"]["total_ios"].as_u64() > Some(0), "{what}");
        }
    });
}
