//! Power cuts: a workload on simulated media, the power cut at every moment, the states that the
//! media may be left in recovered and judged. `stetfs crash` is this crate with a command line.
//!
//! - [`target`]: what is judged: a scheme of the registry, in a mode, on a volume.
//! - [`workload`], [`workloads`]: what is done, as text, enumerated, written down or random.
//! - [`media`]: the media of a run; [`moment`]: their tapes and the moments of a power cut;
//!   [`watch`]: what is read from them; [`flash`]: volumes on a NAND part.
//! - [`turns`]: in which order it is done, and who goes on when several are at work.
//! - [`record`]: one run: the tapes, and the model's states between which a cut falls.
//! - [`states`]: which of the states at a moment are looked at; [`guide`]: those that are chosen by
//!   what recoveries read; [`fold`]: which need no recovery of their own.
//! - [`subject`]: recovers a state, looks at it, checks it, writes to it.
//! - [`oracle`]: what may be found after a cut, by the model and the scheme's promise.
//! - [`explore`]: all of that for one workload; [`campaign`]: for many, on several threads, within
//!   a budget.
//! - [`case`]: the name of a case by which it is replayed; [`minimize`]: the smallest workload that
//!   still fails.
//! - [`report`]: what was found, as numbers and cases.
//! - [`caught`]: panics of the code under test, as values.
//! - [`lies`]: a device without a barrier, which the judges must catch.
//!
//! - [`exploration`]: explorations with what was asked of them, in shards, added up, resumed;
//!   [`explored`]: the rows of results/explored.md; [`damage`]: media with wrong bits.
//!
//! The judges are not the code under test: the model decides what may be in a volume, e2fsck and a
//! checker of its own (`stetfs-check`) whether it is sound, and those two must agree.

#![forbid(unsafe_code)]

pub mod campaign;
pub mod case;
pub mod caught;
pub mod damage;
pub mod exploration;
pub mod explore;
pub mod explored;
pub mod flash;
pub mod fold;
pub mod guide;
mod handing;
pub mod lies;
pub mod media;
pub mod minimize;
pub mod moment;
pub mod oracle;
pub mod record;
pub mod report;
pub mod sharing;
pub mod states;
pub mod subject;
pub mod target;
pub mod trace;
pub mod turns;
pub mod watch;
pub mod workload;
pub mod workloads;
