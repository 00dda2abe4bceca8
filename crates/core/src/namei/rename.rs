//! Rename: plain, without replacing (NOREPLACE), as an exchange (EXCHANGE), and leaving a whiteout
//! (WHITEOUT).
//!
//! Order of locks:
//! 1. The rename lock, for renames from one directory to another: alone when a directory moves,
//!    shared otherwise. So no directory moves while a rename looks at the path to the root.
//! 2. Both directories. The second is only tried: when somebody has it, the first is let go. So it
//!    does not matter which of the two lies above the other.
//! 3. The inodes that are moved or replaced, by number. It was checked before that neither lies
//!    above the other's directory.
//!
//! A file that takes the name of another one gets places for its data first, in the same
//! transaction or an earlier one. Order of changes in the one handle: first the whiteout and the
//! new name, so that nothing was changed when there is no space; then the old name is removed or
//! becomes the whiteout's, ".." of a moved directory is set, and the counts change; last, the
//! replaced inode is freed.

use std::sync::Arc;
use std::thread;

use parking_lot::RwLockWriteGuard;
use stetfs_format::InodeNo;
use stetfs_journal::Handle;
use stetfs_planted::{Bug, is_planted};

use super::create::{Plan, WHITEOUT_MODE, enter, finish_unmaking, unmake};
use super::unlink::{change_entry, check_empty, drop_link};
use super::{
    ENTRY_CREDITS, add_dir_link, check_dir_links, check_name, check_project, entry_credits, find,
    is_same_or_above, named_child, remove_dir_link, set_dotdot,
};
use crate::alloc::Source;
use crate::dir;
use crate::dir::block::{Dir, Found, NewEntry, Place};
use crate::error::{Error, Result};
use crate::evict::{self, EVICT_CREDITS};
use crate::inode::Inode;
use crate::scope::Scope;
use crate::types::{Access, Caller, RenameFlags, mode};
use crate::volume::Volume;
use crate::{orphan, perm};

/// Credits of a rename if the new directory has room: both entries, "..", both directories' and
/// both inodes' slots, and freeing the replaced file.
pub(crate) const RENAME_CREDITS: u32 = 2 * ENTRY_CREDITS + 1 + 4 + orphan::CREDITS + EVICT_CREDITS;

/// One end of a rename: a directory and a name in it.
struct End<'a> {
    dir: &'a Inode,
    name: &'a [u8],
}

/// What was found at the two ends.
struct Ends {
    source: Arc<Inode>,
    source_at: Found,
    source_mode: u16,
    target: Option<(Arc<Inode>, Found, u16)>,
}

impl Ends {
    fn moves_directory(&self, flags: RenameFlags) -> bool {
        let target = self.target.as_ref().is_some_and(|(.., m)| mode::is_dir(*m));
        mode::is_dir(self.source_mode) || (flags.contains(RenameFlags::EXCHANGE) && target)
    }
}

/// The result of an attempt. `Alone`: repeat it with the rename lock held alone.
enum Attempt {
    /// The rename is done; this inode had the old name.
    Done(Arc<Inode>),
    Alone,
}

/// Renames `old_name` in `old_dir` to `new_name` in `new_dir`. Returns the inode that had the old
/// name.
///
/// # Errors
/// `NotFound`, `Exists` (NOREPLACE), `Invalid` (into itself, contradicting flags), `NotEmpty`,
/// `IsDirectory`, `NotDirectory`, `Busy` ("." and ".."), `TooManyLinks`, `CrossDevice` (another
/// project), `Access`, `NotPermitted`, `NameTooLong`, `NoSpace`, `ReadOnly`.
pub(crate) fn rename(
    vol: &Scope<'_>,
    c: &Caller,
    old_dir: &Inode,
    old_name: &[u8],
    new_dir: &Inode,
    new_name: &[u8],
    flags: RenameFlags,
) -> Result<Arc<Inode>> {
    let others = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
    if flags.contains(RenameFlags::EXCHANGE) && flags.intersects(others) {
        return Err(Error::Invalid);
    }
    perm::may_search(vol, c, old_dir)?;
    perm::may_search(vol, c, new_dir)?;
    check_name(old_name)?;
    if dir::is_dot_or_dotdot(old_name) {
        return Err(Error::Busy);
    }
    if dir::is_dot_or_dotdot(new_name) {
        let exists = flags.contains(RenameFlags::NOREPLACE);
        return Err(if exists { Error::Exists } else { Error::Busy });
    }
    let old = End {
        dir: old_dir,
        name: old_name,
    };
    let new = End {
        dir: new_dir,
        name: new_name,
    };
    let alone = || match attempt(vol, c, &old, &new, flags, true)? {
        Attempt::Done(moved) => Ok(moved),
        Attempt::Alone => unreachable!("a directory may move"),
    };
    vol.with_space(|| {
        if old_dir.ino == new_dir.ino {
            let _dir = old_dir.lock.write();
            return alone();
        }
        {
            let _shared = vol.rename_lock.read();
            let _dirs = lock_both(old_dir, new_dir);
            if let Attempt::Done(moved) = attempt(vol, c, &old, &new, flags, false)? {
                return Ok(moved);
            }
        }
        let _alone = vol.rename_lock.write();
        let _dirs = lock_both(old_dir, new_dir);
        alone()
    })
}

