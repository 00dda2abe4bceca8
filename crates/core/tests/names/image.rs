//! Test volumes: mke2fs makes them in a file, tests mount them from memory, and the judges read
//! them from a file again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use stetfs::clock::Clock;
use stetfs::{Fs, MountOptions, MountReport};
use stetfs_format::InodeNo;
use stetfs_media::RamDev;
use tempfile::TempDir;

/// A mounted volume.
pub(crate) struct Volume {
    pub(crate) fs: Fs,
    pub(crate) report: MountReport,
    dev: Arc<RamDev>,
    dir: TempDir,
}

/// Runs a program of e2fsprogs. Returns its exit code and its output.
fn run(program: &str, args: &[&str], image: &Path) -> (i32, String) {
    // PATH stays as it is. If the command's environment had its own, std would fork, which copies
    // the page tables of all the test's memory, instead of calling posix_spawn.
    let output = Command::new(program)
        .args(args)
        .arg(image)
        .output()
        .unwrap_or_else(|e| panic!("{program} (e2fsprogs) cannot be run: {e}"));
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

impl Volume {
    /// Makes a volume of `mib` MiB with these arguments of mke2fs, and mounts it. An argument
    /// `hash_alg=...` goes to tune2fs.
    pub(crate) fn make(mke2fs: &str, mib: u64) -> Self {
        Self::mount(Self::image(mke2fs, mib))
    }

    /// Makes an image without mounting it.
    pub(crate) fn image(mke2fs: &str, mib: u64) -> TempDir {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(mib << 20)
            .unwrap();
        let (tune, mut args): (Vec<&str>, Vec<&str>) = mke2fs
            .split_whitespace()
            .partition(|arg| arg.starts_with("hash_alg="));
        args.extend(["-F", "-q"]);
        let (code, text) = run("mke2fs", &args, &path);
        assert_eq!(code, 0, "mke2fs {mke2fs}: {text}");
        for option in tune {
            let (code, text) = run("tune2fs", &["-E", option], &path);
            assert_eq!(code, 0, "tune2fs {option}: {text}");
        }
        dir
    }

    fn mount(dir: TempDir) -> Self {
        let dev = Self::device(&dir);
        Self::mount_device(dir, dev)
    }

    fn mount_device(dir: TempDir, dev: Arc<RamDev>) -> Self {
        let options = MountOptions {
            clock: Clock::manual(1_600_000_000),
            ..MountOptions::default()
        };
        let (fs, report) = Fs::mount(dev.clone(), options).unwrap();
        Self {
            fs,
            report,
            dev,
            dir,
        }
    }

    /// Unmounts, lets e2fsck judge the image, and mounts it again.
    pub(crate) fn check(self) -> Self {
        Self::mount(self.checked())
    }

    /// Mounts a copy of the device as it is now, as after a crash.
    pub(crate) fn crash(self) -> Self {
        let dev = Arc::new(self.dev.fork());
        Self::mount_device(self.dir, dev)
    }

    /// Writes the device as it is now to the image file, without unmounting: the image of a crash.
    pub(crate) fn cut(self) -> TempDir {
        self.dev.to_file(&self.dir.path().join("image")).unwrap();
        self.dir
    }

    /// Unmounts an image that nobody will judge.
    pub(crate) fn abandon(self) {
        let _ = self.fs.unmount();
    }

    /// Unmounts and lets e2fsck judge the image. Returns the directory that holds it as `image`.
    pub(crate) fn checked(self) -> TempDir {
        self.fs.unmount().unwrap();
        drop(self.fs);
        judge(&self.dev, &self.dir, "");
        self.dir
    }

    /// Reads an image into memory.
    pub(crate) fn device(image: &TempDir) -> Arc<RamDev> {
        Arc::new(RamDev::from_file(&image.path().join("image")).unwrap())
    }

    /// Lets e2fsck judge a device.
    pub(crate) fn judge(dev: &RamDev, what: &str) {
        judge(dev, &TempDir::new().unwrap(), what);
    }

    /// Returns what debugfs prints for `request` on an unmounted image.
    pub(crate) fn debugfs(dir: &TempDir, request: &str) -> String {
        run("debugfs", &["-R", request], &dir.path().join("image")).1
    }

    /// Lets debugfs carry out `request` on an unmounted image.
    pub(crate) fn debugfs_write(dir: &TempDir, request: &str) {
        let args = ["-w", "-R", request];
        let (code, text) = run("debugfs", &args, &dir.path().join("image"));
        assert_eq!(code, 0, "{request}: {text}");
    }

    /// Mounts an image that may be damaged.
    pub(crate) fn try_mount(dir: &TempDir) -> stetfs::Result<(Fs, MountReport)> {
        Fs::mount(Self::device(dir), MountOptions::default())
    }

    /// Mounts an image that [`Volume::checked`] has returned.
    pub(crate) fn again(dir: TempDir) -> Self {
        Self::mount(dir)
    }
}

/// Returns the names in a directory that tests have made, with their inodes.
pub(crate) fn names_in(fs: &Fs, dir: InodeNo) -> stetfs::Result<BTreeMap<Vec<u8>, InodeNo>> {
    let mut names = BTreeMap::new();
    fs.readdir(dir, 0, &mut |entry| {
        if !matches!(entry.name, b"." | b".." | b"lost+found") {
            names.insert(entry.name.to_vec(), entry.ino);
        }
        true
    })?;
    Ok(names)
}

/// Lets e2fsck judge a device, as the image in `dir`.
fn judge(dev: &RamDev, dir: &TempDir, what: &str) {
    let path = dir.path().join("image");
    dev.to_file(&path).unwrap();
    let (code, text) = run("e2fsck", &["-fn"], &path);
    if code != 0 {
        let kept = std::env::temp_dir().join("stetfs-names-failed.img");
        let _ = std::fs::copy(&path, &kept);
        let kept = kept.display();
        panic!("{what}: e2fsck -fn says {code}, image kept at {kept}:\n{text}");
    }
}

/// Copies an image, with other bytes at `offset`.
pub(crate) fn patch(image: &TempDir, offset: u64, bytes: &[u8]) -> TempDir {
    use std::os::unix::fs::FileExt;
    let copy = TempDir::new().unwrap();
    let to = copy.path().join("image");
    std::fs::copy(image.path().join("image"), &to).unwrap();
    let file = std::fs::File::options().write(true).open(&to).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    copy
}

/// Returns the byte of an image at `offset`.
pub(crate) fn byte_at(image: &TempDir, offset: u64) -> u8 {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(image.path().join("image")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

/// Returns the block of the volume at which debugfs finds a block of a file.
pub(crate) fn physical_block(image: &TempDir, path: &str, lblk: u32) -> u64 {
    let text = Volume::debugfs(image, &format!("bmap {path} {lblk}"));
    let number = text.lines().find_map(|l| l.trim().parse().ok());
    number.unwrap_or_else(|| panic!("bmap {path} {lblk}: {text}"))
}

/// A small generator of random numbers (xorshift64*), the same on every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) as usize) % n
    }
}
