//! Runs one thread at a time, chosen by a seed, so that a run of several threads repeats in the
//! same order.
//!
//! The first thread carries out the operations of a workload. A sync that overlaps with later
//! operations has its own thread. Sometimes a further thread commits and writes home, as a mount
//! does in the background. A thread may hand the turn on wherever another thread could see the
//! difference: when it takes a lock, and before it changes a medium. A thread that cannot have a
//! lock hands the turn on too, so no thread ever sleeps while it has the turn.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use stetfs::{Schedule, Scheduled};

use stetfs_testkit::rng::Rng;

/// The order in which the operations of a workload and their commits are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Order {
    /// One operation after the other. A commit runs when an operation asks for it, or when the
    /// transaction is full.
    #[default]
    InOrder,
    /// The same, but every handle has its own transaction, so that an operation of several handles
    /// is cut between them.
    EachHandle,
    /// Operations begin while earlier syncs are still running, and commits sometimes come between
    /// two handles. The number is the seed.
    Overlap(u64),
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InOrder => f.write_str("in-order"),
            Self::EachHandle => f.write_str("each-handle"),
            Self::Overlap(seed) => write!(f, "overlap{seed}"),
        }
    }
}

impl FromStr for Order {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match (text, text.strip_prefix("overlap")) {
            ("in-order", _) => Self::InOrder,
            ("each-handle", _) => Self::EachHandle,
            (_, Some(seed)) => {
                let wrong = || format!("\"{seed}\" is no seed");
                Self::Overlap(seed.parse().with_context(wrong)?)
            }
            _ => bail!("no order \"{text}\": in-order, each-handle, overlap and a seed"),
        })
    }
}

impl From<Order> for String {
    fn from(order: Order) -> Self {
        order.to_string()
    }
}

