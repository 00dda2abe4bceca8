//! Reading a log after a crash: which transactions count.

use stetfs_format::Tid;
use stetfs_scheme::{RecoveryCase, Result, SchemeError};

/// What lies where a transaction should begin.
pub(crate) enum Seen<P, T> {
    /// A transaction, intact, and where the next one begins.
    Intact(T, P),
    /// None with that number.
    Nothing,
    /// Something that is not intact, and where the next one would begin, if that can be told.
    Damaged(SchemeError, Option<P>),
}

/// What a log can end with, as rows of a recovery table.
pub(crate) struct Ends {
    /// A transaction counts.
    pub(crate) whole: &'static RecoveryCase,
    /// There is none.
    pub(crate) nothing: &'static RecoveryCase,
    /// One was in flight.
    pub(crate) in_flight: &'static RecoveryCase,
    /// One was durable, and is damaged.
    pub(crate) damaged: &'static RecoveryCase,
}

/// All transactions that count, from position `at` and number `sequence` on, and the position
/// behind them.
///
/// The log ends where there is nothing, and where something is damaged: the power went off while it
/// was written. Unless what `is_followed` looks for (by its position, the next one and its number)
/// proves that it was durable.
///
/// # Errors
/// The damage of a transaction that was durable.
pub(crate) fn scan<P: Copy, T>(
    mut at: P,
    mut sequence: Tid,
    ends: &Ends,
    mut look: impl FnMut(P, Tid) -> Result<Seen<P, T>>,
    is_followed: impl FnOnce(P, Option<P>, Tid) -> Result<bool>,
) -> Result<(Vec<T>, P)> {
    let mut found = Vec::new();
    loop {
        match look(at, sequence)? {
            Seen::Intact(transaction, next) => {
                ends.whole.reached();
                found.push(transaction);
                (at, sequence) = (next, sequence.next());
            }
            Seen::Nothing => {
                ends.nothing.reached();
                return Ok((found, at));
            }
            Seen::Damaged(why, next) => {
                if is_followed(at, next, sequence)? {
                    ends.damaged.reached();
                    return Err(why);
                }
                ends.in_flight.reached();
                return Ok((found, at));
            }
        }
    }
}
