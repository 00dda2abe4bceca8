//! Block devices: loop devices over files, if we are root. Otherwise these tests report that they
//! are left out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stetfs_media::{Block, BlockDev, Cause, Errno, FileDev, MediaError, Op};

use crate::conformance::{
    SIZE, TAG, behaves_like_a_vector, reads_any_bytes, refuses_what_is_out_of_bounds,
};
use crate::files::Scratch;

fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .map_err(|e| format!("{program}: {e}"))?;
    if !output.status.success() {
        return Err(format!(
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device, detached when dropped.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    /// Makes a loop device of 8 MiB whose file lies on a file system with room for 1 MiB of it.
    fn on_full_host(scratch: &Scratch) -> Option<(Mount, Self)> {
        let full = scratch.path("full");
        let full = Mount::new("tmpfs", "size=1m", Path::new("none"), &full)?;
        let device = Self::over(&scratch.image("full/a", 8 << 20), 512)?;
        Some((full, device))
    }

    /// Makes a loop device over a file. Without loop devices, or without permission, it reports
    /// that and returns `None`.
    pub(crate) fn over(image: &Path, sector: u32) -> Option<Self> {
        let args = [
            "--find",
            "--show",
            "--sector-size",
            &sector.to_string(),
            path(image),
        ];
        match run("losetup", &args) {
            Ok(device) => Some(Self(device.into())),
            Err(why) => {
                eprintln!("SKIPPED: {why}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["--detach", path(&self.0)]).expect("the loop device is detached");
    }
}

/// A mount, undone when dropped.
pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn new(kind: &str, options: &str, device: &Path, on: &Path) -> Option<Self> {
        std::fs::create_dir_all(on).expect("a directory");
        match run(
            "mount",
            &["-t", kind, "-o", options, path(device), path(on)],
        ) {
            Ok(_) => Some(Self(on.to_owned())),
            Err(why) => {
                eprintln!("SKIPPED: {why}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Another program may be looking into the mount.
        for _ in 0..1200 {
            if run("umount", &[path(&self.0)]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{} cannot be unmounted", self.0.display());
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn buffered_and_direct() {
    let scratch = Scratch::new();
    for (sector, direct) in [(512, false), (512, true), (4096, false), (4096, true)] {
        let image = scratch.image("a", SIZE);
        let Some(device) = Loop::over(&image, sector) else {
            return;
        };
        let dev = FileDev::options()
            .direct(direct)
            .open(&device.0)
            .expect("it opens");
        assert!(dev.is_block_device());
        assert_eq!((dev.size(), dev.sector_size()), (SIZE, sector));
        behaves_like_a_vector(&dev, 8);
        refuses_what_is_out_of_bounds(&dev);
        reads_any_bytes(&dev);
        dev.flush(Cause::Home).expect("a flush");
        dev.write_at(0, &[9; 8192], TAG).expect("a write");
        dev.discard(0, 4096).expect("a discard");
        let mut out = [1; 8192];
        dev.read_at(0, &mut out, TAG).expect("a read");
        assert!(out[4096..].iter().all(|b| *b == 9));
        // A loop device over a file reads as zeros there, which shows that the discard arrived.
        assert!(out[..4096].iter().all(|b| *b == 0));
    }
}

#[test]
fn one_writer_or_many_readers() {
    let scratch = Scratch::new();
    let Some(device) = Loop::over(&scratch.image("a", SIZE), 512) else {
        return;
    };
    let read_only = FileDev::options().read_only(true);
    let is_busy = |options: stetfs_media::FileOptions| {
        matches!(options.open(&device.0), Err(MediaError::Busy { .. }))
    };
    let writer = FileDev::options().open(&device.0).expect("a writer");
    assert!(is_busy(FileDev::options()) && is_busy(read_only));
    drop(writer);
    let first = read_only.open(&device.0).expect("a reader");
    let second = read_only.open(&device.0).expect("another reader");
    assert!(is_busy(FileDev::options()));
    drop((first, second));
    FileDev::options().open(&device.0).expect("a writer again");
}

/// Neither a mounted device nor the file under it can be opened.
#[test]
fn what_the_kernel_has_mounted_is_busy() {
    let scratch = Scratch::new();
    let image = scratch.image("a", 8 << 20);
    if let Err(why) = run("mke2fs", &["-q", "-F", "-t", "ext4", path(&image)]) {
        return eprintln!("SKIPPED: {why}");
    }
    let Some(device) = Loop::over(&image, 512) else {
        return;
    };
    let Some(mount) = Mount::new("ext4", "rw", &device.0, &scratch.path("mnt")) else {
        return;
    };
    for read_only in [false, true] {
        let options = FileDev::options().read_only(read_only);
        assert!(matches!(
            options.open(&device.0),
            Err(MediaError::Busy { .. })
        ));
        match options.open(&image) {
            Err(MediaError::Busy { by, .. }) => {
                assert_eq!(by, format!(" (mounted through {})", device.0.display()));
            }
            Err(e) => panic!("{e}"),
            Ok(_) => panic!("opened under a kernel mount"),
        }
    }
    FileDev::options()
        .read_only(true)
        .lock(false)
        .open(&device.0)
        .expect("a look without a lock");
    drop(mount);
    FileDev::options().open(&image).expect("free again");
    FileDev::options().open(&device.0).expect("free again");
}

/// The story of 2018 ("fsyncgate"): the kernel cannot write dirty pages back, reports it at one
/// fsync, and lets the next one succeed. Here the loop device's file lies on a full file system.
#[test]
fn a_failed_flush_is_never_forgotten() {
    let scratch = Scratch::new();
    let Some((_full, device)) = Loop::on_full_host(&scratch) else {
        return;
    };
    let dev = FileDev::options().open(&device.0).expect("it opens");
    dev.write_at(0, &vec![1; 512 << 10], TAG)
        .expect("there is room");
    dev.flush(Cause::Log).expect("there is room");
    dev.write_at(0, &vec![2; 4 << 20], TAG)
        .expect("into the page cache");
    let first = dev.flush(Cause::Log);
    assert!(
        matches!(
            first,
            Err(MediaError::Io {
                op: Op::Flush,
                source: Errno::IO,
                ..
            })
        ),
        "{first:?}"
    );
    assert_eq!(dev.flush(Cause::Log), Err(MediaError::WritesLost));
    assert_eq!(
        dev.write_durable(0, &[&[3; 512]], TAG),
        Err(MediaError::WritesLost)
    );
    assert_eq!(dev.meter().snapshot().total_flushes(), 1);
}

/// A failed request that writes and flushes at once is not forgotten either.
#[test]
fn a_write_that_failed_with_its_flush_is_never_forgotten() {
    let scratch = Scratch::new();
    let Some((_full, device)) = Loop::on_full_host(&scratch) else {
        return;
    };
    let dev = FileDev::options()
        .direct(true)
        .open(&device.0)
        .expect("it opens");
    let (small, large) = (Block::zeroed(4096), Block::zeroed(4 << 20));
    dev.write_flushed(0, &[small.bytes()], TAG, Cause::Log)
        .expect("there is room");
    let account = dev.meter().snapshot();
    assert_eq!((account.total().writes, account.total_flushes()), (1, 1));
    let failed = dev.write_flushed(0, &[large.bytes()], TAG, Cause::Log);
    assert!(matches!(failed, Err(MediaError::Io { .. })), "{failed:?}");
    assert_eq!(
        dev.write_flushed(0, &[small.bytes()], TAG, Cause::Log),
        Err(MediaError::WritesLost)
    );
    assert_eq!(dev.flush(Cause::Log), Err(MediaError::WritesLost));
}

/// A write for which there is only partial room is continued, and then reports why it cannot
/// finish.
#[test]
fn a_full_host_is_told() {
    let scratch = Scratch::new();
    let Some(_full) = Mount::new("tmpfs", "size=1m", Path::new("none"), &scratch.path("full"))
    else {
        return;
    };
    let image = scratch.image("full/a", 8 << 20);
    let dev = FileDev::options().open(&image).expect("it opens");
    let written = dev.write_at(0, &vec![1; 4 << 20], TAG);
    assert!(
        matches!(
            written,
            Err(MediaError::Io {
                op: Op::Write,
                source: Errno::NOSPC,
                ..
            })
        ),
        "{written:?}"
    );
    assert_eq!(dev.meter().snapshot().total().writes, 0);
}
