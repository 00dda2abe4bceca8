//! Making files durable.

use stetfs_format::Tid;
use stetfs_planted::{Bug, is_planted};

use crate::error::Result;
use crate::inode::Inode;
use crate::volume::Volume;

/// Lets no data of the inode wait for a place past commits: it gets one in a transaction that is
/// durable before anything that is done from now on (`ext4_alloc_da_blocks`). No handle is open.
pub(crate) fn place(vol: &Volume, inode: &Inode) -> Result<Option<Tid>> {
    match inode.data_if_any(vol) {
        Some(data) => Ok(vol.journal.enlist(&data)?),
        None => Ok(None),
    }
}

/// Returns when the inode's data has a place and its newest transaction is durable. Costs nothing
/// when it is already.
pub(crate) fn fsync(vol: &Volume, inode: &Inode, datasync: bool) -> Result<()> {
    let placed = match is_planted(Bug::UnplacedFsync) {
        true => None,
        false => place(vol, inode)?,
    };
    let tid = inode.wanted_tid(datasync);
    let tid = placed.filter(|placed| placed.is_after(tid)).unwrap_or(tid);
    let data = inode.data_if_any(vol);
    let with_data = data.as_ref().and_then(|data| data.newest());
    let with_data = with_data.filter(|_| datasync || !is_planted(Bug::TimesForData));
    let newest = with_data.filter(|data| data.is_after(tid)).unwrap_or(tid);
    let committed = vol.journal.committed();
    if newest.is_after(committed) && !is_planted(Bug::EarlyFsync) {
        if let Some(data) = data {
            if !tid.is_after(committed) && vol.journal.overwrite(&data)? {
                return Ok(());
            }
            if let Some(_guard) = inode.lock.try_write() {
                vol.journal.place_early(newest, &data)?;
            }
        }
        return Ok(vol.journal.commit(newest)?);
    }
    // A commit would have found that out.
    Ok(vol.dev.check_backing()?)
}
