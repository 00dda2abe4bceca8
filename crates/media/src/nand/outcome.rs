//! What a power cut can make of the request under way: the list that an explorer goes through.
//!
//! | in flight | outcome | afterwards |
//! |---|---|---|
//! | any | `not_started` | as before |
//! | any | `complete` | as after the request, although nobody was told |
//! | program | `faint` | the page reads as erased, but must not be programmed |
//! | | `torn` | the page cannot be read |
//! | | `miscorrected` | data, spare area or both read without an error as something else |
//! | | `marginal` | the page can be read once, with the most corrected bits possible, and is torn then |
//! | erase | `half_old` | the pages are as before, but the block has to be erased before it is programmed, as after each of the following |
//! | | `half_erased` | all pages read as erased |
//! | | `half_torn` | no page that was programmed can be read |
//! | | `half_mixed:SEED` | each page at random one of these, or miscorrected |
//! Real parts show all of these outcomes: Tseng, Grupp, Swanson: "Understanding the Impact of Power
//! Loss on Flash Memory", DAC 2011; for pages that can be read once, "unstable bits" in the UBIFS
//! documentation of the Linux MTD project.

use std::fmt;
use std::str::FromStr;

use stetfs_format::nand::PageState;

use super::cells::{Cells, EraseEnd, HalfErase, ProgramEnd, Store};
use super::entry::NandEntry;
use super::error::NandError;

/// The fate of the request in flight. It prints as one word and parses from it, so a failure can
/// name its state. The table at the top of `outcome.rs` explains the outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// As before the request.
    NotStarted,
    /// As after the request.
    Complete,
    /// A page that reads as erased and is not.
    Faint,
    /// A page that cannot be read.
    Torn,
    /// A page that reads without an error as something else.
    Miscorrected,
    /// A page that can be read once.
    Marginal,
    /// A block whose pages are unchanged, but that has to be erased.
    HalfOld,
    /// A block that reads as erased and has to be erased.
    HalfErased,
    /// A block whose programmed pages cannot be read.
    HalfTorn,
    /// A block whose pages are each in one of these states, by this seed.
    HalfMixed(u64),
}

impl Outcome {
    /// Returns all outcomes of a request; two examples of [`HalfMixed`](Self::HalfMixed).
    pub fn all_of(in_flight: &NandEntry) -> &'static [Self] {
        match in_flight {
            NandEntry::Program { .. } => &[
                Self::NotStarted,
                Self::Faint,
                Self::Torn,
                Self::Miscorrected,
                Self::Marginal,
                Self::Complete,
            ],
            NandEntry::Erase { .. } => &[
                Self::NotStarted,
                Self::HalfOld,
                Self::HalfTorn,
                Self::HalfErased,
                Self::HalfMixed(0),
                Self::HalfMixed(1),
                Self::Complete,
            ],
            NandEntry::MarkBad { .. } | NandEntry::Fade { .. } => {
                &[Self::NotStarted, Self::Complete]
            }
        }
    }

    fn page(self) -> Option<PageState> {
        match self {
            Self::Faint => Some(PageState::Faint),
            Self::Torn => Some(PageState::Torn),
            Self::Miscorrected => Some(PageState::Miscorrected),
            Self::Marginal => Some(PageState::Marginal),
            _ => None,
        }
    }

    fn block(self) -> Option<HalfErase> {
        match self {
            Self::HalfOld => Some(HalfErase::All(None)),
            Self::HalfErased => Some(HalfErase::All(Some(PageState::Erased))),
            Self::HalfTorn => Some(HalfErase::All(Some(PageState::Torn))),
            Self::HalfMixed(seed) => Some(HalfErase::Mixed(seed)),
            _ => None,
        }
    }
}

impl<S: Store> Cells<S> {
    /// Carries out a change.
    pub(super) fn carry_out(&mut self, change: &NandEntry) -> Result<(), NandError> {
        match change {
            NandEntry::Program {
                page,
                data,
                spare,
                failed,
                ..
            } => {
                let end = if *failed {
                    ProgramEnd::Failed
                } else {
                    ProgramEnd::Left(PageState::Programmed)
                };
                self.program(*page, data, spare, end)
            }
            NandEntry::Erase { block, failed, .. } => {
                let end = if *failed {
                    EraseEnd::Failed
                } else {
                    EraseEnd::Done
                };
                self.erase(*block, end)
            }
            NandEntry::MarkBad { block, .. } => self.mark_bad(*block),
            NandEntry::Fade { page } => self.fade(*page),
        }
    }

    /// Carries out as much of a change as `outcome` says. Panics if the change has no such outcome.
    pub(super) fn cut_short(
        &mut self,
        change: &NandEntry,
        outcome: Outcome,
    ) -> Result<(), NandError> {
        match (change, outcome, outcome.page(), outcome.block()) {
            (_, Outcome::NotStarted, ..) => Ok(()),
            (_, Outcome::Complete, ..) => self.carry_out(change),
            (
                NandEntry::Program {
                    page, data, spare, ..
                },
                _,
                Some(state),
                _,
            ) => self.program(*page, data, spare, ProgramEnd::Left(state)),
            (NandEntry::Erase { block, .. }, _, _, Some(half)) => {
                self.erase(*block, EraseEnd::Half(half))
            }
            _ => panic!("{outcome} cannot become of \"{change}\""),
        }
    }
}

/// The names of the outcomes that have no seed.
const NAMES: [(&str, Outcome); 9] = [
    ("not_started", Outcome::NotStarted),
    ("complete", Outcome::Complete),
    ("faint", Outcome::Faint),
    ("torn", Outcome::Torn),
    ("miscorrected", Outcome::Miscorrected),
    ("marginal", Outcome::Marginal),
    ("half_old", Outcome::HalfOld),
    ("half_erased", Outcome::HalfErased),
    ("half_torn", Outcome::HalfTorn),
];

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::HalfMixed(seed) = self {
            return write!(f, "half_mixed:{seed}");
        }
        let name = NAMES.iter().find(|(_, outcome)| outcome == self);
        f.pad(name.map_or("", |(name, _)| name))
    }
}

/// The error for a text that is no [`Outcome`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is none of not_started, complete, faint, torn, miscorrected, marginal, half_old, \
        half_erased, half_torn, \
     half_mixed:SEED"
)]
pub struct OutcomeSyntax(String);

impl FromStr for Outcome {
    type Err = OutcomeSyntax;

    fn from_str(text: &str) -> Result<Self, OutcomeSyntax> {
        let wrong = || OutcomeSyntax(text.to_owned());
        if let Some(seed) = text.strip_prefix("half_mixed:") {
            return seed.parse().map(Self::HalfMixed).map_err(|_| wrong());
        }
        let name = NAMES.iter().find(|(name, _)| *name == text);
        name.map(|(_, outcome)| *outcome).ok_or_else(wrong)
    }
}
