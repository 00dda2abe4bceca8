//! What a crash can leave of a scheme, as a table whose rows know when a recovery came to them.

use std::cell::RefCell;
use std::ptr;

use serde::{Serialize, Serializer};

/// A row of a scheme's recovery table ([`About::recovery`](crate::About::recovery)). Made by
/// [`remnants!`](crate::remnants).
#[derive(Debug)]
pub struct Remnant {
    /// What recovery finds.
    pub found: &'static str,
    /// What it does with that.
    pub done: &'static str,
    /// Why that is right.
    pub why: &'static str,
}

thread_local! {
    /// What the last opening on this thread came to. An opening is the work of one thread, and one
    /// that fails gives nothing else that could tell.
    static MET: RefCell<Vec<&'static Remnant>> = const { RefCell::new(Vec::new()) };
}

impl Remnant {
    /// Recovery has come to this row.
    pub fn met(&'static self) {
        MET.with_borrow_mut(|met| {
            if !met.iter().any(|one| ptr::eq(*one, self)) {
                met.push(self);
            }
        });
    }

    /// The rows that the last opening on this thread came to, in that order, each once.
    pub fn last_met() -> Vec<&'static Self> {
        MET.with_borrow(Clone::clone)
    }

    /// An opening begins.
    pub(crate) fn begin() {
        MET.with_borrow_mut(Vec::clear);
    }
}

impl PartialEq for Remnant {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self, other)
    }
}

impl Eq for Remnant {}

/// As what was found.
impl Serialize for Remnant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.found)
    }
}

/// A table of [`Remnant`]s: a name for each row, and for all of them.
///
/// ```
/// stetfs_scheme::remnants! {
///     TABLE:
///     TORN "a record that is not whole" => "the log ends before it", "it was in flight";
/// }
/// TORN.met();
/// assert_eq!(TABLE[0].done, "the log ends before it");
/// ```
#[macro_export]
macro_rules! remnants {
    ($table:ident: $($row:ident $found:literal => $done:literal, $why:literal;)*) => {
        $(pub(crate) static $row: $crate::Remnant = $crate::Remnant {
            found: $found,
            done: $done,
            why: $why,
        };)*
        pub(crate) static $table: &[&$crate::Remnant] = &[$(&$row),*];
    };
}
