//! The locks of the join/commit path: ours, or shuttle's when its scheduler explores the path
//! (`--cfg shuttle`).

#[cfg(not(shuttle))]
pub(crate) use {
    parking_lot::MutexGuard, stetfs_sync::Condvar, stetfs_sync::Mutex, stetfs_sync::unlocked,
};

#[cfg(not(shuttle))]
use std::time::Instant;

/// Lets go of the lock while others run on this processor.
#[cfg(not(shuttle))]
pub(crate) fn let_others_run<'a, T>(
    _: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
) -> MutexGuard<'a, T> {
    unlocked(guard, std::thread::yield_now)
}

/// Lets go of the lock until a notification or `deadline`; may also return earlier.
#[cfg(not(shuttle))]
pub(crate) fn wait_until<'a, T>(
    changed: &Condvar,
    _: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    deadline: Instant,
) -> MutexGuard<'a, T> {
    changed.wait_until(guard, deadline)
}

#[cfg(shuttle)]
pub(crate) use with_shuttle::{Condvar, Mutex, MutexGuard, let_others_run, unlocked, wait_until};

#[cfg(shuttle)]
mod with_shuttle {
    //! shuttle's locks under the names and signatures of ours.
    pub(crate) use shuttle::sync::MutexGuard;

    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);
    #[derive(Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    /// Does nothing: the scheduler decides who runs.
    pub(crate) fn unlocked<T>(guard: MutexGuard<'_, T>, _: impl FnOnce()) -> MutexGuard<'_, T> {
        guard
    }

    pub(crate) fn let_others_run<'a, T>(
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
    ) -> MutexGuard<'a, T> {
        drop(guard);
        shuttle::thread::yield_now();
        mutex.lock()
    }

    /// Lets others run once: shuttle has no clock.
    pub(crate) fn wait_until<'a, T>(
        _: &Condvar,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        _: std::time::Instant,
    ) -> MutexGuard<'a, T> {
        let_others_run(mutex, guard)
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no thread panics under the lock")
        }
    }

    impl Condvar {
        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).expect("no thread panics under the lock")
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
