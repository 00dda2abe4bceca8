//! The engines: the steps of a commit and of a checkpoint, in the same order for all logs and for
//! all caches. Each scheme adds to the steps what its paper adds.

pub(crate) mod cache;
pub(crate) mod log;
