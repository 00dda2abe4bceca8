//! Reading a log after a crash: which transactions count.

use stetfs_format::Tid;
use stetfs_scheme::{RecoveryCase, Result, SchemeError};

/// The bytes at a place where a transaction should begin.
pub(crate) enum Seen<P, T> {
    /// An intact transaction, and where the next one begins.
    Intact(T, P),
    /// No transaction with that number.
    Nothing,
    /// A transaction that is not intact, and where the next one would begin, if that is known.
    Damaged(SchemeError, Option<P>),
}

/// The cases of a scan, from the scheme's recovery table.
pub(crate) struct Ends {
    /// A transaction counts.
    pub(crate) whole: &'static RecoveryCase,
    /// No transaction is there.
    pub(crate) nothing: &'static RecoveryCase,
    /// A transaction was in flight.
    pub(crate) in_flight: &'static RecoveryCase,
    /// A transaction was durable, and was damaged later.
    pub(crate) damaged: &'static RecoveryCase,
}

/// Returns all transactions that count, from position `at` and number `sequence` on, and the
/// position behind them.
///
/// The log ends where no transaction is, or a damaged one: the power went off while it was written.
/// But `is_followed` may prove that the damaged one was durable. It gets the position of that
/// transaction, the position of the next one, and the number.
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
