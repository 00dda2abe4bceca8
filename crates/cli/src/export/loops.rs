//! Devices as loop devices: the server's file is in a directory of its own, and a loop device is on
//! it. The server ends when the loop device lets the file go.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use stetfs_fuse::FILE_NAME;
use stetfs_sys::loop_ioctl;

use crate::failure::{Explain, Failure, Result};

/// Where the servers' directories are.
const RUN: &str = "/run/stetfs";
/// Where loop devices are asked for.
const CONTROL: &str = "/dev/loop-control";

/// A directory for a server.
pub(crate) struct Place {
    /// It.
    pub(crate) dir: PathBuf,
}

impl Place {
    /// Makes it: only its owner may look into it.
    ///
    /// # Errors
    /// It cannot be made; only root may.
    pub(crate) fn make() -> Result<Self> {
        let make = |dir: &Path, is_there: bool| {
            let made = DirBuilder::new()
                .mode(0o700)
                .recursive(is_there)
                .create(dir);
            made.during(|| dir.display().to_string())
        };
        make(Path::new(RUN), true)?;
        remove_old();
        let dir = Path::new(RUN).join(format!("below-{}", std::process::id()));
        make(&dir, false)?;
        Ok(Self { dir })
    }

    /// The server's file.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(FILE_NAME)
    }
}

/// Removes directories that servers have left: those on which nothing is mounted are empty.
pub(crate) fn remove_old() {
    for entry in fs::read_dir(RUN).into_iter().flatten().flatten() {
        // Another mount may just have made one, and not mounted anything on it yet.
        let made = entry.metadata().and_then(|meta| meta.modified());
        let age = made.ok().and_then(|made| made.elapsed().ok());
        if age.is_some_and(|age| age > Duration::from_secs(60)) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// A loop device.
pub(crate) struct LoopDevice {
    /// Its path.
    pub(crate) path: PathBuf,
    /// It is in use as long as this is open.
    pub(crate) file: File,
}

/// Puts a loop device on a server's file, with these flags besides direct I/O.
///
/// # Errors
/// There is none, or the kernel refuses.
pub(crate) fn attach(place: &Place, flags: u32) -> Result<LoopDevice> {
    let shown = |path: &Path| path.display().to_string();
    let open = |path: &Path| {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.during(|| shown(path))
    };
    // First of all: the server ends when it is closed again.
    let backing = open(&place.file())?;
    let control = open(Path::new(CONTROL))?;
    loop {
        let number = loop_ioctl::free_device(&control).during(|| CONTROL.to_owned())?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let file = open(&path)?;
        let flags = flags | loop_ioctl::DIRECT_IO;
        let name = place.file();
        match loop_ioctl::attach(&file, &backing, flags, name.as_os_str().as_encoded_bytes()) {
            Ok(()) => return Ok(LoopDevice { path, file }),
            // Somebody else was faster.
            Err(Errno::BUSY) => {}
            Err(e) => return Err(Failure::from(e).context(shown(&path))),
        }
    }
}

/// Starts a server by `start`, which gets the word for `--as`, and prints the path of a loop device
/// on its file.
///
/// # Errors
/// Whatever that needs is missing, or the server refuses.
pub(crate) fn offer(start: impl FnOnce(OsString) -> Result<()>) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("--as loop needs root").advise("--as nbd:SOCKET needs none"));
    }
    let place = Place::make()?;
    let mut word = OsString::from("file:");
    word.push(&place.dir);
    start(word)?;
    let device = attach(&place, 0)?;
    println!("{}", device.path.display());
    Ok(())
}
