//! What is measured: the kernel's ext4, XFS and Btrfs, stetfs and the floor, each mounted on a
//! fresh volume of its own.
//!
//! The kernel's file systems and stetfs get the same kind of device: a loop device over a sparse
//! file in memory or on the disk, or zram. (A plain file against a loop device would be unfair: the
//! loop device hands each request to another thread.) A scheme that has memory beside the volume
//! gets a file in memory for that, as if it were non-volatile.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use stetfs_testkit::host::{KernelMount, Loop, run, run_tolerating, unmount, wait_until};
use stetfs_testkit::mounted::serve;

/// How long a server may take to mount, or to commit and leave.
const PATIENCE: Duration = Duration::from_secs(120);

/// The kind of device under the kernel's file systems and stetfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Medium {
    /// A loop device on a sparse file in memory
    Loop,
    /// A loop device on a file on the disk (in TMPDIR), past the page cache
    Disk,
    /// A zram device
    Zram,
}

/// How a volume's inode tables are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    /// Written with the volume, so that nobody does it later.
    Written,
    /// Not written, and the kernel does not do it later either: for volumes that are larger than
    /// what they lie on.
    Sparse,
}

/// One column of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum System {
    /// The kernel's ext4 with this `data=` mode.
    Kernel(String),
    /// The kernel's XFS.
    Xfs,
    /// The kernel's Btrfs.
    Btrfs,
    /// stetfs with this `data=` mode, or with this scheme in its own.
    Stetfs(How),
    /// The kernel's ext4 with this `data=` mode, and this scheme below it, with its options after
    /// commas.
    Below {
        /// The scheme.
        scheme: String,
        /// The kernel's mode.
        mode: String,
    },
    /// The floor: everything in memory, behind the same server.
    Floor,
}

/// How stetfs journals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// The default scheme, with this `data=` mode.
    Mode(String),
    /// This scheme, with its options after commas.
    Scheme(String),
}

impl System {
    /// Returns the column's name.
    pub fn name(&self) -> String {
        match self {
            Self::Kernel(mode) => format!("kernel-{mode}"),
            Self::Stetfs(How::Mode(name) | How::Scheme(name)) => format!("stetfs-{name}"),
            Self::Below { scheme, mode } => format!("below-{scheme}-{mode}"),
            Self::Xfs => "xfs".to_owned(),
            Self::Btrfs => "btrfs".to_owned(),
            Self::Floor => "floor".to_owned(),
        }
    }

    /// Makes a volume with the defaults of its own program, and with its tables written or not.
    fn format(&self, device: &Path, tables: Tables) -> Result<()> {
        let tables = match tables {
            Tables::Written => "lazy_itable_init=0,lazy_journal_init=0,nodiscard",
            Tables::Sparse => "lazy_itable_init=1,lazy_journal_init=0,nodiscard",
        };
        let ext4 = ["-q", "-F", "-t", "ext4", "-E", tables];
        let (program, args) = match self {
            Self::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"][..]),
            Self::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"][..]),
            Self::Kernel(_) | Self::Stetfs(_) | Self::Below { .. } | Self::Floor => {
                ("mke2fs", &ext4[..])
            }
        };
        let args = args.iter().map(Path::new);
        run(program, &args.chain([device]).collect::<Vec<_>>())?;
        Ok(())
    }

    /// Has the file system's own checker judge an unmounted volume.
    fn check(&self, device: &Path) -> Result<()> {
        let (program, args) = match self {
            Self::Xfs => ("xfs_repair", &["-n"][..]),
            Self::Btrfs => ("btrfs", &["check", "--readonly"][..]),
            Self::Kernel(_) | Self::Stetfs(_) | Self::Below { .. } | Self::Floor => {
                ("e2fsck", &["-fn"][..])
            }
        };
        let args = args.iter().map(Path::new);
        run_tolerating(program, &args.chain([device]).collect::<Vec<_>>(), 0)?;
        Ok(())
    }
}

/// The places of everything, and the size of a volume.
#[derive(Clone, Debug)]
pub struct Bench {
    /// Scratch directory in memory.
    pub dir: PathBuf,
    /// Scratch directory on the disk.
    pub disk: PathBuf,
    /// The device's kind.
    pub medium: Medium,
    /// Size of a volume in MiB.
    pub size_mib: u64,
    /// Its inode tables.
    pub tables: Tables,
    /// Size of the memory beside it in MiB, for schemes that have some.
    pub nvm_mib: u64,
    /// The stetfs program.
    pub stetfs: PathBuf,
    /// The floor program.
    pub floor: PathBuf,
    /// More mount options for stetfs (`scheme=...`), comma separated.
    pub stetfs_options: String,
    /// Mount options for the floor.
    pub floor_options: String,
}

