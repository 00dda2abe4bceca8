//! Workloads that behave as the benchmarks of the papers do, driven through the library on any
//! scheme and medium.
//!
//! A [`Workload`] makes calls through a [`Session`], which decides when what was written becomes
//! durable, counts, and tells how far it is. The same workload with the same seed makes the same
//! calls on every system. (What power cuts are explored with is in `crash/workload.rs`.)

mod beside;
pub mod bonnie;
pub mod calls;
mod content;
mod dice;
pub mod filebench;
pub mod fio;
pub mod iozone;
pub mod overwrite;
pub mod postmark;
mod session;
pub mod single;
pub mod sqlite;
pub mod tpcc;
pub mod updates;

pub use beside::Background;
pub use bonnie::Bonnie;
pub use content::Content;
pub use filebench::{Filebench, Personality};
pub use fio::Fio;
pub use iozone::Iozone;
pub use overwrite::Overwrite;
pub use postmark::Postmark;
pub use session::{Counts, Durable, Session, Spent, Tell, Time};
pub use single::Single;
pub use tpcc::Tpcc;
pub use updates::Updates;

use anyhow::Result;

/// Something to be done on a volume.
pub trait Workload {
    /// Its name with what distinguishes it, for reports.
    fn name(&self) -> String;

    /// What must be there before: not measured.
    ///
    /// # Errors
    /// Of the volume.
    fn prepare(&self, session: &mut Session<'_>) -> Result<()>;

    /// After everything is home and the volume was mounted again: brings into the cache, where the
    /// system has one, what the original would find there. Not measured either.
    ///
    /// # Errors
    /// Of the volume.
    fn warm(&self, _: &mut Session<'_>) -> Result<()> {
        Ok(())
    }

    /// What is measured.
    ///
    /// # Errors
    /// Of the volume.
    fn run(&self, session: &mut Session<'_>) -> Result<()>;

    /// Its updates, where SQLite makes its calls.
    fn sqlite(&self) -> Option<Updates> {
        None
    }

    /// Whether there is something to [`judge`](Self::judge).
    fn is_judged(&self) -> bool {
        false
    }

    /// After everything is home and the volume was mounted again: whether the run has left what it
    /// should. Not measured.
    ///
    /// # Errors
    /// It has not; of the volume.
    fn judge(&self, _: &mut Session<'_>) -> Result<()> {
        Ok(())
    }
}
