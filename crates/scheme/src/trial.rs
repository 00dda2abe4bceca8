//! What is run with a scheme: its modes and variants, each on its ground. Tests, explorations of
//! power cuts and the documents' tables go through these; none of them has a list of its own.

use std::fmt;

use stetfs_planted::Bug;

use crate::about::{About, InMemory};

/// What a trial's volume is on.
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
    /// There is persistent memory beside the volume.
    pub fn has_nvm(self) -> bool {
        matches!(self, Self::Nvram | Self::NvmCache)
    }
}

/// One way in which a scheme is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trial {
    /// Its name in reports and of files: the scheme's, and what tells it from the others.
    pub name: &'static str,
    /// The scheme's mount options; `data=` stands first.
    pub options: &'static str,
    /// What the volume is on.
    pub ground: Ground,
    /// One write to any file is one transaction, whatever the mode says of data (`atomic=all`).
    pub atomic: bool,
    /// It writes in an order that no trial of the scheme before it has. The others differ in sizes
    /// and shares alone, and are not explored at length.
    pub has_own_order: bool,
    /// Bugs that an exploration of it shows: those that can be planted in the scheme's own code,
    /// and some of those above and below it.
    pub planted: &'static [Bug],
}

impl Trial {
    /// A mode or variant with an order of writes of its own.
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

    /// An order of writes that an earlier trial has, with other sizes and shares or elsewhere.
    pub const fn setting(name: &'static str, options: &'static str, ground: Ground) -> Self {
        Self {
            has_own_order: false,
            ..Self::new(name, options, ground)
        }
    }

    /// The same, mounted with `atomic=all`.
    pub const fn atomic(self) -> Self {
        Self {
            atomic: true,
            ..self
        }
    }

    /// The same, and it shows these bugs.
    pub const fn planted(self, planted: &'static [Bug]) -> Self {
        Self { planted, ..self }
    }

    /// The mode that it names, and the scheme's own options.
    pub fn parts(&self) -> (Option<&'static str>, impl Iterator<Item = &'static str>) {
        let mut words = self.options.split(',').filter(|word| !word.is_empty());
        let mut rest = words.clone();
        let data = words.next().and_then(|word| word.strip_prefix("data="));
        if data.is_some() {
            rest.next();
        }
        (data, rest)
    }

    /// An unmount leaves content in the memory beside the volume.
    pub fn keeps_cache(&self) -> bool {
        self.parts().1.any(|option| option == "keep-cache")
    }

    /// The list for `mount -o`, of a trial of this scheme.
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
