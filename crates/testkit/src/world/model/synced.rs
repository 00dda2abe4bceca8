//! What an operation makes durable.

use super::{Id, Model};
use crate::world::{Outcome, Reply};

/// Whose data is durable once the last operation has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// No file's.
    Nothing,
    /// The data of one file.
    File(Id),
    /// The data of all files.
    All,
}

/// The step for which an operation vouches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Vouched {
    pub(super) whole: usize,
    /// The step for everything but data, where data does not change with its transaction.
    pub(super) apart: usize,
}

impl Vouched {
    pub(super) fn all(step: usize) -> Self {
        let (whole, apart) = (step, step);
        Self { whole, apart }
    }
}

impl Model {
    /// Returns the newest step for which the last operation vouches once it has returned; 0 if it
    /// is no sync. A crash may leave any state from that step on. `data_apart`: data does not
    /// change with its transaction; the step then covers everything but data, and
    /// [`synced`](Self::synced) covers the data.
    pub fn vouched(&self, data_apart: bool) -> usize {
        if data_apart {
            self.vouched.apart
        } else {
            self.vouched.whole
        }
    }

    /// Returns whose data is durable once the last operation has returned, where the step for which
    /// it vouches does not cover data.
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
