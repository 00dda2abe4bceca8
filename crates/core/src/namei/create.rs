//! New files: create, mkdir, mknod, symlink, files without a name, whiteouts.
//!
//! Order of changes: take the inode and write it, with what belongs to it (the first block of a
//! directory, the target of a symbolic link, inherited ACLs); add the name; store the directory's
//! own inode. When one of these finds no space, the same handle frees the new inode.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stetfs_format::LBlock;
use stetfs_format::inode::InodeFlags;
use stetfs_format::width::usize_as_u64;
use stetfs_journal::Handle;
use stetfs_media::Class;

use super::{
    add_dir_link, check_dir_links, check_name, entry_credits, find, named_inode, names_changed,
};
use crate::alloc::Source;
use crate::change::New;
use crate::dir;
use crate::dir::block::{Dir, NewEntry, Place};
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::scope::Scope;
use crate::types::{Caller, OpenFlags, mode};
use crate::volume::Volume;
use crate::{acl, evict, mapping, open, orphan, perm};

/// Credits of a new inode: bitmap, descriptor, slot, and two more if its group was never used.
const INODE_CREDITS: u32 = 5;
/// Credits of the inode's first block: bitmap, descriptor, the block.
const BLOCK_CREDITS: u32 = 3;

/// Symbolic links shorter than this are kept in the inode.
const FAST_SYMLINK_MAX: usize = 60;

/// Type and permissions of a whiteout (`WHITEOUT_MODE`).
pub(super) const WHITEOUT_MODE: u16 = mode::S_IFCHR;

/// The result of `create`. The file is open once, for the caller.
pub(crate) struct Created {
    /// The file.
    pub(crate) inode: Arc<Inode>,
    /// True when the file did not exist before. If it did, it is still to be checked whether the
    /// caller may open it.
    pub(crate) new: bool,
}

/// What to make, once it is checked that the caller may.
#[derive(Clone, Copy)]
struct Checked<'a> {
    mode: u16,
    rdev: (u32, u32),
    target: &'a [u8],
    /// Open the inode before anybody else can find it.
    open: bool,
}

impl<'a> Checked<'a> {
    /// Fails unless the caller may make `new`. `open`: open it before anybody else can find it.
    fn new(vol: &Volume, c: &Caller, new: New<'a>, open: bool) -> Result<Self> {
        let (mode, rdev, target): (_, _, &[u8]) = match new {
            New::File(bits) => (permissions(bits) | mode::S_IFREG, (0, 0), &[]),
            New::Directory(bits) => (bits & 0o1777 | mode::S_IFDIR, (0, 0), &[]),
            New::Node(bits, rdev) => (node_mode(c, bits, rdev)?, rdev, &[]),
            New::Symlink(target) => {
                check_target(vol, target)?;
                (0o777 | mode::S_IFLNK, (0, 0), target)
            }
        };
        Ok(Self {
            mode,
            rdev,
            target,
            open,
        })
    }
}

/// The mode of what mknod makes, if the caller may. A whiteout needs no privilege, since it is no
/// device that anybody could use.
fn node_mode(c: &Caller, file_mode: u16, rdev: (u32, u32)) -> Result<u16> {
    let kind = match file_mode & mode::S_IFMT {
        0 => mode::S_IFREG,
        mode::S_IFDIR => return Err(Error::NotPermitted),
        kind @ (mode::S_IFREG | mode::S_IFIFO | mode::S_IFSOCK | mode::S_IFCHR | mode::S_IFBLK) => {
            kind
        }
        _ => return Err(Error::Invalid),
    };
    let is_whiteout = kind == WHITEOUT_MODE && rdev == (0, 0);
    if mode::is_device(kind) && !is_whiteout && c.checks && !c.privileged {
        return Err(Error::NotPermitted);
    }
    Ok(permissions(file_mode) | kind)
}

fn check_target(vol: &Volume, target: &[u8]) -> Result<()> {
    if target.is_empty() {
        return Err(Error::NotFound);
    }
    if target.len() >= vol.geo.block_size() {
        return Err(Error::NameTooLong);
    }
    if target.contains(&0) {
        return Err(Error::Invalid);
    }
    Ok(())
}

