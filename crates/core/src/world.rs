//! Who is at work on the volume: everybody at once, or one alone.
//!
//! Every operation holds a share of the [`World`] while it runs. Whoever has it alone knows that no
//! operation is under way and none begins, so nobody holds a lock of an inode, and whatever he does
//! in several operations is one for all others. The lock comes before all others of a volume
//! (`volume.rs`).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use stetfs_sync::RwLock;

/// How many locks there are: threads up to so many at once do not pass one cache line around.
const PARTS: usize = 16;

/// A lock on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Part(RwLock<()>);

#[derive(Default)]
pub(crate) struct World([Part; PARTS]);

/// Keeps everybody else out.
pub(crate) struct Alone<'a>(
    #[expect(dead_code, reason = "held, not looked at")] [RwLockWriteGuard<'a, ()>; PARTS],
);

impl World {
    /// Waits until nobody is alone. Not to be called by who holds a share: somebody may be waiting
    /// for that.
    #[inline]
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, ()> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: Cell<Option<usize>> = const { Cell::new(None) };
        }
        let mine = MINE.get().unwrap_or_else(|| {
            let mine = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
            MINE.set(Some(mine));
            mine
        });
        self.0[mine].0.read()
    }

    /// Waits until nobody has a share.
    pub(crate) fn alone(&self) -> Alone<'_> {
        Alone(self.0.each_ref().map(|part| part.0.write()))
    }
}
