//! A device with memory beside it that keeps what it holds: a memory card with a little, as a
//! telephone would have them, which Delta Journaling was measured on; a hard disk with a cache,
//! which UBJ, Tinca and Spindle were.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use stetfs::Media;
use stetfs_media::pmem::PmemOptions;
use stetfs_media::sim::{PmemTiming, Rig, SimOptions, SimPmemOptions, Timing};
use stetfs_media::{Clock, FileOptions, Image, Pmem, SimDev, Survives, Uncached};

use super::deltas::{CountedPmem, DeltaCount};
use stetfs_testkit::host::scratch;

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

    pub(super) fn about_disk(self) -> String {
        let dir = std::env::temp_dir();
        format!(
            "real time, median of three; a file in {}, past the page cache where that can be, and \
                {} KiB of this machine's memory for NVRAM",
            dir.display(),
            self.bytes >> 10
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

/// The same in files.
pub(super) struct Disk {
    home: PathBuf,
    nvm: PathBuf,
    _dirs: [tempfile::TempDir; 2],
}

impl Disk {
    /// One that holds this.
    pub(super) fn holding(image: &Image, nvram: Nvram) -> Result<Self> {
        let on_disk = tempfile::Builder::new().prefix("stetfs-lab-").tempdir()?;
        let in_memory = scratch()?;
        let (home, nvm) = (
            on_disk.path().join("volume"),
            in_memory.path().join("nvram"),
        );
        image.to_file(&home)?;
        std::fs::File::create(&nvm)?.set_len(nvram.bytes)?;
        Ok(Self {
            home,
            nvm,
            _dirs: [on_disk, in_memory],
        })
    }

    pub(super) fn media(&self, has_nvm: bool) -> Result<Media> {
        // A file system in memory has no way past the page cache.
        let past = FileOptions::default().direct(true).open(&self.home);
        let home = past.or_else(|_| FileOptions::default().open(&self.home))?;
        let nvm = has_nvm
            .then(|| {
                let options = PmemOptions::default().survives(Survives::ProcessCrash);
                Ok::<_, anyhow::Error>(Arc::new(options.open(&self.nvm)?) as Arc<dyn Pmem>)
            })
            .transpose()?;
        Ok(Media {
            home: Arc::new(home),
            nvm,
        })
    }
}