/// Creates a regular file and opens it. Opens an existing one instead, unless `flags` has
/// EXCLUSIVE.
///
/// # Errors
/// `Exists`, `NotFound` (the directory was removed), `NotDirectory`, `Access`, `NotPermitted`,
/// `NameTooLong`, `NoSpace`, `ReadOnly`.
pub(crate) fn create(
    vol: &Scope<'_>,
    c: &Caller,
    dir: &Inode,
    name: &[u8],
    file_mode: u16,
    flags: OpenFlags,
) -> Result<Created> {
    let new = Checked::new(vol, c, New::File(file_mode), true)?;
    loop {
        match make(vol, c, dir, Some(name), new) {
            Err(Error::Exists) if !flags.contains(OpenFlags::EXCLUSIVE) => {
                let _shared = dir.lock.read();
                // Removed in the meantime? Then it can be created.
                if let Some(found) = find(vol, dir, name)? {
                    let inode = named_inode(vol, &found)?;
                    open::keep(&inode)?;
                    return Ok(Created { inode, new: false });
                }
                // It is not the name that is taken.
                if vol.redo.made().is_some() {
                    return Err(Error::Exists);
                }
            }
            made => {
                return Ok(Created {
                    inode: made?,
                    new: true,
                });
            }
        }
    }
}

/// Makes an inode without a name and opens it (O_TMPFILE). It is an orphan. If it is `nameable`,
/// `link` can give it a name, or `name_dir` if it is a directory.
///
/// # Errors
/// Those of [`create`] and [`make_named`], except those of names.
pub(crate) fn create_unnamed(
    vol: &Scope<'_>,
    c: &Caller,
    dir: &Inode,
    new: New<'_>,
    nameable: bool,
) -> Result<Arc<Inode>> {
    let inode = make(vol, c, dir, None, Checked::new(vol, c, new, true)?)?;
    inode.state.write().nameable = nameable;
    Ok(inode)
}

/// Makes an inode with a name.
///
/// # Errors
/// As [`create`]; `TooManyLinks` for a directory; `NotPermitted` for devices without privilege, or
/// for a type that mknod cannot make. For the target of a symbolic link: `NotFound` when it is
/// empty, `NameTooLong` when it does not fit a block, `Invalid` when it has a NUL.
pub(crate) fn make_named(
    vol: &Scope<'_>,
    c: &Caller,
    dir: &Inode,
    name: &[u8],
    new: New<'_>,
) -> Result<Arc<Inode>> {
    make(vol, c, dir, Some(name), Checked::new(vol, c, new, false)?)
}

fn permissions(file_mode: u16) -> u16 {
    file_mode & 0o7777
}

fn make(
    vol: &Scope<'_>,
    c: &Caller,
    dir: &Inode,
    name: Option<&[u8]>,
    new: Checked<'_>,
) -> Result<Arc<Inode>> {
    perm::may_search(vol, c, dir)?;
    name.map_or(Ok(()), check_name)?;
    vol.with_space(|| try_make(vol, c, dir, name, new))
}

fn try_make(
    vol: &Scope<'_>,
    c: &Caller,
    dir: &Inode,
    name: Option<&[u8]>,
    new: Checked<'_>,
) -> Result<Arc<Inode>> {
    let _alone = dir.lock.write();
    let named = {
        let st = dir.state.read();
        st.check_live()?;
        match name {
            None => None,
            Some(name) => Some((name, dir::place(Dir::open(vol, dir, &st)?, name)?)),
        }
    };
    // An inode without a name may be made for a directory that has none yet.
    if named.is_some() || !dir.state.read().nameable {
        perm::check_named(dir)?;
    }
    perm::may_change_entries(vol, c, dir)?;
    let is_dir = mode::is_dir(new.mode);
    if is_dir {
        check_dir_links(vol, &dir.state.read(), 1)?;
    }
    let mut plan = Plan::new(vol, c, dir, new)?;
    if named.is_none() {
        plan.raw.links_count = 0;
    }
    let name_credits = named.map_or(orphan::CREDITS, |(_, place)| entry_credits(place));
    let mut left = None;
    let made = vol.with_handle(plan.credits + name_credits, |h| {
        let inode = plan.take(vol, h, dir)?;
        let made = plan.fill(vol, h, &inode, dir).and_then(|()| match named {
            None => make_orphan(vol, h, &inode),
            Some((name, place)) => {
                let entry = NewEntry {
                    name,
                    ino: inode.ino,
                    mode: new.mode,
                    source: plan.source,
                };
                enter(vol, h, dir, place, entry, is_dir)
            }
        });
        match made {
            Ok(()) => Ok(inode),
            Err(error) => {
                left = unmake(vol, h, inode);
                Err(error)
            }
        }
    });
    finish_unmaking(vol, left);
    let inode = made?;
    inode
        .opens
        .fetch_add(u32::from(new.open), Ordering::Relaxed);
    Ok(inode)
}

