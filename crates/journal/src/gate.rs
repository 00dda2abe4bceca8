//! Who may join the running transaction, who must wait, who commits it.
//!
//! The state machine alone, without blocks or media, so that a scheduler can explore it
//! (`--cfg shuttle`).
//!
//! ```text
//! running ──begin_commit──> locked ──last handle left──> closed ──switch──> (waits)
//!         ──take_turn──> committing ──finish──> committed
//!    ^                        (new handles wait)                    │
//!    └──────────── the next transaction runs from here on ─────────┘
//! ```
//!
//! Where a commit takes a medium's time, the running transaction collects changes until the one
//! before is durable, and all waiting threads share the next commit. The thread that is about to
//! commit waits for threads that will soon ask (`pace.rs`). Where a commit takes only processor
//! time ([`Pace`]), another processor closes a small transaction during the commit.
//!
//! Invariants: at most one transaction commits, and at most one more is closed; they commit in
//! order; a handle never joins a locked transaction; the credits of open handles and the blocks
//! already joined never exceed the limit; `committed` only grows.

use std::num::NonZero;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use stetfs_format::Tid;

use crate::error::{JournalError, Result};
use crate::gate_sync::{self, Condvar, Mutex, MutexGuard};
use crate::pace::{Batch, Pace};
use stetfs_planted::{Bug, is_planted};

/// The collection of blocks of a running transaction, as the gate sees it. A trait, so that the
/// gate can be tested alone.
pub(crate) trait Load: Default {
    /// Returns the number of blocks that it will log so far.
    fn blocks(&self) -> u32;
    /// Returns the number of cached blocks that it keeps from being dropped.
    fn pinned(&self) -> u32;
    /// Lowers [`pinned`](Self::pinned) by `blocks`.
    fn unpin(&self, blocks: u32);
    /// True when nothing was changed.
    fn is_empty(&self) -> bool;
}

pub(crate) struct Gate<T> {
    pace: Pace,
    state: Mutex<State<T>>,
    /// Threads that want to join while a transaction is being closed.
    joiners: Queue,
    /// The thread that closes a transaction. It waits for threads that will want the same commit,
    /// then for the last open handle, then for its turn to commit.
    closer: Queue,
    /// Threads that wait for a commit, by whether the transaction's number is even or odd. Two
    /// queues are enough: nobody is woken to commit a transaction before the last but one is
    /// durable.
    callers: [Queue; 2],
    /// The number of threads that spin until a commit ends, and the most that may: half of the
    /// processors, so that the threads that they wait for can run. The closer is not counted.
    lookers: AtomicU32,
    most_lookers: u32,
    /// The newest durable transaction, for a look without the lock.
    committed: AtomicU32,
}

/// Threads that wait for the same event.
#[derive(Default)]
struct Queue {
    changed: Condvar,
    /// How often the event has happened.
    turns: AtomicU32,
    /// The number of threads that sleep; changed under the gate's lock.
    sleepers: AtomicU32,
}

impl Queue {
    fn notify_all(&self) {
        self.turns.fetch_add(1, Relaxed);
        if self.sleepers.load(Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Wakes one sleeping thread, which acts on what it finds or wakes the others.
    fn notify_one(&self) {
        self.turns.fetch_add(1, Relaxed);
        if self.sleepers.load(Relaxed) > 0 {
            self.changed.notify_one();
        }
    }
}

struct State<T> {
    running: Tid,
    load: Arc<T>,
    /// When the running transaction's first handle joined.
    since: Option<Instant>,
    /// Open handles.
    open: u32,
    /// Credits of open handles.
    granted: u32,
    /// No handle may join: the running transaction is being closed.
    locked: bool,
    /// Being closed, or closed and waiting for its turn.
    closing: Option<Tid>,
    committing: Option<Tid>,
    committed: Tid,
    stopped: Option<JournalError>,
    batch: Batch,
}

/// Why a thread wants a commit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Its changes must be durable.
    Durable,
    /// The transaction has no room left.
    Room,
}

/// The most that a transaction may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Blocks to log.
    pub(crate) blocks: u32,
    /// Cached blocks that it keeps from being dropped.
    pub(crate) pinned: u32,
}

/// The result of [`Gate::join`].
pub(crate) enum Join<T> {
    Joined {
        tid: Tid,
        load: Arc<T>,
    },
    /// No room: this transaction must be committed first.
    Full(Tid),
}

/// The result of [`Gate::begin_commit`].
pub(crate) enum Begin<T> {
    /// The transaction is durable, or empty. `waited`: another thread committed it.
    Done { waited: bool },
    /// The caller commits it: no handle is open, none can join before [`Gate::switch`]. The call
    /// after that is [`Gate::take_turn`].
    Closed { tid: Tid, load: Arc<T> },
}

