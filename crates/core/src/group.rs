//! Staged writes: a [`Group`] of writes to one file or several, which nobody but its owner sees
//! before they are committed and which then happen as one transaction or not at all.
//!
//! What is staged is bytes in memory. Blocks that it will need are reserved as it is staged, so
//! that a full volume is told of at the write; credits are counted in the same way, so that what
//! one transaction cannot hold is refused at the write too. The commit is one handle over all
//! files, whose locks it holds. It looks everything up anew, since others may have changed the
//! files meanwhile, and reads what it needs of old content, all before it changes anything.
//! Should it fail behind that, the journal stops, as for any operation that is half done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stetfs_format::width::{must_fit_u32, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{InodeNo, LBlock};
use stetfs_planted::{Bug, is_planted};

use crate::error::{Error, Result};
use crate::file::{self, Copied, Found, INODE_CREDITS, RUN_CREDITS};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::mapping::MapState;
use crate::types::{Caller, WriteFlags};
use crate::volume::Volume;
use crate::{atomic, attr, open};

/// Changes that are made as one transaction, or not at all; from [`Fs::begin`].
///
/// Dropping it is [`abort`](Self::abort). A file stays while a group has staged something for it,
/// even when its last name goes.
pub struct Group {
    fs: Fs,
    files: BTreeMap<InodeNo, Staged>,
}

/// What is staged for one file.
struct Staged {
    inode: Arc<Inode>,
    /// [`Inode::group_commits`] when the first write was staged.
    seen: u32,
    /// Bytes by where they begin. No two pieces overlap or touch.
    pieces: BTreeMap<u64, Vec<u8>>,
    /// The blocks that these lie in, and whether each will need a place.
    blocks: BTreeMap<u32, bool>,
    /// In how many pieces those lie that will.
    places: u32,
    /// Reserved blocks.
    reserved: u32,
    /// Somebody who wrote, and by whose writing a file loses its privileges, whoever commits.
    unprivileged: Option<Caller>,
}

impl Staged {
    fn end(&self) -> u64 {
        let last = self.pieces.last_key_value();
        last.map_or(0, |(start, bytes)| start + usize_as_u64(bytes.len()))
    }

    fn credits(&self) -> u32 {
        self.credits_for(self.places)
    }

    /// The same, where the blocks that need a place lie in so many pieces.
    fn credits_for(&self, places: u32) -> u32 {
        INODE_CREDITS + must_fit_u32(self.blocks.len()) + RUN_CREDITS * places
    }

    /// The blocks in runs: the first of each, and how many.
    fn runs(&self) -> Vec<(LBlock, u32)> {
        let mut runs: Vec<(LBlock, u32)> = Vec::new();
        for lblk in self.blocks.keys().copied().map(LBlock) {
            match runs.last_mut() {
                Some((first, count)) if first.plus(*count) == lblk => *count += 1,
                _ => runs.push((lblk, 1)),
            }
        }
        runs
    }

    /// Adds a block. A run that grows at one end is the run it was; one that it joins to another is
    /// one less.
    fn add_block(&mut self, lblk: u32, needs_place: bool) {
        if self.blocks.insert(lblk, needs_place).is_some() || !needs_place {
            return;
        }
        let needs = |lblk: Option<u32>| lblk.and_then(|lblk| self.blocks.get(&lblk)) == Some(&true);
        let neighbours =
            u32::from(needs(lblk.checked_sub(1))) + u32::from(needs(lblk.checked_add(1)));
        self.places = self.places + 1 - neighbours;
    }

    /// Lays `bytes` over what is staged.
    fn lay(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + usize_as_u64(bytes.len());
        let before = self.pieces.range(..=offset).next_back();
        let touched = before.filter(|(start, old)| *start + usize_as_u64(old.len()) >= offset);
        let start = touched.map_or(offset, |(start, _)| *start);
        let mut piece = self.pieces.remove(&start).unwrap_or_default();
        let at = u64_as_usize(offset - start);
        if piece.len() < at + bytes.len() {
            piece.resize(at + bytes.len(), 0);
        }
        piece[at..at + bytes.len()].copy_from_slice(bytes);
        while let Some((&next, _)) = self.pieces.range(start..=end).next() {
            let old = self.pieces.remove(&next).expect("found just now");
            let known = start + usize_as_u64(piece.len()) - next;
            piece.extend_from_slice(old.get(u64_as_usize(known)..).unwrap_or_default());
        }
        self.pieces.insert(start, piece);
    }

