//! The moves that a cached block may make: the table of `page.rs` as data. Debug builds check every
//! move against it, and the random walk of `page_tests.rs` makes every move in it.

/// The state of a block ([`page`](crate::page)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hole,
    Unread,
    Clean,
    Delayed,
    Running,
    Committing,
    Gone,
}

/// The step that moves a block to another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Delay,
    Enlist,
    Write,
    Place,
    Close,
    Finish,
    Overwrite,
    Drop,
    Evict,
}

/// The state before, the step, the state after.
pub(crate) type Move = (Kind, Step, Kind);

/// All legal moves.
pub(crate) const MOVES: [Move; 18] = [
    (Kind::Hole, Step::Delay, Kind::Delayed),
    (Kind::Delayed, Step::Delay, Kind::Delayed),
    (Kind::Delayed, Step::Enlist, Kind::Running),
    (Kind::Hole, Step::Write, Kind::Running),
    (Kind::Unread, Step::Write, Kind::Running),
    (Kind::Clean, Step::Write, Kind::Running),
    (Kind::Running, Step::Write, Kind::Running),
    (Kind::Running, Step::Place, Kind::Running),
    (Kind::Running, Step::Close, Kind::Committing),
    (Kind::Committing, Step::Write, Kind::Running),
    (Kind::Committing, Step::Finish, Kind::Clean),
    (Kind::Running, Step::Overwrite, Kind::Clean),
    (Kind::Committing, Step::Overwrite, Kind::Clean),
    (Kind::Clean, Step::Drop, Kind::Gone),
    (Kind::Delayed, Step::Drop, Kind::Gone),
    (Kind::Running, Step::Drop, Kind::Gone),
    (Kind::Committing, Step::Drop, Kind::Gone),
    (Kind::Clean, Step::Evict, Kind::Gone),
];

/// Checks a move. Debug builds panic when it is not in [`MOVES`].
#[inline]
pub(crate) fn note(from: Kind, step: Step, to: Kind) {
    if !cfg!(debug_assertions) {
        return;
    }
    match MOVES.iter().position(|known| *known == (from, step, to)) {
        Some(_made) => {
            #[cfg(test)]
            tests::made(_made);
        }
        None => panic!("{step:?} takes a block from {from:?} to {to:?}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::{MOVES, Move};

    thread_local! {
        /// The moves that this thread has made, one bit each.
        static MADE: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn made(index: usize) {
        MADE.set(MADE.get() | 1 << index);
    }

    /// Returns the moves that this thread has not made.
    pub(crate) fn missing() -> Vec<Move> {
        let is_missing = |(n, _): &(usize, &Move)| MADE.get() & 1 << n == 0;
        MOVES
            .iter()
            .enumerate()
            .filter(is_missing)
            .map(|(_, made)| *made)
            .collect()
    }
}
