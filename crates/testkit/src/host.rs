//! Programs, loop devices and kernel mounts that tests and benchmarks borrow from the machine.
//!
//! Every value releases what it borrowed when it is dropped. [`Missing`] reports what the machine
//! lacks, so that a test can say what it skips.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The reason why a test cannot run here; to be printed, never swallowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs `program` and returns its output; an exit code above `worst` is an error with the output in
/// it.
///
/// # Errors
/// The program cannot be started, was killed, or exited with a code above `worst`.
pub fn run_tolerating<S: AsRef<OsStr>>(program: &str, args: &[S], worst: i32) -> Result<Output> {
    let out = Command::new(program)
        .args(args)
        .output()
        .with_context(|| format!("starting {program}"))?;
    let shown: Vec<_> = args
        .iter()
        .map(|a| a.as_ref().to_string_lossy().into_owned())
        .collect();
    if out.status.code().is_none_or(|code| code > worst) {
        bail!(
            "{program} {}: {}\n{}{}",
            shown.join(" "),
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(out)
}

/// Runs `program`; anything but success is an error.
///
/// # Errors
/// Those of [`run_tolerating`].
pub fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<Output> {
    run_tolerating(program, args, 0)
}

/// Whether `program` is found in the usual places.
fn has_program(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .any(|dir| dir.join(program).is_file())
}

/// Checks that root, FUSE, loop devices and `programs` are here, as far as they are asked for.
///
/// # Errors
/// The first thing that is missing.
pub fn needs(root: bool, fuse: bool, programs: &[&str]) -> Result<(), Missing> {
    let missing = |what: String| Err(Missing(what));
    if root && !rustix::process::geteuid().is_root() {
        return missing("root is needed".into());
    }
    if root && !Path::new("/dev/loop-control").exists() {
        return missing("loop devices are needed (/dev/loop-control)".into());
    }
    if fuse && !Path::new("/dev/fuse").exists() {
        return missing("/dev/fuse is needed".into());
    }
    match programs.iter().find(|p| !has_program(p)) {
        Some(program) => missing(format!("the program {program} is needed")),
        None => Ok(()),
    }
}

/// Returns from a test and prints what the machine lacks.
#[macro_export]
macro_rules! skip_unless {
    ($needs:expr) => {
        if let Err(missing) = $needs {
            eprintln!("SKIPPED: {}: {missing}", module_path!());
            return;
        }
    };
}

/// Makes a directory for scratch images on fast storage: in `/dev/shm` if that exists, else in the
/// temporary directory.
pub fn scratch() -> Result<tempfile::TempDir> {
    let builder = || {
        let mut b = tempfile::Builder::new();
        b.prefix("stetfs-lab-");
        b
    };
    let shm = Path::new("/dev/shm");
    if shm.is_dir()
        && let Ok(dir) = builder().tempdir_in(shm)
    {
        return Ok(dir);
    }
    Ok(builder().tempdir()?)
}

/// A loop device over a file; detached when dropped.
#[derive(Debug)]
pub struct Loop {
    device: PathBuf,
}

impl Loop {
    /// Attaches `file`.
    ///
    /// # Errors
    /// Those of losetup.
    pub fn attach(file: &Path) -> Result<Self> {
        Self::with(&[], file)
    }

    /// Attaches `file` so that its content bypasses the page cache.
    ///
    /// # Errors
    /// Those of losetup: not every file system supports this.
    pub fn attach_past_cache(file: &Path) -> Result<Self> {
        Self::with(&["--direct-io=on"], file)
    }

    fn with(how: &[&str], file: &Path) -> Result<Self> {
        let args = ["--find", "--show"].iter().chain(how).map(OsStr::new);
        let args: Vec<_> = args.chain([file.as_os_str()]).collect();
        let out = run("losetup", &args)?;
        let device = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
        ensure!(
            device.exists(),
            "losetup named no device for {}",
            file.display()
        );
        Ok(Self { device })
    }

    /// The device node.
    pub fn device(&self) -> &Path {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = run(
            "losetup",
            &[OsStr::new("--detach"), self.device.as_os_str()],
        ) {
            eprintln!("warning: {error:#}");
        }
    }
}

/// A mount made with mount(8); unmounted when dropped.
#[derive(Debug)]
pub struct KernelMount {
    dir: PathBuf,
    mounted: bool,
}

impl KernelMount {
    /// Mounts `source` on `dir` as ext4. If `source` is an image, mount(8) makes the loop device.
    ///
    /// # Errors
    /// Those of mount(8).
    pub fn ext4(source: &Path, dir: &Path, options: &str) -> Result<Self> {
        Self::new("ext4", source, dir, options)
    }

    /// Mounts `source` on `dir` as a file system of the given kind.
    ///
    /// # Errors
    /// Those of mount(8).
    pub fn new(kind: &str, source: &Path, dir: &Path, options: &str) -> Result<Self> {
        let loop_option = if source.is_file() { "loop," } else { "" };
        let options = format!("{loop_option}{options}");
        let options = options.trim_matches(',');
        let options = if options.is_empty() { "rw" } else { options };
        run(
            "mount",
            &[
                "-t".as_ref(),
                kind.as_ref(),
                "-o".as_ref(),
                OsStr::new(options),
                source.as_os_str(),
                dir.as_os_str(),
            ],
        )?;
        Ok(Self {
            dir: dir.to_owned(),
            mounted: true,
        })
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts.
    ///
    /// # Errors
    /// Those of umount(8), after several tries.
    pub fn unmount(mut self) -> Result<()> {
        self.mounted = false;
        unmount(&self.dir)
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = unmount(&self.dir)
        {
            eprintln!("warning: {error:#}");
        }
    }
}

/// Unmounts `dir`; waits a moment for processes that still use it.
///
/// # Errors
/// The last error of umount(8).
pub fn unmount(dir: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        match run("umount", &[dir]) {
            Ok(_) => return Ok(()),
            Err(error) if start.elapsed() > Duration::from_secs(10) => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Whether something is mounted on `dir` now and answers.
pub fn is_mounted(dir: &Path) -> bool {
    dir.canonicalize().is_ok_and(|dir| is_mount_point(&dir))
}

/// Whether the table of mounts names `dir`, an absolute path without symbolic links. It also works
/// for a mount whose server is dead, where a look at the mount itself would fail.
pub(crate) fn is_mount_point(dir: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table.lines().any(|line| {
        line.split(' ')
            .nth(1)
            .is_some_and(|at| Path::new(at) == dir)
    })
}

/// Waits until `done` returns true.
///
/// # Errors
/// `what` did not happen within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    while !done() {
        ensure!(
            start.elapsed() < limit,
            "{what} did not happen within {limit:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
