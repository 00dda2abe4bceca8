//! Names and attributes in a [`Group`](crate::Group): what is made, named, removed, renamed.
//!
//! A new file or directory is made at once, without a name: an orphan with a number of its own. It
//! disappears when the group ends without a commit. Everything else is a list of steps, which
//! change only what the group sees. Staging a step checks it against that, and counts the credits
//! and blocks that it takes.
//!
//! The commit has the volume alone (`world.rs`). It checks that everything the steps rely on still
//! holds; nothing is refused after that. Then it repeats the steps by the ordinary operations, in
//! one span of the journal. A step that fails there leaves the group half done, and the journal
//! stops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stetfs_format::InodeNo;
use stetfs_format::inode::InodeFlags;

use crate::attr;
use crate::change::{Change, Name, New};
use crate::dir;
use crate::dir::block::Dir;
use crate::error::{Error, Inconsistent, Result};
use crate::inode::Inode;

use crate::namei::rename::Moved;
use crate::namei::{self, LINK_MAX, create, rename, unlink};
use crate::scope::Scope;
use crate::types::{Caller, RenameFlags, SetXattr, mode};
use crate::volume::{ROOT_INO, Volume};
use crate::{open, perm, readdir, sync, xattr};
use cost::{Cost, Entries, Takes};
use step::{Step, Xattrs};

mod attributes;
mod cost;
mod step;

/// The context in which a step is staged.
pub(super) struct At<'a> {
    pub(super) vol: &'a Scope<'a>,
    pub(super) c: &'a Caller,
    /// Credits of the group's writes and truncations.
    pub(super) data: u32,
    /// The most that the last step of a truncation may ask for, in credits.
    pub(super) last: u32,
}

#[derive(Default)]
pub(super) struct Names {
    steps: Vec<(Caller, Step)>,
    /// The names that the group changes, by directory and name.
    entries: BTreeMap<(InodeNo, Vec<u8>), Entry>,
    /// The directories that the group moves, and those on the way from their new place to the root.
    parents: BTreeMap<InodeNo, Parent>,
    /// Files that get or lose names.
    links: BTreeMap<InodeNo, Links>,
    /// Every inode that a step names. It is kept open, so that its number stays its own.
    kept: BTreeMap<InodeNo, Kept>,
    /// The directories that the group removes.
    removed: BTreeSet<InodeNo>,
    /// Files whose extended attributes the group changes.
    xattrs: BTreeMap<InodeNo, Xattrs>,
    cost: Cost,
    /// Reserved blocks.
    reserved: u32,
}

/// What a name stood for when the group first looked, and what it stands for in the group. `None`:
/// the name does not exist.
struct Entry {
    base: Option<InodeNo>,
    now: Option<InodeNo>,
}

/// What ".." of a directory stood for, and what it stands for in the group. `base` is `None` for a
/// directory that the group made.
struct Parent {
    base: Option<InodeNo>,
    now: InodeNo,
}

#[derive(Clone, Copy)]
struct Links {
    /// `i_links_count` when the group first looked; `None` for what the group made.
    base: Option<u16>,
    now: u16,
}

struct Kept {
    inode: Arc<Inode>,
    is_made: bool,
    /// The inode's flags that forbid changes, when the group first looked.
    flags: InodeFlags,
}

impl Names {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Credits of the steps.
    pub(super) fn credits(&self, vol: &Volume) -> u32 {
        if self.steps.is_empty() {
            0
        } else {
            self.cost.credits(vol)
        }
    }

    /// The most that the last of the steps may ask for, in credits.
    pub(super) fn asks(&self) -> u32 {
        self.cost.asks()
    }

    /// True when the group made this inode.
    pub(super) fn made(&self, ino: InodeNo) -> bool {
        self.kept.get(&ino).is_some_and(|kept| kept.is_made)
    }

    fn inode(&self, vol: &Volume, ino: InodeNo) -> Result<Arc<Inode>> {
        match self.kept.get(&ino) {
            Some(kept) => Ok(kept.inode.clone()),
            None => vol.iget(ino),
        }
    }

