//! A [`Group`] stages changes: writes to files, and changes of names and attributes. Nobody but its
//! owner sees them before the commit, which makes all of them as one transaction, or none.
//! `group/names.rs` has names and attributes, this file has the writes.
//!
//! A staged write is bytes in memory. Staging reserves the blocks that it will need and counts its
//! credits, so that the write itself fails when the volume is full or when one transaction cannot
//! hold the group. The commit locks all files and opens one handle over them. Others may have
//! changed the files meanwhile, so it looks everything up again, and reads the old content that it
//! needs, all before it changes anything. If it fails after that, the journal stops, as for any
//! operation that is half done. If the group also truncates a file or changes a name, its commit
//! has the volume alone instead, and is one span.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stetfs_format::extent::MAX_BLOCKS;
use stetfs_format::inode::InodeFlags;
use stetfs_format::width::{must_fit_u32, u32_as_usize, u64_as_usize, usize_as_u64};
use stetfs_format::{InodeNo, LBlock, Tid};
use stetfs_journal::{CREDITS_PER_RUN, JournalError, Span};
use stetfs_planted::{Bug, is_planted};

use crate::blocks::{self, INODE_CREDITS};
use crate::change::Change;
use crate::error::{Error, Result};
use crate::file::{self, Copied, Found};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::mapping::{self, MapState};
use crate::scope::Scope;
use crate::truncate::TRUNCATE_CREDITS;
use crate::types::{Access, Attr, Caller, Entry, SetAttr, WriteFlags};
use crate::unfold;
use crate::volume::{ROOT_INO, Volume};
use crate::{atomic, attr, path, perm, sync, xattr};
use names::{At, Names};

mod names;

/// Changes that a program makes as one transaction, or not at all; from [`Fs::begin`].
///
/// Dropping it is [`abort`](Self::abort). A file for which a group has staged something stays, even
/// when its last name goes.
///
/// A file or directory that the group makes has its inode number at once, and gets the name that
/// others see at the commit. Its content and attributes are written at once, and need not fit into
/// a transaction. Everything else is staged: it is checked against what the group sees, and the
/// commit checks it again.
///
/// ```
/// # mod making { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/making/mod.rs")); }
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("disk.img");
/// # making::mke2fs(&path, 8)?;
/// # use stetfs::{Caller, Change, Error, Fs, MountOptions, New, open_media};
/// # let options = MountOptions::parse("data=journal")?;
/// # let (fs, _) = Fs::mount(open_media(&path, &options, false)?, options)?;
/// # let me = Caller::root();
/// let mut group = fs.begin();
/// for name in [&b"debit"[..], b"credit"] {
///     let account = Change::Make((fs.root(), name), New::File(0o644));
///     let account = group.change(&me, &account)?;
///     group.write(&me, account.ino, 0, b"100")?;
/// }
/// let seen = fs.resolve(&me, b"/debit", true);
/// assert!(matches!(seen, Err(Error::NotFound)));
/// group.commit(&me)?; // both are durable, or neither
/// assert_eq!(fs.resolve(&me, b"/credit", true)?.attr.size, 3);
/// # fs.unmount()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group {
    fs: Fs,
    files: BTreeMap<InodeNo, Staged>,
    names: Names,
}

/// What is staged for one file.
struct Staged {
    inode: Arc<Inode>,
    /// [`Inode::group_commits`] when the first write was staged.
    seen: u32,
    /// Bytes by their offset. No two pieces overlap or touch.
    pieces: BTreeMap<u64, Vec<u8>>,
    /// The blocks of these pieces. True: the write gives the block a place, or converts it from
    /// unwritten.
    blocks: BTreeMap<u32, bool>,
    /// The number of runs of blocks for which this is true.
    places: u32,
    /// Reserved blocks.
    reserved: u32,
    /// The truncation to the smallest size, made before the pieces are written.
    cut: Option<Cut>,
    /// The least size in bytes, whether or not anything is written up to there.
    least: u64,
    /// An unprivileged caller who wrote. The write strips the file's privileges, whoever commits.
    unprivileged: Option<Caller>,
}

/// A truncation of the file.
#[derive(Clone)]
struct Cut {
    size: u64,
    c: Caller,
    /// Credits that the truncation takes.
    credits: u32,
    /// Credits that its last step may ask for besides, at worst.
    last: u32,
}

