//! A volume that is nearly full, behind a writeback cache.
//!
//! With the writeback cache a write(2) ends in the kernel's page cache, and nobody asks the volume
//! whether there is room for it. So a write to a full volume would succeed, and be lost. Four
//! things together keep what was confirmed:
//!
//! 1. *A bound.* If root serves, the kernel may hold dirty at most a quarter of what is free
//!    (`max_bytes` and `strict_limit` of the mount's backing device,
//!    Documentation/ABI/testing/sysfs-class-bdi). Others have the kernel's own bound for a FUSE
//!    mount, one percent of all dirty memory. The bound shrinks as the volume fills.
//! 2. *Past the cache.* When less than [`Room::short_below`] is free, opens for writing go past the
//!    page cache: each write(2) is a request, and fails by itself.
//! 3. *Asked before.* Files that were opened earlier go on through the cache, but the kernel may no
//!    longer keep their attributes: before each write(2) it asks for them, through the writer's own
//!    handle. Once the room that is left is only what dirty pages may need, the pages of the
//!    writer's file are written first. The writer goes on if there is room for one write(2) of each
//!    such writer ([`EACH_WRITER`]), and gets ENOSPC otherwise. Writers that grow no file always go
//!    on.
//! 4. *The others wait.* A request that takes room (a direct write, a preallocation) waits until
//!    those pages are written too, and then takes what is there (`settle.rs`). A request that needs
//!    no new blocks does not wait.
//!
//! Pages may still find no room: those of one huge write(2), or of mapped memory. The next
//! write(2), fsync(2) or close(2) of the file reports this. The pages are dropped from the page
//! cache, so that nobody reads them as if they were stored.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stetfs::Caller;
use stetfs_format::width::usize_as_u64;

use crate::backend::Backend;

/// The kernel may hold dirty at most a quarter of what is free.
const DIRTY_PART: u64 = 4;
/// Files are opened past the cache when less than a sixteenth of the volume is free, within the
/// limits below, in bytes.
const SHORT_PART: u64 = 16;
const SHORT_MIN: u64 = 1 << 20;
const SHORT_MAX: u64 = 256 << 20;
/// Bytes that are kept for one write(2) into the page cache of a nearly full volume. A part of a
/// larger one may find no room.
const EACH_WRITER: u64 = 1 << 20;

/// What is free on the volume, compared with what the kernel may hold dirty. All in bytes.
pub(crate) struct Room<B> {
    fs: B,
    /// Room is short below this.
    short_below: u64,
    /// The most that the kernel may hold dirty.
    bound: AtomicU64,
    /// The kernel's knobs for this mount, if we may turn them.
    knobs: OnceLock<Knobs>,
    /// True if the last look found room short.
    is_short: AtomicBool,
    /// How often dirty pages may have come that need the room that is left, and up to which of
    /// these times all are written.
    dirtied: AtomicU64,
    settled: AtomicU64,
}

struct Knobs(PathBuf);

impl Knobs {
    fn turn(&self, knob: &str, value: u64) -> std::io::Result<()> {
        std::fs::write(self.0.join(knob), value.to_string())
    }
}

/// What changed since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing that the keeper must act on.
    None,
    /// Room has become short: the kernel must ask before it takes writes.
    Short,
    /// Room is so short that dirty pages must be written before others get what is left.
    Tight,
}

impl<B: Backend> Room<B> {
    pub(crate) fn new(fs: B) -> Self {
        let size = fs
            .statfs()
            .map_or(0, |s| s.blocks * u64::from(s.block_size));
        let room = Self {
            fs,
            short_below: (size / SHORT_PART).clamp(SHORT_MIN, SHORT_MAX),
            bound: AtomicU64::new(fuse_share()),
            knobs: OnceLock::new(),
            is_short: AtomicBool::new(false),
            dirtied: AtomicU64::new(1),
            settled: AtomicU64::new(0),
        };
        // Nobody has dirty pages yet, so no room must be kept for them.
        let is_short = room.is_short();
        room.is_short.store(is_short, Ordering::Relaxed);
        if is_short {
            room.settled(room.dirtied());
        }
        room
    }

    /// Takes the kernel's knobs of this mount, if we may turn them, and sets the bound.
    pub(crate) fn take_knobs(&self, dir: PathBuf) {
        let knobs = Knobs(dir);
        // By default a FUSE mount gets one percent of what may be dirty.
        match knobs.turn("max_ratio", 100) {
            Ok(()) => {
                let _ = self.knobs.set(knobs);
                self.set_bound(u64::MAX);
                self.look();
            }
            Err(e) => tracing::debug!("{}/max_ratio: {e}", knobs.0.display()),
        }
    }

    /// Returns the room for ordinary users. Cached pages may also take root's blocks, which are
    /// more.
    fn left(&self) -> u64 {
        self.fs.room(&Caller::user(u32::MAX, u32::MAX))
    }

