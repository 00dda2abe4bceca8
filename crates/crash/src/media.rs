//! The media of a run: simulated, recorded, and watched for what is read from them.
//!
//! A scheme has one medium or several. They hang on one supply, so that their changes have one
//! order and a power cut hits all at one [`Moment`](super::moment::Moment); what each then loses is
//! its own affair, and every combination of what they may lose can be what is left. To whoever
//! enumerates, judges or replays, several media are like one: the pieces of all are numbered
//! through, and what they hold is one value ([`Contents`]).
//!
//! **Units** are pieces of 512 bytes, numbered over all media: what was read, and in what two
//! contents differ, are sets of units. A power cut may tear a unit: a sector of a block device it
//! does not, in persistent memory each word is on its own.

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
