//! A directory with one file, which is the device.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use stetfs_export::ByteDev;
use stetfs_format::width::u64_as_usize;
use stetfs_media::MediaError;

use super::watchdog::Pulse;
use crate::control;
use crate::session::end::Event;
use crate::wire::abi::{self, Capabilities, Opened};
use crate::wire::{Answer, Answered, Offer, Request, Server, Terms, Ticket, What};

/// The file's name in its directory.
pub const FILE_NAME: &str = "device";

const ROOT: u64 = 1;
const FILE: u64 = 2;

/// The largest request that the kernel sends, in bytes. It is small so that each is answered soon:
/// answers are the watchdog's sign of progress.
pub(super) const MAX_REQUEST: u32 = 128 << 10;
/// Requests that the kernel may have under way at once.
const MAX_BACKGROUND: u16 = 64;
/// How long the kernel may keep names and attributes: nothing here changes.
const TTL: Duration = Duration::from_secs(365 * 86_400);
/// The unit of statfs, in bytes. The file's attributes have the exact size.
const STATFS_BLOCK: u32 = 512;

/// The kernel keeps no pages of the file, and writes need not wait for each other.
const OPENED: Opened = Opened::DIRECT_IO.union(Opened::PARALLEL_DIRECT_WRITES);

const CAPABILITIES: Capabilities = Capabilities::ASYNC_READ
    .union(Capabilities::BIG_WRITES)
    .union(Capabilities::ASYNC_DIO)
    .union(Capabilities::NO_OPENDIR_SUPPORT)
    .union(Capabilities::HANDLE_KILLPRIV_V2);

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Facts for `system.stetfs.stats`.
type Stats = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

pub(super) struct ExportFs {
    dev: Arc<ByteDev>,
    source: PathBuf,
    dir: PathBuf,
    since: Instant,
    owner: (u32, u32),
    stats: Stats,
    pulse: Arc<Pulse>,
    /// Flushes that the device was asked for.
    flushes: AtomicU64,
    /// How often the file is open.
    opens: AtomicU64,
    /// Who is told that nobody has it open any more.
    closed: Option<mpsc::Sender<Event>>,
    /// Seconds after which the kernel gives up a request that is not answered; 0: never.
    request_timeout: u16,
}

impl ExportFs {
    pub(super) fn new(
        dev: Arc<ByteDev>,
        source: &Path,
        dir: &Path,
        (stats, pulse): (Stats, Arc<Pulse>),
        closed: Option<mpsc::Sender<Event>>,
        patience: Option<Duration>,
    ) -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Self {
            dev,
            source: source.to_owned(),
            dir: dir.to_owned(),
            since: Instant::now(),
            owner: (uid.as_raw(), gid.as_raw()),
            stats,
            pulse,
            flushes: AtomicU64::new(0),
            opens: AtomicU64::new(0),
            closed,
            request_timeout: patience.map_or(0, |patience| {
                u16::try_from(patience.as_secs()).unwrap_or(u16::MAX)
            }),
        }
    }

    fn attr(&self, node: u64) -> Result<abi::Attr, Errno> {
        let (mode, nlink, size) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 2, 0),
            FILE => (libc::S_IFREG | 0o600, 1, self.dev.size()),
            _ => return Err(Errno::NOENT),
        };
        Ok(abi::Attr {
            ino: node,
            size,
            blocks: size / 512,
            mode,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            blksize: self.dev.sector_size().max(4096),
            ..abi::Attr::default()
        })
    }

    fn stats_json(&self) -> String {
        let mut stats = (self.stats)();
        stats["server"] = serde_json::json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "image": self.source,
            "dir": self.dir,
            "uptime_s": self.since.elapsed().as_secs(),
            "threads": 1,
            "requests": self.pulse.served(),
            "flushes": self.flushes.load(Ordering::Relaxed),
        });
        stats.to_string()
    }
}

/// Returns the errno of a failed request, and logs the error.
fn errno(error: &MediaError) -> Errno {
    tracing::error!("{error}");
    stetfs_export::errno(error)
}

impl ExportFs {
    fn look_up(&self, dir: u64, name: &std::ffi::OsStr) -> Result<abi::EntryOut, Errno> {
        if dir != ROOT || name != FILE_NAME {
            return Err(Errno::NOENT);
        }
        Ok(abi::EntryOut {
            nodeid: FILE,
            entry_valid: TTL.as_secs(),
            attr_valid: TTL.as_secs(),
            attr: self.attr(FILE)?,
            ..abi::EntryOut::default()
        })
    }

    /// Notes that a user has closed the file.
    fn closed(&self) {
        if self.opens.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(closed) = &self.closed
        {
            // Whoever would hear it may be at its end already.
            let _ = closed.send(Event::Closed);
        }
    }

    /// Accepts new times, to no effect, and refuses any other change.
    fn set_attr(&self, node: u64, to: &abi::SetAttrIn) -> Result<abi::Attr, Errno> {
        let attr = self.attr(node)?;
        let set = crate::attr::set_attr(to);
        let fixed = set.size.is_none_or(|size| size == attr.size);
        if fixed && set.mode.is_none() && set.uid.is_none() && set.gid.is_none() {
            Ok(attr)
        } else {
            Err(Errno::PERM)
        }
    }

