//! The contract of a workload.

use anyhow::Result;

use super::session::Session;
use super::sqlite::Updates;

/// Something to be done on a volume.
pub trait Workload {
    /// Its name for reports, with what distinguishes it.
    fn name(&self) -> String;

    /// Makes what must be there before. Not measured.
    ///
    /// # Errors
    /// Those of the volume.
    fn prepare(&self, session: &mut Session<'_>) -> Result<()>;

    /// Brings into the cache, where the system has one, what the original would find there. Called
    /// after everything is home and the volume was mounted again. Not measured.
    ///
    /// # Errors
    /// Those of the volume.
    fn warm(&self, _: &mut Session<'_>) -> Result<()> {
        Ok(())
    }

    /// Runs the measured part.
    ///
    /// # Errors
    /// Those of the volume.
    fn run(&self, session: &mut Session<'_>) -> Result<()>;

    /// Its updates, where SQLite makes its calls; otherwise `None`.
    fn sqlite(&self) -> Option<Updates> {
        None
    }

    /// Whether there is something to [`judge`](Self::judge).
    fn is_judged(&self) -> bool {
        false
    }

    /// Judges whether the run has left what it should. Called after everything is home and the
    /// volume was mounted again. Not measured.
    ///
    /// # Errors
    /// The run has left something else; errors of the volume.
    fn judge(&self, _: &mut Session<'_>) -> Result<()> {
        Ok(())
    }
}
