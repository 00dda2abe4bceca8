//! jbd2, but every overwritten data block gets another home: a scheme for tests of the relocation
//! call.
//!
//! Source: none. In `ordered` mode overwrites are atomic, because the old block is untouched until
//! the switch of the mapping has committed.
//!
//! Recovery: that of `jbd2`.

use crate::jbd2::{self, Ways};
use stetfs_scheme::{
    About, DataMode, DataPromise, DirtyBlock, Ground, Jbd2Log, OpenArgs, Parts, Placement,
    Registration, Relocates, Result, Trial,
};

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[
        Trial::setting(
            "relocate-all-ordered",
            "data=ordered,journal_async_commit",
            Ground::Block,
        ),
        Trial::setting(
            "relocate-all-journal",
            "data=journal,fill=20",
            Ground::Block,
        ),
    ],
};

pub(crate) static ABOUT: About = About {
    name: "relocate-all",
    title: "jbd2 with every overwritten block relocated (for tests)",
    source: "none",
    modes: &[DataMode::Ordered, DataMode::Journal],
    jbd2: Jbd2Log::Always,
    cost: "as jbd2, and a mapping block for each run of overwritten blocks",
    recovery: &[jbd2::LEFT],
    options: jbd2::ABOUT.options,
    ..About::PLAIN
};

struct Elsewhere;

impl Ways for Elsewhere {
    fn relocates(&self) -> Relocates {
        Relocates::Freely
    }

    fn place(&self, _: &DirtyBlock<'_>) -> Placement {
        Placement::Relocate
    }
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    let (scheme, mut terms, report) = jbd2::open_as(&ABOUT, args, Box::new(Elsewhere))?;
    terms.promise = DataPromise::Atomic;
    terms.wants.base = true;
    Ok((scheme, terms, report))
}
