//! The locks of the join/commit path: parking_lot's, or shuttle's when its scheduler explores the path
//! (`--cfg shuttle`).

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

/// Lets go of the lock while `wait` runs.
#[cfg(not(shuttle))]
pub(crate) fn unlocked<T>(guard: &mut MutexGuard<'_, T>, wait: impl FnOnce()) {
    MutexGuard::unlocked(guard, wait);
}

#[cfg(shuttle)]
pub(crate) use with_shuttle::{Condvar, Mutex, MutexGuard, unlocked};

#[cfg(shuttle)]
mod with_shuttle {
    //! shuttle's locks under parking_lot's signatures.
    pub(crate) use shuttle::sync::MutexGuard as Inner;
    use std::ops::{Deref, DerefMut};

    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);
    pub(crate) struct MutexGuard<'a, T>(Option<Inner<'a, T>>);
    #[derive(Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    /// Waiting is the scheduler's part.
    pub(crate) fn unlocked<T>(_: &mut MutexGuard<'_, T>, _: impl FnOnce()) {}

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(
                self.0.lock().expect("no thread panics under the lock"),
            ))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("held")
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(shuttle::sync::Condvar::new())
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().expect("held");
            guard.0 = Some(self.0.wait(inner).expect("no thread panics under the lock"));
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
