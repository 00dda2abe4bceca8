//! Two threads, of which one does all that it can at one step of the other. So each way in which
//! one operation can come in between another is tried, and none is left to luck.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use stetfs::{Schedule, Scheduled};

/// How far the other thread has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Waits,
    Runs,
    /// It cannot go on before this thread does.
    IsStuck,
    IsDone,
}

#[derive(Debug)]
struct AtStep {
    step: usize,
    passed: AtomicUsize,
    other: Mutex<Other>,
    changed: Condvar,
}

impl AtStep {
    fn say(&self, other: Other) {
        *self.other.lock().unwrap() = other;
        self.changed.notify_all();
    }

    fn wait_until(&self, is_so: impl Fn(Other) -> bool) {
        let other = self.other.lock().unwrap();
        drop(
            self.changed
                .wait_while(other, |other| !is_so(*other))
                .unwrap(),
        );
    }

    fn has_step(&self) -> bool {
        self.passed.load(Ordering::Relaxed) > self.step
    }
}

/// Says that the other thread is done, also if it panics: nobody is to wait for it then.
struct Ends<'a>(&'a AtStep);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.say(Other::IsDone);
    }
}

#[derive(Debug)]
enum Thread {
    This(Arc<AtStep>),
    Other(Arc<AtStep>),
}

impl Schedule for Thread {
    fn pass(&self) {
        if let Self::This(at) = self
            && at.passed.fetch_add(1, Ordering::Relaxed) == at.step
        {
            at.say(Other::Runs);
            at.wait_until(|other| other != Other::Runs);
        }
    }

    fn wait(&self) {
        if let Self::Other(at) = self {
            at.say(Other::IsStuck);
        }
        std::thread::yield_now();
    }
}

/// Does `this`, and at one step of it `other`: as much as can be done of it before `this` goes on.
/// Returns what they return, and whether `this` has such a step. If not, `other` comes after it.
pub(crate) fn at_step<A, B: Send>(
    step: usize,
    this: impl FnOnce() -> A,
    other: impl FnOnce() -> B + Send,
) -> (A, B, bool) {
    let at = Arc::new(AtStep {
        step,
        passed: AtomicUsize::new(0),
        other: Mutex::new(Other::Waits),
        changed: Condvar::new(),
    });
    std::thread::scope(|scope| {
        let others = at.clone();
        let other = scope.spawn(move || {
            let _scheduled = Scheduled::by(Arc::new(Thread::Other(others.clone())));
            others.wait_until(|other| other == Other::Runs);
            let _ends = Ends(&others);
            other()
        });
        let scheduled = Scheduled::by(Arc::new(Thread::This(at.clone())));
        let this = this();
        drop(scheduled);
        let has_step = at.has_step();
        if !has_step {
            at.say(Other::Runs);
        }
        let other = other.join();
        (this, other.expect("the other thread panicked"), has_step)
    })
}
