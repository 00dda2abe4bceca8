//! What a workload is.

use anyhow::Result;

use super::session::Session;
use super::sqlite::Updates;

/// Something to be done on a volume.
pub trait Workload {
    /// Its name with what distinguishes it, for reports.
    fn name(&self) -> String;

    /// What must be there before: not measured.
    ///
    /// # Errors
    /// Those of the volume.
    fn prepare(&self, session: &mut Session<'_>) -> Result<()>;

    /// After everything is home and the volume was mounted again: brings into the cache, where the
    /// system has one, what the original would find there. Not measured either.
    ///
    /// # Errors
    /// Those of the volume.
    fn warm(&self, _: &mut Session<'_>) -> Result<()> {
        Ok(())
    }

    /// What is measured.
    ///
    /// # Errors
    /// Those of the volume.
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
    /// It has not; those of the volume.
    fn judge(&self, _: &mut Session<'_>) -> Result<()> {
        Ok(())
    }
}
