//! Which pieces of the pending changes a power cut keeps: a rule that can be printed and parsed.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use stetfs_format::width::usize_as_u64;

/// A rule that says which pieces of a [`CrashPoint`](crate::sim::CrashPoint) are there after the
/// cut, by their indices. It prints as one or two words and parses from them, so a failure can name
/// its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Everything: the device wrote its whole cache in time.
    All,
    /// Nothing: the device had not begun.
    None,
    /// The first ones, this many, in the order of the writes.
    First(usize),
    /// These alone.
    Only(BTreeSet<usize>),
    /// All but these.
    Without(BTreeSet<usize>),
    /// Each at random. The seed also determines the share that is kept, from 1/16 to 15/16.
    Random(u64),
}

impl Keep {
    /// Whether the piece with this index is there.
    pub fn keeps(&self, index: usize) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::First(n) => index < *n,
            Self::Only(those) => those.contains(&index),
            Self::Without(those) => !those.contains(&index),
            Self::Random(seed) => {
                let share = scramble(*seed) % 15 + 1;
                scramble(scramble(*seed) ^ usize_as_u64(index)) >> 60 < share
            }
        }
    }
}

/// A fixed permutation of 64 bits in which every input bit changes half of the output bits: the
/// finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |those: &BTreeSet<usize>| {
            those
                .iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(",")
        };
        match self {
            Self::All => f.write_str("all"),
            Self::None => f.write_str("none"),
            Self::First(n) => write!(f, "first:{n}"),
            Self::Only(those) => write!(f, "only:{}", list(those)),
            Self::Without(those) => write!(f, "without:{}", list(those)),
            Self::Random(seed) => write!(f, "random:{seed}"),
        }
    }
}

/// The error for a text that is no [`Keep`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is none of all, none, first:N, only:N,N..., without:N,N..., random:SEED")]
pub struct KeepSyntax(String);

impl FromStr for Keep {
    type Err = KeepSyntax;

    fn from_str(text: &str) -> Result<Self, KeepSyntax> {
        let wrong = || KeepSyntax(text.to_owned());
        let list = |those: &str| -> Result<BTreeSet<usize>, KeepSyntax> {
            those
                .split(',')
                .filter(|n| !n.is_empty())
                .map(|n| n.parse().map_err(|_| wrong()))
                .collect()
        };
        match text.split_once(':').unwrap_or((text, "")) {
            ("all", "") => Ok(Self::All),
            ("none", "") => Ok(Self::None),
            ("first", n) => n.parse().map(Self::First).map_err(|_| wrong()),
            ("only", those) => list(those).map(Self::Only),
            ("without", those) => list(those).map(Self::Without),
            ("random", seed) => seed.parse().map(Self::Random).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}
