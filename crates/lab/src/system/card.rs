//! A device with memory beside it that keeps what it holds: a memory card with a little, as a
//! telephone would have them, which Delta Journaling was measured on; a hard disk with a cache,
//! which UBJ, Tinca and Spindle were.

use std::sync::Arc;

use stetfs::Media;
use stetfs_media::sim::{PmemTiming, Rig, SimOptions, SimPmemOptions, Timing};
use stetfs_media::{Clock, Image, Pmem, SimDev, Uncached};

use super::deltas::{CountedPmem, DeltaCount};

/// The memory beside a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvram {
    /// How much there is.
    pub bytes: u64,
    /// How long it takes, where it is simulated.
    pub timing: PmemTiming,
}

impl Nvram {
    /// None.
    pub const NONE: Self = Self {
        bytes: 0,
        timing: PmemTiming::Dram,
    };

    /// On a machine, with this content; none of no bytes.
    pub(super) fn holding(self, rig: &Rig, image: Image) -> Option<Arc<CountedPmem>> {
        let options = SimPmemOptions {
            record: false,
            timing: self.timing,
        };
        (self.bytes > 0).then(|| Arc::new(CountedPmem::new(options.build_on(rig, image))))
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
    dev: Arc<SimDev>,
    nvm: Arc<CountedPmem>,
}

impl Card {
    /// One that holds this, on a machine of its own; there is nothing in the NVRAM.
    pub(super) fn holding(timing: Timing, image: Image, nvram: Nvram) -> Self {
        let nvm = Image::new(nvram.bytes);
        Self::on(timing, Rig::default(), image, nvm, nvram.timing)
    }

    fn on(timing: Timing, rig: Rig, image: Image, nvm: Image, nvm_timing: PmemTiming) -> Self {
        let dev = SimOptions {
            volatile_cache: timing == Timing::Hdd,
            record: false,
            timing,
            ..SimOptions::default()
        };
        let pmem = SimPmemOptions {
            record: false,
            timing: nvm_timing,
        };
        Self {
            timing,
            dev: Arc::new(dev.build_on(&rig, image)),
            nvm: Arc::new(CountedPmem::new(pmem.build_on(&rig, nvm))),
        }
    }

    /// What a power cut leaves of it.
    pub(super) fn after_cut(&self) -> Self {
        let (dev, pmem) = (self.dev.stable(), self.nvm.memory());
        let nvm_timing = pmem.options().timing;
        Self::on(self.timing, Rig::default(), dev, pmem.stable(), nvm_timing)
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.dev.rig().clock
    }

    /// What scheme dj has logged so far.
    pub(super) fn deltas(&self) -> DeltaCount {
        self.nvm.count()
    }

    pub(super) fn image(&self) -> Image {
        self.dev.newest()
    }

    pub(super) fn media(&self, has_nvm: bool) -> Media {
        Media {
            // The file system keeps what was read, as a kernel does in its page cache.
            home: Arc::new(Uncached(self.dev.clone())),
            nvm: has_nvm.then(|| self.nvm.clone() as Arc<dyn Pmem>),
        }
    }
}
