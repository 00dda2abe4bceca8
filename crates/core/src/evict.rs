//! Freeing inodes whose last link and last open are gone.
//!
//! A small file is freed in the handle that removed its last name ([`evict_in`]), and never enters
//! the orphan list. A large one is on that list until its last block is free. Data that was never
//! committed is just forgotten.

use stetfs_format::width::low32;
use stetfs_journal::Handle;

use crate::error::Result;
use crate::inode::{Inode, InodeState};
use crate::scope::Scope;
use crate::truncate::{self, forget};
use crate::volume::Volume;
use crate::xattr::store;
use crate::{mapping, orphan};

use stetfs_format::LBlock;

/// Credits that a caller of [`evict_in`] adds to its own.
pub(crate) const EVICT_CREDITS: u32 = 20;

/// Frees the inode in `h`. Returns false when it needs more handles: then the inode is on the
/// orphan list, and the caller must call [`evict`] after closing `h`. The caller holds the inode's
/// lock for writing.
pub(crate) fn evict_in(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
) -> Result<bool> {
    forget(vol, h, inode, st, LBlock(0), None)?;
    h.allow_split();
    if has_blocks(st) && !mapping::remove(vol, h, inode, st, LBlock(0), None)? {
        orphan::add(vol, h, inode, st)?;
        vol.store_inode(h, inode, st)?;
        return Ok(false);
    }
    orphan::del(vol, h, inode, st)?;
    store::release_block(vol, h, inode, st)?;
    let was_dir = st.is_dir();
    st.set_size(0);
    st.raw.dtime = low32(vol.clock.seconds());
    vol.store_inode(h, inode, st)?;
    // Before the number is free: its next user puts a new inode into the cache.
    st.gone = true;
    vol.icache.remove(inode.ino);
    vol.alloc.free_inode(h, inode.ino, was_dir)?;
    Ok(true)
}

/// Frees the inode in as many handles as needed. The caller holds its lock for writing and no
/// handle.
pub(crate) fn evict(vol: &Scope<'_>, inode: &Inode) -> Result<()> {
    let step = |h: &Handle| {
        let mut st = inode.state.write();
        Ok(st.gone || evict_in(vol, h, inode, &mut st)?)
    };
    while !vol.with_handle(truncate::removal_credits(vol, inode), step)? {}
    Ok(())
}

/// Whether `i_block` maps blocks. It does not in device files, pipes, sockets and inodes that hold
/// their content themselves.
fn has_blocks(st: &InodeState) -> bool {
    if st.raw.is_inline() {
        return false;
    }
    st.is_reg() || st.is_dir() || (st.is_lnk() && !st.is_fast_symlink())
}
