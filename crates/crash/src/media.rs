//! The media of a run: simulated, recorded, and watched for what is read from them.
//!
//! A scheme has one medium or several. They hang on one supply, so that their changes have one
//! order and a power cut hits all at one [`Moment`](super::moment::Moment); what each then loses is
//! its own affair, and every combination of what they may lose can be what is left. To whoever
//! enumerates, judges or replays, several media are like one: the atoms of all are numbered
//! through, and what they hold is one value ([`Contents`]).
//!
//! **Units** are pieces of 512 bytes, numbered over all media: what was read, and in what two
//! contents differ, are sets of units. A power cut may tear a unit: a sector of a block device it
//! does not, in persistent memory each word is on its own.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use stetfs_ftl::Ftl;
use stetfs_media::nand::{NandError, NandSim};
use stetfs_media::sim::{Fault, Rig, SimOptions, SimPmem, SimPmemOptions};
use stetfs_media::{BlockDev, Image, Pmem, PmemDev, SimDev};

use super::flash;
use super::handing::{HandingDev, HandingPmem};
use super::moment::{TapeOf, Tapes};
use super::turns::Turns;
use super::watch::{UnitSet, Watch, Watched, WatchedDev, WatchedNand, WatchedPmem};

/// Bytes of a unit.
pub const UNIT: u64 = 512;

/// A unit's number, over all media.
pub type Unit = u32;

/// Bytes of the pages that images share.
const PAGE: u64 = 4096;

/// What a medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A block device with sectors of 512 bytes and a volatile cache.
    Block,
    /// Persistent memory behind a processor's cache.
    Pmem,
    /// A NAND part with a flash translation layer, which is mounted whenever the home device is
    /// asked for: JFTL's, with pages of 512 bytes.
    Nand,
    /// The same with pages of 16 KiB, of which the layer maps units of 4 KiB.
    Nand16k,
}

impl Kind {
    /// Its name on the command line and in cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Pmem => "pmem",
            Self::Nand => "nand",
            Self::Nand16k => "nand16k",
        }
    }

    /// Whether it is a NAND part with a layer.
    pub fn is_flash(self) -> bool {
        matches!(self, Self::Nand | Self::Nand16k)
    }

    /// Bytes of the smallest piece that the home device on it takes.
    pub fn sector(self) -> u32 {
        match self {
            Self::Pmem => 64,
            Self::Block | Self::Nand => 512,
            Self::Nand16k => 4096,
        }
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let kinds = [Self::Block, Self::Pmem, Self::Nand, Self::Nand16k];
        let found = kinds.into_iter().find(|kind| kind.name() == name);
        found.with_context(|| format!("there is no medium {name}: block, pmem, nand or nand16k"))
    }
}

/// What all media of a run hold. Clones share what they have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents(Vec<(Kind, Image)>);

impl Contents {
    /// The contents of these media, the home device first.
    pub fn new(media: Vec<(Kind, Image)>) -> Self {
        assert!(!media.is_empty(), "a home device");
        Self(media)
    }

    /// The content of a home device without further media.
    pub fn of_block_device(image: Image) -> Self {
        Self(vec![(Kind::Block, image)])
    }

    /// The volume, as the home device shows it.
    ///
    /// # Errors
    /// What a NAND part holds cannot be read.
    pub fn volume(&self) -> Result<Image> {
        let (kind, home) = &self.0[0];
        match kind {
            Kind::Block | Kind::Pmem => Ok(home.clone()),
            Kind::Nand | Kind::Nand16k => flash::volume_on(home),
        }
    }

    /// The media with what each holds, the home device first.
    pub fn media(&self) -> impl Iterator<Item = (Kind, &Image)> {
        self.0.iter().map(|(kind, image)| (*kind, image))
    }

    /// Changes bytes of a medium, counted from the home device on. Panics when there is no such
    /// place.
    pub fn write(&mut self, medium: usize, offset: u64, bytes: &[u8]) {
        self.0[medium].1.write(offset, bytes);
    }

    fn images(&self) -> impl Iterator<Item = &Image> {
        self.0.iter().map(|(_, image)| image)
    }

    /// Units of all media.
    pub fn units(&self) -> usize {
        self.images().map(units_of).sum::<u64>() as usize
    }

