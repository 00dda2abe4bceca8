//! For tests: images made by mke2fs, in memory, and judges that are not our code: e2fsck, debugfs,
//! the kernel.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use stetfs_media::{BlockDev, RamDev};
use tempfile::NamedTempFile;

use crate::clock::Clock;
use crate::fs::Fs;
use crate::options::MountOptions;

/// The options of mke2fs for each kind of volume that tests go through.
pub const KINDS: [(&str, &[&str]); 7] = [
    ("ext4", &["-t", "ext4", "-b", "4096"]),
    ("ext4, 1 KiB", &["-t", "ext4", "-b", "1024"]),
    (
        "ext4, 2 KiB, inodes of 128",
        &["-t", "ext4", "-b", "2048", "-I", "128", "-O", "^64bit"],
    ),
    (
        "gdt_csum",
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    ),
    ("ext3", &["-t", "ext3", "-b", "1024"]),
    ("ext3, 4 KiB", &["-t", "ext3", "-b", "4096"]),
    (
        "orphan_file",
        &[
            "-t",
            "ext4",
            "-O",
            "orphan_file,metadata_csum_seed",
            "-b",
            "4096",
        ],
    ),
];

/// Seconds since 1970 at which the clock of a test mount begins.
pub const CLOCK_START: u64 = 1_700_000_000;

/// A volume in memory.
#[derive(Clone)]
pub struct Image {
    /// The device; what is on it survives an [`Fs`] that was dropped.
    pub dev: Arc<RamDev>,
}

impl Image {
    /// An image of `mib` MiB made by `mke2fs ARGS`, with fixed UUID and hash seed.
    ///
    /// # Panics
    /// When mke2fs is missing or fails.
    pub fn new(mib: u64, args: &[&str]) -> Self {
        let file = NamedTempFile::new().expect("a temporary file");
        file.as_file().set_len(mib << 20).expect("its size");
        let seed = "c5e4ae5a-0b3c-4a5e-9d1e-6a1f3b2c4d5e";
        run(Command::new("mke2fs")
            .args([
                "-q",
                "-F",
                "-U",
                seed,
                "-E",
                &format!("lazy_itable_init=1,hash_seed={seed}"),
            ])
            .args(args)
            .arg(file.path()));
        Self {
            dev: Arc::new(RamDev::from_file(file.path()).expect("read the image")),
        }
    }

    /// Mounts with `options` as `-o` takes them, a clock that repeats, and no periodic commits.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn mount(&self, options: &str) -> Fs {
        let options = MountOptions {
            clock: Clock::manual(CLOCK_START),
            ..MountOptions::parse(options).expect("options")
        };
        Fs::mount(self.dev.clone(), options).expect("mount").0
    }

    /// A copy of what is on the device now: what a crash leaves, were every write kept.
    pub fn crash_copy(&self) -> Self {
        Self {
            dev: Arc::new(self.dev.fork()),
        }
    }

    /// Runs `with` on a copy of the image in a file; changes to the file are not kept.
    pub fn with_file<T>(&self, with: impl FnOnce(&Path) -> T) -> T {
        let file = NamedTempFile::new().expect("a temporary file");
        self.dev.to_file(file.path()).expect("write the image");
        with(file.path())
    }

    /// What `e2fsck -fn` complains about, if it does.
    ///
    /// # Errors
    /// Its output.
    pub fn e2fsck(&self) -> Result<(), String> {
        self.with_file(|path| {
            let out = Command::new("e2fsck")
                .args(["-fn"])
                .arg(path)
                .output()
                .expect("e2fsck is installed");
            if out.status.success() {
                Ok(())
            } else {
                Err(text(&out))
            }
        })
    }

    /// Panics unless `e2fsck -fn` is content.
    pub fn assert_clean(&self) {
        if let Err(complaints) = self.e2fsck() {
            panic!("e2fsck: {complaints}");
        }
    }

    /// The output of one debugfs command.
    pub fn debugfs(&self, command: &str) -> String {
        self.with_file(|path| run(Command::new("debugfs").args(["-R", command]).arg(path)))
    }

    /// Runs `look` on a mount of the image by the kernel, read-only with `options` added. `None`,
    /// and a loud line, where that is not possible (not root, no loop device).
    pub fn on_kernel<T>(&self, options: &str, look: impl FnOnce(&Path) -> T) -> Option<T> {
        self.with_file(|path| {
            let dir = tempfile::tempdir().expect("a directory");
            let mounted = Command::new("mount")
                .args(["-o", &format!("loop,{options}")])
                .arg(path)
                .arg(dir.path())
                .output();
            match mounted {
                Ok(out) if out.status.success() => {}
                Ok(out) => {
                    eprintln!("SKIPPED: no kernel mount here: {}", text(&out).trim());
                    return None;
                }
                Err(e) => {
                    eprintln!("SKIPPED: no kernel mount here: {e}");
                    return None;
                }
            }
            let result =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(dir.path())));
            unmount(dir.path());
            match result {
                Ok(result) => Some(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// The device as mounts take it.
    pub fn device(&self) -> Arc<dyn BlockDev> {
        self.dev.clone()
    }
}

/// Unmounts; others who look at every new mount may keep it busy for a moment.
fn unmount(dir: &Path) {
    for _ in 0..50 {
        let out = Command::new("umount")
            .arg(dir)
            .output()
            .expect("umount is installed");
        if out.status.success() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    run(Command::new("umount").arg("-l").arg(dir));
}

fn text(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn run(command: &mut Command) -> String {
    let out = command.output().expect("e2fsprogs is installed");
    assert!(out.status.success(), "{command:?}: {}", text(&out));
    text(&out)
}
