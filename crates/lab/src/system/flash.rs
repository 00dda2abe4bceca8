//! A NAND part with a flash translation layer on it, for volumes, and memory beside it.

use std::sync::Arc;

use super::card::Nvram;
use super::deltas::{CountedPmem, DeltaCount};
use anyhow::Result;
use stetfs::Media;
use stetfs_ftl::{Ftl, FtlOptions};
use stetfs_media::nand::{
    Nand, NandGeometry, NandOptions, NandPart, NandSim, NandTiming, UnitNand, parts,
};
use stetfs_media::sim::Rig;
use stetfs_media::{BlockDev, Clock, Image, Pmem};
use stetfs_testkit::image::copy_to;

/// A kind of part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flash {
    /// The name in reports.
    pub name: &'static str,
    /// The part.
    pub part: NandPart,
    /// Units of a page that are mapped separately.
    pub units: u32,
}

/// The JFTL paper's part, simulated without errors and bad blocks, as in the paper.
pub(crate) const JFTL_NAND: Flash = Flash {
    name: "JFTL's NAND",
    part: parts::JFTL.flawless(),
    units: 1,
};

/// A sixteenth of Micron's L95B, whose pages have 16 KiB and blocks 512 pages, with its mean times
/// as measured on those of a drive (Li and others, FAST 2018; `hw/block/femu/nand/nand.h`); the
/// layer maps units of 4 KiB.
pub(crate) const MODERN_NAND: Flash = Flash {
    name: "16 KiB NAND",
    part: NandPart {
        geometry: NandGeometry {
            page_bytes: 16 << 10,
            spare_bytes: 2208,
            pages_per_block: 512,
            blocks: 128,
            planes: 2,
            bad_mark: 0,
        },
        timing: NandTiming {
            read_ns: 56_000,
            program_ns: 1_575_000,
            erase_ns: 3_000_000,
            bus_bytes_per_us: 312,
        },
        ..parts::MLC.flawless()
    },
    units: 4,
};

/// A part of the kind.
pub struct Chip {
    sim: Arc<NandSim>,
    /// Divides its pages into units, where there are several.
    units: Option<Arc<UnitNand>>,
    flash: Flash,
    /// Memory beside it.
    nvm: Option<Arc<CountedPmem>>,
}

impl Chip {
    fn new(sim: NandSim, flash: Flash) -> Self {
        let sim = Arc::new(sim);
        let has_units = flash.units > 1;
        let units = has_units.then(|| Arc::new(UnitNand::new(sim.clone(), flash.units)));
        Self {
            sim,
            units,
            flash,
            nvm: None,
        }
    }

    /// Puts empty memory beside it.
    fn beside(mut self, nvram: Nvram) -> Self {
        self.nvm = nvram.holding(self.sim.rig(), Image::new(nvram.bytes));
        self
    }

    /// Returns what a power cut leaves of it while no layer is at work; `None` where a part of it
    /// is in a controller's memory.
    pub(super) fn after_cut(&self) -> Result<Option<Self>> {
        if self.units.is_some() {
            return Ok(None);
        }
        let rig = Rig::default();
        let sim = self.flash.options().open_on(&rig, self.sim.image())?;
        let mut cut = Self::new(sim, self.flash);
        cut.nvm = self.nvm.as_ref().and_then(|nvm| {
            let pmem = nvm.memory();
            let nvram = Nvram {
                bytes: pmem.size(),
                timing: pmem.options().timing,
                fence_ns: nvm.fence_ns(),
            };
            nvram.holding(&rig, pmem.stable())
        });
        Ok(Some(cut))
    }

    /// Returns the media of a volume on it, with a layer.
    pub(super) fn media(&self, has_nvm: bool) -> Result<Media> {
        Ok(Media {
            home: Arc::new(Ftl::mount(self.nand(), Default::default())?),
            nvm: self
                .nvm
                .clone()
                .filter(|_| has_nvm)
                .map(|nvm| nvm as Arc<dyn Pmem>),
        })
    }

    /// Returns what scheme dj has logged so far in the memory beside it.
    pub(super) fn deltas(&self) -> Option<DeltaCount> {
        self.nvm.as_ref().map(|nvm| nvm.count())
    }

    /// Returns the part as the layer sees it.
    pub fn nand(&self) -> Arc<dyn Nand> {
        match &self.units {
            Some(units) => units.clone(),
            None => self.sim.clone(),
        }
    }

    /// The clock of the part.
    pub fn clock(&self) -> &Clock {
        &self.sim.rig().clock
    }

    /// Programs what waits for its page to be full. No layer may continue afterwards.
    ///
    /// # Errors
    /// Those of the part.
    pub fn settle(&self) -> Result<()> {
        Ok(self.units.as_ref().map_or(Ok(()), |units| units.settle())?)
    }
}

/// Fixed, so that parts are the same each time.
const UUID: [u8; 16] = *b"the lab's layer.";

impl Flash {
    /// Describes the part, for reports.
    pub fn about(self) -> String {
        let NandPart {
            geometry, timing, ..
        } = self.part;
        let mapped = match self.units {
            1 => "whole pages".to_owned(),
            n => format!(
                "units of {} bytes, {n} of which wait in a controller's memory with capacitors \
                    until they fill a page",
                geometry.page_bytes / n
            ),
        };
        format!(
            "virtual time; {} MiB in pages of {} bytes and erase blocks of {} KiB; {} us to read a \
                page, {} to program one, {} ms to erase a \
             block, {} MB/s on the bus; our flash translation layer maps {mapped}, and exports {} \
             MiB",
            geometry.data_bytes() >> 20,
            geometry.page_bytes,
            (geometry.page_bytes * geometry.pages_per_block) >> 10,
            timing.read_ns / 1000,
            timing.program_ns / 1000,
            f64::from(timing.erase_ns) / 1e6,
            timing.bus_bytes_per_us,
            self.capacity().map_or(0, |bytes| bytes >> 20),
        )
    }

    /// Bytes that the layer exports.
    ///
    /// # Errors
    /// Such a part cannot have a layer.
    pub fn capacity(self) -> Result<u64> {
        let (_chip, ftl) = self.format()?;
        Ok(ftl.size())
    }

    /// Options that keep no tape.
    const fn options(self) -> NandOptions {
        NandOptions {
            record: false,
            ..NandOptions::new(self.part)
        }
    }

    /// Makes a part with this content, and new memory beside it.
    pub(super) fn holding(self, image: Image, nvram: Nvram) -> Result<Chip> {
        let sim = self.options().open_on(&Rig::default(), image)?;
        Ok(Chip::new(sim, self).beside(nvram))
    }

    /// Makes a new part with a new layer.
    ///
    /// # Errors
    /// Such a part cannot have a layer.
    pub fn format(self) -> Result<(Chip, Ftl)> {
        let chip = Chip::new(self.options().build(), self);
        let options = FtlOptions::default();
        let ftl = Ftl::create(chip.nand(), UUID, &options, Default::default())?;
        Ok((chip, ftl))
    }

    /// Returns the content of a new part with a new layer that holds a volume.
    ///
    /// # Errors
    /// The volume is larger.
    pub(super) fn with(self, volume: &Image) -> Result<Image> {
        let (chip, ftl) = self.format()?;
        copy_to(volume, &ftl, 64 << 10)?;
        drop(ftl);
        chip.settle()?;
        Ok(chip.sim.image())
    }
}