impl Staged {
    fn of(inode: &Arc<Inode>) -> Self {
        Self {
            inode: inode.clone(),
            seen: inode.group_commits.load(Ordering::Relaxed),
            pieces: BTreeMap::new(),
            blocks: BTreeMap::new(),
            places: 0,
            reserved: 0,
            cut: None,
            least: 0,
            unprivileged: None,
        }
    }

    /// The bytes that the file keeps of the `size` bytes that it has now.
    fn kept(&self, size: u64) -> u64 {
        self.cut.as_ref().map_or(size, |cut| cut.size.min(size))
    }

    fn end(&self) -> u64 {
        let last = self.pieces.last_key_value();
        let end = last.map_or(0, |(start, bytes)| start + usize_as_u64(bytes.len()));
        end.max(self.least)
    }

    /// Forgets what is staged beyond `size`, and the blocks from `end` on.
    fn clip(&mut self, size: u64, end: LBlock) {
        self.least = self.least.min(size);
        self.pieces.split_off(&size);
        if let Some((start, bytes)) = self.pieces.iter_mut().next_back() {
            bytes.truncate(u64_as_usize(size - start));
        }
        self.blocks.split_off(&end.0);
        let needs = |lblk: u32| self.blocks.get(&lblk) == Some(&true);
        let begins = |lblk: &&u32| needs(**lblk) && !lblk.checked_sub(1).is_some_and(needs);
        self.places = must_fit_u32(self.blocks.keys().filter(begins).count());
    }

    fn credits(&self) -> u32 {
        let cut = self.cut.as_ref().map_or(0, |cut| cut.credits);
        self.credits_to_write(self.places) + cut
    }

    /// The credits of the writes, with `places` runs of blocks that need a place.
    fn credits_to_write(&self, places: u32) -> u32 {
        INODE_CREDITS + must_fit_u32(self.blocks.len()) + CREDITS_PER_RUN * places
    }

    /// The blocks as runs: the first block and the length of each.
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

    /// Adds a block. Extending a run keeps the count of runs; joining two lowers it by one.
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

impl Fs {
    /// Begins a group. Nobody else sees its changes before the commit.
    pub fn begin(&self) -> Group {
        Group::new(self.clone())
    }
}

impl Group {
    pub(crate) fn new(fs: Fs) -> Self {
        Self {
            fs,
            files: BTreeMap::new(),
            names: Names::default(),
        }
    }

    /// Stages a change of names or attributes. Returns the attributes of the inode that it changes,
    /// as they are outside of the group. What the group makes has its inode number at once. Bytes
    /// that a truncation removes stay on the volume until the commit.
    ///
    /// # Errors
    /// Those of [`Fs::change`], judged by what the group sees; [`Error::GroupTooBig`];
    /// `NotSupported` for flags and generations, and for
    /// [`RenameFlags::WHITEOUT`](crate::RenameFlags::WHITEOUT).
    pub fn change(&mut self, c: &Caller, change: &Change<'_>) -> Result<Attr> {
        if let Change::SetAttr(ino, _) | Change::SetXattr(ino, ..) | Change::RemoveXattr(ino, ..) =
            *change
            && self.names.made(ino)
        {
            return self.fs.change(c, change);
        }
        let fs = self.fs.clone();
        fs.run(|vol| {
            vol.check_writable()?;
            if let Change::SetAttr(ino, set) = *change {
                let inode = vol.iget(ino)?;
                attr::check(vol, c, &inode, set)?;
                if let Some(size) = set.size {
                    let _guard = inode.lock.write();
                    self.resize(vol, c, &inode, size)?;
                }
            }
            let (data, last) = (self.data_credits(), self.last_of_cuts());
            let inode = self.names.change(&At { vol, c, data, last }, change)?;
            let st = inode.state.read();
            Ok(attr::stat(vol, &inode, &st))
        })
    }

    /// Returns the value of an extended attribute as the group sees it.
    pub fn getxattr(&self, c: &Caller, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let view = self.names.xattrs(ino);
        self.fs
            .run(|vol| xattr::get(vol, c, &*vol.iget(ino)?, name, view))
    }

