//! What media did, at a moment of a run and in a mount.

use serde::Serialize;
use stetfs::{MountReport, Stats};
use stetfs_media::MeterSnapshot;

use super::deltas::DeltaCount;

/// What a mount did, and what that cost. The device was already open.
#[derive(Clone, Debug, Serialize)]
pub struct MountCost {
    /// What the mount found.
    pub report: MountReport,
    /// Virtual time.
    pub virtual_ns: u64,
    /// What the medium did.
    pub device: MeterSnapshot,
}

/// What a medium did, and the memory beside it, if any.
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

/// All counters at a moment of a run.
pub(super) struct Reading {
    pub(super) now_ns: u64,
    pub(super) account: Account,
    pub(super) stats: Stats,
    pub(super) deltas: Option<DeltaCount>,
}
