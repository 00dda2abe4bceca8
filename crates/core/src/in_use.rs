//! What is in use when a volume goes from one program to another in the middle of a mount: the
//! second one mounts it with [`MountOptions::in_use`](crate::MountOptions::in_use), and finds it as
//! open as the first has left it.

use std::sync::atomic::Ordering;

use stetfs_format::InodeNo;

use crate::error::{Error, Result};
use crate::scope::Scope;
use crate::types::InUse;
use crate::volume::{Volume, VolumeState};

/// Returns every inode that is in use.
pub(crate) fn all(vol: &Volume) -> Vec<InUse> {
    let mut all = Vec::new();
    for inode in vol.icache.all() {
        let opens = inode.opens.load(Ordering::Relaxed);
        let st = inode.state.read();
        if opens > 0 && !st.gone {
            all.push(InUse {
                ino: inode.ino.0,
                opens,
                is_held: vol.held.has(inode.ino),
                is_nameable: st.nameable,
                places_on_close: inode.places_on_close.load(Ordering::Relaxed),
            });
        }
    }
    all
}

/// Has in use what the options say. Runs once, before orphans are freed and before anybody else
/// uses the volume.
///
/// # Errors
/// Those of reading an inode. One that is free by now is none: whoever has it open gets errors.
pub(crate) fn restore(vol: &Scope<'_>) -> Result<()> {
    // Among them are files without a name.
    vol.state.fetch_or(VolumeState::ORPHANS, Ordering::Relaxed);
    let mut in_use = vol.opts.in_use.iter().flatten();
    let restored = in_use.try_for_each(|one| {
        let inode = match vol.iget(InodeNo(one.ino)) {
            Err(Error::Stale) => return Ok(()),
            inode => inode?,
        };
        inode.opens.store(one.opens, Ordering::Relaxed);
        inode
            .places_on_close
            .store(one.places_on_close, Ordering::Relaxed);
        inode.state.write().nameable = one.is_nameable;
        if one.is_held {
            vol.held.restore(inode.ino);
        }
        Ok(())
    });
    vol.state
        .fetch_and(!VolumeState::ORPHANS, Ordering::Relaxed);
    restored
}