    /// Returns the names of extended attributes as the group sees them ([`Fs::listxattr`]).
    pub fn listxattr(&self, c: &Caller, ino: InodeNo) -> Result<Vec<u8>> {
        let view = self.names.xattrs(ino);
        self.fs
            .run(|vol| xattr::list(vol, c, &*vol.iget(ino)?, view))
    }

    /// Returns the inode that `name` in directory `dir` stands for in the group. Its attributes are
    /// those outside of the group.
    pub fn lookup(&mut self, c: &Caller, dir: InodeNo, name: &[u8]) -> Result<Entry> {
        let names = &mut self.names;
        self.fs
            .run(|vol| path::entry_of(vol, &*names.lookup(vol, c, dir, name)?))
    }

    /// Does [`Fs::resolve`] as the group sees the names.
    pub fn resolve(&mut self, c: &Caller, path: &[u8], follow: bool) -> Result<Entry> {
        let names = &mut self.names;
        self.fs.run(|vol| {
            let mut lookup = |dir, name: &[u8]| names.lookup(vol, c, dir, name);
            path::walk(vol, ROOT_INO, path, follow, &mut lookup)
        })
    }

    /// Does [`Fs::resolve_parent`] as the group sees the names.
    pub fn resolve_parent<'p>(&mut self, c: &Caller, path: &'p [u8]) -> Result<(Entry, &'p [u8])> {
        let names = &mut self.names;
        self.fs.run(|vol| {
            let mut lookup = |dir, name: &[u8]| names.lookup(vol, c, dir, name);
            path::walk_to_parent(vol, ROOT_INO, path, &mut lookup)
        })
    }

    /// Credits of the changes of names and attributes.
    #[cfg(test)]
    pub(crate) fn credits_of_names(&self) -> u32 {
        self.names.credits(self.fs.volume())
    }

    /// The mount that the group belongs to.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Returns the names in a directory as the group sees them, without "." and "..", and their
    /// inodes.
    pub fn list(&self, c: &Caller, dir: InodeNo) -> Result<BTreeMap<Vec<u8>, InodeNo>> {
        self.fs.run(|vol| {
            perm::permission(vol, c, &*vol.iget(dir)?, Access::READ)?;
            self.names.list(vol, dir)
        })
    }

    /// Stages all of `bytes`, or none.
    ///
    /// # Errors
    /// Those of a write, among them `NoSpace`; `NotSupported` for a file whose data is not
    /// journaled ([`Fs::can_group`]); [`Error::GroupTooBig`] when one transaction cannot hold the
    /// group. Everything staged before stays staged.
    pub fn write(&mut self, c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.names.made(ino) {
            return self.write_made(c, ino, offset, bytes);
        }
        let fs = self.fs.clone();
        fs.run(|vol| self.stage(vol, c, ino, offset, bytes))?;
        if is_planted(Bug::ShownGroup) {
            fs.write(c, ino, offset, bytes)?;
        }
        Ok(())
    }

