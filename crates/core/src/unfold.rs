//! Moves content that lies in an inode (`inline.rs`) out to a block: that of a file before it
//! changes. (A directory does so when a name does not fit, in `dir.rs`.)

use stetfs_format::LBlock;
use stetfs_journal::{CREDITS_PER_RUN, Old};

use crate::atomic;
use crate::blocks::{self, INODE_CREDITS};
use crate::error::Result;
use crate::inline;
use crate::inode::Inode;
use crate::scope::Scope;
use crate::types::Caller;

/// Moves the content of a file out to a block, if it lies in the inode. The caller holds the
/// inode's lock for writing, has no handle open, and is about to change the content.
///
/// # Errors
/// `NoSpace`; nothing is changed then.
pub(crate) fn unfold(vol: &Scope<'_>, c: &Caller, inode: &Inode) -> Result<()> {
    let content = {
        let st = inode.state.read();
        if !st.raw.is_inline() {
            return Ok(());
        }
        inline::content(vol, inode, &st)?
    };
    // Even where the scheme promises less for data, these bytes were as durable as the inode.
    let (blocks, whole) = (u32::from(!content.is_empty()), atomic::can_be(vol));
    blocks::reserve(vol, c, blocks, false)?;
    let mut left = blocks;
    let done = vol.with_handle(INODE_CREDITS + 1 + CREDITS_PER_RUN, |h| {
        {
            let mut st = inode.state.write();
            inline::empty_map(vol, &mut st);
            inline::forget_second(vol, h, inode, &mut st)?;
        }
        if blocks > 0 {
            let data = inode.data(vol);
            h.write_data(data, LBlock(0), 0, &content, Old::Hole, whole)?;
            left = 0;
        }
        let mut st = inode.state.write();
        st.reserved += blocks;
        vol.store_inode(h, inode, &st)
    });
    vol.alloc.release(left.into());
    done
}
