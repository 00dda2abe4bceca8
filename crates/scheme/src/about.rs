//! A scheme's description, before it is opened, and the mount's options for it.

use serde::Serialize;

use crate::error::{Result, SchemeError};
use crate::recovery_case::RecoveryCase;

/// A scheme's description of itself, for the command line, the documents, the tests and the lab.
#[derive(Debug, Serialize)]
pub struct About {
    /// The one word by which it is chosen (`-o scheme=`).
    pub name: &'static str,
    /// One line for people.
    pub title: &'static str,
    /// The paper or document that it follows.
    pub source: &'static str,
    /// The values that `data=` takes; the first is the default. Empty: the scheme has no modes.
    pub modes: &'static [DataMode],
    /// The scheme needs the journal area that mke2fs made inside the volume.
    pub needs_journal_area: bool,
    /// Whether the home medium may or must be byte-addressable
    /// ([`BlockDev::pmem`](stetfs_media::BlockDev::pmem)).
    pub in_memory: InMemory,
    /// The home medium must be able to remap ([`BlockDev::remap`](stetfs_media::BlockDev::remap)).
    pub needs_remap: bool,
    /// Whether the scheme has persistent memory beside the home medium.
    pub nvm: Beside,
    /// That memory is a cache of the blocks that were read or committed.
    pub caches: bool,
    /// Whether its log is JBD2's.
    pub jbd2: Jbd2Log,
    /// After a crash every transaction is there entirely or not at all.
    pub atomic: bool,
    /// The cost of writing, in a line: bytes and flushes of a commit of n blocks.
    pub cost: &'static str,
    /// The cases of its recovery: the scheme's own tables, and those of the parts of which it is
    /// made.
    #[serde(skip)]
    pub recovery: &'static [&'static [&'static RecoveryCase]],
    /// The scheme's own mount options.
    pub options: &'static [&'static OptionAbout],
}

/// Whether a scheme works on a byte-addressable home medium, which a power cut tears at words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InMemory {
    /// It needs a device that keeps sectors whole.
    Never,
    /// It works on both.
    Too,
    /// It works in memory only.
    Only,
}

/// Whether a scheme uses persistent memory beside the home medium. The number is the size of a new
/// region in bytes; the user may choose another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// It has no use for it.
    Never,
    /// It works with it and without.
    Too(u64),
    /// It works with it only.
    Only(u64),
}

impl Beside {
    /// Returns the size of a new region in bytes; `None`: the scheme has no use for one.
    pub const fn size(self) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::Too(size) | Self::Only(size) => Some(size),
        }
    }

    /// True when the scheme works only with it.
    pub const fn is_needed(self) -> bool {
        matches!(self, Self::Only(_))
    }
}

/// Whether a scheme's log is JBD2's: then the kernel and e2fsck replay it, and it replays theirs.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Jbd2Log {
    /// It never is.
    Never,
    /// It always is.
    Always,
    /// It is where this option has this value.
    With(&'static OptionAbout, &'static str),
}

impl About {
    /// The common description of most schemes: a private log in the journal area of a block device,
    /// and no memory beside it.
    pub const PLAIN: Self = Self {
        name: "",
        title: "",
        source: "",
        modes: &[],
        needs_journal_area: true,
        in_memory: InMemory::Never,
        needs_remap: false,
        nvm: Beside::Never,
        caches: false,
        jbd2: Jbd2Log::Never,
        atomic: true,
        cost: "",
        recovery: &[],
        options: &[],
    };

    /// True when its log is JBD2's with these options.
    pub fn is_jbd2(&self, options: &SchemeOptions) -> bool {
        match self.jbd2 {
            Jbd2Log::Never => false,
            Jbd2Log::Always => true,
            Jbd2Log::With(option, value) => options.value(option) == value,
        }
    }
}

/// A scheme's own mount option.
#[derive(Debug, Serialize)]
pub struct OptionAbout {
    /// Its name.
    pub name: &'static str,
    /// The values behind `=`. An option that takes `on|off` may stand alone and then means `on`.
    pub syntax: &'static str,
    /// The value when the option is not given.
    pub default: &'static str,
    /// Its effect, in a line.
    pub what: &'static str,
}

/// How file data is treated (ext4's `data=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataMode {
    /// Data goes through the journal like metadata.
    Journal,
    /// Data is written home before the transaction that refers to the data commits.
    #[default]
    Ordered,
    /// Data is written home in no order with the commit.
    Writeback,
}

impl DataMode {
    /// The word that `data=` takes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Ordered => "ordered",
            Self::Writeback => "writeback",
        }
    }
}

/// The mount's options for the scheme.
#[derive(Clone, Debug, Default)]
pub struct SchemeOptions {
    /// `data=`; `None` takes the scheme's default.
    pub data: Option<DataMode>,
    /// Options of the scheme's own ([`About::options`]) with their values; a later one overrides an
    /// earlier one.
    pub extra: Vec<(String, String)>,
}

impl SchemeOptions {
    /// Returns an error that names the mode or the first option that the scheme does not have.
    pub fn check_known(&self, about: &'static About) -> Result<()> {
        if let Some(mode) = self.data.filter(|mode| !about.modes.contains(mode)) {
            return Err(SchemeError::Option {
                scheme: about.name,
                why: format!("it has no mode data={}", mode.name()),
            });
        }
        let is_known = |name: &str| about.options.iter().any(|option| option.name == name);
        match self.extra.iter().find(|(name, _)| !is_known(name)) {
            None => Ok(()),
            Some((name, _)) => Err(SchemeError::Option {
                scheme: about.name,
                why: format!("it has no option \"{name}\""),
            }),
        }
    }

    /// Returns the value of an option, or its default.
    pub fn value<'a>(&'a self, option: &'a OptionAbout) -> &'a str {
        let given = self
            .extra
            .iter()
            .rev()
            .find(|(name, _)| *name == option.name);
        given.map_or(option.default, |(_, value)| value)
    }

    /// Returns the value of an option that is on or off.
    pub fn switch(&self, about: &'static About, option: &OptionAbout) -> Result<bool> {
        match self.value(option) {
            "on" => Ok(true),
            "off" => Ok(false),
            value => Err(SchemeError::Option {
                scheme: about.name,
                why: format!("{}={value}: on or off", option.name),
            }),
        }
    }

    /// Returns the value of an option that is a share: 1 to 100 percent.
    pub fn percent(&self, about: &'static About, option: &OptionAbout) -> Result<u64> {
        let number = self.value(option).parse().ok();
        let share = number.filter(|n| (1..=100).contains(n));
        share.ok_or_else(|| self.wrong(about, option))
    }

    /// Returns the error for a wrong value of an option. It shows the option's syntax.
    pub fn wrong(&self, about: &'static About, option: &OptionAbout) -> SchemeError {
        SchemeError::Option {
            scheme: about.name,
            why: format!("{}={}: {}", option.name, self.value(option), option.syntax),
        }
    }
}
