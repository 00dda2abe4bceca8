//! Who goes on when several are at work: one thread at a time, chosen by a seed, so that a run happens again in the same order.
//!
//! The operations of a workload are the first thread's. A sync that begins while others are to go on has a thread of its own; it hands the turn on
//! where its commit holds no lock, and where it waits for another commit. Whoever sleeps on a lock all the same, because one who has handed on
//! holds it, loses the turn: from there to his next stop two are at work, and the order is not told by the seed alone.

use std::cell::Cell;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::{Condvar, Mutex, MutexGuard};
use stetfs::Schedule;

use crate::rng::Rng;

/// In which order the operations of a workload and their commits are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// One operation after the other; a commit when one asks for it, or when the transaction is full.
    #[default]
    InOrder,
    /// So too, but every handle has a transaction of its own: what an operation does in several is cut between them.
    EachHandle,
    /// Operations begin while syncs before them are not done, and commits come now and then between two handles; from a seed.
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
    threads: Vec<Thread>,
    /// Everybody goes on as he can.
    over: bool,
}

#[derive(Debug)]
struct Thread {
    status: Status,
    /// Where the kernel says what it does.
    stat: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// It can go on.
    Ready,
    /// Somebody else must have done something first.
    Waits,
    /// It sleeps on a lock, and has lost its turn.
    Sleeps,
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
                threads: Vec::new(),
                over: false,
            }),
            turned: Condvar::new(),
        })
    }

    /// Whether operations begin while syncs are not done.
    pub(super) fn overlap(&self) -> bool {
        matches!(self.order, Order::Overlap(_))
    }

    /// The calling thread is the first, and has the turn, until what is given back is dropped: then all go on as they can.
    pub(super) fn drive(self: &Arc<Self>) -> Drive {
        self.state.lock().threads.push(Thread::of_caller());
        ME.set(Some(0));
        Drive(Arc::clone(self))
    }

    /// The number of a new thread, which has the turn as soon as the first one calls [`stop`](Self::stop).
    pub(super) fn add(&self) -> usize {
        let mut state = self.state.lock();
        state.threads.push(Thread {
            status: Status::Ready,
            stat: None,
        });
        state.threads.len() - 1
    }

    /// What thread `number` does, in its turns.
    pub(super) fn run<T>(&self, number: usize, work: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        state.threads[number] = Thread::of_caller();
        self.until_turn(&mut state, number);
        drop(state);
        ME.set(Some(number));
        let done = work();
        ME.set(None);
        let mut state = self.state.lock();
        state.threads[number].status = Status::Done;
        state.wake();
        if state.holder == number {
            state.hand_on(None);
            self.turned.notify_all();
        }
        done
    }

    /// Hands the turn on, to `to` if it is somebody's in particular, and waits until it is back.
    pub(super) fn stop(&self, to: Option<usize>) {
        if let Some(me) = ME.get() {
            let mut state = self.state.lock();
            state.wake();
            self.hand_on(&mut state, me, Status::Ready, to);
        }
    }

    /// Lets the others go on until at most so many are not done.
    pub(super) fn until(&self, most: usize) {
        while self.others() > most {
            self.wait();
        }
    }

    /// How many threads but the first are not done.
    fn others(&self) -> usize {
        let state = self.state.lock();
        let others = state.threads.iter().skip(1);
        others.filter(|t| t.status != Status::Done).count()
    }

    /// Whether something that happens so often, in per cent, happens now.
    pub(super) fn chance(&self, percent: u64) -> bool {
        self.state.lock().rng.chance(percent)
    }

    fn hand_on(
        &self,
        state: &mut MutexGuard<'_, State>,
        me: usize,
        status: Status,
        to: Option<usize>,
    ) {
        state.threads[me].status = status;
        if state.holder == me {
            state.hand_on(to);
            self.turned.notify_all();
        }
        self.until_turn(state, me);
        state.threads[me].status = Status::Ready;
    }

    fn until_turn(&self, state: &mut MutexGuard<'_, State>, me: usize) {
        /// How often a thread that has the turn is looked at, and in how many looks it must be asleep.
        const LOOK_EVERY: Duration = Duration::from_millis(4);
        const LOOKS: u32 = 4;
        let mut asleep = 0;
        while state.holder != me && !state.over {
            if !self.turned.wait_for(state, LOOK_EVERY).timed_out() {
                asleep = 0;
                continue;
            }
            let holder = state.holder;
            asleep = match state.threads[holder].is_asleep() {
                true => asleep + 1,
                false => 0,
            };
            if asleep == LOOKS {
                state.threads[holder].status = Status::Sleeps;
                state.hand_on(None);
                self.turned.notify_all();
                asleep = 0;
            }
        }
    }
}

impl State {
    /// Something was done that somebody may have waited for.
    fn wake(&mut self) {
        for thread in &mut self.threads {
            if thread.status == Status::Waits {
                thread.status = Status::Ready;
            }
        }
    }

    /// Gives the turn to `to`, or to one by chance who can go on; when nobody can, to one who waits, who looks again.
    fn hand_on(&mut self, to: Option<usize>) {
        let those = |status| {
            let threads = self.threads.iter().enumerate();
            let those = threads.filter(move |(_, thread)| thread.status == status);
            those.map(|(n, _)| n).collect::<Vec<_>>()
        };
        let ready = those(Status::Ready);
        let next = match ready.is_empty() {
            true => those(Status::Waits),
            false => ready,
        };
        if let Some(last) = next.len().checked_sub(1) {
            let nth = self.rng.below(last as u64 + 1) as usize;
            self.holder = to.unwrap_or(next[nth]);
        }
    }
}

impl Thread {
    fn of_caller() -> Self {
        let stat = fs::read_link("/proc/thread-self");
        Self {
            status: Status::Ready,
            stat: stat
                .ok()
                .map(|own| PathBuf::from("/proc").join(own).join("stat")),
        }
    }

    fn is_asleep(&self) -> bool {
        let stat = self.stat.as_ref().and_then(|p| fs::read_to_string(p).ok());
        // Behind the name, which is in parentheses.
        let state = stat.as_deref().and_then(|s| s.rsplit_once(") "));
        state.is_some_and(|(_, rest)| rest.starts_with('S'))
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

    fn pass(&self) {
        if ME.get().is_some() && self.overlap() && self.chance(60) {
            self.stop(None);
        }
    }

    fn wait(&self) {
        match ME.get() {
            Some(me) => self.hand_on(&mut self.state.lock(), me, Status::Waits, None),
            None => thread::yield_now(),
        }
    }
}

/// While it lives threads take turns.
pub(super) struct Drive(Arc<Turns>);

impl Drop for Drive {
    fn drop(&mut self) {
        ME.set(None);
        self.0.state.lock().over = true;
        self.0.turned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which three threads come through, each with stops on its way.
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

    #[test]
    fn who_sleeps_on_a_lock_loses_the_turn() {
        let turns = Turns::new(Order::Overlap(1));
        let lock = Mutex::new(());
        thread::scope(|scope| {
            let drive = turns.drive();
            let number = turns.add();
            let held = lock.lock();
            let (turns, lock) = (&turns, &lock);
            scope.spawn(move || turns.run(number, || drop(lock.lock())));
            turns.stop(Some(number));
            drop(held);
            turns.until(0);
            drop(drive);
        });
    }
}
