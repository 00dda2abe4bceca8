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
//! Where a commit is work of a medium, the running transaction collects until the one before is
//! durable, and all who wait share the next commit; whoever is about to commit waits for those who
//! will soon ask (`pace.rs`). Where it is work of processors ([`Pace`]), a small one is closed
//! meanwhile, on another processor.
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

/// What a transaction collects while it runs (generic, so that the gate is tested alone).
pub(crate) trait Load: Default {
    /// Blocks that it will log so far.
    fn blocks(&self) -> u32;
    /// Blocks of memory that it keeps from being dropped.
    fn pinned(&self) -> u32;
    /// It keeps so many less.
    fn unpin(&self, blocks: u32);
    /// Nothing was changed.
    fn is_empty(&self) -> bool;
}

pub(crate) struct Gate<T> {
    pace: Pace,
    state: Mutex<State<T>>,
    /// Who wants to join while a transaction is being closed.
    joiners: Queue,
    /// Who closes a transaction: until nobody is missing, its handles are closed, it is its turn.
    closer: Queue,
    /// Who waits for a commit, of a transaction with an even number and of one with an odd number:
    /// before anybody is woken to commit one, the last but one is durable.
    callers: [Queue; 2],
    /// How many threads look for a commit to end, and how many may: no more than half of the
    /// processors, so that those they wait for can run. Who closes one is not counted.
    lookers: AtomicU32,
    most_lookers: u32,
    /// The newest durable transaction, for a look without the lock.
    committed: AtomicU32,
}

/// Those who wait for the same.
#[derive(Default)]
struct Queue {
    changed: Condvar,
    /// How often something has happened that they may wait for.
    turns: AtomicU32,
    /// How many sleep; changed under the gate's lock.
    sleepers: AtomicU32,
}

impl Queue {
    fn notify_all(&self) {
        self.turns.fetch_add(1, Relaxed);
        if self.sleepers.load(Relaxed) > 0 {
            self.changed.notify_all();
        }
    }

    /// Wakes one of those who sleep. Whatever it finds, it acts on it or tells the others.
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
    /// When its first handle joined.
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

/// Why somebody wants a commit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// What he did must be durable.
    Durable,
    /// The transaction has no room left.
    Room,
}

/// What a transaction may grow to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Blocks to log.
    pub(crate) blocks: u32,
    /// Blocks of memory.
    pub(crate) pinned: u32,
}

/// The answer to a wish to join.
pub(crate) enum Join<T> {
    Joined {
        tid: Tid,
        load: Arc<T>,
    },
    /// No room: this transaction must be committed first.
    Full(Tid),
}

/// The answer to a wish to commit.
pub(crate) enum Begin<T> {
    /// It is durable, or there is nothing to do. `waited`: somebody else did it meanwhile.
    Done { waited: bool },
    /// The caller commits it: no handle is open, none can join before [`Gate::switch`]. Then comes
    /// [`Gate::take_turn`].
    Closed { tid: Tid, load: Arc<T> },
}

