//! A scheduler decides which thread goes on, to explore what commits, checkpoints and operations do
//! to each other.
//!
//! A scheduled thread tells its scheduler when it wants a lock ([`Mutex`](crate::Mutex),
//! [`RwLock`](crate::RwLock)), and where it would wait. So the scheduler can run one thread at a
//! time, and can repeat a run.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A scheduler. Threads without one run freely.
pub trait Schedule: fmt::Debug + Send + Sync {
    /// Asked when a handle is about to join: whether to commit first what was done before it.
    fn commits_first(&self) -> bool {
        false
    }

    /// Asked where the caller's handle could go on in another one, whether or not the handle is
    /// full: whether it does so. Not always: a handle that ends before its first step has done
    /// nothing.
    fn splits(&self) -> bool {
        false
    }

    /// Called before the caller does something that others may see. They may run first.
    fn pass(&self);

    /// Called again and again while the caller can go on only after another thread has.
    fn wait(&self);
}

/// The number of scheduled threads, so that all others find out with one look that there are none.
static SCHEDULED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MINE: RefCell<Option<Arc<dyn Schedule>>> = const { RefCell::new(None) };
}

/// Keeps the calling thread scheduled until it is dropped.
#[derive(Debug)]
pub struct Scheduled(());

impl Scheduled {
    /// Puts the calling thread under this scheduler.
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

/// Asks the calling thread's scheduler; `None` if it has none.
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
    // A thread that is ending has none.
    let asked = MINE.try_with(|mine| mine.borrow().as_deref().map(question));
    asked.ok().flatten()
}
