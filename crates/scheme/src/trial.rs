//! Trials: a scheme's modes and variants, each on its ground. Tests, explorations of power cuts and
//! the documents' tables all use these lists; none has a list of its own.

use std::fmt;

use stetfs_planted::Bug;

use crate::about::{About, InMemory};

/// The ground of a trial's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// A block device.
    Block,
    /// Byte-addressable memory.
    Memory,
    /// A NAND part behind a flash translation layer that remaps.
    Flash,
    /// A file on a file system with reflinks.
    Reflink,
    /// A block device with NVRAM for the log beside it.
    Nvram,
    /// A block device with a cache in NVM beside it.
    NvmCache,
}

impl Ground {
    /// True when there is persistent memory beside the volume.
    pub fn has_nvm(self) -> bool {
        matches!(self, Self::Nvram | Self::NvmCache)
    }
}

/// One way in which tests run a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Its name in reports and of files: the scheme's name, and a suffix of its own.
    pub name: &'static str,
    /// The scheme's mount options; `data=` stands first.
    pub options: &'static str,
    /// The ground of the volume.
    pub ground: Ground,
    /// One write to any file is one transaction, whatever the mode promises for data
    /// (`atomic=all`).
    pub atomic: bool,
    /// No earlier trial of the scheme has its order of writes. The other trials differ only in
    /// sizes and shares, and are not explored at length.
    pub has_own_order: bool,
    /// Planted bugs that an exploration of it finds: in the scheme's own code, and some above and
    /// below it.
    pub planted: &'static [Bug],
}

impl Trial {
    /// Makes a trial of a mode or variant with an order of writes of its own.
    pub const fn new(name: &'static str, options: &'static str, ground: Ground) -> Self {
        Self {
            name,
            options,
            ground,
            atomic: false,
            has_own_order: true,
            planted: &[],
        }
    }

    /// Makes a trial with the order of writes of an earlier one, but other sizes, shares or ground.
    pub const fn setting(name: &'static str, options: &'static str, ground: Ground) -> Self {
        Self {
            has_own_order: false,
            ..Self::new(name, options, ground)
        }
    }

    /// Returns the same trial, mounted with `atomic=all`.
    pub const fn atomic(self) -> Self {
        Self {
            atomic: true,
            ..self
        }
    }

    /// Returns the same trial, with these planted bugs.
    pub const fn planted(self, planted: &'static [Bug]) -> Self {
        Self { planted, ..self }
    }

    /// Returns the mode that it names, and the scheme's own options.
    pub fn parts(&self) -> (Option<&'static str>, impl Iterator<Item = &'static str>) {
        let mut words = self.options.split(',').filter(|word| !word.is_empty());
        let mut rest = words.clone();
        let data = words.next().and_then(|word| word.strip_prefix("data="));
        if data.is_some() {
            rest.next();
        }
        (data, rest)
    }

    /// True when an unmount leaves content in the memory beside the volume.
    pub fn keeps_cache(&self) -> bool {
        self.parts().1.any(|option| option == "keep-cache")
    }

    /// Returns the list for `mount -o`; `about` is the trial's scheme.
    pub fn mount_options(&self, about: &About) -> String {
        let options = match self.options {
            "" => String::new(),
            options => format!(",{options}"),
        };
        let dax = match (self.ground, about.in_memory) {
            (Ground::Memory, InMemory::Too) => ",dax",
            _ => "",
        };
        let atomic = if self.atomic { ",atomic=all" } else { "" };
        format!("scheme={}{options}{atomic}{dax}", about.name)
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
