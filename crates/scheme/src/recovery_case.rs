//! The cases that a scheme's recovery distinguishes, as a table. Each case notes when a recovery
//! reaches it, so that tests and explorations can name the cases that none reached.

use std::cell::RefCell;
use std::ptr;

use serde::{Serialize, Serializer};

/// One case of a scheme's recovery table ([`About::recovery`](crate::About::recovery)), made by
/// [`recovery_cases!`](crate::recovery_cases).
#[derive(Debug)]
pub struct RecoveryCase {
    /// The state in which recovery finds the medium.
    pub found: &'static str,
    /// What recovery does then; a refusal begins with "error".
    pub done: &'static str,
    /// Why that is right.
    pub why: &'static str,
}

thread_local! {
    /// The cases that the last opening on this thread reached. One thread does all of an opening,
    /// and an opening that fails has no other way to report them.
    static REACHED: RefCell<Vec<&'static RecoveryCase>> = const { RefCell::new(Vec::new()) };
}

impl RecoveryCase {
    /// Notes that recovery has reached this case.
    pub fn reached(&'static self) {
        REACHED.with_borrow_mut(|reached| {
            if !reached.iter().any(|one| ptr::eq(*one, self)) {
                reached.push(self);
            }
        });
    }

    /// Returns the cases that the last opening on this thread reached, in that order, each once.
    pub fn last_reached() -> Vec<&'static Self> {
        REACHED.with_borrow(Clone::clone)
    }

    /// Forgets the cases of the last opening, because another one begins.
    pub(crate) fn begin() {
        REACHED.with_borrow_mut(Vec::clear);
    }
}

impl PartialEq for RecoveryCase {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for RecoveryCase {}

/// As its [`found`](RecoveryCase::found).
impl Serialize for RecoveryCase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.found)
    }
}

/// Defines a table of [`RecoveryCase`]s: a constant for each case, and one for the table.
///
/// ```
/// stetfs_scheme::recovery_cases! {
///     TABLE:
///     TORN "a record that is not whole" => "the log ends before it", "it was in flight";
/// }
/// TORN.reached();
/// assert_eq!(TABLE[0].done, "the log ends before it");
/// ```
#[macro_export]
macro_rules! recovery_cases {
    ($table:ident: $($row:ident $found:literal => $done:literal, $why:literal;)*) => {
        $(pub(crate) static $row: $crate::RecoveryCase = $crate::RecoveryCase {
            found: $found,
            done: $done,
            why: $why,
        };)*
        pub(crate) static $table: &[&$crate::RecoveryCase] = &[$(&$row),*];
    };
}