impl Bench {
    /// A bench on a loop device in memory, with volumes of this many MiB and the programs beside
    /// this one. `dir` is in memory, `disk` on the disk.
    ///
    /// # Errors
    /// This program does not know its own path.
    pub fn new(dir: &Path, disk: &Path, size_mib: u64) -> Result<Self> {
        let here = std::env::current_exe()?;
        Ok(Self {
            dir: dir.to_owned(),
            disk: disk.to_owned(),
            medium: Medium::Loop,
            size_mib,
            tables: Tables::Written,
            nvm_mib: 1024,
            stetfs: here.with_file_name("stetfs"),
            floor: here.with_file_name("floor"),
            stetfs_options: String::new(),
            floor_options: String::new(),
        })
    }
}

#[derive(Debug)]
enum Device {
    Loop(Loop, PathBuf),
    Zram(PathBuf),
}

impl Device {
    fn make(bench: &Bench) -> Result<Self> {
        match bench.medium {
            Medium::Loop | Medium::Disk => {
                let is_disk = bench.medium == Medium::Disk;
                let file = if is_disk { &bench.disk } else { &bench.dir }.join("volume.img");
                let _ = fs::remove_file(&file);
                File::create(&file)?.set_len(bench.size_mib << 20)?;
                let device = if is_disk {
                    Loop::attach_past_cache(&file)?
                } else {
                    Loop::attach(&file)?
                };
                Ok(Self::Loop(device, file))
            }
            Medium::Zram => {
                let size = format!("{}M", bench.size_mib);
                let out = run(
                    "zramctl",
                    &["--find", "--size", &size, "--algorithm", "lz4"],
                )
                .or_else(|_| run("zramctl", &["--find", "--size", &size]))?;
                Ok(Self::Zram(PathBuf::from(
                    String::from_utf8_lossy(&out.stdout).trim(),
                )))
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Loop(device, _) => device.device(),
            Self::Zram(path) => path,
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        match self {
            Self::Loop(_, file) => drop(fs::remove_file(file)),
            Self::Zram(path) => {
                if let Err(error) = run("zramctl", &[Path::new("--reset"), path]) {
                    eprintln!("warning: {error:#}");
                }
            }
        }
    }
}

#[derive(Debug)]
enum Mounted {
    Kernel(KernelMount),
    Server(Child),
    /// Mounted by the kernel, on a device of ours.
    Front,
}

/// Returns a field of `/proc/PROCESS/status`, in KiB.
///
/// # Errors
/// There is no such process or field.
pub fn memory_kib(process: &str, field: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = value.and_then(|value| value.split_whitespace().next());
    let number = number.with_context(|| format!("process {process} has no {field}"))?;
    Ok(number.parse()?)
}

/// A mounted system. Dropping it unmounts it and removes its device.
#[derive(Debug)]
pub struct Running {
    system: System,
    bench: Bench,
    dir: PathBuf,
    mounted: Option<Mounted>,
    device: Option<Device>,
    from: Traffic,
    to: Option<Traffic>,
}

/// The traffic that a mount has caused since some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes written to the device; None if there is no device.
    pub bytes: Option<u64>,
    /// Flushes of the device.
    pub flushes: Option<u64>,
    /// Requests to the server; None if there is no server.
    pub requests: Option<u64>,
}

impl Traffic {
    /// Returns the traffic of a block device since it was made.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn of(device: &Path) -> Result<Self> {
        let name = device.file_name().context("a device's name")?;
        let file = Path::new("/sys/class/block").join(name).join("stat");
        let text = fs::read_to_string(&file)?;
        // Linux, Documentation/block/stat.rst.
        let field = |n| {
            text.split_whitespace()
                .nth(n)
                .and_then(|n| n.parse::<u64>().ok())
        };
        Ok(Self {
            bytes: field(6).map(|sectors| 512 * sectors),
            flushes: field(15),
            requests: None,
        })
    }

    /// Returns the traffic since another moment.
    pub fn since(&self, from: &Self) -> Self {
        let less = |to: Option<u64>, from: Option<u64>| Some(to?.saturating_sub(from?));
        Self {
            bytes: less(self.bytes, from.bytes),
            flushes: less(self.flushes, from.flushes),
            requests: less(self.requests, from.requests),
        }
    }
}