/// Returns the number of processors. It asks the kernel once, since each answer reads several
/// files.
fn processors() -> u32 {
    static ANSWER: OnceLock<u32> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let found = std::thread::available_parallelism().map_or(1, NonZero::get);
        u32::try_from(found).unwrap_or(u32::MAX)
    })
}

impl<T: Load> Gate<T> {
    pub(crate) fn new(first: Tid, pace: Pace) -> Self {
        Self {
            pace,
            joiners: Queue::default(),
            closer: Queue::default(),
            callers: Default::default(),
            lookers: AtomicU32::new(0),
            most_lookers: processors() / 2,
            state: Mutex::new(State {
                running: first,
                load: Arc::new(T::default()),
                since: None,
                open: 0,
                granted: 0,
                locked: false,
                closing: None,
                committing: None,
                committed: first.previous(),
                stopped: None,
                batch: Batch::new(processors(), Instant::now()),
            }),
            committed: AtomicU32::new(first.previous().0),
        }
    }

    /// Joins the running transaction with `credits`.
    pub(crate) fn join(&self, credits: u32, limits: Limits) -> Result<Join<T>> {
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if !state.locked {
                break;
            }
            state = self.wait(&self.joiners, state);
        }
        let used = state.load.blocks().saturating_add(state.granted);
        let too_many = used > 0 && used.saturating_add(credits) > limits.blocks;
        if too_many || state.load.pinned() > limits.pinned {
            return Ok(Join::Full(state.running));
        }
        state.open += 1;
        state.granted += credits;
        state.since.get_or_insert_with(Instant::now);
        Ok(Join::Joined {
            tid: state.running,
            load: Arc::clone(&state.load),
        })
    }

    /// Joins transaction `tid` to do work that its operations have left to the commit, if it still
    /// runs and other threads would otherwise wait for that work. `None`: the commit does it.
    pub(crate) fn join_early(&self, tid: Tid) -> Option<Arc<T>> {
        let mut state = self.state.lock();
        let is_shared = state.open > 0 || state.closing.is_some() || state.committing.is_some();
        let may_join = self.pace.overlap() > 0 && !state.locked && state.stopped.is_none();
        (is_shared && may_join && state.running == tid).then(|| {
            state.open += 1;
            Arc::clone(&state.load)
        })
    }

    /// Gives an open handle `more` credits; false if they do not fit. A handle that `may_end` gets
    /// none while a commit waits for it. Any other handle does, because the commit must have all of
    /// its operation.
    pub(crate) fn extend(&self, more: u32, limits: Limits, may_end: bool) -> bool {
        let mut state = self.state.lock();
        let used = state.load.blocks().saturating_add(state.granted);
        let makes_way = may_end && state.locked;
        let fits = !makes_way && used.saturating_add(more) <= limits.blocks;
        if fits {
            state.granted += more;
        }
        fits
    }

    /// Closes a handle that held `credits`.
    pub(crate) fn leave(&self, credits: u32) {
        let mut state = self.state.lock();
        state.open -= 1;
        state.granted -= credits;
        if state.open == 0 && state.locked {
            self.closer.notify_all();
        }
    }

    /// Waits until `tid` is durable, or makes the caller the one that commits it.
    pub(crate) fn begin_commit(&self, tid: Tid, wish: Wish) -> Result<Begin<T>> {
        let mut state = self.state.lock();
        let mut waited = false;
        self.note(&mut state, tid, wish);
        loop {
            if state.committed.is_at_or_after(tid) {
                return Ok(Begin::Done { waited });
            }
            state.check()?;
            let is_next = state.running == tid && !(state.open == 0 && state.load.is_empty());
            let overlap = self.pace.overlap();
            let overlaps = is_next && state.load.pinned() <= overlap;
            let is_idle = state.committing.is_none() || overlap > 0 && overlaps;
            if state.closing.is_none() && is_idle {
                break;
            }
            waited = true;
            state = self.wait(self.callers(tid), state);
        }
        if state.running != tid || (state.open == 0 && state.load.is_empty()) {
            // It has not begun yet, or is empty: there is nothing to make durable. Perhaps only
            // this one of the threads that wait for it was woken, so it wakes the others.
            self.callers(tid).notify_all();
            return Ok(Begin::Done { waited });
        }
        state.closing = Some(tid);
        state = self.gather(state);
        state.locked = true;
        while state.open > 0 {
            state = self.wait(&self.closer, state);
        }
        if let Err(error) = state.check() {
            // The last operation may have stopped the journal, because it failed half done.
            state.closing = None;
            state.locked = false;
            self.notify_everyone();
            return Err(error);
        }
        Ok(Begin::Closed {
            tid,
            load: Arc::clone(&state.load),
        })
    }

    /// Counts a thread that wants transaction `tid` to be committed.
    fn note(&self, state: &mut State<T>, tid: Tid, wish: Wish) {
        if !matches!(self.pace, Pace::Medium { .. }) || state.committed.is_at_or_after(tid) {
            return;
        }
        match wish {
            Wish::Durable => state.batch.ask(tid == state.running),
            Wish::Room => state.batch.expect_nobody(),
        }
        if state.closing == Some(state.running) && state.batch.is_complete() {
            self.closer.notify_all();
        }
    }

    /// Pretends that `callers` had waited for a commit that took an hour and has just ended.
    #[cfg(test)]
    pub(crate) fn expect(&self, callers: u32) {
        self.state
            .lock()
            .batch
            .expect(callers, Duration::from_secs(3600));
    }

    /// True while a thread is about to commit the running transaction and waits for others.
    #[cfg(test)]
    pub(crate) fn gathers(&self) -> bool {
        let state = self.state.lock();
        state.closing == Some(state.running) && !state.locked
    }

    /// Returns how many threads sleep in the queue of transaction `tid`.
    #[cfg(test)]
    pub(crate) fn sleepers(&self, tid: Tid) -> u32 {
        self.callers(tid).sleepers.load(Relaxed)
    }

    /// Waits for the threads that are expected to want the same commit. If none is expected, it
    /// yields the processor once, so that threads that can run there may join.
    fn gather<'a>(&'a self, mut state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        let Pace::Medium { batch, least } = self.pace else {
            return state;
        };
        if batch.is_zero() {
            return state;
        }
        if state.batch.is_complete() {
            return gate_sync::let_others_run(&self.state, state);
        }
        let deadline = state.batch.deadline(least, batch);
        let is_over = |state: &State<T>| state.batch.is_complete() || state.stopped.is_some();
        while !is_over(&state) && Instant::now() < deadline {
            state = self.wait_until(&self.closer, state, Some(deadline));
        }
        state.batch.waited();
        state
    }

    /// Lets the next transaction run. The closed one belongs to the committer.
    pub(crate) fn switch(&self) {
        let mut state = self.state.lock();
        state.running = state.running.next();
        state.batch.switch();
        state.load = Arc::new(T::default());
        state.since = None;
        state.locked = false;
        self.joiners.notify_all();
    }

    /// Waits until the transaction before the closed one is durable. Fails when that one failed.
    pub(crate) fn take_turn(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.committing.is_some() {
            state = self.wait(&self.closer, state);
        }
        state.check()?;
        state.committing = state.closing.take();
        match self.pace {
            Pace::Medium { .. } => state.batch.begin(Instant::now()),
            // The next transaction may be closed during this commit.
            Pace::Processors { .. } => self.callers(state.running).notify_one(),
        }
        Ok(())
    }

    /// Ends the commit of the closed transaction `tid`. After an error nothing is committed any
    /// more.
    pub(crate) fn finish(&self, tid: Tid, result: Result<()>) {
        let mut state = self.state.lock();
        if state.committing == Some(tid) {
            state.committing = None;
        } else {
            // It failed before its turn, perhaps before the switch: threads that wait to join must
            // be told.
            state.closing = None;
            state.locked = false;
        }
        match result {
            Ok(()) => {
                if let Pace::Medium { .. } = self.pace {
                    state.batch.end(Instant::now());
                }
                state.committed = tid;
                self.committed
                    .store(tid.0, std::sync::atomic::Ordering::Release);
                self.callers(tid).notify_all();
                match state.closing {
                    Some(_) => self.closer.notify_all(),
                    // The thread that is woken commits it for all.
                    None => self.callers(state.running).notify_one(),
                }
            }
            Err(error) => {
                state.stop(error);
                self.notify_everyone();
            }
        }
    }

    /// Stops the journal with `error`, unless an earlier error has stopped it.
    pub(crate) fn stop(&self, error: JournalError) {
        let mut state = self.state.lock();
        state.stop(error);
        self.notify_everyone();
    }

    /// Stops the journal with `error` if no handle is open, nothing is to be committed, and
    /// `is_settled` says so too; true if it did.
    pub(crate) fn seal(&self, error: JournalError, is_settled: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        let is_committing = state.closing.is_some() || state.committing.is_some();
        let idle = state.open == 0 && !is_committing && state.load.is_empty() && is_settled();
        if idle {
            state.stop(error);
            self.notify_everyone();
        }
        idle
    }

    /// Returns the error that has stopped the journal, if any.
    pub(crate) fn stopped(&self) -> Option<JournalError> {
        self.state.lock().stopped.clone()
    }

    /// Returns the number of the running transaction.
    pub(crate) fn running(&self) -> Tid {
        self.state.lock().running
    }

    /// Returns the number of cached blocks that the running transaction keeps from being dropped.
    pub(crate) fn pinned(&self) -> u32 {
        self.state.lock().load.pinned()
    }

    /// Lets go of `blocks` cached blocks of transaction `tid`, if it still runs.
    pub(crate) fn unpin(&self, tid: Tid, blocks: u32) {
        let state = self.state.lock();
        if state.running == tid {
            state.load.unpin(blocks);
        }
    }

    /// Returns the newest durable transaction.
    pub(crate) fn committed(&self) -> Tid {
        Tid(self.committed.load(std::sync::atomic::Ordering::Acquire))
    }

    /// Returns the running transaction and its age; `None` if no handle has joined it.
    pub(crate) fn age(&self) -> Option<(Tid, Duration)> {
        let state = self.state.lock();
        state.since.map(|since| (state.running, since.elapsed()))
    }

    /// Returns the transaction whose commit makes everything durable that was done before now.
    pub(crate) fn newest(&self) -> Tid {
        let state = self.state.lock();
        match state.closing.or(state.committing) {
            Some(tid)
                if state.open == 0 && state.load.is_empty() || is_planted(Bug::OlderNewest) =>
            {
                tid
            }
            _ => state.running,
        }
    }

    /// Waits for the event of `queue`; may also return without one.
    fn wait<'a>(
        &'a self,
        queue: &'a Queue,
        state: MutexGuard<'a, State<T>>,
    ) -> MutexGuard<'a, State<T>> {
        self.wait_until(queue, state, None)
    }

    /// [`wait`](Self::wait), until `deadline` at the longest.
    fn wait_until<'a>(
        &'a self,
        queue: &'a Queue,
        state: MutexGuard<'a, State<T>>,
        deadline: Option<Instant>,
    ) -> MutexGuard<'a, State<T>> {
        let turn = queue.turns.load(Relaxed);
        let has_turned = || queue.turns.load(Relaxed) != turn;
        let is_over = || has_turned() || deadline.is_some_and(|at| Instant::now() >= at);
        let state = match self.pace {
            Pace::Medium { batch, .. } => {
                let patience = state.batch.patience(batch);
                gate_sync::unlocked(state, || {
                    if std::ptr::eq(queue, &self.closer) {
                        look(patience, is_over)
                    } else {
                        self.look_if_few_do(patience, is_over)
                    }
                })
            }
            Pace::Processors { looks, .. } => gate_sync::unlocked(state, || {
                (0..looks).any(|_| {
                    std::hint::spin_loop();
                    has_turned()
                });
            }),
        };
        if is_over() {
            return state;
        }
        queue.sleepers.fetch_add(1, Relaxed);
        let state = match deadline {
            None => queue.changed.wait(state),
            Some(at) => gate_sync::wait_until(&queue.changed, &self.state, state, at),
        };
        queue.sleepers.fetch_sub(1, Relaxed);
        state
    }

    /// [Spins](look), unless too many threads do already.
    fn look_if_few_do(&self, patience: Duration, is_over: impl Fn() -> bool) {
        if self.lookers.fetch_add(1, Relaxed) < self.most_lookers {
            look(patience, is_over);
        }
        self.lookers.fetch_sub(1, Relaxed);
    }

    /// Returns the queue of the threads that wait for a transaction to be committed.
    fn callers(&self, tid: Tid) -> &Queue {
        &self.callers[usize::from(tid.0 & 1 == 1)]
    }

    /// Wakes all threads, because the journal has stopped.
    fn notify_everyone(&self) {
        for queue in [&self.joiners, &self.closer]
            .into_iter()
            .chain(&self.callers)
        {
            queue.notify_all();
        }
    }
}

impl<T> State<T> {
    fn check(&self) -> Result<()> {
        match &self.stopped {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    fn stop(&mut self, error: JournalError) {
        self.stopped.get_or_insert(match error {
            JournalError::Aborted(_) | JournalError::Shutdown | JournalError::ReadOnly => error,
            cause => JournalError::Aborted(Arc::new(cause)),
        });
    }
}

/// Yields the processor again and again until `is_over`, for `patience` at the longest.
fn look(patience: Duration, is_over: impl Fn() -> bool) {
    if patience.is_zero() {
        return;
    }
    let until = Instant::now() + patience;
    while !is_over() && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// A counter of blocks, for implementations of [`Load`].
#[derive(Default)]
pub(crate) struct Blocks(AtomicU32);

impl Blocks {
    pub(crate) fn add(&self, n: u32) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn sub(&self, n: u32) {
        let before = self.0.fetch_sub(n, Relaxed);
        debug_assert!(n <= before, "{n} of {before} charged blocks are given back");
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
}
