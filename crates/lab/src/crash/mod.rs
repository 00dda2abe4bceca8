//! Power cuts: a workload on the simulated device, the power cut at every write, each state that the
//! device may be left in recovered and judged.
//!
//! - [`script`]: workloads, drawn at random or written down.
//! - [`record`]: one run of a workload: the tape, and the model's states between which a cut falls.
//! - [`judge`]: what may be found after a cut, and whether it was.
//! - [`explore`]: which cuts are tried, and the name of a case by which it is replayed.
//! - [`lies`]: a device without a barrier, which the judge must catch.
//!
//! The judge is not our code: e2fsck decides whether a volume is sound, the model what may be in it.

pub mod explore;
pub mod judge;
pub mod lies;
pub mod record;
pub mod script;