/// An inode that is to be made in a directory. The caller holds the directory's lock.
pub(super) struct Plan<'a> {
    new: Checked<'a>,
    raw: stetfs_format::Inode,
    inherited: acl::Inherited,
    spread: bool,
    source: Source,
    /// Credits of making it, without a name.
    pub(super) credits: u32,
}

impl<'a> Plan<'a> {
    fn new(vol: &Volume, c: &Caller, dir: &Inode, new: Checked<'a>) -> Result<Self> {
        let (mut raw, spread) = {
            let st = dir.state.read();
            let spread = st.raw.flags.contains(InodeFlags::TOPDIR);
            (new_raw(vol, c, &st, new), spread)
        };
        let inherited = acl::inherit(vol, c, dir, raw.mode)?;
        raw.mode = inherited.mode;
        let own_block = u32::from(mode::is_dir(new.mode) || !new.target.is_empty());
        let skipped = vol
            .redo
            .made()
            .map_or(Ok(0), |(ino, _)| vol.alloc.skipped_blocks(ino))?;
        let credits = INODE_CREDITS + skipped + inherited.credits() + own_block * BLOCK_CREDITS;
        Ok(Self {
            new,
            raw,
            inherited,
            spread,
            source: Source::Free {
                privileged: vol.alloc.may_use_root_blocks(c),
            },
            credits,
        })
    }

    /// The whiteout that a rename leaves for an overlay: a character device 0, 0 that nobody may
    /// use (`ext4_whiteout_for_rename`).
    pub(super) fn whiteout(vol: &Volume, c: &Caller, dir: &Inode) -> Result<Self> {
        let new = Checked {
            mode: WHITEOUT_MODE,
            rdev: (0, 0),
            target: &[],
            open: false,
        };
        Plan::new(vol, c, dir, new)
    }

    /// Takes an inode from the allocator.
    pub(super) fn take(&self, vol: &Volume, h: &Handle, dir: &Inode) -> Result<Arc<Inode>> {
        let is_dir = mode::is_dir(self.new.mode);
        let ino = match vol.redo.made() {
            Some((ino, _)) => vol.alloc.alloc_this_inode(h, ino, is_dir)?,
            None => vol.alloc.alloc_inode(h, dir.ino, is_dir, self.spread)?,
        };
        vol.inode_created(ino, self.raw.clone(), h)
    }

    /// Writes the new inode and what belongs to it.
    pub(super) fn fill(&self, vol: &Volume, h: &Handle, inode: &Inode, dir: &Inode) -> Result<()> {
        let new = self.new;
        let mut st = inode.state.write();
        // Nothing of the number's last owner remains.
        vol.write_slot(h, inode, |slot| {
            st.raw.encode_fresh(slot, inode.ino, &vol.geo);
        })?;
        inode.note_change(h, true);
        if mode::is_dir(new.mode) {
            dir::init(vol, h, inode, &mut st, dir.ino, self.source)?;
        } else if new.target.len() >= FAST_SYMLINK_MAX {
            write_target(vol, h, inode, &mut st, new.target, self.source)?;
        } else if self.inherited.is_none() {
            return Ok(());
        }
        acl::store_inherited(vol, h, inode, &mut st, &self.inherited)?;
        vol.store_inode(h, inode, &st)
    }
}

