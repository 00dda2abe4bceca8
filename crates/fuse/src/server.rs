//! What the server of a mount knows, and what all requests share.

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
use crate::opens::Opens;
use crate::options::FuseOptions;
use crate::room::Room;
use crate::tx::groups::Groups;
use crate::tx::layer::Layer;
use crate::wire::Notifier;
use crate::wire::abi::{self, Opcode};

/// The largest write that the kernel sends at once.
const MAX_REQUEST: u32 = 1 << 20;
/// The same where there is little memory: the kernel's readahead by default.
const MIN_REQUEST: u32 = 128 << 10;

/// How long the attributes of a file may be kept that is being written through the page cache. Then
/// even a writer whose pages the kernel takes without asking asks for something, and learns that
/// the server is gone.
const WATCHED: Duration = Duration::from_secs(1);

/// One mounted file system.
pub(crate) struct FsServer<B> {
    pub(crate) fs: B,
    pub(crate) options: FuseOptions,
    pub(crate) opens: Arc<Opens>,
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
    /// One write(2) of at most so many bytes is one request.
    one_request: AtomicU32,
    pub(crate) requests: Requests,
}

/// The end of the file system: when the kernel says so, or when the session is over, whichever
/// comes first.
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

    /// Commits everything and leaves a clean image; once, and gives the result of that once.
    pub(crate) fn close(&self) -> stetfs::Result<()> {
        let mut closed = self.closed.lock();
        closed.get_or_insert_with(|| self.fs.unmount()).clone()
    }
}

/// How many requests of each kind came in.
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
    /// Paths need not be UTF-8, JSON does.
    image: Cow<'a, str>,
    dir: Cow<'a, str>,
    uptime_s: u64,
    /// The list of mount options that says how it is mounted; empty if nobody has said.
    options: &'a str,
    transport: &'static str,
    threads: usize,
    writeback: bool,
    /// One write(2) of at most so many bytes, to a file that is marked atomic, is one transaction.
    marked_write_max: u64,
    requests: &'a Requests,
}

impl<B: Backend> FsServer<B> {
    pub(crate) fn new(
        fs: B,
        image: PathBuf,
        dir: PathBuf,
        options: FuseOptions,
        closing: Arc<Closing<B>>,
    ) -> Self {
        let room = Room::new(fs.clone());
        let notifier: Arc<OnceLock<Notifier>> = Arc::default();
        fs.begin();
        Self {
            fs,
            options,
            closing,
            opens: Arc::default(),
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
        }
    }

    /// Who looks after the mount while it is served.
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

    /// The largest read or write.
    pub(crate) fn max_request(&self) -> u32 {
        largest_request(self.fs.memory(), self.options.threads)
    }

    /// It is mounted so that one write(2) of at most so many bytes is one request.
    pub(crate) fn note_one_request(&self, bytes: u32) {
        self.one_request.store(bytes, Ordering::Relaxed);
    }

    /// How long one write(2) to a file that is marked atomic may be to be one transaction.
    pub(crate) fn marked_write_max(&self) -> u64 {
        let one_request = self.one_request.load(Ordering::Relaxed);
        self.fs.marked_write_max().min(one_request.into())
    }

    /// All counters, as JSON: what the volume says, and `server`.
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

    /// An entry, with everything that the kernel may remember of it. It has the inode from now on.
    pub(crate) fn entry_out(&self, found: &Entry) -> abi::EntryOut {
        self.known.add(found.ino);
        attr::entry(found, self.options.timeout, self.keep_attributes(found.ino))
    }

    /// How long the kernel may keep an inode's attributes.
    pub(crate) fn keep_attributes(&self, ino: InodeNo) -> Duration {
        if !self.opens.is_watched(ino) {
            self.options.timeout
        } else if self.room.is_short() || self.opens.is_frozen(ino) || self.is_stopped() {
            // Each write(2) has to ask.
            Duration::ZERO
        } else {
            WATCHED.min(self.options.timeout)
        }
    }

    /// Whether nothing can be written any more.
    fn is_stopped(&self) -> bool {
        self.fs.check_writable().is_err()
    }
}

/// The largest read or write: every worker keeps a buffer for one, and all of these take no more
/// than a quarter of what the mount may keep in memory, unless that made them very small.
fn largest_request(memory: u64, threads: usize) -> u32 {
    let share = memory / 4 / usize_as_u64(threads.max(1));
    let least = u64::from(MIN_REQUEST);
    // The largest power of two in it.
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
