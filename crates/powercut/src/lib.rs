//! Explores power cuts of a program: any program, recorded unchanged, and judged by its user's
//! check. `stetfs crash -- PROGRAM` is this crate with a command line.
//!
//! 1. [`recorder`]: the program runs on a mounted volume ([`mounted`], [`run`]) that records its
//!    calls ([`call`]) and its promises ([`marks`]). The [`guard`] keeps out processes that the
//!    program has not started ([`family`]).
//! 2. [`model`]: rules for what a file system keeps of the order of calls. By these rules a
//!    recording becomes a list of effects ([`effect`]) that persist or are lost.
//! 3. [`states`]: the states that a power cut leaves at each moment; [`tree`], [`content`]: their
//!    files, as values. Or [`system`], [`blocks`]: what a file system that runs recovers on
//!    simulated media: one of our schemes ([`scheme`], [`player`]), or the kernel's ext4
//!    ([`kernel`]). [`under`]: the name of any of these.
//! 4. [`judge`]: writes each different state to a volume, shows it to the check on one mount
//!    ([`stage`]), and throws it away. [`shown`]: what the run shows without a power cut, which
//!    judges where there is no check.
//! 5. [`explore`], [`finding`]: make failures small, describe them in the program's words, and
//!    count them once for each cause. [`remedy`] looks for the syncs that would help. [`report`]
//!    has the result, and adds shards up. [`resume`] keeps what a later run goes on from.
//!
//! [`testing`] is all of this for a test in Rust, [`fresh`] the empty volumes.
//!
//! Data flows down this list. Under the mount there is only `stetfs` itself, and each state is
//! written to a fresh volume.

#![forbid(unsafe_code)]

pub mod blocks;
pub mod call;
pub mod content;
pub mod effect;
pub mod explore;
pub mod family;
pub mod finding;
pub mod fresh;
pub mod guard;
pub mod judge;
pub mod kernel;
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
pub mod shown;
pub mod stage;
pub mod states;
pub mod system;
pub mod testing;
pub mod tree;
pub mod under;
