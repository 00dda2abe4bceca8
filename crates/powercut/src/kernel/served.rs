//! A device of ours with a loop device on it, on which the kernel mounts a file system. The device
//! is served as a file by a thread of this process.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use stetfs_export::ByteDev;
use stetfs_fuse::background::Waiting;
use stetfs_fuse::{Ended, ExportOptions, SessionError, check_dir};
use stetfs_media::BlockDev;
use stetfs_testkit::host::{KernelMount, Loop, needs, scratch, unmount};

/// After this time without an answer the device is given up.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Checks that this machine can mount a file system of the kernel's on a device of ours, with these
/// programs besides.
///
/// # Errors
/// The first thing that is missing.
pub fn check(kind: &str, programs: &[&str]) -> Result<()> {
    let programs = [&["losetup", "mount"], programs].concat();
    needs(true, true, &programs).map_err(|missing| anyhow!("{missing}"))?;
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = known
        .lines()
        .any(|line| line.ends_with(&format!("\t{kind}")));
    ensure!(
        is_known,
        "the kernel has no {kind} (/proc/filesystems; modprobe {kind})"
    );
    Ok(())
}

/// A device of ours with a loop device on it. Dropping it removes both.
pub struct Served {
    // Dropped in this order.
    device: Option<Loop>,
    server: Option<JoinHandle<Result<Ended, SessionError>>>,
    place: tempfile::TempDir,
    stop: Arc<AtomicBool>,
}

impl Served {
    /// Serves a device. Other programs see it as a file of `source`.
    ///
    /// # Errors
    /// It cannot be mounted; errors of losetup.
    pub fn new(dev: Arc<dyn BlockDev>, source: &'static str) -> Result<Self> {
        let place = scratch()?;
        let (dir, mount) = (place.path().join("device"), place.path().join("mount"));
        fs::create_dir(&dir)?;
        fs::create_dir(mount)?;
        let dir = check_dir(&dir)?;
        let stop = Arc::<AtomicBool>::default();
        let (ready, stands) = mpsc::channel();
        let options = ExportOptions {
            watchdog: Some(WATCHDOG),
            stats: Box::new(|| serde_json::json!({})),
            threads: 1,
            until_closed: false,
            let_go: Some(Box::new({
                let stop = stop.clone();
                move || stop.store(true, Relaxed)
            })),
        };
        let on = dir.clone();
        let server = thread::Builder::new()
            .name("device".to_owned())
            .spawn(move || {
                let dev = Arc::new(ByteDev::new(dev));
                stetfs_fuse::export(dev, Path::new(source), &on, options, || {
                    let _ = ready.send(());
                    Ok(Waiting::nobody())
                })
            })?;
        let mut served = Self {
            device: None,
            server: Some(server),
            place,
            stop,
        };
        if stands.recv().is_err() {
            let ended = served.server.take().map(JoinHandle::join);
            bail!("the device was not served: {ended:?}");
        }
        served.device = Some(Loop::attach(&dir.join(stetfs_fuse::FILE_NAME))?);
        Ok(served)
    }

    /// Mounts the file system on it.
    ///
    /// # Errors
    /// Those of mount(8).
    pub fn mount(&self, kind: &str, options: &str) -> Result<KernelMount> {
        let device = self.device.as_ref().context("it is attached")?;
        let dir = self.place.path().join("mount");
        KernelMount::new(kind, device.device(), &dir, options)
    }

    /// True as soon as a signal has asked for the end.
    pub fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.device = None;
        let Some(server) = self.server.take() else {
            return;
        };
        let dir = self.place.path().join("device");
        // After a signal the server has taken the mount away itself.
        if !self.stop.load(Relaxed)
            && let Err(error) = unmount(&dir)
        {
            eprintln!("warning: {error:#}");
            return;
        }
        if let Ok(Err(error)) = server.join() {
            eprintln!("warning: {}: {error}", dir.display());
        }
    }
}
