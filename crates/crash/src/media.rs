//! The media of a run: simulated, recorded, and watched for what is read from them.
//!
//! A scheme has one medium or several, on one supply of power. So their changes have one order, and
//! a power cut hits all of them at one [`Moment`](super::moment::Moment). Each medium loses changes
//! by itself, and every combination of their losses is possible. For enumerating, judging and
//! replaying, several media are like one: the pieces of all have one numbering, and their content
//! is one value ([`Contents`]).
//!
//! **Units** are parts of 512 bytes, numbered over all media. The units that were read, and those
//! in which two contents differ, are sets of units. A power cut does not tear a unit of a block
//! device, which is a sector; it may tear one of persistent memory, where each word persists by
//! itself.

use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use stetfs_ftl::Ftl;
use stetfs_media::nand::{NandError, NandSim};
use stetfs_media::sim::{Fault, Rig, SimOptions, SimPmem, SimPmemOptions};
use stetfs_media::{BlockDev, Image, Pmem, PmemDev, SimDev};

pub mod contents;
pub mod kind;

use self::contents::Contents;
use self::kind::{Kind, UNIT, Unit, units_of};
use super::handing::{HandingDev, HandingPmem};
use super::moment::{TapeOf, Tapes};
use super::turns::Turns;
use super::watch::{UnitSet, Watch, Watched, WatchedDev, WatchedNand, WatchedPmem};

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
    /// The content of a NAND part is not one that a part can have.
    pub fn new(contents: &Contents) -> Self {
        Self::try_new(contents).expect("what a part left is a part")
    }

    /// Does the same with contents of unknown origin.
    ///
    /// # Errors
    /// The fault in the content of a NAND part.
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

    /// Returns the media for a mount, not watched. Media that were returned before must not be in
    /// use any more.
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

    /// Does the same, but each change of the media may hand the turn on first.
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

    /// Does the same, watched.
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

    /// Returns the memory beside the home device.
    fn nvm(&self) -> Option<&Arc<SimPmem>> {
        self.media[1..].iter().find_map(|medium| match medium {
            Medium::Pmem(pmem) => Some(pmem),
            Medium::Block(_) | Medium::Nand(..) => None,
        })
    }

    /// Plans an error on a medium; 0 is the home device.
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

    /// Returns for each medium how many planned errors have struck, and how many requests could
    /// have failed.
    pub fn struck(&self) -> Vec<(u64, u64)> {
        let of = |medium: &Medium| match medium {
            Medium::Block(dev) => (dev.faults_struck(), dev.requests()),
            Medium::Pmem(pmem) => (pmem.faults_struck(), pmem.requests()),
            Medium::Nand(_, nand) => (nand.faults_struck(), nand.requests()),
        };
        self.media.iter().map(of).collect()
    }

    /// Returns the number of changes on all media so far.
    pub fn changes(&self) -> u64 {
        self.rig.power.changes()
    }

    /// Returns the units that were read and written so far through watched media.
    pub fn watched(&self) -> Watched {
        self.watched.lock().clone()
    }

    /// Returns the content of the media now.
    pub fn contents(&self) -> Contents {
        let content = |medium: &Medium| match medium {
            Medium::Block(dev) => (Kind::Block, dev.newest()),
            Medium::Pmem(pmem) => (Kind::Pmem, pmem.newest()),
            Medium::Nand(kind, nand) => (*kind, nand.image()),
        };
        Contents(self.media.iter().map(content).collect())
    }

    /// Returns the record of all changes so far.
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
    // The layer writes a checkpoint at the unmount, as on a user's volume: the power is cut in it
    // too.
    let options = stetfs_ftl::MountOptions {
        checkpoint_at_end: true,
        ..Default::default()
    };
    Ftl::mount(nand, options).context("mounting the flash translation layer")
}
