//! What an operation makes durable.

use super::{Id, Model};
use crate::world::{Outcome, Reply};

/// Whose data the last operation has made durable when it has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// Nobody's.
    Nothing,
    /// Of one file.
    File(Id),
    /// Everybody's.
    All,
}

/// The step that an operation vouches for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Vouched {
    pub(super) whole: usize,
    /// Where data does not change with its transaction: of all but data.
    pub(super) apart: usize,
}

impl Vouched {
    pub(super) fn all(step: usize) -> Self {
        let (whole, apart) = (step, step);
        Self { whole, apart }
    }
}

impl Model {
    /// The newest step that the last operation vouches for, when it has returned: every state from
    /// there on is one that a crash may leave. 0: it is no sync. With `data_apart`, where data does
    /// not change with its transaction, all but [its](Self::synced) data is meant.
    pub fn vouched(&self, data_apart: bool) -> usize {
        if data_apart {
            self.vouched.apart
        } else {
            self.vouched.whole
        }
    }

    /// Whose data is durable when the last operation has returned, where that is not so for all
    /// data of the states that it vouches for.
    pub fn synced(&self) -> Synced {
        self.synced
    }

    pub(super) fn fsync(&mut self, slot: u8) -> Outcome {
        let id = self.slot(slot)?;
        let node = self.node(id);
        self.vouched = Vouched {
            whole: node.changed,
            apart: node.stored,
        };
        self.synced = Synced::File(id);
        Ok(Reply::Done)
    }

    pub(super) fn fdatasync(&mut self, slot: u8) -> Outcome {
        let id = self.slot(slot)?;
        let node = self.node(id);
        self.vouched = Vouched {
            whole: node.written,
            apart: node.mapped,
        };
        self.synced = Synced::File(id);
        Ok(Reply::Done)
    }

    pub(super) fn fsync_dir(&mut self, path: &str) -> Outcome {
        let id = self.followed(path)?;
        self.names(id)?;
        self.vouched = Vouched::all(self.node(id).changed);
        Ok(Reply::Done)
    }
}
