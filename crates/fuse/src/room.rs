//! A volume that is nearly full, behind a writeback cache.
//!
//! With the writeback cache a write(2) ends in the kernel's page cache, and nobody asks the volume
//! whether there is a place for it. So a write to a full volume would succeed, and be lost. Three
//! things together keep what was confirmed:
//!
//! 1. *A bound.* Where root serves, the kernel may hold dirty no more than a quarter of what is
//!    free (`max_bytes` and `strict_limit` of the mount's backing device,
//!    Documentation/ABI/testing/sysfs-class-bdi); others have the kernel's own bound for a FUSE
//!    mount, one percent of all dirty memory. The bound is made smaller while the volume fills.
//! 2. *Past the cache.* When less than [`Room::short_below`] is free, a file that is opened for
//!    writing is opened past the page cache: each write(2) is a request, and fails by itself.
//! 3. *Asked before.* Files that were opened earlier go on through the cache, but the kernel may
//!    keep their attributes no longer: it asks for them before each write(2), through the writer's
//!    own handle. Once the room that is left is only what dirty pages may need, those of the
//!    writer's file are written first, and it goes on if there is room for one write(2) of each
//!    such writer ([`EACH_WRITER`]); otherwise it is told ENOSPC. Who grows no file is let through.
//! 4. *The others wait.* What takes room by a request (a direct write, a preallocation) waits
//!    until those pages are written too, and then takes what is there (`settle.rs`). What takes
//!    none, of blocks that the file has, does not wait.
//!
//! What still finds no place (the pages of one huge write(2), of mapped memory) is told at the next
//! write(2), fsync(2) or close(2) of the file, and dropped from the page cache: it is not shown as
//! if it were there.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stetfs::Caller;
use stetfs_format::width::usize_as_u64;

use crate::backend::Backend;

/// The kernel may hold dirty at most such a part of what is free.
const DIRTY_PART: u64 = 4;
/// Files are opened past the cache when less than such a part of the volume is free, within the
/// limits below.
const SHORT_PART: u64 = 16;
const SHORT_MIN: u64 = 1 << 20;
const SHORT_MAX: u64 = 256 << 20;
/// What is kept for one write(2) into the page cache of a nearly full volume. Of a larger one, a
/// part may find no place.
const EACH_WRITER: u64 = 1 << 20;

/// What of the volume is free, in relation to what the kernel may hold.
pub(crate) struct Room<B> {
    fs: B,
    /// With less room than this it is short.
    short_below: u64,
    /// What the kernel may hold dirty.
    bound: AtomicU64,
    /// The kernel's knobs for this mount, when they can be turned.
    knobs: OnceLock<Knobs>,
    /// It has been noticed that room is short.
    is_short: AtomicBool,
    /// How often dirty pages may have come that need what is left, and of which of these times all
    /// are written.
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
    /// Nothing that others must know.
    None,
    /// Room has become short: the kernel must ask before it takes writes.
    Short,
    /// So short that dirty pages must be written before others get what is left.
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
        // Nobody has dirty pages yet for which something would have to be kept back.
        let is_short = room.is_short();
        room.is_short.store(is_short, Ordering::Relaxed);
        if is_short {
            room.settled(room.dirtied());
        }
        room
    }

    /// Takes the kernel's knobs of this mount, if they can be turned, and sets the bound.
    pub(crate) fn take_knobs(&self, dir: PathBuf) {
        let knobs = Knobs(dir);
        // Without this a FUSE mount gets one percent of what may be dirty.
        match knobs.turn("max_ratio", 100) {
            Ok(()) => {
                let _ = self.knobs.set(knobs);
                self.set_bound(u64::MAX);
                self.look();
            }
            Err(e) => tracing::debug!("{}/max_ratio: {e}", knobs.0.display()),
        }
    }

    /// Room for ordinary users. What cached pages take may also come from root's blocks, which are
    /// more.
    fn left(&self) -> u64 {
        self.fs.room(&Caller::user(u32::MAX, u32::MAX))
    }

    /// With less room than this, files are opened past the page cache.
    fn short_below(&self) -> u64 {
        // Whoever cannot lower the bound needs twice as much as it allows.
        let bound = self.bound.load(Ordering::Relaxed);
        match self.knobs.get() {
            Some(_) => self.short_below,
            None => self.short_below.max(bound.saturating_mul(2)),
        }
    }

    /// Whether files are to be opened past the page cache.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed) || self.left() < self.short_below()
    }

    /// Whether somebody should look: called when pages have come in.
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

    /// Whether a writer into the page cache has to be told that there is no place: what is left may
    /// be needed by dirty pages.
    pub(crate) fn is_tight_for(&self, c: &Caller) -> bool {
        self.fs.room(c) < self.kept()
    }

    /// What is kept for dirty pages: twice what there may be, because one write(2) is let through
    /// before the kernel counts it.
    fn kept(&self) -> u64 {
        self.bound().saturating_mul(2)
    }

    /// Whether those who write so many growing files through the page cache have room for a
    /// write(2) each.
    pub(crate) fn has_for_writers(&self, c: &Caller, files: usize, beside: u64) -> bool {
        self.fs.room(c) >= beside.saturating_add(EACH_WRITER.saturating_mul(usize_as_u64(files)))
    }

    /// Whether to take `len` bytes of what is left could take what dirty pages need.
    pub(crate) fn is_kept_from(&self, c: &Caller, len: u64) -> bool {
        !self.is_settled() && self.fs.room(c) < self.kept().saturating_add(len)
    }

    /// How often dirty pages may have come.
    pub(crate) fn dirtied(&self) -> u64 {
        self.dirtied.load(Ordering::Relaxed)
    }

    /// A writer into the page cache was let through though room is tight.
    pub(crate) fn note_dirtied(&self) {
        self.dirtied.fetch_add(1, Ordering::Relaxed);
    }

    /// The dirty pages of all who may grow files, of so many times, have been written; nothing is
    /// kept back for them any more.
    pub(crate) fn settled(&self, dirtied: u64) {
        self.settled.fetch_max(dirtied, Ordering::Relaxed);
    }

    fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed) == self.dirtied()
    }

    /// Sets the bound by what is free; says what that means.
    pub(crate) fn look(&self) -> Change {
        let (left, short_below) = (self.left(), self.short_below());
        self.adjust(left, short_below);
        let was_short = self.is_short.load(Ordering::Relaxed);
        // Not back and forth at the edge.
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
        // Each change costs the kernel a look at all dirty limits.
        if want < now || want / 2 > now {
            self.set_bound(want);
        }
    }

    fn set_bound(&self, want: u64) {
        let Some(knobs) = self.knobs.get() else {
            return;
        };
        let all = dirty_threshold();
        // The kernel refuses a bound above that, which changes with the memory that is free.
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

/// What all file systems together may hold dirty, in bytes (`nr_dirty_threshold`, in pages).
fn dirty_threshold() -> u64 {
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let pages = vmstat
        .lines()
        .find_map(|line| line.strip_prefix("nr_dirty_threshold "))
        .and_then(|pages| pages.parse::<u64>().ok());
    // A fifth of a machine with much memory, where the kernel does not say.
    pages.map_or(4 << 30, |pages| {
        pages * usize_as_u64(rustix::param::page_size())
    })
}

/// What the kernel lets a FUSE mount hold that nobody has turned the knobs of: one percent of that.
fn fuse_share() -> u64 {
    dirty_threshold() / 100
}