/// How many processors there are. The kernel is asked once: it answers by several files.
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

    /// Joins transaction `tid` with nothing to add but what its operations have left undone, if it
    /// runs and others are at work that would otherwise wait until that is done.
    pub(crate) fn join_early(&self, tid: Tid) -> Option<Arc<T>> {
        let mut state = self.state.lock();
        let is_shared = state.open > 0 || state.closing.is_some() || state.committing.is_some();
        let may_join = self.pace.overlap() > 0 && !state.locked && state.stopped.is_none();
        (is_shared && may_join && state.running == tid).then(|| {
            state.open += 1;
            Arc::clone(&state.load)
        })
    }

    /// Gives an open handle `more` credits, if they fit. One that `may_end` gets none while a
    /// commit waits for it; any other one is what an operation consists of, which the commit must
    /// have entirely.
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

    /// Waits until `tid` is durable or becomes the one who commits it.
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
            // A transaction that is yet to come, or an empty one: nothing to make durable. Only one
            // of those who wait for it may have been woken.
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
            // The operation that was waited for may have stopped it, because it is half done.
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

    /// Counts somebody who wants transaction `tid` to be committed.
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

    /// As if `callers` had waited for a commit that took an hour and has just ended.
    #[cfg(test)]
    pub(crate) fn expect(&self, callers: u32) {
        self.state
            .lock()
            .batch
            .expect(callers, Duration::from_secs(3600));
    }

    /// Somebody commits the running transaction, and waits for others.
    #[cfg(test)]
    pub(crate) fn gathers(&self) -> bool {
        let state = self.state.lock();
        state.closing == Some(state.running) && !state.locked
    }

    /// How many sleep until a transaction is committed, or one with a number as even or odd.
    #[cfg(test)]
    pub(crate) fn sleepers(&self, tid: Tid) -> u32 {
        self.callers(tid).sleepers.load(Relaxed)
    }

    /// Waits until nobody is missing who will want the same commit. If nobody is expected, those
    /// who can run on this processor go first: some will want it too.
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

    /// Lets the next transaction run; the closed one is in the committer's hands.
    pub(crate) fn switch(&self) {
        let mut state = self.state.lock();
        state.running = state.running.next();
        state.batch.switch();
        state.load = Arc::new(T::default());
        state.since = None;
        state.locked = false;
        self.joiners.notify_all();
    }

    /// Waits until the closed transaction is the one to commit. Fails when the one before it did.
    pub(crate) fn take_turn(&self) -> Result<()> {
        let mut state = self.state.lock();
        while state.committing.is_some() {
            state = self.wait(&self.closer, state);
        }
        state.check()?;
        state.committing = state.closing.take();
        match self.pace {
            Pace::Medium { .. } => state.batch.begin(Instant::now()),
            // The next one may be closed meanwhile.
            Pace::Processors { .. } => self.callers(state.running).notify_one(),
        }
        Ok(())
    }

    /// Transaction `tid`, which was closed, is durable, or failed: then nothing is ever committed
    /// again.
    pub(crate) fn finish(&self, tid: Tid, result: Result<()>) {
        let mut state = self.state.lock();
        if state.committing == Some(tid) {
            state.committing = None;
        } else {
            // It failed before its turn, perhaps before the switch: whoever waits to join must hear
            // of it.
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
                    // One of them commits it, for all.
                    None => self.callers(state.running).notify_one(),
                }
            }
            Err(error) => {
                state.stop(error);
                self.notify_everyone();
            }
        }
    }

    /// Stops everything with `error`; the first one is kept.
    pub(crate) fn stop(&self, error: JournalError) {
        let mut state = self.state.lock();
        state.stop(error);
        self.notify_everyone();
    }

    /// Stops with `error` if nobody is at work, nothing waits to be committed, and all else
    /// `is_settled` too.
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

    /// Why nothing more can be written, if so.
    pub(crate) fn stopped(&self) -> Option<JournalError> {
        self.state.lock().stopped.clone()
    }

    /// The running transaction.
    pub(crate) fn running(&self) -> Tid {
        self.state.lock().running
    }

    /// Blocks of memory that the running transaction holds.
    pub(crate) fn pinned(&self) -> u32 {
        self.state.lock().load.pinned()
    }

    /// Transaction `tid`, if it still runs, keeps so many blocks less.
    pub(crate) fn unpin(&self, tid: Tid, blocks: u32) {
        let state = self.state.lock();
        if state.running == tid {
            state.load.unpin(blocks);
        }
    }

    /// The newest durable transaction.
    pub(crate) fn committed(&self) -> Tid {
        Tid(self.committed.load(std::sync::atomic::Ordering::Acquire))
    }

    /// The running transaction and its age, if anything joined it.
    pub(crate) fn age(&self) -> Option<(Tid, Duration)> {
        let state = self.state.lock();
        state.since.map(|since| (state.running, since.elapsed()))
    }

    /// The transaction to wait for so that everything done before now is durable.
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

    /// Waits until something has happened, or for no reason.
    fn wait<'a>(
        &'a self,
        queue: &'a Queue,
        state: MutexGuard<'a, State<T>>,
    ) -> MutexGuard<'a, State<T>> {
        self.wait_until(queue, state, None)
    }

    /// The same, but no longer than until `deadline`.
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

    /// [Looks](look), unless too many do.
    fn look_if_few_do(&self, patience: Duration, is_over: impl Fn() -> bool) {
        if self.lookers.fetch_add(1, Relaxed) < self.most_lookers {
            look(patience, is_over);
        }
        self.lookers.fetch_sub(1, Relaxed);
    }

    /// Those who wait for a transaction to be committed.
    fn callers(&self, tid: Tid) -> &Queue {
        &self.callers[usize::from(tid.0 & 1 == 1)]
    }

    /// Of what nobody goes on from.
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

/// Lets others run and looks again and again until `is_over`, but no longer than `patience`.
fn look(patience: Duration, is_over: impl Fn() -> bool) {
    if patience.is_zero() {
        return;
    }
    let until = Instant::now() + patience;
    while !is_over() && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// A counter of blocks as [`Load`] wants it.
#[derive(Default)]
pub(crate) struct Blocks(AtomicU32);

impl Blocks {
    pub(crate) fn add(&self, n: u32) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn sub(&self, n: u32) {
        self.0.fetch_sub(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
}
