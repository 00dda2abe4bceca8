//! The classic journal with every overwritten data block put somewhere else: a scheme for tests of
//! the relocation call.
//!
//! Source: none. In `ordered` mode it makes overwrites atomic, since the old block is untouched
//! until the switch of the mapping has committed.
//!
//! Recovery: that of `jbd2`.

use stetfs_format::BlockNo;

use crate::jbd2;
use stetfs_scheme::{
    About, Backlog, Beside, DataMode, DataPromise, DirtyBlock, Goal, Ground, Held, InMemory,
    Jbd2Log, OpenArgs, Parts, Placement, Registration, Relocates, Result, Scheme, Snapshot, Trial,
};

/// Its row in the registry.
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
    needs_journal_area: true,
    in_memory: InMemory::Never,
    needs_remap: false,
    nvm: Beside::Never,
    caches: false,
    jbd2: Jbd2Log::Always,
    atomic: true,
    cost: "as jbd2, and a mapping block for each run of overwritten blocks",
    recovery: &[jbd2::LEFT],
    options: jbd2::ABOUT.options,
};

struct RelocateAll(Box<dyn Scheme>);

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    let (jbd2, mut terms, report) = jbd2::open(args)?;
    terms.promise = DataPromise::Atomic;
    terms.wants.base = true;
    terms.relocates = Relocates::Freely;
    Ok((Box::new(RelocateAll(jbd2)), terms, report))
}

impl Scheme for RelocateAll {
    fn read(&self, block: BlockNo) -> Result<Held> {
        self.0.read(block)
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.0.holds_any(start, count)
    }

    fn place(&self, _: &DirtyBlock<'_>) -> Placement {
        Placement::Relocate
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        self.0.commit(txn)
    }

    fn backlog(&self) -> Backlog {
        self.0.backlog()
    }

    fn checkpoint(&self, goal: Goal) -> Result<()> {
        self.0.checkpoint(goal)
    }

    fn close(&self) -> Result<()> {
        self.0.close()
    }
}
