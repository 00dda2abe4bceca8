//! The classic journal with every overwritten data block put somewhere else: a scheme for tests of
//! the relocation call.
//!
//! Source: none. In `ordered` mode it makes overwrites atomic, since the old block is untouched
//! until the switch of the mapping has committed.
//!
//! Recovery: that of `jbd2`.

use stetfs_format::BlockNo;

use crate::error::Result;
use crate::scheme::{
    About, DataMode, DataPromise, DirtyBlock, Goal, Held, Mark, OpenArgs, Placement,
    RecoveryReport, Scheme, Snapshot,
};
use crate::schemes::jbd2;

pub(crate) static ABOUT: About = About {
    name: "relocate-all",
    title: "jbd2 with every overwritten block relocated (for tests)",
    source: "none",
    modes: &[DataMode::Ordered, DataMode::Journal],
    needs_journal_area: true,
    needs_pmem: false,
    needs_remap: false,
    nvm: None,
    caches: false,
    is_buffer_cache: false,
    mark: Mark::NeedsRecovery,
    atomic: true,
    wants_base: true,
    relocates: true,
    cost: "as jbd2, and a mapping block for each run of overwritten blocks",
    options: jbd2::ABOUT.options,
};

struct RelocateAll(Box<dyn Scheme>);

pub(crate) fn open(args: OpenArgs) -> Result<(Box<dyn Scheme>, RecoveryReport)> {
    let (jbd2, report) = jbd2::open(args)?;
    Ok((Box::new(RelocateAll(jbd2)), report))
}

impl Scheme for RelocateAll {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn data_promise(&self) -> DataPromise {
        DataPromise::Atomic
    }

    fn max_transaction(&self) -> u32 {
        self.0.max_transaction()
    }

    fn logs_data(&self) -> bool {
        self.0.logs_data()
    }

    fn read(&self, block: BlockNo) -> Result<Held> {
        self.0.read(block)
    }

    fn holds_any(&self, start: BlockNo, count: u32) -> bool {
        self.0.holds_any(start, count)
    }

    fn placement(&self, _: &DirtyBlock<'_>) -> Placement {
        Placement::Relocate
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        self.0.commit(txn)
    }

    fn wants_checkpoint(&self) -> bool {
        self.0.wants_checkpoint()
    }

    fn checkpoint(&self, goal: Goal) -> Result<()> {
        self.0.checkpoint(goal)
    }

    fn close(&self) -> Result<()> {
        self.0.close()
    }
}
