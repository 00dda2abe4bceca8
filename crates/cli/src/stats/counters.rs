//! The counters of a server, as its JSON has them.

use serde::Deserialize;
use serde_json::{Map, Value};
use stetfs_media::MeterSnapshot;

/// The counters that are shown in a form of their own, and the others.
#[derive(Debug, Deserialize)]
pub(super) struct Counters {
    pub(super) scheme: String,
    #[serde(default)]
    pub(super) medium: String,
    /// Bytes that callers wrote and read.
    #[serde(default)]
    pub(super) bytes_written: u64,
    #[serde(default)]
    pub(super) bytes_read: u64,
    /// Traffic of the device.
    #[serde(default)]
    pub(super) device: MeterSnapshot,
    /// Traffic of the memory beside it, if there is some.
    pub(super) nvm: Option<Nvm>,
    /// The scheme's cache in that memory.
    pub(super) cache: Option<Cache>,
    /// The scheme's choices for blocks.
    #[serde(default)]
    pub(super) actions: Vec<Action>,
    #[serde(default)]
    pub(super) journal: Map<String, Value>,
    #[serde(default)]
    pub(super) server: Map<String, Value>,
    #[serde(flatten)]
    pub(super) volume: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Action {
    pub(super) name: String,
    pub(super) taken: u64,
    pub(super) bytes_by_each: Vec<(String, u64)>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Nvm {
    pub(super) medium: String,
    pub(super) traffic: MeterSnapshot,
}

#[derive(Debug, Deserialize)]
pub(super) struct Cache {
    pub(super) blocks: u64,
    pub(super) cached: u64,
    pub(super) dirty: u64,
    pub(super) hits: u64,
    pub(super) dirty_hits: u64,
    pub(super) misses: u64,
    pub(super) evictions: u64,
    pub(super) written_home: u64,
    pub(super) cow_copies: u64,
}
