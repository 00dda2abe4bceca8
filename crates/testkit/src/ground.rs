//! The grounds of trials in this machine's memory, for tests that neither cut the power nor count
//! requests.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use stetfs::Media;
use stetfs_ftl::{Ftl, FtlOptions};
use stetfs_media::nand::{NandOptions, parts};
use stetfs_media::sim::{SimPmem, SimPmemOptions};
use stetfs_media::{BlockDev, Class, Image, Pmem, PmemDev, RamDev, Tag};
use stetfs_scheme::{Ground, Registration, Trial};

use crate::image::copy_to;

/// Size of the memory beside a volume that holds the log, in blocks of the volume: so small that
/// the log is always full.
const NVRAM_BLOCKS: u64 = 512;

/// Blocks of a cache: so few that it evicts some.
const CACHE_BLOCKS: u64 = 512;

/// Returns the trials of a scheme whose ground this machine can have in memory: all but those on a
/// host's file system with reflinks.
pub fn simulated(scheme: &Registration) -> impl Iterator<Item = &'static Trial> {
    let trials = scheme.trials.iter();
    trials.filter(|trial| trial.ground != Ground::Reflink)
}

/// Returns those of them that have an order of writes of their own.
pub fn orders(scheme: &Registration) -> impl Iterator<Item = &'static Trial> {
    simulated(scheme).filter(|trial| trial.has_own_order)
}

/// A volume in memory.
pub enum InMemory {
    /// A block device, and the memory beside it, if any.
    Block(Arc<RamDev>, Option<Arc<SimPmem>>),
    /// Byte-addressable memory.
    Memory(Arc<SimPmem>),
    /// A NAND part, and the volume's size in bytes.
    Flash(Arc<Ftl>, usize),
}

fn pmem(content: Image) -> Arc<SimPmem> {
    let options = SimPmemOptions {
        record: false,
        ..SimPmemOptions::default()
    };
    Arc::new(options.build(content))
}

impl InMemory {
    /// A volume with this content and blocks of this size, on a ground of this kind.
    ///
    /// # Errors
    /// There is not enough space; this machine cannot have the ground in memory.
    pub fn new(ground: Ground, content: &[u8], block: u32) -> Result<Self> {
        let nvm = match ground {
            Ground::Nvram => Some(NVRAM_BLOCKS * u64::from(block)),
            Ground::NvmCache => Some(CACHE_BLOCKS * u64::from(block)),
            _ => None,
        };
        match ground {
            Ground::Memory => Ok(Self::Memory(pmem(Image::from_bytes(content)))),
            Ground::Block | Ground::Nvram | Ground::NvmCache => Ok(Self::Block(
                Arc::new(RamDev::from_image(content)),
                nvm.map(|bytes| pmem(Image::new(bytes))),
            )),
            Ground::Flash => {
                let options = NandOptions {
                    record: false,
                    ..NandOptions::new(parts::JFTL)
                };
                let nand = Arc::new(options.build());
                let ftl = Ftl::create(nand, [7; 16], &FtlOptions::default(), Default::default())?;
                copy_to(&Image::from_bytes(content), &ftl, 4096)?;
                Ok(Self::Flash(Arc::new(ftl), content.len()))
            }
            Ground::Reflink => None.context("no file system with reflinks in memory"),
        }
    }

    /// The media to mount.
    pub fn media(&self) -> Media {
        match self {
            Self::Block(ram, nvm) => Media {
                home: ram.clone(),
                nvm: nvm.clone().map(|pmem| pmem as Arc<dyn Pmem>),
            },
            Self::Memory(pmem) => Arc::new(PmemDev::new(pmem.clone())).into(),
            Self::Flash(ftl, _) => ftl.clone().into(),
        }
    }

    /// Writes the volume into a file.
    ///
    /// # Errors
    /// Those of the medium or the file.
    pub fn to_file(&self, path: &Path) -> Result<()> {
        match self {
            Self::Block(ram, _) => Ok(ram.to_file(path)?),
            Self::Memory(pmem) => Ok(pmem.newest().to_file(path)?),
            Self::Flash(ftl, len) => {
                let mut content = vec![0; *len];
                ftl.read_at(0, &mut content, Tag::read(Class::Data))?;
                Ok(fs::write(path, content)?)
            }
        }
    }
}