    /// Writes to a file that the group made.
    fn write_made(&self, c: &Caller, ino: InodeNo, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + usize_as_u64(done);
            done += self.fs.write(c, ino, at, &bytes[done..])?;
        }
        Ok(())
    }

    /// Reads the file as the commit will leave it if nobody else changes it. Returns the number of
    /// bytes read, fewer than `out` holds at the end of the file.
    pub fn read(&self, ino: InodeNo, offset: u64, out: &mut [u8]) -> Result<usize> {
        let n = self.fs.read(ino, offset, out)?;
        let Some(staged) = self.files.get(&ino) else {
            return Ok(n);
        };
        let size = self.size(ino)?;
        let kept = u64_as_usize(
            staged
                .kept(u64::MAX)
                .saturating_sub(offset)
                .min(usize_as_u64(n)),
        );
        let len = u64_as_usize(usize_as_u64(out.len()).min(size.saturating_sub(offset))).max(kept);
        out[kept..len].fill(0);
        staged.show(offset, &mut out[..len]);
        Ok(len)
    }

    /// Returns the size, in bytes, that the commit will leave if nobody else changes the file.
    pub fn size(&self, ino: InodeNo) -> Result<u64> {
        let size = self.fs.getattr(ino)?.size;
        let staged = self.files.get(&ino);
        Ok(staged.map_or(size, |staged| staged.kept(size).max(staged.end())))
    }

    /// Returns a file's attributes with the size that the group sees. Other staged attributes do
    /// not show.
    pub fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        let attr = self.fs.getattr(ino)?;
        let size = self.size(ino)?;
        Ok(Attr { size, ..attr })
    }

    /// Returns the files that have staged writes or truncations.
    pub fn files(&self) -> Vec<InodeNo> {
        self.files.keys().copied().collect()
    }

    /// True when nothing is staged.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.names.is_empty()
    }

    /// Makes all changes, and returns when they are durable. The group is empty then.
    ///
    /// # Errors
    /// [`Error::Conflict`] when another group has been committed that wrote to one of the files
    /// since this group first did, or when somebody has changed a name that the group changes, or
    /// what stands in its way; the errors of a write. Nothing has happened then, and everything is
    /// still staged, unless the error is of the device or the journal.
    pub fn commit(&mut self, c: &Caller) -> Result<()> {
        let fs = self.fs.clone();
        if self.needs_all() {
            let tid = fs.run_alone(|vol| self.apply_alone(vol, c))?;
            fs.run(|vol| Ok(vol.journal.commit(tid)?))?;
            self.end();
            return Ok(());
        }
        fs.run(|vol| {
            self.apply(vol, c)?;
            let mut inodes = self.files.values().map(|staged| &staged.inode);
            inodes.try_for_each(|inode| sync::fsync(vol, inode, false))
        })?;
        self.end();
        Ok(())
    }

    /// Makes all changes. They are durable with the volume's next commit, or with an fsync of one
    /// of the files. The group is empty then.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_lazy(&mut self, c: &Caller) -> Result<()> {
        let fs = self.fs.clone();
        if self.needs_all() {
            fs.run_alone(|vol| self.apply_alone(vol, c)).map(drop)?;
        } else {
            fs.run(|vol| self.apply(vol, c))?;
        }
        self.end();
        Ok(())
    }

    /// Forgets everything staged.
    pub fn abort(&mut self) {
        if is_planted(Bug::KeptPage) {
            self.keep_page();
        }
        self.end();
    }

    /// Plants [`Bug::KeptPage`]: writes the first staged page.
    fn keep_page(&self) {
        let first = self.files.iter().next();
        let first = first.and_then(|(ino, staged)| Some((ino, staged.pieces.first_key_value()?)));
        if let Some((ino, (offset, bytes))) = first {
            let page = &bytes[..bytes.len().min(4096)];
            let _ = self.fs.write(&Caller::root(), *ino, *offset, page);
        }
    }

    /// Gives back what the group holds.
    fn end(&mut self) {
        for (ino, staged) in std::mem::take(&mut self.files) {
            let alloc = &self.fs.volume().alloc;
            alloc.unstage(staged.reserved.into());
            alloc.release(staged.reserved.into());
            // A volume that is down keeps no files open. If freeing a file fails, the volume notes
            // the error.
            let _ = self.fs.release(ino);
        }
        let names = &mut self.names;
        let _ = self.fs.run(|vol| {
            names.end(vol);
            Ok(())
        });
    }

    fn stage(
        &mut self,
        vol: &Scope<'_>,
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
        unfold::unfold(vol, c, &inode)?;
        let (first, end) = blocks_of(vol, offset, bytes);
        let mut needed = needed(vol, &inode, first, end)?;
        let is_first = !self.files.contains_key(&ino);
        let others = self.credits_of_others(vol, ino);
        let staged = self.files.entry(ino).or_insert_with(|| Staged::of(&inode));
        if let Some(cut) = &staged.cut {
            let gone = vol.end_block(cut.size).0;
            let gone = needed.iter_mut().filter(|(lblk, _)| *lblk >= gone);
            gone.for_each(|(_, need)| *need = Need::Block);
        }
        let places = staged.places;
        let fresh = |(lblk, _): &(u32, Need)| !staged.blocks.contains_key(lblk);
        let fresh: Vec<_> = needed.into_iter().filter(fresh).collect();
        for (lblk, need) in &fresh {
            staged.add_block(*lblk, *need != Need::Nothing);
        }
        let wanted = others.saturating_add(staged.credits());
        let wanted = wanted.saturating_add(self.last_credits());
        let new = fresh.iter().filter(|(_, need)| *need == Need::Block);
        let new = must_fit_u32(new.count());
        let converts = fresh.iter().any(|(_, need)| *need == Need::Change);
        let fits = vol
            .fits_transaction(wanted)
            .and_then(|()| blocks::reserve(vol, c, new, converts));
        let staged = self.files.get_mut(&ino).expect("entered above");
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
        vol.alloc.stage(new.into());
        if !c.privileged {
            staged.unprivileged.get_or_insert_with(|| c.clone());
        }
        staged.lay(offset, bytes);
        if is_first {
            inode.opens.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Credits of the writes and truncations.
    fn data_credits(&self) -> u32 {
        self.files.values().map(Staged::credits).sum()
    }

    /// The most that the last step of a truncation may ask for, in credits.
    fn last_of_cuts(&self) -> u32 {
        let cuts = self.files.values().filter_map(|staged| staged.cut.as_ref());
        cuts.map(|cut| cut.last).max().unwrap_or(0)
    }

    /// The most that the last operation of the commit may ask for, in credits.
    fn last_credits(&self) -> u32 {
        self.last_of_cuts().max(self.names.asks())
    }

    /// Credits of the group without this file.
    fn credits_of_others(&self, vol: &Volume, ino: InodeNo) -> u32 {
        let others = self.files.iter().filter(|(other, _)| **other != ino);
        let others: u32 = others.map(|(_, staged)| staged.credits()).sum();
        others.saturating_add(self.names.credits(vol))
    }

    /// Stages a truncation or a growth. The caller holds the inode's lock for writing.
    fn resize(&mut self, vol: &Scope<'_>, c: &Caller, inode: &Arc<Inode>, size: u64) -> Result<()> {
        unfold::unfold(vol, c, inode)?;
        let others = self.credits_of_others(vol, inode.ino);
        let old = inode.state.read().raw.size;
        if size > blocks::size_limit(vol, &inode.state.read()) {
            return Err(Error::TooBig);
        }
        let is_first = !self.files.contains_key(&inode.ino);
        let staged = self
            .files
            .entry(inode.ino)
            .or_insert_with(|| Staged::of(inode));
        let is_cut = size < staged.kept(old).max(staged.end());
        let keeps_all = size >= staged.kept(old);
        let cut = if keeps_all {
            Ok(staged.cut.clone())
        } else {
            cut_to(vol, c, inode, size).map(Some)
        };
        let before = std::mem::take(&mut staged.cut);
        let wanted = cut.map(|cut| {
            staged.cut = cut;
            others.saturating_add(staged.credits())
        });
        let last = self.last_credits();
        let fits = wanted.and_then(|wanted| vol.fits_transaction(wanted.saturating_add(last)));
        let staged = self.files.get_mut(&inode.ino).expect("entered above");
        if let Err(error) = fits {
            staged.cut = before;
            if is_first {
                self.files.remove(&inode.ino);
            }
            return Err(error);
        }
        if is_cut {
            staged.clip(size, vol.end_block(size));
        }
        if keeps_all {
            staged.least = staged.least.max(size);
        }
        if is_first {
            inode.opens.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// True when the commit must have the volume alone.
    fn needs_all(&self) -> bool {
        !self.names.is_empty() || self.files.values().any(|staged| staged.cut.is_some())
    }

    /// Makes all changes in one span. The caller has the volume alone.
    fn apply_alone(&mut self, vol: &Scope<'_>, c: &Caller) -> Result<Tid> {
        vol.check_writable()?;
        // Others may have added blocks to a file since.
        for staged in self.files.values_mut() {
            if let Some(Cut { size, c, .. }) = &staged.cut {
                staged.cut = Some(cut_to(vol, c, &staged.inode, *size)?);
            }
        }
        let (data, last) = (self.data_credits(), self.last_of_cuts());
        self.names.place_data(vol)?;
        let names = self.names.check(&At { vol, c, data, last })?;
        let last = self.last_credits();
        let files = self.files.values_mut();
        let (mut cut, mut whole): (Vec<_>, Vec<_>) = files.partition(|staged| staged.cut.is_some());
        cut.iter()
            .try_for_each(|staged| check_staged(vol, staged))?;
        let prepared = prepare(vol, c, &mut whole)?;
        let of = |(staged, prepared): (&&mut Staged, &Prepared)| {
            staged.credits_to_write(prepared.places)
        };
        let data: u32 = whole.iter().zip(&prepared).map(of).sum();
        let data = data + cut.iter().map(|staged| staged.credits()).sum::<u32>();
        let wanted = names + data + last;
        vol.fits_transaction(wanted)?;
        let span = if is_planted(Bug::TornGroup) {
            None
        } else {
            Some(vol.span(wanted)?)
        };
        let vol = &span.as_ref().map_or(*vol, |span| vol.within(span));
        let done = self.names.repeat(vol).and_then(|()| {
            for staged in &mut cut {
                cut_file(vol, staged)?;
                let staged = std::slice::from_mut(staged);
                let prepared = prepare(vol, c, staged)?;
                write(vol, staged, &prepared)?;
            }
            if whole.is_empty() {
                Ok(())
            } else {
                write(vol, &mut whole, &prepared)
            }
        });
        if let Err(error) = done {
            let why = format!("a group failed when it was half done: {error}");
            vol.journal.abort(JournalError::Unusable(why));
            return Err(error);
        }
        Ok((span.as_ref()).map_or_else(|| vol.journal.running(), Span::tid))
    }

    /// Makes all changes in one handle.
    fn apply(&mut self, vol: &Scope<'_>, c: &Caller) -> Result<()> {
        vol.check_writable()?;
        // By ascending number, as the lock order demands.
        let inodes: Vec<_> = self.files.values().map(|s| s.inode.clone()).collect();
        let _guards: Vec<_> = inodes.iter().map(|inode| inode.lock.write()).collect();
        let mut files: Vec<_> = self.files.values_mut().collect();
        if files.is_empty() {
            return Ok(());
        }
        let prepared = prepare(vol, c, &mut files)?;
        let at_once = if is_planted(Bug::TornGroup) {
            1
        } else {
            files.len()
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

/// What a write needs for one of its blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Nothing,
    /// The block is unwritten and becomes written.
    Change,
    /// A reserved block, and a place for it.
    Block,
}

/// What a write needs for each block from `first` up to `end`, which is excluded.
fn needed(vol: &Volume, inode: &Inode, first: LBlock, end: LBlock) -> Result<Vec<(u32, Need)>> {
    let mut out = Vec::new();
    for run in blocks::runs_of(vol, inode, &inode.state.read(), first, end.0 - first.0)? {
        let from = out.len();
        out.extend((0..run.len).map(|i| (run.lblk.0 + i, Need::Nothing)));
        let need = match run.state {
            MapState::Written => continue,
            MapState::Unwritten => Need::Change,
            MapState::Hole => Need::Block,
        };
        let to = run.lblk.plus(run.len);
        for (start, len) in blocks::not_delayed_in(inode.data(vol), run.lblk, to) {
            let at = from + u32_as_usize(start.0 - run.lblk.0);
            out[at..at + u32_as_usize(len)]
                .iter_mut()
                .for_each(|(_, n)| *n = need);
        }
    }
    Ok(out)
}

/// Fails unless a group can write `len` bytes at `offset`.
fn check(vol: &Volume, inode: &Inode, offset: u64, len: u64) -> Result<()> {
    vol.check_writable()?;
    let (_, room) = file::check_write(vol, inode, offset, WriteFlags::empty())?;
    if len > room {
        return Err(Error::TooBig);
    }
    if atomic::can_group(vol, inode) {
        Ok(())
    } else {
        Err(Error::NotSupported)
    }
}

/// What the commit has looked up of a file before it writes.
struct Prepared {
    /// What each piece finds at its place.
    found: Vec<Found>,
    /// The number of runs of blocks that the write newly makes delayed.
    places: u32,
}

/// Fails if another group has changed the file, or if it can no longer be written.
fn check_staged(vol: &Volume, staged: &Staged) -> Result<()> {
    let inode = &*staged.inode;
    let is_changed = inode.group_commits.load(Ordering::Relaxed) != staged.seen;
    if is_changed && !is_planted(Bug::UnseenConflict) {
        return Err(Error::Conflict(inode.ino));
    }
    let mut pieces = staged.pieces.iter();
    pieces.try_for_each(|(at, bytes)| check(vol, inode, *at, usize_as_u64(bytes.len())))
}

/// Computes the credits of truncating the file to `size`. The caller holds the inode's lock.
fn cut_to(vol: &Volume, c: &Caller, inode: &Inode, size: u64) -> Result<Cut> {
    let st = inode.state.read();
    let from = vol.end_block(size);
    let (mut runs, mut blocks, mut at) = (0, 0, from);
    let end = if st.raw.flags.contains(InodeFlags::EXTENTS) {
        LBlock(MAX_BLOCKS)
    } else {
        vol.end_block(st.raw.size)
    };
    while at < end {
        let run = mapping::lookup(vol, inode, &st, at, end.0 - at.0)?;
        if run.state != MapState::Hole {
            runs += 1;
            blocks += run.len;
        }
        at = at.plus(run.len);
    }
    Ok(Cut {
        size,
        c: c.clone(),
        credits: mapping::credits_for_cut(vol, &st, runs, blocks),
        last: mapping::credits_for_last_cut(vol, &st, blocks).max(TRUNCATE_CREDITS),
    })
}

/// Truncates the file, in the span.
fn cut_file(vol: &Scope<'_>, staged: &mut Staged) -> Result<()> {
    let Some(Cut { size, c, .. }) = &staged.cut else {
        return Ok(());
    };
    let inode = &*staged.inode;
    let _guard = inode.lock.write();
    // Somebody else may have truncated the file further.
    let size = (*size).min(inode.state.read().raw.size);
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    attr::change(vol, c, inode, &set)
}

/// Does everything that can fail for a reason other than the device, before anything is changed.
/// The caller holds the inodes' locks, or has the volume alone.
fn prepare(vol: &Scope<'_>, c: &Caller, files: &mut [&mut Staged]) -> Result<Vec<Prepared>> {
    files
        .iter()
        .try_for_each(|staged| check_staged(vol, staged))?;
    let mut all = Vec::new();
    for staged in files {
        let inode = &*staged.inode;
        let stripped_by = if c.privileged {
            staged.unprivileged.as_ref().unwrap_or(c)
        } else {
            c
        };
        attr::strip_privileges(vol, stripped_by, inode, false)?;
        // If any piece leaves a gap behind the end, the last one does.
        let last = staged.pieces.last_key_value().map_or(0, |(at, _)| *at);
        blocks::zero_past_end(vol, inode, last.max(staged.least))?;
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
        // The writes reserved these, unless others have punched holes since.
        let more = new.saturating_sub(staged.reserved);
        blocks::reserve(vol, c, more, converts)?;
        staged.reserved += more;
        vol.alloc.stage(more.into());
        for (offset, bytes) in &staged.pieces {
            atomic::read_ahead(vol, inode, vol.split(*offset), bytes)?;
        }
        all.push(Prepared { found, places });
    }
    Ok(all)
}

/// Writes everything, in one handle.
fn write(vol: &Scope<'_>, files: &mut [&mut Staged], prepared: &[Prepared]) -> Result<()> {
    let of =
        |(staged, prepared): (&&mut Staged, &Prepared)| staged.credits_to_write(prepared.places);
    let wanted = files.iter().zip(prepared).map(of).sum();
    vol.fits_transaction(wanted)?;
    vol.with_handle(wanted, |h| {
        for (staged, prepared) in files.iter_mut().zip(prepared) {
            let inode = &*staged.inode;
            let mut reserved = 0;
            for ((offset, bytes), found) in staged.pieces.iter().zip(&prepared.found) {
                let mut copied = Copied::default();
                let at = vol.split(*offset);
                file::copy_in(vol, h, inode, at, bytes, found, &mut copied)?;
                reserved += copied.reserved;
                vol.bytes_written
                    .fetch_add(usize_as_u64(bytes.len()), Ordering::Relaxed);
            }
            staged.reserved -= reserved;
            vol.alloc.unstage(reserved.into());
            file::finish_write(vol, h, inode, staged.end(), reserved, WriteFlags::empty())?;
            staged.seen = inode.group_commits.fetch_add(1, Ordering::Relaxed) + 1;
        }
        Ok(())
    })
}

/// The first block of `bytes` at `offset`, and the block behind the last.
fn blocks_of(vol: &Volume, offset: u64, bytes: &[u8]) -> (LBlock, LBlock) {
    let end = offset + usize_as_u64(bytes.len());
    (vol.block_of(offset), vol.end_block(end))
}
