//! Calls on a file system of the kernel that is mounted on a device of ours. After a signal the
//! next call fails.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, fallocate, syncfs};
use rustix::time::{ClockId, clock_gettime};
use stetfs_powercut::kernel::served::{self, Served};
use stetfs_testkit::rng::Rng;

use crate::workload::calls::{Bytes, Call, Place, What, renamed};

/// Checks that this machine has what a run of the kernel needs.
///
/// # Errors
/// The first thing that is missing.
pub fn check(kind: &str) -> Result<()> {
    let make = if kind == "xfs" { "mkfs.xfs" } else { "mke2fs" };
    served::check(kind, &[make])
}

/// Makes calls below a directory. Files stay open as in the lab's player.
pub struct Player {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    rng: Rng,
    open: HashMap<String, File>,
    gone: HashMap<String, File>,
    buffer: Vec<u8>,
}

impl Player {
    /// Makes a player of calls on a mount of a served device.
    pub fn new(served: &Served, dir: &Path, seed: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            stop: served.stop(),
            rng: Rng::new(seed),
            open: HashMap::new(),
            gone: HashMap::new(),
            buffer: Vec::new(),
        }
    }

    /// Makes the calls, and closes what is still open.
    ///
    /// # Errors
    /// Those of a call; a signal came.
    pub fn play(&mut self, calls: &[Call]) -> Result<()> {
        for call in calls {
            let done = self.goes_on().and_then(|()| self.call(&call.what));
            done.with_context(|| format!("call {}, {:?}", call.line, call.what))?;
        }
        self.open.clear();
        self.gone.clear();
        Ok(())
    }

    /// # Errors
    /// A signal came.
    pub fn goes_on(&self) -> Result<()> {
        ensure!(!self.stop.load(Relaxed), "interrupted");
        Ok(())
    }

    /// Returns the path on this machine of a path of the volume.
    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.join(path.trim_start_matches('/'))
    }

    fn file(&mut self, path: &str) -> Result<&File> {
        if !self.open.contains_key(path) {
            if self.gone.contains_key(path) {
                return self.gone.get(path).context("it is there");
            }
            let at = self.path(path);
            let file = if at.is_dir() {
                File::open(&at)
            } else {
                OpenOptions::new().read(true).write(true).open(&at)
            };
            let file = file.with_context(|| at.display().to_string())?;
            self.open.insert(path.to_owned(), file);
        }
        self.open.get(path).context("it is there")
    }

    fn write(&mut self, path: &str, place: Place, bytes: &Bytes) -> Result<()> {
        let len = bytes.len();
        let size = self.file(path)?.metadata()?.len();
        let at = match place {
            Place::At(at) => at,
            Place::End => size,
            Place::Random => self.rng.below((size / len.max(1)).max(1)) * len,
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        match bytes {
            Bytes::Given(given) => buffer.clone_from(given),
            Bytes::Random(len) => {
                buffer.resize(usize::try_from(*len)?, 0);
                self.rng.clone().fill(&mut buffer);
            }
        }
        self.file(path)?.write_all_at(&buffer, at)?;
        self.buffer = buffer;
        Ok(())
    }

    /// Makes one call.
    ///
    /// # Errors
    /// Those of the call.
    pub fn call(&mut self, what: &What) -> Result<()> {
        match what {
            What::Mkdir(path) => fs::create_dir(self.path(path))?,
            What::Rmdir(path) => fs::remove_dir(self.path(path))?,
            What::Create(path) => {
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).create_new(true);
                self.open.insert(path.clone(), file.open(self.path(path))?);
            }
            What::Write(path, place, bytes) => self.write(path, *place, bytes)?,
            What::Truncate(path, size) => self.file(path)?.set_len(*size)?,
            What::Allocate(path, range) => {
                let (at, len) = (range.start, range.end - range.start);
                fallocate(self.file(path)?, FallocateFlags::empty(), at, len)?;
            }
            What::Punch(path, range) => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let (at, len) = (range.start, range.end - range.start);
                fallocate(self.file(path)?, how, at, len)?;
            }
            What::Fsync(path) => {
                self.file(path)?.sync_all()?;
                next_tick();
            }
            What::Fdatasync(path) => {
                self.file(path)?.sync_data()?;
                next_tick();
            }
            What::Close(path) => drop(self.gone.remove(path).or_else(|| self.open.remove(path))),
            What::Rename(from, to) => {
                fs::rename(self.path(from), self.path(to))?;
                self.goes(to);
                let open = std::mem::take(&mut self.open).into_iter();
                self.open = open
                    .map(|(path, file)| (renamed(&path, from, to).unwrap_or(path), file))
                    .collect();
            }
            What::Link(from, to) => fs::hard_link(self.path(from), self.path(to))?,
            What::Symlink(target, path) => std::os::unix::fs::symlink(target, self.path(path))?,
            What::Unlink(path) => {
                fs::remove_file(self.path(path))?;
                self.goes(path);
            }
            What::Sync => {
                syncfs(File::open(&self.dir)?)?;
                next_tick();
            }
            // They change nothing.
            What::Read(..) | What::Stat(_) | What::List(_) | What::Wait(_) => {}
        }
        Ok(())
    }

    /// Notes that a name is removed: a file that is open under it stays open.
    fn goes(&mut self, path: &str) {
        if let Some(file) = self.open.remove(path) {
            self.gone.insert(path.to_owned(), file);
        }
    }
}

/// Waits until files get another time than before. The kernel takes it from its last tick, and
/// within one an inode would change once for several calls that are each made durable.
pub(crate) fn next_tick() {
    let tick = || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (now.tv_sec, now.tv_nsec)
    };
    let before = tick();
    while tick() == before {
        thread::sleep(Duration::from_micros(200));
    }
}
