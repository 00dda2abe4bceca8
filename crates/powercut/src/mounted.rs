//! A mount served by threads of this process, for as long as a value lives.

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

/// Why nothing is mounted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// As the server said.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// As the mount said.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The server has ended before it began.
    #[error("the server of {} has ended at once", .0.display())]
    Over(PathBuf),
    /// No thread, or the mount table cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// How long a server may take to end after its mount is gone.
const GRACE: Duration = Duration::from_secs(10);

/// A mount that stands. Dropped, it is unmounted.
pub struct Mounted {
    mount: Mount,
    over: Mutex<Receiver<Result<Ended, SessionError>>>,
    server: Option<JoinHandle<()>>,
    hears_syncs: bool,
}

impl Mounted {
    /// Mounts `fs` on a directory. `image`: a file that stands for it in the mount table; a mount
    /// on a block device, which hears of sync(2), needs one that is there. Every call of a program
    /// comes at once, and nothing that the kernel has asked for may it use again.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn new<B: Backend>(fs: B, image: &Path, dir: &Path, block: OnBlock) -> Result<Self, Error> {
        let dir = check_dir(dir)?;
        let options = FuseOptions {
            on_block: block,
            writeback: false,
            timeout: Duration::ZERO,
            threads: 4,
            // What was seen until then is told first, and then it is unmounted.
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

    /// Where.
    pub fn dir(&self) -> &Path {
        &self.mount.dir
    }

    /// Whether sync(2) and syncfs(2) are passed on.
    pub fn hears_syncs(&self) -> bool {
        self.hears_syncs
    }

    /// Unmounts it, also while it is in use; what is still open there fails from now on.
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
        // Somebody may be just about to go.
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
