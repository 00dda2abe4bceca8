//! The thread that commits old transactions, and runs a checkpoint when the log asks for one.
//!
//! The journal gives it a closure for one round of work. The thread holds the journal only during
//! a round, so a journal that nobody else uses ends at once.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The longest pause between two looks at the clock.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Signal {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    wanted: bool,
    ending: bool,
}

/// The handle on the thread.
pub struct Background {
    name: &'static str,
    signal: Arc<Signal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Not started yet; the thread's name.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            signal: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    /// Starts the thread, which calls `round` until it returns false. The pause between two rounds
    /// is a quarter of `interval`, within 10 ms and 1 s.
    pub fn start(&self, interval: Duration, mut round: impl FnMut() -> bool + Send + 'static) {
        let signal = Arc::clone(&self.signal);
        // Short enough that a transaction is never much older than it should be.
        let pause = (interval / 4).clamp(Duration::from_millis(10), LONGEST_PAUSE);
        let work = move || {
            while signal.pause(pause) && round() {}
        };
        match std::thread::Builder::new()
            .name(self.name.to_owned())
            .spawn(work)
        {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => tracing::warn!("no thread {}: {error}", self.name),
        }
    }

    /// Makes the thread start its next round now; false when there is no thread.
    pub fn wake(&self) -> bool {
        let is_running = self.thread.lock().is_some();
        if is_running {
            self.signal.state.lock().wanted = true;
            self.signal.wake.notify_one();
        }
        is_running
    }

    /// Ends the thread and waits for it, unless it is the caller.
    pub fn end(&self) {
        self.signal.state.lock().ending = true;
        self.signal.wake.notify_one();
        // Not in the condition: the lock would be held during `join`, and the thread's commit takes
        // it too.
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // The thread has reported its panic; it must not become a second one here.
            let _ = thread.join();
        }
    }
}

impl Signal {
    /// Waits for work or until `pause` is over; false when the thread should end.
    fn pause(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.wanted && !state.ending {
            self.wake.wait_for(&mut state, pause);
        }
        state.wanted = false;
        !state.ending
    }
}