    fn read_dir(&self, from: &abi::ReadIn, answer: &mut Answer<'_>) {
        let (dir, reg) = (libc::DT_DIR.into(), libc::DT_REG.into());
        let all = [
            ((ROOT, dir), "."),
            ((ROOT, dir), ".."),
            ((FILE, reg), FILE_NAME),
        ];
        let mut names = answer.names(from.size);
        for (at, (what, name)) in (1..).zip(all).skip(u64_as_usize(from.offset)) {
            if !names.add(None, what, at, name.as_bytes()) {
                break;
            }
        }
    }

    fn read(&self, from: &abi::ReadIn, answer: &mut Answer<'_>) -> Result<(), Errno> {
        let left = self.dev.size().saturating_sub(from.offset);
        let len = u64_as_usize(u64::from(from.size).min(left));
        answer.fill(len, |room| {
            let done = self.dev.read_at(from.offset, room);
            done.map(|()| len).map_err(|e| errno(&e))
        })
    }

    fn allocate(&self, from: &abi::FAllocateIn) -> Result<(), Errno> {
        let (offset, length) = (from.offset, from.length);
        let done = match from.mode {
            PUNCH => self.dev.discard(offset, length),
            // With or without KEEP_SIZE: the size never changes.
            m if m & !libc::FALLOC_FL_KEEP_SIZE == libc::FALLOC_FL_ZERO_RANGE => {
                self.dev.write_zeros(offset, length)
            }
            // The device has room for all of its bytes.
            0 | libc::FALLOC_FL_KEEP_SIZE if offset.saturating_add(length) <= self.dev.size() => {
                Ok(())
            }
            0 | libc::FALLOC_FL_KEEP_SIZE => return Err(Errno::NOSPC),
            _ => return Err(Errno::OPNOTSUPP),
        };
        done.map_err(|e| errno(&e))
    }

    fn statfs(&self) -> abi::StatFsOut {
        abi::StatFsOut {
            blocks: self.dev.size() / u64::from(STATFS_BLOCK),
            files: 2,
            bsize: STATFS_BLOCK,
            namelen: 255,
            frsize: STATFS_BLOCK,
            ..abi::StatFsOut::default()
        }
    }
}

impl Server for ExportFs {
    fn agree(&self, offer: &Offer) -> Terms {
        let mut capabilities = CAPABILITIES;
        capabilities.set(Capabilities::REQUEST_TIMEOUT, self.request_timeout > 0);
        Terms {
            capabilities,
            readahead: offer.readahead,
            max_request: MAX_REQUEST,
            max_background: MAX_BACKGROUND,
            request_timeout: self.request_timeout,
            time_step_ns: 1,
        }
    }

    fn answer(
        self: &Arc<Self>,
        request: &Request<'_>,
        _ticket: &dyn Fn() -> Ticket,
        answer: &mut Answer<'_>,
    ) -> Result<Answered, Errno> {
        let node = request.header.nodeid;
        match &request.what {
            What::Forget | What::BatchForget { .. } => {}
            What::Release { .. } if node == FILE => self.closed(),
            What::Release { .. } => {}
            What::Lookup { name } => answer.record(&self.look_up(node, name)?)?,
            What::GetAttr { .. } => answer.attr(self.attr(node)?, TTL)?,
            What::SetAttr(to) => answer.attr(self.set_attr(node, to)?, TTL)?,
            What::Open { .. } => {
                answer.record(&abi::OpenOut {
                    open_flags: OPENED.bits(),
                    ..abi::OpenOut::default()
                })?;
                self.opens.fetch_add(1, Ordering::Relaxed);
            }
            What::ReadDir(from) => self.read_dir(from, answer),
            What::Read(from) => {
                let _busy = self.pulse.begin();
                self.read(from, answer)?;
            }
            What::Write(from, data) => {
                let _busy = self.pulse.begin();
                // The kernel sends no FSYNC after it.
                let done = if from.flags & libc::O_DSYNC == 0 {
                    self.dev.write_at(from.offset, data)
                } else {
                    self.dev.write_durable(from.offset, data)
                };
                done.map_err(|e| errno(&e))?;
                let size = from.size;
                answer.record(&abi::WriteOut { size, padding: 0 })?;
            }
            // Each write is durable when it is answered: the kernel asks no more.
            What::FSync(_) if !self.dev.dev().volatile_cache() => return Err(Errno::NOSYS),
            What::FSync(_) => {
                let _busy = self.pulse.begin();
                self.flushes.fetch_add(1, Ordering::Relaxed);
                self.dev.flush().map_err(|e| errno(&e))?;
            }
            What::FAllocate(from) => {
                let _busy = self.pulse.begin();
                self.allocate(from)?;
            }
            What::StatFs => answer.record(&self.statfs())?,
            What::GetXattr { name, size } if *name == control::STATS => {
                answer.xattr(self.stats_json().as_bytes(), *size)?;
            }
            What::GetXattr { .. } => return Err(Errno::NODATA),
            // LSEEK among them: the kernel then answers that all is data.
            _ => return Err(Errno::NOSYS),
        }
        Ok(Answered::Now)
    }

    fn destroy(&self) {}
}
