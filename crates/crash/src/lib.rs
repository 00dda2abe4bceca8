//! Explores power cuts: it runs a workload on simulated media, cuts the power at every moment, and
//! recovers and judges the states that the media may then be left in. `stetfs crash` is this crate
//! with a command line.
//!
//! What is run:
//! - [`target`]: a scheme of the registry, in a mode, on a volume; [`lower`]: a scheme below the
//!   journal of that one.
//! - [`workload`], [`workloads`]: the operations, as text, enumerated, written down or random.
//! - [`media`]: the media of a run; [`moment`]: their tapes and the moments of a power cut;
//!   [`watch`]: the bytes that are read from them; [`flash`]: volumes on a NAND part.
//! - [`turns`]: the order of the operations, and which thread runs when there are several.
//! - [`record`]: one run: the tapes, and the model's states between which a cut falls.
//!
//! What is looked at, and judged:
//! - [`states`]: which states of a moment are looked at; [`guide`]: those that are chosen by what
//!   recoveries read; [`fold`]: those that need no recovery of their own.
//! - [`subject`]: recovers a state, reads it, checks it, writes to it; [`second`]: what e2fsck says
//!   of it.
//! - [`oracle`]: the contents that are allowed after a cut, by the model and the scheme's promise.
//! - [`explore`]: all of this for one workload; [`campaign`]: for many, on several threads, within
//!   a budget.
//!
//! What is found:
//! - [`case`]: a failure's name, which replays it; [`minimize`]: the smallest workload that still
//!   fails.
//! - [`report`]: numbers and cases.
//! - [`exploration`]: explorations with their request: shards, their sum, resuming; [`explored`]:
//!   the rows of results/explored.md.
//! - [`caught`]: panics of the code under test, as values.
//! - [`lies`]: a device that ignores flushes, which the judges must catch; [`damage`]: media with
//!   wrong bits.
//!
//! The judges are independent of the code under test. The model decides what a volume may hold.
//! e2fsck and our own checker (`stetfs-check`) decide whether its structure is sound, and these two
//! must agree.

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
pub mod lower;
pub mod media;
pub mod minimize;
pub mod moment;
pub mod oracle;
pub mod record;
pub mod report;
pub mod second;
pub mod sharing;
pub mod states;
pub mod subject;
pub mod target;
pub mod trace;
pub mod turns;
pub mod watch;
pub mod workload;
pub mod workloads;
