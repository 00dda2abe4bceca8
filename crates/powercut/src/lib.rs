//! What a power cut does to a program: any program, recorded unchanged, and judged by a check of
//! its user's. `stetfs crash -- PROGRAM` is this crate with a command line.
//!
//! 1. [`recorder`]: the program runs on a mounted volume ([`mounted`], [`run`]) that remembers its
//!    calls ([`call`]) and its promises ([`marks`]). Processes that it has not started ([`family`])
//!    do not get past the [`guard`].
//! 2. [`model`]: what a file system keeps of an order of calls, as rules; they make a recording a
//!    list of effects ([`effect`]) that persist or are lost.
//! 3. [`states`]: which states a power cut at each moment leaves; [`tree`], [`content`]: what is in
//!    them, as values.
//!    Or [`player`], [`scheme`], [`blocks`]: what a scheme of ours recovers on simulated media.
//! 4. [`judge`]: each different state is written to a volume, shown to the check on one mount
//!    ([`stage`]), and thrown away.
//! 5. [`explore`], [`finding`]: failures are made small, told in the program's words, and counted
//!    once for each cause; [`remedy`] looks for the syncs that would help; [`report`] is what is
//!    left of all that, and adds up; [`resume`] is what a later run goes on from.
//!
//! Data flows down this list. No file system but `stetfs` itself is under the mount, and what a
//! model leaves is written to one that is as new.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod call;
pub mod content;
pub mod effect;
pub mod explore;
pub mod family;
pub mod finding;
pub mod guard;
pub mod judge;
pub mod marks;
pub mod model;
pub mod mounted;
pub mod numbers;
pub mod player;
pub mod record;
pub mod recorder;
pub mod remedy;
pub mod report;
pub mod resume;
pub mod run;
pub mod scheme;
pub mod stage;
pub mod states;
pub mod tree;
