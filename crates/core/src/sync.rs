//! Makes files durable.

use stetfs_format::Tid;
use stetfs_journal::FileData;
use stetfs_planted::{Bug, is_planted};

use crate::error::Result;
use crate::inode::Inode;
use crate::volume::Volume;

/// What an fsync does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Durability {
    /// Nothing: the file is durable.
    Nothing,
    /// The file has delayed data, which joins a transaction first.
    Enlist,
    /// Only file data has changed. If all of it was overwritten in place, it is written home;
    /// otherwise this transaction is committed.
    Overwrite(Tid),
    /// Commits this transaction.
    Commit(Tid),
}

/// Returns what is left to do to make the inode durable as it was when the caller first asked. With
/// `has_enlisted`, it does not wait for new data that came after [enlisting](Durability::Enlist).
fn durability(
    vol: &Volume,
    inode: &Inode,
    data: Option<&FileData>,
    datasync: bool,
    has_enlisted: bool,
) -> Durability {
    let pending = data.map(FileData::pending).unwrap_or_default();
    if pending.has_delayed && !has_enlisted {
        return Durability::Enlist;
    }
    let later = |a: Tid, b: Option<Tid>| b.filter(|b| b.is_after(a)).unwrap_or(a);
    let inodes = later(inode.wanted_tid(datasync), pending.enlisted);
    let in_data = pending.newest;
    let in_data = in_data.filter(|_| datasync || !is_planted(Bug::TimesForData));
    let newest = later(inodes, in_data);
    let committed = vol.journal.committed();
    if !newest.is_after(committed) || is_planted(Bug::EarlyFsync) {
        Durability::Nothing
    } else if inodes.is_after(committed) {
        Durability::Commit(newest)
    } else {
        Durability::Overwrite(newest)
    }
}

/// Makes the inode durable: its data and its newest transaction. Costs nothing when it is durable
/// already.
pub(crate) fn fsync(vol: &Volume, inode: &Inode, datasync: bool) -> Result<()> {
    let data = inode.data_if_any(vol);
    let next = |has_enlisted| durability(vol, inode, data.as_deref(), datasync, has_enlisted);
    let mut found = next(is_planted(Bug::UnplacedFsync));
    if let (Durability::Enlist, Some(data)) = (found, &data) {
        vol.journal.enlist(data)?;
        found = next(true);
    }
    let tid = match (found, &data) {
        // A commit would have noticed that the file behind the device was truncated or removed.
        (Durability::Nothing, _) => return Ok(vol.dev.check_backing()?),
        (Durability::Overwrite(_), Some(data)) if vol.journal.overwrite(data)? => return Ok(()),
        (Durability::Overwrite(tid) | Durability::Commit(tid), _) => tid,
        (Durability::Enlist, _) => unreachable!("it has enlisted, or has no data"),
    };
    if let Some(data) = data
        && let Some(_guard) = inode.lock.try_write()
    {
        vol.journal.place_early(tid, &data)?;
    }
    Ok(vol.journal.commit(tid)?)
}

/// Ends the delay of the inode's data. The running transaction places it, so that it is durable
/// before any later change (`ext4_alloc_da_blocks`). No handle may be open.
pub(crate) fn place(vol: &Volume, inode: &Inode) -> Result<()> {
    match inode.data_if_any(vol) {
        Some(data) => Ok(vol.journal.enlist(&data)?),
        None => Ok(()),
    }
}
