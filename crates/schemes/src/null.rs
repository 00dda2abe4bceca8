//! No journal: a commit writes blocks home in any order, and ends with one flush.
//!
//! Source: none. It is the lower bound of cost, and the scheme that the judges must catch: a power
//! cut during a commit leaves some blocks of a transaction new and others old, and may tear an
//! overwritten block.
//!
//! Recovery: none ([`LEFT`]).

use std::sync::Arc;

use stetfs_format::{BlockNo, BlockSize};
use stetfs_media::{BlockDev, Cause};

use crate::parts::home::{Write, write_home};
use stetfs_scheme::{
    About, DataPromise, Goal, Ground, Held, Mark, OpenArgs, Parts, RecoveryReport, Registration,
    Result, Scheme, Snapshot, Terms, Trial, recovery_cases,
};

recovery_cases! {
    LEFT:
    ANYTHING "anything"
        => "nothing", "it is not right: e2fsck must look at a volume that was not unmounted";
}

/// The scheme's row in the registry.
pub(crate) const ROW: Registration = Registration {
    about: &ABOUT,
    make: open,
    trials: &[Trial::new("null", "", Ground::Block)],
};

pub(crate) static ABOUT: About = About {
    name: "null",
    title: "no journal: the floor for cost, unsafe by design",
    source: "none",
    needs_journal_area: false,
    atomic: false,
    cost: "commit of n blocks: n blocks home, 1 flush",
    recovery: &[LEFT],
    ..About::PLAIN
};

struct Null {
    dev: Arc<dyn BlockDev>,
    block_size: BlockSize,
}

pub(crate) fn open(args: OpenArgs) -> Result<Parts> {
    args.options.check_known(&ABOUT)?;
    ANYTHING.reached();
    let null = Null {
        dev: args.dev,
        block_size: args.block_size,
    };
    let terms = Terms {
        promise: DataPromise::Nothing,
        mark: Mark::Unclean,
        logs_data: false,
        logs_marked: false,
        ..Terms::plain(u32::MAX / 2)
    };
    Ok((Box::new(null), terms, RecoveryReport::default()))
}

impl Scheme for Null {
    fn read(&self, _: BlockNo) -> Result<Held> {
        Ok(Held::Home)
    }

    fn holds_any(&self, _: BlockNo, _: u32) -> bool {
        false
    }

    fn commit(&self, txn: &Snapshot) -> Result<()> {
        let blocks = txn.data.iter().chain(&txn.meta);
        let writes = blocks.map(|b| Write {
            home: b.home,
            class: b.class,
            content: &b.content,
        });
        write_home(&*self.dev, self.block_size, Cause::Home, writes.collect())?;
        Ok(self.dev.flush(Cause::Home)?)
    }

    fn checkpoint(&self, _: Goal) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(self.dev.flush(Cause::Home)?)
    }
}