    fn keep(&mut self, inode: &Arc<Inode>) -> Result<()> {
        if !self.kept.contains_key(&inode.ino) {
            open::keep(inode)?;
            self.insert(inode, false);
        }
        Ok(())
    }

    fn insert(&mut self, inode: &Arc<Inode>, is_made: bool) {
        let kept = Kept {
            inode: inode.clone(),
            is_made,
            flags: forbidding(inode),
        };
        self.kept.insert(inode.ino, kept);
    }

    /// Returns a directory that a step names, and keeps it open. Fails when the caller may not
    /// search it, or when it was removed.
    fn dir(&mut self, vol: &Volume, c: &Caller, ino: InodeNo) -> Result<Arc<Inode>> {
        let dir = self.inode(vol, ino)?;
        perm::may_search(vol, c, &dir)?;
        if self.removed.contains(&ino) {
            return Err(Error::NotFound);
        }
        if !self.made(ino) {
            perm::check_named(&dir)?;
        }
        self.keep(&dir)?;
        Ok(dir)
    }

    /// Returns the inode that the name stands for in the group.
    fn find(&self, vol: &Volume, dir: &Inode, name: &[u8]) -> Result<Option<InodeNo>> {
        if let Some(entry) = self.entries.get(&(dir.ino, name.to_vec())) {
            return Ok(entry.now);
        }
        if self.made(dir.ino) {
            Ok(None)
        } else {
            find_child(vol, dir, name)
        }
    }

    /// The names of a directory that the group changes, and what each stands for in the group.
    fn changed_in(&self, dir: InodeNo) -> impl Iterator<Item = (&[u8], Option<InodeNo>)> {
        let from_it = self.entries.range((dir, Vec::new())..);
        let in_it = from_it.take_while(move |((ino, _), _)| *ino == dir);
        in_it.map(|((_, name), entry)| (&name[..], entry.now))
    }

    /// Changes what a name stands for in the group. `base` is what [`find`](Self::find) has
    /// returned.
    fn set(&mut self, dir: InodeNo, name: &[u8], base: Option<InodeNo>, now: Option<InodeNo>) {
        let entry = self.entries.entry((dir, name.to_vec()));
        entry.or_insert(Entry { base, now }).now = now;
    }

    /// Returns the directory that ".." stands for in the group.
    fn parent(&mut self, vol: &Volume, ino: InodeNo) -> Result<InodeNo> {
        if let Some(parent) = self.parents.get(&ino) {
            return Ok(parent.now);
        }
        let now = dotdot(vol, &*self.inode(vol, ino)?)?;
        let base = Some(now);
        self.parents.insert(ino, Parent { base, now });
        Ok(now)
    }

    fn is_same_or_above(&mut self, vol: &Volume, above: InodeNo, below: InodeNo) -> Result<bool> {
        let mut at = below;
        for _ in 0..=vol.geo.inodes_count {
            match at {
                _ if at == above => return Ok(true),
                ROOT_INO => return Ok(false),
                _ => at = self.parent(vol, at)?,
            }
        }
        Err(Inconsistent::NotBelowRoot(below).into())
    }

    fn is_empty_dir(&self, vol: &Volume, dir: &Inode) -> Result<bool> {
        if self.changed_in(dir.ino).any(|(_, now)| now.is_some()) {
            return Ok(false);
        }
        if self.made(dir.ino) {
            return Ok(true);
        }
        let mut is_empty = true;
        readdir::readdir(vol, dir, 0, &mut |entry| {
            let is_known = dir::is_dot_or_dotdot(entry.name)
                || self.entries.contains_key(&(dir.ino, entry.name.to_vec()));
            is_empty &= is_known;
            is_known
        })?;
        Ok(is_empty)
    }