impl Running {
    /// Makes and mounts a fresh volume.
    ///
    /// # Errors
    /// Of the tools.
    pub fn start(system: &System, bench: &Bench) -> Result<Self> {
        let dir = bench.dir.join(format!("mnt-{}", system.name()));
        fs::create_dir_all(&dir)?;
        let device = if *system == System::Floor {
            None
        } else {
            Some(Device::make(bench)?)
        };
        if let Some(device) = &device {
            system.format(device.path(), bench.tables)?;
        }
        let mut running = Self {
            system: system.clone(),
            bench: bench.clone(),
            dir,
            mounted: None,
            device,
            from: Traffic::default(),
            to: None,
        };
        running.mount()?;
        running.begin()?;
        Ok(running)
    }

    /// Returns which system this is.
    pub fn system(&self) -> &System {
        &self.system
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the process that serves it, if there is one.
    pub fn server(&self) -> Option<u32> {
        match &self.mounted {
            Some(Mounted::Server(child)) => Some(child.id()),
            Some(Mounted::Front) => {
                let pid = self.stats().ok()?["server"]["pid"].as_u64()?;
                u32::try_from(pid).ok()
            }
            _ => None,
        }
    }

    /// Begins a measurement.
    ///
    /// # Errors
    /// Of the system's counters.
    pub fn begin(&mut self) -> Result<()> {
        self.from = self.count()?;
        self.to = None;
        Ok(())
    }

    /// Ends the measurement.
    ///
    /// # Errors
    /// Of the system's counters.
    pub fn end(&mut self) -> Result<()> {
        self.to = Some(self.count()?);
        Ok(())
    }

    /// Returns the traffic of the measurement; ends it if it has not ended.
    ///
    /// # Errors
    /// Of the system's counters.
    pub fn traffic(&mut self) -> Result<Traffic> {
        if self.to.is_none() {
            self.end()?;
        }
        Ok(self.to.unwrap_or_default().since(&self.from))
    }

    /// Returns the traffic since the device or the mount was made.
    fn count(&self) -> Result<Traffic> {
        let mut traffic = Traffic::default();
        if let Some(device) = &self.device {
            traffic = Traffic::of(device.path())?;
        }
        if matches!(self.system, System::Stetfs(_) | System::Below { .. }) {
            let requests = &self.stats()?["server"]["requests"];
            let by_kind = requests.as_object();
            let all = by_kind.map(|r| r.values().filter_map(|n| n.as_u64()).sum());
            traffic.requests = all.or_else(|| requests.as_u64());
        }
        Ok(traffic)
    }

    /// Returns the server's counters.
    fn stats(&self) -> Result<serde_json::Value> {
        let words = [
            OsStr::new("stats"),
            OsStr::new("--json"),
            self.dir.as_os_str(),
        ];
        let out = run(&self.bench.stetfs.to_string_lossy(), &words)?;
        Ok(serde_json::from_slice(&out.stdout)?)
    }

    fn mount(&mut self) -> Result<()> {
        let device = self.device.as_ref().map(Device::path);
        self.mounted = Some(match (&self.system, device) {
            (System::Kernel(mode), Some(device)) => {
                let tables = match self.bench.tables {
                    Tables::Written => "",
                    Tables::Sparse => ",noinit_itable",
                };
                let options = format!("data={mode}{tables}");
                Mounted::Kernel(KernelMount::ext4(device, &self.dir, &options)?)
            }
            (System::Xfs, Some(device)) => {
                Mounted::Kernel(KernelMount::new("xfs", device, &self.dir, "")?)
            }
            (System::Btrfs, Some(device)) => {
                Mounted::Kernel(KernelMount::new("btrfs", device, &self.dir, "")?)
            }
            (System::Stetfs(how), Some(device)) => {
                let mut options = match how {
                    How::Mode(mode) => format!("data={mode}"),
                    How::Scheme(scheme) => self.with_memory(scheme)?,
                };
                if !self.bench.stetfs_options.is_empty() {
                    options = format!("{options},{}", self.bench.stetfs_options);
                }
                let mut command = Command::new(&self.bench.stetfs);
                command
                    .args(["mount", "-f", "-o", &options])
                    .arg(device)
                    .arg(&self.dir);
                Mounted::Server(serve(command, &self.dir)?)
            }
            (System::Below { scheme, mode }, Some(device)) => {
                let mut options = format!("front=kernel,data={mode},{}", self.with_memory(scheme)?);
                if !self.bench.stetfs_options.is_empty() {
                    options = format!("{options},{}", self.bench.stetfs_options);
                }
                let words = ["mount", "-q", "-o", &options].map(OsStr::new);
                let places = [device.as_os_str(), self.dir.as_os_str()];
                let words = words.into_iter().chain(places).collect::<Vec<_>>();
                run(&self.bench.stetfs.to_string_lossy(), &words)?;
                Mounted::Front
            }
            (System::Floor, _) => {
                let mut command = Command::new(&self.bench.floor);
                command
                    .args(["-o", &self.bench.floor_options])
                    .arg(&self.dir);
                Mounted::Server(serve(command, &self.dir)?)
            }
            _ => bail!("{} has no device", self.system.name()),
        });
        Ok(())
    }

    /// Returns the options of a scheme, with memory beside the volume if it has some.
    fn with_memory(&self, scheme: &str) -> Result<String> {
        let name = scheme.split(',').next().unwrap_or(scheme);
        let about = stetfs_schemes::find(name)?.about;
        let mut options = format!("scheme={scheme}");
        if about.nvm.is_needed() {
            let nvm = self.bench.dir.join("nvm");
            File::create(&nvm)?.set_len(self.bench.nvm_mib << 20)?;
            options += &format!(",nvm={},durability=process", nvm.display());
        }
        Ok(options)
    }

    fn unmount(&mut self) -> Result<()> {
        match self.mounted.take() {
            None => Ok(()),
            Some(Mounted::Kernel(mount)) => mount.unmount(),
            Some(Mounted::Front) => {
                let words = [OsStr::new("umount"), self.dir.as_os_str()];
                run(&self.bench.stetfs.to_string_lossy(), &words).map(drop)
            }
            Some(Mounted::Server(mut child)) => {
                unmount(&self.dir)?;
                wait_until("the server's end", PATIENCE, || {
                    matches!(child.try_wait(), Ok(Some(_)))
                })?;
                let status = child.wait()?;
                ensure!(
                    status.success(),
                    "the server of {} ended with {status}",
                    self.system.name()
                );
                Ok(())
            }
        }
    }

    /// Empties the caches above the device: unmounts and mounts again. The floor keeps its data
    /// nowhere else, so it only loses the kernel's pages of `files`.
    ///
    /// # Errors
    /// Of unmounting and mounting.
    pub(crate) fn cool(&mut self, files: &[&Path]) -> Result<()> {
        if self.system == System::Floor {
            for path in files {
                let file = File::open(path)?;
                rustix::fs::fsync(&file)?;
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            }
            return Ok(());
        }
        self.remount().map(drop)
    }

    /// Unmounts and mounts again; returns the time that mounting took.
    ///
    /// # Errors
    /// Of unmounting and mounting.
    pub fn remount(&mut self) -> Result<Duration> {
        self.unmount()?;
        let start = Instant::now();
        self.mount()?;
        Ok(start.elapsed())
    }

    /// Returns the number of a file's extents, as filefrag counts them. A volume of stetfs is
    /// mounted by the kernel for that, since FUSE has no FIEMAP. The caches are empty afterwards.
    ///
    /// # Errors
    /// Of mounting and filefrag.
    pub fn extents(&mut self, name: &str) -> Result<u64> {
        self.unmount()?;
        let own = match (&self.system, &self.device) {
            (System::Stetfs(_), Some(device)) => {
                Some(KernelMount::ext4(device.path(), &self.dir, "ro,noload")?)
            }
            _ => {
                self.mount()?;
                None
            }
        };
        let path = self.dir.join(name);
        let out = run("filefrag", &[&path])?;
        if let Some(mount) = own {
            mount.unmount()?;
            self.mount()?;
        }
        let text = String::from_utf8_lossy(&out.stdout);
        let count = text.rsplit_once(": ").map_or("", |(_, found)| found);
        let number = count.split_whitespace().next().unwrap_or_default();
        number
            .parse()
            .with_context(|| format!("filefrag said {text}"))
    }

    /// Unmounts the volume and has the file system's own checker judge it.
    ///
    /// # Errors
    /// The unmount failed, or the checker found something.
    pub fn stop(mut self) -> Result<()> {
        self.unmount()?;
        if let Some(device) = &self.device {
            self.system.check(device.path())?;
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("warning: {error:#}");
        }
    }
}
