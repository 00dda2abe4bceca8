//! Gives dirty data places at a commit: the file system's side of delayed allocation.
//!
//! A run of blocks in a hole gets one contiguous run if there is one: after the file's previous
//! extent, or else near its inode. It takes the blocks that were reserved when the data was
//! written. A run in an unwritten extent becomes written where it is. `relocate` handles blocks
//! that the scheme wants relocated. Last, the stored size grows up to the first delayed block. All
//! of this is part of the committing transaction. No handle is open then, so nobody holds
//! `Inode::state` across a wait.

use std::sync::{Arc, Weak};

use stetfs_format::width::must_fit_u32;
use stetfs_format::{BlockNo, InodeNo, LBlock};
use stetfs_journal::{Handle, JournalError, PlaceReq, Placer};

use crate::alloc::Source;
use crate::error::Result;
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState, Run};
use crate::relocate::Relocation;
use crate::volume::Volume;

/// The functions that the journal calls at a commit.
pub(crate) struct Placement(Weak<Volume>);

impl Placement {
    pub(crate) fn new(vol: &Arc<Volume>) -> Self {
        Self(Arc::downgrade(vol))
    }

    /// Runs a part of a commit; `failed` turns an error into the journal's.
    fn run(
        &self,
        failed: impl Fn(String) -> JournalError,
        part: impl FnOnce(&Volume) -> Result<()>,
    ) -> stetfs_journal::Result<()> {
        let vol = self.0.upgrade();
        let vol = vol.ok_or_else(|| failed("the volume is gone".to_owned()))?;
        part(&vol).map_err(|e| failed(e.to_string()))
    }
}

impl Placer for Placement {
    fn place(
        &self,
        handle: &Handle,
        ino: InodeNo,
        blocks: &[PlaceReq],
        homes: &mut Vec<BlockNo>,
    ) -> stetfs_journal::Result<()> {
        self.run(
            |why| JournalError::Place { ino: ino.0, why },
            |vol| place_all(vol, handle, ino, blocks, homes),
        )
    }

    fn settle(&self, handle: &Handle) -> stetfs_journal::Result<()> {
        self.run(
            |why| JournalError::Unusable(format!("group descriptors: {why}")),
            |vol| vol.alloc.store_descs(handle),
        )
    }
}

fn place_all(
    vol: &Volume,
    h: &Handle,
    ino: InodeNo,
    blocks: &[PlaceReq],
    homes: &mut Vec<BlockNo>,
) -> Result<()> {
    let inode = vol.iget(ino)?;
    let mut st = inode.state.write();
    // A change in the map's own blocks does not show in the inode.
    let before = (st.raw.clone(), st.disk_size());
    let mut rest = blocks;
    while let Some(first) = rest.first() {
        let n = run_length(rest);
        let (run, others) = rest.split_at(n);
        rest = others;
        match first.home {
            None => place_run(vol, h, &inode, &mut st, first.lblk, must_fit_u32(n), homes)?,
            Some(_) => Relocation {
                vol,
                h,
                inode: &inode,
                st: &mut st,
            }
            .relocate(run, homes)?,
        }
    }
    inode.settle_size(vol, &mut st);
    if st.raw == before.0 && st.disk_size() == before.1 {
        inode.note_change(h, true);
        return Ok(());
    }
    vol.store_inode(h, &inode, &st)
}

/// The length of the first run: requests of one kind that follow each other in the file.
fn run_length(blocks: &[PlaceReq]) -> usize {
    let first = blocks[0];
    let follows = |(i, b): (u32, &PlaceReq)| {
        b.home.is_some() == first.home.is_some() && b.lblk == first.lblk.plus(i)
    };
    (0..)
        .zip(blocks)
        .take_while(|&(i, b)| follows((i, b)))
        .count()
}

/// Gives places to `count` blocks that have none.
fn place_run(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    lblk: LBlock,
    count: u32,
    homes: &mut Vec<BlockNo>,
) -> Result<()> {
    let mut lblk = lblk;
    let mut left = count;
    while left > 0 {
        let run = mapping::lookup(vol, inode, st, lblk, left)?;
        let mut len = run.len.min(left);
        let pblk = match run.state {
            MapState::Hole => {
                let goal = mapping::goal(vol, inode, st, lblk)?;
                let (pblk, got) = vol.alloc.allocate(h, goal, len, Source::Reserved)?;
                len = got;
                st.reserved -= len;
                mapping::insert(
                    vol,
                    h,
                    inode,
                    st,
                    Run {
                        lblk,
                        len,
                        pblk,
                        state: MapState::Written,
                    },
                )?;
                pblk
            }
            MapState::Unwritten => {
                mapping::convert(vol, h, inode, st, lblk, len)?;
                run.pblk
            }
            MapState::Written => run.pblk,
        };
        homes.extend((0..u64::from(len)).map(|i| pblk.plus(i)));
        lblk = lblk.plus(len);
        left -= len;
    }
    Ok(())
}
