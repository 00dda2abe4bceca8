//! What schemes that are alike have in common: the steps of a commit and of a checkpoint, in the
//! same order for all, around what each of them adds.

pub(crate) mod cache;
pub(crate) mod log;
