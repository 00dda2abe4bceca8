//! The lock that lets all operations run at once, or one caller alone.
//!
//! Every operation holds a share of the [`World`] while it runs. When somebody has the world alone,
//! no operation runs and none begins, so nobody holds an inode's lock, and the holder's several
//! operations look like one to all others. This lock comes before all others of a volume
//! (`volume.rs`).

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use stetfs_sync::RwLock;

/// The number of locks. Up to this many threads do not share a cache line.
const PARTS: usize = 16;

/// A lock with cache lines of its own.
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
    /// Waits until nobody has the world alone. Not for a holder of a share: somebody may be waiting
    /// for that share, and both would wait forever.
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
