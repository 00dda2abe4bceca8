//! What stands between the media and a file system in this process.

use stetfs::{Fs, Media, MountOptions, MountReport};
use stetfs_scheme::RecoveryReport;

use super::change::Answer;

/// What stands between the media and a file system.
pub trait Front: Send + Sync {
    /// Opens it, unless it is open. Returns what the file system is mounted on, and what had to be
    /// recovered below that; none where nothing is.
    ///
    /// # Errors
    /// The media cannot be used.
    fn open(&self, media: &Media) -> Answer<(Media, Option<RecoveryReport>)>;

    /// Leaves a plain volume on the media: the file system was unmounted.
    ///
    /// # Errors
    /// Those of the media.
    fn close(&self) -> Answer<()> {
        Ok(())
    }

    /// The file system has died, and possibly what is below it.
    fn crash(&self) {}
}

/// Nothing stands there.
pub struct Direct;

impl Front for Direct {
    fn open(&self, media: &Media) -> Answer<(Media, Option<RecoveryReport>)> {
        Ok((media.clone(), None))
    }
}

/// Mounts a volume behind `front`. The report is that of what had something to recover.
pub(super) fn mount(
    front: &dyn Front,
    media: &Media,
    options: &MountOptions,
) -> Answer<(Fs, MountReport)> {
    let (shown, below) = front.open(media)?;
    let (fs, mut report) = Fs::mount(shown, options.clone())?;
    if let Some(below) = below {
        let above = report.recovery.was_needed;
        report.recovery = below;
        report.recovery.was_needed |= above;
    }
    Ok((fs, report))
}
