//! Open and close, and calls that concern the whole volume: statfs, trim.

use std::sync::atomic::Ordering;

use stetfs_format::InodeNo;
use stetfs_format::inode::InodeFlags;
use stetfs_planted::{Bug, is_planted};

use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::scope::Scope;
use crate::types::{Access, Attr, Caller, OpenFlags, SetAttr, StatFs};
use crate::volume::Volume;
use crate::{attr, evict, perm, sync};

/// Opens the inode; see [`crate::Fs::open`].
pub(crate) fn open(vol: &Scope<'_>, c: &Caller, ino: InodeNo, flags: OpenFlags) -> Result<Attr> {
    let inode = vol.iget(ino)?;
    check_open(vol, c, &inode, flags)?;
    keep(&inode)?;
    if flags.contains(OpenFlags::TRUNCATE) && inode.state.read().is_reg() {
        let cut = SetAttr {
            size: Some(0),
            through_handle: true,
            kill_suid: !c.privileged,
            ..SetAttr::default()
        };
        if let Err(e) = attr::setattr(vol, c, &inode, &cut) {
            release(vol, ino)?;
            return Err(e);
        }
    }
    attr::getattr(vol, &inode)
}

/// Fails unless the caller may open the inode with these flags.
fn check_open(vol: &Volume, c: &Caller, inode: &Inode, flags: OpenFlags) -> Result<()> {
    let (is_dir, inode_flags) = {
        let st = inode.state.read();
        st.check_live()?;
        (st.is_dir(), st.raw.flags)
    };
    let writes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
    if is_dir && writes {
        return Err(Error::IsDirectory);
    }
    let mut want = Access::empty();
    want.set(Access::READ, flags.contains(OpenFlags::READ));
    want.set(Access::WRITE, writes);
    want.set(Access::EXEC, flags.contains(OpenFlags::EXEC));
    perm::permission(vol, c, inode, want)?;
    let append_only = inode_flags.contains(InodeFlags::APPEND) && !is_dir;
    let cuts = flags.contains(OpenFlags::TRUNCATE);
    if append_only && (cuts || writes && !flags.contains(OpenFlags::APPEND)) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Counts one more open of the inode.
pub(crate) fn keep(inode: &Inode) -> Result<()> {
    let _guard = inode.lock.read();
    inode.state.read().check_live()?;
    inode.opens.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Counts one open less. Frees the inode when that was the last and the inode has no name.
pub(crate) fn release(vol: &Scope<'_>, ino: InodeNo) -> Result<()> {
    let Some(inode) = vol.icache.get(ino) else {
        return Err(Error::BadFile);
    };
    let _guard = inode.lock.write();
    let opens = inode
        .opens
        .load(Ordering::Relaxed)
        .checked_sub(1)
        .ok_or(Error::BadFile)?;
    inode.opens.store(opens, Ordering::Relaxed);
    let unlinked = {
        let st = inode.state.read();
        st.raw.links_count == 0 && !st.gone
    };
    if opens == 0 && unlinked && !vol.is_read_only() {
        return evict::evict(vol, &inode);
    }
    // So nobody finds the file empty after a crash, even if it was rewritten in place.
    if inode.places_on_close.swap(false, Ordering::Relaxed) && !is_planted(Bug::UnplacedClose) {
        sync::place(vol, &inode)?;
    }
    Ok(())
}

/// Returns sizes, free space and limits (`ext4_statfs`).
pub(crate) fn statfs(vol: &Volume) -> StatFs {
    let (blocks_free, blocks_available) = vol.alloc.free_blocks();
    let overhead = if vol.opts.minix_df {
        0
    } else {
        vol.geo.first_data_block().0 + vol.alloc.overhead() + vol.journal_blocks
    };
    StatFs {
        block_size: vol.geo.block.bytes_u32(),
        blocks: vol.geo.blocks_count.saturating_sub(overhead),
        blocks_free,
        blocks_available,
        files: vol.geo.inodes_count.into(),
        files_free: vol.alloc.free_inodes(),
        name_max: 255,
        uuid: vol.geo.uuid,
    }
}

/// Discards free blocks; see [`crate::Fs::trim`]. Refuses a range that can trim nothing, as
/// `ext4_trim_fs` does.
pub(crate) fn trim(vol: &Volume, c: &Caller, offset: u64, len: u64, min_len: u64) -> Result<u64> {
    if !c.privileged {
        return Err(Error::NotPermitted);
    }
    vol.check_writable()?;
    let size = vol.geo.block;
    let first = vol.blocks_for(offset);
    let end = size
        .block_of(offset.saturating_add(len))
        .min(vol.geo.blocks_count);
    let min_len = vol.blocks_for(min_len);
    let is_pointless = first >= vol.geo.blocks_count
        || size.block_of(len) == 0
        || min_len > vol.geo.blocks_per_group().into();
    if is_pointless {
        return Err(Error::Invalid);
    }
    let blocks = vol.alloc.trim(first..end.max(first), min_len)?;
    Ok(size.offset_of(blocks))
}