    /// Counts and reserves what a step takes; changes nothing if that fails.
    fn charge(&mut self, at: &At<'_>, takes: &Takes<'_>) -> Result<()> {
        let undo = self.cost.add(at.vol, takes)?;
        let wanted = self.cost.credits(at.vol).saturating_add(at.data);
        let last = self.cost.asks().max(at.last);
        let more = self.cost.new_blocks().saturating_sub(self.reserved);
        let fits = at.vol.fits_transaction(wanted.saturating_add(last));
        if let Err(error) = fits.and_then(|()| reserve(at, more)) {
            self.cost.undo(at.vol, takes, undo);
            return Err(error);
        }
        self.reserved += more;
        Ok(())
    }

    fn note(&mut self, at: &At<'_>, step: Step) {
        self.steps.push((at.c.clone(), step));
    }

    /// Returns the directory that is to get `name`, which must not exist there.
    fn dir_for(&mut self, at: &At<'_>, parent: InodeNo, name: &[u8]) -> Result<Arc<Inode>> {
        let dir = self.dir(at.vol, at.c, parent)?;
        namei::check_name(name)?;
        let is_free = !dir::is_dot_or_dotdot(name) && self.find(at.vol, &dir, name)?.is_none();
        if !is_free {
            return Err(Error::Exists);
        }
        Ok(dir)
    }

    /// Stages a change; returns the inode that it changes. It stages all attributes but the size.
    pub(super) fn change(&mut self, at: &At<'_>, change: &Change<'_>) -> Result<Arc<Inode>> {
        match *change {
            Change::Make(name, new) => self.make(at, name, new),
            Change::Link(ino, name) => self.link(at, ino, name),
            Change::Unlink(name) => self.unlink(at, name),
            Change::Rmdir(name) => self.rmdir(at, name),
            Change::Rename(from, to, flags) => self.rename(at, from, to, flags),
            Change::SetAttr(ino, set) => self.set_attributes(at, ino, set),
            Change::SetXattr(ino, name, value, how) => {
                self.set_xattr(at, ino, name, Some(value), how)
            }
            Change::RemoveXattr(ino, name) => {
                self.set_xattr(at, ino, name, None, SetXattr::Replace)
            }
            Change::SetFlags(..) | Change::SetGeneration(..) => Err(Error::NotSupported),
        }
    }

    /// Makes an inode, which is to get this name.
    fn make(&mut self, at: &At<'_>, (parent, name): Name<'_>, new: New<'_>) -> Result<Arc<Inode>> {
        let dir = self.dir_for(at, parent, name)?;
        perm::may_change_entries(at.vol, at.c, &dir)?;
        let is_dir = matches!(new, New::Directory(_));
        let inode = create::create_unnamed(at.vol, at.c, &dir, new, true)?;
        let takes = Takes {
            inodes: &[&inode],
            dirs: &[Entries::add(&dir, name, i32::from(is_dir))],
            // The new directory's block has "..".
            rest: u32::from(is_dir),
            asks: unlink::LINK_CREDITS,
            ..Takes::default()
        };
        self.cost.made += 1;
        if let Err(error) = self.charge(at, &takes) {
            self.cost.made -= 1;
            open::release(at.vol, inode.ino)?;
            return Err(error);
        }
        self.insert(&inode, true);
        if is_dir {
            let (base, now) = (None, parent);
            self.parents.insert(inode.ino, Parent { base, now });
        } else {
            let (base, now) = (None, 1);
            self.links.insert(inode.ino, Links { base, now });
        }
        self.set(parent, name, None, Some(inode.ino));
        self.note(at, Step::Name(inode.ino, parent, name.to_vec()));
        Ok(inode)
    }

    fn links(&self, inode: &Inode) -> Links {
        let known = self.links.get(&inode.ino).copied();
        known.unwrap_or_else(|| {
            let now = inode.state.read().raw.links_count;
            let base = Some(now);
            Links { base, now }
        })
    }