    /// Lays what is staged over `out`, which was read at `offset`.
    fn show(&self, offset: u64, out: &mut [u8]) {
        let end = offset.saturating_add(usize_as_u64(out.len()));
        let first = self.pieces.range(..offset).next_back();
        let behind = self.pieces.range(offset..end);
        for (start, bytes) in first.into_iter().chain(behind) {
            let from = (*start).max(offset);
            let to = (start + usize_as_u64(bytes.len())).min(end);
            if from < to {
                let bytes = &bytes[u64_as_usize(from - start)..u64_as_usize(to - start)];
                out[u64_as_usize(from - offset)..][..bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

impl Group {
    pub(crate) fn new(fs: Fs) -> Self {
        Self {
            fs,
            files: BTreeMap::new(),
        }
    }

    /// Stages all of `bytes`, or nothing of them.
    ///
    /// # Errors
    /// Those of a write, among them `NoSpace`; `NotSupported` for a file whose data is not
    /// journaled ([`Fs::can_group`]); [`Error::GroupTooBig`] for more than one transaction holds.
    /// What was staged before stays staged.
    pub fn write(&mut self, c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<()> {
        let fs = self.fs.clone();
        fs.run(|vol| self.stage(vol, c, ino, offset, bytes))?;
        if is_planted(Bug::ShownGroup) {
            fs.write(c, ino, offset, bytes)?;
        }
        Ok(())
    }

    /// Reads as the file will be when nothing but the group changes it; gives how much there was
    /// before its end.
    pub fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        let n = self.fs.read(ino, offset, out)?;
        let Some(staged) = self.files.get(&ino) else {
            return Ok(n);
        };
        let size = self.size(ino)?;
        let len = u64_as_usize(usize_as_u64(out.len()).min(size.saturating_sub(offset))).max(n);
        out[n..len].fill(0);
        staged.show(offset, &mut out[..len]);
        Ok(len)
    }

    /// The file's size, in bytes, as it will be when nothing but the group changes it.
    pub fn size(&self, ino: InodeNo) -> Result<u64> {
        let staged = self.files.get(&ino).map_or(0, Staged::end);
        Ok(self.fs.getattr(ino)?.size.max(staged))
    }

    /// The files that something is staged for.
    pub fn files(&self) -> Vec<InodeNo> {
        self.files.keys().copied().collect()
    }

    /// Whether nothing is staged.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Makes all of it happen, and returns when it is durable. The group is empty then.
    ///
    /// # Errors
    /// [`Error::Conflict`] when another group has been committed that wrote to one of the files
    /// since this one first did; what a write says. Nothing has happened then, and everything is
    /// still staged; unless the error is of the device or the journal.
    pub fn commit(&mut self, c: &Caller) -> Result<()> {
        let fs = self.fs.clone();
        fs.run(|vol| {
            self.apply(vol, c)?;
            let mut inodes = self.files.values().map(|staged| &staged.inode);
            inodes.try_for_each(|inode| open::fsync(vol, inode, false))
        })?;
        self.end();
        Ok(())
    }

    /// Makes all of it happen; it is durable with the next commit of the volume, or with an fsync
    /// of one of the files. The group is empty then.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_lazy(&mut self, c: &Caller) -> Result<()> {
        let fs = self.fs.clone();
        fs.run(|vol| self.apply(vol, c))?;
        self.end();
        Ok(())
    }

    /// Forgets what is staged.
    pub fn abort(&mut self) {
        if is_planted(Bug::KeptPage) {
            self.keep_page();
        }
        self.end();
    }

    /// Only of a planted bug.
    fn keep_page(&self) {
        let first = self.files.iter().next();
        let first = first.and_then(|(ino, staged)| Some((ino, staged.pieces.first_key_value()?)));
        if let Some((ino, (offset, bytes))) = first {
            let page = &bytes[..bytes.len().min(4096)];
            let _ = self.fs.write(&Caller::root(), *ino, *offset, page);
        }
    }

    /// Gives back what it holds.
    fn end(&mut self) {
        for (ino, staged) in std::mem::take(&mut self.files) {
            self.fs.volume().alloc.release(staged.reserved.into());
            // A volume that is down keeps no files open. Where one cannot be freed, the volume
            // takes note of that.
            let _ = self.fs.release(ino);
        }
    }

    fn stage(
        &mut self,
        vol: &Volume,
        c: &Caller,
        ino: InodeNo,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let inode = vol.iget(ino)?;
        let _guard = inode.lock.write();
        check(vol, &inode, offset, usize_as_u64(bytes.len()))?;
        if bytes.is_empty() {
            return Ok(());
        }
        let (first, end) = blocks_of(vol, offset, bytes);
        let needed = needed(vol, &inode, first, end)?;
        let is_first = !self.files.contains_key(&ino);
        let others = self.files.iter().filter(|(other, _)| **other != ino);
        let others: u32 = others.map(|(_, staged)| staged.credits()).sum();
        let staged = self.files.entry(ino).or_insert_with(|| Staged {
            inode: inode.clone(),
            seen: inode.group_commits.load(Ordering::Relaxed),
            pieces: BTreeMap::new(),
            blocks: BTreeMap::new(),
            places: 0,
            reserved: 0,
            unprivileged: None,
        });
        let places = staged.places;
        let fresh = |(lblk, _): &(u32, Need)| !staged.blocks.contains_key(lblk);
        let fresh: Vec<_> = needed.into_iter().filter(fresh).collect();
        for (lblk, need) in &fresh {
            staged.add_block(*lblk, *need != Need::Nothing);
        }
        let wanted = others.saturating_add(staged.credits());
        let new = fresh.iter().filter(|(_, need)| *need == Need::Block);
        let new = must_fit_u32(new.count());
        let converts = fresh.iter().any(|(_, need)| *need == Need::Change);
        let fits = fits_transaction(vol, wanted)
            .and_then(|()| file::reserve_blocks(vol, c, new, converts));
        if let Err(e) = fits {
            for (lblk, _) in &fresh {
                staged.blocks.remove(lblk);
            }
            staged.places = places;
            if is_first {
                self.files.remove(&ino);
            }
            return Err(e);
        }
        staged.reserved += new;
        if !c.privileged {
            staged.unprivileged.get_or_insert_with(|| c.clone());
        }
        staged.lay(offset, bytes);
        if is_first {
            inode.opens.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// All of it in one handle.
    fn apply(&mut self, vol: &Volume, c: &Caller) -> Result<()> {
        vol.check_writable()?;
        // By ascending number, as the order of locks demands.
        let inodes: Vec<_> = self.files.values().map(|s| s.inode.clone()).collect();
        let _guards: Vec<_> = inodes.iter().map(|inode| inode.lock.write()).collect();
        let mut files: Vec<_> = self.files.values_mut().collect();
        if files.is_empty() {
            return Ok(());
        }
        let prepared = prepare(vol, c, &mut files)?;
        let at_once = match is_planted(Bug::TornGroup) {
            true => 1,
            false => files.len(),
        };
        let mut parts = files.chunks_mut(at_once).zip(prepared.chunks(at_once));
        parts.try_for_each(|(files, prepared)| write(vol, files, prepared))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.abort();
    }
}

/// What a block needs that is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    /// It is unwritten and becomes written.
    Change,
    /// A reserved block, and a place for it.
    Block,
}

/// What the blocks from `first` to before `end` need.
fn needed(vol: &Volume, inode: &Inode, first: LBlock, end: LBlock) -> Result<Vec<(u32, Need)>> {
    let mut out = Vec::new();
    for run in file::runs_of(vol, inode, &inode.state.read(), first, end.0 - first.0)? {
        let from = out.len();
        out.extend((0..run.len).map(|i| (run.lblk.0 + i, Need::Nothing)));
        let need = match run.state {
            MapState::Written => continue,
            MapState::Unwritten => Need::Change,
            MapState::Hole => Need::Block,
        };
        let to = run.lblk.plus(run.len);
        for (start, len) in file::not_waiting_in(inode.data(vol), run.lblk, to) {
            let at = from + u32_as_usize(start.0 - run.lblk.0);
            out[at..at + u32_as_usize(len)]
                .iter_mut()
                .for_each(|(_, n)| *n = need);
        }
    }
    Ok(out)
}

/// Fails when one transaction does not hold so many blocks.
fn fits_transaction(vol: &Volume, wanted: u32) -> Result<()> {
    match vol.journal.max_credits() {
        limit if wanted > limit => Err(Error::GroupTooBig { wanted, limit }),
        _ => Ok(()),
    }
}

/// Whether so much can be written there as part of a group.
fn check(vol: &Volume, inode: &Inode, offset: u64, len: u64) -> Result<()> {
    vol.check_writable()?;
    let (_, room) = file::check_write(vol, inode, offset, WriteFlags::empty())?;
    if len > room {
        return Err(Error::TooBig);
    }
    match atomic::can_group(vol, inode) {
        true => Ok(()),
        false => Err(Error::NotSupported),
    }
}

/// What is known of a file before it is written.
struct Prepared {
    /// What each piece finds where it goes.
    found: Vec<Found>,
    /// In how many pieces its blocks lie that will wait for a place, and do not yet.
    places: u32,
}

/// Does whatever may be refused, before anything is changed. The caller holds the inodes' locks.
fn prepare(vol: &Volume, c: &Caller, files: &mut [&mut Staged]) -> Result<Vec<Prepared>> {
    for staged in &*files {
        let inode = &*staged.inode;
        if inode.group_commits.load(Ordering::Relaxed) != staged.seen {
            return Err(Error::Conflict(inode.ino));
        }
        for (offset, bytes) in &staged.pieces {
            check(vol, inode, *offset, usize_as_u64(bytes.len()))?;
        }
    }
    let mut all = Vec::new();
    for staged in files {
        let inode = &*staged.inode;
        let stripped_by = if c.privileged {
            staged.unprivileged.as_ref()
        } else {
            Some(c)
        };
        if let Some(c) = stripped_by {
            attr::strip_privileges(vol, c, inode)?;
        }
        // If any piece leaves a gap behind the end, the last one does.
        if let Some((last, _)) = staged.pieces.last_key_value() {
            file::zero_past_end(vol, inode, *last)?;
        }
        let mut found = Vec::new();
        for (offset, bytes) in &staged.pieces {
            let (first, end) = blocks_of(vol, *offset, bytes);
            found.push(file::look_up(vol, inode, first, end.0 - first.0)?);
        }
        // Several pieces may lie in one block.
        let (mut new, mut places, mut converts) = (0, 0, false);
        for (first, count) in staged.runs() {
            let run = file::look_up(vol, inode, first, count)?;
            new += run.new;
            places += run.places;
            converts |= run.converts;
        }
        // As many as were reserved at the writes, unless others have punched holes since.
        let more = new.saturating_sub(staged.reserved);
        file::reserve_blocks(vol, c, more, converts)?;
        staged.reserved += more;
        for (offset, bytes) in &staged.pieces {
            let skip = u64_as_usize(*offset) & (vol.geo.block_size() - 1);
            atomic::read_ahead(vol, inode, (vol.block_of(*offset), skip), bytes)?;
        }
        all.push(Prepared { found, places });
    }
    Ok(all)
}

/// Writes everything, in one handle.
fn write(vol: &Volume, files: &mut [&mut Staged], prepared: &[Prepared]) -> Result<()> {
    let of = |(staged, prepared): (&&mut Staged, &Prepared)| staged.credits_for(prepared.places);
    let wanted = files.iter().zip(prepared).map(of).sum();
    fits_transaction(vol, wanted)?;
    let h = vol.start(wanted)?;
    for (staged, prepared) in files.iter_mut().zip(prepared) {
        let inode = &*staged.inode;
        let mut reserved = 0;
        for ((offset, bytes), found) in staged.pieces.iter().zip(&prepared.found) {
            let skip = u64_as_usize(*offset) & (vol.geo.block_size() - 1);
            let mut copied = Copied::default();
            let at = (vol.block_of(*offset), skip);
            file::copy_in(vol, &h, inode, at, bytes, found, &mut copied)?;
            reserved += copied.reserved;
            vol.bytes_written
                .fetch_add(usize_as_u64(bytes.len()), Ordering::Relaxed);
        }
        staged.reserved -= reserved;
        file::finish_write(vol, &h, inode, staged.end(), reserved, WriteFlags::empty())?;
        staged.seen = inode.group_commits.fetch_add(1, Ordering::Relaxed) + 1;
    }
    Ok(())
}

/// The first block that `bytes` at `offset` lie in, and the one behind the last.
fn blocks_of(vol: &Volume, offset: u64, bytes: &[u8]) -> (LBlock, LBlock) {
    let end = offset + usize_as_u64(bytes.len());
    (vol.block_of(offset), vol.end_block(end))
}
