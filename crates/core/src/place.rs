//! Places for dirty data at commit: the file system's side of delayed allocation.
//!
//! A run of blocks in a hole gets one contiguous run if there is one, after the file's previous extent or else near its inode, from
//! the blocks that were reserved when the data was written. A run in an unwritten extent becomes written where it is. A block that
//! the scheme wants relocated moves to a new block when one is at hand, and stays otherwise. All of it is
//! part of the committing transaction. No handle is open then, so nobody holds `Inode::state` across a wait.

use std::sync::{Arc, Weak};

use stetfs_format::{BlockNo, InodeNo, LBlock};
use stetfs_journal::{Handle, JournalError, PlaceReq, Placer};
use stetfs_media::Class;

use crate::alloc::Source;
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::mapping::{self, MapState, Run};
use crate::volume::Volume;

/// What the journal calls at commit.
pub(crate) struct Placement(Weak<Volume>);

impl Placement {
    pub(crate) fn new(vol: &Arc<Volume>) -> Self {
        Self(Arc::downgrade(vol))
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
        let failed = |why: String| JournalError::Place { ino: ino.0, why };
        let vol = self
            .0
            .upgrade()
            .ok_or_else(|| failed("the volume is gone".to_owned()))?;
        place_all(&vol, handle, ino, blocks, homes).map_err(|e| failed(e.to_string()))
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
    let mut rest = blocks;
    while let Some(first) = rest.first() {
        let n = run_length(rest);
        if first.unplaced {
            place_run(vol, h, &inode, &mut st, first.lblk, n, homes)?;
        } else {
            relocate_run(vol, h, &inode, &mut st, first.lblk, n, homes)?;
        }
        rest = &rest[n as usize..];
    }
    vol.store_inode(h, &inode, &st)
}

/// How many requests from the first on are of its kind and follow each other in the file.
fn run_length(blocks: &[PlaceReq]) -> u32 {
    let first = blocks[0];
    let follows =
        |(i, b): (u32, &PlaceReq)| b.unplaced == first.unplaced && b.lblk == first.lblk.plus(i);
    (0..)
        .zip(blocks)
        .take_while(|&(i, b)| follows((i, b)))
        .count() as u32
}

/// Places `count` blocks that have none.
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

/// Moves `count` mapped blocks to new ones as far as there is free space; the others stay.
fn relocate_run(
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
    let mut goal = None;
    while left > 0 {
        let run = mapping::lookup(vol, inode, st, lblk, left)?;
        let near = goal.unwrap_or(run.pblk);
        match vol.alloc.allocate(
            h,
            near,
            run.len.min(left),
            Source::Free { privileged: false },
        ) {
            Ok((new, got)) => {
                let old = mapping::switch_run(vol, h, inode, st, lblk, got, new)?;
                vol.alloc.free(h, old, got, Class::Data)?;
                homes.extend((0..u64::from(got)).map(|i| new.plus(i)));
                goal = Some(new.plus(got.into()));
                lblk = lblk.plus(got);
                left -= got;
            }
            Err(Error::NoSpace) => {
                let len = run.len.min(left);
                homes.extend((0..u64::from(len)).map(|i| run.pblk.plus(i)));
                lblk = lblk.plus(len);
                left -= len;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
