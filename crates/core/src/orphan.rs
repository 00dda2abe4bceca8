//! Orphans: files without a name that are still open, and files whose truncate is spread over
//! several transactions.
//!
//! The superblock's `s_last_orphan` names the newest orphan, each orphan's `i_dtime` the next older
//! one, and 0 ends the chain. In memory the same chain is doubly linked, so that an orphan anywhere
//! in it leaves it with one write. At mount, an orphan without links is deleted, and one with links
//! is truncated at its size. The chain is legal for every orphan, with the feature `orphan_file`
//! too: the mount moves the entries of the orphan file to the chain, and the file stays empty.
//!
//! Locks: an orphan's own `state`, then `list`. An orphan that leaves the chain changes its newer
//! neighbour, so it takes that `state` too: never while it holds `list`, and always from an older
//! orphan to a newer one, so nobody waits in a circle.
//!
//! Order of writes, in one handle: the new orphan's `i_dtime`, then `s_last_orphan`.

use stetfs_format::InodeNo;
use stetfs_format::width::must_fit_u32;
use stetfs_journal::Handle;
use stetfs_planted::{Bug, is_planted};

use crate::error::Result;
use crate::inode::{Inode, InodeState};
use crate::orphan::list::List;
use crate::volume::Volume;

pub(crate) mod left;
pub(crate) mod list;

/// Credits of adding or removing an orphan: the superblock and two inodes' blocks.
pub(crate) const CREDITS: u32 = 3;

/// The value of `i_dtime` or `s_last_orphan` that names `ino`.
fn number(ino: Option<InodeNo>) -> u32 {
    ino.map_or(0, |ino| ino.0)
}

/// The number of orphans.
pub(crate) fn count(vol: &Volume) -> u32 {
    must_fit_u32(vol.orphans.list.lock().links.len())
}

/// Makes `inode` an orphan if it is not one yet. The caller stores the inode in the same handle.
pub(crate) fn add(vol: &Volume, h: &Handle, inode: &Inode, st: &mut InodeState) -> Result<()> {
    let mut list = vol.orphans.list.lock();
    if list.links.contains_key(&inode.ino) || is_planted(Bug::ForgottenOrphan) {
        return Ok(());
    }
    st.raw.dtime = number(list.newest);
    vol.update_super(h, |sb| sb.last_orphan = inode.ino.0)?;
    list.push(inode.ino);
    Ok(())
}

/// Takes `inode` off the list, if it is on it: its `i_dtime` becomes 0. The caller stores the inode
/// in the same handle.
pub(crate) fn del(vol: &Volume, h: &Handle, inode: &Inode, st: &mut InodeState) -> Result<()> {
    let is_next = |list: &List, newer: InodeNo| {
        let link = list.links.get(&inode.ino);
        link.is_some_and(|link| link.newer == Some(newer))
    };
    loop {
        let mut list = vol.orphans.list.lock();
        let Some(&link) = list.links.get(&inode.ino) else {
            return Ok(());
        };
        let Some(newer) = link.newer else {
            vol.update_super(h, |sb| sb.last_orphan = number(link.older))?;
            list.remove(inode.ino);
            break;
        };
        // The newer orphan is in memory, because it is open or in use; or it has links and can be
        // loaded.
        drop(list);
        let found = vol.iget(newer);
        if found.is_err() && !is_next(&vol.orphans.list.lock(), newer) {
            // It was freed meanwhile.
            continue;
        }
        let newer = found?;
        let mut newer_st = newer.state.write();
        let mut list = vol.orphans.list.lock();
        if is_next(&list, newer.ino) {
            let older = list.links.get(&inode.ino).and_then(|l| l.older);
            if !is_planted(Bug::BrokenChain) {
                newer_st.raw.dtime = number(older);
                vol.store_inode(h, &newer, &newer_st)?;
            }
            list.remove(inode.ino);
            break;
        }
    }
    st.raw.dtime = 0;
    Ok(())
}
