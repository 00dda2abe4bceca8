//! Orphans: files without a name that are still open, and files whose truncate is spread over
//! several transactions.
//!
//! The superblock's `s_last_orphan` names the newest, each orphan's `i_dtime` the next older one, 0
//! ends the chain. In memory the same chain is doubly linked, so that an orphan leaves it at the
//! cost of one write wherever it is. At mount each is deleted (no links) or cut at its size
//! (links). The chain is always a legal place for an orphan; the orphan file of the feature
//! `orphan_file` is read at mount, its entries move to the chain, and it stays empty.
//!
//! Locks: an orphan's own `state`, then `list`. Leaving the chain changes the newer neighbour's
//! inode, so its `state` is taken too; never while `list` is held, and always from an older orphan
//! to a newer one, so nobody waits in a circle.
//!
//! Order of writes, in one handle: the new orphan's `i_dtime`, then `s_last_orphan`.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use stetfs_format::error::Place;
use stetfs_format::features::{FeatureCompat, FeatureRoCompat};
use stetfs_format::orphan::{OrphanBlock, set_orphan};
use stetfs_format::width::must_fit_u32;
use stetfs_format::{InodeNo, LBlock};
use stetfs_journal::Handle;
use stetfs_media::Class;
use stetfs_planted::{Bug, is_planted};
use stetfs_sync::Mutex;

use crate::changes::changed_ranges;
use crate::error::{Error, Inconsistent, Kind, Result};
use crate::inode::{Inode, InodeState};
use crate::volume::Volume;
use crate::{evict, mapping, truncate};

/// Blocks that adding or removing an orphan changes: the superblock and two inodes' blocks.
pub(crate) const CREDITS: u32 = 3;

/// Orphans moved from the orphan file to the chain in one handle.
const MOVE_MAX: usize = 32;

/// The orphans of a volume.
#[derive(Default)]
pub(crate) struct Orphans {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    links: HashMap<InodeNo, Link>,
    newest: Option<InodeNo>,
}

#[derive(Clone, Copy)]
struct Link {
    newer: Option<InodeNo>,
    older: Option<InodeNo>,
}

/// What was done with the orphans found at mount.
#[derive(Debug, Clone, Default)]
pub(crate) struct OrphanReport {
    /// Files without links, deleted.
    pub(crate) deleted: u32,
    /// Files with links, cut at their size.
    pub(crate) truncated: u32,
    /// Something in the lists was no orphan: it was left out, and what a chain has behind it too.
    pub(crate) damage: Option<Error>,
}

impl List {
    fn push(&mut self, ino: InodeNo) {
        let older = self.newest.replace(ino);
        if let Some(link) = older.and_then(|older| self.links.get_mut(&older)) {
            link.newer = Some(ino);
        }
        self.links.insert(ino, Link { newer: None, older });
    }

    fn remove(&mut self, ino: InodeNo) {
        let Some(link) = self.links.remove(&ino) else {
            return;
        };
        if let Some(older) = link.older.and_then(|older| self.links.get_mut(&older)) {
            older.newer = link.newer;
        }
        match link.newer.and_then(|newer| self.links.get_mut(&newer)) {
            Some(newer) => newer.older = link.older,
            None => self.newest = link.older,
        }
    }
}

/// The value of `i_dtime` or `s_last_orphan` that names `ino`.
fn number(ino: Option<InodeNo>) -> u32 {
    ino.map_or(0, |ino| ino.0)
}

/// How many there are.
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

