//! The state of a mount's server, and what all requests share.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use serde::Serialize;
use serde::ser::SerializeMap;
use stetfs::Entry;
use stetfs_format::InodeNo;
use stetfs_format::width::usize_as_u64;

use crate::aside::Aside;
use crate::attr;
use crate::backend::Backend;
use crate::errno::Outcome;
use crate::keeper::{Bell, Keeper};
use crate::known::Known;
use crate::late::Late;
use crate::opens::{Opens, Releases};
use crate::options::FuseOptions;
use crate::room::Room;
use crate::still::Stopping;
use crate::survive::Survive;
use crate::tx::groups::Groups;
use crate::tx::layer::Layer;
use crate::upgrade::{Told, Upgrade};
use crate::wire::Notifier;
use crate::wire::abi::{self, Opcode};
use crate::writers::Writers;

/// The largest write that the kernel sends at once, in bytes.
const MAX_REQUEST: u32 = 1 << 20;
/// The same where memory is short: the kernel's default readahead.
const MIN_REQUEST: u32 = 128 << 10;

/// How long the kernel may keep the attributes of a file that is written through the page cache. So
/// even a writer whose pages the kernel takes without asking soon asks for something, and learns if
/// the server is gone.
const WATCHED: Duration = Duration::from_secs(1);

/// One mounted file system.
pub(crate) struct FsServer<B> {
    pub(crate) fs: B,
    pub(crate) options: FuseOptions,
    pub(crate) opens: Arc<Opens>,
    pub(crate) releases: Releases,
    pub(crate) groups: Arc<Groups>,
    pub(crate) late: Late,
    pub(crate) known: Known,
    pub(crate) layer: Layer,
    pub(crate) room: Arc<Room<B>>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) aside: Aside,
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
    /// The user who runs the server.
    pub(crate) owner: u32,
    pub(crate) closing: Arc<Closing<B>>,
    image: PathBuf,
    dir: PathBuf,
    since: Instant,
    pub(crate) over_io_uring: AtomicBool,
    /// The largest write(2), in bytes, that is always one request.
    one_request: AtomicU32,
    pub(crate) requests: Requests,
    pub(crate) writers: Writers,
    pub(crate) upgrade: Upgrade,
    pub(crate) survive: Survive,
    pub(crate) stopping: Stopping,
}

/// The end of the file system: when the kernel says so or when the session is over, whichever comes
/// first.
pub(crate) struct Closing<B> {
    fs: B,
    closed: Mutex<Option<stetfs::Result<()>>>,
}

impl<B: Backend> Closing<B> {
    pub(crate) fn new(fs: B) -> Self {
        Self {
            fs,
            closed: Mutex::new(None),
        }
    }

    /// Commits everything and leaves a clean image, at the first call. Each call returns the result
    /// of that.
    pub(crate) fn close(&self) -> stetfs::Result<()> {
        let mut closed = self.closed.lock();
        closed.get_or_insert_with(|| self.fs.unmount()).clone()
    }
}

/// The number of requests of each kind.
pub(crate) struct Requests(pub(crate) [AtomicU64; Opcode::ALL.len()]);

impl Serialize for Requests {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        for (opcode, count) in Opcode::ALL.iter().zip(&self.0) {
            map.serialize_entry(opcode.name(), &count.load(Ordering::Relaxed))?;
        }
        map.end()
    }
}

/// What `system.stetfs.stats` says beside the volume's own counters.
#[derive(Serialize)]
struct About<'a> {
    pid: u32,
    version: &'static str,
    /// Converted: a path need not be UTF-8, JSON must be.
    image: Cow<'a, str>,
    dir: Cow<'a, str>,
    uptime_s: u64,
    /// The mount options; empty if nobody has given them.
    options: &'a str,
    transport: &'static str,
    threads: usize,
    writeback: bool,
    /// The largest write(2), in bytes, to a file that is marked atomic that is one transaction.
    marked_write_max: u64,
    /// How many servers of this mount have died before this one (`survive`).
    deaths: u64,
    upgrade: Told,
    /// Why the mount was not stopped when that was asked for last.
    refused: Option<String>,
    requests: &'a Requests,
}

impl<B: Backend> FsServer<B> {
    pub(crate) fn new(
        fs: B,
        image: PathBuf,
        dir: PathBuf,
        options: FuseOptions,
        closing: Arc<Closing<B>>,
        upgrade: Upgrade,
    ) -> Self {
        let room = Room::new(fs.clone());
        let notifier: Arc<OnceLock<Notifier>> = Arc::default();
        fs.begin();
        Self {
            fs,
            options,
            closing,
            opens: Arc::default(),
            releases: Releases::default(),
            groups: Arc::default(),
            late: Late::default(),
            known: Known::new(),
            layer: Layer::default(),
            room: Arc::new(room),
            bell: Arc::default(),
            aside: Aside::new(notifier.clone()),
            notifier,
            owner: rustix::process::geteuid().as_raw(),
            image,
            dir,
            since: Instant::now(),
            over_io_uring: AtomicBool::new(false),
            one_request: AtomicU32::new(0),
            requests: Requests(std::array::from_fn(|_| AtomicU64::new(0))),
            writers: Writers::default(),
            upgrade,
            survive: Survive::default(),
            stopping: Stopping::default(),
        }
    }