    /// Gives a file one more name.
    fn link(&mut self, at: &At<'_>, ino: InodeNo, (parent, name): Name<'_>) -> Result<Arc<Inode>> {
        let inode = self.inode(at.vol, ino)?;
        let dir = self.dir_for(at, parent, name)?;
        if inode.state.read().is_dir() {
            return Err(Error::NotPermitted);
        }
        perm::may_change_entries(at.vol, at.c, &dir)?;
        let links = self.links(&inode);
        unlink::check_linkable(&inode.state.read())?;
        match links.now {
            0 => return Err(Error::NotFound),
            LINK_MAX.. => return Err(Error::TooManyLinks),
            _ => {}
        }
        namei::check_project(&dir, &inode)?;
        self.keep(&inode)?;
        let takes = Takes {
            inodes: &[&inode],
            dirs: &[Entries::add(&dir, name, 0)],
            asks: unlink::LINK_CREDITS,
            ..Takes::default()
        };
        self.charge(at, &takes)?;
        self.count(&inode, 1);
        self.set(parent, name, None, Some(ino));
        self.note(at, Step::Name(ino, parent, name.to_vec()));
        Ok(inode)
    }

    /// Adds `more` to a file's link count.
    fn count(&mut self, inode: &Inode, more: i16) {
        let links = self.links(inode);
        let now = links.now.saturating_add_signed(more);
        self.links.insert(inode.ino, Links { now, ..links });
    }

    /// Returns the directory, and the inode that has this name and that the caller may remove.
    fn victim(
        &mut self,
        at: &At<'_>,
        parent: InodeNo,
        name: &[u8],
    ) -> Result<(Arc<Inode>, Arc<Inode>)> {
        let dir = self.dir(at.vol, at.c, parent)?;
        namei::check_name(name)?;
        let found = self.find(at.vol, &dir, name)?.ok_or(Error::NotFound)?;
        let victim = self.inode(at.vol, found)?;
        perm::may_delete(at.vol, at.c, &dir, &victim)?;
        self.keep(&victim)?;
        Ok((dir, victim))
    }

    /// Removes a name of anything but a directory.
    fn unlink(&mut self, at: &At<'_>, (parent, name): Name<'_>) -> Result<Arc<Inode>> {
        if dir::is_dot_or_dotdot(name) {
            return Err(Error::IsDirectory);
        }
        let (dir, victim) = self.victim(at, parent, name)?;
        if victim.state.read().is_dir() {
            return Err(Error::IsDirectory);
        }
        let takes = Takes {
            inodes: &[&victim],
            dirs: &[Entries::other(&dir, 0)],
            asks: unlink::UNLINK_CREDITS,
            ..Takes::default()
        };
        self.charge(at, &takes)?;
        self.count(&victim, -1);
        self.set(parent, name, Some(victim.ino), None);
        self.note(at, Step::Remove(parent, name.to_vec()));
        Ok(victim)
    }

    /// Removes the name of an empty directory.
    fn rmdir(&mut self, at: &At<'_>, (parent, name): Name<'_>) -> Result<Arc<Inode>> {
        match name {
            b"." => return Err(Error::Invalid),
            b".." => return Err(Error::NotEmpty),
            _ => {}
        }
        let (dir, victim) = self.victim(at, parent, name)?;
        if !victim.state.read().is_dir() {
            return Err(Error::NotDirectory);
        }
        if !self.is_empty_dir(at.vol, &victim)? {
            return Err(Error::NotEmpty);
        }
        let takes = Takes {
            inodes: &[&victim],
            dirs: &[Entries::other(&dir, -1)],
            asks: unlink::UNLINK_CREDITS,
            ..Takes::default()
        };
        self.charge(at, &takes)?;
        self.removed.insert(victim.ino);
        self.set(parent, name, Some(victim.ino), None);
        self.note(at, Step::Remove(parent, name.to_vec()));
        Ok(victim)
    }

