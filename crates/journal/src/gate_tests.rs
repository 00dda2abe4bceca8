//! The join/commit path under a scheduler that tries many interleavings.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p stetfs-journal gate` explores; an ordinary test run
//! uses real threads. Either way the law is the same: when `commit` says that a transaction is
//! durable, the caller's changes in it have been written once, and nothing was added to a
//! transaction after it was closed.

use std::sync::Arc;
use std::time::Duration;

use stetfs_format::Tid;

use crate::error::JournalError;
use crate::gate::{Begin, Gate, Join, Limits, Load, Wish};
use crate::gate_sync::Mutex;
use crate::pace::Pace;

#[cfg(shuttle)]
use shuttle::thread;
#[cfg(not(shuttle))]
use std::thread;

const LIMITS: Limits = Limits {
    blocks: 4,
    pinned: 100,
};

struct Load1(Mutex<Log>);

#[derive(Default)]
struct Log {
    changes: Vec<u32>,
    closed: bool,
}

impl Default for Load1 {
    fn default() -> Self {
        Self(Mutex::new(Log::default()))
    }
}

impl Load for Load1 {
    fn blocks(&self) -> u32 {
        self.0.lock().changes.len() as u32
    }

    fn pinned(&self) -> u32 {
        self.blocks()
    }

    fn unpin(&self, _: u32) {}

    fn is_empty(&self) -> bool {
        self.blocks() == 0
    }
}

struct World {
    gate: Gate<Load1>,
    /// The durable changes, by transaction.
    durable: Mutex<Vec<(Tid, Vec<u32>)>>,
    /// The transaction whose commit is under way.
    busy: Mutex<Option<Tid>>,
    /// The commit of this transaction fails.
    fails: Option<Tid>,
}

impl World {
    fn new(fails: Option<Tid>, pace: Pace) -> Arc<Self> {
        Arc::new(Self {
            gate: Gate::new(Tid(1), pace),
            durable: Mutex::new(Vec::new()),
            busy: Mutex::new(None),
            fails,
        })
    }

    fn change(&self, what: u32) -> Result<Tid, JournalError> {
        loop {
            match self.gate.join(2, LIMITS)? {
                Join::Joined { tid, load } => {
                    {
                        let mut log = load.0.lock();
                        assert!(!log.closed, "change {what} came into a closed transaction");
                        log.changes.push(what);
                    }
                    self.gate.leave(2);
                    return Ok(tid);
                }
                Join::Full(tid) => self.commit_as(tid, Wish::Room)?,
            }
        }
    }

    fn commit(&self, tid: Tid) -> Result<(), JournalError> {
        self.commit_as(tid, Wish::Durable)
    }

    fn commit_as(&self, tid: Tid, wish: Wish) -> Result<(), JournalError> {
        match self.gate.begin_commit(tid, wish)? {
            Begin::Done { .. } => Ok(()),
            Begin::Closed { tid, load } => {
                let changes = {
                    let mut log = load.0.lock();
                    log.closed = true;
                    log.changes.clone()
                };
                self.gate.switch();
                let result = self.gate.take_turn().and_then(|()| {
                    let busy = self.busy.lock().replace(tid);
                    assert_eq!(busy, None, "two commits at once");
                    if self.fails == Some(tid) {
                        return Err(JournalError::Unusable("planted".to_owned()));
                    }
                    thread::yield_now();
                    self.durable.lock().push((tid, changes));
                    *self.busy.lock() = None;
                    Ok(())
                });
                self.gate.finish(tid, result.clone());
                result
            }
        }
    }

    fn is_durable(&self, what: u32) -> bool {
        self.durable
            .lock()
            .iter()
            .any(|(_, changes)| changes.contains(&what))
    }
}

/// Paces by which commits wait for a medium, and one by which they overlap.
const PACES: [Pace; 3] = [
    Pace::Medium {
        batch: Duration::ZERO,
        least: Duration::ZERO,
    },
    Pace::Medium {
        batch: Duration::from_secs(3600),
        least: Duration::ZERO,
    },
    Pace::Processors {
        overlap: 2,
        looks: 50,
    },
];

