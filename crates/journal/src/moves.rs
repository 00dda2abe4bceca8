//! What a cached block may do next: the table of `page.rs` as data, which debug builds hold every
//! move against, and which the walk of `page_tests.rs` reaches whole.

/// What a block is ([`page`](crate::page)).
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

/// What happens to a block.
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

/// From what, by what, to what.
pub(crate) type Move = (Kind, Step, Kind);

/// All moves that there are.
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

/// A block makes a move. Debug builds panic when it is none of [`MOVES`].
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
        /// Which moves this thread has made, a bit each.
        static MADE: Cell<u32> = const { Cell::new(0) };
    }

    pub(super) fn made(index: usize) {
        MADE.set(MADE.get() | 1 << index);
    }

    /// The moves that this thread has not made.
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
