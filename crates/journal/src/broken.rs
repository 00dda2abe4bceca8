//! Operations that do not come to their end: what this thread has half done, and why it stays so.

use std::cell::Cell;

thread_local! {
    /// Open handles of this thread that have changed something.
    static HALF_DONE: Cell<u32> = const { Cell::new(0) };

    /// Why this thread's operation is not coming to its end.
    static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
}

/// Why an operation did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broken {
    /// It met damage. What it has changed already becomes durable all the same when the volume
    /// [goes on](crate::Journal::go_on).
    ByDamage,
    /// Something could not be read or written.
    ByFailure,
}

/// An operation of this thread meets an error that it cannot get over. If it has changed something
/// already, nothing of that must become durable by somebody else's commit: closing its handle stops
/// the journal.
pub fn note_broken(why: Broken) {
    if is_half_done() {
        BROKEN.set(BROKEN.get().max(Some(why)));
    }
}

/// Whether an operation of this thread has changed something and not come to its end.
pub(crate) fn is_half_done() -> bool {
    HALF_DONE.get() > 0
}

/// A handle of this thread has changed something for the first time.
pub(crate) fn begin() {
    HALF_DONE.set(HALF_DONE.get() + 1);
}

/// A handle that has changed something is closed.
pub(crate) fn end() {
    HALF_DONE.set(HALF_DONE.get() - 1);
}

/// Why the operation is not coming to its end, if so; nobody hears it again.
pub(crate) fn take() -> Option<Broken> {
    BROKEN.take()
}
