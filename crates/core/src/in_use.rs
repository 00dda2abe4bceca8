//! What is in use when a volume goes from one program to another in the middle of a mount: the
//! second one mounts it with [`MountOptions::in_use`](crate::MountOptions::in_use), and finds it as
//! open as the first has left it.

use std::sync::atomic::Ordering;

use stetfs_format::InodeNo;

use crate::error::Result;
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
                generation: st.raw.generation,
                opens,
                is_held: vol.held.has(inode.ino),
                is_nameable: st.nameable,
                places_on_close: inode.places_on_close.load(Ordering::Relaxed),
            });
        }
    }
    all
}

/// Has these in use. Runs before anybody else uses the volume: with what the options say, before
/// orphans are freed.
///
/// # Errors
/// Those of reading an inode. One that is free by now, or another, is none: whoever has it open
/// gets errors.
pub(crate) fn restore(vol: &Scope<'_>, all: &[InUse]) -> Result<()> {
    // Among them are files without a name.
    vol.state.fetch_or(VolumeState::ORPHANS, Ordering::Relaxed);
    let restored = all.iter().try_for_each(|one| {
        let Some(inode) = vol.iget_if_used(InodeNo(one.ino))? else {
            return Ok(());
        };
        if inode.state.read().raw.generation != one.generation {
            return Ok(());
        }
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
