//! Who goes on when several are at work: decided by a test where there is one, so that it happens again in the same order.

use std::fmt;

/// A scheduler. Without one threads go on as they do.
pub trait Schedule: fmt::Debug + Send + Sync {
    /// A handle is about to join: whether what was done before it is committed first.
    fn commits_first(&self) -> bool;

    /// The caller commits and holds none of the journal's locks, and the next transaction may run.
    fn pass(&self);

    /// The caller can only go on when somebody else has: called until that is so.
    fn wait(&self);
}
