//! The rows of `bench-lib`. Each runs once through the library on a volume in memory, and once as
//! system calls on the kernel's ext4.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use stetfs::{Caller, Fs, Media, MountOptions, OpenFlags};
use stetfs_format::InodeNo;
use stetfs_media::RamDev;

use stetfs_testkit::host::{KernelMount, Loop, run, run_tolerating, scratch};
use stetfs_testkit::rng::Rng;

const SIZE_MIB: u64 = 3072;
const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;
/// Number of blocks of the file that is overwritten and read.
const FILE_BLOCKS: u64 = 16_384;
const SEQUENTIAL_MIB: u64 = 1024;

/// A row: its name, its unit, and how either side does it.
pub struct Row {
    /// Name.
    pub name: &'static str,
    /// Unit; more is better.
    pub unit: &'static str,
    /// Through the library.
    pub library: fn(&LibraryBed, u64) -> Result<f64>,
    /// By system calls.
    pub kernel: fn(&KernelBed, u64) -> Result<f64>,
}

/// Every row.
pub const ROWS: &[Row] = &[
    Row {
        name: "overwrite 4 KiB + fsync",
        unit: "op/s",
        library: |b, s| b.overwrite::<BLOCK>(s, 1),
        kernel: |b, s| b.overwrite::<BLOCK>(s, 1),
    },
    Row {
        name: "overwrite 64 B + fsync",
        unit: "op/s",
        library: |b, s| b.overwrite::<64>(s, 1),
        kernel: |b, s| b.overwrite::<64>(s, 1),
    },
    Row {
        name: "overwrite 4 KiB, 2 threads",
        unit: "op/s",
        library: |b, s| b.overwrite::<BLOCK>(s, 2),
        kernel: |b, s| b.overwrite::<BLOCK>(s, 2),
    },
    Row {
        name: "create + unlink",
        unit: "pairs/s",
        library: LibraryBed::create_unlink,
        kernel: KernelBed::create_unlink,
    },
    Row {
        name: "create 4 KiB + fsync",
        unit: "op/s",
        library: LibraryBed::create_fsync,
        kernel: KernelBed::create_fsync,
    },
    Row {
        name: "lookup + stat",
        unit: "op/s",
        library: LibraryBed::stat,
        kernel: KernelBed::stat,
    },
    Row {
        name: "cached read 4 KiB",
        unit: "op/s",
        library: LibraryBed::read,
        kernel: KernelBed::read,
    },
    Row {
        name: "sequential write",
        unit: "MiB/s",
        library: LibraryBed::write_all,
        kernel: KernelBed::write_all,
    },
    Row {
        name: "sequential read",
        unit: "MiB/s",
        library: LibraryBed::read_all,
        kernel: KernelBed::read_all,
    },
];

