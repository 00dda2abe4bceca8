//! Orphans that the last mount left. The mount reads the chain and the orphan file, and deletes or
//! truncates each orphan, except for files that another program has left open.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use stetfs_format::error::Place;
use stetfs_format::features::{FeatureCompat, FeatureRoCompat};
use stetfs_format::orphan::{OrphanBlock, set_orphan};
use stetfs_format::width::must_fit_u32;
use stetfs_format::{InodeNo, LBlock};
use stetfs_media::Class;

use super::{CREDITS, add};
use crate::changes::changed_ranges;
use crate::error::{Error, Inconsistent, Kind, Result};
use crate::inode::Inode;
use crate::scope::Scope;
use crate::volume::Volume;
use crate::{evict, mapping, truncate};

/// How many orphans one handle moves from the orphan file to the chain.
const MOVE_MAX: usize = 32;

/// What a mount did with the orphans that it found.
#[derive(Debug, Clone, Default)]
pub(crate) struct OrphanReport {
    /// Files without links, deleted.
    pub(crate) deleted: u32,
    /// Files with links, truncated at their size.
    pub(crate) truncated: u32,
    /// An entry that was no orphan. It was skipped; in the chain, everything behind it was skipped
    /// too.
    pub(crate) damage: Option<Error>,
}

/// Deletes or truncates every orphan that the last mount left. Runs once, at a mount that may
/// write, before anybody else uses the volume. Skips and reports entries that are no orphans, as
/// the kernel does (`ext4_orphan_cleanup`).
///
/// # Errors
/// Those of reading and deleting.
pub(crate) fn process(vol: &Scope<'_>) -> Result<OrphanReport> {
    let mut report = OrphanReport {
        damage: load_chain(vol)?,
        ..OrphanReport::default()
    };
    load_file(vol, &mut report)?;
    finish_all(vol, &mut report)?;
    Ok(report)
}

fn finish_all(vol: &Scope<'_>, report: &mut OrphanReport) -> Result<()> {
    let mut next = vol.orphans.list.lock().newest;
    while let Some(ino) = next {
        next = vol.orphans.list.lock().older(ino);
        let inode = vol.iget(ino)?;
        let _alone = inode.lock.write();
        if inode.state.read().raw.links_count > 0 {
            truncate::finish(vol, &inode)?;
            report.truncated += 1;
        } else if inode.opens.load(Ordering::Relaxed) == 0 {
            evict::evict(vol, &inode)?;
            report.deleted += 1;
        }
    }
    Ok(())
}

/// Returns an inode that the volume lists as an orphan.
fn orphan_inode(vol: &Volume, ino: InodeNo) -> Result<Arc<Inode>> {
    if !vol.geo.is_for_files(ino) {
        return Err(Inconsistent::InodeNumber(ino).into());
    }
    vol.iget_if_used(ino)?
        .ok_or_else(|| Inconsistent::UnusedInode(ino).into())
}

/// Reads the chain that begins in the superblock, up to the first entry that is no orphan. Returns
/// the error of that entry, which is off the chain once the orphans before it are done.
fn load_chain(vol: &Scope<'_>) -> Result<Option<Error>> {
    let mut chain = Vec::new();
    let mut seen = HashSet::new();
    let mut damage = None;
    let mut next = vol.sb.read().last_orphan;
    while next != 0 {
        let ino = InodeNo(next);
        let found = if seen.insert(ino) {
            orphan_inode(vol, ino)
        } else {
            Err(Inconsistent::OrphanLoop(ino).into())
        };
        match found {
            Ok(inode) => next = inode.state.read().raw.dtime,
            Err(e) if is_no_orphan(&e) => {
                damage = Some(e);
                break;
            }
            Err(e) => return Err(e),
        }
        chain.push(ino);
    }
    if chain.is_empty() && damage.is_some() {
        vol.with_handle(1, |h| vol.update_super(h, |sb| sb.last_orphan = 0))?;
    }
    let mut list = vol.orphans.list.lock();
    for &ino in chain.iter().rev() {
        list.push(ino);
    }
    Ok(damage)
}

/// Whether the error means that an inode is no orphan, rather than that it could not be read.
fn is_no_orphan(error: &Error) -> bool {
    error.kind() == Kind::Corrupted || matches!(error, Error::Stale)
}

/// Moves the entries of the orphan file to the chain and marks the file empty.
fn load_file(vol: &Scope<'_>, report: &mut OrphanReport) -> Result<()> {
    let (has_file, present, ino) = {
        let sb = vol.sb.read();
        (
            sb.feature_compat.contains(FeatureCompat::ORPHAN_FILE),
            sb.feature_ro_compat
                .contains(FeatureRoCompat::ORPHAN_PRESENT),
            InodeNo(sb.orphan_file_inum),
        )
    };
    if !has_file || !present {
        return Ok(());
    }
    let file = orphan_inode(vol, ino)?;
    let blocks = {
        let st = file.state.read();
        vol.block_of(st.raw.size).0
    };
    for lblk in (0..blocks).map(LBlock) {
        load_file_block(vol, &file, lblk, report)?;
    }
    vol.with_handle(1, |h| {
        vol.update_super(h, |sb| {
            sb.feature_ro_compat.remove(FeatureRoCompat::ORPHAN_PRESENT)
        })
    })
}

/// Moves the entries of one block of the orphan file, up to [`MOVE_MAX`] in each handle: onto the
/// chain and out of the block at once.
fn load_file_block(
    vol: &Scope<'_>,
    file: &Inode,
    lblk: LBlock,
    report: &mut OrphanReport,
) -> Result<()> {
    let (run, seed) = {
        let st = file.state.read();
        (
            mapping::lookup(vol, file, &st, lblk, 1)?,
            st.raw.csum_seed(file.ino, &vol.geo),
        )
    };
    if run.state != mapping::MapState::Written {
        return Err(Inconsistent::OrphanFileHole {
            ino: file.ino,
            lblk,
        }
        .into());
    }
    let mut block = vol.journal.read(run.pblk, Class::Superblock)?.to_vec();
    let used = OrphanBlock::decode(&block, run.pblk, seed, &vol.geo)
        .and_then(|orphans| orphans.orphans().collect::<Result<Vec<_>, _>>())
        .map_err(|e| e.at(Place::FileBlock(file.ino, lblk)))?;
    for group in used.chunks(MOVE_MAX) {
        let old = block.clone();
        vol.with_handle(CREDITS * must_fit_u32(group.len()) + 1, |h| {
            for &(index, ino) in group {
                match orphan_inode(vol, ino) {
                    Ok(inode) => {
                        let mut st = inode.state.write();
                        add(vol, h, &inode, &mut st)?;
                        vol.store_inode(h, &inode, &st)?;
                    }
                    Err(e) if is_no_orphan(&e) => report.damage = Some(e),
                    Err(e) => return Err(e),
                }
                set_orphan(&mut block, index, InodeNo(0), run.pblk, seed, &vol.geo);
            }
            for range in changed_ranges(&old, &block) {
                h.write(run.pblk, Class::Superblock, range.start, &block[range])?;
            }
            Ok(())
        })?;
    }
    Ok(())
}
