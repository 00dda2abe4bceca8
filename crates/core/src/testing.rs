//! Helpers of tests: images in memory, made by mke2fs, and judges that are not our code: e2fsck,
//! debugfs, the kernel.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use stetfs_media::{BlockDev, RamDev};
use tempfile::NamedTempFile;

use crate::clock::Clock;
use crate::fs::Fs;
use crate::options::MountOptions;

/// The kinds of volume that tests go through: name, and options of mke2fs.
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

/// The time at which the clock of a test mount begins, in seconds since 1970.
pub const CLOCK_START: u64 = 1_700_000_000;

/// A volume in memory.
#[derive(Clone)]
pub struct Image {
    /// The device. Its content survives an [`Fs`] that was dropped.
    pub dev: Arc<RamDev>,
}

impl Image {
    /// Makes an image of `mib` MiB by `mke2fs ARGS`, with a fixed UUID and hash seed.
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

    /// Mounts with `options` as `-o` takes them, with a repeatable clock and no periodic commits.
    ///
    /// # Panics
    /// When the mount fails.
    pub fn mount(&self, options: &str) -> Fs {
        let options = MountOptions {
            clock: Clock::manual(CLOCK_START),
            ..MountOptions::parse(options).expect("options")
        };
        Fs::mount(self.dev.clone(), options).expect("mount").0
    }

    /// Copies the device as it is now: the state after a crash that kept every write.
    pub fn crash_copy(&self) -> Self {
        Self {
            dev: Arc::new(self.dev.fork()),
        }
    }

    /// Runs `with` on a copy of the image in a file, and drops changes to that file.
    pub fn with_file<T>(&self, with: impl FnOnce(&Path) -> T) -> T {
        let file = NamedTempFile::new().expect("a temporary file");
        self.dev.to_file(file.path()).expect("write the image");
        with(file.path())
    }

    /// Runs `e2fsck -fn`.
    ///
    /// # Errors
    /// The output of e2fsck, when it complains.
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

    /// Panics unless `e2fsck -fn` accepts the image.
    pub fn assert_clean(&self) {
        if let Err(complaints) = self.e2fsck() {
            panic!("e2fsck: {complaints}");
        }
    }

    /// Returns the output of one debugfs command.
    pub fn debugfs(&self, command: &str) -> String {
        self.with_file(|path| run(Command::new("debugfs").args(["-R", command]).arg(path)))
    }

    /// Runs `look` on a mount of the image's copy by the kernel, with `options` besides `loop`.
    /// Returns `None` and prints a warning where that is not possible (not root, no loop device).
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

    /// The device, as a mount takes it.
    pub fn device(&self) -> Arc<dyn BlockDev> {
        self.dev.clone()
    }
}

/// Unmounts. Programs that look at every new mount may keep it busy for a moment.
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
