//! Devices as loop devices: the server's file is in a directory of its own, and a loop device is on
//! it. The server ends when the loop device lets the file go.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use stetfs_fuse::FILE_NAME;
use stetfs_sys::loop_ioctl;

use crate::failure::{Explain, Failure, Result};

/// Where the servers' directories are.
const RUN: &str = "/run/stetfs";
/// Their names, up to the number of the process that made them.
const NAME: &str = "below-";
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
        remove_left();
        let dir = Path::new(RUN).join(format!("{NAME}{}", std::process::id()));
        // An earlier process of this number may have left it.
        let _ = fs::remove_dir(&dir);
        make(&dir, false)?;
        Ok(Self { dir })
    }

    /// The server's file.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join(FILE_NAME)
    }
}

impl Drop for Place {
    /// Removes it if no server has come: a directory on which one has mounted is busy, and that
    /// server removes it at its end.
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Removes the directories that killed servers have left. One that is in use is a mount point,
/// which cannot be removed; one whose server is just starting belongs to a process that runs.
fn remove_left() {
    let Ok(all) = fs::read_dir(RUN) else {
        return;
    };
    for entry in all.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(NAME));
        let number = number.and_then(|number| number.parse::<u32>().ok());
        if number.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
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
        return Err(Failure::new("--as loop needs root")
            .advise("--as nbd:SOCKET and --as vhost-user:SOCKET work without root"));
    }
    let place = Place::make()?;
    let mut word = OsString::from("file:");
    word.push(&place.dir);
    start(word)?;
    let device = attach(&place, 0)?;
    println!("{}", device.path.display());
    Ok(())
}