fn run(threads: u32, each: u32, fails: Option<Tid>, pace: Pace) {
    let world = World::new(fails, pace);
    let workers: Vec<_> = (0..threads)
        .map(|t| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                for i in 0..each {
                    let what = t * 100 + i;
                    let outcome = world.change(what).and_then(|tid| world.commit(tid));
                    match outcome {
                        Ok(()) => {
                            assert!(world.is_durable(what), "{what} was confirmed, not written")
                        }
                        Err(_) => {
                            assert!(fails.is_some());
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no worker panics");
    }
    let durable = world.durable.lock();
    let mut seen: Vec<u32> = durable
        .iter()
        .flat_map(|(_, changes)| changes.clone())
        .collect();
    assert!(
        durable.windows(2).all(|w| w[1].0 == w[0].0.next()),
        "transactions in order"
    );
    seen.sort_unstable();
    let all = seen.len();
    seen.dedup();
    assert_eq!(all, seen.len(), "a change was written twice");
    if fails.is_none() {
        assert_eq!(all as u32, threads * each);
    } else {
        assert!(matches!(
            world.gate.stopped(),
            Some(JournalError::Aborted(_))
        ));
    }
}

/// Opens a handle with two credits that has made one change, while another thread commits; with
/// `wait_until_locked`, until that commit waits for the handle.
fn half_done(wait_until_locked: bool, pace: Pace) -> (Arc<World>, Committer) {
    let world = World::new(None, pace);
    let Ok(Join::Joined { tid, load }) = world.gate.join(2, LIMITS) else {
        panic!("nothing runs yet");
    };
    load.0.lock().changes.push(1);
    let committer = {
        let world = Arc::clone(&world);
        thread::spawn(move || world.commit(tid))
    };
    while wait_until_locked && world.gate.extend(0, LIMITS, true) {
        thread::yield_now();
    }
    (world, committer)
}

type Committer = thread::JoinHandle<Result<(), JournalError>>;

/// An operation that is half done stops the gate while another thread commits.
fn stopped_half_done(wait_until_locked: bool, pace: Pace) {
    let (world, committer) = half_done(wait_until_locked, pace);
    world.gate.stop(JournalError::Shutdown);
    world.gate.leave(2);
    let outcome = committer.join().expect("it does not panic");
    assert!(outcome.is_err(), "the half of an operation was committed");
    assert!(!world.is_durable(1));
    assert!(world.change(2).is_err());
}

#[cfg(not(shuttle))]
#[test]
fn a_commit_that_waits_notices_a_stop() {
    for pace in PACES {
        stopped_half_done(true, pace);
    }
}

/// A commit that waits does not cut an operation; but an operation that may be split ends there.
#[cfg(not(shuttle))]
#[test]
fn a_commit_waits_for_an_operation_that_grows() {
    for pace in PACES {
        let (world, committer) = half_done(true, pace);
        assert!(!world.gate.extend(1, LIMITS, true), "the commit waits");
        assert!(world.gate.extend(1, LIMITS, false), "there is room");
        assert!(!world.gate.extend(1, LIMITS, false), "it is full");
        world.gate.leave(3);
        committer
            .join()
            .expect("it does not panic")
            .expect("it commits");
        assert!(world.is_durable(1));
    }
}

/// Two threads whose commits have missed each other come together: the next transaction has one
/// change of each. A thread that commits to get room does not wait for the other.
#[cfg(not(shuttle))]
#[test]
fn a_commit_waits_for_who_is_expected() {
    for wish in [Wish::Durable, Wish::Room] {
        let world = World::new(None, PACES[1]);
        let tid = world.change(1).expect("nothing has failed");
        world.gate.expect(2);
        let first = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.commit(tid))
        };
        while !world.gate.gathers() {
            assert!(!first.is_finished(), "it waits for nobody");
            thread::yield_now();
        }
        assert_eq!(world.change(2).expect("it has room"), tid);
        world.commit_as(tid, wish).expect("nothing fails");
        first.join().expect("no panic").expect("nothing fails");
        assert_eq!(*world.durable.lock(), [(tid, vec![1, 2])]);
    }
}

/// Two threads wait for a transaction whose only handle changes nothing, while another one commits.
fn waits_for_nothing(pace: Pace) {
    let world = World::new(None, pace);
    let first = world.change(1).expect("nothing has failed");
    let Ok(Begin::Closed { tid, .. }) = world.gate.begin_commit(first, Wish::Durable) else {
        panic!("nobody else commits");
    };
    world.gate.switch();
    world.gate.take_turn().expect("it is the first");
    let Ok(Join::Joined { tid: next, .. }) = world.gate.join(1, LIMITS) else {
        panic!("the next one runs");
    };
    let callers = [(); 2].map(|()| {
        let world = Arc::clone(&world);
        thread::spawn(move || world.commit(next))
    });
    while cfg!(not(shuttle)) && pace.overlap() == 0 && world.gate.sleepers(next) < 2 {
        thread::yield_now();
    }
    world.gate.leave(1);
    world.gate.finish(tid, Ok(()));
    for caller in callers {
        let done = caller.join().expect("it does not panic");
        done.expect("there is nothing to make durable");
    }
}

/// A journal was closed under an operation that had changed nothing yet, or under a commit.
#[cfg(not(shuttle))]
#[test]
fn it_is_sealed_only_when_nobody_is_at_work() {
    let sealed = |world: &World, is_settled: bool| {
        let is = world.gate.seal(JournalError::ReadOnly, || is_settled);
        assert_eq!(is, world.gate.stopped().is_some());
        is
    };
    for pace in PACES {
        let world = World::new(None, pace);
        assert!(matches!(
            world.gate.join(1, LIMITS),
            Ok(Join::Joined { .. })
        ));
        assert!(!sealed(&world, true), "an operation is under way");
        world.gate.leave(1);
        let tid = world.change(1).expect("nothing has failed");
        assert!(!sealed(&world, true), "something is to be committed");
        let begun = world.gate.begin_commit(tid, Wish::Durable);
        assert!(matches!(begun, Ok(Begin::Closed { .. })));
        world.gate.switch();
        assert!(!sealed(&world, true), "a commit is under way");
        world.gate.take_turn().expect("it is the first");
        assert!(!sealed(&world, true), "a commit is under way");
        world.gate.finish(tid, Ok(()));
        assert!(!sealed(&world, false), "something else is not settled");
        assert!(sealed(&world, true));
        assert!(world.change(2).is_err());
    }
}

/// After a commit that fails before its turn, as when data cannot be placed, no commit is under way
/// and nobody can join.
#[cfg(not(shuttle))]
#[test]
fn what_fails_before_its_turn_is_over() {
    for pace in PACES {
        let world = World::new(None, pace);
        let tid = world.change(1).expect("nothing has failed");
        let begun = world.gate.begin_commit(tid, Wish::Durable);
        assert!(matches!(begun, Ok(Begin::Closed { .. })));
        world.gate.switch();
        let why = JournalError::Unusable("planted".to_owned());
        world.gate.finish(tid, Err(why));
        assert!(world.change(2).is_err());
        assert!(world.commit(tid).is_err());
        assert!(world.gate.seal(JournalError::ReadOnly, || true));
        let stopped = world.gate.stopped();
        assert!(
            matches!(stopped, Some(JournalError::Aborted(_))),
            "{stopped:?}"
        );
    }
}

/// `join_early` joins while other threads are at work that would wait; not alone, not where commits
/// take a medium's time, and not after a stop.
#[cfg(not(shuttle))]
#[test]
fn one_joins_early_beside_others_only() {
    for pace in PACES {
        let world = World::new(None, pace);
        let Ok(Join::Joined { tid, .. }) = world.gate.join(1, LIMITS) else {
            panic!("nothing runs yet");
        };
        let overlaps = pace.overlap() > 0;
        assert!(
            world.gate.join_early(tid.next()).is_none(),
            "it does not run"
        );
        let joined = world.gate.join_early(tid);
        assert_eq!(joined.is_some(), overlaps);
        if joined.is_some() {
            world.gate.leave(0);
        }
        world.gate.leave(1);
        assert!(world.gate.join_early(tid).is_none(), "nobody is at work");
        assert!(matches!(
            world.gate.join(1, LIMITS),
            Ok(Join::Joined { .. })
        ));
        world.gate.stop(JournalError::Shutdown);
        assert!(world.gate.join_early(tid).is_none(), "all has stopped");
        world.gate.leave(1);
    }
}

#[cfg(not(shuttle))]
#[test]
fn all_hear_that_there_is_nothing_to_commit() {
    PACES.into_iter().for_each(waits_for_nothing);
}

#[cfg(not(shuttle))]
#[test]
fn real_threads() {
    for pace in PACES {
        for _ in 0..50 {
            run(4, 20, None, pace);
            run(4, 20, Some(Tid(5)), pace);
        }
    }
}

#[cfg(shuttle)]
#[test]
fn random_schedules() {
    for pace in PACES {
        shuttle::check_random(move || run(3, 3, None, pace), 20_000);
        shuttle::check_random(move || run(3, 3, Some(Tid(2)), pace), 20_000);
        shuttle::check_random(move || stopped_half_done(false, pace), 20_000);
        shuttle::check_random(move || waits_for_nothing(pace), 20_000);
    }
}

#[cfg(shuttle)]
#[test]
fn few_preemptions() {
    for pace in PACES {
        shuttle::check_pct(move || run(3, 2, None, pace), 20_000, 3);
        shuttle::check_pct(move || run(2, 3, Some(Tid(2)), pace), 20_000, 3);
    }
}