    /// Renames; leaves no whiteout.
    fn rename(
        &mut self,
        at: &At<'_>,
        (old_parent, old_name): Name<'_>,
        (new_parent, new_name): Name<'_>,
        flags: RenameFlags,
    ) -> Result<Arc<Inode>> {
        let vol = at.vol;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let keeps = flags.contains(RenameFlags::NOREPLACE);
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Error::NotSupported);
        }
        if exchange && keeps {
            return Err(Error::Invalid);
        }
        let old_dir = self.dir(vol, at.c, old_parent)?;
        let new_dir = self.dir(vol, at.c, new_parent)?;
        namei::check_name(old_name)?;
        namei::check_name(new_name)?;
        if dir::is_dot_or_dotdot(old_name) || dir::is_dot_or_dotdot(new_name) {
            return Err(Error::Busy);
        }
        let source = self.find(vol, &old_dir, old_name)?.ok_or(Error::NotFound)?;
        let source = self.inode(vol, source)?;
        let base = self.find(vol, &new_dir, new_name)?;
        match base {
            Some(_) if keeps => return Err(Error::Exists),
            None if exchange => return Err(Error::NotFound),
            Some(target) if target == source.ino => return Ok(source),
            _ => {}
        }
        let target = base.map(|ino| self.inode(vol, ino)).transpose()?;
        let mode_of = |inode: &Inode| inode.state.read().raw.mode;
        let moved = Moved {
            old_dir: &old_dir,
            new_dir: &new_dir,
            source: (&source, mode_of(&source)),
            target: target.as_deref().map(|target| (target, mode_of(target))),
            exchange,
        };
        rename::check_way(&moved, |above, below| {
            self.is_same_or_above(vol, above, below)
        })?;
        rename::check_rights(vol, at.c, &moved)?;
        let is_dir = mode::is_dir(moved.source.1);
        let target_is_dir = moved.target.is_some_and(|(_, m)| mode::is_dir(m));
        if let Some(target) = target.as_deref()
            && target_is_dir
            && !exchange
            && !self.is_empty_dir(vol, target)?
        {
            return Err(Error::NotEmpty);
        }
        self.keep(&source)?;
        if let Some(target) = &target {
            self.keep(target)?;
        }
        // The moved directory leaves the old one; a directory that it replaces leaves the new one.
        let (came, went) = (i32::from(is_dir), i32::from(target_is_dir));
        let (old_more, new_more) = if exchange {
            (went - came, came - went)
        } else {
            (-came, came - went)
        };
        let added = target.is_none().then_some(new_name);
        let changes = [
            Entries {
                dir: &new_dir,
                added,
                subdirs: new_more,
            },
            Entries::other(&old_dir, old_more),
        ];
        let inodes: Vec<_> = [Some(&*source), target.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        let takes = Takes {
            inodes: &inodes,
            dirs: &changes,
            // ".." of each directory that moves or goes.
            rest: u32::from(is_dir) + u32::from(target_is_dir),
            asks: rename::RENAME_CREDITS,
            ..Takes::default()
        };
        self.charge(at, &takes)?;
        let left = base.filter(|_| exchange);
        self.set(old_parent, old_name, Some(source.ino), left);
        self.set(new_parent, new_name, base, Some(source.ino));
        if is_dir {
            self.set_parent(vol, source.ino, new_parent)?;
        }
        match &target {
            Some(target) if exchange && target_is_dir => {
                self.set_parent(vol, target.ino, old_parent)?;
            }
            Some(target) if !exchange && target_is_dir => {
                self.removed.insert(target.ino);
            }
            Some(target) if !exchange => self.count(target, -1),
            _ => {}
        }
        let from = (old_parent, old_name.to_vec());
        let to = (new_parent, new_name.to_vec());
        self.note(at, Step::Rename(from, to, flags));
        Ok(source)
    }

    fn set_parent(&mut self, vol: &Volume, ino: InodeNo, now: InodeNo) -> Result<()> {
        self.parent(vol, ino)?;
        if let Some(parent) = self.parents.get_mut(&ino) {
            parent.now = now;
        }
        Ok(())
    }

    /// Returns the inode that a name stands for in the group; also for "." and "..".
    pub(super) fn lookup(
        &mut self,
        vol: &Volume,
        c: &Caller,
        parent: InodeNo,
        name: &[u8],
    ) -> Result<Arc<Inode>> {
        let dir = self.inode(vol, parent)?;
        perm::may_search(vol, c, &dir)?;
        namei::check_name(name)?;
        let found = match name {
            b"." => Some(parent),
            b".." => Some(self.parent(vol, parent)?),
            _ => self.find(vol, &dir, name)?,
        };
        self.inode(vol, found.ok_or(Error::NotFound)?)
    }

    /// Returns the names in a directory, without "." and "..", and what each stands for in the
    /// group.
    pub(super) fn list(&self, vol: &Volume, ino: InodeNo) -> Result<BTreeMap<Vec<u8>, InodeNo>> {
        let dir = self.inode(vol, ino)?;
        let mut names = BTreeMap::new();
        if !self.made(ino) {
            readdir::readdir(vol, &dir, 0, &mut |entry| {
                if !dir::is_dot_or_dotdot(entry.name) {
                    names.insert(entry.name.to_vec(), entry.ino);
                }
                true
            })?;
        }
        for (name, now) in self.changed_in(ino) {
            match now {
                Some(now) => names.insert(name.to_vec(), now),
                None => names.remove(name),
            };
        }
        Ok(names)
    }

    /// Gives places to the data of every inode that gets a name. The transactions of this are
    /// durable before the group's. No handle is open.
    pub(super) fn place_data(&self, vol: &Volume) -> Result<()> {
        let mut kept = self.kept.values();
        kept.try_for_each(|kept| sync::place(vol, &kept.inode))
    }

    /// Checks that everything the steps rely on still holds, and counts their credits anew. Returns
    /// the credits. The caller has the volume alone, and no handle.
    ///
    /// # Errors
    /// [`Error::Conflict`] with the directory or file that has changed; `NoSpace`, `TooManyLinks`,
    /// and damage.
    pub(super) fn check(&mut self, at: &At<'_>) -> Result<u32> {
        let vol = at.vol;
        for (ino, kept) in self.kept.iter().filter(|(_, kept)| !kept.is_made) {
            let is_lost = {
                let st = kept.inode.state.read();
                st.gone || st.is_dir() && st.raw.links_count == 0
            };
            if is_lost || forbidding(&kept.inode) != kept.flags {
                return Err(Error::Conflict(*ino));
            }
        }
        for ((ino, name), entry) in &self.entries {
            let known = self.made(*ino) || find(vol, &*self.inode(vol, *ino)?, name)? == entry.base;
            if !known {
                return Err(Error::Conflict(*ino));
            }
        }
        for ino in &self.removed {
            if !self.is_empty_dir(vol, &*self.inode(vol, *ino)?)? {
                return Err(Error::Conflict(*ino));
            }
        }
        for (ino, parent) in &self.parents {
            let is_known = match parent.base {
                Some(base) => dotdot(vol, &*self.inode(vol, *ino)?)? == base,
                None => true,
            };
            if !is_known {
                return Err(Error::Conflict(*ino));
            }
        }
        for (ino, links) in &self.links {
            let now = self.inode(vol, *ino)?.state.read().raw.links_count;
            if links.base.is_some_and(|base| base != now) {
                return Err(Error::Conflict(*ino));
            }
        }
        let dir_of = |ino| &*self.kept[&ino].inode;
        self.cost.look(vol, dir_of)?;
        self.check_xattrs(vol)?;
        let more = self.cost.new_blocks().saturating_sub(self.reserved);
        reserve(at, more)?;
        self.reserved += more;
        Ok(self.credits(vol))
    }

    /// Makes all changes. The caller has the volume alone, and a span.
    ///
    /// # Errors
    /// Only errors of the device are expected. Steps done before the error are not undone.
    pub(super) fn repeat(&mut self, vol: &Scope<'_>) -> Result<()> {
        // Nobody else is there to take the blocks reserved for the directories.
        vol.alloc.release(std::mem::take(&mut self.reserved).into());
        let get = |ino: &InodeNo| self.inode(vol, *ino);
        for (caller, step) in &self.steps {
            // Permissions were checked when the step was staged.
            let c = &Caller {
                privileged: true,
                checks: false,
                ..caller.clone()
            };
            match step {
                Step::Name(ino, parent, name) => {
                    let (inode, dir) = (get(ino)?, get(parent)?);
                    let is_dir = inode.state.read().is_dir();
                    if is_dir {
                        unlink::name_dir(vol, c, &inode, &dir, name)?
                    } else {
                        unlink::link(vol, c, &inode, &dir, name)?
                    }
                }
                Step::Remove(parent, name) => {
                    let dir = get(parent)?;
                    let found = find(vol, &dir, name)?.ok_or(Error::NotFound)?;
                    let is_dir = get(&found)?.state.read().is_dir();
                    if is_dir {
                        unlink::rmdir(vol, c, &dir, name)?;
                    } else {
                        unlink::unlink(vol, c, &dir, name)?;
                    }
                }
                Step::Rename((old, old_name), (new, new_name), flags) => {
                    let (old, new) = (get(old)?, get(new)?);
                    rename::rename(vol, c, &old, old_name, &new, new_name, *flags)?;
                }
                Step::Set(ino, set) => {
                    let inode = get(ino)?;
                    let _guard = inode.lock.write();
                    attr::change(vol, caller, &inode, set)?;
                }
                Step::Xattr(ino, (index, name), value) => {
                    let c = &Caller {
                        checks: false,
                        ..caller.clone()
                    };
                    let (inode, value) = (get(ino)?, value.as_deref());
                    let _guard = inode.lock.write();
                    xattr::apply(vol, c, &inode, (*index, name), value, SetXattr::Any)?;
                }
            }
        }
        Ok(())
    }

    /// Lets go of every inode, and gives back the reserved blocks.
    pub(super) fn end(&mut self, vol: &Scope<'_>) {
        let names = std::mem::take(self);
        vol.alloc.release(names.reserved.into());
        for (ino, kept) in names.kept {
            {
                let _guard = kept.inode.lock.write();
                let st = kept.inode.state.read();
                // A cache above may still know the inode, as after any other removal.
                if !kept.is_made && st.raw.links_count == 0 && !st.gone {
                    vol.held.hold(&kept.inode, &st);
                }
            }
            // If freeing it fails, the volume notes the error.
            let _ = open::release(vol, ino);
        }
    }
}

