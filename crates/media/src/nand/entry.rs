//! One change of a part.

use std::fmt;
use std::sync::Arc;

use stetfs_format::num::{BlockAddr, PageNo};

use crate::tag::{Cause, Tag};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NandEntry {
    /// A page was programmed.
    Program {
        /// The page.
        page: PageNo,
        /// Its data.
        data: Arc<[u8]>,
        /// Its spare area.
        spare: Arc<[u8]>,
        /// What the page is and why it was programmed.
        tag: Tag,
        /// Whether the program failed.
        failed: bool,
    },
    /// A block was erased.
    Erase {
        /// The block.
        block: BlockAddr,
        /// Why.
        cause: Cause,
        /// Whether the erase failed.
        failed: bool,
    },
    /// A block was marked bad.
    MarkBad {
        /// The block.
        block: BlockAddr,
        /// Why.
        cause: Cause,
    },
    /// The one read of a page that could be read once
    /// ([`Outcome::Marginal`](super::Outcome::Marginal)).
    Fade {
        /// The page.
        page: PageNo,
    },
}

/// Formats as a line of a trace: `program 7 data/log`.
impl fmt::Display for NandEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = |failed: &bool| if *failed { " failed" } else { "" };
        match self {
            Self::Program {
                page,
                tag,
                failed: f1,
                ..
            } => write!(f, "program {page} {tag}{}", failed(f1)),
            Self::Erase {
                block,
                cause,
                failed: f1,
            } => write!(f, "erase {block} {cause}{}", failed(f1)),
            Self::MarkBad { block, cause } => write!(f, "mark_bad {block} {cause}"),
            Self::Fade { page } => write!(f, "fade {page}"),
        }
    }
}