/// Locks two directories, and never waits for one while it holds the other.
fn lock_both<'a>(a: &'a Inode, b: &'a Inode) -> [RwLockWriteGuard<'a, ()>; 2] {
    let (mut first, mut second) = (a, b);
    loop {
        let guard = first.lock.write();
        if let Some(other) = second.lock.try_write() {
            return [guard, other];
        }
        drop(guard);
        thread::yield_now();
        std::mem::swap(&mut first, &mut second);
    }
}

/// Does the rename once the directories are locked. `alone`: a directory may move.
fn attempt(
    vol: &Scope<'_>,
    c: &Caller,
    old: &End<'_>,
    new: &End<'_>,
    flags: RenameFlags,
    alone: bool,
) -> Result<Attempt> {
    let exchange = flags.contains(RenameFlags::EXCHANGE);
    let ends = find_ends(vol, old, new, flags)?;
    if ends
        .target
        .as_ref()
        .is_some_and(|(target, ..)| target.ino == ends.source.ino)
    {
        return Ok(Attempt::Done(ends.source));
    }
    let cross = old.dir.ino != new.dir.ino;
    if cross && !alone && ends.moves_directory(flags) {
        return Ok(Attempt::Alone);
    }
    let moved = Moved {
        old_dir: old.dir,
        new_dir: new.dir,
        source: (&ends.source, ends.source_mode),
        target: ends
            .target
            .as_ref()
            .map(|(target, _, mode)| (&**target, *mode)),
        exchange,
    };
    check_way(&moved, |above, below| is_same_or_above(vol, above, below))?;
    let _children = lock_children(&ends);
    if ends.target.is_none() {
        perm::check_named(new.dir)?;
    }
    check_rights(vol, c, &moved)?;
    if exchange {
        exchange_names(vol, old, new, &ends)?;
        return Ok(Attempt::Done(ends.source.clone()));
    }
    check_replace(vol, old, new, &ends)?;
    move_name(vol, c, old, new, &ends, flags)?;
    Ok(Attempt::Done(ends.source.clone()))
}

fn find_ends(vol: &Volume, old: &End<'_>, new: &End<'_>, flags: RenameFlags) -> Result<Ends> {
    let source_at = find(vol, old.dir, old.name)?.ok_or(Error::NotFound)?;
    check_name(new.name)?;
    let target_at = find(vol, new.dir, new.name)?;
    if target_at.is_some() && flags.contains(RenameFlags::NOREPLACE) {
        return Err(Error::Exists);
    }
    if target_at.is_none() && flags.contains(RenameFlags::EXCHANGE) {
        return Err(Error::NotFound);
    }
    let source = named_child(vol, old.dir, &source_at)?;
    let source_mode = source.state.read().raw.mode;
    let target = match target_at {
        None => None,
        Some(at) => {
            let target = named_child(vol, new.dir, &at)?;
            let target_mode = target.state.read().raw.mode;
            Some((target, at, target_mode))
        }
    };
    Ok(Ends {
        source,
        source_at,
        source_mode,
        target,
    })
}

