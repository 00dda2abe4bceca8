//! Giving up a private log that even its own scheme cannot read any more, because the memory that
//! holds it is lost or damaged.
//!
//! The home blocks stay as they are. Nothing is replayed: only the lost log knows which homes the
//! blocks in the journal area belong to, and which of them were committed. So files may have old
//! content, or old and new, and what a checkpoint did not finish has to be repaired. The volume is
//! marked as having errors until e2fsck has repaired it.
//!
//! Order: JBD2's superblock says that its log is empty, flush; then the superblock changes, in one
//! sector, flush. After a cut in between, it can be done again.

use stetfs_format::FeatureIncompat;
use stetfs_format::superblock::State;
use stetfs_media::BlockDev;

use super::{journal_area, superblock};
use crate::error::{Kind, Result};

/// Takes the mark of a private log off a volume that is not mounted, and so gives up all committed
/// content that is not home. Does nothing without the mark.
///
/// # Errors
/// A damaged superblock; an error of reading or writing.
pub fn forget_private_log(dev: &dyn BlockDev) -> Result<()> {
    let sb = superblock::load(dev)?;
    if !sb.feature_incompat.contains(FeatureIncompat::PRIVATE_LOG) {
        return Ok(());
    }
    let wiped =
        journal_area::journal_extents(dev, &sb).and_then(|log| journal_area::wipe(dev, &sb, &log));
    match wiped {
        // The journal's inode or superblock is damaged: e2fsck makes them anew.
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