    /// The units of the pages that the two do not share; each may still have equal content.
    pub fn unshared(&self, other: &Self) -> Vec<Unit> {
        let mut found = Vec::new();
        let mut first = 0;
        for (mine, theirs) in self.images().zip(other.images()) {
            for page in mine.unshared_pages(theirs) {
                let end = (page + PAGE).min(mine.size());
                found.extend((page / UNIT..end.div_ceil(UNIT)).map(|n| (first + n) as Unit));
            }
            first += units_of(mine);
        }
        found
    }

    /// The bytes of a unit.
    pub fn unit(&self, unit: Unit) -> [u8; UNIT as usize] {
        let mut out = [0; UNIT as usize];
        let mut unit = u64::from(unit);
        for image in self.images() {
            let units = units_of(image);
            if unit < units {
                let at = unit * UNIT;
                let there = (image.size() - at).min(UNIT) as usize;
                image.read(at, &mut out[..there]);
                break;
            }
            unit -= units;
        }
        out
    }
}

/// Units of a medium with this content.
pub(super) fn units_of(image: &Image) -> u64 {
    image.size().div_ceil(UNIT)
}

/// A simulated medium.
enum Medium {
    Block(Arc<SimDev>),
    Pmem(Arc<SimPmem>),
    Nand(Kind, Arc<NandSim>),
}

/// Simulated media on one supply, all with a tape.
pub struct Media {
    rig: Rig,
    media: Vec<Medium>,
    home_size: u64,
    watched: Arc<Mutex<Watched>>,
}

impl Media {
    /// Media with these contents, all of it stable.
    ///
    /// # Panics
    /// A NAND part's contents are not what a part has left.
    pub fn new(contents: &Contents) -> Self {
        Self::try_new(contents).expect("what a part left is a part")
    }

    /// The same with contents of unknown origin.
    ///
    /// # Errors
    /// What is wrong with those of a NAND part.
    pub fn try_new(contents: &Contents) -> Result<Self, NandError> {
        let rig = Rig::default();
        let make = |(kind, image): &(Kind, Image)| {
            Ok::<_, NandError>(match kind {
                Kind::Block => {
                    let dev = SimOptions::default().build_on(&rig, image.clone());
                    Medium::Block(Arc::new(dev))
                }
                Kind::Pmem => {
                    let pmem = SimPmemOptions::default().build_on(&rig, image.clone());
                    Medium::Pmem(Arc::new(pmem))
                }
                Kind::Nand | Kind::Nand16k => {
                    let part = NandSim::from_image(&rig, image.clone())?;
                    Medium::Nand(*kind, Arc::new(part))
                }
            })
        };
        let none = UnitSet::new(contents.units());
        Ok(Self {
            media: contents
                .0
                .iter()
                .map(make)
                .collect::<Result<_, NandError>>()?,
            home_size: units_of(&contents.0[0].1) * UNIT,
            watched: Arc::new(Mutex::new(Watched {
                read: none.clone(),
                written: none,
            })),
            rig,
        })
    }

    /// What a volume is mounted on, not watched. What was asked for before must not be in use any
    /// more.
    ///
    /// # Errors
    /// The flash translation layer cannot be mounted.
    pub fn shown(&self) -> Result<stetfs::Media> {
        let home: Arc<dyn BlockDev> = match &self.media[0] {
            Medium::Block(dev) => dev.clone(),
            Medium::Pmem(pmem) => Arc::new(PmemDev::new(pmem.clone())),
            Medium::Nand(_, nand) => Arc::new(mount(nand.clone())?),
        };
        let nvm = self.nvm().map(|pmem| pmem.clone() as Arc<dyn Pmem>);
        Ok(stetfs::Media { home, nvm })
    }

    /// The same; who changes it may hand the turn on first.
    ///
    /// # Errors
    /// As [`shown`](Self::shown).
    pub(super) fn shown_to(&self, turns: &Arc<Turns>) -> Result<stetfs::Media> {
        let memory = |pmem: &Arc<SimPmem>| -> Arc<dyn Pmem> {
            Arc::new(HandingPmem {
                pmem: pmem.clone(),
                turns: turns.clone(),
            })
        };
        let home: Arc<dyn BlockDev> = match &self.media[0] {
            Medium::Pmem(pmem) => Arc::new(PmemDev::new(memory(pmem))),
            Medium::Block(_) | Medium::Nand(..) => Arc::new(HandingDev {
                dev: self.shown()?.home,
                turns: turns.clone(),
            }),
        };
        let nvm = self.nvm().map(memory);
        Ok(stetfs::Media { home, nvm })
    }