    /// Returns a keeper for the mount.
    pub(crate) fn keeper(&self) -> Keeper<B> {
        Keeper {
            fs: self.fs.clone(),
            commits: AtomicBool::new(false).into(),
            opens: self.opens.clone(),
            room: self.room.clone(),
            aside: Aside::new(self.notifier.clone()),
            notifier: self.notifier.clone(),
            bell: self.bell.clone(),
            has_told: AtomicBool::new(false),
            has_stopped: AtomicBool::new(false),
        }
    }

    /// Returns the largest read or write, in bytes.
    pub(crate) fn max_request(&self) -> u32 {
        largest_request(self.fs.memory(), self.options.threads)
    }

    /// Notes the largest write(2), in bytes, that is always one request with this mount.
    pub(crate) fn note_one_request(&self, bytes: u32) {
        self.one_request.store(bytes, Ordering::Relaxed);
    }

    /// Returns the largest write(2), in bytes, to a file that is marked atomic that is one
    /// transaction.
    pub(crate) fn marked_write_max(&self) -> u64 {
        let one_request = self.one_request.load(Ordering::Relaxed);
        self.fs.marked_write_max().min(one_request.into())
    }

    /// Returns all counters as JSON: those of the volume, and `server`.
    pub(crate) fn stats_json(&self) -> Outcome<String> {
        let server = About {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION"),
            image: self.image.to_string_lossy(),
            dir: self.dir.to_string_lossy(),
            uptime_s: self.since.elapsed().as_secs(),
            options: &self.options.in_words,
            transport: if self.over_io_uring.load(Ordering::Relaxed) {
                "uring"
            } else {
                "dev"
            },
            threads: self.options.threads,
            writeback: self.options.writeback,
            marked_write_max: self.marked_write_max(),
            deaths: self.survive.deaths(),
            upgrade: self.upgrade.told(),
            refused: self.stopping.refused(),
            requests: &self.requests,
        };
        let mut stats = serde_json::to_value(self.fs.stats()).map_err(|_| Errno::IO)?;
        let server = serde_json::to_value(server).map_err(|_| Errno::IO)?;
        match stats.as_object_mut() {
            Some(stats) => stats.insert("server".to_owned(), server),
            None => return Err(Errno::IO),
        };
        Ok(stats.to_string())
    }

    /// Returns an entry, with everything that the kernel may remember of it. From now on the kernel
    /// knows the inode.
    pub(crate) fn entry_out(&self, found: &Entry) -> abi::EntryOut {
        self.known.add(found.ino);
        attr::entry(found, self.options.timeout, self.keep_attributes(found.ino))
    }

    /// Returns how long the kernel may keep an inode's attributes.
    pub(crate) fn keep_attributes(&self, ino: InodeNo) -> Duration {
        if !self.opens.is_watched(ino) {
            self.options.timeout
        } else if self.room.is_short() || self.opens.is_frozen(ino) || self.is_stopped() {
            // Then each write(2) has to ask.
            Duration::ZERO
        } else {
            WATCHED.min(self.options.timeout)
        }
    }

    /// Returns whether nothing can be written any more.
    fn is_stopped(&self) -> bool {
        self.fs.check_writable().is_err()
    }
}

/// Returns the largest read or write, in bytes. Every worker keeps a buffer of this size; together
/// they take at most a quarter of the mount's memory, unless that makes them very small.
fn largest_request(memory: u64, threads: usize) -> u32 {
    let share = memory / 4 / usize_as_u64(threads.max(1));
    let least = u64::from(MIN_REQUEST);
    // The largest power of two in the share.
    let request = 1_u64 << share.max(least).ilog2();
    u32::try_from(request)
        .unwrap_or(MAX_REQUEST)
        .min(MAX_REQUEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_take_a_quarter_of_the_memory_at_most() {
        let mib = |n: u64| n << 20;
        for (memory, threads, largest) in [
            (mib(256), 16, MAX_REQUEST),
            (mib(64), 16, MAX_REQUEST),
            (mib(63), 16, 512 << 10),
            (mib(16), 16, 256 << 10),
            (mib(16), 1, MAX_REQUEST),
            (mib(1), 256, MIN_REQUEST),
            (u64::MAX, 1, MAX_REQUEST),
        ] {
            assert_eq!(
                largest_request(memory, threads),
                largest,
                "{memory} {threads}"
            );
        }
    }
}