/// What a rename moves, and between which directories: inodes and modes.
pub(crate) struct Moved<'a> {
    pub(crate) old_dir: &'a Inode,
    pub(crate) new_dir: &'a Inode,
    pub(crate) source: (&'a Inode, u16),
    /// The inode that has the new name, if any.
    pub(crate) target: Option<(&'a Inode, u16)>,
    pub(crate) exchange: bool,
}

/// Fails when a directory would come to lie inside itself, or when a target directory has the other
/// end below it and thus is not empty. Both arguments of `is_same_or_above` are directories.
pub(crate) fn check_way(
    moved: &Moved<'_>,
    mut is_same_or_above: impl FnMut(InodeNo, InodeNo) -> Result<bool>,
) -> Result<()> {
    let (old, new) = (moved.old_dir.ino, moved.new_dir.ino);
    if old == new {
        return Ok(());
    }
    let (source, source_mode) = moved.source;
    if mode::is_dir(source_mode) && is_same_or_above(source.ino, new)? {
        return Err(Error::Invalid);
    }
    if let Some((target, target_mode)) = moved.target
        && mode::is_dir(target_mode)
        && is_same_or_above(target.ino, old)?
    {
        return Err(if moved.exchange {
            Error::Invalid
        } else {
            Error::NotEmpty
        });
    }
    Ok(())
}

/// Locks what loses its place: a moved directory, and the replaced inode. (A file never replaces a
/// directory, nor a directory a file.)
fn lock_children(ends: &Ends) -> [Option<RwLockWriteGuard<'_, ()>>; 2] {
    let is_dir = mode::is_dir(ends.source_mode);
    let source = is_dir.then_some(&*ends.source);
    let target = ends
        .target
        .as_ref()
        .filter(|(.., m)| mode::is_dir(*m) == is_dir)
        .map(|(target, ..)| &**target);
    let mut children = [source, target];
    children.sort_by_key(|child| child.map(|child| child.ino));
    children.map(|child| child.map(|child| child.lock.write()))
}

/// Checks permissions, in the kernel's order.
pub(crate) fn check_rights(vol: &Volume, c: &Caller, moved: &Moved<'_>) -> Result<()> {
    let (source, source_mode) = moved.source;
    let (cross, exchange) = (moved.old_dir.ino != moved.new_dir.ino, moved.exchange);
    perm::may_delete(vol, c, moved.old_dir, source)?;
    let source_is_dir = mode::is_dir(source_mode);
    match moved.target {
        None => perm::may_change_entries(vol, c, moved.new_dir)?,
        Some((target, target_mode)) => {
            perm::may_delete(vol, c, moved.new_dir, target)?;
            match (source_is_dir, mode::is_dir(target_mode)) {
                (true, false) if !exchange => return Err(Error::NotDirectory),
                (false, true) if !exchange => return Err(Error::IsDirectory),
                (_, true) if exchange && cross => {
                    perm::permission(vol, c, target, Access::WRITE)?;
                }
                _ => {}
            }
        }
    }
    if !cross {
        return Ok(());
    }
    if source_is_dir {
        perm::permission(vol, c, source, Access::WRITE)?;
    }
    check_project(moved.new_dir, source)?;
    match moved.target {
        Some((target, _)) if exchange => check_project(moved.old_dir, target),
        _ => Ok(()),
    }
}

/// Checks that the target can be replaced, and that the new directory can count one more.
fn check_replace(vol: &Volume, old: &End<'_>, new: &End<'_>, ends: &Ends) -> Result<()> {
    if !mode::is_dir(ends.source_mode) {
        return Ok(());
    }
    match &ends.target {
        Some((target, ..)) => check_empty(vol, target),
        None if old.dir.ino != new.dir.ino => check_dir_links(vol, &new.dir.state.read(), 1),
        None => Ok(()),
    }
}

fn move_name(
    vol: &Scope<'_>,
    c: &Caller,
    old: &End<'_>,
    new: &End<'_>,
    ends: &Ends,
    flags: RenameFlags,
) -> Result<()> {
    let place = match &ends.target {
        Some(_) => Place::Grow,
        None => {
            let st = new.dir.state.read();
            dir::place(Dir::open(vol, new.dir, &st)?, new.name)?
        }
    };
    let grows = match &ends.target {
        Some(_) => 0,
        None => entry_credits(place) - ENTRY_CREDITS,
    };
    let plan = if flags.contains(RenameFlags::WHITEOUT) {
        Some(Plan::whiteout(vol, c, old.dir)?)
    } else {
        None
    };
    let more = plan.as_ref().map_or(0, |plan| plan.credits);
    let is_replaced = ends.target.is_some() && !is_planted(Bug::UnplacedRename);
    if is_replaced && vol.opts.auto_da_alloc {
        // Otherwise a crash could leave the name without the data, when the old file is gone.
        vol.place(&ends.source)?;
    }
    let is_dir = mode::is_dir(ends.source_mode);
    let cross = old.dir.ino != new.dir.ino;
    let mut left = None;
    let mut enter_new = |h: &Handle| {
        let whiteout = match &plan {
            Some(plan) => Some(plan.take(vol, h, old.dir)?),
            None => None,
        };
        let filled = match (&plan, &whiteout) {
            (Some(plan), Some(inode)) => plan.fill(vol, h, inode, old.dir),
            _ => Ok(()),
        };
        let moved = (&*ends.source, ends.source_mode);
        let entered = filled.and_then(|()| match &ends.target {
            Some((_, at, _)) => change_entry(vol, h, new.dir, at, Some(moved), false),
            None => {
                let source = Source::Free {
                    privileged: vol.alloc.may_use_root_blocks(c),
                };
                let entry = NewEntry {
                    name: new.name,
                    ino: ends.source.ino,
                    mode: ends.source_mode,
                    source,
                };
                enter(vol, h, new.dir, place, entry, is_dir && cross)
            }
        });
        match entered {
            Ok(()) => Ok(whiteout),
            Err(error) => {
                left = whiteout.and_then(|inode| unmake(vol, h, inode));
                Err(error)
            }
        }
    };
    let leave_old = |h: &Handle, whiteout: Option<Arc<Inode>>| {
        // Adding the new name may have moved the old one, or changed the record before it.
        let at = match (cross, &ends.target) {
            (false, None) => &find(vol, old.dir, old.name)?.ok_or(Error::NotFound)?,
            _ => &ends.source_at,
        };
        // The old directory loses a subdirectory; within one directory, only when another was
        // replaced.
        let fewer = is_dir && (cross || ends.target.is_some());
        let instead = whiteout.as_ref().map(|inode| (&**inode, WHITEOUT_MODE));
        change_entry(vol, h, old.dir, at, instead, fewer)?;
        if is_dir && cross {
            set_dotdot(vol, h, &ends.source, new.dir)?;
        }
        touch(vol, h, &ends.source)?;
        match &ends.target {
            Some((target, ..)) => drop_link(vol, h, target),
            None => Ok(true),
        }
    };
    let credits = RENAME_CREDITS + grows + more;
    let moved = if is_planted(Bug::SplitRename) {
        vol.with_handle(credits, enter_new)
            .and_then(|whiteout| vol.with_handle(credits, |h| leave_old(h, whiteout)))
    } else {
        vol.with_handle(credits, |h| leave_old(h, enter_new(h)?))
    };
    finish_unmaking(vol, left);
    let gone = moved?;
    match &ends.target {
        Some((target, ..)) if !gone => evict::evict(vol, target),
        _ => Ok(()),
    }
}

fn touch(vol: &Volume, h: &Handle, inode: &Inode) -> Result<()> {
    let mut st = inode.state.write();
    st.touch(vol.now());
    vol.store_inode(h, inode, &st)
}

fn exchange_names(vol: &Scope<'_>, old: &End<'_>, new: &End<'_>, ends: &Ends) -> Result<()> {
    let Some((target, target_at, target_mode)) = &ends.target else {
        return Err(Error::NotFound);
    };
    let cross = old.dir.ino != new.dir.ino;
    let (source_is_dir, target_is_dir) =
        (mode::is_dir(ends.source_mode), mode::is_dir(*target_mode));
    let shifts = cross && source_is_dir != target_is_dir;
    let (gains, loses) = if source_is_dir {
        (new.dir, old.dir)
    } else {
        (old.dir, new.dir)
    };
    if shifts {
        check_dir_links(vol, &gains.state.read(), 1)?;
    }
    vol.with_handle(RENAME_CREDITS, |h| {
        let (source, target_entry) = ((&*ends.source, ends.source_mode), (&**target, *target_mode));
        change_entry(vol, h, new.dir, target_at, Some(source), false)?;
        change_entry(vol, h, old.dir, &ends.source_at, Some(target_entry), false)?;
        if cross && source_is_dir {
            set_dotdot(vol, h, &ends.source, new.dir)?;
        }
        if cross && target_is_dir {
            set_dotdot(vol, h, target, old.dir)?;
        }
        if shifts {
            let mut st = gains.state.write();
            add_dir_link(vol, &mut st);
            vol.store_inode(h, gains, &st)?;
            drop(st);
            let mut st = loses.state.write();
            remove_dir_link(&mut st);
            vol.store_inode(h, loses, &st)?;
        }
        touch(vol, h, &ends.source)?;
        touch(vol, h, target)
    })
}