/// Returns how often per second `work(i)` is done, in the given time. Reads the clock only now and
/// then.
fn timed(seconds: u64, mut work: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    const AT_ONCE: u64 = 32;
    let limit = Duration::from_secs(seconds);
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < limit {
        for _ in 0..AT_ONCE {
            work(count)?;
            count += 1;
        }
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

/// Runs `work` in several threads and returns the sum of their results.
fn threads(count: u64, work: impl Fn(u64) -> Result<f64> + Sync) -> Result<f64> {
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..count)
            .map(|i| {
                scope.spawn({
                    let work = &work;
                    move || work(i)
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|h| h.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?)
            .sum()
    })
}

fn mib_per_second(start: Instant) -> f64 {
    SEQUENTIAL_MIB as f64 / start.elapsed().as_secs_f64()
}

fn name(i: u64) -> String {
    format!("file-{}", i % 1000)
}

/// A volume in memory, mounted by the library.
pub struct LibraryBed {
    fs: Fs,
    /// The block device that it is on; None if it is in memory as such.
    dev: Option<Arc<RamDev>>,
    caller: Caller,
    dir: tempfile::TempDir,
}

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

impl LibraryBed {
    /// Makes and mounts a fresh volume with these mount options.
    ///
    /// # Errors
    /// Of mke2fs or the mount.
    pub fn new(options: &str) -> Result<Self> {
        let dir = scratch()?;
        let image = dir.path().join("image");
        make(&image)?;
        let options = MountOptions::parse(options)?;
        let (media, dev): (Media, _) = if options.dax {
            (stetfs::open_media(&image, &options, false)?, None)
        } else {
            let dev = Arc::new(RamDev::from_file(&image)?);
            fs::remove_file(&image)?;
            (dev.clone().into(), Some(dev))
        };
        let (fs, _) = Fs::mount(media, options)?;
        Ok(Self {
            fs,
            dev,
            caller: Caller::root(),
            dir,
        })
    }

    /// Returns the volume.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Unmounts; e2fsck must find nothing.
    ///
    /// # Errors
    /// e2fsck found something, or the unmount failed.
    pub fn finish(self) -> Result<()> {
        self.fs.unmount()?;
        let image = self.dir.path().join("image");
        if let Some(dev) = &self.dev {
            dev.to_file(&image)?;
        }
        run_tolerating("e2fsck", &["-fn".as_ref(), image.as_os_str()], 0).map(drop)
    }

    fn file(&self, name: &str, blocks: u64) -> Result<InodeNo> {
        let ino = self
            .fs
            .create(
                &self.caller,
                self.fs.root(),
                name.as_bytes(),
                0o644,
                READ_WRITE,
            )?
            .ino;
        let bytes = vec![7; MIB];
        for at in (0..blocks * BLOCK as u64).step_by(MIB) {
            self.fs.write(&self.caller, ino, at, &bytes)?;
        }
        self.fs.sync()?;
        Ok(ino)
    }

    fn overwrite<const LEN: usize>(&self, seconds: u64, jobs: u64) -> Result<f64> {
        let files: Vec<_> = (0..jobs)
            .map(|i| self.file(&format!("f{i}"), FILE_BLOCKS))
            .collect::<Result<_>>()?;
        threads(jobs, |i| {
            let (ino, mut rng, mut block) = (files[i as usize], Rng::new(i), [i as u8; LEN]);
            timed(seconds, |n| {
                block[..8].copy_from_slice(&n.to_le_bytes());
                self.fs.write(
                    &self.caller,
                    ino,
                    rng.below(FILE_BLOCKS) * BLOCK as u64,
                    &block,
                )?;
                Ok(self.fs.fsync(ino, false)?)
            })
        })
    }

    fn create_unlink(&self, seconds: u64) -> Result<f64> {
        let root = self.fs.root();
        timed(seconds, |i| {
            let name = name(i);
            let made = self
                .fs
                .create(&self.caller, root, name.as_bytes(), 0o644, READ_WRITE)?;
            self.fs.release(made.ino)?;
            Ok(self.fs.unlink(&self.caller, root, name.as_bytes())?)
        })
    }

    fn create_fsync(&self, seconds: u64) -> Result<f64> {
        let dir = self
            .fs
            .mkdir(&self.caller, self.fs.root(), b"d", 0o755)?
            .ino;
        timed(seconds, |i| {
            let made = self.fs.create(
                &self.caller,
                dir,
                format!("f{i}").as_bytes(),
                0o644,
                READ_WRITE,
            )?;
            self.fs.write(&self.caller, made.ino, 0, &[1; BLOCK])?;
            self.fs.fsync(made.ino, false)?;
            Ok(self.fs.release(made.ino)?)
        })
    }

    fn stat(&self, seconds: u64) -> Result<f64> {
        let root = self.fs.root();
        let names: Vec<_> = (0..1000).map(name).collect();
        for name in &names {
            let made = self
                .fs
                .create(&self.caller, root, name.as_bytes(), 0o644, READ_WRITE)?;
            self.fs.release(made.ino)?;
        }
        timed(seconds, |i| {
            let found = self.fs.lookup(
                &self.caller,
                root,
                names[i as usize % names.len()].as_bytes(),
            )?;
            self.fs.getattr(found.ino)?;
            Ok(())
        })
    }

    fn read(&self, seconds: u64) -> Result<f64> {
        let (ino, mut rng, mut out) = (self.file("f", FILE_BLOCKS)?, Rng::new(1), [0; BLOCK]);
        timed(seconds, |_| {
            let n = self
                .fs
                .read(ino, rng.below(FILE_BLOCKS) * BLOCK as u64, &mut out)?;
            ensure!(n == BLOCK, "{n} bytes were read");
            Ok(())
        })
    }

    fn write_all(&self, _seconds: u64) -> Result<f64> {
        let ino = self
            .fs
            .create(&self.caller, self.fs.root(), b"big", 0o644, READ_WRITE)?
            .ino;
        let bytes = vec![7; MIB];
        let start = Instant::now();
        for i in 0..SEQUENTIAL_MIB {
            self.fs.write(&self.caller, ino, i * MIB as u64, &bytes)?;
        }
        self.fs.fsync(ino, false)?;
        Ok(mib_per_second(start))
    }

    fn read_all(&self, seconds: u64) -> Result<f64> {
        self.write_all(seconds)?;
        let ino = self.fs.lookup(&self.caller, self.fs.root(), b"big")?.ino;
        let mut out = vec![0; MIB];
        let start = Instant::now();
        for i in 0..SEQUENTIAL_MIB {
            ensure!(
                self.fs.read(ino, i * MIB as u64, &mut out)? == MIB,
                "a short read"
            );
        }
        Ok(mib_per_second(start))
    }
}

fn make(image: &std::path::Path) -> Result<()> {
    File::create(image)?.set_len(SIZE_MIB << 20)?;
    let options = [
        "-q",
        "-F",
        "-t",
        "ext4",
        "-J",
        "size=128",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
    ];
    let mut args: Vec<&std::ffi::OsStr> = options.iter().map(std::ffi::OsStr::new).collect();
    args.push(image.as_os_str());
    run("mke2fs", &args).map(drop)
}

/// A volume of the kernel's ext4 on a loop device over memory.
pub struct KernelBed {
    mount: Option<KernelMount>,
    device: Loop,
    dir: PathBuf,
    _scratch: tempfile::TempDir,
}

impl KernelBed {
    /// Makes and mounts a fresh volume in this mode.
    ///
    /// # Errors
    /// Of mke2fs, losetup, or mount.
    pub fn new(mode: &str) -> Result<Self> {
        let scratch = scratch()?;
        let (image, dir) = (scratch.path().join("image"), scratch.path().join("mnt"));
        fs::create_dir(&dir)?;
        make(&image)?;
        let device = Loop::attach(&image)?;
        let mount = KernelMount::ext4(device.device(), &dir, &format!("data={mode}"))?;
        Ok(Self {
            mount: Some(mount),
            device,
            dir,
            _scratch: scratch,
        })
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Returns the block device.
    pub fn device(&self) -> &std::path::Path {
        self.device.device()
    }

    /// Unmounts.
    ///
    /// # Errors
    /// Of umount(8).
    pub fn finish(mut self) -> Result<()> {
        self.mount.take().context("is mounted")?.unmount()
    }

    fn file(&self, name: &str, blocks: u64) -> Result<File> {
        let path = self.dir.join(name);
        let file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(path)?;
        let bytes = vec![7; MIB];
        for at in (0..blocks * BLOCK as u64).step_by(MIB) {
            file.write_all_at(&bytes, at)?;
        }
        file.sync_all()?;
        Ok(file)
    }

    fn overwrite<const LEN: usize>(&self, seconds: u64, jobs: u64) -> Result<f64> {
        let files: Vec<_> = (0..jobs)
            .map(|i| self.file(&format!("f{i}"), FILE_BLOCKS))
            .collect::<Result<_>>()?;
        threads(jobs, |i| {
            let (file, mut rng, mut block) = (&files[i as usize], Rng::new(i), [i as u8; LEN]);
            timed(seconds, |n| {
                block[..8].copy_from_slice(&n.to_le_bytes());
                file.write_all_at(&block, rng.below(FILE_BLOCKS) * BLOCK as u64)?;
                Ok(file.sync_all()?)
            })
        })
    }

    fn create_unlink(&self, seconds: u64) -> Result<f64> {
        timed(seconds, |i| {
            let path = self.dir.join(name(i));
            drop(File::create(&path)?);
            Ok(fs::remove_file(&path)?)
        })
    }

    fn create_fsync(&self, seconds: u64) -> Result<f64> {
        let dir = self.dir.join("d");
        fs::create_dir(&dir)?;
        timed(seconds, |i| {
            let file = File::create(dir.join(format!("f{i}")))?;
            file.write_all_at(&[1; BLOCK], 0)?;
            Ok(file.sync_all()?)
        })
    }

    fn stat(&self, seconds: u64) -> Result<f64> {
        let paths: Vec<_> = (0..1000).map(|i| self.dir.join(name(i))).collect();
        for path in &paths {
            File::create(path)?;
        }
        timed(seconds, |i| {
            fs::symlink_metadata(&paths[i as usize % paths.len()])?;
            Ok(())
        })
    }

    fn read(&self, seconds: u64) -> Result<f64> {
        let (file, mut rng, mut out) = (self.file("f", FILE_BLOCKS)?, Rng::new(1), [0; BLOCK]);
        timed(seconds, |_| {
            Ok(file.read_exact_at(&mut out, rng.below(FILE_BLOCKS) * BLOCK as u64)?)
        })
    }

    fn write_all(&self, _seconds: u64) -> Result<f64> {
        let file = File::create(self.dir.join("big"))?;
        let bytes = vec![7; MIB];
        let start = Instant::now();
        for i in 0..SEQUENTIAL_MIB {
            file.write_all_at(&bytes, i * MIB as u64)?;
        }
        file.sync_all()?;
        Ok(mib_per_second(start))
    }

    /// Reads from the page cache, which is for the kernel what the volume in memory is for the
    /// library.
    fn read_all(&self, seconds: u64) -> Result<f64> {
        self.write_all(seconds)?;
        let file = File::open(self.dir.join("big"))?;
        let mut out = vec![0; MIB];
        let start = Instant::now();
        for i in 0..SEQUENTIAL_MIB {
            file.read_exact_at(&mut out, i * MIB as u64)?;
        }
        Ok(mib_per_second(start))
    }
}
