//! Giving up a log that only its scheme can read, when not even that can: the memory that it lies
//! in is lost, or damaged.
//!
//! The home blocks stay as they are. Nothing is replayed: to which homes the blocks in the journal
//! area belong, and which of them were committed, says only the log that is given up. So files may
//! have old content, or old and new, and whatever a checkpoint did not finish has to be repaired;
//! the volume is marked as one with errors until e2fsck has done that.
//!
//! Order: JBD2's superblock says that its log is empty, flush; then the superblock changes, in one
//! sector, flush. Cut between, it can be done again.

use stetfs_format::FeatureIncompat;
use stetfs_format::superblock::State;
use stetfs_media::BlockDev;

use super::{journal_area, superblock};
use crate::error::{Kind, Result};

/// Takes the mark of a private log off a volume that is not mounted, and with it everything that
/// was committed and is not home. Without the mark nothing happens.
///
/// # Errors
/// What is wrong with the superblock; reading and writing.
pub fn forget_private_log(dev: &dyn BlockDev) -> Result<()> {
    let sb = superblock::load(dev)?;
    if !sb.feature_incompat.contains(FeatureIncompat::PRIVATE_LOG) {
        return Ok(());
    }
    let wiped =
        journal_area::journal_extents(dev, &sb).and_then(|log| journal_area::wipe(dev, &sb, &log));
    match wiped {
        // The journal's inode or superblock: e2fsck makes them anew.
        Err(e) if e.kind() == Kind::Corrupted => {}
        wiped => wiped?,
    }
    superblock::store(dev, |sb| {
        sb.feature_incompat -= FeatureIncompat::PRIVATE_LOG;
        sb.state -= State::VALID;
        sb.state |= State::ERROR;
    })?;
    Ok(())
}
