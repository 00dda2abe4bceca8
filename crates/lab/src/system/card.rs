//! A device with persistent memory beside it: a memory card with a little of it, as a telephone
//! would have them, on which Delta Journaling was measured; or a hard disk with a cache, on which
//! UBJ, Tinca and Spindle were.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use stetfs::Media;
use stetfs_media::sim::{PmemTiming, Rig, SimOptions, SimPmemOptions, Timing};
use stetfs_media::{BlockDev, Cause, Clock, Image, Layer, MediaError, Pmem, SimDev, Tag};

use super::deltas::{CountedPmem, DeltaCount};

/// The memory beside a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvram {
    /// How much there is.
    pub bytes: u64,
    /// How fast it is, where it is simulated.
    pub timing: PmemTiming,
    /// How long a fence takes beside the lines that it waits for, in nanoseconds.
    pub fence_ns: u64,
}

impl Nvram {
    /// No memory.
    pub const NONE: Self = Self {
        bytes: 0,
        timing: PmemTiming::Dram,
        fence_ns: 0,
    };

    /// Puts the memory on a machine, with this content; `None` when it has no bytes.
    pub(super) fn holding(self, rig: &Rig, image: Image) -> Option<Arc<CountedPmem>> {
        let options = SimPmemOptions {
            record: false,
            timing: self.timing,
        };
        (self.bytes > 0).then(|| {
            let pmem = options.build_on(rig, image);
            Arc::new(CountedPmem::new(pmem, self.fence_ns))
        })
    }

    pub(super) fn about_card(self) -> String {
        format!(
            "virtual time; a simulated card of class 10, without a cache \
                (crates/media/src/sim/timing.rs has its figures), and {} KiB of NVRAM \
             with {} ns a line of 64 bytes loaded or written",
            self.bytes >> 10,
            self.timing.flush_ns()
        )
    }

    pub(super) fn about_hard_disk(self) -> String {
        format!(
            "virtual time; a simulated hard disk with 7,200 turns a minute and a write cache \
                (crates/media/src/sim/timing.rs has its figures), and {} MiB of NVM \
             with {} ns a line of 64 bytes loaded and {} ns a line written",
            self.bytes >> 20,
            self.timing.load_ns(),
            self.timing.flush_ns()
        )
    }

    pub(super) fn about_drive(self, timing: Timing) -> String {
        format!(
            "virtual time; a simulated drive, {timing} (crates/media/src/sim/timing.rs has its \
                figures), and {} MiB of NVM with {} ns a line of 64 bytes loaded and {} ns a line \
                written",
            self.bytes >> 20,
            self.timing.load_ns(),
            self.timing.flush_ns()
        )
    }
}

/// A simulated card or hard disk with its NVRAM.
pub(super) struct Card {
    timing: Timing,
    dev: Arc<Jumps>,
    nvm: Arc<CountedPmem>,
    nvram: Nvram,
}

impl Card {
    /// Makes a device with this content on a machine of its own, with an empty NVRAM. A write that
    /// does not continue the last one takes `jump_ns` longer than on such a device.
    pub(super) fn holding(timing: Timing, image: Image, nvram: Nvram, jump_ns: u64) -> Self {
        Self::on(timing, image, Image::new(nvram.bytes), nvram, jump_ns)
    }

    fn on(timing: Timing, image: Image, nvm: Image, nvram: Nvram, jump_ns: u64) -> Self {
        let rig = Rig::default();
        let dev = SimOptions {
            volatile_cache: timing == Timing::Hdd,
            record: false,
            timing,
            ..SimOptions::default()
        };
        let pmem = SimPmemOptions {
            record: false,
            timing: nvram.timing,
        };
        Self {
            timing,
            dev: Arc::new(Jumps::new(dev.build_on(&rig, image), jump_ns)),
            nvm: Arc::new(CountedPmem::new(pmem.build_on(&rig, nvm), nvram.fence_ns)),
            nvram,
        }
    }

    /// Returns what a power cut leaves of it.
    pub(super) fn after_cut(&self) -> Self {
        let (dev, nvm) = (self.dev.sim.stable(), self.nvm.memory().stable());
        Self::on(self.timing, dev, nvm, self.nvram, self.dev.jump_ns)
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.dev.sim.rig().clock
    }

    /// Returns what scheme dj has logged so far.
    pub(super) fn deltas(&self) -> DeltaCount {
        self.nvm.count()
    }

    /// Returns the time of checkpoints that the device's meter does not count, in nanoseconds.
    pub(super) fn late_ns(&self) -> u64 {
        self.dev.late_ns.load(Relaxed)
    }

    pub(super) fn image(&self) -> Image {
        self.dev.sim.newest()
    }

    pub(super) fn media(&self, has_nvm: bool) -> Media {
        Media {
            home: self.dev.clone(),
            nvm: has_nvm.then(|| self.nvm.clone() as Arc<dyn Pmem>),
        }
    }
}

/// A device on which a write takes longer if it does not continue the last one. The file system
/// keeps what was read, as a kernel does in its page cache.
struct Jumps {
    sim: SimDev,
    jump_ns: u64,
    end: AtomicU64,
    /// The extra time of checkpoints.
    late_ns: AtomicU64,
}

impl Jumps {
    fn new(sim: SimDev, jump_ns: u64) -> Self {
        Self {
            sim,
            jump_ns,
            end: AtomicU64::new(0),
            late_ns: AtomicU64::new(0),
        }
    }
}

impl Layer for Jumps {
    fn below(&self) -> &dyn BlockDev {
        &self.sim
    }

    fn host_cached(&self) -> bool {
        false
    }

    fn write_vectored_at(&self, at: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if self.end.swap(at + len as u64, Relaxed) != at {
            self.sim.rig().clock.advance(self.jump_ns);
            if tag.cause == Cause::Checkpoint {
                self.late_ns.fetch_add(self.jump_ns, Relaxed);
            }
        }
        self.sim.write_vectored_at(at, parts, tag)
    }
}
