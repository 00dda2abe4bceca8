//! Requests that wait for the threads that carry them out, and the end of these threads.

use std::collections::VecDeque;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// What waits to be done.
pub(crate) struct Todo<T> {
    load: Mutex<Load<T>>,
    /// Something waits, or nothing will.
    more: Condvar,
}

struct Load<T> {
    waiting: VecDeque<T>,
    is_over: bool,
}

impl<T> Todo<T> {
    /// With room for so many.
    pub(crate) fn new(room: usize) -> Self {
        Self {
            load: Mutex::new(Load {
                waiting: VecDeque::with_capacity(room),
                is_over: false,
            }),
            more: Condvar::new(),
        }
    }

    /// Adds one.
    pub(crate) fn push(&self, one: T) {
        self.load.lock().waiting.push_back(one);
        self.more.notify_one();
    }

    /// Takes the one that waits longest, or waits for one; `None` when nothing will come any more.
    pub(crate) fn next(&self) -> Option<T> {
        let mut load = self.load.lock();
        loop {
            if let Some(one) = load.waiting.pop_front() {
                return Some(one);
            }
            if load.is_over {
                return None;
            }
            self.more.wait(&mut load);
        }
    }

    /// Nothing will be added: whoever waits for more goes when everything is taken.
    pub(crate) fn end(&self) {
        self.load.lock().is_over = true;
        self.more.notify_all();
    }
}

/// Waits for a thread's end, and goes on with its panic if it has one.
pub(crate) fn joined<T>(thread: JoinHandle<T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
