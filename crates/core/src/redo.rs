//! Doing operations once more, exactly as they were done, on a volume that a crash has taken back
//! to an earlier commit.
//!
//! A program that keeps a log of what it did to a volume mounts it with
//! [`MountOptions::redo`](crate::MountOptions::redo). After a crash it mounts the volume again and
//! does what the log says once more with [`Fs::redo`](crate::Fs::redo), in the same order.
//!
//! Whether the volume has a change of names already, the directory tells: on such a mount
//! `i_version` of its inode counts the changes of its names ([`Attr::version`](crate::Attr)). A
//! change and the count are in one transaction. So the change is missing exactly if the directory's
//! count is lower than the one that the change has left. (In ARIES, by Mohan et al., the log
//! sequence number of each page does this.)
//!
//! Changes of attributes and contents are done in any case, if the file is still there: together,
//! and in their order, they leave the same when they are done twice.

pub(crate) mod during;

use std::sync::Arc;

use smallvec::SmallVec;
use stetfs_format::Time;
use stetfs_format::width::low32;

use crate::error::Result;
use crate::inode::Inode;
use crate::scope::Scope;
use crate::types::Past;
use crate::volume::Volume;

/// What an operation that is to be done once more has changed: the inodes of which it changed
/// contents or attributes, and when each was changed last.
pub(crate) type Last = SmallVec<[(Arc<Inode>, Time); 1]>;

/// Returns what an operation that is to be done once more has changed; `None` if the volume has the
/// operation.
pub(crate) fn missing(vol: &Volume, past: &Past) -> Result<Option<Last>> {
    let mut last = Last::new();
    for changed in &past.changed {
        let Some(inode) = vol.iget_if_used(changed.ino)? else {
            // It was removed later, and the volume has that.
            return Ok(None);
        };
        let st = inode.state.read();
        let is_it = st.raw.generation == changed.generation && !st.gone;
        let has_it = changed
            .version
            .is_some_and(|left| !is_before(st.raw.version, left));
        if !is_it || has_it {
            return Ok(None);
        }
        if changed.version.is_none() {
            let ctime = st.raw.ctime;
            drop(st);
            last.push((inode, ctime));
        }
    }
    let is_there = match past.made {
        // Nothing but its number tells of a file without a name.
        Some((ino, _)) if past.changed.is_empty() => vol.iget_if_used(ino)?.is_some(),
        _ => false,
    };
    Ok((!is_there).then_some(last))
}

/// Sees to it that no inode was changed before the time that it had: a later change of names, which
/// the volume has already, has set it.
pub(crate) fn keep_last(vol: &Scope<'_>, last: &[(Arc<Inode>, Time)]) -> Result<()> {
    for (inode, ctime) in last {
        if inode.state.read().raw.ctime < *ctime {
            vol.with_handle(1, |h| {
                let mut st = inode.state.write();
                st.touch(*ctime);
                vol.store_inode(h, inode, &st)
            })?;
        }
    }
    Ok(())
}

/// Compares versions, of which small inodes keep 32 bits.
fn is_before(version: u64, other: u64) -> bool {
    low32(other.wrapping_sub(version)).cast_signed() > 0
}