/// Puts a file that has no name on the orphan list.
fn make_orphan(vol: &Volume, h: &Handle, inode: &Inode) -> Result<()> {
    let mut st = inode.state.write();
    orphan::add(vol, h, inode, &mut st)?;
    vol.store_inode(h, inode, &st)
}

/// Frees an inode that could not be filled or could not get its name. If it is large, only begins
/// to free it, and returns it for [`finish_unmaking`] after the handle is closed.
pub(super) fn unmake(vol: &Volume, h: &Handle, inode: Arc<Inode>) -> Option<Arc<Inode>> {
    let freed = {
        let mut st = inode.state.write();
        st.raw.links_count = 0;
        evict::evict_in(vol, h, &inode, &mut st)
    };
    match freed {
        Ok(is_free) => (!is_free).then_some(inode),
        Err(error) => {
            not_freed(&inode, &error);
            None
        }
    }
}

/// Frees what [`unmake`] left. No handle is open.
pub(super) fn finish_unmaking(vol: &Scope<'_>, left: Option<Arc<Inode>>) {
    if let Some(inode) = left
        && let Err(error) = evict::evict(vol, &inode)
    {
        not_freed(&inode, &error);
    }
}

fn not_freed(inode: &Inode, error: &Error) {
    tracing::error!("inode {} could not be freed again: {error}", inode.ino);
}

/// The new inode's fields, without ACLs.
fn new_raw(vol: &Volume, c: &Caller, dir: &InodeState, new: Checked<'_>) -> stetfs_format::Inode {
    let (gid, file_mode) = perm::inherit_group(vol, c, dir, new.mode);
    let flags = perm::inherit_flags(dir.raw.flags, new.mode);
    let now = vol.now();
    let generation = match vol.redo.made() {
        Some((_, generation)) => generation,
        None => vol.dirs.new_generation(now),
    };
    let mut raw = stetfs_format::Inode::new(file_mode, flags, generation, &vol.geo);
    (raw.uid, raw.gid) = (c.uid, gid);
    (raw.atime, raw.mtime, raw.ctime) = (now, now, now);
    if vol.has_birth_times() {
        raw.crtime = now;
    }
    raw.links_count = if mode::is_dir(new.mode) { 2 } else { 1 };
    if dir.raw.flags.contains(InodeFlags::PROJINHERIT) {
        raw.projid = dir.raw.projid;
    }
    if mode::is_device(new.mode) {
        raw.set_rdev(new.rdev.0, new.rdev.1);
    } else if !new.target.is_empty() && new.target.len() < FAST_SYMLINK_MAX {
        raw.block[..new.target.len()].copy_from_slice(new.target);
        raw.size = usize_as_u64(new.target.len());
    } else if matches!(
        new.mode & mode::S_IFMT,
        mode::S_IFREG | mode::S_IFDIR | mode::S_IFLNK
    ) {
        mapping::init(&mut raw, &vol.geo);
    }
    raw
}

/// Writes the target of a symbolic link to a block of its own, logged like metadata, so that link
/// and target appear together.
fn write_target(
    vol: &Volume,
    h: &Handle,
    inode: &Inode,
    st: &mut InodeState,
    target: &[u8],
    source: Source,
) -> Result<()> {
    let pblk = mapping::allocate_block(vol, h, inode, st, LBlock(0), source)?;
    let mut block = vec![0; vol.geo.block_size()];
    block[..target.len()].copy_from_slice(target);
    h.create(pblk, Class::Directory, &block)?;
    st.raw.size = usize_as_u64(target.len());
    Ok(())
}

/// Adds the name and updates the directory's inode. `is_dir`: counts one more subdirectory.
pub(super) fn enter(
    vol: &Volume,
    h: &Handle,
    dir: &Inode,
    place: Place,
    entry: NewEntry<'_>,
    is_dir: bool,
) -> Result<()> {
    let mut st = dir.state.write();
    let entered = dir::insert(vol, h, dir, &mut st, place, entry);
    if entered.is_ok() {
        names_changed(vol, dir, &mut st);
        if is_dir {
            add_dir_link(vol, &mut st);
        }
    }
    // Store it without space too: the tree may have grown before the space ran out.
    vol.store_inode(h, dir, &st)?;
    entered
}