/// Makes `inode` an ordinary inode again, or one that can be freed: its `i_dtime` becomes 0.
/// Nothing happens when it is no orphan. The caller stores the inode in the same handle.
pub(crate) fn del(vol: &Volume, h: &Handle, inode: &Inode, st: &mut InodeState) -> Result<()> {
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
        // In memory, because it is open or somebody is at work on it; or it has links and can be
        // loaded.
        drop(list);
        let newer = vol.iget(newer)?;
        let mut newer_st = newer.state.write();
        let mut list = vol.orphans.list.lock();
        let unchanged = list
            .links
            .get(&inode.ino)
            .is_some_and(|l| l.newer == Some(newer.ino));
        if unchanged {
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

/// Finishes what the last mount left: deletes or truncates every orphan. Runs once, at a mount that
/// may write, before anybody else uses the volume. What the lists name and is no orphan is left
/// out, as by the kernel (`ext4_orphan_cleanup`), and reported.
///
/// # Errors
/// Whatever goes wrong in reading and deleting.
pub(crate) fn process(vol: &Volume) -> Result<OrphanReport> {
    let mut report = OrphanReport {
        damage: load_chain(vol)?,
        ..OrphanReport::default()
    };
    load_file(vol, &mut report)?;
    finish_all(vol, &mut report)?;
    Ok(report)
}

fn finish_all(vol: &Volume, report: &mut OrphanReport) -> Result<()> {
    loop {
        let Some(newest) = vol.orphans.list.lock().newest else {
            return Ok(());
        };
        let inode = vol.iget(newest)?;
        let _alone = inode.lock.write();
        if inode.state.read().raw.links_count == 0 {
            evict::evict(vol, &inode)?;
            report.deleted += 1;
        } else {
            truncate::finish(vol, &inode)?;
            report.truncated += 1;
        }
    }
}

/// An inode that the volume says is an orphan.
fn orphan_inode(vol: &Volume, ino: InodeNo) -> Result<Arc<Inode>> {
    if !vol.geo.is_valid_inode(ino) || ino.0 < vol.geo.first_ino {
        return Err(Inconsistent::InodeNumber(ino).into());
    }
    if !vol.alloc.is_inode_used(ino)? {
        return Err(Inconsistent::UnusedInode(ino).into());
    }
    vol.iget(ino)
}

/// Reads the chain that begins in the superblock, up to what is no orphan: that is given back, and
/// not on the chain any more when the orphans before it are done.
fn load_chain(vol: &Volume) -> Result<Option<Error>> {
    let mut chain = Vec::new();
    let mut seen = HashSet::new();
    let mut damage = None;
    let mut next = vol.sb.read().last_orphan;
    while next != 0 {
        let ino = InodeNo(next);
        let found = match seen.insert(ino) {
            true => orphan_inode(vol, ino),
            false => Err(Inconsistent::OrphanLoop(ino).into()),
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
        let h = vol.start(1)?;
        vol.update_super(&h, |sb| sb.last_orphan = 0)?;
    }
    let mut list = vol.orphans.list.lock();
    for &ino in chain.iter().rev() {
        list.push(ino);
    }
    Ok(damage)
}

/// Whether the error says of an inode that it is no orphan, and not that it could not be read.
fn is_no_orphan(error: &Error) -> bool {
    error.kind() == Kind::Corrupted || matches!(error, Error::Stale)
}

/// Moves the entries of the orphan file to the chain and marks the file empty.
fn load_file(vol: &Volume, report: &mut OrphanReport) -> Result<()> {
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
    let h = vol.start(1)?;
    vol.update_super(&h, |sb| {
        sb.feature_ro_compat.remove(FeatureRoCompat::ORPHAN_PRESENT)
    })
}

/// Moves the entries of one block of the orphan file, a handful in each handle: onto the chain and
/// out of the block at once.
fn load_file_block(
    vol: &Volume,
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
        let h = vol.start(CREDITS * must_fit_u32(group.len()) + 1)?;
        let old = block.clone();
        for &(index, ino) in group {
            match orphan_inode(vol, ino) {
                Ok(inode) => {
                    let mut st = inode.state.write();
                    add(vol, &h, &inode, &mut st)?;
                    vol.store_inode(&h, &inode, &st)?;
                }
                Err(e) if is_no_orphan(&e) => report.damage = Some(e),
                Err(e) => return Err(e),
            }
            set_orphan(&mut block, index, InodeNo(0), run.pblk, seed, &vol.geo);
        }
        for range in changed_ranges(&old, &block) {
            h.write(run.pblk, Class::Superblock, range.start, &block[range])?;
        }
    }
    Ok(())
}
