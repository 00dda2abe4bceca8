//! What media did, at a moment of a run and in a mount.

use serde::Serialize;
use stetfs::{MountReport, Stats};
use stetfs_media::MeterSnapshot;

use super::deltas::DeltaCount;

/// What a mount did, and what that cost. The device was open already.
#[derive(Clone, Debug, Serialize)]
pub struct MountCost {
    /// What was found.
    pub report: MountReport,
    /// Virtual time.
    pub virtual_ns: u64,
    /// What the medium did.
    pub device: MeterSnapshot,
}

/// What a medium, and the memory beside it where there is such, did.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The medium.
    pub device: MeterSnapshot,
    /// The memory beside it.
    pub nvm: MeterSnapshot,
}

impl Account {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            device: self.device.clone() - &before.device,
            nvm: self.nvm.clone() - &before.nvm,
        }
    }
}

/// What everything shows at a moment of a run.
pub(super) struct Reading {
    pub(super) now_ns: u64,
    pub(super) account: Account,
    pub(super) stats: Stats,
    pub(super) deltas: Option<DeltaCount>,
}
