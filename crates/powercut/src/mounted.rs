//! A mount served by threads of this process for as long as a value lives.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stetfs_fuse::background::Waiting;
use stetfs_fuse::mount::Mounted as Mount;
use stetfs_fuse::{
    Backend, Ended, FuseOptions, MountError, OnBlock, SessionError, check_dir, mountinfo,
};

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the server.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// An error of the mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The server ended before it served.
    #[error("the server of {} has ended at once", .0.display())]
    Over(PathBuf),
    /// A thread cannot be started, or the mount table cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// How long a server may take to end after its unmount.
const GRACE: Duration = Duration::from_secs(10);

/// A standing mount. Dropping it unmounts.
pub struct Mounted {
    mount: Mount,
    over: Mutex<Receiver<Result<Ended, SessionError>>>,
    server: Option<JoinHandle<()>>,
    hears_syncs: bool,
}

impl Mounted {
    /// Mounts `fs` on a directory. The mount table names the file `image` as its device. A mount on
    /// a block device hears of sync(2), and then `image` must exist. The kernel caches nothing, so
    /// that every call of a program reaches the server at once.
    ///
    /// # Errors
    /// The mount failed.
    pub fn new<B: Backend>(fs: B, image: &Path, dir: &Path, block: OnBlock) -> Result<Self, Error> {
        let dir = check_dir(dir)?;
        let options = FuseOptions {
            on_block: block,
            writeback: false,
            timeout: Duration::ZERO,
            threads: 4,
            // A signal must not unmount: the recording is reported first.
            signals: false,
            ..FuseOptions::default()
        };
        let (tell, over) = mpsc::channel();
        let (ready, stands) = mpsc::channel();
        let (on, image) = (dir.clone(), image.to_owned());
        let server = thread::Builder::new()
            .name("mount".to_owned())
            .spawn(move || {
                let ended = stetfs_fuse::serve(&fs, &image, &on, &options, |standing| {
                    let _ = ready.send(standing.hears_syncs);
                    Ok(Waiting::nobody())
                });
                let _ = tell.send(ended);
            })?;
        let Ok(hears_syncs) = stands.recv() else {
            let said = over.recv().map_err(|_| Error::Over(dir.clone()))?;
            said?;
            return Err(Error::Over(dir));
        };
        let entry = mountinfo::mounted_on(&dir)?;
        let device = entry.ok_or_else(|| Error::Over(dir.clone()))?.device;
        Ok(Self {
            mount: Mount { dir, device },
            over: Mutex::new(over),
            server: Some(server),
            hears_syncs,
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.mount.dir
    }

    /// True if the kernel passes sync(2) and syncfs(2) on to the server.
    pub fn hears_syncs(&self) -> bool {
        self.hears_syncs
    }

    /// Unmounts, even while files are open. They fail from now on.
    ///
    /// # Errors
    /// The kernel or fusermount3 refused.
    pub fn unmount(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        // A process that is just ending may hold it for a moment.
        let until = Instant::now() + Duration::from_secs(1);
        loop {
            match self.mount.unmount(false) {
                Err(MountError::Busy(_)) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(MountError::Busy(_)) => break self.mount.unmount(true)?,
                done => break done?,
            }
        }
        if self.over.lock().recv_timeout(GRACE).is_ok() {
            let _ = server.join();
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