impl TryFrom<String> for Order {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

thread_local! {
    /// The number of this thread among those that take turns.
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Hands the turn from thread to thread.
#[derive(Debug)]
pub(super) struct Turns {
    order: Order,
    state: Mutex<State>,
    turned: Condvar,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    holder: usize,
    /// The thread with the turn hands it on at this many places from now.
    steps: u32,
    threads: Vec<Thread>,
    /// All threads run as they can.
    over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// It can run. While other threads can run too, it rests until the turn was handed on this
    /// often.
    Ready(u32),
    /// It waits for something that another thread must do.
    Waits,
    Done,
}

impl Turns {
    pub(super) fn new(order: Order) -> Arc<Self> {
        let seed = match order {
            Order::Overlap(seed) => seed,
            Order::InOrder | Order::EachHandle => 0,
        };
        Arc::new(Self {
            order,
            state: Mutex::new(State {
                rng: Rng::new(seed ^ 0x7_0235),
                holder: 0,
                steps: 1,
                threads: Vec::new(),
                over: false,
            }),
            turned: Condvar::new(),
        })
    }

    /// True if operations begin while syncs are still running.
    pub(super) fn overlap(&self) -> bool {
        matches!(self.order, Order::Overlap(_))
    }

    /// Makes the calling thread the first one, with the turn. When the returned value is dropped,
    /// all threads run as they can.
    pub(super) fn drive(self: &Arc<Self>) -> Drive {
        self.state.lock().threads.push(Thread::Ready(0));
        ME.set(Some(0));
        Drive {
            _scheduled: (self.order != Order::InOrder).then(|| Scheduled::by(self.clone())),
            turns: Arc::clone(self),
        }
    }

    /// Adds a thread and returns its number. It gets the turn when the first thread calls
    /// [`stop`](Self::stop) with this number.
    pub(super) fn add(&self) -> usize {
        let mut state = self.state.lock();
        state.threads.push(Thread::Ready(0));
        state.threads.len() - 1
    }

    /// Runs `work` as thread `number`, in its turns.
    pub(super) fn run<T>(self: &Arc<Self>, number: usize, work: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        self.until_turn(&mut state, number);
        drop(state);
        ME.set(Some(number));
        let scheduled = Scheduled::by(self.clone());
        let done = work();
        drop(scheduled);
        ME.set(None);
        let mut state = self.state.lock();
        state.threads[number] = Thread::Done;
        state.wake();
        state.hand_on(None);
        self.turned.notify_all();
        done
    }

    /// Hands the turn on, to thread `to` if there is one, and waits until the turn is back.
    pub(super) fn stop(&self, to: Option<usize>) {
        if let Some(me) = ME.get() {
            let mut state = self.state.lock();
            state.wake();
            // A thread that stops may let the others run for long.
            let rest = match to {
                Some(_) => 0,
                None => (1 << state.rng.below(6)) - 1,
            };
            self.hand_on(&mut state, me, Thread::Ready(rest), to);
        }
    }

    /// Lets the other threads run until at most `most` are not done.
    pub(super) fn until(&self, most: usize) {
        while self.others() > most {
            self.wait();
        }
    }

    /// Returns the number of threads that are not done, without the first.
    fn others(&self) -> usize {
        let state = self.state.lock();
        let others = state.threads.iter().skip(1);
        others.filter(|t| **t != Thread::Done).count()
    }

    /// True with a probability of `percent`.
    pub(super) fn chance(&self, percent: u64) -> bool {
        self.state.lock().rng.chance(percent)
    }

    fn hand_on(
        &self,
        state: &mut MutexGuard<'_, State>,
        me: usize,
        status: Thread,
        to: Option<usize>,
    ) {
        state.threads[me] = status;
        state.hand_on(to);
        self.turned.notify_all();
        self.until_turn(state, me);
        state.threads[me] = Thread::Ready(0);
    }

    fn until_turn(&self, state: &mut MutexGuard<'_, State>, me: usize) {
        while state.holder != me && !state.over {
            self.turned.wait(state);
        }
    }
}

impl State {
    /// Lets waiting threads look again, since something has changed.
    fn wake(&mut self) {
        for thread in &mut self.threads {
            if *thread == Thread::Waits {
                *thread = Thread::Ready(0);
            }
        }
    }

    /// Gives the turn to `to`, or to a random thread that can run. If no thread can run, a waiting
    /// thread gets it and looks again.
    fn hand_on(&mut self, to: Option<usize>) {
        let rank = |thread: &Thread| match thread {
            Thread::Ready(0) => Some(0),
            Thread::Ready(_) => Some(1),
            Thread::Waits => Some(2),
            Thread::Done => None,
        };
        let best = self.threads.iter().filter_map(rank).min();
        let those = self.threads.iter().enumerate();
        let those = those.filter(|(_, thread)| best.is_some() && rank(thread) == best);
        let next: Vec<_> = those.map(|(n, _)| n).collect();
        for thread in &mut self.threads {
            if let Thread::Ready(rest) = thread {
                *rest = rest.saturating_sub(1);
            }
        }
        if let Some(last) = next.len().checked_sub(1) {
            let nth = self.rng.below(last as u64 + 1) as usize;
            self.holder = to.unwrap_or(next[nth]);
            // A turn is as long as a moment, an operation or a whole commit, each equally often,
            // and ends anywhere.
            let most = 1 << self.rng.below(11);
            self.steps = 1 + self.rng.below(most) as u32;
        }
    }
}

impl Schedule for Turns {
    fn commits_first(&self) -> bool {
        match (ME.get(), self.order) {
            (Some(_), Order::EachHandle) => true,
            (Some(0), Order::Overlap(_)) => self.chance(20),
            _ => false,
        }
    }

    fn splits(&self) -> bool {
        match (ME.get(), self.order) {
            (Some(_), Order::EachHandle) => self.chance(50),
            (Some(_), Order::Overlap(_)) => self.chance(10),
            _ => false,
        }
    }

    fn pass(&self) {
        if !self.overlap() || self.others() == 0 {
            return;
        }
        let is_over = {
            let mut state = self.state.lock();
            state.steps = state.steps.saturating_sub(1);
            state.steps == 0
        };
        if is_over {
            self.stop(None);
        }
    }

    fn wait(&self) {
        if let Some(me) = ME.get() {
            self.hand_on(&mut self.state.lock(), me, Thread::Waits, None);
        }
    }
}

/// While this lives, threads take turns.
pub(super) struct Drive {
    _scheduled: Option<Scheduled>,
    turns: Arc<Turns>,
}

impl Drop for Drive {
    fn drop(&mut self) {
        ME.set(None);
        self.turns.state.lock().over = true;
        self.turns.turned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Returns the order in which three threads pass, each with stops on its way.
    fn order(seed: u64) -> Vec<(usize, usize)> {
        let turns = Turns::new(Order::Overlap(seed));
        let seen = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let drive = turns.drive();
            for _ in 0..2 {
                let (number, turns, seen) = (turns.add(), &turns, &seen);
                scope.spawn(move || {
                    turns.run(number, || {
                        (0..5).for_each(|step| {
                            seen.lock().push((number, step));
                            turns.stop(None);
                        });
                    });
                });
            }
            for step in 0..5 {
                seen.lock().push((0, step));
                turns.stop(None);
            }
            turns.until(0);
            drop(drive);
        });
        seen.into_inner()
    }

    #[test]
    fn a_seed_tells_the_order() {
        let orders: Vec<_> = (0..20).map(order).collect();
        assert!(orders.iter().all(|order| order.len() == 15));
        assert_eq!(orders, (0..20).map(order).collect::<Vec<_>>());
        let different: std::collections::BTreeSet<_> = orders.into_iter().collect();
        assert!(different.len() > 15, "{different:?}");
    }

    /// Two threads want one lock of the file system, and hand the turn on while they hold it.
    #[test]
    fn nobody_sleeps_on_a_lock() {
        for seed in 0..50 {
            let turns = Turns::new(Order::Overlap(seed));
            let lock = stetfs_sync::Mutex::new(0);
            thread::scope(|scope| {
                let drive = turns.drive();
                let (number, turns, lock) = (turns.add(), &turns, &lock);
                let add = || {
                    for _ in 0..20 {
                        let mut held = lock.lock();
                        let before = *held;
                        turns.stop(None);
                        *held = before + 1;
                    }
                };
                scope.spawn(move || turns.run(number, add));
                turns.stop(Some(number));
                add();
                turns.until(0);
                drop(drive);
            });
            assert_eq!(*lock.lock(), 40);
        }
    }
}
