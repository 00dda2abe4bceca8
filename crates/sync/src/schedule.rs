//! Somebody who decides which thread goes on: whoever explores what commits, checkpoints and
//! operations do to each other.
//!
//! A thread that is scheduled says so when it wants a lock ([`Mutex`](crate::Mutex),
//! [`RwLock`](crate::RwLock)), and where it would wait. So one thread at a time can be let go on,
//! and a run happens again.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A scheduler. Threads without one go on as they do.
pub trait Schedule: fmt::Debug + Send + Sync {
    /// A handle is about to join: whether what was done before it is committed first.
    fn commits_first(&self) -> bool;

    /// What the caller's handle does could go on in another one, whether this one is full or not:
    /// whether it does. Not always: one that ends before its first step has done nothing.
    fn splits(&self) -> bool;

    /// The caller is about to do something that others may see. They may do so before.
    fn pass(&self);

    /// The caller can only go on when somebody else has: called until that is so.
    fn wait(&self);
}

/// Threads that are scheduled, so that all others find out with one look that nobody is.
static SCHEDULED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: RefCell<Option<Arc<dyn Schedule>>> = const { RefCell::new(None) };
}

/// The calling thread is scheduled until this is dropped.
#[derive(Debug)]
pub struct Scheduled(());

impl Scheduled {
    /// By this one.
    pub fn by(schedule: Arc<dyn Schedule>) -> Self {
        MINE.set(Some(schedule));
        SCHEDULED.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Scheduled {
    fn drop(&mut self) {
        SCHEDULED.fetch_sub(1, Ordering::Relaxed);
        MINE.set(None);
    }
}

/// What the calling thread's scheduler says, if it has one.
#[inline]
pub fn ask<T>(question: impl FnOnce(&dyn Schedule) -> T) -> Option<T> {
    match SCHEDULED.load(Ordering::Relaxed) {
        0 => None,
        _ => ask_mine(question),
    }
}

/// Whether the calling thread has a scheduler.
pub(crate) fn is_mine() -> bool {
    ask(|_| ()).is_some()
}

#[cold]
fn ask_mine<T>(question: impl FnOnce(&dyn Schedule) -> T) -> Option<T> {
    // A thread that ends has none.
    let asked = MINE.try_with(|mine| mine.borrow().as_deref().map(question));
    asked.ok().flatten()
}
