//! The gate between the kernel's requests and the server. It is closed to hand the connection over
//! to another program (`upgrade.rs`): then nothing is under way, nothing is lost, and nothing is
//! done twice.
//!
//! | state | requests | notifications and other work |
//! |---|---|---|
//! | open | pass | pass |
//! | closing | pass if something that is under way may wait for them; others are kept | pass |
//! | closed | are kept; each worker parks after it | wait |
//!
//! What is under way: a worker between a request and its answer, a [`Ticket`](super::Ticket), a
//! notification, and whatever else holds a [`Pass`]. The gate closes when nothing is.
//!
//! A worker that waits for a request waits in the kernel, where it may get one at any moment. So
//! those are interrupted until they have parked. From then on the kernel's queue is left alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::Pid;

use super::abi::WriteKind;
use super::request::{Request, What};

const OPEN: u8 = 0;
const CLOSING: u8 = 1;
const CLOSED: u8 = 2;

/// How often to look whether everything has ended.
const LOOK: Duration = Duration::from_millis(1);

/// The gate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    /// The number of passes.
    passes: AtomicUsize,
    /// The workers, and what each does.
    seats: Mutex<Vec<(Pid, Arc<AtomicU8>)>>,
    kept: Mutex<VecDeque<Kept>>,
    /// The number of kept requests, readable without a lock.
    kept_count: AtomicUsize,
    /// Is told when the gate opens; for those who wait for that.
    opens: (Mutex<()>, Condvar),
}

/// A request that nothing was done for yet.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The index of the channel that it came by, and that its answer must take.
    pub(crate) channel: usize,
    pub(crate) bytes: Vec<u8>,
}

const WAITING: u8 = 0;
const BUSY: u8 = 1;
const PARKED: u8 = 2;

/// A worker, as the gate sees it.
pub(crate) struct Seat {
    gate: Arc<Gate>,
    does: Arc<AtomicU8>,
}

/// The right to work while the gate is not closed.
#[derive(Debug)]
pub(crate) struct Pass(Arc<Gate>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.passes.fetch_sub(1, SeqCst);
    }
}

impl Gate {
    /// Makes a seat for the calling thread, a worker.
    pub(crate) fn sit(self: &Arc<Self>) -> Seat {
        let does = Arc::new(AtomicU8::new(BUSY));
        let me = rustix::thread::gettid();
        self.seats.lock().push((me, does.clone()));
        Seat {
            gate: self.clone(),
            does,
        }
    }

    /// Gives a pass to a thread that has a seat or a pass already: it never waits.
    pub(crate) fn more(self: &Arc<Self>) -> Pass {
        self.passes.fetch_add(1, SeqCst);
        Pass(self.clone())
    }

    /// Gives a pass, as soon as the gate is not closed.
    pub(crate) fn pass(self: &Arc<Self>) -> Pass {
        loop {
            let pass = self.more();
            if self.state.load(SeqCst) != CLOSED {
                return pass;
            }
            drop(pass);
            self.wait();
        }
    }

    /// Waits while the gate is closed.
    fn wait(&self) {
        let (lock, opened) = &self.opens;
        let mut guard = lock.lock();
        while self.state.load(SeqCst) == CLOSED {
            opened.wait(&mut guard);
        }
    }

    /// Returns whether a request may be answered now. The caller's seat is busy.
    pub(crate) fn admits(&self, request: &Request<'_>) -> bool {
        match self.state.load(SeqCst) {
            OPEN => true,
            CLOSING => may_be_waited_for(request),
            _ => false,
        }
    }

    /// Keeps a request that the gate does not admit, or that somebody else has kept.
    pub(crate) fn keep(&self, request: Kept) {
        let mut kept = self.kept.lock();
        kept.push_back(request);
        self.kept_count.store(kept.len(), SeqCst);
    }

    /// Returns a kept request that may be answered now.
    pub(crate) fn next_kept(&self) -> Option<Kept> {
        if self.kept_count.load(SeqCst) == 0 || self.state.load(SeqCst) != OPEN {
            return None;
        }
        let mut kept = self.kept.lock();
        let next = kept.pop_front();
        self.kept_count.store(kept.len(), SeqCst);
        next
    }

    /// Calls `each` with all kept requests. The gate is closed.
    pub(crate) fn each_kept(&self, each: impl FnMut(&Kept)) {
        self.kept.lock().iter().for_each(each);
    }

    fn is_idle(&self) -> bool {
        let is_busy = |(_, does): &(Pid, Arc<AtomicU8>)| does.load(SeqCst) == BUSY;
        self.passes.load(SeqCst) == 0 && !self.seats.lock().iter().any(is_busy)
    }

    /// Lets nothing begin that nobody waits for.
    pub(crate) fn begin_closing(&self) {
        self.state.store(CLOSING, SeqCst);
    }

    /// Closes the gate as soon as nothing is under way, and parks the workers. False: something was
    /// under way until the deadline; the gate is still closing.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        loop {
            if self.is_idle() {
                self.change(CLOSED);
                // What began before that may still be under way.
                if self.is_idle() {
                    self.park();
                    return true;
                }
                self.change(CLOSING);
            }
            if Instant::now() > deadline {
                return false;
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until each worker is parked or has ended.
    fn park(&self) {
        while self.interrupt() {
            thread::sleep(LOOK);
        }
    }

    /// Interrupts the workers that wait for a request. Returns whether any worker has not parked.
    fn interrupt(&self) -> bool {
        let mut any = false;
        for (worker, does) in &*self.seats.lock() {
            let does = does.load(SeqCst);
            any |= does != PARKED;
            if does == WAITING {
                // If it has just ended, it is parked.
                let _ = stetfs_sys::interrupt(*worker);
            }
        }
        any
    }

    /// Opens the gate: workers go on, with the requests that were kept.
    pub(crate) fn open(&self) {
        self.change(OPEN);
        // A worker that waits in the kernel does not look for them.
        while self.kept_count.load(SeqCst) > 0 && self.interrupt() {
            thread::sleep(LOOK);
        }
    }

    fn change(&self, state: u8) {
        let (lock, opened) = &self.opens;
        let _guard = lock.lock();
        self.state.store(state, SeqCst);
        opened.notify_all();
    }
}

/// Whether something that is under way may wait for this request: for pages to be written or read,
/// for a file to be closed.
fn may_be_waited_for(request: &Request<'_>) -> bool {
    match &request.what {
        What::Write(w, _) => WriteKind::from_bits_retain(w.write_flags).contains(WriteKind::CACHE),
        What::Read(_) | What::Release(_) | What::Forget | What::BatchForget(_) => true,
        What::Interrupt | What::Unknown => true,
        _ => false,
    }
}

impl Seat {
    /// The worker is about to wait for a request. While the gate is closed it waits here.
    pub(crate) fn is_free(&self) {
        loop {
            // Said before it looks: whoever closes the gate looks after that.
            self.does.store(WAITING, SeqCst);
            if self.gate.state.load(SeqCst) != CLOSED {
                return;
            }
            self.does.store(PARKED, SeqCst);
            self.gate.wait();
        }
    }

    /// The worker has got a request.
    pub(crate) fn is_busy(&self) {
        self.does.store(BUSY, SeqCst);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.does.store(PARKED, SeqCst);
    }
}
