//! The locks of the schemes, the journal and the file system: parking_lot's. A
//! [scheduled](schedule) thread tells its scheduler when it wants a lock and when it has to wait,
//! and never sleeps on it.
#![forbid(unsafe_code)]

mod background;
pub mod schedule;

use std::time::Instant;

pub use background::Background;
pub use schedule::{Schedule, Scheduled};

pub use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// [`parking_lot::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

/// [`parking_lot::RwLock`].
#[derive(Debug, Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

/// [`parking_lot::Condvar`].
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

/// Takes a lock: by `attempt`, again and again, when the thread is scheduled, else by `lock`.
#[inline]
fn take<G>(attempt: impl Fn() -> Option<G>, lock: impl FnOnce() -> G) -> G {
    let scheduled = schedule::ask(|schedule| {
        schedule.pass();
        loop {
            match attempt() {
                Some(guard) => return guard,
                None => schedule.wait(),
            }
        }
    });
    scheduled.unwrap_or_else(lock)
}

/// Tries to get a lock at once.
#[inline]
fn look<G>(attempt: impl FnOnce() -> Option<G>) -> Option<G> {
    schedule::ask(|schedule| schedule.pass());
    attempt()
}

/// Releases the lock while `wait` runs.
pub fn unlocked<'a, T>(guard: MutexGuard<'a, T>, wait: impl FnOnce()) -> MutexGuard<'a, T> {
    let mutex = MutexGuard::mutex(&guard);
    drop(guard);
    wait();
    take(|| mutex.try_lock(), || mutex.lock())
}

impl<T> Mutex<T> {
    /// A mutex around a value.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::const_mutex(value))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        take(|| self.0.try_lock(), || self.0.lock())
    }

    /// Returns the lock if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        look(|| self.0.try_lock())
    }

    /// Returns the value without locking: `self` is borrowed exclusively.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T> RwLock<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::const_rwlock(value))
    }

    /// Waits until nobody writes.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        take(|| self.0.try_read(), || self.0.read())
    }

    /// Waits until nobody reads or writes.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        take(|| self.0.try_write(), || self.0.write())
    }

    /// Returns the lock for reading, if nobody writes or waits to.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        look(|| self.0.try_read())
    }

    /// Returns the lock for writing, if nobody has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        look(|| self.0.try_write())
    }
}

impl Condvar {
    /// A condition that nobody waits for.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Releases the lock until a notification, or a spurious wakeup.
    pub fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        if !schedule::is_mine() {
            self.0.wait(&mut guard);
            return guard;
        }
        unlocked(guard, || {
            schedule::ask(|schedule| schedule.wait());
        })
    }

    /// Does the same, but no longer than until `deadline`.
    pub fn wait_until<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> MutexGuard<'a, T> {
        if schedule::is_mine() {
            return self.wait(guard);
        }
        self.0.wait_until(&mut guard, deadline);
        guard
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
