//! Who goes on when several are at work: decided by a test where there is one, so that it happens again in the same order.

use std::fmt;

/// How far a commit has come. The committer holds none of the journal's locks then, and the next transaction may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// The next transaction runs.
    Switched,
    /// The commit before is done: the scheme is about to begin.
    Begun,
    /// The scheme has made it durable; its pages are not clean yet.
    Durable,
    /// Its pages are clean; nobody was told yet.
    Clean,
}

/// A scheduler. Without one threads go on as they do.
pub trait Schedule: fmt::Debug + Send + Sync {
    /// A handle is about to join: whether what was done before it is committed first.
    fn commits_first(&self) -> bool;

    /// The caller commits and has come so far.
    fn pass(&self, point: Point);

    /// The caller can only go on when somebody else has: called until that is so.
    fn wait(&self);
}