    /// The same, watched.
    ///
    /// # Errors
    /// As [`shown`](Self::shown).
    pub fn shown_watched(&self) -> Result<stetfs::Media> {
        let watch = |first| Watch::new(first, self.watched.clone());
        let home: Arc<dyn BlockDev> = match &self.media[0] {
            Medium::Block(dev) => Arc::new(WatchedDev::new(dev.clone(), watch(0))),
            Medium::Pmem(pmem) => {
                let watched = WatchedPmem::new(pmem.clone(), watch(0));
                Arc::new(PmemDev::new(Arc::new(watched)))
            }
            Medium::Nand(_, nand) => {
                let watched = WatchedNand::new(nand.clone(), watch(0));
                Arc::new(mount(Arc::new(watched))?)
            }
        };
        let behind_home = (self.home_size / UNIT) as Unit;
        let nvm = self.nvm().map(|pmem| {
            let watched = WatchedPmem::new(pmem.clone(), watch(behind_home));
            Arc::new(watched) as Arc<dyn Pmem>
        });
        Ok(stetfs::Media { home, nvm })
    }

    /// The memory beside the home device.
    fn nvm(&self) -> Option<&Arc<SimPmem>> {
        self.media[1..].iter().find_map(|medium| match medium {
            Medium::Pmem(pmem) => Some(pmem),
            Medium::Block(_) | Medium::Nand(..) => None,
        })
    }

    /// Plans an error on a medium, counted from the home device on.
    ///
    /// # Panics
    /// There is no such medium.
    pub fn inject(&self, medium: usize, fault: Fault) {
        match &self.media[medium] {
            Medium::Block(dev) => dev.inject(fault),
            Medium::Pmem(pmem) => pmem.inject(fault),
            Medium::Nand(_, nand) => nand.inject(fault),
        }
    }

    /// Forgets all planned errors.
    pub fn heal(&self) {
        self.media.iter().for_each(|medium| match medium {
            Medium::Block(dev) => dev.heal(),
            Medium::Pmem(pmem) => pmem.heal(),
            Medium::Nand(_, nand) => nand.heal(),
        });
    }

    /// How many planned errors have struck, of how many requests that could have failed, for each
    /// medium.
    pub fn struck(&self) -> Vec<(u64, u64)> {
        let of = |medium: &Medium| match medium {
            Medium::Block(dev) => (dev.faults_struck(), dev.requests()),
            Medium::Pmem(pmem) => (pmem.faults_struck(), pmem.requests()),
            Medium::Nand(_, nand) => (nand.faults_struck(), nand.requests()),
        };
        self.media.iter().map(of).collect()
    }

    /// Changes on all media so far.
    pub fn changes(&self) -> u64 {
        self.rig.power.changes()
    }

    /// What was read and written so far by whoever was watched.
    pub fn watched(&self) -> Watched {
        self.watched.lock().clone()
    }

    /// What they hold now.
    pub fn contents(&self) -> Contents {
        let content = |medium: &Medium| match medium {
            Medium::Block(dev) => (Kind::Block, dev.newest()),
            Medium::Pmem(pmem) => (Kind::Pmem, pmem.newest()),
            Medium::Nand(kind, nand) => (*kind, nand.image()),
        };
        Contents(self.media.iter().map(content).collect())
    }

    /// The record of all changes so far.
    pub fn tapes(&self) -> Tapes {
        let tape = |medium: &Medium| match medium {
            Medium::Block(dev) => TapeOf::Plain(Kind::Block, dev.tape()),
            Medium::Pmem(pmem) => TapeOf::Plain(Kind::Pmem, pmem.tape()),
            Medium::Nand(kind, nand) => TapeOf::Nand(*kind, nand.tape()),
        };
        Tapes::new(self.media.iter().map(tape).collect())
    }
}

fn mount(nand: Arc<dyn stetfs_media::nand::Nand>) -> Result<Ftl> {
    // As for a user's volume: the power is cut in its checkpoint at the unmount, too.
    let options = stetfs_ftl::MountOptions {
        checkpoint_at_end: true,
        ..Default::default()
    };
    Ftl::mount(nand, options).context("mounting the flash translation layer")
}
