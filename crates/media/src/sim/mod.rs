//! Simulated media whose power can be cut and whose requests can fail.
//!
//! A medium holds two contents: the *newest*, which reads return, and the *stable* one, which a
//! power cut certainly leaves. Between them are the pending changes, in the order in which they
//! were made. Each medium has its own rule for what settles them: a flush on a block device
//! ([`SimDev`]), a flush of lines and a fence in persistent memory ([`SimPmem`]). A power cut keeps
//! some pieces of the pending changes and loses the others ([`CrashPoint`]); later ones lie over
//! earlier ones. A piece is an atomic unit of a block device or a word of persistent memory.
//!
//! - The [`Tape`] records every change. The state at every earlier moment can be built from it.
//! - Several media can share one supply ([`Power`]): their changes have one order, and a cut hits
//!   all of them at one moment ([`joint_crash_points`]). Each then loses pieces independently.
//! - Requests fail as planned ([`Fault`]) and the power goes off as planned ([`Power::cut_at`]).
//! - Each request lets time pass on the clock of its machine ([`Timing`], [`PmemTiming`]).
//! - Requests that no caller may make panic: they are mistakes of ours.
//! - One lock orders everything; with one caller the same calls give the same tape.
//!
//! `dev.rs` and `pmem.rs` are the two kinds of media, `medium.rs` is their common part, and
//! `power.rs` is what media of one machine share. `pending.rs` holds the rules of what survives on
//! a block device, `lines.rs` those of persistent memory. `tape.rs` is the record, `crash.rs` the
//! states after a cut, `keep.rs` the choice among them, `crash_image.rs` the device on such a
//! state. `fault.rs` is the plan of errors, and `timing.rs` tells how long block devices take.

mod crash;
mod crash_image;
mod dev;
mod entry;
mod fault;
mod keep;
mod lines;
mod medium;
mod options;
mod pending;
mod pmem;
mod power;
mod saboteur;
mod tape;
mod timing;
mod volatile;

#[cfg(test)]
mod model_test;
#[cfg(test)]
mod pmem_model_test;
#[cfg(test)]
mod power_test;
#[cfg(test)]
mod timing_test;

pub use crash::{CrashPoint, Piece};
pub use crash_image::CrashImage;
pub use dev::SimDev;
pub use entry::Entry;
pub use fault::{Failure, Fault};
pub use keep::{Keep, KeepSyntax};
pub use options::SimOptions;
pub use pmem::{PmemTiming, SimPmem, SimPmemOptions};
pub use power::{Power, Rig};
pub use tape::{CrashPoints, JointCrashPoints, Tape, joint_crash_points};
pub use timing::Timing;

pub(crate) use fault::{FaultPlan, plans_errors};
pub(crate) use keep::scramble;
pub(crate) use power::{NextChange, Supply};