    /// Returns the room below which files are opened past the page cache.
    fn short_below(&self) -> u64 {
        // A server that cannot lower the bound needs twice as much as it allows.
        let bound = self.bound.load(Ordering::Relaxed);
        match self.knobs.get() {
            Some(_) => self.short_below,
            None => self.short_below.max(bound.saturating_mul(2)),
        }
    }

    /// Returns whether files are to be opened past the page cache.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed) || self.left() < self.short_below()
    }

    /// Returns whether the keeper should look. Called when pages have come in.
    pub(crate) fn wants_a_look(&self) -> bool {
        let left = self.left();
        if self.is_short.load(Ordering::Relaxed) {
            return !self.is_settled() && left < self.kept();
        }
        left < self.short_below() || left / 2 < self.bound()
    }

    fn bound(&self) -> u64 {
        self.bound.load(Ordering::Relaxed)
    }

    /// Returns whether dirty pages may need all the room that is left, so that a writer into the
    /// page cache must be stopped.
    pub(crate) fn is_tight_for(&self, c: &Caller) -> bool {
        self.fs.room(c) < self.kept()
    }

    /// Returns the room that is kept for dirty pages: twice what there may be, because the kernel
    /// lets one write(2) through before it counts it.
    fn kept(&self) -> u64 {
        self.bound().saturating_mul(2)
    }

    /// Returns whether there is room for one write(2) to each of `files` growing files through the
    /// page cache, beside `beside` bytes.
    pub(crate) fn has_for_writers(&self, c: &Caller, files: usize, beside: u64) -> bool {
        self.fs.room(c) >= beside.saturating_add(EACH_WRITER.saturating_mul(usize_as_u64(files)))
    }

    /// Returns whether taking `len` bytes of the room could take what dirty pages need.
    pub(crate) fn is_kept_from(&self, c: &Caller, len: u64) -> bool {
        !self.is_settled() && self.fs.room(c) < self.kept().saturating_add(len)
    }

    /// Returns how often dirty pages may have come.
    pub(crate) fn dirtied(&self) -> u64 {
        self.dirtied.load(Ordering::Relaxed)
    }

    /// Notes that dirty pages may come: a writer into the page cache went on though room is tight.
    pub(crate) fn note_dirtied(&self) {
        self.dirtied.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that all dirty pages of the first `dirtied` times are written. Nothing is kept for
    /// them any more.
    pub(crate) fn settled(&self, dirtied: u64) {
        self.settled.fetch_max(dirtied, Ordering::Relaxed);
    }

    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed) == self.dirtied()
    }

    /// Sets the bound by what is free. Returns what has changed.
    pub(crate) fn look(&self) -> Change {
        let (left, short_below) = (self.left(), self.short_below());
        self.adjust(left, short_below);
        let was_short = self.is_short.load(Ordering::Relaxed);
        // The larger bound for leaving keeps it from going back and forth.
        let is_short = left < short_below || was_short && left < short_below / 4 * 5;
        self.is_short.store(is_short, Ordering::Relaxed);
        if !is_short {
            self.note_dirtied();
            return Change::None;
        }
        match (was_short, left < self.kept()) {
            (_, true) if !self.is_settled() => Change::Tight,
            (false, _) => Change::Short,
            _ => Change::None,
        }
    }

    fn adjust(&self, left: u64, short_below: u64) {
        if self.knobs.get().is_none() {
            return;
        }
        let want = left.max(short_below) / DIRTY_PART;
        let now = self.bound();
        // Each change makes the kernel look at all dirty limits.
        if want < now || want / 2 > now {
            self.set_bound(want);
        }
    }

    fn set_bound(&self, want: u64) {
        let Some(knobs) = self.knobs.get() else {
            return;
        };
        let all = dirty_threshold();
        // The kernel refuses a bound above `all`, which changes with free memory.
        let is_bound = want < all / 8 * 7;
        let turned = if is_bound {
            knobs.turn("max_bytes", want)
        } else {
            knobs.turn("max_ratio", 100)
        };
        let turned = turned.and_then(|()| knobs.turn("strict_limit", is_bound.into()));
        match turned {
            Ok(()) => {
                let bound = if is_bound { want } else { all };
                self.bound.store(bound, Ordering::Relaxed);
            }
            Err(e) => tracing::warn!("{}: bounding dirty pages: {e}", knobs.0.display()),
        }
    }
}

/// Returns what all file systems together may hold dirty, in bytes (`nr_dirty_threshold`, in
/// pages).
fn dirty_threshold() -> u64 {
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pages = vmstat
        .lines()
        .find_map(|line| line.strip_prefix("nr_dirty_threshold "))
        .and_then(|pages| pages.parse::<u64>().ok());
    // If the kernel does not say: a fifth of the memory of a large machine.
    pages.map_or(4 << 30, |pages| {
        pages * usize_as_u64(rustix::param::page_size())
    })
}

/// Returns what the kernel lets a FUSE mount hold dirty by default: one percent of that.
fn fuse_share() -> u64 {
    dirty_threshold() / 100
}
