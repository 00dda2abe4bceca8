//! The engines: the steps of a commit and of a checkpoint, in the same order for all logs and for
//! all caches. Each scheme fills in its own part of each step.

pub(crate) mod cache;
pub(crate) mod log;
