//! Freeing inodes whose last link and last open are gone.
//!
//! A small file goes in the very handle that removed its last name ([`evict_in`]), without a trace
//! in the orphan list. A large one is on that list until its last block is free. What was never
//! committed is simply forgotten.

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

/// Frees the inode in `h`, or begins to: false means that it is on the orphan list now and the
/// caller must call [`evict`] when it has closed `h`. The caller holds the inode's lock for
/// writing.
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
    // Before the number is free: whoever takes it puts an inode of its own into the cache.
    st.gone = true;
    vol.icache.remove(inode.ino);
    vol.alloc.free_inode(h, inode.ino, was_dir)?;
    Ok(true)
}

/// Frees the inode in as many handles as it takes. The caller holds its lock for writing and no
/// handle.
pub(crate) fn evict(vol: &Scope<'_>, inode: &Inode) -> Result<()> {
    let step = |h: &Handle| {
        let mut st = inode.state.write();
        Ok(st.gone || evict_in(vol, h, inode, &mut st)?)
    };
    while !vol.with_handle(truncate::removal_credits(vol, inode), step)? {}
    Ok(())
}

/// Whether `i_block` maps blocks: not in device files, pipes, sockets and short symbolic links.
fn has_blocks(st: &InodeState) -> bool {
    st.is_reg() || st.is_dir() || (st.is_lnk() && !st.is_fast_symlink())
}