/// Returns the inode that the name stands for outside of the group.
fn find(vol: &Volume, dir: &Inode, name: &[u8]) -> Result<Option<InodeNo>> {
    let _shared = dir.lock.read();
    Ok(namei::find(vol, dir, name)?.map(|found| found.ino))
}

/// Returns the inode that the name stands for outside of the group, and checks it as the commit's
/// operation will. So a damaged inode is found before the group is half done.
fn find_child(vol: &Volume, dir: &Inode, name: &[u8]) -> Result<Option<InodeNo>> {
    let _shared = dir.lock.read();
    let found = namei::find(vol, dir, name)?;
    let child = found.map(|found| namei::named_child(vol, dir, &found));
    Ok(child.transpose()?.map(|child| child.ino))
}

fn dotdot(vol: &Volume, dir: &Inode) -> Result<InodeNo> {
    let _shared = dir.lock.read();
    let st = dir.state.read();
    Ok(dir::dotdot(Dir::open(vol, dir, &st)?)?.ino)
}

/// The flags of the inode that forbid changes.
fn forbidding(inode: &Inode) -> InodeFlags {
    inode.state.read().raw.flags & (InodeFlags::IMMUTABLE | InodeFlags::APPEND)
}

fn reserve(at: &At<'_>, blocks: u32) -> Result<()> {
    let privileged = at.vol.alloc.may_use_root_blocks(at.c);
    at.vol
        .alloc
        .reserve(blocks.into(), privileged, at.vol.retries())
}
